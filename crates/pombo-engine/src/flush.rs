//! Writing results: many in one statement, one statement at a time (docs/protocol.md K4–K8, S5).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use pombo_domain::attempt::Settlement;
use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::DisabledReason;
use pombo_domain::id::EndpointId;
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::flush::{Change, FlushBatch, FlushItem, FlushResult};
use pombo_store::sessions::Release;

use crate::clock::BootTime;
use crate::returns::let_go;
use crate::spine::{Patience, Quietly, Spine};
use crate::tally::Tally;

/// How long results gather before they are written.
const GATHER: Duration = Duration::from_millis(2);
/// How long a written batch is kept, for the case that the database dies before it is on disk (K7, S5).
const KEEP_WRITTEN: Duration = Duration::from_secs(2);
/// Failures in a row of a database that answers after which a batch counts as refused.
const TRIES_BEFORE_REFUSED: u32 = 5;

/// A result, and what it means for its endpoint.
pub(crate) struct Result {
    pub(crate) item: FlushItem,
    pub(crate) hold: Option<Timestamp>,
    pub(crate) disable: Option<DisabledReason>,
}

#[derive(Default)]
struct Queues {
    waiting: VecDeque<(BootTime, Result)>,
    recent: VecDeque<(BootTime, Arc<FlushBatch>)>,
    repeat: Vec<Arc<FlushBatch>>,
    /// When the oldest result that is not written came.
    oldest: Option<BootTime>,
}

/// Results on their way to the database.
#[derive(Default)]
pub(crate) struct FlushQueue {
    queues: Mutex<Queues>,
    /// Results waiting or being written.
    unflushed: Tally,
    /// Written batches on their way once more.
    repeating: Tally,
    /// [`Queues::oldest`] in boot-time microseconds, 0 for none: read before each attempt without the lock.
    oldest: AtomicI64,
    arrived: Notify,
}

impl FlushQueue {
    pub(crate) fn push(&self, result: Result) {
        let now = BootTime::now();
        self.unflushed.add(1);
        let mut queues = self.lock();
        if queues.oldest.is_none() {
            self.set_oldest(&mut queues, Some(now));
        }
        queues.waiting.push_back((now, result));
        drop(queues);
        self.arrived.notify_one();
    }

    fn set_oldest(&self, queues: &mut Queues, oldest: Option<BootTime>) {
        queues.oldest = oldest;
        self.oldest.store(oldest.map_or(0, BootTime::as_micros), Ordering::Release);
    }

    /// Results waiting or being written.
    pub(crate) fn len(&self) -> usize {
        self.unflushed.count()
    }

    /// Age of the oldest of them.
    pub(crate) fn oldest_age(&self) -> Duration {
        match self.oldest.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => Duration::from_micros((BootTime::now().as_micros() - since).max(0) as u64),
        }
    }

    /// Resolves when nothing waits.
    pub(crate) async fn emptied(&self) {
        self.unflushed.ended().await;
    }

    /// The database was restarted: what was written in the last two seconds may be gone, and is written again
    /// under its old tokens. Where it is still there, nothing changes (K7).
    pub(crate) fn repeat_recent(&self) {
        let mut queues = self.lock();
        let recent: Vec<_> = queues.recent.drain(..).map(|(_, batch)| batch).collect();
        self.repeating.add(recent.len());
        queues.repeat.extend(recent);
        drop(queues);
        self.arrived.notify_one();
    }

    /// Resolves when what is repeated was written.
    pub(crate) async fn repeated(&self) {
        self.repeating.ended().await;
    }

    fn take(&self) -> Vec<Result> {
        let mut queues = self.lock();
        let count = queues.waiting.len().min(limits::FLUSH_ITEMS_MAX);
        queues.waiting.drain(..count).map(|(_, result)| result).collect()
    }

    fn take_repeats(&self) -> Vec<Arc<FlushBatch>> {
        std::mem::take(&mut self.lock().repeat)
    }

    /// A batch was written. Older ones are forgotten two seconds later, but not while it is unknown whether the
    /// database was restarted: then they may be gone, however long ago they were written.
    fn written(&self, batch: Arc<FlushBatch>, epoch_is_known: bool) {
        let now = BootTime::now();
        let count = batch.items.len();
        let mut queues = self.lock();
        while epoch_is_known && queues.recent.front().is_some_and(|(at, _)| now.since(*at) > KEEP_WRITTEN) {
            queues.recent.pop_front();
        }
        queues.recent.push_back((now, batch));
        let oldest = queues.waiting.front().map(|(at, _)| *at);
        self.set_oldest(&mut queues, oldest);
        drop(queues);
        self.unflushed.done(count);
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("nobody panics with the queues")
    }
}

/// Writes results until the engine has stopped. The task is ended from outside, after [`FlushQueue::emptied`].
pub(crate) async fn flush_loop(spine: Arc<Spine>) {
    loop {
        for batch in spine.flush.take_repeats() {
            write(&spine, &batch).await;
            spine.flush.repeating.done(1);
        }
        let results = spine.flush.take();
        if results.is_empty() {
            spine.flush.arrived.notified().await;
            tokio::time::sleep(GATHER).await;
            continue;
        }
        let batch = Arc::new(batch_of(results));
        let written = write(&spine, &batch).await;
        finish(&spine, &batch, &written).await;
        let epoch_is_known = spine.session().is_some_and(|session| !session.is_suspended());
        spine.flush.written(batch, epoch_is_known);
        spine.lanes.ready.notify_one();
    }
}

fn batch_of(results: Vec<Result>) -> FlushBatch {
    let mut batch = FlushBatch::default();
    for result in results {
        let endpoint: EndpointId = result.item.attempt.endpoint_id;
        if let Some(until) = result.hold {
            batch.holds.push((endpoint, until));
        }
        if let Some(reason) = result.disable {
            batch.disables.push((endpoint, reason));
        }
        batch.items.push(result.item);
    }
    batch
}

/// Writes a batch until it is answered: an unknown answer means the same batch again (K7). A batch that the
/// database refuses, or fails at again and again while it answers, is written result by result.
async fn write(spine: &Spine, batch: &FlushBatch) -> Vec<Option<FlushResult>> {
    let (mut patience, mut quietly) = (Patience::default(), Quietly::default());
    loop {
        match spine.store.flush(batch).await {
            Ok(results) => return results.into_iter().map(Some).collect(),
            Err(error) if is_refused(&error, patience.failures()) => {
                tracing::error!(error = %error, "The database refuses a batch of results; they are written one by one: {error}.");
                return write_one_by_one(spine, batch).await;
            }
            Err(error) => {
                spine.note_error(&error);
                if quietly.may_speak() {
                    tracing::warn!(error = %error, "Results cannot be written, and are kept: {error}.");
                }
                tokio::time::sleep(patience.next()).await;
            }
        }
    }
}

/// Whether this error speaks of the data, not of the database's state. One that may do either has several tries.
fn is_refused(error: &StoreError, failures: u32) -> bool {
    match error {
        StoreError::Rejected(_) => true,
        StoreError::Corrupt { .. } | StoreError::Other(_) => failures >= TRIES_BEFORE_REFUSED,
        _ => false,
    }
}

async fn write_one_by_one(spine: &Spine, batch: &FlushBatch) -> Vec<Option<FlushResult>> {
    let mut results = Vec::with_capacity(batch.items.len());
    let endpoints =
        FlushBatch { items: Vec::new(), holds: batch.holds.clone(), disables: batch.disables.clone() };
    let _ = write_single(spine, &endpoints).await;
    for item in &batch.items {
        let mut single = FlushBatch { items: vec![item.clone()], ..FlushBatch::default() };
        let mut result = write_single(spine, &single).await;
        if result.is_none() {
            let attempt = &mut single.items[0].attempt;
            attempt.message = Some("(the text of this attempt could not be stored)".to_owned());
            attempt.response_body = None;
            result = write_single(spine, &single).await;
        }
        if result.is_none() {
            tracing::error!(delivery.id = %item.token.id, "The result of {} cannot be stored; the delivery is tried again.", item.token.id);
        }
        results.push(result);
    }
    results
}

/// `None` where the database refuses it.
async fn write_single(spine: &Spine, batch: &FlushBatch) -> Option<FlushResult> {
    let mut patience = Patience::default();
    loop {
        match spine.store.flush(batch).await {
            Ok(results) => return results.into_iter().next(),
            Err(error) if is_refused(&error, patience.failures()) => return None,
            Err(error) => {
                spine.note_error(&error);
                tokio::time::sleep(patience.next()).await;
            }
        }
    }
}

/// The answers are here: tokens are let go, jobs that waited for them are queued, numbers are counted.
async fn finish(spine: &Spine, batch: &FlushBatch, results: &[Option<FlushResult>]) {
    for (item, result) in batch.items.iter().zip(results) {
        if item.change == Change::RecordOnly {
            continue;
        }
        count(spine, item, *result);
        if result.is_none() {
            // Counted as a rescue, so that a result that can never be stored does not mean sending for ever (S4).
            // If this fails too, the row is owned and unknown here, and the audit releases it (S6).
            if let Err(error) = spine.store.release(&[item.token], Release::Rescue).await {
                spine.note_error(&error);
            }
        }
        let_go(spine, item.token);
    }
    if !batch.disables.is_empty()
        && let Err(error) = spine.refresh_catalog_now().await
    {
        spine.note_error(&error);
    }
}

fn count(spine: &Spine, item: &FlushItem, result: Option<FlushResult>) {
    match (result, item.change) {
        (Some(FlushResult::Applied), Change::Settle(how)) => settled(spine, item, how),
        (Some(FlushResult::Late { settled: true }), _) => {
            spine.metrics.late(true);
            settled(spine, item, Settlement::Delivered);
        }
        (Some(FlushResult::Late { settled: false }), _) => spine.metrics.late(false),
        _ => {}
    }
}

fn settled(spine: &Spine, item: &FlushItem, how: Settlement) {
    let since = spine.now().since(item.delivery_created_at);
    spine.metrics.settled(how, item.attempt.number.unsigned_abs(), since);
}
