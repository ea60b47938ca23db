//! Accepting events from the API: one committer, one statement per batch (docs/protocol.md, rules A).

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use pombo_domain::event::{Draft, Event, Identity, Origin};
use pombo_domain::id::{EventId, TenantId};
use pombo_domain::limits;
use pombo_store::StoreError;
use pombo_store::accept::{AcceptBatch, AcceptResult, Accepted};

use crate::handle::{PublishError, Published};
use crate::plan::{Planned, Planner, content_hash};
use crate::spine::Spine;

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
/// batch gathers; that is the whole of group commit. Ends when every sender is gone or the engine drains.
pub(crate) async fn commit_loop(spine: Arc<Spine>, mut queue: mpsc::Receiver<Pending>) {
    loop {
        let first = tokio::select! {
            pending = queue.recv() => pending,
            () = spine.drained() => None,
        };
        let Some(first) = first else { break };
        let mut batch = vec![first];
        while batch.len() < limits::ACCEPT_EVENTS_MAX {
            match queue.try_recv() {
                Ok(pending) => batch.push(pending),
                Err(_) => break,
            }
        }
        commit(&spine, batch).await;
    }
    // What was handed over before the drain is still taken; what comes later finds the queue closed.
    queue.close();
    while let Some(pending) = queue.recv().await {
        commit(&spine, vec![pending]).await;
    }
}

/// Commits a batch. A batch that the database refuses is halved until the item is found (A4); the halves are
/// worked through from a stack, so depth is bounded by the batch.
async fn commit(spine: &Spine, batch: Vec<Pending>) {
    let mut stack = vec![batch];
    while let Some(mut batch) = stack.pop() {
        refuse_unknown_targets(spine, &mut batch).await;
        if batch.is_empty() {
            continue;
        }
        let rest = split_by_deliveries(spine, &mut batch);
        if !rest.is_empty() {
            stack.push(rest);
        }
        match commit_once(spine, &batch).await {
            Ok(results) => answer_all(spine, batch, results),
            Err(StoreError::Rejected(error)) if batch.len() > 1 => {
                tracing::debug!(error = %error, "A batch of {} events is split to find the one refused.", batch.len());
                let second = batch.split_off(batch.len() / 2);
                stack.push(second);
                stack.push(batch);
            }
            Err(error) => {
                spine.note_error(&error);
                let refusal = refusal(&error);
                batch.into_iter().for_each(|pending| pending.answer(Err(refusal.clone())));
            }
        }
    }
}

fn refusal(error: &StoreError) -> PublishError {
    match error {
        StoreError::OutcomeUnknown(_) => PublishError::OutcomeUnknown,
        StoreError::Rejected(cause) => {
            tracing::error!(error = %cause, "The database refuses an event that passed every check.");
            PublishError::Rejected
        }
        error => {
            tracing::warn!(error = %error, "Events cannot be accepted: {error}.");
            PublishError::Unavailable
        }
    }
}

/// Events that name an endpoint the tenant does not have are refused; the database is asked first, for the
/// endpoint may have been made a moment ago by another process.
async fn refuse_unknown_targets(spine: &Spine, batch: &mut Vec<Pending>) {
    if batch.iter().all(|pending| pending.draft.targets.is_none()) {
        return;
    }
    let known = spine.catalog().version;
    if let Err(error) = spine.refresh_catalog(known + 1).await {
        spine.note_error(&error);
    }
    let Some(planner) = Planner::new(spine) else { return };
    let mut index = 0;
    while index < batch.len() {
        let draft = &batch[index].draft;
        let unknown = draft
            .targets
            .as_ref()
            .and_then(|targets| planner.unknown_target(TenantId::of(&draft.tenant), targets));
        match unknown {
            Some(target) => batch.remove(index).answer(Err(PublishError::UnknownTarget(target))),
            None => index += 1,
        }
    }
}

/// At most [`limits::ACCEPT_DELIVERIES_MAX`] deliveries per transaction (A6), one event at the least.
fn split_by_deliveries(spine: &Spine, batch: &mut Vec<Pending>) -> Vec<Pending> {
    let catalog = spine.catalog();
    let mut deliveries = 0;
    let fits = batch.iter().position(|pending| {
        deliveries += catalog.of_tenant(pending.event.tenant_id).len();
        deliveries > limits::ACCEPT_DELIVERIES_MAX
    });
    match fits {
        Some(index) if batch.len() > 1 => batch.split_off(index.max(1)),
        _ => Vec::new(),
    }
}

/// One try after another while the configuration moves on under the batch. Gives each result with the number
/// of deliveries that were planned.
async fn commit_once(spine: &Spine, batch: &[Pending]) -> Result<Vec<(AcceptResult, u32)>, StoreError> {
    for _ in 0..STALE_MAX {
        let Some(planner) = Planner::new(spine) else {
            return Err(StoreError::Unavailable("this process holds no session yet".into()));
        };
        let planned: Vec<Planned> = batch
            .iter()
            .map(|pending| planner.plan(&pending.draft, pending.event.clone(), pending.hash))
            .collect();
        let (events, work): (Vec<_>, Vec<_>) =
            planned.into_iter().map(|planned| (planned.new, (planned.jobs, planned.parked))).unzip();
        let accept =
            AcceptBatch { events, config_version: planner.catalog.version, session: planner.session };
        let accepted = spine.store.accept(&accept).await;
        let planned = accept.events.into_iter().zip(work);
        let planned: Vec<Planned> =
            planned.map(|(new, (jobs, parked))| Planned { new, jobs, parked }).collect();
        match accepted {
            Ok(Accepted::Committed(results)) => {
                let settle = |(planned, result): (Planned, AcceptResult)| {
                    let fanout = planned.new.deliveries.len() as u32;
                    match result {
                        AcceptResult::Created => planned.queue(spine),
                        AcceptResult::Taken(_) => planned.forget(spine),
                    }
                    (result, fanout)
                };
                return Ok(planned.into_iter().zip(results).map(settle).collect());
            }
            Ok(Accepted::Stale { config_version }) => {
                planned.iter().for_each(|planned| planned.forget(spine));
                spine.refresh_catalog(config_version).await?;
            }
            Err(error) => {
                planned.iter().for_each(|planned| planned.forget(spine));
                return Err(error);
            }
        }
    }
    Err(StoreError::Busy("the configuration changes faster than events can be matched".into()))
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
