//! What the bench and its child processes say to each other, one JSON document per line: a question on the
//! child's stdin, an answer on its stdout.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::latency::Summary;

/// An answer, or why there is none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Answer<T> {
    /// The answer.
    Done(T),
    /// Why there is none, for people.
    Failed(String),
}

/// Who gets what: event `n` belongs to tenant `n % tenants`, and goes to each of that tenant's endpoints, which
/// are numbered one tenant after the other.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Layout {
    /// How many tenants.
    pub(super) tenants: u64,
    /// Endpoints of each.
    pub(super) endpoints_each: u64,
}

impl Layout {
    /// All endpoints.
    pub(super) fn endpoints(self) -> u64 {
        self.tenants * self.endpoints_each
    }

    /// The name of a tenant.
    pub(super) fn tenant(number: u64) -> String {
        format!("bench-{number}")
    }
}

/// Asked of the receiver. Each is answered with [`Received`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum AskReceiver {
    /// Forget the run before, and count this one.
    Begin {
        /// Its number; requests of other runs are strays.
        run: u64,
        /// Who gets what.
        layout: Layout,
    },
    /// How far it is.
    Status,
    /// Which of the events `0..events`, without those that were not accepted, never came.
    Audit {
        /// How many were numbered.
        events: u64,
        /// Those of them that were not accepted.
        not_accepted: Vec<u64>,
    },
}

/// What the receiver has counted in a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Received {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Deliveries that came, each counted once.
    pub(super) deliveries: u64,
    /// Copies beyond the first.
    pub(super) duplicates: u64,
    /// Requests of an earlier run, to a wrong endpoint, or unreadable.
    pub(super) strays: u64,
    /// Of an audit: deliveries that never came.
    pub(super) lost: u64,
    /// When the first and the last delivery came.
    pub(super) first_at: Option<i64>,
    /// As above.
    pub(super) last_at: Option<i64>,
    /// From the moment written in the event to its receipt.
    pub(super) latency: Summary,
}

/// Asked of the load generator. Each is answered with [`Sent`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum AskLoad {
    /// HTTP requests.
    Post(PostLoad),
    /// Rows of an outbox, each in a transaction of its own.
    Outbox(OutboxLoad),
}

/// HTTP requests to send.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PostLoad {
    /// Number of the run, written in every event.
    pub(super) run: u64,
    /// To whom; clients are dealt out over them.
    pub(super) targets: Vec<SocketAddr>,
    /// What is sent.
    pub(super) what: What,
    /// Connections.
    pub(super) clients: usize,
    /// Events are dealt out over so many tenants.
    pub(super) tenants: u64,
    /// How many, or for how long.
    pub(super) until: Until,
    /// Requests per second whatever the answers; without it every client sends as soon as it was answered.
    pub(super) rate: Option<f64>,
}

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum What {
    /// `POST /v1/events`.
    Event,
    /// What the receiver gets in the end, straight to the receiver.
    Raw,
}

/// When a load ends.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Until {
    /// After so many.
    Events(u64),
    /// After so many seconds.
    Seconds(f64),
}

/// Rows to insert.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OutboxLoad {
    /// Number of the run.
    pub(super) run: u64,
    /// Where.
    pub(super) database: Where,
    /// Dealt out over so many tenants.
    pub(super) tenants: u64,
    /// How many.
    pub(super) rows: u64,
    /// Rows per second.
    pub(super) rate: f64,
}

/// A database.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Where {
    /// A file.
    Sqlite(PathBuf),
    /// A URL.
    Postgres(String),
}

/// What the load generator did.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sent {
    /// Events were numbered `0..numbered`.
    pub(super) numbered: u64,
    /// Those of them that were not accepted, or whose answer was lost.
    pub(super) not_accepted: Vec<u64>,
    /// Why one of them was not.
    pub(super) refusal: Option<String>,
    /// When the first was sent.
    pub(super) started_at: i64,
    /// When the last was answered.
    pub(super) ended_at: i64,
    /// From sending to the answer.
    pub(super) latency: Summary,
}

impl Sent {
    /// Events that were accepted.
    pub(super) fn accepted(&self) -> u64 {
        self.numbered - self.not_accepted.len() as u64
    }
}
