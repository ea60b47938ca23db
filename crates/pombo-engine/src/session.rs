//! The session keeper: the lease under which everything is sent (docs/protocol.md, rules S).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use pombo_domain::id::SessionId;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::sessions::{Epoch, Heartbeat, NewSession, Renewal};

use crate::clock::BootTime;
use crate::homes::Homes;
use crate::returns::{hand_back, let_go};
use crate::spine::{Patience, Quietly, Spine};

/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a renewal.
const RENEWAL_MAX: Duration = Duration::from_secs(5);
/// Longest wait for results to be written again before a session ends in the database too.
const RESULTS_FIRST_MAX: Duration = Duration::from_secs(5);
/// What is taken off the local view of the lease, so that it ends here before it ends at the server.
const VALIDITY_MARGIN: Duration = Duration::from_secs(1);

/// A run of this process under one lease.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    epoch: Epoch,
    valid_until: AtomicI64,
    /// How often lease checks were suspended, and how often when the last renewal that cleared them was sent: a
    /// trouble seen after that is not cleared by its answer.
    suspensions: AtomicU64,
    cleared: AtomicU64,
    over: watch::Sender<bool>,
}

impl Session {
    fn new(id: SessionId, epoch: Epoch, valid_until: BootTime) -> Self {
        Self {
            id,
            epoch,
            valid_until: AtomicI64::new(valid_until.as_micros()),
            suspensions: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            over: watch::Sender::new(false),
        }
    }

    /// The lease check (K3): stands directly before the write and asks for the attempt's whole deadline and 2 s.
    pub(crate) fn allows(&self, deadline: Duration) -> bool {
        let end = BootTime::now().plus(deadline + limits::LEASE_CHECK_MARGIN);
        !self.is_over() && !self.is_suspended() && end.as_micros() <= self.valid_until.load(Ordering::Acquire)
    }

    /// Suspends lease checks until a renewal has read the server's life again (S5).
    pub(crate) fn suspend(&self) {
        self.suspensions.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether it is unknown which life of the server this is.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspensions.load(Ordering::Acquire) != self.cleared.load(Ordering::Acquire)
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

    fn renewed(&self, sent: Sent, ttl: Duration) {
        self.valid_until.store(validity(sent.at, ttl).as_micros(), Ordering::Release);
        self.cleared.store(sent.suspensions, Ordering::Release);
    }
}

/// What was so when a renewal was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: BootTime,
    suspensions: u64,
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
    spine.refresh_catalog(heartbeat.config_version).await
}

/// When a shard leaves, the unstarted rows of its lanes are released at once (C3).
async fn hand_back_left_shards(spine: &Spine, old: &Homes) -> Result<(), StoreError> {
    let homes = spine.homes();
    let left = |shard: i16| old.holds(shard) && !homes.holds(shard);
    let jobs = spine.lanes.drain(|job| {
        job.manual.is_none() && left(pombo_domain::endpoint::shard_of(job.delivery.endpoint_id))
    });
    hand_back(spine, jobs).await
}

/// Keeps a session alive, and opens a new one whenever it is over. Goes on while the engine drains, so that
/// results can still be written under it; the task is ended from outside.
pub(crate) async fn keep(spine: Arc<Spine>) {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    loop {
        let result = match spine.session().filter(|session| !session.is_over()) {
            Some(session) => renew(&spine, &session).await,
            // Nothing is begun any more that would need one.
            None if spine.is_draining() => Ok(()),
            None => open(&spine).await.map(drop),
        };
        end_if_expired(&spine).await;
        match result {
            Ok(()) => {
                patience.reset();
                let hint = spine.signals.session.notified();
                let longest = RENEW_EVERY.min(spine.config.lease_ttl / 4);
                tokio::select! { () = hint => {}, () = tokio::time::sleep(longest) => {} }
            }
            Err(error) => {
                spine.note_error(&error);
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "The database does not answer; sending is suspended until it does: {error}.");
                }
                // Without the hint, which this error has just given.
                tokio::time::sleep(patience.next()).await;
            }
        }
    }
}

async fn renew(spine: &Spine, session: &Arc<Session>) -> Result<(), StoreError> {
    let sent = Sent { at: BootTime::now(), suspensions: session.suspensions.load(Ordering::Acquire) };
    let renewal = spine.store.renew_session(session.id, spine.config.lease_ttl);
    // A renewal that hangs must not hide that the lease runs out.
    let renewal = tokio::time::timeout(RENEWAL_MAX, renewal)
        .await
        .map_err(|elapsed| StoreError::Unavailable(Box::new(elapsed)))??;
    match renewal {
        Renewal::Lost => end(spine, session, "its lease was lost").await,
        Renewal::Renewed(heartbeat) if heartbeat.epoch != session.epoch => {
            // S5: what was flushed just before the crash may be gone; it is written again under its old token,
            // then the session ends, for queued deliveries may have been rolled back too.
            spine.void_relay_floor();
            spine.flush.repeat_recent();
            end(spine, session, "the database was restarted").await;
        }
        Renewal::Renewed(heartbeat) => {
            spine.clock.learn(sent.at, heartbeat.now);
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
        let_go(spine, job.token());
    }
    // Results that are being written count under the old token only until its rows are released.
    if tokio::time::timeout(RESULTS_FIRST_MAX, spine.flush.repeated()).await.is_err() {
        tracing::warn!("Results could not be written again in time; their deliveries may be sent once more.");
    }
    // Where the server still answers, telling it saves the others the wait for the lease. Harmless if not.
    let told = tokio::time::timeout(RENEWAL_MAX, spine.store.end_session(session.id)).await;
    if !matches!(told, Ok(Ok(()))) {
        tracing::debug!("The old session could not be ended; its lease runs out by itself.");
    }
    spine.signals.session.notify_one();
    // What it owned is released by the sweep; no need to wait for its turn.
    spine.signals.audit.notify_one();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_seen_after_a_renewal_was_sent_is_not_cleared_by_its_answer() {
        let ttl = Duration::from_secs(45);
        let session = Session::new(SessionId(1), Epoch("a".to_owned()), validity(BootTime::now(), ttl));
        assert!(session.allows(Duration::from_secs(10)));
        session.suspend();
        assert!(!session.allows(Duration::from_secs(10)));
        let sent = Sent { at: BootTime::now(), suspensions: session.suspensions.load(Ordering::Acquire) };
        session.suspend();
        session.renewed(sent, ttl);
        assert!(session.is_suspended());
        session.renewed(Sent { suspensions: 2, ..sent }, ttl);
        assert!(session.allows(Duration::from_secs(10)));
    }

    #[test]
    fn the_lease_check_asks_for_the_whole_deadline_and_two_seconds() {
        let end = validity(BootTime::now(), Duration::from_secs(20));
        let session = Session::new(SessionId(1), Epoch("a".to_owned()), end);
        assert!(session.allows(Duration::from_secs(16)));
        assert!(!session.allows(Duration::from_secs(18)), "19 s are left");
        session.end();
        assert!(!session.allows(Duration::ZERO));
    }
}
