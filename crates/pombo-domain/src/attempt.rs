//! Attempts: one HTTP request each, and what came of it.

use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};

/// What kind of end an attempt had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttemptClass {
    /// 2xx.
    Success,
    /// 3xx; never followed.
    Redirect,
    /// 4xx other than 410 and 429. 408 and 425 are retried, the rest is permanent.
    ClientError,
    /// 429.
    RateLimited,
    /// 410: the receiver does not want this endpoint any more.
    Gone,
    /// 5xx (and any status outside 200–599).
    ServerError,
    /// The total deadline, or the limit of a phase, ran out.
    Timeout,
    /// No TCP connection.
    Connect,
    /// TLS was not agreed.
    Tls,
    /// The name did not resolve.
    Dns,
    /// The connection broke or spoke something else than HTTP before a status came.
    Reset,
    /// The head of the response was over its limits.
    TooLarge,
    /// The address policy refused the target.
    BlockedAddress,
    /// The process died more often than it may while it held the delivery; nothing is known of the receiver.
    Interrupted,
    /// The event's body is not in the database any more.
    BodyMissing,
}

impl AttemptClass {
    /// Every class, in the order of the API reference.
    pub const ALL: [Self; 15] = [
        Self::Success,
        Self::Redirect,
        Self::ClientError,
        Self::RateLimited,
        Self::Gone,
        Self::ServerError,
        Self::Timeout,
        Self::Connect,
        Self::Tls,
        Self::Dns,
        Self::Reset,
        Self::TooLarge,
        Self::BlockedAddress,
        Self::Interrupted,
        Self::BodyMissing,
    ];

    /// The word stored, shown and counted.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Redirect => "redirect",
            Self::ClientError => "client_error",
            Self::RateLimited => "rate_limited",
            Self::Gone => "gone",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Dns => "dns",
            Self::Reset => "reset",
            Self::TooLarge => "too_large",
            Self::BlockedAddress => "blocked_address",
            Self::Interrupted => "interrupted",
            Self::BodyMissing => "body_missing",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }

    /// The class of a response by its status alone (RFC 9110 section 15).
    pub const fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Success,
            300..=399 => Self::Redirect,
            410 => Self::Gone,
            429 => Self::RateLimited,
            400..=499 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}

/// How long the parts of an attempt took; a part that was not reached is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// Resolution of the name.
    pub dns: Option<Duration>,
    /// TCP connection.
    pub connect: Option<Duration>,
    /// TLS handshake.
    pub tls: Option<Duration>,
    /// From the request's first byte to the response's head.
    pub first_byte: Option<Duration>,
    /// From the response's head to the end of what was read.
    pub body: Option<Duration>,
}

/// What the receiver answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Value of `Retry-After`, as it came.
    pub retry_after: Option<Vec<u8>>,
    /// Value of `Location` of a redirect, made text lossily.
    pub location: Option<String>,
    /// The first bytes of the body, at most [`crate::limits::RESPONSE_BYTES_MAX`].
    pub body: Bytes,
    /// Whether there was more than was kept.
    pub truncated: bool,
}

/// The end of one attempt as the sender saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A status line and head arrived; the status decides, whatever happened to the body.
    Response(Response),
    /// No status arrived.
    Failure {
        /// Why.
        class: AttemptClass,
        /// For people; never an address, a secret or a query string. At most
        /// [`crate::limits::MESSAGE_BYTES_MAX`] bytes.
        message: String,
    },
}

impl Outcome {
    /// The class of this end.
    pub fn class(&self) -> AttemptClass {
        match self {
            Self::Response(response) => AttemptClass::of_status(response.status),
            Self::Failure { class, .. } => *class,
        }
    }

    /// The status, if one arrived.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Response(response) => Some(response.status),
            Self::Failure { .. } => None,
        }
    }
}

/// One finished exchange with a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// How it ended.
    pub outcome: Outcome,
    /// Where the time went.
    pub phases: Phases,
    /// From the start to the last byte read.
    pub duration: Duration,
}

/// How the attempt that settles a delivery ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settlement {
    /// The receiver took it.
    Delivered,
    /// It used up its attempts or failed for good; kept and replayable.
    Dead,
    /// A person cancelled it.
    Cancelled,
}

impl Settlement {
    /// The word stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// From the stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Delivered, Self::Dead, Self::Cancelled].into_iter().find(|end| end.as_str() == word)
    }
}

/// A recorded attempt, as history keeps it. A cancellation is recorded as an attempt without class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The delivery it belongs to.
    pub delivery_id: DeliveryId,
    /// The delivery's event.
    pub event_id: EventId,
    /// The event's `created_at`.
    pub event_at: Timestamp,
    /// The delivery's endpoint.
    pub endpoint_id: EndpointId,
    /// The delivery's tenant.
    pub tenant_id: TenantId,
    /// When it started; fixed before the first byte, so that a repeated flush writes the same row (K7).
    pub started_at: Timestamp,
    /// Number of the attempt within its run, from 1. 0 for a cancellation.
    pub number: i16,
    /// The generation it was made under.
    pub generation: i32,
    /// Status, if one arrived.
    pub status: Option<u16>,
    /// The class; `None` for a cancellation.
    pub class: Option<AttemptClass>,
    /// For people: the failure, or the `Location` of a redirect, or the reason of a cancellation.
    pub message: Option<String>,
    /// From start to end.
    pub duration: Duration,
    /// Where the time went.
    pub phases: Phases,
    /// The part of the response that is kept.
    pub response_body: Option<Bytes>,
    /// Whether the response was longer than what is kept.
    pub response_truncated: bool,
    /// Set on the one attempt that settles the delivery.
    pub settles: Option<Settlement>,
    /// Its result came after the delivery had moved on (K6).
    pub late: bool,
    /// A person asked for it.
    pub manual: bool,
    /// The process that made it.
    pub session: SessionId,
    /// Whether a failure of this class is tried again (kept so that the record can say so).
    pub retryable: bool,
}
