//! Claiming deliveries that are due, and reading what they send (docs/protocol.md, rules C).

use async_trait::async_trait;
use bytes::Bytes;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::event_type::EventType;
use pombo_domain::id::{EndpointId, EventId, SessionId, TenantId};

use crate::error::Result;

/// What a claim asks for.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Who claims.
    pub session: SessionId,
    /// Shards homed at this session (C3); empty claims nothing.
    pub shards: Vec<i16>,
    /// Lower bound of `due_at`, never above the server's now − 30 s (C2); `None` scans from the start.
    pub floor: Option<Timestamp>,
    /// Most rows.
    pub limit: u32,
}

/// A delivery owned by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedDelivery {
    /// The right to change it.
    pub token: Token,
    /// Its event.
    pub event_id: EventId,
    /// The event's `created_at`.
    pub event_at: Timestamp,
    /// The event's type.
    pub kind: EventType,
    /// Where to.
    pub endpoint_id: EndpointId,
    /// Whose.
    pub tenant_id: TenantId,
    /// When the delivery was made.
    pub created_at: Timestamp,
    /// Attempts made in this run.
    pub attempts: u16,
    /// Rescues since the last recorded attempt (S4).
    pub rescues: u16,
    /// The time it waited for when it was parked or manually claimed (P1, M1).
    pub not_before: Option<Timestamp>,
}

/// What a claim got.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The rows, oldest due first.
    pub deliveries: Vec<ClaimedDelivery>,
    /// Endpoints on hold among those claimed, with the end of the hold (`endpoint_state.hold_until`).
    pub holds: Vec<(EndpointId, Timestamp)>,
    /// The database's clock.
    pub now: Timestamp,
    /// The version of the configuration (A3).
    pub config_version: i64,
}

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBody {
    /// Which event.
    pub event_id: EventId,
    /// The exact bytes.
    pub body: Bytes,
    /// Their content type.
    pub content_type: String,
}

/// Claiming.
#[async_trait]
pub trait Claim {
    /// Claims due rows of the given shards: sets owner, gen+1, due_at NULL; SKIP LOCKED, planned at each run;
    /// up to half of the limit from rows due in the last 5 s, the rest from older ones (C1). Committed
    /// asynchronously.
    async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed>;

    /// The bodies of these events (id and `created_at`), in any order; those that are nowhere are left out.
    async fn bodies(&self, events: &[(EventId, Timestamp)]) -> Result<Vec<EventBody>>;
}
