//! Connections kept open between requests.
//!
//! hyper-util's pooled client is not used: it bounds idle connections per host but not in all, and ten
//! thousand endpoints would hold ten thousand sockets; it never retires a connection that is in constant
//! use; and it connects in a task of its own, where one attempt's phases and refusals are hard to tell from
//! another's. What is left to write without it is this file.
//!
//! A kept connection stays bound to the peer that was judged when it was made, so using it again is safe
//! against rebinding. It is retired by age, so that a moved name is followed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Bounds of the connections kept open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Idle connections to one scheme, host and port.
    pub per_host: usize,
    /// Idle connections in all; past it the longest idle one is closed.
    pub total: usize,
    /// How long one stays idle.
    pub idle: Duration,
    /// How old one may be when it begins a request, used or not.
    pub age: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { per_host: 256, total: 512, idle: Duration::from_secs(30), age: Duration::from_secs(90) }
    }
}

/// An open HTTP/1.1 connection. Dropping it closes the socket at once, whatever is in flight on it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    pub(crate) opened_at: Instant,
    /// Held for its drop.
    pub(crate) _task: AbortOnDrop,
}

/// Ends a connection's task. Without it a task whose peer stopped reading would outlive the attempt, flushing.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
    origin: Arc<str>,
}

/// Idle connections by ticket. Tickets are given out in the order in which connections become idle, so the
/// first ticket is the longest idle one, of all and within its origin.
#[derive(Debug, Default)]
struct Shelf {
    idle: BTreeMap<u64, Idle>,
    by_origin: HashMap<Arc<str>, VecDeque<u64>>,
    next_ticket: u64,
    has_reaper: bool,
}

/// The idle connections of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    limits: PoolLimits,
    shelf: Mutex<Shelf>,
}

impl Pool {
    pub(crate) fn new(limits: PoolLimits) -> Self {
        Self { limits, shelf: Mutex::default() }
    }

    /// Takes the connection to the origin that was used last and is still open.
    pub(crate) fn take(&self, origin: &str) -> Option<Connection> {
        let now = Instant::now();
        let mut held = self.lock();
        // Each round removes a ticket, so the loop ends.
        while let Some(idle) = held.take_newest(origin) {
            if idle.connection.sender.is_ready() && !self.is_expired(&idle, now) {
                return Some(idle.connection);
            }
        }
        None
    }

    /// Keeps a connection that has finished an exchange, unless a bound says no.
    pub(crate) fn keep(self: &Arc<Self>, origin: &str, connection: Connection) {
        let now = Instant::now();
        if !connection.sender.is_ready() || now.duration_since(connection.opened_at) >= self.limits.age {
            return;
        }
        let mut held = self.lock();
        if held.by_origin.get(origin).is_some_and(|tickets| tickets.len() >= self.limits.per_host) {
            return;
        }
        held.put(origin, connection, now);
        if held.idle.len() > self.limits.total {
            held.remove_oldest();
        }
        if !held.has_reaper {
            held.has_reaper = true;
            drop(held);
            tokio::spawn(reap(Arc::downgrade(self), self.limits.idle));
        }
    }

    /// How many kept connections could carry a request now.
    pub(crate) fn ready(&self) -> usize {
        self.lock().idle.values().filter(|idle| idle.connection.sender.is_ready()).count()
    }

    /// Closes what has been idle too long, or was closed by its peer. `false` when nothing is left.
    fn close_expired(&self) -> bool {
        let now = Instant::now();
        let mut held = self.lock();
        let gone: Vec<u64> = held
            .idle
            .iter()
            .filter(|(_, idle)| self.is_expired(idle, now) || idle.connection.sender.is_closed())
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in gone {
            held.remove(ticket);
        }
        held.has_reaper = !held.idle.is_empty();
        held.has_reaper
    }

    fn is_expired(&self, idle: &Idle, now: Instant) -> bool {
        now.duration_since(idle.since) >= self.limits.idle
            || now.duration_since(idle.connection.opened_at) >= self.limits.age
    }

    /// No code panics while it holds the lock; were it to, the shelf would still be whole enough to use.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes expired connections until the pool is empty or gone. `has_reaper` changes only under the lock, together with the
/// emptiness it stands for, so there is never a full shelf without a reaper nor a second one.
async fn reap(pool: Weak<Pool>, idle: Duration) {
    let period = (idle / 2).max(Duration::from_millis(50));
    loop {
        tokio::time::sleep(period).await;
        match pool.upgrade() {
            Some(pool) if pool.close_expired() => {}
            _ => return,
        }
    }
}

impl Shelf {
    fn put(&mut self, origin: &str, connection: Connection, now: Instant) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let origin = match self.by_origin.get_key_value(origin) {
            Some((origin, _)) => Arc::clone(origin),
            None => Arc::from(origin),
        };
        self.by_origin.entry(Arc::clone(&origin)).or_default().push_back(ticket);
        self.idle.insert(ticket, Idle { connection, since: now, origin });
    }

    fn take_newest(&mut self, origin: &str) -> Option<Idle> {
        let ticket = *self.by_origin.get(origin)?.back()?;
        self.remove(ticket)
    }

    fn remove_oldest(&mut self) {
        if let Some(ticket) = self.idle.keys().next().copied() {
            self.remove(ticket);
        }
    }

    fn remove(&mut self, ticket: u64) -> Option<Idle> {
        let idle = self.idle.remove(&ticket)?;
        if let Some(tickets) = self.by_origin.get_mut(&idle.origin) {
            // Tickets ascend within an origin.
            if let Ok(place) = tickets.binary_search(&ticket) {
                tickets.remove(place);
            }
            if tickets.is_empty() {
                self.by_origin.remove(&idle.origin);
            }
        }
        Some(idle)
    }
}
