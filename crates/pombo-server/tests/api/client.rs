//! A client that hides nothing: one connection per request.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Speaks to one server, with one key or none.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) key: Option<String>,
}

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The JSON, after a look at the status.
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Fields and codes of a problem.
    pub(crate) fn errors(&self) -> Vec<(String, String)> {
        let document = self.json();
        let errors = document["errors"].as_array().cloned().unwrap_or_default();
        let text = |error: &Value, name: &str| error[name].as_str().unwrap_or_default().to_owned();
        errors.iter().map(|error| (text(error, "field"), text(error, "code"))).collect()
    }
}

impl Client {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path), Bytes::new()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path), Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.with_body(Method::POST, path, body).await
    }

    pub(crate) async fn patch(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.with_body(Method::PATCH, path, body).await
    }

    async fn with_body(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send(self.request(method, path).header("content-type", "application/json"), body).await
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(path).header("host", self.address.to_string());
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    pub(crate) async fn send(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Answer {
        let request = request.body(Full::new(body.into())).expect("a request");
        timeout(ANSWER_MAX, self.exchange(request)).await.expect("answered in time")
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Answer {
        let stream = dial(self.address).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        connection.abort();
        Answer { status: parts.status, headers: parts.headers, body }
    }
}

#[expect(clippy::disallowed_methods, reason = "the tests are the clients of the server under test")]
pub(crate) async fn dial(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("connected")
}
