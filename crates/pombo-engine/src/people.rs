//! What people ask for: a test, a retry (docs/protocol.md M1, M2).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use pombo_domain::attempt::{Attempt, Exchange};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::{DeliveryStatus, Token, is_retryable};
use pombo_domain::event::{BodyParts, JSON_CONTENT_TYPE, build_body};
use pombo_domain::event_type::EventType;
use pombo_domain::id::{DeliveryId, EndpointId, EventId};
use pombo_egress::OutboundRequest;
use pombo_store::admin::Actor;
use pombo_store::flush::{Change, FlushItem};
use pombo_store::people::{ManualClaim, Revival};
use pombo_store::reading::DeliveryRecord;

use crate::answer::Answer;
use crate::deliver::headers;
use crate::flush::Result as FlushResult;
use crate::handle::{ActError, Retried};
use crate::holdings::Entered;
use crate::lanes::{Content, Job, Manual};
use crate::returns::put_unknown;
use crate::session::Session;
use crate::spine::{Spine, rules_of};

/// How long a person waits beyond the attempt's own deadline before the answer says "not now".
const MANUAL_WAIT_EXTRA: Duration = Duration::from_secs(5);

/// Sends `pombo.test` to an endpoint, whatever its status. The event is not kept: nothing happened.
pub(crate) async fn send_test(spine: &Spine, endpoint: EndpointId) -> Result<Attempt, ActError> {
    if spine.is_draining() {
        return Err(ActError::NotSending);
    }
    spine.refresh_catalog_now().await?;
    let target = spine.catalog().target(endpoint).cloned().ok_or(ActError::NotFound)?;
    let now = spine.now();
    let event = EventId::new(now, crate::random::id_bytes());
    let kind = EventType::test();
    let data = br#"{"message":"A test of this endpoint, asked for by a person."}"#;
    let parts = BodyParts { id: event, kind: &kind, created_at: now, data, resource_version: None };
    let content = Content { body: build_body(parts), content_type: JSON_CONTENT_TYPE.into() };
    let exchange = exchange(spine, &target, event, &content, now).await?;
    Ok(attempt_of(
        spine,
        &Settled { endpoint_id: endpoint, event_id: event, event_at: now, target: &target },
        now,
        exchange,
    ))
}

async fn exchange(
    spine: &Spine,
    target: &crate::catalog::Target,
    event: EventId,
    content: &Content,
    now: Timestamp,
) -> Result<Exchange, ActError> {
    if target.signers(now).is_empty() {
        return Err(ActError::NotSending);
    }
    let headers = headers(spine, target, event, content, now);
    let timeout = spine.timeout_of(&target.endpoint);
    let body: Bytes = content.body.clone();
    // Asked for by people, but still requests: they take slots, and wait for nobody (K4).
    let Some(_slot) = Slot::take(spine) else { return Err(ActError::NotSending) };
    Ok(spine.egress.send(OutboundRequest { url: &target.endpoint.url, headers, body, timeout }).await)
}

/// A slot, given back when the person's request ends, also when the person goes away in the middle of it.
struct Slot<'a>(&'a Spine);

impl<'a> Slot<'a> {
    fn take(spine: &'a Spine) -> Option<Self> {
        if spine.in_flight.count() >= spine.config.slots || !spine.may_start() {
            return None;
        }
        spine.in_flight.add(1);
        Some(Self(spine))
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.in_flight.done(1);
    }
}

/// An attempt beside the walk: of a test, or of a delivery that is settled already.
struct Settled<'a> {
    endpoint_id: EndpointId,
    event_id: EventId,
    event_at: Timestamp,
    target: &'a crate::catalog::Target,
}

fn attempt_of(spine: &Spine, of: &Settled<'_>, started_at: Timestamp, exchange: Exchange) -> Attempt {
    let endpoint = &of.target.endpoint;
    let answer = Answer::of(exchange, endpoint);
    Attempt {
        delivery_id: DeliveryId::derive(of.event_id, of.event_at, of.endpoint_id),
        event_id: of.event_id,
        event_at: of.event_at,
        endpoint_id: of.endpoint_id,
        tenant_id: endpoint.tenant_id,
        started_at,
        number: 1,
        generation: 0,
        status: answer.status,
        class: Some(answer.class),
        message: answer.message,
        duration: answer.duration,
        phases: answer.phases,
        response_body: answer.body,
        response_truncated: answer.truncated,
        settles: None,
        late: false,
        manual: true,
        session: spine.session().map_or(pombo_domain::id::SessionId(0), |session| session.id),
        retryable: is_retryable(answer.class, answer.status, endpoint.retry_client_errors),
    }
}

/// Tries a delivery now, by its state.
pub(crate) async fn retry(
    spine: &Spine,
    id: DeliveryId,
    actor: &Actor,
    force: bool,
) -> Result<Retried, ActError> {
    let record = spine.store.delivery(id, None).await?.ok_or(ActError::NotFound)?;
    spine.refresh_catalog_now().await?;
    let catalog = spine.catalog();
    let target = catalog.target(record.endpoint_id).ok_or(ActError::EndpointDeleted)?;
    if !target.is_active() && !force {
        return Err(ActError::EndpointNotActive);
    }
    spine.metrics.manual("retry");
    match record.status {
        DeliveryStatus::Dead | DeliveryStatus::Cancelled => revive(spine, id, actor).await,
        DeliveryStatus::Delivered => send_again(spine, &record, target).await,
        _ => match attempt_live(spine, id, actor, force).await? {
            Some(attempt) => Ok(Retried::Attempted(Box::new(attempt))),
            // It was settled between the look and the claim; its state now decides.
            None => Err(ActError::BeingSent),
        },
    }
}

async fn revive(spine: &Spine, id: DeliveryId, actor: &Actor) -> Result<Retried, ActError> {
    match spine.store.revive(id, actor).await? {
        Revival::Revived => {
            spine.signals.due.notify_one();
            Ok(Retried::Revived)
        }
        Revival::AlreadyLive => Err(ActError::BeingSent),
        Revival::NotDead => Err(ActError::NotFound),
    }
}

/// The session, where this process may send: it holds a lease, does not drain, and results are being written (K4).
fn sending_session(spine: &Spine) -> Result<Arc<Session>, ActError> {
    let may_send = !spine.is_draining() && spine.may_start();
    spine.session().filter(|session| may_send && session.allows(Duration::ZERO)).ok_or(ActError::NotSending)
}

/// One manual attempt of a waiting or parked delivery (M1): claimed like any other, so that nobody sends it
/// beside us, and put in front of its lane.
async fn attempt_live(
    spine: &Spine,
    id: DeliveryId,
    actor: &Actor,
    force: bool,
) -> Result<Option<Attempt>, ActError> {
    let session = sending_session(spine)?;
    let (answer, receiver) = oneshot::channel();
    let outstanding = spine.claiming.lock().await;
    let claimed = match spine.store.claim_manually(id, session.id, actor).await? {
        ManualClaim::Owned => return Err(ActError::BeingSent),
        ManualClaim::NotLive => return Ok(None),
        ManualClaim::Claimed(claimed) => claimed,
    };
    let (endpoint, due_at) = (claimed.endpoint_id, claimed.not_before.unwrap_or(spine.now()));
    let manual = Some(Manual { due_at, answer: Some(answer), force });
    let entered = spine.holdings.enter(Box::new(Job { delivery: claimed, content: None, manual }));
    drop(outstanding);
    let catalog = spine.catalog();
    let target = catalog.target(endpoint);
    match (entered, target) {
        (Entered::Waits, _) => {}
        (Entered::Fresh(job), Some(target)) => {
            let displaced = spine.lanes.push_claimed(vec![(rules_of(target), *job)], spine.now());
            spine.returns.put_displaced(displaced);
        }
        (Entered::Fresh(job), None) => put_unknown(spine, &job),
    }
    let target = target.ok_or(ActError::EndpointDeleted)?;
    let wait = spine.timeout_of(&target.endpoint) + MANUAL_WAIT_EXTRA;
    match tokio::time::timeout(wait, receiver).await {
        Ok(Ok(attempt)) => Ok(Some(attempt)),
        // It stays queued and is made as soon as it may; only the person does not wait longer.
        _ => Err(ActError::NotSending),
    }
}

/// One manual attempt of a delivered delivery: its failure changes nothing, it is only recorded.
async fn send_again(
    spine: &Spine,
    record: &DeliveryRecord,
    target: &crate::catalog::Target,
) -> Result<Retried, ActError> {
    let bodies = spine.store.bodies(&[(record.event_id, record.event_at)]).await?;
    let body = bodies.into_iter().next().ok_or(ActError::BodyMissing)?;
    let content = Content { body: body.body, content_type: body.content_type.into() };
    let session = sending_session(spine)?;
    let now = spine.now();
    let exchange = exchange(spine, target, record.event_id, &content, now).await?;
    let of = Settled {
        endpoint_id: record.endpoint_id,
        event_id: record.event_id,
        event_at: record.event_at,
        target,
    };
    let mut attempt = attempt_of(spine, &of, now, exchange);
    attempt.number = record.attempts.saturating_add(1) as i16;
    spine.flush.push(FlushResult {
        item: FlushItem {
            token: Token { id: record.id, owner: session.id, generation: 0 },
            attempt: attempt.clone(),
            kind: record.kind.clone(),
            delivery_created_at: record.created_at,
            change: Change::RecordOnly,
        },
        hold: None,
        disable: None,
    });
    Ok(Retried::Attempted(Box::new(attempt)))
}
