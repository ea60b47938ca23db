//! The schema, API keys, the audit log, the invariants and the numbers.

use async_trait::async_trait;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::{AuditId, KeyId, TenantId};

use crate::error::Result;
use crate::page::{Page, PageRequest};

/// Who does something, and why. Written to the audit log with every act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// `key_…` of an API key, `dev` for `--dev`, `pombo` for Pombo itself.
    pub name: String,
    /// The reason a person gave.
    pub reason: Option<String>,
}

impl Actor {
    /// Pombo itself.
    pub fn pombo() -> Self {
        Self { name: "pombo".to_owned(), reason: None }
    }
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its id.
    pub id: AuditId,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What: `endpoint.create endpoint.update endpoint.pause endpoint.resume endpoint.disable
    /// endpoint.delete endpoint.rotate_secret endpoint.reveal_secret delivery.retry delivery.revive
    /// delivery.cancel key.create`.
    pub action: String,
    /// The id of the thing, as shown.
    pub subject: String,
    /// Its tenant, if it has one.
    pub tenant_id: Option<TenantId>,
    /// The reason given.
    pub reason: Option<String>,
}

/// What a caller with a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes {
    /// Everything.
    pub admin: bool,
    /// Publish events.
    pub publish: bool,
    /// Read.
    pub read: bool,
}

/// An API key, without the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its public name.
    pub id: KeyId,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
    /// The one tenant it is bound to; `None` for all.
    pub tenant_id: Option<TenantId>,
}

/// An API key to be stored: only the SHA-256 of its text.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// The key.
    pub key: ApiKey,
    /// SHA-256 of the key's whole text `pk_…`.
    pub hash: [u8; 32],
}

/// How the schema of a database stands to this binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaStatus {
    /// As this binary knows it.
    Current {
        /// The version of both.
        version: i32,
    },
    /// Older, or empty (0): `migrate` brings it up.
    Older {
        /// The database's.
        found: i32,
        /// This binary's.
        wanted: i32,
    },
    /// Newer, and it still lets this binary run (expand-only migrations, T9).
    NewerCompatible {
        /// The database's.
        found: i32,
        /// This binary's.
        wanted: i32,
    },
    /// Newer, and it does not.
    TooNew {
        /// The database's.
        found: i32,
        /// This binary's.
        wanted: i32,
    },
}

/// Something that `pombo check` found wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant: a short word such as `unaccounted_event`.
    pub invariant: &'static str,
    /// How many rows break it.
    pub count: i64,
    /// For people: what it means, with one example id.
    pub text: String,
}

/// What `pombo check` saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Events looked at.
    pub events: i64,
    /// Live deliveries.
    pub live: i64,
    /// Settled deliveries.
    pub settled: i64,
    /// Dead letters.
    pub dead: i64,
    /// What is wrong; empty is sound.
    pub findings: Vec<Finding>,
}

/// Sampled numbers for metrics: cheap, never a COUNT over history.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// Live rows owned by a session.
    pub owned: i64,
    /// Live rows waiting for a time.
    pub waiting: i64,
    /// Parked rows.
    pub parked: i64,
    /// Age of the oldest row that is due and unowned, in microseconds.
    pub oldest_due_micros: i64,
    /// Rows in the outbox.
    pub outbox_rows: i64,
    /// Age of the oldest row of the outbox, in microseconds.
    pub outbox_oldest_micros: i64,
    /// Dead letters.
    pub dead_letters: i64,
    /// Endpoints by status: active, paused, disabled.
    pub endpoints: [i64; 3],
}

/// Schema, keys, audit, invariants, numbers.
#[async_trait]
pub trait Admin {
    /// What the database calls itself, for the first log line (`PostgreSQL 15.18`, `SQLite 3.51.1`).
    async fn describe(&self) -> Result<String>;

    /// Whether the database answers and takes writes. Bounded to two seconds.
    async fn ping(&self) -> Result<()>;

    /// How the schema stands.
    async fn schema_status(&self) -> Result<SchemaStatus>;

    /// Brings the schema up, under a lock, so that several processes may do it at once (T9). Does nothing
    /// where it is current. Returns the version.
    async fn migrate(&self) -> Result<i32>;

    /// Makes history's partitions `days` ahead (T7), today's included. Does nothing on SQLite.
    async fn prepare_partitions(&self, days: u16) -> Result<()>;

    /// Stores a key, only if no key exists at all. Exactly one of several processes gets `true`.
    async fn create_first_key(&self, key: NewApiKey) -> Result<bool>;

    /// The key with this hash.
    async fn api_key(&self, hash: [u8; 32]) -> Result<Option<ApiKey>>;

    /// The audit log, newest first.
    async fn audit(&self, tenant: Option<TenantId>, page: PageRequest) -> Result<Page<AuditEntry>>;

    /// Proves the invariants from the database (docs/protocol.md P4): every event accounted for (its `fanout` =
    /// live + settled deliveries), no delivery both live and finally settled, a dead letter for every delivery
    /// whose last settlement is dead and none else, owners that exist and are not dead for longer than a
    /// sweep, due rows not below every floor, parked rows only where P1 explains them, bodies present.
    async fn check(&self) -> Result<CheckReport>;

    /// Numbers for metrics.
    async fn sample(&self) -> Result<Sample>;
}
