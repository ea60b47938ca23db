//! What the rest of the process may ask of the engine.

use std::sync::Arc;
use std::time::Duration;

use pombo_domain::attempt::Attempt;
use pombo_domain::clock::Timestamp;
use pombo_domain::event::Draft;
use pombo_domain::event_type::EventType;
use pombo_domain::id::{DeliveryId, EndpointId, EventId};
use pombo_domain::name::{ClientKey, TenantName};
use pombo_egress::{AddressPolicy, EgressClient};
use pombo_store::admin::Actor;
use pombo_store::{Store, StoreError};

use crate::config::{ConfigError, EngineConfig};

/// Random bytes of a new signing secret.
pub const SECRET_RANDOM_BYTES: usize = 32;

/// What the engine is made of.
pub struct EngineParts {
    /// The database.
    pub store: Arc<dyn Store>,
    /// The only way out.
    pub egress: EgressClient,
    /// Settings.
    pub config: EngineConfig,
}

/// The running engine: its tasks. Stopped with [`Engine::stop`].
pub struct Engine {
    handle: EngineHandle,
}

/// A way to ask the engine for things; cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    store: Arc<dyn Store>,
    config: Arc<EngineConfig>,
    egress: EgressClient,
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Settings that cannot go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An accepted event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its id.
    pub id: EventId,
    /// The caller's own id.
    pub client_key: Option<ClientKey>,
    /// Its type.
    pub kind: EventType,
    /// Whose.
    pub tenant: TenantName,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// How many deliveries it has.
    pub deliveries: u32,
    /// Whether an earlier event with the same key and content answered (200 instead of 202).
    pub repeated: bool,
}

/// Why an event was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The same key with other content.
    #[error("an event with this id was published before with other content")]
    KeyConflict {
        /// The earlier event.
        earlier: EventId,
    },
    /// `endpoints` names one that the tenant does not have.
    #[error("endpoint {0} does not exist")]
    UnknownTarget(EndpointId),
    /// The commit's outcome is unknown: send again with the same id.
    #[error("the database connection was lost during commit; send the event again with the same id")]
    OutcomeUnknown,
    /// The database is away, full or read-only: nothing happened.
    #[error("the database cannot take events right now")]
    Unavailable,
    /// The database refuses this one event.
    #[error("the database refuses this event")]
    Rejected,
    /// The process is shutting down.
    #[error("this process is shutting down")]
    Stopping,
}

/// Why an act on a delivery or an endpoint did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Unknown id.
    #[error("unknown id")]
    NotFound,
    /// A process is sending the delivery right now.
    #[error("the delivery is being sent right now")]
    BeingSent,
    /// The endpoint is paused or disabled, and `force` was not given.
    #[error("the endpoint is paused or disabled")]
    EndpointNotActive,
    /// The endpoint was deleted.
    #[error("the endpoint was deleted")]
    EndpointDeleted,
    /// The event's body is not kept any more.
    #[error("the event's body is not kept any more")]
    BodyMissing,
    /// This process may not send right now: no lease, draining, or too many unwritten results.
    #[error("this process cannot send right now")]
    NotSending,
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a manual retry came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retried {
    /// One attempt was made now.
    Attempted(Box<Attempt>),
    /// The delivery was dead or cancelled: it lives again and is due now.
    Revived,
}

/// Whether this process can do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// The database is away.
    DatabaseAway,
    /// It holds no session (right after start, or after a loss).
    NoSession,
    /// It is shutting down.
    Draining,
}

impl Engine {
    /// Checks the settings, opens a session, loads the catalogue, starts the stages.
    ///
    /// # Errors
    /// [`EngineError`]; nothing keeps running then.
    pub async fn start(parts: EngineParts) -> Result<Self, EngineError> {
        parts.config.check()?;
        let EngineParts { store, egress, config } = parts;
        Ok(Self { handle: EngineHandle { store, config: Arc::new(config), egress } })
    }

    /// A way to ask the engine for things.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Stops in order (S8): readiness fails, accepts stop, lanes are released, attempts in flight finish within
    /// `grace`, results are written, the session ends.
    pub async fn stop(self, grace: Duration) {
        let _ = grace;
    }
}

impl EngineHandle {
    /// Accepts an event. Returns after the commit (A1).
    ///
    /// # Errors
    /// See [`PublishError`].
    pub async fn publish(&self, draft: Draft) -> Result<Published, PublishError> {
        self.publish_all(vec![draft]).await.pop().unwrap_or(Err(PublishError::Stopping))
    }

    /// Accepts several events; one bad one harms no other. Results in order.
    pub async fn publish_all(&self, drafts: Vec<Draft>) -> Vec<Result<Published, PublishError>> {
        drafts.iter().map(|_| Err(PublishError::Stopping)).collect()
    }

    /// Sends `pombo.test` to an endpoint, whatever its status, and answers with the attempt.
    ///
    /// # Errors
    /// [`ActError::NotFound`], [`ActError::NotSending`] or [`ActError::Store`].
    pub async fn send_test(&self, endpoint: EndpointId) -> Result<Attempt, ActError> {
        let _ = endpoint;
        Err(ActError::NotSending)
    }

    /// Tries a delivery now, by state: waiting or parked → one manual attempt whose failure leaves the schedule
    /// as it was; dead or cancelled → revived; delivered → one manual attempt whose failure changes nothing (M1, M2).
    ///
    /// # Errors
    /// See [`ActError`].
    pub async fn retry(&self, id: DeliveryId, actor: &Actor, force: bool) -> Result<Retried, ActError> {
        let _ = (id, actor, force);
        Err(ActError::NotSending)
    }

    /// Tells the engine that this process changed an endpoint, so that the change acts at once here (elsewhere
    /// within a second, A3).
    pub fn configuration_changed(&self) {}

    /// Starts cancelling the live deliveries of an endpoint that was deleted, in chunks (P3). Goes on after
    /// this returns, and after a crash by the sweep.
    pub fn endpoint_deleted(&self, endpoint: EndpointId) {
        let _ = endpoint;
    }

    /// Whether the process can do its work.
    pub fn readiness(&self) -> Readiness {
        Readiness::NoSession
    }

    /// The database's clock, as well as this process knows it.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_secs(0)
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The address policy, for checking URLs of endpoints.
    pub fn address_policy(&self) -> &AddressPolicy {
        self.egress.policy()
    }

    /// The database.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Metrics in the Prometheus text format.
    pub fn encode_metrics(&self) -> String {
        String::new()
    }
}
