//! What the rest of the process may ask of the engine.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinHandle;

use pombo_domain::attempt::Attempt;
use pombo_domain::clock::Timestamp;
use pombo_domain::event::Draft;
use pombo_domain::event_type::EventType;
use pombo_domain::id::{DeliveryId, EndpointId, EventId};
use pombo_domain::name::{ClientKey, TenantName};
use pombo_egress::{AddressPolicy, EgressClient};
use pombo_store::admin::Actor;
use pombo_store::{Store, StoreError};

use crate::accept::{self, AcceptSender};
use crate::config::{ConfigError, EngineConfig};
use crate::spine::Spine;
use crate::{claim, deliver, flush, people, relay, returns, session, sweep};

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
    /// Those that end when the engine drains.
    stages: Vec<JoinHandle<()>>,
    /// Those that go on until what is under way has ended.
    lasting: Vec<JoinHandle<()>>,
}

/// A way to ask the engine for things; cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    spine: Arc<Spine>,
    sender: AcceptSender,
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
        let spine = Arc::new(Spine::new(store, egress, config));
        spine.store.prepare_partitions(1).await?;
        if let Err(error) = session::open(&spine).await {
            if let Some(session) = spine.session() {
                // The error to be told is the first one; this session would else count as live for a while.
                drop(spine.store.end_session(session.id).await);
            }
            return Err(error.into());
        }
        let (sender, queue) = accept::queue();
        let mut stages = vec![
            stage(&spine, "accept", accept::commit_loop(Arc::clone(&spine), queue)),
            stage(&spine, "sweep", sweep::sweep_loop(Arc::clone(&spine))),
        ];
        if spine.config.roles.relay {
            stages.push(stage(&spine, "relay", relay::relay_loop(Arc::clone(&spine))));
        }
        if spine.config.roles.deliver {
            stages.push(stage(&spine, "claim", claim::claim_loop(Arc::clone(&spine))));
            stages.push(stage(&spine, "deliver", deliver::dispatch_loop(Arc::clone(&spine))));
            stages.push(stage(&spine, "wake", sweep::wake_loop(Arc::clone(&spine))));
        }
        let lasting = vec![
            stage(&spine, "session", session::keep(Arc::clone(&spine))),
            stage(&spine, "flush", flush::flush_loop(Arc::clone(&spine))),
            stage(&spine, "returns", returns::return_loop(Arc::clone(&spine))),
        ];
        Ok(Self { handle: EngineHandle { spine, sender }, stages, lasting })
    }

    /// A way to ask the engine for things.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Stops in order (S8): readiness fails, accepts stop, lanes are released, attempts in flight finish within
    /// `grace`, results are written, the session ends. What could not be finished is released by the sweep of
    /// whoever runs next.
    pub async fn stop(self, grace: Duration) {
        let spine = &self.handle.spine;
        spine.start_draining();
        if let Some(session) = spine.session()
            && let Err(error) = spine.store.drain_session(session.id).await
        {
            tracing::warn!(error = %error, "The session could not be marked as draining: {error}.");
        }
        if tokio::time::timeout(grace, finish(spine, self.stages)).await.is_err() {
            tracing::warn!(
                "The grace for stopping is over; what is unfinished is released by whoever runs next."
            );
        }
        self.lasting.iter().for_each(JoinHandle::abort);
        if let Some(session) = spine.session()
            && let Err(error) = spine.store.end_session(session.id).await
        {
            tracing::warn!(error = %error, "The session could not be ended; its lease runs out by itself: {error}.");
        }
    }
}

/// Brings what is under way to its end, while nothing new is begun.
async fn finish(spine: &Spine, stages: Vec<JoinHandle<()>>) {
    for stage in stages {
        // A panic was told by the stage itself.
        drop(stage.await);
    }
    hand_back_queued(spine).await;
    spine.in_flight.ended().await;
    spine.flush.emptied().await;
    spine.returns.emptied().await;
    // What waited for one of those results was queued by its answer (K2).
    hand_back_queued(spine).await;
}

async fn hand_back_queued(spine: &Spine) {
    let jobs = spine.lanes.drain(|_| true);
    if let Err(error) = returns::hand_back(spine, jobs).await {
        tracing::warn!(error = %error, "Waiting deliveries could not be released; the next sweep does it: {error}.");
    }
}

/// Starts a stage. One that panics would leave a process that goes on accepting and never sends: it is made to
/// stop, and whoever supervises it starts it again.
fn stage(
    spine: &Arc<Spine>,
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let spine = Arc::clone(spine);
    tokio::spawn(async move {
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            tracing::error!(
                stage = name,
                "The stage {name} of the engine failed; this process stops taking work."
            );
            spine.metrics.stage_failed();
            spine.start_draining();
        }
    })
}

impl EngineHandle {
    /// Accepts an event. Returns after the commit (A1).
    ///
    /// # Errors
    /// See [`PublishError`].
    pub async fn publish(&self, draft: Draft) -> Result<Published, PublishError> {
        accept::publish(&self.spine, &self.sender, draft).await
    }

    /// Accepts several events; one bad one harms no other. Results in order.
    pub async fn publish_all(&self, drafts: Vec<Draft>) -> Vec<Result<Published, PublishError>> {
        accept::publish_all(&self.spine, &self.sender, drafts).await
    }

    /// Sends `pombo.test` to an endpoint, whatever its status, and answers with the attempt.
    ///
    /// # Errors
    /// [`ActError::NotFound`], [`ActError::NotSending`] or [`ActError::Store`].
    pub async fn send_test(&self, endpoint: EndpointId) -> Result<Attempt, ActError> {
        self.noted(people::send_test(&self.spine, endpoint).await)
    }

    /// Tries a delivery now, by state: waiting or parked → one manual attempt whose failure leaves the schedule
    /// as it was; dead or cancelled → revived; delivered → one manual attempt whose failure changes nothing (M1, M2).
    ///
    /// # Errors
    /// See [`ActError`].
    pub async fn retry(&self, id: DeliveryId, actor: &Actor, force: bool) -> Result<Retried, ActError> {
        self.noted(people::retry(&self.spine, id, actor, force).await)
    }

    /// What a person met of the database's trouble is known to the walk too: a claim of unknown outcome is audited.
    fn noted<T>(&self, result: Result<T, ActError>) -> Result<T, ActError> {
        if let Err(ActError::Store(error)) = &result {
            self.spine.note_error(error);
        }
        result
    }

    /// Tells the engine that this process changed an endpoint, so that the change acts at once here (elsewhere
    /// within a second, A3).
    pub fn configuration_changed(&self) {
        let spine = Arc::clone(&self.spine);
        tokio::spawn(async move {
            if let Err(error) = spine.refresh_catalog_now().await {
                spine.note_error(&error);
            }
        });
    }

    /// Starts cancelling the live deliveries of an endpoint that was deleted, in chunks (P3). Goes on after
    /// this returns, and after a crash by the sweep.
    pub fn endpoint_deleted(&self, endpoint: EndpointId) {
        self.configuration_changed();
        tokio::spawn(sweep::cancel_rows(Arc::clone(&self.spine), endpoint));
    }

    /// Whether the process can do its work.
    pub fn readiness(&self) -> Readiness {
        match self.spine.session() {
            _ if self.spine.is_draining() => Readiness::Draining,
            None => Readiness::NoSession,
            Some(session) if session.is_over() => Readiness::NoSession,
            Some(session) if !session.allows(Duration::ZERO) => Readiness::DatabaseAway,
            Some(_) => Readiness::Ready,
        }
    }

    /// The database's clock, as well as this process knows it.
    pub fn now(&self) -> Timestamp {
        self.spine.now()
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        &self.spine.config
    }

    /// The address policy, for checking URLs of endpoints.
    pub fn address_policy(&self) -> &AddressPolicy {
        self.spine.egress.policy()
    }

    /// The database.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.spine.store
    }

    /// Resolves when the engine begins to stop, by [`Engine::stop`] or because a stage failed.
    pub async fn draining(&self) {
        self.spine.drained().await;
    }

    /// Metrics in the Prometheus text format.
    pub fn encode_metrics(&self) -> String {
        let spine = &self.spine;
        spine.metrics.encode(spine.in_flight.count(), spine.flush.len())
    }
}
