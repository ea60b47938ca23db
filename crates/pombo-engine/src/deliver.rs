//! Sending: the lease check, the signature, one request, the verdict (docs/protocol.md K2–K4).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use pombo_domain::attempt::{Attempt, AttemptClass, Exchange, Outcome, Phases};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::{self, Decision, Progress, Rules, Verdict};
use pombo_domain::endpoint::HeaderStyle;
use pombo_domain::id::EventId;
use pombo_domain::limits;
use pombo_egress::OutboundRequest;
use pombo_signature::{Signer, standard, x_webhook};
use pombo_store::StoreError;
use pombo_store::flush::{Change, FlushItem};
use pombo_store::sessions::Release;

use crate::answer::Answer;
use crate::catalog::Target;
use crate::flush::Result as FlushResult;
use crate::lanes::{Content, Job};
use crate::returns::{let_go, put_unknown};
use crate::spine::{Spine, rules_of};

/// When a delivery is looked at again whose endpoint has no usable signing secret.
const WITHOUT_SIGNER_AGAIN: Duration = Duration::from_secs(60);
/// Longest pause of the dispatcher without a hint: K4's gate opens by time too.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a delivery waits that could not be sent for a passing reason of this process.
const PUT_OFF: Duration = Duration::from_secs(1);
/// How long it waits where its body cannot be read for a reason that will not pass by itself.
const PUT_OFF_UNREADABLE: Duration = Duration::from_secs(60);

/// Takes jobs from the lanes by turns while slots are free, and sends each in a task of its own. Runs until the
/// engine drains.
pub(crate) async fn dispatch_loop(spine: Arc<Spine>) {
    while !spine.is_draining() {
        let mut took_any = false;
        while spine.in_flight.count() < spine.config.slots
            && spine.may_start()
            && spine.session().is_some_and(|session| session.allows(spine.config.timeout))
        {
            let Some(job) = spine.lanes.next() else { break };
            took_any = true;
            spine.in_flight.add(1);
            tokio::spawn(run(Arc::clone(&spine), job));
        }
        if took_any {
            spine.lanes.drained.notify_waiters();
        }
        tokio::select! {
            () = spine.lanes.ready.notified() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            () = spine.drained() => {}
        }
    }
}

/// One job, whatever happens in it: the slot is freed even if the work panics.
async fn run(spine: Arc<Spine>, job: Job) {
    let (token, endpoint) = (job.token(), job.delivery.endpoint_id);
    let outcome = AssertUnwindSafe(deliver(&spine, job)).catch_unwind().await;
    if outcome.is_err() {
        tracing::error!(delivery.id = %token.id, endpoint.id = %endpoint, "Sending {} panicked; it is released and tried again.", token.id);
        // Counted as a rescue, so that a delivery that always panics ends as dead and not as a loop (S4).
        if let Err(error) = spine.store.release(&[token], Release::Rescue).await {
            spine.note_error(&error);
        }
        let_go(&spine, token);
        spine.signals.due.notify_one();
    }
    spine.in_flight.done(1);
    spine.lanes.finished(endpoint);
}

async fn deliver(spine: &Spine, mut job: Job) {
    let Some(target) = sendable(spine, &job) else { return };
    if job.delivery.rescues >= limits::RESCUES_DEAD {
        let message = "The process ended each time while it was sending this delivery.";
        return settle_unsent(spine, job, &target, AttemptClass::Interrupted, message);
    }
    let content = match content(spine, &mut job).await {
        Ok(Some(content)) => content,
        Ok(None) => {
            let message = "The event's body is not in the database any more.";
            return settle_unsent(spine, job, &target, AttemptClass::BodyMissing, message);
        }
        Err(error) => {
            spine.note_error(&error);
            tracing::warn!(error = %error, delivery.id = %job.token().id, "The body of {} cannot be read: {error}.", job.token().id);
            let wait = if error.is_transient() { PUT_OFF } else { PUT_OFF_UNREADABLE };
            return spine.returns.put(&job, spine.now().plus(wait));
        }
    };
    // S4: what was rescued often is sent with nothing beside it, so that it takes nobody along.
    let (_beside, _nobody_else) = if job.delivery.rescues >= limits::RESCUES_ALONE {
        (None, Some(spine.alone.write().await))
    } else {
        (Some(spine.alone.read().await), None)
    };
    attempt(spine, job, content).await;
}

/// The endpoint as it is now, if the job may be sent to it; else the job is given back.
fn sendable(spine: &Spine, job: &Job) -> Option<Arc<Target>> {
    let Some(target) = spine.catalog().target(job.delivery.endpoint_id).cloned() else {
        put_unknown(spine, job);
        return None;
    };
    let forced = job.manual.as_ref().is_some_and(|manual| manual.force);
    if !target.is_active() && !forced {
        spine.returns.put(job, Timestamp::INFINITY);
        return None;
    }
    Some(target)
}

async fn content(spine: &Spine, job: &mut Job) -> Result<Option<Content>, StoreError> {
    if let Some(content) = job.content.take() {
        return Ok(Some(content));
    }
    let event = (job.delivery.event_id, job.delivery.event_at);
    let mut bodies = spine.store.bodies(&[event]).await?;
    Ok(bodies.pop().map(|body| Content { body: body.body, content_type: body.content_type.into() }))
}

/// The attempt itself. The endpoint is looked at again, for the job may have waited; between the lease check and
/// the write lies only the making of the request (K3).
async fn attempt(spine: &Spine, job: Job, content: Content) {
    let Some(target) = sendable(spine, &job) else { return };
    let timeout = spine.timeout_of(&target.endpoint);
    let Some(session) = spine.session_of(job.token().owner) else {
        // The session is over: whoever finds the row released has it (S2).
        return let_go(spine, job.token());
    };
    if !session.allows(timeout) {
        return spine.returns.put(&job, spine.now().plus(PUT_OFF));
    }
    let started_at = spine.now();
    if target.signers(started_at).is_empty() {
        // Never unsigned. The catalogue said which secret is at fault; rotating it mends this.
        return spine.returns.put(&job, started_at.plus(WITHOUT_SIGNER_AGAIN));
    }
    let headers = headers(spine, &target, job.delivery.event_id, &content, started_at);
    let request = OutboundRequest { url: &target.endpoint.url, headers, body: content.body, timeout };
    let exchange = tokio::select! {
        exchange = spine.egress.send(request) => exchange,
        () = session.ended() => return let_go(spine, job.token()),
    };
    record(spine, job, &target, started_at, exchange);
}

/// The headers of an attempt: content type, user agent, signature, and the endpoint's own.
pub(crate) fn headers(
    spine: &Spine,
    target: &Target,
    event: EventId,
    content: &Content,
    now: Timestamp,
) -> HeaderMap {
    let mut headers = target.headers.clone();
    let mut set = |name: HeaderName, value: &str| match HeaderValue::from_str(value) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(_) => {
            tracing::error!(endpoint.id = %target.endpoint.id, "A value of header {name} cannot be sent.");
        }
    };
    set(header::CONTENT_TYPE, &content.content_type);
    set(header::USER_AGENT, &spine.config.user_agent);
    let signers: Vec<&Signer> = target.signers(now);
    let id = event.to_string();
    let style = target.endpoint.header_style;
    if style != HeaderStyle::XWebhook {
        for (name, value) in standard::headers(&signers, &id, now.as_secs(), &content.body) {
            set(HeaderName::from_static(name), &value);
        }
    }
    if style != HeaderStyle::Standard {
        for (name, value) in x_webhook::headers(&signers, &id, now.as_millis(), &content.body) {
            set(HeaderName::from_static(name), &value);
        }
    }
    headers
}

fn record(spine: &Spine, job: Job, target: &Target, started_at: Timestamp, exchange: Exchange) {
    let now = started_at.plus(exchange.duration);
    let rules = Rules { policy: &target.retry, retry_client_errors: target.endpoint.retry_client_errors };
    let manual = job.manual.as_ref().map(|manual| manual.due_at);
    let progress = Progress { attempts_before: job.delivery.attempts, manual };
    let decision = delivery::decide(rules, progress, &exchange.outcome, now, &mut crate::random::rng());
    spine.metrics.attempt(exchange.outcome.class(), exchange.outcome.status(), exchange.duration);
    spine.lanes.took(job.delivery.endpoint_id, exchange.duration);
    log(&job, &exchange, &decision);
    let until = decision.hold.map(|hold| now.plus(hold));
    if let Some(until) = until {
        spine.returns.put_displaced(spine.lanes.hold(rules_of(target), until));
    }
    let attempt = Attempt { retryable: decision.retryable, ..attempt_of(&job, target, started_at, exchange) };
    push_result(spine, job, attempt, &decision, until);
}

fn log(job: &Job, exchange: &Exchange, decision: &Decision) {
    let delivery = &job.delivery;
    let (class, status) = (exchange.outcome.class().as_str(), exchange.outcome.status());
    let millis = exchange.duration.as_millis() as u64;
    tracing::debug!(
        delivery.id = %delivery.token.id, event.id = %delivery.event_id, endpoint.id = %delivery.endpoint_id,
        class, status, duration_ms = millis, "Attempt {} ended: {class}.", delivery.attempts + 1
    );
    if let Verdict::Dead { .. } = decision.verdict {
        tracing::info!(
            delivery.id = %delivery.token.id, event.id = %delivery.event_id, endpoint.id = %delivery.endpoint_id,
            class, status, "Delivery {} is dead after attempt {}: {class}.", delivery.token.id, delivery.attempts + 1
        );
    }
}

fn attempt_of(job: &Job, target: &Target, started_at: Timestamp, exchange: Exchange) -> Attempt {
    let delivery = &job.delivery;
    let answer = Answer::of(exchange, &target.endpoint);
    Attempt {
        delivery_id: delivery.token.id,
        event_id: delivery.event_id,
        event_at: delivery.event_at,
        endpoint_id: delivery.endpoint_id,
        tenant_id: delivery.tenant_id,
        started_at,
        number: (delivery.attempts + 1) as i16,
        generation: delivery.token.generation,
        status: answer.status,
        class: Some(answer.class),
        message: answer.message,
        duration: answer.duration,
        phases: answer.phases,
        response_body: answer.body,
        response_truncated: answer.truncated,
        settles: None,
        late: false,
        manual: job.manual.is_some(),
        session: delivery.token.owner,
        retryable: false,
    }
}

fn push_result(spine: &Spine, mut job: Job, attempt: Attempt, decision: &Decision, hold: Option<Timestamp>) {
    let (change, disable) = match decision.verdict {
        Verdict::Delivered => (Change::Settle(pombo_domain::attempt::Settlement::Delivered), None),
        Verdict::Dead { disable } => (Change::Settle(pombo_domain::attempt::Settlement::Dead), disable),
        Verdict::Retry { due_at, attempts } => {
            let parks = due_at == Timestamp::INFINITY;
            let not_before = job.delivery.not_before.filter(|at| parks && *at != Timestamp::INFINITY);
            (Change::Reschedule { due_at, not_before, attempts }, None)
        }
    };
    if let Some(answer) = job.manual.as_mut().and_then(|manual| manual.answer.take()) {
        let _ = answer.send(attempt.clone());
    }
    let item = FlushItem {
        token: job.token(),
        attempt,
        kind: job.delivery.kind.clone(),
        delivery_created_at: job.delivery.created_at,
        change,
    };
    spine.flush.push(FlushResult { item, hold, disable });
}

/// Settles a delivery as dead without a request.
fn settle_unsent(spine: &Spine, job: Job, target: &Target, class: AttemptClass, message: &str) {
    let outcome = Outcome::Failure { class, message: message.to_owned() };
    let exchange = Exchange { outcome, phases: Phases::default(), duration: Duration::ZERO };
    let decision = Decision { verdict: Verdict::Dead { disable: None }, hold: None, retryable: false };
    spine.metrics.attempt(class, None, Duration::ZERO);
    log(&job, &exchange, &decision);
    let attempt = attempt_of(&job, target, spine.now(), exchange);
    push_result(spine, job, attempt, &decision, None);
}
