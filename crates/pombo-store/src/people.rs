//! What people do to deliveries (docs/protocol.md, rules M and P3). Synchronous commits, audited.

use async_trait::async_trait;

use pombo_domain::id::{DeliveryId, SessionId};

use crate::admin::Actor;
use crate::claim::ClaimedDelivery;
use crate::error::Result;

/// What became of asking for a live delivery to be tried now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManualClaim {
    /// Owned by the caller; `not_before` holds the time the schedule would have tried next (infinity where it was parked without one), so
    /// that a crash gives it back (M1).
    Claimed(ClaimedDelivery),
    /// A process is sending it.
    Owned,
    /// No live row: settled or unknown.
    NotLive,
}

/// What became of reviving a dead or cancelled delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revival {
    /// A live row stands again, due now, gen = last gen + 1, attempts 0; the dead letter is gone (M2).
    Revived,
    /// It was live already (somebody else was faster).
    AlreadyLive,
    /// It was delivered, or is unknown.
    NotDead,
}

/// What became of cancelling a live delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// Gone, with `settles = cancelled`; an attempt in flight ends late (P3).
    Cancelled,
    /// No live row: settled or unknown.
    NotLive,
}

/// Acts of people on deliveries.
#[async_trait]
pub trait People {
    /// Claims one unowned live row for a manual attempt (M1). A parked row keeps [`pombo_domain::clock::Timestamp::INFINITY`]
    /// in mind: release and failure park it again.
    async fn claim_manually(&self, id: DeliveryId, session: SessionId, actor: &Actor) -> Result<ManualClaim>;

    /// Brings a dead or cancelled delivery back (M2). Its body must exist.
    async fn revive(&self, id: DeliveryId, actor: &Actor) -> Result<Revival>;

    /// Cancels a live delivery, owned or not (P3).
    async fn cancel_delivery(&self, id: DeliveryId, actor: &Actor) -> Result<Cancellation>;
}
