//! The receiver's side of the wire.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::answer::{Content, Deed};
use super::{Hit, Shared};

/// The script closes the connection, or the request broke off: either way there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection ends without an answer")]
struct NoAnswer;

/// Serves connections until it is aborted, which closes them.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // A peer that is gone again already is no reason to stop.
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, Arc::clone(&shared)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
    let _open = Open::count(&shared);
    let service = service_fn(|request| answer(request, number, &shared));
    // How the connection ends is the other side's affair, or what the script asked for.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    connection: u64,
    shared: &Shared,
) -> Result<Response<Content>, NoAnswer> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        shared.update(|log| log.broken += 1);
        return Err(NoAnswer);
    };
    let hit = Hit {
        at: Instant::now(),
        wall_at: SystemTime::now(),
        connection,
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body: body.to_bytes(),
    };
    let answer = shared.answer(&hit);
    shared.update(|log| log.hits.push(hit));
    tokio::time::sleep(answer.delay).await;
    match answer.deed {
        Deed::Respond(reply) => Ok(reply.into_response()),
        Deed::Never => std::future::pending().await,
        Deed::Close => Err(NoAnswer),
    }
}

/// Counts a connection as open for as long as it lives, also when its task is aborted.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    fn count(shared: &'a Shared) -> Self {
        shared.update(|log| log.open += 1);
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.update(|log| log.open -= 1);
    }
}
