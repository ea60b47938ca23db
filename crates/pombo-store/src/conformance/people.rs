//! What people do (M, P3).

use std::time::Duration;

use pombo_domain::attempt::{AttemptClass, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::{DeliveryStatus, Token};
use pombo_domain::id::DeliveryId;

use super::Database;
use super::scene::{Scene, begin, first, fresh_uuid, person};
use crate::accept::Placement;
use crate::admin::Actor;
use crate::claim::ClaimedDelivery;
use crate::endpoints::StatusChange;
use crate::flush::{Change, FlushResult};
use crate::people::{Cancellation, ManualClaim, Revival};
use crate::reading::DeadFilter;
use crate::sessions::Release;

async fn take(scene: &Scene, id: DeliveryId) -> ClaimedDelivery {
    match scene.store.claim_manually(id, scene.session, &person()).await.expect("answers") {
        ManualClaim::Claimed(claimed) => claimed,
        other => panic!("{other:?}"),
    }
}

async fn revive(scene: &Scene, id: DeliveryId) -> Revival {
    scene.store.revive(id, &person()).await.expect("answers")
}

async fn status(scene: &Scene, id: DeliveryId) -> DeliveryStatus {
    scene.store.delivery(id, None).await.expect("reads").expect("is there").status
}

async fn actions(scene: &Scene) -> Vec<String> {
    let entries = scene.store.audit(None, first(100)).await.expect("lists").items;
    let mut actions: Vec<_> = entries.into_iter().map(|entry| entry.action).collect();
    actions.retain(|action| action.starts_with("delivery."));
    actions
}

/// M1: an unowned live row is taken; the time it waited for is kept in it.
pub async fn a_waiting_row_is_taken_by_a_person(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(600));
    let sent = scene.send(&endpoint, Placement::DueAt(later)).await;
    let claimed = take(&scene, sent.id).await;
    assert_eq!((claimed.not_before, claimed.attempts), (Some(later), 0));
    assert!(claimed.token.generation > sent.token.generation);
    assert_eq!(scene.store.owned(scene.session).await.expect("reads"), [claimed.token]);
    assert_eq!(actions(&scene).await, ["delivery.retry"]);
}

/// M1: a row parked with a time to wait for keeps that time, not that it was parked.
pub async fn a_parked_row_taken_by_a_person_keeps_its_time(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(600));
    let sent = scene.send(&endpoint, Placement::Parked { not_before: Some(later) }).await;
    let claimed = take(&scene, sent.id).await;
    assert_eq!(claimed.not_before, Some(later));
    scene.store.release(&[claimed.token], Release::Rescue).await.expect("releases");
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!(record.due_at, Some(later));
}

/// M1: owned is refused, settled and unknown are not live; neither is audited.
pub async fn only_an_unowned_live_row_is_taken(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let owned = scene.send(&endpoint, Placement::BornClaimed).await;
    let settled = scene.delivered(&endpoint).await;
    let ask = async |id| scene.store.claim_manually(id, scene.session, &person()).await.expect("answers");
    assert_eq!(ask(owned.id).await, ManualClaim::Owned);
    assert_eq!(ask(settled.id).await, ManualClaim::NotLive);
    assert_eq!(ask(DeliveryId(fresh_uuid())).await, ManualClaim::NotLive);
    assert!(actions(&scene).await.is_empty());
}

/// M1: a manual attempt that fails restores the time and leaves the attempt number.
pub async fn a_failed_manual_attempt_leaves_the_schedule(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(600));
    let sent = scene.send(&endpoint, Placement::DueAt(later)).await;
    let claimed = take(&scene, sent.id).await;
    let change = Change::Reschedule { due_at: later, not_before: None, attempts: claimed.attempts };
    let mut item = scene.result_under(&sent, claimed.token, AttemptClass::ServerError, change).await;
    item.attempt.manual = true;
    assert_eq!(scene.flush(item).await, FlushResult::Applied);
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.due_at, record.attempts), (Some(later), 0));
}

/// M2: a dead letter lives again: due now, no attempts, a higher generation, no dead letter.
pub async fn a_dead_letter_is_revived(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.dead(&endpoint).await;
    assert_eq!(revive(&scene, sent.id).await, Revival::Revived);
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Pending);
    let letters = scene.store.dead_letters(&DeadFilter::default(), first(10)).await.expect("lists");
    assert!(letters.items.is_empty());
    let claimed = scene.claim_one().await;
    assert_eq!((claimed.token.id, claimed.attempts, claimed.rescues), (sent.id, 0, 0));
    assert!(claimed.token.generation > sent.token.generation);
    assert_eq!(claimed.event_id, sent.event.id);
    assert_eq!(actions(&scene).await, ["delivery.revive"]);
}

/// M2: reviving twice is reviving once; what was delivered or never was is not dead.
pub async fn only_the_dead_and_the_cancelled_are_revived(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let dead = scene.dead(&endpoint).await;
    assert_eq!(revive(&scene, dead.id).await, Revival::Revived);
    assert_eq!(revive(&scene, dead.id).await, Revival::AlreadyLive);
    let delivered = scene.delivered(&endpoint).await;
    assert_eq!(revive(&scene, delivered.id).await, Revival::NotDead);
    assert_eq!(revive(&scene, DeliveryId(fresh_uuid())).await, Revival::NotDead);
    assert_eq!(actions(&scene).await, ["delivery.revive"]);
}

/// M2: a cancelled delivery lives again too.
pub async fn a_cancelled_delivery_is_revived(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    scene.store.cancel_delivery(sent.id, &person()).await.expect("cancels");
    assert_eq!(revive(&scene, sent.id).await, Revival::Revived);
    let claimed = scene.claim_one().await;
    assert!(claimed.token.generation > sent.token.generation);
    assert_eq!(scene.store.check().await.expect("checks").findings, []);
}

/// M2: what is revived behind a paused endpoint is parked.
pub async fn a_revival_behind_a_paused_endpoint_is_parked(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.dead(&endpoint).await;
    scene.store.set_endpoint_status(endpoint.id, StatusChange::Pause, &person()).await.expect("pauses");
    assert_eq!(revive(&scene, sent.id).await, Revival::Revived);
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.status, record.due_at), (DeliveryStatus::Paused, Some(Timestamp::INFINITY)));
    assert!(scene.claim(10).await.is_empty());
}

/// M2: one terminal record for each run, the last of which counts.
pub async fn each_run_ends_once(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.dead(&endpoint).await;
    revive(&scene, sent.id).await;
    let token = scene.claim_one().await.token;
    let change = Change::Settle(Settlement::Delivered);
    let item = scene.result_under(&sent, token, AttemptClass::Success, change).await;
    assert_eq!(scene.flush(item).await, FlushResult::Applied);
    let ends: Vec<_> = scene
        .store
        .attempts(sent.id)
        .await
        .expect("reads")
        .into_iter()
        .filter_map(|attempt| attempt.settles)
        .collect();
    assert_eq!(ends, [Settlement::Dead, Settlement::Delivered]);
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Delivered);
    let report = scene.store.check().await.expect("checks");
    assert_eq!((report.live, report.settled, report.dead), (0, 1, 0));
    assert_eq!(report.findings, []);
}

/// K1: an old result of an earlier run does not touch the revived row, unless it is the success (K6).
pub async fn an_old_failure_does_not_touch_a_revived_row(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.dead(&endpoint).await;
    revive(&scene, sent.id).await;
    let item = scene.result(&sent, AttemptClass::ServerError, Change::Settle(Settlement::Dead)).await;
    assert_eq!(scene.flush(item).await, FlushResult::Late { settled: false });
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Pending);
    let letters = scene.store.dead_letters(&DeadFilter::default(), first(10)).await.expect("lists");
    assert!(letters.items.is_empty());
}

/// P3: a live delivery is cancelled with the person's reason, owned or not; the result in flight is late.
pub async fn a_live_delivery_is_cancelled(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let waiting = scene.send(&endpoint, Placement::Due).await;
    let in_flight = scene.send(&endpoint, Placement::BornClaimed).await;
    for id in [waiting.id, in_flight.id] {
        let answer = scene.store.cancel_delivery(id, &person()).await.expect("answers");
        assert_eq!(answer, Cancellation::Cancelled);
        let attempts = scene.store.attempts(id).await.expect("reads");
        assert_eq!(attempts[0].message.as_deref(), Some("because"));
        assert_eq!((attempts[0].number, attempts[0].class, attempts[0].manual), (0, None, true));
        assert_eq!(status(&scene, id).await, DeliveryStatus::Cancelled);
    }
    let item = scene.success(&in_flight).await;
    assert_eq!(scene.flush(item).await, FlushResult::Late { settled: false });
    assert_eq!(status(&scene, in_flight.id).await, DeliveryStatus::Cancelled);
    assert_eq!(actions(&scene).await, ["delivery.cancel", "delivery.cancel"]);
}

/// P3: where the person says no reason, none is made up.
pub async fn a_cancellation_without_reason_has_none(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let silent = Actor { reason: None, ..person() };
    scene.store.cancel_delivery(sent.id, &silent).await.expect("cancels");
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert_eq!((attempts[0].message.as_deref(), attempts[0].settles), (None, Some(Settlement::Cancelled)));
}

/// P3: what is settled or unknown cannot be cancelled.
pub async fn only_live_deliveries_are_cancelled(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let settled = scene.delivered(&endpoint).await;
    for id in [settled.id, DeliveryId(fresh_uuid())] {
        let answer = scene.store.cancel_delivery(id, &person()).await.expect("answers");
        assert_eq!(answer, Cancellation::NotLive);
    }
    assert!(actions(&scene).await.is_empty());
}

/// A cancellation stands after every attempt of its delivery, however the clocks stood.
pub async fn a_cancellation_is_the_newest_record(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let mut item = scene.retry(&sent, scene.now().await).await;
    item.attempt.started_at = scene.now().await.plus(Duration::from_secs(5));
    scene.flush(item).await;
    scene.store.cancel_delivery(sent.id, &person()).await.expect("cancels");
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[1].settles, Some(Settlement::Cancelled));
}

/// Audit entries name who, why, what and whose, and only the tenant's are shown to it.
pub async fn acts_are_audited_with_their_reason(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    scene.store.cancel_delivery(sent.id, &person()).await.expect("cancels");
    scene.endpoint("other").await;
    let mine = scene.store.audit(Some(endpoint.tenant_id), first(10)).await.expect("lists").items;
    assert_eq!(mine.len(), 2);
    assert_eq!((mine[0].action.as_str(), &mine[0].subject), ("delivery.cancel", &sent.id.to_string()));
    assert_eq!((mine[0].actor.as_str(), mine[0].reason.as_deref()), ("key_test", Some("because")));
    assert_eq!(mine[0].tenant_id, Some(endpoint.tenant_id));
    assert_eq!(scene.store.audit(None, first(10)).await.expect("lists").items.len(), 3);
}

/// Tokens of the row before a person took it do not match any more (K1).
pub async fn a_manual_claim_ends_older_tokens(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let claimed = take(&scene, sent.id).await;
    let older = Token { generation: claimed.token.generation - 1, ..claimed.token };
    let change = Change::Settle(Settlement::Delivered);
    let item = scene.result_under(&sent, older, AttemptClass::Success, change).await;
    assert_eq!(scene.flush(item).await, FlushResult::Late { settled: false });
    assert_eq!(scene.store.owned(scene.session).await.expect("reads"), [claimed.token]);
}
