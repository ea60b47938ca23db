//! A small client of the HTTP API: JSON in, JSON out, and a bound on every call.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// How long a call may take. Longer than anything the API waits for.
const CALL_LIMIT: Duration = Duration::from_secs(40);

/// A client of one server. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Api {
    address: SocketAddr,
    key: Option<String>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What the server answered.
#[derive(Debug, Clone)]
pub struct ApiAnswer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
}

impl ApiAnswer {
    /// The body as JSON; `null` where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of an answer that must have this status.
    ///
    /// # Panics
    /// It has another one.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

impl Api {
    /// A client that sends no key.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, key: None, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// The same client with an API key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// GET.
    ///
    /// # Errors
    /// The connection fails, or there is no answer in time.
    pub async fn get(&self, path: &str) -> io::Result<ApiAnswer> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// POST of a JSON document.
    ///
    /// # Errors
    /// The connection fails, or there is no answer in time.
    pub async fn post(&self, path: &str, body: &Value) -> io::Result<ApiAnswer> {
        self.call(Method::POST, path, body.to_string().into()).await
    }

    /// PATCH with a JSON document.
    ///
    /// # Errors
    /// The connection fails, or there is no answer in time.
    pub async fn patch(&self, path: &str, body: &Value) -> io::Result<ApiAnswer> {
        self.call(Method::PATCH, path, body.to_string().into()).await
    }

    /// DELETE.
    ///
    /// # Errors
    /// The connection fails, or there is no answer in time.
    pub async fn delete(&self, path: &str) -> io::Result<ApiAnswer> {
        self.call(Method::DELETE, path, Bytes::new()).await
    }

    /// Any call, with exactly this body under `content-type: application/json`.
    ///
    /// # Errors
    /// The connection fails, or there is no answer in time: then nobody knows whether it took effect.
    pub async fn call(&self, method: Method, path: &str, body: Bytes) -> io::Result<ApiAnswer> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(io::Error::other)?;
        let answer = async {
            let (head, body) = self.client.request(request).await.map_err(io::Error::other)?.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            Ok(ApiAnswer { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(CALL_LIMIT, answer).await?
    }
}
