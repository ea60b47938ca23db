//! Why a live delivery is not being sent right now, and when it will be.

use std::time::Duration;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::{DeliveryStatus, WhyCode};
use pombo_domain::endpoint::{Endpoint, EndpointStatus};
use pombo_domain::retry::Backoff;
use pombo_store::reading::DeliveryRecord;

use crate::shapes::Why;

/// Whether [`why`] needs the endpoint to tell paused from disabled, or a first delay from `deliverAt`.
pub(super) fn needs_endpoint(record: &DeliveryRecord, now: Timestamp) -> bool {
    match record.status {
        DeliveryStatus::Paused => true,
        DeliveryStatus::Pending => record.due_at.is_some_and(|at| at > now && at != Timestamp::INFINITY),
        _ => false,
    }
}

/// When it is tried next, as far as that is known: of a parked row it is not.
pub(super) fn next_attempt_at(record: &DeliveryRecord, now: Timestamp) -> Option<Timestamp> {
    let is_waiting = matches!(record.status, DeliveryStatus::Pending | DeliveryStatus::Retrying);
    let due_at = record.due_at.filter(|at| is_waiting && *at != Timestamp::INFINITY)?;
    Some(hold(record, now).map_or(due_at, |hold| due_at.max(hold)))
}

/// `None` for a settled delivery.
pub(super) fn why(record: &DeliveryRecord, endpoint: Option<&Endpoint>, now: Timestamp) -> Option<Why> {
    let (code, until) = match record.status {
        DeliveryStatus::Sending => (WhyCode::InLane, None),
        DeliveryStatus::Paused => (paused_by(endpoint), None),
        DeliveryStatus::Pending | DeliveryStatus::Retrying => waiting_for(record, endpoint, now),
        DeliveryStatus::Delivered | DeliveryStatus::Dead | DeliveryStatus::Cancelled => return None,
    };
    Some(Why { code: code.as_str().to_owned(), until, text: code.text().to_owned() })
}

fn paused_by(endpoint: Option<&Endpoint>) -> WhyCode {
    match endpoint.map(|endpoint| endpoint.status) {
        Some(EndpointStatus::Disabled) => WhyCode::EndpointDisabled,
        // Deleted, or resumed since the delivery was read: it was paused when it was.
        _ => WhyCode::EndpointPaused,
    }
}

fn waiting_for(
    record: &DeliveryRecord,
    endpoint: Option<&Endpoint>,
    now: Timestamp,
) -> (WhyCode, Option<Timestamp>) {
    let due_at = record.due_at.unwrap_or(now);
    if let Some(hold) = hold(record, now)
        && (due_at <= hold || due_at == Timestamp::INFINITY)
    {
        return (WhyCode::RetryAfter, Some(hold));
    }
    if due_at == Timestamp::INFINITY {
        return match record.not_before.filter(|at| *at > now && *at != Timestamp::INFINITY) {
            Some(until) => (later(record, endpoint, until), Some(until)),
            None => (WhyCode::LaneFull, None),
        };
    }
    if due_at > now { (later(record, endpoint, due_at), Some(due_at)) } else { (WhyCode::InLane, None) }
}

/// Before the first attempt a later time is the caller's `deliverAt`, unless the schedule's own first delay
/// (with its largest jitter) explains it.
fn later(record: &DeliveryRecord, endpoint: Option<&Endpoint>, until: Timestamp) -> WhyCode {
    if record.attempts > 0 || record.status == DeliveryStatus::Retrying {
        return WhyCode::DueLater;
    }
    let policy = endpoint.and_then(|endpoint| endpoint.retry.as_ref());
    let first = match policy.map(|policy| &policy.backoff) {
        Some(Backoff::Schedule(delays)) => delays.first().copied().unwrap_or_default(),
        _ => Duration::ZERO,
    };
    if until <= record.created_at.plus(first * 2) { WhyCode::DueLater } else { WhyCode::DeliverAt }
}

fn hold(record: &DeliveryRecord, now: Timestamp) -> Option<Timestamp> {
    record.hold_until.filter(|until| *until > now)
}

#[cfg(test)]
mod tests {
    use pombo_domain::id::{DeliveryId, EndpointId, EventId, TenantId};
    use uuid::Uuid;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_764_534_120);

    fn at(seconds: u64) -> Timestamp {
        NOW.plus(Duration::from_secs(seconds))
    }

    fn record(status: DeliveryStatus, attempts: u16, due_at: Option<Timestamp>) -> DeliveryRecord {
        let id = Uuid::from_u128(7);
        DeliveryRecord {
            id: DeliveryId(id),
            event_id: EventId(id),
            event_at: NOW,
            endpoint_id: EndpointId(id),
            tenant_id: TenantId(id),
            tenant: "acme".parse().expect("a tenant name"),
            kind: "order.paid".parse().expect("a type"),
            status,
            attempts,
            due_at,
            not_before: None,
            hold_until: None,
            last_status: None,
            last_class: None,
            last_message: None,
            created_at: NOW,
            settled_at: None,
        }
    }

    fn code(record: &DeliveryRecord) -> (String, Option<Timestamp>) {
        let why = why(record, None, NOW).expect("it waits");
        (why.code, why.until)
    }

    #[test]
    fn every_reason_to_wait_has_its_code() {
        use DeliveryStatus::{Paused, Pending, Retrying, Sending};
        let parked = Some(Timestamp::INFINITY);
        assert_eq!(code(&record(Sending, 0, None)), ("in_lane".into(), None));
        assert_eq!(code(&record(Pending, 0, Some(NOW))), ("in_lane".into(), None));
        assert_eq!(code(&record(Pending, 0, parked)), ("lane_full".into(), None));
        assert_eq!(code(&record(Pending, 0, Some(at(60)))), ("deliver_at".into(), Some(at(60))));
        assert_eq!(code(&record(Retrying, 1, Some(at(60)))), ("due_later".into(), Some(at(60))));
        assert_eq!(code(&record(Paused, 1, parked)), ("endpoint_paused".into(), None));
        let held = DeliveryRecord { hold_until: Some(at(90)), ..record(Retrying, 1, Some(at(60))) };
        assert_eq!(code(&held), ("retry_after".into(), Some(at(90))));
        assert_eq!(next_attempt_at(&held, NOW), Some(at(90)));
        let over = DeliveryRecord { hold_until: Some(at(0)), ..record(Retrying, 1, Some(at(60))) };
        assert_eq!(code(&over), ("due_later".into(), Some(at(60))));
        let parked_later = DeliveryRecord { not_before: Some(at(30)), ..record(Pending, 0, parked) };
        assert_eq!(code(&parked_later), ("deliver_at".into(), Some(at(30))));
        assert_eq!(next_attempt_at(&parked_later, NOW), None);
    }

    #[test]
    fn settled_deliveries_wait_for_nothing() {
        for status in [DeliveryStatus::Delivered, DeliveryStatus::Dead, DeliveryStatus::Cancelled] {
            let settled = record(status, 3, None);
            assert_eq!(why(&settled, None, NOW), None);
            assert_eq!(next_attempt_at(&settled, NOW), None);
        }
    }
}
