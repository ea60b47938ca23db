//! The session keeper: the lease under which everything is sent (docs/protocol.md, rules S).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use pombo_domain::id::SessionId;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::sessions::{Epoch, Heartbeat, NewSession, Release, Renewal};

use crate::clock::BootTime;
use crate::homes::Homes;
use crate::spine::{Patience, Quietly, Spine};

/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// What is taken off the local view of the lease, so that it ends here before it ends at the server.
const VALIDITY_MARGIN: Duration = Duration::from_secs(1);

/// A run of this process under one lease.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    epoch: Epoch,
    valid_until: AtomicI64,
    is_suspended: AtomicBool,
    over: watch::Sender<bool>,
}

impl Session {
    fn new(id: SessionId, epoch: Epoch, valid_until: BootTime) -> Self {
        Self {
            id,
            epoch,
            valid_until: AtomicI64::new(valid_until.as_micros()),
            is_suspended: AtomicBool::new(false),
            over: watch::Sender::new(false),
        }
    }

    /// The lease check (K3): stands directly before the write and asks for the attempt's whole deadline and 2 s.
    pub(crate) fn allows(&self, deadline: Duration) -> bool {
        let end = BootTime::now().plus(deadline + limits::LEASE_CHECK_MARGIN);
        !self.is_over()
            && !self.is_suspended.load(Ordering::Acquire)
            && end.as_micros() <= self.valid_until.load(Ordering::Acquire)
    }

    /// Suspends lease checks until a renewal has read the server's life again (S5).
    pub(crate) fn suspend(&self) {
        self.is_suspended.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Resolves when the session is over: attempts in flight close their sockets then (S2).
    pub(crate) async fn ended(&self) {
        let mut over = self.over.subscribe();
        let _ = over.wait_for(|over| *over).await;
    }

    fn end(&self) {
        self.over.send_replace(true);
    }

    fn is_expired(&self) -> bool {
        BootTime::now().as_micros() > self.valid_until.load(Ordering::Acquire)
    }

    fn renewed(&self, sent: BootTime, ttl: Duration) {
        self.valid_until.store(validity(sent, ttl).as_micros(), Ordering::Release);
        self.is_suspended.store(false, Ordering::Release);
    }
}

/// Until when a lease counts here: from before the renewal was sent, and a little less (S2).
fn validity(sent: BootTime, ttl: Duration) -> BootTime {
    sent.plus(ttl).minus(VALIDITY_MARGIN)
}

/// Opens a session and takes in what it tells.
pub(crate) async fn open(spine: &Spine) -> Result<Arc<Session>, StoreError> {
    let sent = BootTime::now();
    let ttl = spine.config.lease_ttl;
    let new = NewSession { node: spine.config.node.clone(), roles: spine.config.roles, ttl };
    let (id, heartbeat) = spine.store.open_session(new).await?;
    spine.clock.learn(sent, heartbeat.now);
    let session = Arc::new(Session::new(id, heartbeat.epoch.clone(), validity(sent, ttl)));
    spine.set_session(Some(Arc::clone(&session)));
    take_in(spine, &session, &heartbeat).await?;
    tracing::info!(session = id.0, "Session {id} is open.");
    Ok(session)
}

/// Homes and configuration, as a heartbeat tells them.
async fn take_in(spine: &Spine, session: &Session, heartbeat: &Heartbeat) -> Result<(), StoreError> {
    let homes = if spine.config.roles.deliver && !spine.is_draining() {
        Homes::of(session.id, &heartbeat.deliverers)
    } else {
        Homes::none()
    };
    if homes != *spine.homes() {
        let old = spine.set_homes(homes);
        hand_back_left_shards(spine, &old).await?;
    }
    spine.refresh_catalog(heartbeat.config_version).await?;
    Ok(())
}

/// When a shard leaves, the unstarted rows of its lanes are released at once (C3).
async fn hand_back_left_shards(spine: &Spine, old: &Homes) -> Result<(), StoreError> {
    let homes = spine.homes();
    let left = |shard: i16| old.holds(shard) && !homes.holds(shard);
    let jobs = spine.lanes.drain(|job| {
        job.manual.is_none() && left(pombo_domain::endpoint::shard_of(job.delivery.endpoint_id))
    });
    crate::deliver::hand_back(spine, jobs, Release::HandBack).await
}

/// Keeps a session alive, and opens a new one whenever it is over. Runs until the engine stops.
pub(crate) async fn keep(spine: Arc<Spine>) {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    while !spine.is_draining() {
        let result = match spine.session().filter(|session| !session.is_over()) {
            Some(session) => renew(&spine, &session).await,
            None => open(&spine).await.map(|_| ()),
        };
        let wait = match result {
            Ok(()) => {
                patience.reset();
                RENEW_EVERY
            }
            Err(error) => {
                spine.note_error(&error);
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "The database does not answer; sending is suspended until it does: {error}.");
                }
                patience.next()
            }
        };
        end_if_expired(&spine).await;
        // The error path must not be woken by its own hint, or it would spin.
        let suspended = wait < RENEW_EVERY;
        if suspended {
            tokio::select! { () = tokio::time::sleep(wait) => {}, () = spine.drained() => {} }
        } else {
            spine.pause(&spine.signals.session, wait).await;
        }
    }
}

async fn renew(spine: &Spine, session: &Arc<Session>) -> Result<(), StoreError> {
    let sent = BootTime::now();
    match spine.store.renew_session(session.id, spine.config.lease_ttl).await? {
        Renewal::Lost => end(spine, session, "its lease was lost").await,
        Renewal::Renewed(heartbeat) if heartbeat.epoch != session.epoch => {
            // S5: what was flushed just before the crash may be gone; it is written again under its old token,
            // then the session ends, for queued deliveries may have been rolled back too.
            spine.void_relay_floor();
            spine.flush.repeat_recent();
            end(spine, session, "the database was restarted").await;
        }
        Renewal::Renewed(heartbeat) => {
            spine.clock.learn(sent, heartbeat.now);
            session.renewed(sent, spine.config.lease_ttl);
            spine.lanes.ready.notify_one();
            take_in(spine, session, &heartbeat).await?;
        }
    }
    Ok(())
}

async fn end_if_expired(spine: &Spine) {
    if let Some(session) = spine.session().filter(|session| !session.is_over() && session.is_expired()) {
        end(spine, &session, "its lease could not be renewed in time").await;
    }
}

/// The session is over (S2): no more lease checks, sockets in flight are closed, queued entries dropped,
/// results kept under their old token. A new session is opened by the loop.
async fn end(spine: &Spine, session: &Session, why: &str) {
    tracing::warn!(session = session.id.0, "Session {} is over: {why}. A new one follows.", session.id);
    session.end();
    spine.metrics.sessions_lost.inc();
    for job in spine.lanes.drain_session(session.id) {
        spine.holdings.leave(job.token());
        spine.lanes.finished_unsent(job.delivery.endpoint_id);
    }
    // Where the server still answers, telling it saves the others the wait for the lease. Harmless if not.
    if let Err(error) = spine.store.end_session(session.id).await {
        tracing::debug!(error = %error, "The old session could not be ended; its lease runs out by itself.");
    }
    spine.signals.session.notify_one();
    // What it owned is released by the sweep; no need to wait for its turn.
    spine.signals.audit.notify_one();
}
