//! What the receiver answers.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use url::Url;

use crate::cli::listen::received::Received;
use crate::client::{self, Http};
use crate::failure::Outcome;

/// Longest the target of `--forward-to` may take.
const FORWARD_MAX: Duration = Duration::from_secs(30);
/// Longest answer of the target that is handed back.
const FORWARD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Headers that belong to one connection (RFC 9110 section 7.6.1), and those the new one sets itself.
const OWN_HEADERS: [HeaderName; 9] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHORIZATION,
    header::EXPECT,
];

/// How requests are answered.
pub(crate) struct Script {
    /// So many are answered with 500 first.
    pub(crate) fail_first: u64,
    /// The status of all others.
    pub(crate) status: u16,
    /// Before each answer.
    pub(crate) delay: Duration,
    /// Who answers instead.
    pub(crate) forward: Option<Forward>,
}

impl Script {
    /// The answer to a request.
    pub(crate) async fn answer(&self, received: &Received) -> Response<Full<Bytes>> {
        tokio::time::sleep(self.delay).await;
        if received.number <= self.fail_first {
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "told to fail\n");
        }
        if let Some(forward) = &self.forward {
            return forward.answer(received).await;
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        plain(status, if status.is_success() { "" } else { "told to\n" })
    }
}

/// An answer of our own.
pub(crate) fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Hands requests on to the address that the person named.
pub(crate) struct Forward {
    target: Url,
    http: Http,
}

impl Forward {
    /// To this address.
    pub(crate) fn to(target: Url) -> Outcome<Self> {
        Ok(Self { target, http: client::http()? })
    }

    async fn answer(&self, received: &Received) -> Response<Full<Bytes>> {
        match tokio::time::timeout(FORWARD_MAX, self.exchange(received)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                crate::output::note(&format!("not forwarded: {error:#}"));
                plain(StatusCode::BAD_GATEWAY, "the target cannot be reached\n")
            }
            Err(_) => plain(StatusCode::GATEWAY_TIMEOUT, "the target took too long\n"),
        }
    }

    async fn exchange(&self, received: &Received) -> anyhow::Result<Response<Full<Bytes>>> {
        let mut request = Request::builder().method(received.method.clone()).uri(self.target.as_str());
        for (name, value) in received.headers.iter().filter(|(name, _)| !OWN_HEADERS.contains(name)) {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(received.body.clone())).context("cannot be sent on")?;
        let response = self
            .http
            .request(request)
            .await
            .map_err(|error| anyhow::anyhow!("{}: {}", self.target, client::root_cause(&error)))?;
        let (mut head, body) = response.into_parts();
        let body = Limited::new(body, FORWARD_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| anyhow::anyhow!("the answer of {} broke off: {error}", self.target))?;
        for name in &OWN_HEADERS {
            head.headers.remove(name);
        }
        Ok(Response::from_parts(head, Full::new(body.to_bytes())))
    }
}
