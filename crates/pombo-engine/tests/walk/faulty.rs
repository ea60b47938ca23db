//! A store that passes everything on, and fails, waits or lies where a test says so.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::endpoint::{Endpoint, EndpointSettings};
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use pombo_domain::secret::SecretText;
use pombo_store::accept::{Accept, AcceptBatch, Accepted};
use pombo_store::admin::{Actor, Admin, ApiKey, AuditEntry, CheckReport, NewApiKey, Sample, SchemaStatus};
use pombo_store::claim::{Claim, ClaimRequest, Claimed, EventBody};
use pombo_store::endpoints::{
    CatalogChanges, EndpointFilter, EndpointSecret, Endpoints, NewEndpoint, StatusChange,
};
use pombo_store::error::Result;
use pombo_store::flush::{Flush, FlushBatch, FlushResult};
use pombo_store::outbox::{Outbox, Planner, RejectedRow, RelayRequest, Relayed};
use pombo_store::parking::{Parking, Unclaim, Wake, Woken};
use pombo_store::people::{Cancellation, ManualClaim, People, Revival};
use pombo_store::reading::{
    DeadFilter, DeadLetter, DeliveryFilter, DeliveryRecord, EventFilter, EventRecord, Reading,
};
use pombo_store::sessions::{Epoch, Heartbeat, LeaseName, NewSession, Release, Renewal, Sessions};
use pombo_store::{Page, PageRequest, Store, StoreError};

/// What happens to one call of a method.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Nothing is done; the answer is `Unavailable`.
    Unavailable,
    /// Nothing is done; the database says that it refuses the data.
    Rejected,
    /// The commit is lost on its way.
    UnknownNotDone,
    /// The commit is done, its answer is lost.
    UnknownDone,
    /// Nothing is done before the gate opens.
    WaitBefore(Gate),
    /// All is done, and the answer comes when the gate opens.
    WaitAfter(Gate),
}

/// A place where calls wait until a test lets them go.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    open: watch::Sender<bool>,
    reached: watch::Sender<u32>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self { open: watch::Sender::new(false), reached: watch::Sender::new(0) }
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until a call stands at the gate.
    pub(crate) async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        let wait = reached.wait_for(|calls| *calls > 0);
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("a call comes")
            .expect("the gate stands");
    }

    async fn pass(&self) {
        self.reached.send_modify(|calls| *calls += 1);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("the gate stands");
    }
}

/// What the test plans and sees.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    planned: HashMap<&'static str, VecDeque<Fault>>,
    always: HashMap<&'static str, Fault>,
    calls: HashMap<&'static str, u32>,
    is_away: bool,
    epoch: Option<String>,
}

impl Faults {
    /// The next call of this method meets the fault (after those planned before).
    pub(crate) fn next(&self, method: &'static str, fault: Fault) {
        self.lock().planned.entry(method).or_default().push_back(fault);
    }

    /// Every call of this method meets the fault, until [`Faults::heal`].
    pub(crate) fn always(&self, method: &'static str, fault: Fault) {
        self.lock().always.insert(method, fault);
    }

    pub(crate) fn heal(&self, method: &'static str) {
        self.lock().always.remove(method);
    }

    /// The database does not answer at all, or answers again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.lock().is_away = is_away;
    }

    /// The server was restarted.
    pub(crate) fn set_epoch(&self, epoch: &str) {
        self.lock().epoch = Some(epoch.to_owned());
    }

    /// How often a method was called.
    pub(crate) fn calls(&self, method: &'static str) -> u32 {
        self.lock().calls.get(method).copied().unwrap_or(0)
    }

    async fn around<T>(&self, method: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let (fault, is_away) = {
            let mut state = self.lock();
            *state.calls.entry(method).or_default() += 1;
            let planned = state.planned.get_mut(method).and_then(VecDeque::pop_front);
            (planned.or_else(|| state.always.get(method).cloned()), state.is_away)
        };
        if is_away {
            return Err(StoreError::Unavailable("away by plan".into()));
        }
        match fault {
            None => call.await,
            Some(Fault::Unavailable) => Err(StoreError::Unavailable("by plan".into())),
            Some(Fault::Rejected) => Err(StoreError::Rejected("by plan".into())),
            Some(Fault::UnknownNotDone) => Err(StoreError::OutcomeUnknown("by plan".into())),
            Some(Fault::UnknownDone) => {
                call.await?;
                Err(StoreError::OutcomeUnknown("by plan".into()))
            }
            Some(Fault::WaitBefore(gate)) => {
                gate.pass().await;
                call.await
            }
            Some(Fault::WaitAfter(gate)) => {
                let answer = call.await;
                gate.pass().await;
                answer
            }
        }
    }

    fn heartbeat(&self, heartbeat: Heartbeat) -> Heartbeat {
        match &self.lock().epoch {
            Some(epoch) => Heartbeat { epoch: Epoch(epoch.clone()), ..heartbeat },
            None => heartbeat,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store of the engine under test.
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) faults: Arc<Faults>,
}

impl Store for FaultyStore {}

macro_rules! passed_on {
    ($($family:ident { $(fn $method:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)* })*) => {$(
        #[async_trait]
        impl $family for FaultyStore {
            $(async fn $method(&self, $($argument: $kind),*) -> Result<$answer> {
                self.faults.around(stringify!($method), self.inner.$method($($argument),*)).await
            })*
        }
    )*};
}

passed_on! {
    Accept {
        fn accept(batch: &AcceptBatch) -> Accepted;
    }
    Admin {
        fn describe() -> String;
        fn ping() -> ();
        fn schema_status() -> SchemaStatus;
        fn migrate() -> i32;
        fn prepare_partitions(days: u16) -> ();
        fn create_first_key(key: NewApiKey) -> bool;
        fn api_key(hash: [u8; 32]) -> Option<ApiKey>;
        fn audit(tenant: Option<TenantId>, page: PageRequest) -> Page<AuditEntry>;
        fn check() -> CheckReport;
        fn sample() -> Sample;
    }
    Claim {
        fn claim_due(request: &ClaimRequest) -> Claimed;
        fn bodies(events: &[(EventId, Timestamp)]) -> Vec<EventBody>;
    }
    Endpoints {
        fn create_endpoint(new: NewEndpoint, actor: &Actor) -> Endpoint;
        fn endpoint(id: EndpointId, tenant: Option<TenantId>) -> Option<Endpoint>;
        fn endpoints(filter: &EndpointFilter, page: PageRequest) -> Page<Endpoint>;
        fn update_endpoint(id: EndpointId, version: i64, settings: EndpointSettings, actor: &Actor) -> Option<Endpoint>;
        fn set_endpoint_status(id: EndpointId, change: StatusChange, actor: &Actor) -> Option<Endpoint>;
        fn rotate_secret(id: EndpointId, secret: SecretText, overlap: Duration, actor: &Actor) -> Option<Endpoint>;
        fn reveal_secrets(id: EndpointId, actor: &Actor) -> Option<Vec<EndpointSecret>>;
        fn delete_endpoint(id: EndpointId, actor: &Actor) -> bool;
        fn catalog_changes(since: Option<i64>) -> CatalogChanges;
    }
    Flush {
        fn flush(batch: &FlushBatch) -> Vec<FlushResult>;
    }
    Outbox {
        fn relay(request: RelayRequest, plan: Planner<'_>) -> Relayed;
        fn outbox_hint(floor: i64) -> bool;
        fn rejected_rows(limit: u16) -> Vec<RejectedRow>;
    }
    Parking {
        fn unclaim(rows: &[Unclaim]) -> u32;
        fn parked_endpoints(limit: u32) -> Vec<EndpointId>;
        fn wake(wake: Wake) -> Woken;
        fn cancel_deleted(limit: u32) -> u32;
        fn cancel_rows_of(endpoint_id: EndpointId, limit: u32) -> u32;
    }
    People {
        fn claim_manually(id: DeliveryId, session: SessionId, actor: &Actor) -> ManualClaim;
        fn revive(id: DeliveryId, actor: &Actor) -> Revival;
        fn cancel_delivery(id: DeliveryId, actor: &Actor) -> Cancellation;
    }
    Reading {
        fn event(id: EventId, tenant: Option<TenantId>) -> Option<EventRecord>;
        fn event_body(id: EventId, tenant: Option<TenantId>) -> Option<EventBody>;
        fn events(filter: &EventFilter, page: PageRequest) -> Page<EventRecord>;
        fn delivery(id: DeliveryId, tenant: Option<TenantId>) -> Option<DeliveryRecord>;
        fn attempts(id: DeliveryId) -> Vec<pombo_domain::attempt::Attempt>;
        fn deliveries(filter: &DeliveryFilter, page: PageRequest) -> Page<DeliveryRecord>;
        fn dead_letters(filter: &DeadFilter, page: PageRequest) -> Page<DeadLetter>;
    }
}

#[async_trait]
impl Sessions for FaultyStore {
    async fn open_session(&self, session: NewSession) -> Result<(SessionId, Heartbeat)> {
        let (id, heartbeat) = self.faults.around("open_session", self.inner.open_session(session)).await?;
        Ok((id, self.faults.heartbeat(heartbeat)))
    }

    async fn renew_session(&self, id: SessionId, ttl: Duration) -> Result<Renewal> {
        match self.faults.around("renew_session", self.inner.renew_session(id, ttl)).await? {
            Renewal::Renewed(heartbeat) => Ok(Renewal::Renewed(self.faults.heartbeat(heartbeat))),
            Renewal::Lost => Ok(Renewal::Lost),
        }
    }

    async fn drain_session(&self, id: SessionId) -> Result<()> {
        self.faults.around("drain_session", self.inner.drain_session(id)).await
    }

    async fn end_session(&self, id: SessionId) -> Result<()> {
        self.faults.around("end_session", self.inner.end_session(id)).await
    }

    async fn bury_expired_sessions(&self) -> Result<Vec<SessionId>> {
        self.faults.around("bury_expired_sessions", self.inner.bury_expired_sessions()).await
    }

    async fn release_dead(&self, limit: u32) -> Result<u32> {
        self.faults.around("release_dead", self.inner.release_dead(limit)).await
    }

    async fn owned(&self, session: SessionId) -> Result<Vec<Token>> {
        self.faults.around("owned", self.inner.owned(session)).await
    }

    async fn release(&self, tokens: &[Token], why: Release) -> Result<u32> {
        self.faults.around("release", self.inner.release(tokens, why)).await
    }

    async fn forget_sessions(&self) -> Result<u32> {
        self.faults.around("forget_sessions", self.inner.forget_sessions()).await
    }

    async fn hold_lease(&self, name: LeaseName, session: SessionId) -> Result<Option<i64>> {
        self.faults.around("hold_lease", self.inner.hold_lease(name, session)).await
    }
}
