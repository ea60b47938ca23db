//! Sessions: which process owns which deliveries, and for how long (docs/protocol.md, rules S).

use std::time::Duration;

use async_trait::async_trait;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::id::SessionId;

use crate::error::Result;

/// What a process does. `deliver` decides who gets shards (C3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// Serves the API.
    pub api: bool,
    /// Relays outboxes.
    pub relay: bool,
    /// Claims and sends deliveries.
    pub deliver: bool,
}

/// Which life of the database server this is: its start time and timeline. Changes with every restart and
/// failover; only compared for equality (S5). A SQLite store has one epoch per opened store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch(pub String);

/// A session to be opened.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Name of the process for people: host name and process id.
    pub node: String,
    /// What it does.
    pub roles: Roles,
    /// Length of the lease.
    pub ttl: Duration,
}

/// What every contact with the session table tells.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The database's clock.
    pub now: Timestamp,
    /// The server's life.
    pub epoch: Epoch,
    /// The version of the configuration (A3).
    pub config_version: i64,
    /// Live sessions that are not draining and have role `deliver`, this one included, in order of id (C3).
    pub deliverers: Vec<SessionId>,
}

/// A renewal's answer.
#[derive(Debug, Clone)]
pub enum Renewal {
    /// The lease holds for its whole length from the moment before the renewal was sent.
    Renewed(Heartbeat),
    /// The session is over (S2): zero rows were changed.
    Lost,
}

/// Why rows are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Their process died or forgot them: counts as a rescue (S4).
    Rescue,
    /// Their process hands them back untouched (a shard left, or it drains).
    HandBack,
}

/// A named lease, for work that one process at a time should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseName {
    /// The relay of the outbox in Pombo's own database (R3).
    OwnOutbox,
    /// Partitions, statistics, expiry (T7).
    Maintenance,
}

impl LeaseName {
    /// The stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OwnOutbox => "outbox:own",
            Self::Maintenance => "maintenance",
        }
    }
}

/// Sessions and leases.
#[async_trait]
pub trait Sessions {
    /// Opens a session: a fresh id, committed synchronously before it is returned (S1).
    async fn open_session(&self, session: NewSession) -> Result<(SessionId, Heartbeat)>;

    /// Renews by compare-and-swap on "live and not expired by the server's clock" (S2), on a connection of
    /// its own so that a busy pool cannot starve it.
    async fn renew_session(&self, id: SessionId, ttl: Duration) -> Result<Renewal>;

    /// Marks the session as draining: it gets no more shards (S8).
    async fn drain_session(&self, id: SessionId) -> Result<()>;

    /// live → dead for the caller's own session, synchronously. Rows it still owns are released by whoever
    /// sweeps next.
    async fn end_session(&self, id: SessionId) -> Result<()>;

    /// Declares sessions dead whose lease ran out, by compare-and-swap (S3). Returns those declared now.
    async fn bury_expired_sessions(&self) -> Result<Vec<SessionId>>;

    /// Releases up to `limit` rows owned by **dead** sessions (S4): `owner NULL, gen+1, rescues+1, due_at =
    /// coalesce(not_before, now)`, skipping locked rows. Returns how many. Looks only at rows whose owner
    /// stands in the list of dead ids read in the same transaction.
    async fn release_dead(&self, limit: u32) -> Result<u32>;

    /// Every row this session owns (S6 a), in any order.
    async fn owned(&self, session: SessionId) -> Result<Vec<Token>>;

    /// Releases exactly these tokens (S6 c, C3). Tokens that do not match any more are left alone. Returns how many matched.
    async fn release(&self, tokens: &[Token], why: Release) -> Result<u32>;

    /// Removes dead sessions older than a day that own nothing (S1). Returns how many.
    async fn forget_sessions(&self) -> Result<u32>;

    /// Takes or keeps a named lease for a live session: succeeds if the session holds it already, or if its
    /// holder's session is not live any more. Returns the lease's epoch, which grows with every take-over;
    /// `None` if somebody else holds it. The take-over UPDATEs the row and so waits for the old holder's
    /// open transaction (R3).
    async fn hold_lease(&self, name: LeaseName, session: SessionId) -> Result<Option<i64>>;
}
