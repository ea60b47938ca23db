//! A TCP proxy that spoils what goes through it, to put before a receiver or a database.
//!
//! Faults are set for all connections at once, those that are open and those to come, and may change at any time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

mod pump;

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// They pass.
    #[default]
    None,
    /// Each piece (up to 64 KiB) waits this long before it goes on; so this bounds the throughput as well.
    Latency(Duration),
    /// They are not read any more, as behind a firewall that drops packets. What waits passes when that ends.
    Blackhole,
    /// So many bytes pass at a time, then this much time.
    Drip {
        /// How many bytes; at least 1.
        bytes: usize,
        /// How long between them.
        every: Duration,
    },
    /// The direction ends in an orderly way; the other one goes on.
    HalfClose,
    /// So many bytes of each connection pass, counted from its beginning; then the connection is reset.
    CutAfter(u64),
    /// The connection is reset: both sides see it at once.
    Reset,
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From whoever connected to the proxy.
    ToServer,
    /// From the server behind the proxy.
    ToClient,
}

/// The faults of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Faults {
    to_server: Fault,
    to_client: Fault,
    /// New connections are closed at once.
    refusing: bool,
}

impl Faults {
    fn of(&self, direction: Direction) -> Fault {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// A running proxy; it stops and closes its connections when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    counts: Arc<Counts>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

impl Counts {
    fn bytes(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }
}

impl FaultProxy {
    /// Starts a proxy without faults before `server`.
    ///
    /// # Errors
    /// No port of 127.0.0.1 can be bound.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let faults = watch::Sender::new(Faults::default());
        let counts = Arc::new(Counts::default());
        let task = pump::serve(listener, server, faults.subscribe(), Arc::clone(&counts));
        Ok(Self { address, faults, counts, server: tokio::spawn(task) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to the bytes of one direction from now on.
    pub fn set(&self, direction: Direction, fault: Fault) {
        self.faults.send_modify(|faults| match direction {
            Direction::ToServer => faults.to_server = fault,
            Direction::ToClient => faults.to_client = fault,
        });
    }

    /// The same for both directions.
    pub fn set_both(&self, fault: Fault) {
        self.faults.send_modify(|faults| {
            faults.to_server = fault;
            faults.to_client = fault;
        });
    }

    /// Resets every open connection and closes new ones at once, until [`FaultProxy::heal`]: a server that is down.
    pub fn down(&self) {
        self.faults.send_modify(|faults| {
            *faults = Faults { to_server: Fault::Reset, to_client: Fault::Reset, refusing: true };
        });
    }

    /// Takes every fault away. Connections that were closed or cut stay so.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| *faults = Faults::default());
    }

    /// Connections accepted so far, refused ones included.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// Bytes that have passed in one direction.
    pub fn passed(&self, direction: Direction) -> u64 {
        self.counts.bytes(direction).load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[cfg(test)]
mod tests;
