//! Writing results (docs/protocol.md K5–K8).

use async_trait::async_trait;

use pombo_domain::attempt::{Attempt, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::endpoint::DisabledReason;
use pombo_domain::event_type::EventType;
use pombo_domain::id::EndpointId;

use crate::error::Result;

/// What a result does to its live row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Removes it; the attempt becomes its final record. Dead also makes a dead letter.
    Settle(Settlement),
    /// Gives it back, `owner NULL, gen+1, rescues 0`.
    Reschedule {
        /// When it is due; [`Timestamp::INFINITY`] parks it.
        due_at: Timestamp,
        /// The time a parked row waits for.
        not_before: Option<Timestamp>,
        /// Attempts made in this run.
        attempts: u16,
    },
    /// Only the attempt is recorded: a manual attempt of a delivery that is settled already.
    RecordOnly,
}

/// One result.
#[derive(Debug, Clone)]
pub struct FlushItem {
    /// The right under which the attempt was made.
    pub token: Token,
    /// What happened. `settles` and `late` are decided by the store (K6).
    pub attempt: Attempt,
    /// The event's type, for the final record and the dead letter.
    pub kind: EventType,
    /// When the delivery was made.
    pub delivery_created_at: Timestamp,
    /// What it does.
    pub change: Change,
}

/// Results and what they mean for endpoints, written together.
#[derive(Debug, Clone, Default)]
pub struct FlushBatch {
    /// The results; at most one per token.
    pub items: Vec<FlushItem>,
    /// Endpoints to hold, with the end of the hold (`Retry-After`); a later end stays.
    pub holds: Vec<(EndpointId, Timestamp)>,
    /// Endpoints to disable (410). Bumps `config.version`, audited.
    pub disables: Vec<(EndpointId, DisabledReason)>,
}

/// What became of one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushResult {
    /// The row was the token's and changed as asked.
    Applied,
    /// The row had moved on. The attempt is recorded as late; a success removed the row if it was unowned
    /// with gen = mine + 1 (K6).
    Late {
        /// Whether this late success settled the delivery.
        settled: bool,
    },
}

/// Writing results.
#[async_trait]
pub trait Flush {
    /// Writes the batch in one transaction, committed asynchronously. Repeating a batch whose answer was
    /// lost writes nothing twice: attempts are `ON CONFLICT DO NOTHING` by (delivery, started_at), rows match
    /// by token (K7). Results in the order of the items; on a repetition an item that was applied the first
    /// time may read `Late { settled: false }`.
    async fn flush(&self, batch: &FlushBatch) -> Result<Vec<FlushResult>>;
}
