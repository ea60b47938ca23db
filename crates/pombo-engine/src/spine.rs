//! What all stages share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, RwLock as AsyncRwLock, watch};

use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::Endpoint;
use pombo_domain::id::SessionId;
use pombo_egress::EgressClient;
use pombo_store::{Store, StoreError};

use crate::catalog::{Catalog, Target};
use crate::clock::{BootTime, DatabaseClock};
use crate::config::EngineConfig;
use crate::flush::FlushQueue;
use crate::holdings::Holdings;
use crate::homes::Homes;
use crate::lanes::{LaneRules, Lanes};
use crate::metrics::Metrics;
use crate::returns::Returns;
use crate::session::Session;
use crate::tally::Tally;

/// Shared by all stages of one engine.
pub(crate) struct Spine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) egress: EgressClient,
    pub(crate) config: EngineConfig,
    pub(crate) clock: DatabaseClock,
    pub(crate) metrics: Metrics,
    pub(crate) holdings: Holdings,
    pub(crate) lanes: Lanes,
    pub(crate) flush: FlushQueue,
    pub(crate) returns: Returns,
    /// Jobs taken from their lane and not ended.
    pub(crate) in_flight: Tally,
    /// A delivery that was rescued often is sent with nothing beside it (S4): it takes this for writing,
    /// every other attempt for reading.
    pub(crate) alone: AsyncRwLock<()>,
    /// Held by every claim from before it is sent until its rows are entered in `holdings` (S6 b).
    pub(crate) claiming: Mutex<()>,
    pub(crate) signals: Signals,
    session: RwLock<Option<Arc<Session>>>,
    homes: RwLock<Arc<Homes>>,
    catalog: RwLock<Arc<Catalog>>,
    /// Held while the catalogue is loaded; when the last load that succeeded began.
    refreshing: Mutex<Option<BootTime>>,
    draining: watch::Sender<bool>,
    relay_floor_void: AtomicBool,
}

/// Hints between stages. Losing one costs a poll, never a delivery (C4).
#[derive(Default)]
pub(crate) struct Signals {
    /// Rows may be due.
    pub(crate) due: Notify,
    /// The connection was lost or a session ended: look at the session now.
    pub(crate) session: Notify,
    /// A commit's outcome is unknown: audit now (S6).
    pub(crate) audit: Notify,
}

impl Spine {
    pub(crate) fn new(store: Arc<dyn Store>, egress: EgressClient, config: EngineConfig) -> Self {
        Self {
            store,
            egress,
            config,
            clock: DatabaseClock::default(),
            metrics: Metrics::new(),
            holdings: Holdings::default(),
            lanes: Lanes::default(),
            flush: FlushQueue::default(),
            returns: Returns::default(),
            in_flight: Tally::default(),
            alone: AsyncRwLock::new(()),
            claiming: Mutex::new(()),
            signals: Signals::default(),
            session: RwLock::new(None),
            homes: RwLock::new(Arc::new(Homes::none())),
            catalog: RwLock::new(Arc::new(Catalog::default())),
            refreshing: Mutex::new(None),
            draining: watch::Sender::new(false),
            relay_floor_void: AtomicBool::new(true),
        }
    }

    /// The session this process holds, if any, dead or alive.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.session.read().expect("nobody panics with the lock").clone()
    }

    /// The live session with this id, if it is still this process's.
    pub(crate) fn session_of(&self, id: SessionId) -> Option<Arc<Session>> {
        self.session().filter(|session| session.id == id && !session.is_over())
    }

    pub(crate) fn set_session(&self, session: Option<Arc<Session>>) {
        *self.session.write().expect("nobody panics with the lock") = session;
    }

    pub(crate) fn homes(&self) -> Arc<Homes> {
        Arc::clone(&self.homes.read().expect("nobody panics with the lock"))
    }

    /// Puts new homes in place; returns the old ones.
    pub(crate) fn set_homes(&self, homes: Homes) -> Arc<Homes> {
        std::mem::replace(&mut self.homes.write().expect("nobody panics with the lock"), Arc::new(homes))
    }

    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().expect("nobody panics with the lock"))
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Begins the shutdown: no new work is taken.
    pub(crate) fn start_draining(&self) {
        self.draining.send_replace(true);
    }

    /// Resolves when the shutdown begins.
    pub(crate) async fn drained(&self) {
        let mut draining = self.draining.subscribe();
        // The sender lives as long as the spine, so this ends only by the value.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    /// Waits for a hint, a timeout or the shutdown, whichever is first. `true` on shutdown.
    pub(crate) async fn pause(&self, hint: &Notify, longest: Duration) -> bool {
        tokio::select! {
            () = hint.notified() => {}
            () = tokio::time::sleep(longest) => {}
            () = self.drained() => {}
        }
        self.is_draining()
    }

    /// Whether an attempt with this deadline may start now (K4): the results of earlier ones are being written.
    pub(crate) fn may_start(&self) -> bool {
        let unflushed = self.flush.len();
        let busy = self.in_flight.count() + unflushed >= pombo_domain::limits::UNSETTLED_MAX;
        !busy && self.flush.oldest_age() <= pombo_domain::limits::UNFLUSHED_AGE_MAX
    }

    /// The end of an attempt's deadline.
    pub(crate) fn timeout_of(&self, endpoint: &Endpoint) -> Duration {
        // An endpoint may have been made under a longer lease; the shorter one wins (K3).
        let longest = self.config.lease_ttl.saturating_sub(pombo_domain::limits::LEASE_HEADROOM);
        endpoint.timeout.unwrap_or(self.config.timeout).min(longest)
    }

    /// Loads what changed in the configuration, if the database was seen ahead, at version `seen`.
    pub(crate) async fn refresh_catalog(&self, seen: i64) -> Result<(), StoreError> {
        let is_known = || (1..).contains(&self.catalog().version) && self.catalog().version >= seen;
        if is_known() {
            return Ok(());
        }
        let mut last = self.refreshing.lock().await;
        if is_known() {
            return Ok(());
        }
        self.load_catalog(&mut last).await
    }

    /// Loads what changed in the configuration until this call. Callers that come while a load is under way share
    /// the next one.
    pub(crate) async fn refresh_catalog_now(&self) -> Result<(), StoreError> {
        let asked = BootTime::now();
        let mut last = self.refreshing.lock().await;
        if last.is_some_and(|began| began >= asked) {
            return Ok(());
        }
        self.load_catalog(&mut last).await
    }

    async fn load_catalog(&self, last: &mut Option<BootTime>) -> Result<(), StoreError> {
        let began = BootTime::now();
        let old = self.catalog();
        let since = (old.version > 0).then_some(old.version);
        let changes = self.store.catalog_changes(since).await?;
        let changed: Vec<_> = changes.changed.iter().map(|entry| entry.endpoint.id).collect();
        let next = Arc::new(old.with(changes, &self.config.retry));
        *self.catalog.write().expect("nobody panics with the lock") = Arc::clone(&next);
        *last = Some(began);
        let now = self.clock.now();
        for target in changed.iter().filter_map(|id| next.target(*id)) {
            if let Some(until) = target.hold_until.filter(|until| *until > now) {
                self.returns.put_displaced(self.lanes.hold(rules_of(target), until));
            }
            // Its backlog may have become sendable, or there may be one: the level decides (P1).
            if target.is_active() && self.homes().holds(target.shard) {
                self.lanes.seek_backlog(rules_of(target));
            }
        }
        Ok(())
    }

    /// Whatever a stage saw of the database's state is passed here: a lost connection suspends lease checks
    /// until the server's life was read again (S5), an unknown commit asks for an audit (S6).
    pub(crate) fn note_error(&self, error: &StoreError) {
        if matches!(
            error,
            StoreError::Unavailable(_) | StoreError::OutcomeUnknown(_) | StoreError::ReadOnly(_)
        ) {
            if let Some(session) = self.session() {
                session.suspend();
            }
            self.void_relay_floor();
            self.signals.session.notify_one();
        }
        if matches!(error, StoreError::OutcomeUnknown(_)) {
            self.signals.audit.notify_one();
        }
    }

    /// The next relay transaction scans from zero (R2).
    pub(crate) fn void_relay_floor(&self) {
        self.relay_floor_void.store(true, Ordering::Release);
    }

    /// Whether the floor was voided since last asked.
    pub(crate) fn take_relay_floor_void(&self) -> bool {
        self.relay_floor_void.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// What a lane must know of its endpoint.
pub(crate) fn rules_of(target: &Target) -> LaneRules {
    LaneRules {
        endpoint: target.endpoint.id,
        tenant: target.endpoint.tenant_id,
        cap: target.endpoint.max_concurrency,
    }
}

/// Waits longer with every failure in a row: 50 ms doubling to 2 s, so that a database that comes back is met
/// within seconds and not by a storm.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    failures: u32,
}

impl Patience {
    /// Failures in a row so far.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = Duration::from_millis(50) * 2_u32.pow(self.failures.min(5));
        self.failures = self.failures.saturating_add(1);
        wait.min(Duration::from_secs(2))
    }
}

/// Lets the same trouble be logged every ten seconds, not at every try.
#[derive(Debug, Default)]
pub(crate) struct Quietly {
    last: Option<BootTime>,
}

impl Quietly {
    /// Whether enough time has gone since the last `true`.
    pub(crate) fn may_speak(&mut self) -> bool {
        let now = BootTime::now();
        let quiet = self.last.is_some_and(|last| now.since(last) < Duration::from_secs(10));
        if !quiet {
            self.last = Some(now);
        }
        !quiet
    }
}
