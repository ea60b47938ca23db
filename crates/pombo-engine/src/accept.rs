//! Accepting events from the API: one committer, one statement per batch (docs/protocol.md, rules A).

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use pombo_domain::event::{Draft, Event, Identity, Origin};
use pombo_domain::id::{EndpointId, EventId};
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::accept::{AcceptBatch, AcceptResult, Accepted, NewEvent};

use crate::catalog::Catalog;
use crate::handle::{PublishError, Published};
use crate::plan::{Planner, Work, content_hash};
use crate::spine::{Quietly, Spine};

/// Events waiting for the committer; more callers wait outside.
const QUEUE_LEN: usize = 4096;
/// How often a batch is matched again because the configuration moved on under it.
const STALE_MAX: u32 = 10;

type Answer = oneshot::Sender<Result<Published, PublishError>>;

/// An event on its way to the committer.
pub(crate) struct Pending {
    draft: Draft,
    event: Event,
    hash: [u8; 32],
    answer: Answer,
}

impl Pending {
    /// The first endpoint it names that its tenant does not have.
    fn unknown_target(&self, catalog: &Catalog) -> Option<EndpointId> {
        catalog.unknown_target(self.event.tenant_id, self.draft.targets.as_deref()?)
    }

    fn answer(self, result: Result<Published, PublishError>) {
        // A caller that went away does not want to know.
        let _ = self.answer.send(result);
    }
}

/// Hands events to the committer.
pub(crate) type AcceptSender = mpsc::Sender<Pending>;

/// The queue between callers and the committer.
pub(crate) fn queue() -> (AcceptSender, mpsc::Receiver<Pending>) {
    mpsc::channel(QUEUE_LEN)
}

/// Accepts one event: makes it, hands it over, waits for its commit.
pub(crate) async fn publish(
    spine: &Spine,
    sender: &AcceptSender,
    draft: Draft,
) -> Result<Published, PublishError> {
    hold_while_saturated(spine).await;
    let receiver = hand_over(spine, sender, draft).await?;
    receiver.await.unwrap_or(Err(PublishError::Stopping))
}

/// Accepts several events; they are handed over together and answered one by one.
pub(crate) async fn publish_all(
    spine: &Spine,
    sender: &AcceptSender,
    drafts: Vec<Draft>,
) -> Vec<Result<Published, PublishError>> {
    hold_while_saturated(spine).await;
    let mut receivers = Vec::with_capacity(drafts.len());
    for draft in drafts {
        receivers.push(hand_over(spine, sender, draft).await);
    }
    let mut results = Vec::with_capacity(receivers.len());
    for receiver in receivers {
        results.push(match receiver {
            Ok(receiver) => receiver.await.unwrap_or(Err(PublishError::Stopping)),
            Err(error) => Err(error),
        });
    }
    results
}

/// A7: while ready-to-send work piles up because this process is busy, accepts wait for a bounded moment. A
/// backlog never refuses an event.
async fn hold_while_saturated(spine: &Spine) {
    if spine.lanes.ready_to_send() <= limits::READY_MAX {
        return;
    }
    let drained = async {
        while spine.lanes.ready_to_send() > limits::READY_MAX {
            spine.lanes.drained.notified().await;
        }
    };
    let _ = tokio::time::timeout(limits::ACCEPT_HOLD_MAX, drained).await;
}

async fn hand_over(
    spine: &Spine,
    sender: &AcceptSender,
    draft: Draft,
) -> Result<oneshot::Receiver<Result<Published, PublishError>>, PublishError> {
    let created_at = spine.now().to_millis_precision();
    let id = EventId::new(created_at, crate::random::id_bytes());
    let origin = if draft.kind.is_operational() { Origin::Pombo } else { Origin::Api };
    let event = Event::from_draft(&draft, Identity { id, created_at, origin });
    let (answer, receiver) = oneshot::channel();
    let hash = content_hash(&draft);
    sender.send(Pending { draft, event, hash, answer }).await.map_err(|_| PublishError::Stopping)?;
    Ok(receiver)
}

/// The committer: takes what waits, commits it together, answers. While one commit is under way the next
/// batch gathers; that is the whole of group commit. When the engine drains, what was handed over before is
/// still committed; what comes later finds the queue closed.
pub(crate) async fn commit_loop(spine: Arc<Spine>, mut queue: mpsc::Receiver<Pending>) {
    let mut quietly = Quietly::default();
    loop {
        let first = if queue.is_closed() {
            queue.recv().await
        } else {
            tokio::select! {
                pending = queue.recv() => pending,
                () = spine.drained() => {
                    queue.close();
                    continue;
                }
            }
        };
        let Some(first) = first else { return };
        let mut batch = vec![first];
        while batch.len() < limits::ACCEPT_EVENTS_MAX {
            match queue.try_recv() {
                Ok(pending) => batch.push(pending),
                Err(_) => break,
            }
        }
        commit(&spine, batch, &mut quietly).await;
    }
}

/// Commits a batch. A batch that the database refuses is halved until the item is found (A4); the halves are
/// worked through from a stack, so depth is bounded by the batch.
async fn commit(spine: &Spine, batch: Vec<Pending>, quietly: &mut Quietly) {
    let mut stack = vec![refuse_unknown_targets(spine, batch).await];
    while let Some(mut batch) = stack.pop() {
        if batch.is_empty() {
            continue;
        }
        match commit_once(spine, &batch).await {
            Ok(results) => {
                // More deliveries than fit one transaction: the rest is the next one (A6).
                stack.push(batch.split_off(results.len()));
                answer_all(spine, batch, results);
            }
            Err(StoreError::Rejected(error)) if batch.len() > 1 => {
                tracing::debug!(error = %error, "A batch of {} events is split to find the one refused.", batch.len());
                let second = batch.split_off(batch.len() / 2);
                stack.push(second);
                stack.push(batch);
            }
            Err(error) => {
                spine.note_error(&error);
                let refusal = refusal(&error, quietly);
                batch.into_iter().for_each(|pending| pending.answer(Err(refusal.clone())));
            }
        }
    }
}

fn refusal(error: &StoreError, quietly: &mut Quietly) -> PublishError {
    match error {
        StoreError::Rejected(cause) => {
            tracing::error!(error = %cause, "The database refuses an event that passed every check.");
            return PublishError::Rejected;
        }
        error if quietly.may_speak() => tracing::warn!(error = %error, "Events cannot be accepted: {error}."),
        _ => {}
    }
    match error {
        StoreError::OutcomeUnknown(_) => PublishError::OutcomeUnknown,
        _ => PublishError::Unavailable,
    }
}

/// Events that name an endpoint the tenant does not have are refused; the database is asked before, for the
/// endpoint may have been made a moment ago by another process.
async fn refuse_unknown_targets(spine: &Spine, batch: Vec<Pending>) -> Vec<Pending> {
    let catalog = spine.catalog();
    if batch.iter().all(|pending| pending.unknown_target(&catalog).is_none()) {
        return batch;
    }
    let refreshed = spine.refresh_catalog_now().await;
    if let Err(error) = &refreshed {
        spine.note_error(error);
    }
    let catalog = spine.catalog();
    let mut known = Vec::with_capacity(batch.len());
    for pending in batch {
        match pending.unknown_target(&catalog) {
            None => known.push(pending),
            // Not knowing is no reason to say that it does not exist.
            Some(_) if refreshed.is_err() => pending.answer(Err(PublishError::Unavailable)),
            Some(target) => pending.answer(Err(PublishError::UnknownTarget(target))),
        }
    }
    known
}

/// One try after another while the configuration moves on under the batch. Gives the results of as many events
/// as fit one transaction, each with its number of deliveries.
async fn commit_once(spine: &Spine, batch: &[Pending]) -> Result<Vec<(AcceptResult, u32)>, StoreError> {
    for _ in 0..STALE_MAX {
        let Some(planner) = Planner::new(spine) else {
            return Err(StoreError::Busy("this process holds no session right now".into()));
        };
        let (events, work) = plan(&planner, batch);
        let accept =
            AcceptBatch { events, config_version: planner.catalog.version, session: planner.session };
        match spine.store.accept(&accept).await {
            Ok(Accepted::Committed(results)) => return Ok(take_up(spine, &accept, work, results)),
            Ok(Accepted::Stale { config_version }) => {
                work.iter().for_each(|work| work.forget(spine));
                spine.refresh_catalog(config_version).await?;
            }
            Err(error) => {
                work.iter().for_each(|work| work.forget(spine));
                return Err(error);
            }
        }
    }
    Err(StoreError::Busy("the configuration changes faster than events can be matched".into()))
}

/// Plans events from the front of the batch, one at the least, at most [`limits::ACCEPT_DELIVERIES_MAX`]
/// deliveries in all (A6).
fn plan(planner: &Planner<'_>, batch: &[Pending]) -> (Vec<NewEvent>, Vec<Work>) {
    let (mut events, mut work) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    let mut deliveries = 0;
    for pending in batch {
        if deliveries >= limits::ACCEPT_DELIVERIES_MAX {
            break;
        }
        let planned = planner.plan(&pending.draft, pending.event.clone(), pending.hash);
        deliveries += planned.new.deliveries.len();
        events.push(planned.new);
        work.push(planned.work);
    }
    (events, work)
}

fn take_up(
    spine: &Spine,
    accept: &AcceptBatch,
    work: Vec<Work>,
    results: Vec<AcceptResult>,
) -> Vec<(AcceptResult, u32)> {
    let fanouts = accept.events.iter().map(|new| new.deliveries.len() as u32);
    let settle = |((result, work), fanout): ((AcceptResult, Work), u32)| {
        match result {
            AcceptResult::Created => work.queue(spine),
            AcceptResult::Taken(_) => work.forget(spine),
        }
        (result, fanout)
    };
    results.into_iter().zip(work).zip(fanouts).map(settle).collect()
}

fn answer_all(spine: &Spine, batch: Vec<Pending>, results: Vec<(AcceptResult, u32)>) {
    for (pending, (result, fanout)) in batch.into_iter().zip(results) {
        let answer = match result {
            AcceptResult::Created => {
                spine.metrics.event_accepted(pending.event.origin);
                Ok(published(&pending, pending.event.id, pending.event.created_at, fanout, false))
            }
            AcceptResult::Taken(earlier) if earlier.same_content => {
                Ok(published(&pending, earlier.id, earlier.created_at, earlier.fanout as u32, true))
            }
            AcceptResult::Taken(earlier) => Err(PublishError::KeyConflict { earlier: earlier.id }),
        };
        pending.answer(answer);
    }
}

fn published(
    pending: &Pending,
    id: EventId,
    created_at: pombo_domain::clock::Timestamp,
    deliveries: u32,
    repeated: bool,
) -> Published {
    Published {
        id,
        client_key: pending.draft.client_key.clone(),
        kind: pending.draft.kind.clone(),
        tenant: pending.draft.tenant.clone(),
        created_at,
        deliveries,
        repeated,
    }
}
