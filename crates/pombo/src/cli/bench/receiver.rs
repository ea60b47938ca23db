//! The receiver: a process of its own that answers 200 and counts.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::event;
use super::ledger::Ledger;
use super::messages::{AskReceiver, Layout, Received};
use super::speech::{self, Parent};
use crate::failure::Outcome;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 4096;
/// Longest body that is read.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Path of an endpoint, before its number.
pub(super) const PATH: &str = "/e/";

type Shared = Arc<Mutex<Ledger>>;

/// Receives until the parent is gone.
pub(crate) async fn run() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no loopback port is free")?;
    let address = listener.local_addr().context("the socket has no address")?;
    let ledger = Arc::new(Mutex::new(Ledger::new(0, Layout { tenants: 1, endpoints_each: 1 })));
    tokio::spawn(accept(listener, Arc::clone(&ledger)));
    let mut parent = Parent::new();
    while let Some(question) = parent.question().await? {
        speech::answer(Ok(reply(question, &ledger, address)))?;
    }
    Ok(())
}

fn reply(question: AskReceiver, ledger: &Shared, address: SocketAddr) -> Received {
    let mut ledger = lock(ledger);
    match question {
        AskReceiver::Begin { run, layout } => {
            *ledger = Ledger::new(run, layout);
            ledger.status(address)
        }
        AskReceiver::Status => ledger.status(address),
        AskReceiver::Audit { events, not_accepted } => {
            Received { lost: ledger.lost(events, &not_accepted), ..ledger.status(address) }
        }
    }
}

fn lock(ledger: &Shared) -> MutexGuard<'_, Ledger> {
    ledger.lock().expect("nobody panics with the ledger")
}

async fn accept(listener: TcpListener, ledger: Shared) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        // An accept that failed is met again by the sender, which tries anew.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            serve(stream, ledger).await;
            drop(slot);
        });
    }
}

async fn serve(stream: TcpStream, ledger: Shared) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(|request| {
        let ledger = Arc::clone(&ledger);
        async move { Ok::<_, Infallible>(take(request, &ledger).await) }
    });
    // A connection that breaks is the sender's to notice.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn take(request: Request<Incoming>, ledger: &Shared) -> Response<Empty<Bytes>> {
    let endpoint = request.uri().path().strip_prefix(PATH).and_then(|number| number.parse().ok());
    let mut response = Response::new(Empty::new());
    // A body that broke off was not received: the sender tries again.
    let Ok(body) = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await else {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    };
    let mark = event::mark_of(&body.to_bytes());
    let now = event::now();
    let mut ledger = lock(ledger);
    match endpoint.zip(mark) {
        Some((endpoint, mark)) => ledger.record(endpoint, mark, now),
        None => ledger.record_unreadable(),
    }
    response
}
