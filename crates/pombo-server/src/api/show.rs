//! From what the domain and the store say to the JSON of the API.

use std::collections::BTreeMap;
use std::time::Duration;

use pombo_domain::attempt::{Attempt, AttemptClass};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::{DeliveryStatus, is_retryable};
use pombo_domain::endpoint::Endpoint;
use pombo_domain::event::ResourceVersion;
use pombo_domain::event_type::{Pattern, Subscription};
use pombo_domain::retry::RetryDocument;
use pombo_store::admin::AuditEntry;
use pombo_store::reading::{DeadLetter, DeliveryRecord, EventRecord};

use super::endpoint_settings::HIDDEN;
use super::why;
use crate::shapes;

pub(super) fn event(record: EventRecord) -> shapes::Event {
    shapes::Event {
        id: record.id,
        client_id: record.client_key,
        kind: record.kind,
        tenant: record.tenant,
        origin: record.origin.as_str().to_owned(),
        content_type: record.content_type,
        body_bytes: record.body_bytes,
        ordering_key: record.ordering_key,
        resource_version: record.resource_version.map(ResourceVersion::get),
        endpoints: record.targets,
        created_at: record.created_at,
        delivery_count: u32::try_from(record.fanout).unwrap_or(0),
    }
}

pub(super) fn endpoint(endpoint: Endpoint) -> shapes::Endpoint {
    let settings = endpoint.settings;
    let hidden = |header: pombo_domain::endpoint::CustomHeader| (header.name, HIDDEN.to_owned());
    shapes::Endpoint {
        id: endpoint.id,
        tenant: endpoint.tenant,
        url: settings.url.as_str().to_owned(),
        status: endpoint.status.as_str().to_owned(),
        disabled_reason: endpoint.disabled_reason.map(|reason| reason.as_str().to_owned()),
        description: settings.description,
        event_types: match &settings.subscription {
            Subscription::All => None,
            Subscription::Patterns(patterns) => Some(patterns.iter().map(Pattern::to_string).collect()),
        },
        headers: settings.headers.into_iter().map(hidden).collect::<BTreeMap<_, _>>(),
        signature: "v1".to_owned(),
        header_style: settings.header_style.as_str().to_owned(),
        retry: settings.retry.as_ref().map(RetryDocument::from),
        timeout_ms: settings.timeout.map(|timeout| timeout.as_millis() as u32),
        max_concurrency: settings.max_concurrency,
        retry_client_errors: settings.retry_client_errors,
        store_responses: settings.store_responses.as_str().to_owned(),
        metadata: settings.metadata,
        created_at: endpoint.created_at,
        updated_at: endpoint.updated_at,
    }
}

/// A delivery; `endpoint` is its endpoint where [`why::needs_endpoint`] says so.
pub(super) fn delivery(
    record: DeliveryRecord,
    endpoint: Option<&Endpoint>,
    now: Timestamp,
) -> shapes::Delivery {
    let last_class = record.last_class.filter(|class| *class != AttemptClass::Success);
    shapes::Delivery {
        next_attempt_at: why::next_attempt_at(&record, now),
        why: why::why(&record, endpoint, now),
        last_error: last_class.map(|class| last_error(&record, class)),
        delivered_at: record.settled_at.filter(|_| record.status == DeliveryStatus::Delivered),
        id: record.id,
        event_id: record.event_id,
        endpoint_id: record.endpoint_id,
        tenant: record.tenant,
        kind: record.kind,
        status: record.status.as_str().to_owned(),
        attempts: record.attempts,
        last_status: record.last_status,
        created_at: record.created_at,
    }
}

fn last_error(record: &DeliveryRecord, class: AttemptClass) -> shapes::LastError {
    let message = message(class, record.last_message.as_deref())
        .or_else(|| record.last_status.map(|status| format!("the receiver answered {status}")));
    shapes::LastError {
        class: class.as_str().to_owned(),
        retryable: is_retryable(class, record.last_status, false),
        message: message.unwrap_or_else(|| class.as_str().replace('_', " ")),
    }
}

/// What may be said of a failure. Of a target that the address policy refused nothing is: what a name resolves
/// to inside the installation's network is not the tenant's to know.
fn message(class: AttemptClass, kept: Option<&str>) -> Option<String> {
    match class {
        AttemptClass::BlockedAddress => Some("this target is not allowed".to_owned()),
        _ => kept.map(str::to_owned),
    }
}

pub(super) fn attempt(attempt: Attempt) -> shapes::Attempt {
    let kept = attempt.message.as_deref();
    shapes::Attempt {
        message: attempt.class.map_or_else(|| kept.map(str::to_owned), |class| message(class, kept)),
        n: attempt.number,
        started_at: attempt.started_at,
        duration_ms: attempt.duration.as_millis() as u64,
        phases: shapes::Phases {
            dns_ms: attempt.phases.dns.map(millis),
            connect_ms: attempt.phases.connect.map(millis),
            tls_ms: attempt.phases.tls.map(millis),
            first_byte_ms: attempt.phases.first_byte.map(millis),
            body_ms: attempt.phases.body.map(millis),
        },
        status: attempt.status,
        class: attempt.class.map(|class| class.as_str().to_owned()),
        retryable: attempt.retryable,
        response_body: attempt.response_body.map(|body| String::from_utf8_lossy(&body).into_owned()),
        response_truncated: attempt.response_truncated,
        settles: attempt.settles.map(|end| end.as_str().to_owned()),
        manual: attempt.manual,
        late: attempt.late,
        node: attempt.session.to_string(),
    }
}

fn millis(span: Duration) -> f64 {
    span.as_micros() as f64 / 1000.0
}

pub(super) fn dead_letter(dead: DeadLetter) -> shapes::DeadLetter {
    shapes::DeadLetter {
        delivery_id: dead.delivery_id,
        event_id: dead.event_id,
        endpoint_id: dead.endpoint_id,
        tenant: dead.tenant,
        kind: dead.kind,
        died_at: dead.died_at,
        class: dead.class.as_str().to_owned(),
        retryable: is_retryable(dead.class, dead.status, false),
        status: dead.status,
    }
}

pub(super) fn audit_entry(entry: AuditEntry) -> shapes::AuditEntry {
    shapes::AuditEntry {
        id: entry.id,
        at: entry.at,
        actor: entry.actor,
        action: entry.action,
        subject: entry.subject,
        tenant_id: entry.tenant_id,
        reason: entry.reason,
    }
}
