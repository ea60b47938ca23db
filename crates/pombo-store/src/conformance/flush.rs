//! Writing results (K).

use std::time::Duration;

use pombo_domain::attempt::{AttemptClass, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::{DeliveryStatus, Token};
use pombo_domain::endpoint::{DisabledReason, EndpointStatus};
use pombo_domain::id::SessionId;

use super::Database;
use super::scene::{Scene, begin, first, person};
use crate::accept::Placement;
use crate::endpoints::StatusChange;
use crate::flush::{Change, FlushBatch, FlushResult};
use crate::page::PageRequest;
use crate::reading::DeadFilter;
use crate::sessions::Release;

const LATE: FlushResult = FlushResult::Late { settled: false };

async fn status(scene: &Scene, id: pombo_domain::id::DeliveryId) -> DeliveryStatus {
    scene.store.delivery(id, None).await.expect("reads").expect("is there").status
}

async fn dead_letters(scene: &Scene) -> Vec<crate::reading::DeadLetter> {
    scene.store.dead_letters(&DeadFilter::default(), first(50)).await.expect("lists").items
}

/// A success removes the live row; the attempt is the final record.
pub async fn a_success_settles(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let item = scene.success(&sent).await;
    assert_eq!(scene.flush(item.clone()).await, FlushResult::Applied);
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.status, record.attempts), (DeliveryStatus::Delivered, 1));
    assert_eq!((record.last_status, record.last_class), (Some(204), Some(AttemptClass::Success)));
    assert!(record.settled_at.is_some());
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].settles, Some(Settlement::Delivered));
    assert!(!attempts[0].late);
    assert!(scene.store.owned(scene.session).await.expect("reads").is_empty());
}

/// An attempt reads back as it was written.
pub async fn an_attempt_is_kept_whole(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let mut item = scene.retry(&sent, scene.now().await).await;
    item.attempt.message = Some("connection refused ☂".to_owned());
    item.attempt.response_truncated = true;
    item.attempt.phases.dns = Some(Duration::from_micros(1));
    item.attempt.phases.tls = Some(Duration::ZERO);
    item.attempt.phases.first_byte = Some(Duration::from_secs(9));
    item.attempt.manual = true;
    let written = item.attempt.clone();
    scene.flush(item).await;
    assert_eq!(scene.store.attempts(sent.id).await.expect("reads"), [written]);
}

/// A retry gives the row back under a new generation, due when asked, with its rescues forgotten.
pub async fn a_retry_waits_for_its_time(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let due_at = scene.now().await.plus(Duration::from_secs(30));
    let item = scene.retry(&sent, due_at).await;
    assert_eq!(scene.flush(item).await, FlushResult::Applied);
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.status, record.due_at), (DeliveryStatus::Retrying, Some(due_at)));
    assert_eq!((record.attempts, record.last_status), (1, Some(503)));
    assert_eq!(record.last_class, Some(AttemptClass::ServerError));
    assert!(scene.claim(10).await.is_empty());
}

/// C2: a retry that was due long ago (the database was away) is due now, above every floor.
pub async fn a_late_written_retry_is_due_now(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let now = scene.now().await;
    let item = scene.retry(&sent, now.minus(Duration::from_secs(300))).await;
    scene.flush(item).await;
    let floor = Some(now.minus(Duration::from_secs(30)));
    assert_eq!(scene.claim_of((0..256).collect(), floor, 10).await.deliveries.len(), 1);
}

/// A dead delivery has a dead letter with the class and status of its last attempt.
pub async fn a_dead_delivery_is_a_dead_letter(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.dead(&endpoint).await;
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Dead);
    let letters = dead_letters(&scene).await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].delivery_id, letters[0].event_id), (sent.id, sent.event.id));
    assert_eq!((letters[0].class, letters[0].status), (AttemptClass::ServerError, Some(503)));
    assert_eq!((letters[0].tenant.as_str(), letters[0].endpoint_id), ("acme", endpoint.id));
}

/// K7: the same batch again writes nothing twice and takes nothing back.
pub async fn a_repeated_flush_changes_nothing(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut items = Vec::new();
    let mut ids = Vec::new();
    for end in [Settlement::Delivered, Settlement::Dead] {
        let sent = scene.send(&endpoint, Placement::BornClaimed).await;
        let class =
            if end == Settlement::Delivered { AttemptClass::Success } else { AttemptClass::ServerError };
        items.push(scene.result(&sent, class, Change::Settle(end)).await);
        ids.push(sent.id);
    }
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    items.push(scene.retry(&sent, scene.now().await.plus(Duration::from_secs(60))).await);
    ids.push(sent.id);
    let batch = FlushBatch { items, ..FlushBatch::default() };
    let results = scene.store.flush(&batch).await.expect("flushes");
    assert_eq!(results, [FlushResult::Applied; 3]);
    let mut before = Vec::new();
    for id in &ids {
        before.push((
            scene.store.delivery(*id, None).await.expect("reads"),
            scene.store.attempts(*id).await.expect("reads"),
        ));
    }
    scene.store.flush(&batch).await.expect("flushes again");
    for (id, (delivery, attempts)) in ids.iter().zip(before) {
        assert_eq!(scene.store.delivery(*id, None).await.expect("reads"), delivery);
        assert_eq!(scene.store.attempts(*id).await.expect("reads"), attempts);
    }
    assert_eq!(dead_letters(&scene).await.len(), 1);
}

/// K6: a late success settles a row that was released once and is still unowned.
pub async fn a_late_success_settles_a_released_row(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    scene.store.release(&[sent.token], Release::Rescue).await.expect("releases");
    let item = scene.success(&sent).await;
    assert_eq!(scene.flush(item).await, FlushResult::Late { settled: true });
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Delivered);
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert!(attempts[0].late && attempts[0].settles == Some(Settlement::Delivered));
    assert!(scene.claim(10).await.is_empty());
}

/// K6, K7: a result was written as late, and its row comes under its token only then (after a crash of the database,
/// when the relay makes a lost delivery again). Written once more, it removes the row, so it settles.
pub async fn a_result_written_before_its_row_settles_when_it_is_repeated(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let coming = Token { generation: sent.token.generation + 2, ..sent.token };
    let change = Change::Settle(Settlement::Delivered);
    let item = scene.result_under(&sent, coming, AttemptClass::Success, change).await;
    assert_eq!(scene.flush(item.clone()).await, LATE);
    scene.store.release(&[sent.token], Release::HandBack).await.expect("releases");
    assert_eq!(scene.claim_one().await.token, coming);
    assert_eq!(scene.flush(item.clone()).await, FlushResult::Applied);
    assert_eq!(scene.flush(item).await, LATE, "and once more: nothing is left to change");
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].settles, attempts[0].late), (Some(Settlement::Delivered), false));
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Delivered);
}

/// K6: a late success leaves a row alone that somebody owns.
pub async fn a_late_success_leaves_an_owned_row(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    scene.store.release(&[sent.token], Release::Rescue).await.expect("releases");
    let claimed = scene.claim_one().await;
    let item = scene.success(&sent).await;
    assert_eq!(scene.flush(item).await, LATE);
    assert_eq!(scene.store.owned(scene.session).await.expect("reads"), [claimed.token]);
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert!(attempts[0].late && attempts[0].settles.is_none());
}

/// K6: a late success leaves a row alone that was taken and given back since.
pub async fn a_late_success_leaves_a_row_that_moved_on(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    scene.store.release(&[sent.token], Release::Rescue).await.expect("releases");
    let claimed = scene.claim_one().await;
    scene.store.release(&[claimed.token], Release::HandBack).await.expect("releases");
    let item = scene.success(&sent).await;
    assert_eq!(scene.flush(item).await, LATE);
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Pending);
    assert_eq!(scene.claim(10).await.len(), 1);
}

/// K6: a late failure changes nothing but history.
pub async fn a_late_failure_changes_nothing(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    for change in [
        Change::Settle(Settlement::Dead),
        Change::Reschedule { due_at: Timestamp::INFINITY, not_before: None, attempts: 5 },
    ] {
        let sent = scene.send(&endpoint, Placement::BornClaimed).await;
        scene.store.release(&[sent.token], Release::Rescue).await.expect("releases");
        let item = scene.result(&sent, AttemptClass::ServerError, change).await;
        assert_eq!(scene.flush(item).await, LATE);
        let claimed = scene.claim_one().await;
        assert_eq!((claimed.token.id, claimed.attempts), (sent.id, 0));
        assert!(scene.store.attempts(sent.id).await.expect("reads")[0].late);
    }
    assert!(dead_letters(&scene).await.is_empty());
}

/// K6: what comes late is recorded once per token.
pub async fn a_late_result_is_recorded_once(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    scene.store.release(&[sent.token], Release::Rescue).await.expect("releases");
    let item = scene.result(&sent, AttemptClass::ServerError, Change::Settle(Settlement::Dead)).await;
    assert_eq!(scene.flush(item.clone()).await, LATE);
    assert_eq!(scene.flush(item).await, LATE);
    assert_eq!(scene.store.attempts(sent.id).await.expect("reads").len(), 1);
}

/// K6: a result for a delivery that is settled already is late and opens nothing again.
pub async fn a_result_after_the_end_is_late(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.delivered(&endpoint).await;
    let item = scene.retry(&sent, scene.now().await).await;
    assert_eq!(scene.flush(item).await, LATE);
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Delivered);
    assert!(scene.claim(10).await.is_empty());
}

/// K1: id, owner and generation must all match.
pub async fn a_token_matches_in_all_three_parts(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let wrong = [
        Token { owner: SessionId(sent.token.owner.0 + 1), ..sent.token },
        Token { generation: sent.token.generation + 1, ..sent.token },
    ];
    for token in wrong {
        let change = Change::Settle(Settlement::Delivered);
        let item = scene.result_under(&sent, token, AttemptClass::Success, change).await;
        assert_eq!(scene.flush(item).await, LATE);
    }
    assert_eq!(scene.store.owned(scene.session).await.expect("reads"), [sent.token]);
}

/// One item's token that is unknown does not disturb the others, and results keep the items' order.
pub async fn results_keep_the_order_of_the_items(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut items = Vec::new();
    for n in 0..9 {
        let sent = scene.send(&endpoint, Placement::BornClaimed).await;
        let mut item = scene.success(&sent).await;
        if n % 3 == 0 {
            item.token.generation += 7;
        }
        items.push(item);
    }
    items.reverse();
    let batch = FlushBatch { items, ..FlushBatch::default() };
    let results = scene.store.flush(&batch).await.expect("flushes");
    let late: Vec<usize> = (0..9).filter(|n| results[*n] == LATE).collect();
    assert_eq!(late, [2, 5, 8]);
    assert_eq!(results.iter().filter(|result| **result == FlushResult::Applied).count(), 6);
}

/// A manual attempt of a settled delivery is recorded and changes nothing.
pub async fn record_only_changes_no_row(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.delivered(&endpoint).await;
    let mut item = scene.result(&sent, AttemptClass::ServerError, Change::RecordOnly).await;
    item.attempt.manual = true;
    assert_eq!(scene.flush(item).await, FlushResult::Applied);
    assert_eq!(status(&scene, sent.id).await, DeliveryStatus::Delivered);
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    assert_eq!(attempts.len(), 2);
    assert!(attempts[1].manual && attempts[1].settles.is_none() && !attempts[1].late);
}

/// A hold's later end stays.
pub async fn the_later_hold_stays(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let now = scene.now().await;
    let (near, far) = (now.plus(Duration::from_secs(60)), now.plus(Duration::from_secs(600)));
    for until in [near, far, near] {
        let holds = vec![(endpoint.id, until)];
        scene.store.flush(&FlushBatch { holds, ..FlushBatch::default() }).await.expect("flushes");
    }
    let changes = scene.store.catalog_changes(None).await.expect("a catalogue");
    assert_eq!(changes.changed[0].hold_until, Some(far));
}

/// 410: the endpoint is disabled in the same transaction; the catalogue learns of it; it is audited once.
pub async fn gone_disables_the_endpoint(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let version = scene.config_version().await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let items = vec![scene.result(&sent, AttemptClass::Gone, Change::Settle(Settlement::Dead)).await];
    let disables = vec![(endpoint.id, DisabledReason::Gone)];
    let batch = FlushBatch { items, disables, ..FlushBatch::default() };
    scene.store.flush(&batch).await.expect("flushes");
    scene.store.flush(&batch).await.expect("flushes again");
    let catalog = scene.store.catalog_changes(Some(version)).await.expect("a catalogue");
    let now = &catalog.changed[0].endpoint;
    assert_eq!((now.status, now.disabled_reason), (EndpointStatus::Disabled, Some(DisabledReason::Gone)));
    let page = PageRequest { limit: 50, after: None };
    let audit = scene.store.audit(None, page).await.expect("lists").items;
    let entries: Vec<_> = audit.iter().filter(|entry| entry.action == "endpoint.disable").collect();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].actor.as_str(), &entries[0].subject), ("pombo", &endpoint.id.to_string()));
}

/// A 410 that comes in after a person disabled the endpoint leaves the person's word, and is no act of its own.
pub async fn gone_leaves_what_a_person_disabled(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let by_person = StatusChange::Disable(DisabledReason::Person);
    scene.store.set_endpoint_status(endpoint.id, by_person, &person()).await.expect("disables");
    let batch = FlushBatch { disables: vec![(endpoint.id, DisabledReason::Gone)], ..FlushBatch::default() };
    scene.store.flush(&batch).await.expect("flushes");
    let now = scene.store.endpoint(endpoint.id, None).await.expect("reads").expect("is there");
    assert_eq!((now.status, now.disabled_reason), (EndpointStatus::Disabled, Some(DisabledReason::Person)));
    let audit = scene.store.audit(None, PageRequest { limit: 50, after: None }).await.expect("lists").items;
    assert_eq!(audit.iter().filter(|entry| entry.action == "endpoint.disable").count(), 1);
}

/// A retry may park its row, keeping the time it waits for.
pub async fn a_retry_may_park(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let later = scene.now().await.plus(Duration::from_secs(60));
    let change = Change::Reschedule { due_at: Timestamp::INFINITY, not_before: Some(later), attempts: 1 };
    let item = scene.result(&sent, AttemptClass::ServerError, change).await;
    scene.flush(item).await;
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.due_at, record.not_before), (Some(Timestamp::INFINITY), Some(later)));
    assert_eq!(scene.store.parked_endpoints(10).await.expect("lists"), [endpoint.id]);
}

/// An empty batch is no error.
pub async fn an_empty_flush_is_fine(database: &dyn Database) {
    let scene = begin(database).await;
    assert!(scene.store.flush(&FlushBatch::default()).await.expect("flushes").is_empty());
}
