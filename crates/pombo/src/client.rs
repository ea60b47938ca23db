//! The command line's own HTTP client. It calls the server that the person named, so the address policy of
//! deliveries does not apply; it follows no redirect and heeds no proxy variable.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client as HyperClient, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use pombo_domain::secret::SecretText;
use rustls_platform_verifier::BuilderVerifierExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::argument::SecretArg;
use crate::failure::{Failure, Outcome};

/// Longest a call may take; a test delivery takes at most 30 s.
const CALL_MAX: Duration = Duration::from_secs(60);
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Which server the commands on data speak to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Address of the server
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "POMBO_SERVER",
        default_value = "http://127.0.0.1:8080"
    )]
    server: String,
    /// API key: pk_…, or @file, env:NAME, - for stdin
    #[arg(long, global = true, value_name = "KEY", env = "POMBO_API_KEY", hide_env_values = true,
        value_parser = SecretArg::parse)]
    api_key: Option<SecretArg>,
}

/// HTTP over TCP or TLS, to whom the person named.
pub(crate) type Http = HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// An HTTP client with the system's trust store.
pub(crate) fn http() -> Outcome<Http> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(BuilderVerifierExt::with_platform_verifier)
        .context("cannot load the system's CA certificates (the package is often called ca-certificates)")?
        .with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
    Ok(HyperClient::builder(TokioExecutor::new()).build(connector))
}

/// Speaks to one server.
#[derive(Debug)]
pub(crate) struct Client {
    base: Url,
    authorization: Option<HeaderValue>,
    http: Http,
}

/// A good answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// 2xx.
    pub(crate) status: StatusCode,
    /// The exact bytes.
    pub(crate) body: Bytes,
    /// Its headers.
    pub(crate) headers: HeaderMap,
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Outcome<T> {
        let value = serde_json::from_slice(&self.body).context(
            "the server's answer is not what this command expects; is it another version of Pombo?",
        )?;
        Ok(value)
    }
}

impl Client {
    /// For the server and the key of the arguments.
    pub(crate) fn new(args: &ServerArgs) -> Outcome<Self> {
        let not_a_url = || {
            Failure::usage(format!(
                "--server {:?} is not an address such as http://127.0.0.1:8080",
                args.server
            ))
        };
        let mut base = Url::parse(&args.server).map_err(|_| not_a_url())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(not_a_url());
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(Failure::usage(
                "--server must not hold a user name or password: give the key by --api-key",
            ));
        }
        base.set_query(None);
        base.set_fragment(None);
        let key = args.api_key.as_ref().filter(|key| !key.is_empty()).map(SecretArg::read).transpose()?;
        let authorization = key.as_ref().map(bearer).transpose()?;
        Ok(Self { base, authorization, http: http()? })
    }

    /// `GET`.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Outcome<Answer> {
        self.call(Method::GET, path, query, None).await
    }

    /// `POST` with a JSON body; without one, an empty object.
    pub(crate) async fn post(&self, path: &[&str], body: Option<Vec<u8>>) -> Outcome<Answer> {
        self.call(Method::POST, path, &[], Some(body.unwrap_or_else(|| b"{}".to_vec()))).await
    }

    /// Any call. `path` is given in segments, each of which is escaped.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Outcome<Answer> {
        let request = self.request(method, path, query, body)?;
        let exchange = async {
            let response = self.http.request(request).await.map_err(|error| self.unreachable(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| {
                Failure::failed(format!("the answer of {} broke off: {error}", self.origin()))
            })?;
            Ok::<_, Failure>(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
        };
        let answer = tokio::time::timeout(CALL_MAX, exchange).await.map_err(|_| {
            Failure::failed(format!("{} did not answer within {} s", self.origin(), CALL_MAX.as_secs()))
        })??;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refusal(&answer)) }
    }

    fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<Vec<u8>>,
    ) -> Outcome<Request<Full<Bytes>>> {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http URL has a path").pop_if_empty().push("v1").extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request =
            Request::builder().method(method).uri(url.as_str()).header(ACCEPT, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        Ok(request.body(body).context("this request cannot be sent over HTTP")?)
    }

    /// Scheme, host and port of the server, for messages.
    pub(crate) fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error) -> Failure {
        let why = root_cause(error);
        let origin = self.origin();
        Failure::failed(if error.is_connect() {
            format!(
                "cannot reach the server at {origin} ({why}): start it with `pombo serve`, or name another with \
                 --server or POMBO_SERVER"
            )
        } else {
            format!("the connection to {origin} broke ({why}): whether the call was carried out is unknown")
        })
    }

    fn refusal(&self, answer: &Answer) -> Failure {
        let status = answer.status;
        if status.is_redirection() {
            let to = answer.headers.get(http::header::LOCATION).and_then(|value| value.to_str().ok());
            let to = to.unwrap_or("another address");
            return Failure::failed(format!("{} redirects to {to}: name the right address", self.origin()));
        }
        let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) else {
            return Failure::failed(format!("{} answered {status}; is it a Pombo server?", self.origin()));
        };
        let hint = match (status, &self.authorization) {
            (StatusCode::UNAUTHORIZED, None) => " (give the key by --api-key or POMBO_API_KEY)",
            (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, _) => " (try again later)",
            _ => "",
        };
        Failure::failed(format!("{}{hint} [{}]", problem.sentence(), status.as_u16()))
    }
}

fn bearer(key: &SecretText) -> Outcome<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose().trim()))
        .map_err(|_| Failure::usage("the API key holds characters that no key has; it looks like pk_…"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The innermost cause: `Connection refused` says more than `client error (Connect)`.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let text = cause.to_string();
    // "(os error 111)" means nothing to people.
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// RFC 9457, as far as a person needs it.
#[derive(Debug, Deserialize)]
struct Problem {
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    errors: Vec<ProblemField>,
}

#[derive(Debug, Deserialize)]
struct ProblemField {
    #[serde(default)]
    field: String,
    #[serde(default)]
    message: String,
}

impl Problem {
    fn sentence(&self) -> String {
        if self.errors.is_empty() {
            let text = if self.detail.is_empty() { &self.title } else { &self.detail };
            return text.trim_end_matches('.').to_owned();
        }
        let fields = self.errors.iter().map(|error| format!("`{}` {}", error.field, error.message));
        fields.collect::<Vec<_>>().join("; ")
    }
}

/// A field of an answer as text: strings as they are, other values as JSON, nothing for null.
pub(crate) fn field(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_read_as_sentences_that_name_the_field() {
        let problem: Problem = serde_json::from_str(
            r#"{"type":"/errors/invalid","title":"Invalid","status":422,"detail":"One field is wrong.",
                "errors":[{"field":"url","code":"url","message":"must begin with https://"}]}"#,
        )
        .expect("a problem");
        assert_eq!(problem.sentence(), "`url` must begin with https://");
        let problem: Problem =
            serde_json::from_str(r#"{"title":"Not found","status":404}"#).expect("a problem");
        assert_eq!(problem.sentence(), "Not found");
    }

    #[test]
    fn path_segments_are_escaped() {
        let args = ServerArgs { server: "http://127.0.0.1:9/base/".to_owned(), api_key: None };
        let client = Client::new(&args).expect("a client");
        let query = [("type", "a&b".to_owned())];
        let request = client.request(Method::GET, &["endpoints", "a/b?"], &query, None).expect("a request");
        assert_eq!(request.uri(), "http://127.0.0.1:9/base/v1/endpoints/a%2Fb%3F?type=a%26b");
    }
}
