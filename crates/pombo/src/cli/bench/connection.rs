//! One keep-alive HTTP connection, as lean as hyper allows: what is measured is Pombo, not its load.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longest a call may take.
pub(super) const CALL_MAX: Duration = Duration::from_secs(30);

/// A connection to a server on this machine.
#[derive(Debug)]
pub(super) struct Connection {
    address: SocketAddr,
    host: HeaderValue,
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Opens it.
    pub(super) async fn open(address: SocketAddr) -> Result<Self> {
        let host = HeaderValue::from_str(&address.to_string()).context("an address is visible ASCII")?;
        Ok(Self { address, host, sender: connect(address).await? })
    }

    /// Opens it again after a failure.
    pub(super) async fn reopen(&mut self) -> Result<()> {
        self.sender = connect(self.address).await?;
        Ok(())
    }

    /// `POST` with a JSON body; gives the status and the answer's body.
    pub(super) async fn post(&mut self, path: &Uri, body: Bytes) -> Result<(StatusCode, Bytes)> {
        self.call(Method::POST, path, body).await
    }

    /// `GET`.
    pub(super) async fn get(&mut self, path: &Uri) -> Result<(StatusCode, Bytes)> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    async fn call(&mut self, method: Method, path: &Uri, body: Bytes) -> Result<(StatusCode, Bytes)> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.clone();
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let exchange = async {
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>((status, body))
        };
        match tokio::time::timeout(CALL_MAX, exchange).await {
            Ok(answer) => answer.with_context(|| format!("the connection to {} broke", self.address)),
            Err(_) => bail!("{} did not answer within {} s", self.address, CALL_MAX.as_secs()),
        }
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let opening = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Ends with the sender.
        tokio::spawn(connection);
        Ok::<_, anyhow::Error>(sender)
    };
    let opened = tokio::time::timeout(CALL_MAX, opening).await.context("no connection in time");
    opened.and_then(|opened| opened).with_context(|| format!("cannot reach {address}"))
}
