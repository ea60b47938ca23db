//! The accept loop: our own, so that every wait has a timer and everything in memory a bound.

mod body;
mod clock;
mod connection;
mod stream;

use std::io;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use body::BodyFault;

/// Pause after an accept failed for want of files or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of connections. The default is what the service runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeLimits {
    /// From the first byte of a request (or the connection's start) to the end of its head.
    pub head: Duration,
    /// From the end of the head to the end of the body.
    pub body: Duration,
    /// Between two requests of a connection.
    pub idle: Duration,
    /// From the end of the head to the end of the answer; the longest call sends one attempt and waits for it.
    pub request: Duration,
    /// Connections open at once; more wait to be accepted.
    pub connections: usize,
    /// How long requests may go on after shutdown was asked for.
    pub drain: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            request: Duration::from_secs(120),
            connections: 4096,
            drain: Duration::from_secs(10),
        }
    }
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Connections that were cut because their request did not end in time.
    pub cut: usize,
}

/// Serves until `shutdown` is ready: then accepts nothing more, lets requests that are under way end within
/// [`ServeLimits::drain`], and cuts the rest.
///
/// Cancel safety: dropping the future cuts every connection at once.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServeLimits,
    shutdown: impl Future<Output = ()>,
) -> Served {
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => observe(ended),
            accepted = listener.accept(), if connections.len() < limits.connections => match accepted {
                Ok((stream, _)) => {
                    prepare(&stream);
                    connections.spawn(connection::run(stream, router.clone(), limits, stopping.clone()));
                }
                Err(error) => pause_after(&error).await,
            },
        }
    }
    drop(listener);
    stop.send_replace(true);
    drain(connections, limits.drain).await
}

async fn drain(mut connections: JoinSet<()>, grace: Duration) -> Served {
    let deadline = Instant::now() + grace;
    while let Ok(Some(ended)) = timeout_at(deadline, connections.join_next()).await {
        observe(ended);
    }
    let cut = connections.len();
    if cut > 0 {
        tracing::warn!(connections = cut, "Requests did not end in time; their connections are cut");
    }
    connections.shutdown().await;
    Served { cut }
}

fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
}

/// A connection that broke before it was accepted concerns nobody; anything else (no files, no memory) would
/// come back at once, so it waits a little.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return;
    }
    tracing::error!(%error, "No connection can be accepted; trying again");
    sleep(ACCEPT_PAUSE).await;
}

fn observe(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "A connection's task panicked");
    }
}
