//! A scripted HTTP receiver on a free port of 127.0.0.1.
//!
//! It records each whole request before it answers, so that a request which was answered is always in
//! [`Receiver::hits`]. What it answers is a [`Script`] for each path.
//!
//! ```
//! # async fn example() -> std::io::Result<()> {
//! use std::time::Duration;
//! use pombo_testkit::receiver::{Answer, Receiver, Script};
//!
//! let receiver = Receiver::start().await?; // 200 to everything
//! receiver.script("/flaky", Script::sequence([Answer::status(503), Answer::status(204)]));
//! // … have something sent to `receiver.url("/flaky")` …
//! let hits = receiver
//!     .wait_for(Duration::from_secs(5), |hits| hits.len() == 2)
//!     .await
//!     .expect("a 503 is tried again");
//! assert_eq!(hits[0].webhook_id(), hits[1].webhook_id());
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::changes::Changes;
pub use crate::changes::TimedOut;

mod answer;
mod serve;

pub use answer::{Answer, Script};

/// How long [`Receiver::restart`] tries to get its port back.
const REBIND_LIMIT: Duration = Duration::from_secs(5);

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Hit {
    /// When its last byte had arrived.
    pub at: Instant,
    /// The same by the clock on the wall, to compare with timestamps in headers.
    pub wall_at: SystemTime,
    /// Which of the receiver's connections it came over, counted from 0: equal numbers mean a reused connection.
    pub connection: u64,
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query after `?`, where there was one.
    pub query: Option<String>,
    /// The headers, names in lower case, repeated ones in order.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
}

impl Hit {
    /// The first value of that header; `None` where it is missing or not ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The id of the event, the same on every attempt.
    pub fn webhook_id(&self) -> Option<&str> {
        self.header("webhook-id")
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The body is no JSON.
    pub fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::from_slice(&self.body)
    }
}

/// A running receiver; it stops when dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Accepts connections and owns their tasks: aborting it closes them all.
    server: Mutex<Option<JoinHandle<()>>>,
}

/// What the connections share with the test.
#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    scripts: Mutex<HashMap<String, Script>>,
    fallback: Mutex<Script>,
    /// Connections accepted so far; also the number of the next one.
    accepted: AtomicU64,
    changes: Changes,
}

#[derive(Debug, Default)]
struct Log {
    hits: Vec<Hit>,
    /// Requests whose body broke off.
    broken: usize,
    /// Connections open now.
    open: usize,
}

impl Receiver {
    /// Starts a receiver that answers 200 with an empty body to everything.
    ///
    /// # Errors
    /// No port of 127.0.0.1 can be bound.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            log: Mutex::default(),
            scripts: Mutex::default(),
            fallback: Mutex::new(Script::always(Answer::status(200))),
            accepted: AtomicU64::new(0),
            changes: Changes::new(),
        });
        let server = tokio::spawn(serve::serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, server: Mutex::new(Some(server)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path that begins with `/`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers requests to `path` by `script` from now on.
    pub fn script(&self, path: &str, script: Script) {
        locked(&self.shared.scripts).insert(path.to_owned(), script);
    }

    /// Answers requests to every path without a script of its own by `script` from now on.
    pub fn script_others(&self, script: Script) {
        *locked(&self.shared.fallback) = script;
    }

    /// Every request so far, in the order in which they were complete.
    pub fn hits(&self) -> Vec<Hit> {
        locked(&self.shared.log).hits.clone()
    }

    /// How many requests there were so far.
    pub fn hit_count(&self) -> usize {
        locked(&self.shared.log).hits.len()
    }

    /// The requests to one path so far.
    pub fn hits_at(&self, path: &str) -> Vec<Hit> {
        locked(&self.shared.log).hits.iter().filter(|hit| hit.path == path).cloned().collect()
    }

    /// How often each `webhook-id` has come so far; requests without one are not counted.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for id in locked(&self.shared.log).hits.iter().filter_map(Hit::webhook_id) {
            *counts.entry(id.to_owned()).or_default() += 1;
        }
        counts
    }

    /// Requests whose body broke off before its end; they are no hits.
    pub fn broken(&self) -> usize {
        locked(&self.shared.log).broken
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub fn open(&self) -> usize {
        locked(&self.shared.log).open
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        locked(&self.shared.log).hits.clear();
    }

    /// Waits until the requests fulfil the condition, which is asked after each one, and returns them.
    ///
    /// # Errors
    /// It is not fulfilled within `limit`.
    pub async fn wait_for(
        &self,
        limit: Duration,
        condition: impl Fn(&[Hit]) -> bool,
    ) -> Result<Vec<Hit>, TimedOut> {
        self.wait(limit, |log| condition(&log.hits).then(|| log.hits.clone())).await
    }

    /// Waits until exactly `count` connections are open: 0 shows that the other side has hung up.
    ///
    /// # Errors
    /// That is not so within `limit`.
    pub async fn wait_for_open(&self, count: usize, limit: Duration) -> Result<(), TimedOut> {
        self.wait(limit, |log| (log.open == count).then_some(())).await
    }

    async fn wait<T>(&self, limit: Duration, look: impl Fn(&Log) -> Option<T>) -> Result<T, TimedOut> {
        let found = self.shared.changes.wait_for(limit, || look(&locked(&self.shared.log))).await;
        found.ok_or_else(|| TimedOut { waited: limit, state: locked(&self.shared.log).summary() })
    }

    /// Closes every connection, mid-answer where there is one, and refuses new ones.
    pub async fn stop(&self) {
        let server = locked(&self.server).take();
        if let Some(server) = server {
            server.abort();
            // Awaited so that the port is closed when this returns; the only error is the abort itself.
            let _ = server.await;
        }
    }

    /// Listens again on the same port after [`Receiver::stop`]; scripts and hits are kept.
    ///
    /// # Errors
    /// The port cannot be bound any more.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        let since = Instant::now();
        let listener = loop {
            match TcpListener::bind(self.address).await {
                Ok(listener) => break listener,
                // An outgoing connection of somebody else may hold the port for a moment.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && since.elapsed() < REBIND_LIMIT => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => return Err(error),
            }
        };
        let server = tokio::spawn(serve::serve(listener, Arc::clone(&self.shared)));
        *locked(&self.server) = Some(server);
        Ok(())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(server) = locked(&self.server).take() {
            server.abort();
        }
    }
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut Log)) {
        change(&mut locked(&self.log));
        self.changes.announce();
    }

    fn answer(&self, hit: &Hit) -> Answer {
        if let Some(script) = locked(&self.scripts).get_mut(&hit.path) {
            return script.next(hit);
        }
        locked(&self.fallback).next(hit)
    }
}

impl Log {
    fn summary(&self) -> String {
        let paths: Vec<String> = self.hits.iter().map(|hit| format!("{} {}", hit.method, hit.path)).collect();
        let shown = paths.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
        let more = if paths.len() > 20 { ", …" } else { "" };
        format!(
            "{} hits [{shown}{more}], {} broken off, {} connections open",
            paths.len(),
            self.broken,
            self.open
        )
    }
}

/// A panic in a test's closure must not hide what the test is about, so a poisoned lock is taken all the same.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
