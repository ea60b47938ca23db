//! Parked backlogs: giving claimed rows back, waking parked ones (docs/protocol.md, rules P).

use async_trait::async_trait;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::id::EndpointId;

use crate::error::Result;

/// Where a claimed row goes when it is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unclaim {
    /// The right to change it.
    pub token: Token,
    /// When it is due; [`Timestamp::INFINITY`] parks it.
    pub due_at: Timestamp,
    /// The time a parked row waits for.
    pub not_before: Option<Timestamp>,
}

/// What waking an endpoint's backlog did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Woken {
    /// Rows that are due now. Those that keep a later time are parked no more, but make no work yet, and are not
    /// counted.
    pub woken: u32,
    /// Whether more are parked.
    pub more: bool,
}

/// How much of a backlog may wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    /// Whose backlog.
    pub endpoint_id: EndpointId,
    /// Most rows.
    pub room: u32,
}

/// Parking and waking.
#[async_trait]
pub trait Parking {
    /// Gives claimed rows back by token: `owner NULL, gen+1`, due or parked as asked (C1, P1). Returns how many
    /// tokens still matched.
    async fn unclaim(&self, rows: &[Unclaim]) -> Result<u32>;

    /// Endpoints with parked rows, found by a loose scan over the partial index (P1); at most `limit`.
    async fn parked_endpoints(&self, limit: u32) -> Result<Vec<EndpointId>>;

    /// One statement under the lock of the endpoint_state row (P1). Active endpoint: its oldest parked rows,
    /// at most `room`, become due (`due_at = greatest(not_before, now)`, so that a parked retry keeps its
    /// time), whoever else is awake. Paused or disabled: nothing. Deleted: nothing (P3 cancels).
    async fn wake(&self, wake: Wake) -> Result<Woken>;

    /// Cancels up to `limit` live rows of deleted endpoints, one `settles = cancelled` each (P3). Returns how many.
    async fn cancel_deleted(&self, limit: u32) -> Result<u32>;

    /// Cancels up to `limit` live rows of one deleted endpoint: the chunk by which a deletion works through a
    /// backlog. Returns how many.
    async fn cancel_rows_of(&self, endpoint_id: EndpointId, limit: u32) -> Result<u32>;
}
