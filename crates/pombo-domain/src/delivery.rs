//! Deliveries: their states, and what an attempt's end means for them.

use std::time::Duration;

use rand::Rng;

use crate::attempt::{AttemptClass, Outcome};
use crate::clock::Timestamp;
use crate::endpoint::DisabledReason;
use crate::id::{DeliveryId, SessionId};
use crate::retry::{self, RetryPolicy};

/// The right to change a live delivery: its id, the session that owns it and its generation. Every change
/// of an owned row matches all three (docs/protocol.md K1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The delivery.
    pub id: DeliveryId,
    /// The session that owns it.
    pub owner: SessionId,
    /// Grows on claim, retry, release, re-park, manual claim and revival.
    pub generation: i32,
}

/// The status of a delivery as people see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryStatus {
    /// No attempt yet.
    Pending,
    /// Owned by a process.
    Sending,
    /// At least one attempt, waiting.
    Retrying,
    /// Parked: the endpoint is paused, disabled, or its circuit is open.
    Paused,
    /// The receiver took it.
    Delivered,
    /// A dead letter.
    Dead,
    /// A person cancelled it.
    Cancelled,
}

impl DeliveryStatus {
    /// Every status.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Sending,
        Self::Retrying,
        Self::Paused,
        Self::Delivered,
        Self::Dead,
        Self::Cancelled,
    ];

    /// The word shown and filtered by.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sending => "sending",
            Self::Retrying => "retrying",
            Self::Paused => "paused",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// From the word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }

    /// Whether a live row stands behind it.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Pending | Self::Sending | Self::Retrying | Self::Paused)
    }
}

/// How the delivery came to this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Attempts made before this one in this run.
    pub attempts_before: u16,
    /// Set where a person asked for this attempt: when the schedule would have tried next.
    pub manual: Option<Timestamp>,
}

/// The rules an attempt is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The resolved policy.
    pub policy: &'a RetryPolicy,
    /// The endpoint's `retryClientErrors`.
    pub retry_client_errors: bool,
}

/// What an attempt's end means for its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Settled: the receiver took it.
    Delivered,
    /// Try again, not before `due_at`.
    Retry {
        /// When.
        due_at: Timestamp,
        /// Attempts made, as the row keeps it.
        attempts: u16,
    },
    /// Settled: dead.
    Dead {
        /// The receiver asked that the endpoint be disabled.
        disable: Option<DisabledReason>,
    },
}

/// A verdict, and what the answer means for the whole endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What becomes of the delivery.
    pub verdict: Verdict,
    /// The receiver asked for quiet (`Retry-After` on 429 or 503): hold the whole endpoint this long.
    pub hold: Option<Duration>,
    /// Whether a failure like this is tried again by its nature (whatever the schedule has left).
    pub retryable: bool,
}

/// Whether a failure of this kind is worth another attempt.
pub fn is_retryable(class: AttemptClass, status: Option<u16>, retry_client_errors: bool) -> bool {
    match class {
        AttemptClass::RateLimited
        | AttemptClass::ServerError
        | AttemptClass::Timeout
        | AttemptClass::Connect
        | AttemptClass::Tls
        | AttemptClass::Dns
        | AttemptClass::Reset
        | AttemptClass::TooLarge => true,
        AttemptClass::ClientError => retry_client_errors || matches!(status, Some(408 | 425)),
        AttemptClass::Success
        | AttemptClass::Redirect
        | AttemptClass::Gone
        | AttemptClass::BlockedAddress
        | AttemptClass::Interrupted
        | AttemptClass::BodyMissing => false,
    }
}

/// Decides what an attempt's end means. Pure: the engine only carries the decision out.
///
/// `now` is the end of the attempt by the database's clock. A manual attempt that fails leaves the schedule
/// as it was (M1), whatever the failure; only success, or 410 (which speaks of the endpoint), settles it.
pub fn decide(
    rules: Rules<'_>,
    progress: Progress,
    outcome: &Outcome,
    now: Timestamp,
    rng: &mut impl Rng,
) -> Decision {
    let class = outcome.class();
    let retryable = is_retryable(class, outcome.status(), rules.retry_client_errors);
    let hold = retry_after(outcome, now);
    let verdict = match (class, progress.manual) {
        (AttemptClass::Success, _) => Verdict::Delivered,
        (AttemptClass::Gone, _) => Verdict::Dead { disable: Some(DisabledReason::Gone) },
        (_, Some(due_at)) => Verdict::Retry { due_at, attempts: progress.attempts_before },
        (_, None) if retryable => retry_or_dead(rules.policy, progress, hold, now, rng),
        (_, None) => Verdict::Dead { disable: None },
    };
    Decision { verdict, hold, retryable }
}

fn retry_or_dead(
    policy: &RetryPolicy,
    progress: Progress,
    hold: Option<Duration>,
    now: Timestamp,
    rng: &mut impl Rng,
) -> Verdict {
    let attempts = progress.attempts_before.saturating_add(1);
    match policy.delay_before(attempts.saturating_add(1), rng) {
        // Retry-After is a floor: the policy may wait longer, never shorter.
        Some(delay) => Verdict::Retry { due_at: now.plus(delay.max(hold.unwrap_or_default())), attempts },
        None => Verdict::Dead { disable: None },
    }
}

fn retry_after(outcome: &Outcome, now: Timestamp) -> Option<Duration> {
    match outcome {
        Outcome::Response(response) if matches!(response.status, 429 | 503) => {
            retry::parse_retry_after(response.retry_after.as_deref()?, now)
        }
        _ => None,
    }
}

/// Why a live delivery is not being sent right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WhyCode {
    /// Its next attempt is due later.
    DueLater,
    /// The caller asked for a later time.
    DeliverAt,
    /// The receiver asked for quiet.
    RetryAfter,
    /// As many attempts as allowed are in flight, more wait in memory.
    LaneFull,
    /// Owned by a process, waiting its turn or being sent.
    InLane,
    /// The endpoint's circuit is open.
    CircuitOpen,
    /// A person paused the endpoint.
    EndpointPaused,
    /// The endpoint is disabled.
    EndpointDisabled,
}

impl WhyCode {
    /// The word shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DueLater => "due_later",
            Self::DeliverAt => "deliver_at",
            Self::RetryAfter => "retry_after",
            Self::LaneFull => "lane_full",
            Self::InLane => "in_lane",
            Self::CircuitOpen => "circuit_open",
            Self::EndpointPaused => "endpoint_paused",
            Self::EndpointDisabled => "endpoint_disabled",
        }
    }

    /// One sentence for people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::DueLater => "The next attempt is scheduled for later.",
            Self::DeliverAt => "The event asked to be delivered at a later time.",
            Self::RetryAfter => "The receiver asked for a pause with Retry-After.",
            Self::LaneFull => {
                "As many deliveries as the endpoint allows are under way; this one waits behind them."
            }
            Self::InLane => "A process holds it and is sending it, or will as soon as a slot is free.",
            Self::CircuitOpen => {
                "The endpoint keeps failing; one delivery at a time tries whether it is back."
            }
            Self::EndpointPaused => "The endpoint is paused. Resume it to send.",
            Self::EndpointDisabled => "The endpoint is disabled. Resume it to send.",
        }
    }
}

#[cfg(test)]
mod tests;
