//! Lists and single things (T8).

use std::time::Duration;

use pombo_domain::attempt::Settlement;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::endpoint::Endpoint;
use pombo_domain::id::{DeliveryId, EventId, TenantId};

use super::Database;
use super::scene::{Scene, begin, event_of, first, fresh_uuid, kind, person, tenant};
use crate::accept::Placement;
use crate::flush::FlushResult;
use crate::page::{Cursor, PageRequest};
use crate::reading::{DeadFilter, DeliveryFilter, EventFilter};

/// One delivery of every status, newest first.
async fn one_of_each(scene: &Scene, endpoint: &Endpoint) -> Vec<(DeliveryStatus, DeliveryId)> {
    let mut made = Vec::new();
    let later = scene.now().await.plus(Duration::from_secs(600));
    made.push((DeliveryStatus::Pending, scene.send(endpoint, Placement::DueAt(later)).await.id));
    made.push((DeliveryStatus::Sending, scene.send(endpoint, Placement::BornClaimed).await.id));
    let retrying = scene.send(endpoint, Placement::BornClaimed).await;
    let item = scene.retry(&retrying, later).await;
    assert_eq!(scene.flush(item).await, FlushResult::Applied);
    made.push((DeliveryStatus::Retrying, retrying.id));
    made.push((DeliveryStatus::Delivered, scene.delivered(endpoint).await.id));
    made.push((DeliveryStatus::Dead, scene.dead(endpoint).await.id));
    let cancelled = scene.send(endpoint, Placement::Due).await;
    scene.store.cancel_delivery(cancelled.id, &person()).await.expect("cancels");
    made.push((DeliveryStatus::Cancelled, cancelled.id));
    made.sort_unstable_by_key(|(_, id)| std::cmp::Reverse(*id));
    made
}

async fn listed(scene: &Scene, filter: DeliveryFilter) -> Vec<(DeliveryStatus, DeliveryId)> {
    let page = scene.store.deliveries(&filter, first(250)).await.expect("lists");
    assert_eq!(page.next, None);
    page.items.into_iter().map(|item| (item.status, item.id)).collect()
}

/// Live and settled deliveries stand in one list, newest first, each once.
pub async fn live_and_settled_are_one_list(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let made = one_of_each(&scene, &endpoint).await;
    assert_eq!(listed(&scene, DeliveryFilter::default()).await, made);
}

/// Each status gives exactly its deliveries.
pub async fn a_status_gives_its_deliveries(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let made = one_of_each(&scene, &endpoint).await;
    for status in DeliveryStatus::ALL {
        let filter = DeliveryFilter { status: Some(status), ..DeliveryFilter::default() };
        let expected: Vec<_> = made.iter().copied().filter(|(other, _)| *other == status).collect();
        assert_eq!(listed(&scene, filter).await, expected, "{status:?}");
    }
}

/// Endpoint, tenant, type and event narrow both halves of the list.
pub async fn filters_narrow_both_halves(database: &dyn Database) {
    let scene = begin(database).await;
    let (mine, other) = (scene.endpoint("acme").await, scene.endpoint("acme").await);
    let theirs = scene.endpoint("other").await;
    let made = one_of_each(&scene, &mine).await;
    one_of_each(&scene, &other).await;
    one_of_each(&scene, &theirs).await;
    let by_endpoint = DeliveryFilter { endpoint: Some(mine.id), ..DeliveryFilter::default() };
    assert_eq!(listed(&scene, by_endpoint.clone()).await, made);
    let by_tenant = DeliveryFilter { tenant: Some(theirs.tenant_id), ..DeliveryFilter::default() };
    assert_eq!(listed(&scene, by_tenant).await.len(), made.len());
    let nothing = DeliveryFilter { tenant: Some(theirs.tenant_id), ..by_endpoint.clone() };
    assert!(listed(&scene, nothing).await.is_empty());
    let by_kind = DeliveryFilter { kind: Some(kind("order.paid")), ..by_endpoint.clone() };
    assert_eq!(listed(&scene, by_kind).await, made);
    let other_kind = DeliveryFilter { kind: Some(kind("order.lost")), ..by_endpoint };
    assert!(listed(&scene, other_kind).await.is_empty());
    let one = scene.store.delivery(made[0].1, None).await.expect("reads").expect("is there");
    let by_event = DeliveryFilter { event: Some((one.event_id, one.event_at)), ..DeliveryFilter::default() };
    assert_eq!(listed(&scene, by_event).await, [made[0]]);
}

/// `since` is included, `until` is not.
pub async fn times_narrow_lists(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let base = scene.now().await.minus(Duration::from_secs(100));
    let at = |n: u64| base.plus(Duration::from_micros(n * 500));
    let mut sent = Vec::new();
    for n in 0..6 {
        let sent_one = scene.send_at(&endpoint, Placement::BornClaimed, at(n)).await;
        if n % 2 == 0 {
            let item = scene.success(&sent_one).await;
            scene.flush(item).await;
        }
        sent.push((sent_one.id, sent_one.event.id));
    }
    let (since, until) = (Some(at(1)), Some(at(4)));
    let filter = DeliveryFilter { since, until, ..DeliveryFilter::default() };
    let mut found: Vec<_> = listed(&scene, filter).await.into_iter().map(|(_, id)| id).collect();
    found.sort_unstable();
    let mut expected: Vec<_> = sent[1..4].iter().map(|(id, _)| *id).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let filter = EventFilter { since, until, ..EventFilter::default() };
    let page = scene.store.events(&filter, first(10)).await.expect("lists");
    let found: Vec<_> = page.items.iter().map(|event| event.id).collect();
    assert_eq!(found, [sent[3].1, sent[2].1, sent[1].1]);
}

/// A person who pages through meets every delivery that was there once, whatever settles meanwhile.
pub async fn pages_stay_stable_while_rows_move(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut sent = Vec::new();
    for _ in 0..9 {
        sent.push(scene.send(&endpoint, Placement::BornClaimed).await);
    }
    let mut expected: Vec<_> = sent.iter().map(|one| one.id).collect();
    expected.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
    let mut seen = Vec::new();
    let mut request = PageRequest { limit: 2, after: None };
    let mut to_settle = sent.iter();
    loop {
        let page = scene.store.deliveries(&DeliveryFilter::default(), request).await.expect("lists");
        seen.extend(page.items.iter().map(|item| item.id));
        let Some(next) = page.next else { break };
        request.after = Some(next);
        for one in to_settle.by_ref().take(2) {
            let item = scene.success(one).await;
            scene.flush(item).await;
        }
        // What is new stands in front of everything seen.
        let at = scene.now().await.plus(Duration::from_secs(5));
        scene.send_at(&endpoint, Placement::Due, at).await;
    }
    assert_eq!(seen, expected);
}

/// A page tells whether more follows, exactly.
pub async fn a_full_last_page_has_no_next(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    for _ in 0..4 {
        scene.send(&endpoint, Placement::Due).await;
    }
    let request = PageRequest { limit: 2, after: None };
    let page = scene.store.deliveries(&DeliveryFilter::default(), request).await.expect("lists");
    let after = page.next;
    assert!(after.is_some());
    let request = PageRequest { limit: 2, after };
    let page = scene.store.deliveries(&DeliveryFilter::default(), request).await.expect("lists");
    assert_eq!((page.items.len(), page.next), (2, None));
}

/// Events run from new to old in pages, also where times are the same.
pub async fn events_are_listed_in_pages(database: &dyn Database) {
    let scene = begin(database).await;
    let now = scene.now().await;
    let mut made = Vec::new();
    for n in 0..7 {
        let at = now.minus(Duration::from_secs(n / 3));
        let new = event_of(&tenant("acme"), &kind("order.paid"), at, b"0");
        made.push((at, new.event.id));
        scene.accept(vec![new]).await;
    }
    made.sort_unstable_by_key(|item| std::cmp::Reverse(*item));
    let mut seen = Vec::new();
    let mut request = PageRequest { limit: 3, after: None };
    loop {
        let page = scene.store.events(&EventFilter::default(), request).await.expect("lists");
        seen.extend(page.items.iter().map(|event| (event.created_at, event.id)));
        match page.next {
            Some(next) => request.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, made);
}

/// What belongs to another tenant does not exist.
pub async fn reads_are_apart_by_tenant(database: &dyn Database) {
    let scene = begin(database).await;
    let (mine, theirs) = (scene.endpoint("acme").await, scene.endpoint("other").await);
    let sent = scene.dead(&theirs).await;
    scene.dead(&mine).await;
    let acme = Some(mine.tenant_id);
    let store = &scene.store;
    assert_eq!(store.event(sent.event.id, acme).await.expect("reads"), None);
    assert_eq!(store.event_body(sent.event.id, acme).await.expect("reads"), None);
    assert_eq!(store.delivery(sent.id, acme).await.expect("reads"), None);
    let events = EventFilter { tenant: acme, ..EventFilter::default() };
    let events = store.events(&events, first(10)).await.expect("lists").items;
    assert!(events.len() == 1 && events[0].tenant_id == mine.tenant_id);
    let letters = DeadFilter { tenant: acme, ..DeadFilter::default() };
    let letters = store.dead_letters(&letters, first(10)).await.expect("lists").items;
    assert!(letters.len() == 1 && letters[0].tenant_id == mine.tenant_id);
    let nobody = Some(TenantId::of(&tenant("nobody")));
    let none = EventFilter { tenant: nobody, ..EventFilter::default() };
    assert!(store.events(&none, first(10)).await.expect("lists").items.is_empty());
    assert!(store.event(sent.event.id, Some(theirs.tenant_id)).await.expect("reads").is_some());
}

/// Unknown ids are no errors.
pub async fn unknown_ids_are_nothing(database: &dyn Database) {
    let scene = begin(database).await;
    let (event, delivery) = (EventId(fresh_uuid()), DeliveryId(fresh_uuid()));
    assert_eq!(scene.store.event(event, None).await.expect("reads"), None);
    assert_eq!(scene.store.event_body(event, None).await.expect("reads"), None);
    assert_eq!(scene.store.delivery(delivery, None).await.expect("reads"), None);
    assert!(scene.store.attempts(delivery).await.expect("reads").is_empty());
    let after = Some(Cursor { at: scene.now().await, id: fresh_uuid() });
    let page = scene.store.events(&EventFilter::default(), PageRequest { limit: 5, after }).await;
    assert!(page.expect("lists").items.is_empty());
}

/// A delivery that was revived reads as live; one that ended twice reads as its last end, once in lists.
pub async fn a_revived_delivery_reads_as_its_latest_life(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.dead(&endpoint).await;
    scene.store.revive(sent.id, &person()).await.expect("revives");
    assert_eq!(listed(&scene, DeliveryFilter::default()).await, [(DeliveryStatus::Pending, sent.id)]);
    scene.store.cancel_delivery(sent.id, &person()).await.expect("cancels");
    let expected = [(DeliveryStatus::Cancelled, sent.id)];
    assert_eq!(listed(&scene, DeliveryFilter::default()).await, expected);
    let dead = DeliveryFilter { status: Some(DeliveryStatus::Dead), ..DeliveryFilter::default() };
    assert!(listed(&scene, dead).await.is_empty());
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!(record.status, DeliveryStatus::Cancelled);
    let attempts = scene.store.attempts(sent.id).await.expect("reads");
    let ends: Vec<_> = attempts.iter().filter_map(|attempt| attempt.settles).collect();
    assert_eq!(ends, [Settlement::Dead, Settlement::Cancelled]);
}

/// Dead letters run from new to old in pages, and narrow by endpoint, type and time.
pub async fn dead_letters_are_listed_in_pages(database: &dyn Database) {
    let scene = begin(database).await;
    let (one, two) = (scene.endpoint("acme").await, scene.endpoint("acme").await);
    let mut died = Vec::new();
    for n in 0..5 {
        died.push(scene.dead(if n % 2 == 0 { &one } else { &two }).await.id);
    }
    died.reverse();
    let mut seen = Vec::new();
    let mut request = PageRequest { limit: 2, after: None };
    loop {
        let page = scene.store.dead_letters(&DeadFilter::default(), request).await.expect("lists");
        seen.extend(page.items);
        match page.next {
            Some(next) => request.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.iter().map(|letter| letter.delivery_id).collect::<Vec<_>>(), died);
    let count = async |filter: DeadFilter| {
        scene.store.dead_letters(&filter, first(10)).await.expect("lists").items.len()
    };
    assert_eq!(count(DeadFilter { endpoint: Some(two.id), ..DeadFilter::default() }).await, 2);
    assert_eq!(count(DeadFilter { kind: Some(kind("order.lost")), ..DeadFilter::default() }).await, 0);
    let (since, until) = (Some(seen[3].died_at), Some(seen[1].died_at));
    assert_eq!(count(DeadFilter { since, until, ..DeadFilter::default() }).await, 2);
}

/// A hold that lies ahead is shown with the deliveries it holds up.
pub async fn a_hold_is_shown_with_its_deliveries(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let until = scene.now().await.plus(Duration::from_secs(600));
    let holds = vec![(endpoint.id, until)];
    let batch = crate::flush::FlushBatch { holds, ..Default::default() };
    scene.store.flush(&batch).await.expect("flushes");
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!(record.hold_until, Some(until));
}

/// The message of the last attempt is shown with a delivery that waits.
pub async fn the_last_message_is_shown(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let mut item = scene.retry(&sent, scene.now().await.plus(Duration::from_secs(60))).await;
    item.attempt.message = Some("connection refused".to_owned());
    scene.flush(item).await;
    let record = scene.store.delivery(sent.id, None).await.expect("reads").expect("is there");
    assert_eq!(record.last_message.as_deref(), Some("connection refused"));
}
