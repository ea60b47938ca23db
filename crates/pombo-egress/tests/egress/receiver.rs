//! Raw TCP receivers: each connection is handed to a script that reads and writes bytes as it likes.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// An answer without a body that keeps the connection open.
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A receiver on loopback. It stops when dropped.
pub(crate) struct Receiver {
    pub(crate) at: SocketAddr,
    counts: Arc<Counts>,
    task: AbortHandle,
}

#[derive(Default)]
struct Counts {
    opened: AtomicUsize,
    requests: AtomicUsize,
    finished: AtomicUsize,
}

/// One connection as its script sees it.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
    counts: Arc<Counts>,
}

impl Receiver {
    /// Runs the script for each connection, on a free port of 127.0.0.1.
    pub(crate) async fn start<F, S>(script: S) -> Self
    where
        S: Fn(Peer) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().expect("a socket address"), script).await
    }

    pub(crate) async fn start_at<F, S>(at: SocketAddr, script: S) -> Self
    where
        S: Fn(Peer) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(at).await.expect("loopback has free ports");
        let at = listener.local_addr().expect("a bound listener has an address");
        let counts = Arc::new(Counts::default());
        let seen = Arc::clone(&counts);
        let task = tokio::spawn(async move {
            let mut scripts = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                seen.opened.fetch_add(1, Ordering::SeqCst);
                let running = script(Peer { stream, unread: Vec::new(), counts: Arc::clone(&seen) });
                let seen = Arc::clone(&seen);
                scripts.spawn(async move {
                    running.await;
                    seen.finished.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Self { at, counts, task: task.abort_handle() }
    }

    /// Answers every request on every connection with the same bytes.
    pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                while peer.read_request().await.is_some() {
                    peer.write(&answer).await;
                }
            }
        })
        .await
    }

    /// Answers one request on each connection with these bytes and closes it.
    pub(crate) async fn answering_once(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                peer.read_request().await;
                peer.write(&answer).await;
            }
        })
        .await
    }

    pub(crate) fn url(&self) -> pombo_domain::endpoint::EndpointUrl {
        crate::url(format!("http://{}/hooks?token=secret", self.at))
    }

    /// A URL of this receiver under a name, for a scripted resolver.
    pub(crate) fn named(&self, scheme: &str, name: &str) -> pombo_domain::endpoint::EndpointUrl {
        crate::url(format!("{scheme}://{name}:{}/hooks", self.at.port()))
    }

    /// Connections accepted so far.
    pub(crate) fn opened(&self) -> usize {
        self.counts.opened.load(Ordering::SeqCst)
    }

    /// Requests read in full so far.
    pub(crate) fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// Scripts that came to their end.
    pub(crate) fn finished(&self) -> usize {
        self.counts.finished.load(Ordering::SeqCst)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer {
    /// Head and body of the next request, or `None` when the sender closed the connection.
    pub(crate) async fn read_request(&mut self) -> Option<String> {
        loop {
            if let Some(length) = request_length(&self.unread) {
                let request = self.unread.drain(..length).collect();
                self.counts.requests.fetch_add(1, Ordering::SeqCst);
                return Some(String::from_utf8(request).expect("the tests send text"));
            }
            if self.stream.read_buf(&mut self.unread).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Writes; an error is the sender's good right.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Reads on until the sender has closed the connection.
    pub(crate) async fn wait_for_close(&mut self) {
        let mut sink = [0; 4096];
        while matches!(self.stream.read(&mut sink).await, Ok(read) if read > 0) {}
    }
}

/// Length of a whole request at the start of the bytes, if it is there.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).expect("heads are text").to_ascii_lowercase();
    let body = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = head + body.map_or(0, |digits| digits.parse().expect("a length"));
    (bytes.len() >= length).then_some(length)
}
