//! Which endpoints an event goes to.

use crate::endpoint::Endpoint;
use crate::event::Draft;

/// Why an endpoint of the tenant does not get an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// Its `eventTypes` do not match.
    EventType,
    /// The event named other endpoints.
    NotTargeted,
}

impl Mismatch {
    /// The word shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EventType => "event_type",
            Self::NotTargeted => "not_targeted",
        }
    }
}

/// Whether this endpoint (of the event's tenant) gets the event.
///
/// A named target gets it whatever its `eventTypes` say: naming it is the stronger wish. Paused and
/// disabled endpoints match too; their deliveries wait.
///
/// # Errors
/// Why it does not.
pub fn matches(draft: &Draft, endpoint: &Endpoint) -> Result<(), Mismatch> {
    match &draft.targets {
        Some(targets) if targets.contains(&endpoint.id) => Ok(()),
        Some(_) => Err(Mismatch::NotTargeted),
        None if endpoint.subscription.matches(&draft.kind) => Ok(()),
        None => Err(Mismatch::EventType),
    }
}
