//! Claiming (C).

use std::time::Duration;

use pombo_domain::endpoint::shard_of;
use pombo_domain::id::EventId;

use super::Database;
use super::scene::{begin, first, fresh_uuid};
use crate::accept::Placement;
use crate::flush::FlushBatch;
use crate::reading::DeliveryFilter;

/// K1: a claim sets the owner and raises the generation; nobody claims the row again.
pub async fn a_claimed_row_is_owned_once(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let claimed = scene.claim_one().await;
    assert_eq!((claimed.token.id, claimed.token.owner), (sent.id, scene.session));
    assert!(claimed.token.generation > sent.token.generation);
    assert_eq!((claimed.event_id, claimed.event_at), (sent.event.id, sent.event.created_at));
    assert_eq!((claimed.endpoint_id, claimed.tenant_id), (endpoint.id, endpoint.tenant_id));
    assert_eq!((claimed.attempts, claimed.rescues, claimed.not_before), (0, 0, None));
    assert_eq!(claimed.kind, sent.event.kind);
    assert!(scene.claim(10).await.is_empty());
    assert_eq!(scene.store.owned(scene.session).await.expect("reads"), [claimed.token]);
}

/// C1: only rows of the given shards; none given claims nothing.
pub async fn only_my_shards_are_claimed(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    scene.send(&endpoint, Placement::Due).await;
    let mine = shard_of(endpoint.id);
    let others: Vec<i16> = (0..256).filter(|shard| *shard != mine).collect();
    assert!(scene.claim_of(Vec::new(), None, 10).await.deliveries.is_empty());
    assert!(scene.claim_of(others, None, 10).await.deliveries.is_empty());
    assert_eq!(scene.claim_of(vec![mine], None, 10).await.deliveries.len(), 1);
}

/// A row that waits or is parked is not due.
pub async fn what_waits_is_not_claimed(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(60));
    scene.send(&endpoint, Placement::DueAt(later)).await;
    scene.send(&endpoint, Placement::Parked { not_before: None }).await;
    assert!(scene.claim(10).await.is_empty());
}

/// A claim takes no more than it was asked for, the oldest due first, and misses none.
pub async fn the_oldest_due_come_first(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let mut sent = Vec::new();
    for _ in 0..7 {
        sent.push(scene.send(&endpoint, Placement::Due).await.id);
    }
    let mut claimed = Vec::new();
    for wanted in [3, 3, 1] {
        let rows = scene.claim(3).await;
        assert_eq!(rows.len(), wanted);
        claimed.extend(rows.into_iter().map(|row| row.token.id));
    }
    assert_eq!(claimed, sent);
}

/// C1: a long backlog does not keep what is fresh from being claimed.
pub async fn half_of_a_claim_is_for_the_fresh(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    for _ in 0..10 {
        scene.send(&endpoint, Placement::Due).await;
    }
    let old = database.time(scene.now().await.minus(Duration::from_secs(20)));
    let sql = format!("UPDATE {} SET due_at = {old}", database.table("delivery"));
    assert_eq!(database.execute(&sql).await, 10);
    let mut fresh = Vec::new();
    for _ in 0..10 {
        fresh.push(scene.send(&endpoint, Placement::Due).await.id);
    }
    let claimed = scene.claim(8).await;
    assert_eq!(claimed.len(), 8);
    let of_fresh = claimed.iter().filter(|row| fresh.contains(&row.token.id)).count();
    assert_eq!(of_fresh, 4);
    assert_eq!(scene.claim(100).await.len(), 12, "what one half does not need the other gets");
}

/// C2: rows at or below the floor are left to the scan without one.
pub async fn the_floor_hides_what_lies_below(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    scene.send(&endpoint, Placement::Due).await;
    let now = scene.now().await;
    let old = database.time(now.minus(Duration::from_secs(90)));
    database.execute(&format!("UPDATE {} SET due_at = {old}", database.table("delivery"))).await;
    let floor = Some(now.minus(Duration::from_secs(60)));
    assert!(scene.claim_of((0..256).collect(), floor, 10).await.deliveries.is_empty());
    assert_eq!(scene.claim(10).await.len(), 1);
}

/// A claim tells of holds that lie ahead, and of nothing else.
pub async fn a_claim_tells_of_holds(database: &dyn Database) {
    let scene = begin(database).await;
    let (held, free, over) =
        (scene.endpoint("acme").await, scene.endpoint("acme").await, scene.endpoint("acme").await);
    let now = scene.now().await;
    let until = now.plus(Duration::from_secs(600));
    let holds = vec![(held.id, until), (over.id, now.minus(Duration::from_secs(1)))];
    scene.store.flush(&FlushBatch { holds, ..FlushBatch::default() }).await.expect("holds are written");
    for endpoint in [&held, &free, &over] {
        scene.send(endpoint, Placement::Due).await;
    }
    let claimed = scene.claim_of((0..256).collect(), None, 10).await;
    assert_eq!(claimed.deliveries.len(), 3);
    assert_eq!(claimed.holds, [(held.id, until)]);
}

/// A claim tells the clock and the version of the configuration (A3).
pub async fn a_claim_tells_clock_and_version(database: &dyn Database) {
    let scene = begin(database).await;
    let before = scene.claim_of(Vec::new(), None, 1).await;
    scene.endpoint("acme").await;
    let after = scene.claim_of(Vec::new(), None, 1).await;
    assert!(after.now > before.now);
    assert!(after.config_version > before.config_version);
    assert_eq!(after.config_version, scene.config_version().await);
}

/// Bodies that are nowhere are left out.
pub async fn missing_bodies_are_left_out(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let ids = [(EventId(fresh_uuid()), sent.event.created_at), (sent.event.id, sent.event.created_at)];
    let bodies = scene.store.bodies(&ids).await.expect("reads");
    assert_eq!(bodies.len(), 1);
    assert_eq!((bodies[0].event_id, &bodies[0].body), (sent.event.id, &sent.event.body));
}

/// What was claimed reads as being sent.
pub async fn a_claimed_row_reads_as_sending(database: &dyn Database) {
    use pombo_domain::delivery::DeliveryStatus;
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    scene.claim_one().await;
    let filter = DeliveryFilter { status: Some(DeliveryStatus::Sending), ..DeliveryFilter::default() };
    let page = scene.store.deliveries(&filter, first(10)).await.expect("lists");
    assert_eq!(page.items.iter().map(|item| item.id).collect::<Vec<_>>(), [sent.id]);
}
