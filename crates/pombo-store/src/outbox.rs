//! The outbox: rows that applications write in their own transactions (docs/protocol.md, rules R).

use async_trait::async_trait;
use bytes::Bytes;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::{EventId, SessionId};

use crate::accept::{AcceptResult, NewEvent};
use crate::error::Result;

/// A row of the outbox as an application wrote it: nothing in it has been checked.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    /// Order of insertion within the outbox (not of commit).
    pub seq: i64,
    /// Becomes the event's id.
    pub id: EventId,
    /// Tenant name.
    pub tenant: String,
    /// Event type.
    pub kind: String,
    /// `data`: bytes of the text (SQLite may hold a blob or broken UTF-8 there).
    pub data: Bytes,
    /// Ordering key.
    pub ordering_key: Option<String>,
    /// The caller's own id.
    pub key: Option<String>,
    /// The caller's counter.
    pub resource_version: Option<i64>,
    /// Not before.
    pub deliver_at: Option<Timestamp>,
    /// Only this endpoint.
    pub endpoint_id: Option<String>,
    /// Set: `data` is sent raw under this content type.
    pub content_type: Option<String>,
    /// When it was written, by its database's clock.
    pub created_at: Timestamp,
}

/// A row that cannot become an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Position of the row in what the planner was given.
    pub index: usize,
    /// A closed set of words, the label of `pombo_outbox_rejected_total`: `tenant type data too_large key
    /// ordering_key resource_version deliver_at endpoint content_type key_conflict unreadable`.
    pub reason: &'static str,
    /// For people: what is wrong and what would be right. Never the data.
    pub detail: String,
}

/// What the planner makes of rows: every row is in exactly one of the two.
#[derive(Debug, Default)]
pub struct RelayPlan {
    /// Rows that become events, with their position in what the planner was given.
    pub events: Vec<(usize, NewEvent)>,
    /// Rows that are set aside.
    pub rejected: Vec<Rejection>,
}

/// What a relay transaction is asked to take.
#[derive(Debug, Clone, Copy)]
pub struct RelayRequest {
    /// Only rows above this `seq` (R2); 0 scans everything.
    pub floor: i64,
    /// Most rows.
    pub limit: u32,
    /// Most bytes of `data` in all (at least one row is taken whatever its size).
    pub bytes_max: usize,
    /// The relaying session, which must hold the outbox's lease (R3).
    pub session: SessionId,
    /// Epoch of that lease.
    pub lease_epoch: i64,
    /// The version of the configuration the planner matches against (A3).
    pub config_version: i64,
}

/// What became of a relay transaction.
#[derive(Debug, Clone)]
pub enum Relayed {
    /// Nothing waits above the floor. Carries the snapshot for R2.
    Empty(RelayMark),
    /// The configuration has moved on; nothing was taken.
    Stale {
        /// The version it is at now.
        config_version: i64,
    },
    /// The session does not hold the lease any more; nothing was taken (R3).
    LeaseLost,
    /// Committed.
    Committed {
        /// Rows taken from the outbox.
        taken: u32,
        /// What became of each planned event, in the plan's order. `Taken` with other content was set aside
        /// as `key_conflict`; with the same content it was dropped as a repetition.
        results: Vec<AcceptResult>,
        /// The snapshot for R2.
        mark: RelayMark,
    },
}

/// What R2 needs to move the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayMark {
    /// Highest `seq` assigned in the outbox at that moment (committed or not).
    pub seq_high: i64,
    /// Oldest transaction still running at that moment; on SQLite the same as `xmax`.
    pub xmin: i64,
    /// First transaction not yet started at that moment.
    pub xmax: i64,
}

/// Turns rows into a plan. Called inside the transaction, at most once per call of [`Outbox::relay`] that
/// commits (it may be called again when the transaction is repeated after a serialization failure, or because a day
/// of history had to be made).
pub type Planner<'a> = &'a mut (dyn FnMut(&[OutboxRow]) -> RelayPlan + Send);

/// A row that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedRow {
    /// The id the event would have had.
    pub id: EventId,
    /// Whose it would have been, as written.
    pub tenant: String,
    /// Its type, as written.
    pub kind: String,
    /// The word of [`Rejection::reason`].
    pub reason: String,
    /// For people.
    pub detail: String,
    /// When it was set aside.
    pub rejected_at: Timestamp,
}

/// The outbox in Pombo's own database.
#[async_trait]
pub trait Outbox {
    /// Takes rows (`DELETE … SKIP LOCKED`, in order of `seq`), hands them to the planner, and inserts what it
    /// makes of them, in one transaction committed asynchronously (R1: the delete rolls back with the
    /// insert). Begins by locking the lease row FOR SHARE (R3). Inserting an event or a delivery that exists
    /// already does nothing (A2).
    async fn relay(&self, request: RelayRequest, plan: Planner<'_>) -> Result<Relayed>;

    /// Whether rows may wait above `floor`: cheap enough to be asked at every poll (C4), so that an idle
    /// relay opens no transaction: one probe of the primary key. A hint: rows that become visible below the
    /// floor are found by the scan from zero that R2 asks for once a minute.
    async fn outbox_hint(&self, floor: i64) -> Result<bool>;

    /// Rows set aside, newest first, at most `limit`.
    async fn rejected_rows(&self, limit: u16) -> Result<Vec<RejectedRow>>;
}
