//! One connection: requests one after the other until it is closed, idle for too long, or asked to end.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tower::Service;

use super::ServeLimits;
use super::body::{RequestBody, ResponseBody};
use super::clock::Clock;
use super::stream::WatchedStream;
use crate::problem::{Cause, Problem};

/// Longest head of a request; longer ones answer 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;

pub(super) async fn run(
    stream: TcpStream,
    router: Router,
    limits: ServeLimits,
    mut stopping: watch::Receiver<bool>,
) {
    let clock = Arc::new(Clock::new());
    let service = service_fn(|request| answer(router.clone(), request, Arc::clone(&clock), limits));
    let stream = TokioIo::new(WatchedStream::new(stream, Arc::clone(&clock)));
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    let mut look = std::pin::pin!(sleep_until(clock.next_look(&limits, Instant::now())));
    let mut is_ending = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "A connection broke");
                }
                return;
            }
            () = look.as_mut() => {
                let now = Instant::now();
                if clock.deadline(&limits) <= now {
                    tracing::debug!(phase = ?clock.phase(), "A connection took too long and is closed");
                    return;
                }
                look.as_mut().reset(clock.next_look(&limits, now));
            }
            // An error means that the accept loop is gone: end too.
            _ = stopping.wait_for(|stop| *stop), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(
    mut router: Router,
    request: Request<Incoming>,
    clock: Arc<Clock>,
    limits: ServeLimits,
) -> Result<Response<ResponseBody>, Infallible> {
    clock.begin_request();
    let id = next_request_id();
    // Kept for the log: 5xx are rare, so only what is cheap to keep.
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let request = request.map(|body| RequestBody::new(body, Arc::clone(&clock), limits.body));
    // The router is always ready: `poll_ready` of axum does nothing.
    let routed = AssertUnwindSafe(router.call(request)).catch_unwind().await;
    let mut response = match routed {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => Problem::internal("the handler panicked").into_response(),
    };
    log_cause(&mut response, &method, uri.path(), &id);
    add_headers(&mut response, id);
    Ok(response.map(|body| ResponseBody::new(body, clock)))
}

/// Says once, for the person who runs this, what the caller is not shown.
fn log_cause(response: &mut Response, method: &Method, path: &str, id: &HeaderValue) {
    let Some(Cause(cause)) = response.extensions_mut().remove::<Cause>() else { return };
    let (status, id) = (response.status().as_u16(), id.to_str().unwrap_or_default());
    if status == 500 {
        tracing::error!(request.id = id, %method, path, status, cause, "A request failed");
    } else {
        tracing::warn!(request.id = id, %method, path, status, cause, "A request could not be served");
    }
}

fn add_headers(response: &mut Response, id: HeaderValue) {
    const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
}

/// `req_`, eight digits of this run of the process, and a counter: unique enough to find a line in a log.
fn next_request_id() -> HeaderValue {
    static RUN: OnceLock<u32> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let run = RUN.get_or_init(rand::random);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    HeaderValue::try_from(format!("req_{run:08x}{count:x}")).expect("hexadecimal digits are visible ASCII")
}
