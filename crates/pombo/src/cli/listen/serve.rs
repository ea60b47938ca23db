//! The accept loop of the receiver.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pombo_signature::ProviderSecret;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use crate::argument::now;
use crate::cli::listen::answer::{self, Script};
use crate::cli::listen::received::Received;
use crate::failure::Failure;
use crate::output::{Output, note};

/// Most connections at once.
const CONNECTIONS_MAX: usize = 512;
/// Longest body that is taken.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest a request's head may take.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// Before the next accept after one failed (no file descriptor left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every connection needs.
pub(crate) struct Receiver {
    /// What is answered.
    pub(crate) script: Script,
    /// What is verified with.
    pub(crate) secrets: Vec<ProviderSecret>,
    /// Where it is shown.
    pub(crate) output: Output,
}

/// Serves until something cannot be shown.
pub(crate) async fn serve(listener: TcpListener, receiver: Arc<Receiver>) -> Failure {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let count = Arc::new(AtomicU64::new(0));
    let (failures, mut failed) = mpsc::channel(1);
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    note(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            Some(failure) = failed.recv() => return failure,
        };
        let connection = Connection {
            receiver: Arc::clone(&receiver),
            count: Arc::clone(&count),
            failures: failures.clone(),
        };
        tokio::spawn(async move {
            connection.serve(stream).await;
            drop(slot);
        });
    }
}

struct Connection {
    receiver: Arc<Receiver>,
    count: Arc<AtomicU64>,
    failures: mpsc::Sender<Failure>,
}

impl Connection {
    async fn serve(&self, stream: TcpStream) {
        let service = service_fn(|request| async { Ok::<_, Infallible>(self.take(request).await) });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        match served {
            // A sender that hangs up between requests, or goes at its own deadline, is no news.
            Err(error) if !error.is_incomplete_message() && !error.is_timeout() && !error.is_canceled() => {
                note(&format!("a connection broke: {error}"));
            }
            _ => {}
        }
    }

    async fn take(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                note(&format!("a body was not taken: {error}"));
                return answer::plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long or broke off\n");
            }
        };
        let received = Received {
            number: self.count.fetch_add(1, Ordering::Relaxed) + 1,
            at: now(),
            method: head.method,
            target: head.uri.to_string(),
            headers: head.headers,
            body,
        };
        let signatures = received.signatures(&self.receiver.secrets);
        let response = self.receiver.script.answer(&received).await;
        if let Err(failure) = received.print(&signatures, response.status(), self.receiver.output) {
            // Only the first failure counts; the loop ends with it.
            let _ = self.failures.try_send(failure);
        }
        response
    }
}
