//! Deliveries that go back to the database unsent: parked, or due at a later time (docs/protocol.md C1, P1).
//!
//! Whoever finds that a delivery cannot be sent now leaves it here; one task writes what has gathered in one
//! statement. A token stays in the holdings until that write was answered. Where it fails nothing is lost: the
//! row is then owned and unknown, and the audit releases it (S6).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::parking::Unclaim;
use pombo_store::sessions::Release;

use crate::lanes::{Displaced, Job};
use crate::spine::{Spine, rules_of};
use crate::tally::Tally;

/// When a delivery is looked at again whose endpoint is not in the catalogue: it was deleted, and the sweep
/// cancels the row (P3), or the catalogue is older than the endpoint.
const UNKNOWN_ENDPOINT_AGAIN: Duration = Duration::from_secs(10);

/// Deliveries on their way back.
#[derive(Default)]
pub(crate) struct Returns {
    rows: Mutex<Vec<Unclaim>>,
    /// Waiting or being written.
    pending: Tally,
    arrived: Notify,
}

impl Returns {
    /// Gives a job back, due at `due_at`; infinity parks it. A person's attempt that was not made leaves the
    /// schedule as it was (M1).
    pub(crate) fn put(&self, job: &Job, due_at: Timestamp) {
        let due_at = job.manual.as_ref().map_or(due_at, |manual| manual.due_at);
        let waits = |at: &Timestamp| due_at == Timestamp::INFINITY && *at != Timestamp::INFINITY;
        let not_before = job.delivery.not_before.filter(waits);
        self.pending.add(1);
        self.lock().push(Unclaim { token: job.token(), due_at, not_before });
        self.arrived.notify_one();
    }

    /// Gives back what found no place in its lane.
    pub(crate) fn put_displaced(&self, displaced: Vec<Displaced>) {
        for Displaced { job, due_at } in displaced {
            self.put(&job, due_at);
        }
    }

    /// Resolves when everything given back was written, or failed to be.
    pub(crate) async fn emptied(&self) {
        self.pending.ended().await;
    }

    fn take(&self) -> Vec<Unclaim> {
        let mut rows = self.lock();
        let count = rows.len().min(limits::SWEEP_ROWS_MAX as usize);
        rows.drain(..count).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Unclaim>> {
        self.rows.lock().expect("nobody panics with the rows")
    }
}

/// Writes what is given back, until the task is ended from outside after [`Returns::emptied`].
pub(crate) async fn return_loop(spine: Arc<Spine>) {
    loop {
        let rows = spine.returns.take();
        if rows.is_empty() {
            spine.returns.arrived.notified().await;
            continue;
        }
        if let Err(error) = spine.store.unclaim(&rows).await {
            spine.note_error(&error);
            tracing::warn!(error = %error, "{} deliveries could not be given back; the audit does it: {error}.", rows.len());
        }
        for row in &rows {
            let_go(&spine, row.token);
        }
        spine.returns.pending.done(rows.len());
        spine.signals.due.notify_one();
    }
}

/// The hold of a token has ended. A job that waited for it goes into its lane (K2).
pub(crate) fn let_go(spine: &Spine, token: Token) {
    let Some(job) = spine.holdings.leave(token) else { return };
    match spine.catalog().target(job.delivery.endpoint_id) {
        None => put_unknown(spine, &job),
        Some(target) => {
            let displaced = spine.lanes.push_claimed(vec![(rules_of(target), job)], spine.now());
            spine.returns.put_displaced(displaced);
        }
    }
}

/// Gives back a job whose endpoint this process does not know.
pub(crate) fn put_unknown(spine: &Spine, job: &Job) {
    spine.returns.put(job, spine.now().plus(UNKNOWN_ENDPOINT_AGAIN));
}

/// Hands unstarted jobs back at once, for others to send (a shard left, or the process drains).
pub(crate) async fn hand_back(spine: &Spine, jobs: Vec<Job>) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let tokens: Vec<_> = jobs.iter().map(Job::token).collect();
    let result = spine.store.release(&tokens, Release::HandBack).await;
    for token in tokens {
        let_go(spine, token);
    }
    result.map(drop)
}
