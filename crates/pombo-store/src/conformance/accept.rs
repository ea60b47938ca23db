//! Accepting (A).

use std::time::Duration;

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::id::TenantId;
use pombo_domain::name::ClientKey;

use super::Database;
use super::scene::{Scene, begin, deliver_to, event_of, first, kind, person, tenant};
use crate::accept::{AcceptBatch, AcceptResult, Accepted, NewEvent, Placement};
use crate::endpoints::StatusChange;
use crate::page::PageRequest;
use crate::reading::{DeliveryFilter, EventFilter};

fn keyed(name: &str, key: &str, hash: u8, at: Timestamp) -> NewEvent {
    let mut new = event_of(&tenant(name), &kind("order.paid"), at, b"{}");
    new.client_key = Some(key.parse::<ClientKey>().expect("a key"));
    new.content_hash = [hash; 32];
    new
}

fn earlier(result: &AcceptResult) -> &crate::accept::EarlierEvent {
    match result {
        AcceptResult::Taken(earlier) => earlier,
        AcceptResult::Created => panic!("the key was free"),
    }
}

/// A1: an event and its deliveries are there together, with the fan-out.
pub async fn an_event_is_there_with_its_deliveries(database: &dyn Database) {
    let scene = begin(database).await;
    let (one, two) = (scene.endpoint("acme").await, scene.endpoint("acme").await);
    let now = scene.now().await;
    let mut new = event_of(&tenant("acme"), &kind("order.paid"), now, b"{\"a\":1}");
    deliver_to(&mut new, one.id, Placement::BornClaimed);
    deliver_to(&mut new, two.id, Placement::Due);
    let event = new.event.clone();
    assert_eq!(scene.accept(vec![new]).await, [AcceptResult::Created]);

    let record = scene.store.event(event.id, None).await.expect("reads").expect("is there");
    assert_eq!((record.fanout, record.tenant.as_str()), (2, "acme"));
    assert_eq!((record.kind, record.created_at), (event.kind.clone(), event.created_at));
    let filter = DeliveryFilter { event: Some((event.id, event.created_at)), ..DeliveryFilter::default() };
    let page = scene.store.deliveries(&filter, first(10)).await.expect("lists");
    assert_eq!(page.items.len(), 2);
    assert!(page.items.iter().all(|delivery| delivery.created_at == event.created_at));
}

/// The bytes of a body come back as they went in, whatever they are.
pub async fn bodies_are_kept_byte_for_byte(database: &dyn Database) {
    let scene = begin(database).await;
    let samples: [&[u8]; 7] = [
        b"0",
        b"null",
        b"\"\"",
        br#"{"a":1,"a":2,"n":12.50,"big":9007199254740993}"#,
        br#"{"lone":"\ud800","nul":"\u0000"}"#,
        b"{ \"spaced\" :\t1 }\n",
        "\"ção ☂\"".as_bytes(),
    ];
    for data in samples {
        let new = event_of(&tenant("acme"), &kind("order.paid"), scene.now().await, data);
        let event = new.event.clone();
        scene.accept(vec![new]).await;
        let body = scene.store.event_body(event.id, None).await.expect("reads").expect("is there");
        assert_eq!(body.body, event.body);
        let ids = [(event.id, event.created_at)];
        assert_eq!(scene.store.bodies(&ids).await.expect("reads")[0].body, event.body);
        let record = scene.store.event(event.id, None).await.expect("reads").expect("is there");
        assert_eq!(record.body_bytes, event.body.len() as i64);
    }
    let mut raw = event_of(&tenant("acme"), &kind("raw"), scene.now().await, b"");
    raw.event.body = bytes::Bytes::from_static(&[0, 255, 0, 10, 128]);
    raw.event.content_type = String::from("application/x-protobuf");
    let event = raw.event.clone();
    scene.accept(vec![raw]).await;
    let body = scene.store.event_body(event.id, None).await.expect("reads").expect("is there");
    assert_eq!((body.body, body.content_type), (event.body, event.content_type));
}

/// A3: a batch matched against an older configuration inserts nothing.
pub async fn a_stale_batch_inserts_nothing(database: &dyn Database) {
    let scene = begin(database).await;
    let before = scene.config_version().await;
    let endpoint = scene.endpoint("acme").await;
    let after = scene.config_version().await;
    assert!(after > before);
    let mut new = event_of(&endpoint.tenant, &kind("order.paid"), scene.now().await, b"{}");
    deliver_to(&mut new, endpoint.id, Placement::Due);
    let id = new.event.id;
    let batch = AcceptBatch { events: vec![new], config_version: before, session: scene.session };
    let answer = scene.store.accept(&batch).await.expect("answers");
    assert_eq!(answer, Accepted::Stale { config_version: after });
    assert_eq!(scene.store.event(id, None).await.expect("reads"), None);
    assert!(scene.claim(10).await.is_empty());
}

/// Every change of an endpoint makes earlier batches stale: pause, rotation, update, delete.
pub async fn every_change_of_an_endpoint_makes_batches_stale(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut version = scene.config_version().await;
    let mut moved = async |what: &str| {
        let now = scene.config_version().await;
        assert!(now > version, "{what}");
        version = now;
    };
    let store = &scene.store;
    store.set_endpoint_status(endpoint.id, StatusChange::Pause, &person()).await.expect("pauses");
    moved("pause").await;
    let secret = pombo_domain::secret::SecretText::new("whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0".to_owned());
    store.rotate_secret(endpoint.id, secret, Duration::ZERO, &person()).await.expect("rotates");
    moved("rotate").await;
    let now = store.endpoint(endpoint.id, None).await.expect("reads").expect("is there");
    let updated = store.update_endpoint(endpoint.id, now.version, now.settings.clone(), &person()).await;
    assert!(updated.expect("updates").is_some());
    moved("update").await;
    assert!(store.delete_endpoint(endpoint.id, &person()).await.expect("deletes"));
    moved("delete").await;
}

/// A4: the second event with a key is answered with the first, and inserts nothing.
pub async fn a_taken_key_is_answered_with_the_earlier_event(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut new = keyed("acme", "order-1", 1, scene.now().await);
    deliver_to(&mut new, endpoint.id, Placement::Due);
    let event = new.event.clone();
    assert_eq!(scene.accept(vec![new]).await, [AcceptResult::Created]);

    let same = keyed("acme", "order-1", 1, scene.now().await);
    let other = keyed("acme", "order-1", 2, scene.now().await);
    let ids = [same.event.id, other.event.id];
    let results = scene.accept(vec![same, other]).await;
    assert_eq!(earlier(&results[0]).id, event.id);
    assert_eq!(earlier(&results[0]).created_at, event.created_at);
    assert_eq!(earlier(&results[0]).fanout, 1);
    assert!(earlier(&results[0]).same_content);
    assert!(!earlier(&results[1]).same_content);
    for id in ids {
        assert_eq!(scene.store.event(id, None).await.expect("reads"), None);
    }
}

/// A4: of two events of one batch with the same key the first wins; order of keys does not matter.
pub async fn the_first_of_a_batch_has_the_key(database: &dyn Database) {
    let scene = begin(database).await;
    let now = scene.now().await;
    let batch = vec![
        keyed("acme", "z", 1, now),
        keyed("acme", "a", 1, now),
        keyed("acme", "z", 1, now),
        keyed("acme", "a", 9, now),
    ];
    let winners = [batch[0].event.id, batch[1].event.id];
    let results = scene.accept(batch).await;
    assert_eq!(results[..2], [AcceptResult::Created, AcceptResult::Created]);
    assert_eq!(earlier(&results[2]).id, winners[0]);
    assert!(earlier(&results[2]).same_content);
    assert_eq!(earlier(&results[3]).id, winners[1]);
    assert!(!earlier(&results[3]).same_content);
}

/// A key belongs to one tenant: another tenant's event with the same key is another event.
pub async fn keys_are_apart_by_tenant(database: &dyn Database) {
    let scene = begin(database).await;
    let now = scene.now().await;
    let results = scene.accept(vec![keyed("acme", "k", 1, now), keyed("other", "k", 2, now)]).await;
    assert_eq!(results, [AcceptResult::Created, AcceptResult::Created]);
}

/// A4: an expired key is taken over.
pub async fn an_expired_key_is_taken_over(database: &dyn Database) {
    let scene = begin(database).await;
    scene.accept(vec![keyed("acme", "k", 1, scene.now().await)]).await;
    expire_keys(&scene, database).await;
    let second = keyed("acme", "k", 2, scene.now().await);
    let id = second.event.id;
    assert_eq!(scene.accept(vec![second]).await, [AcceptResult::Created]);
    let third = scene.accept(vec![keyed("acme", "k", 2, scene.now().await)]).await;
    assert_eq!(earlier(&third[0]).id, id);
}

async fn expire_keys(scene: &Scene, database: &dyn Database) {
    let past = database.time(scene.now().await.minus(Duration::from_secs(60)));
    let sql = format!("UPDATE {} SET expires_at = {past}", database.table("event_key"));
    assert_eq!(database.execute(&sql).await, 1);
}

/// A5: where a delivery starts.
pub async fn placements_are_kept(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(3600));
    let born = scene.send(&endpoint, Placement::BornClaimed).await;
    let due = scene.send(&endpoint, Placement::Due).await;
    let due_later = scene.send(&endpoint, Placement::DueAt(later)).await;
    let parked = scene.send(&endpoint, Placement::Parked { not_before: Some(later) }).await;
    let read = async |id| scene.store.delivery(id, None).await.expect("reads").expect("is there");

    let record = read(born.id).await;
    assert_eq!((record.status, record.due_at), (DeliveryStatus::Sending, None));
    assert_eq!(scene.store.owned(scene.session).await.expect("reads"), [born.token]);
    let record = read(due.id).await;
    assert_eq!(record.status, DeliveryStatus::Pending);
    assert!(record.due_at.expect("a time") <= scene.now().await);
    assert_eq!(read(due_later.id).await.due_at, Some(later));
    let record = read(parked.id).await;
    assert_eq!((record.due_at, record.not_before), (Some(Timestamp::INFINITY), Some(later)));
    assert_eq!(record.status, DeliveryStatus::Pending, "parked behind an active endpoint is no pause");
}

/// C2: a due time that is over becomes now, else a claim's floor would hide the row.
pub async fn a_due_time_in_the_past_becomes_now(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let before = scene.now().await;
    let past = before.minus(Duration::from_secs(600));
    let sent = scene.send(&endpoint, Placement::DueAt(past)).await;
    let floor = Some(before.minus(Duration::from_secs(30)));
    let claimed = scene.claim_of((0..256).collect(), floor, 10).await;
    assert_eq!(claimed.deliveries.len(), 1);
    assert_eq!(claimed.deliveries[0].token.id, sent.id);
}

/// A parked row that waits for ever waits for no time: it must be able to wake.
pub async fn waiting_for_ever_is_waiting_for_no_time(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let forever = Placement::Parked { not_before: Some(Timestamp::INFINITY) };
    let sent = scene.send(&endpoint, forever).await;
    let wake = crate::parking::Wake { endpoint_id: endpoint.id, room: 1 };
    assert_eq!(scene.store.wake(wake).await.expect("wakes").woken, 1);
    assert_eq!(scene.claim_one().await.token.id, sent.id);
}

/// Deliveries of one batch wake in the order of the batch.
pub async fn accepted_order_is_the_order_of_the_batch(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let now = scene.now().await;
    let mut ids = Vec::new();
    let mut events = Vec::new();
    for n in 0..20_u64 {
        // Times run backwards: neither they nor ids order anything.
        let at = now.minus(Duration::from_millis(n));
        let mut new = event_of(&endpoint.tenant, &kind("order.paid"), at, b"{}");
        ids.push(deliver_to(&mut new, endpoint.id, Placement::Parked { not_before: None }));
        events.push(new);
    }
    scene.accept(events).await;
    for id in ids {
        let wake = crate::parking::Wake { endpoint_id: endpoint.id, room: 1 };
        scene.store.wake(wake).await.expect("wakes");
        assert_eq!(scene.claim_one().await.token.id, id);
    }
}

/// An event without deliveries is kept and can be found.
pub async fn an_unmatched_event_is_kept(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    scene.send(&endpoint, Placement::Due).await;
    let new = event_of(&tenant("nobody"), &kind("order.paid"), scene.now().await, b"{}");
    let id = new.event.id;
    scene.accept(vec![new]).await;
    let filter = EventFilter { unmatched: true, ..EventFilter::default() };
    let page = scene.store.events(&filter, first(10)).await.expect("lists");
    assert_eq!(page.items.iter().map(|event| event.id).collect::<Vec<_>>(), [id]);
    assert_eq!(page.items[0].tenant_id, TenantId::of(&tenant("nobody")));
}

/// What came with an event is kept with it.
pub async fn an_event_keeps_what_came_with_it(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut new = keyed("acme", "pedido nº 45", 1, scene.now().await);
    new.event.ordering_key = Some("conta ☂".parse().expect("a key"));
    new.event.resource_version = pombo_domain::event::ResourceVersion::new(7);
    new.targets = Some(vec![endpoint.id]);
    let event = new.event.clone();
    scene.accept(vec![new]).await;
    let record = scene.store.event(event.id, None).await.expect("reads").expect("is there");
    assert_eq!(record.client_key.expect("kept").as_str(), "pedido nº 45");
    assert_eq!(record.ordering_key, event.ordering_key);
    assert_eq!(record.resource_version, event.resource_version);
    assert_eq!(record.targets, Some(vec![endpoint.id]));
    assert_eq!(record.origin, event.origin);
}

/// A batch that cannot be inserted leaves nothing behind, and says that it is the data (A4).
pub async fn a_refused_batch_leaves_nothing_behind(database: &dyn Database) {
    let scene = begin(database).await;
    let good = event_of(&tenant("acme"), &kind("order.paid"), scene.now().await, b"{}");
    let mut twice = event_of(&tenant("acme"), &kind("order.paid"), scene.now().await, b"{}");
    let endpoint = scene.endpoint("acme").await;
    deliver_to(&mut twice, endpoint.id, Placement::Due);
    deliver_to(&mut twice, endpoint.id, Placement::Due);
    let id = good.event.id;
    let config_version = scene.config_version().await;
    let batch = AcceptBatch { events: vec![good, twice], config_version, session: scene.session };
    let error = scene.store.accept(&batch).await.expect_err("a delivery twice is refused");
    assert!(matches!(error, crate::StoreError::Rejected(_)), "{error:?}");
    assert_eq!(scene.store.event(id, None).await.expect("reads"), None);
    let page = PageRequest { limit: 10, after: None };
    assert!(scene.store.events(&EventFilter::default(), page).await.expect("lists").items.is_empty());
}
