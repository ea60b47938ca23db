//! The invariants that check proves (P4): sound while Pombo alone writes, and each damage is found.

use std::time::Duration;

use super::Database;
use super::scene::{LONG, Scene, begin, open_session, person};
use crate::accept::Placement;

async fn found(scene: &Scene) -> Vec<(&'static str, i64)> {
    let report = scene.store.check().await.expect("checks");
    report.findings.into_iter().map(|finding| (finding.invariant, finding.count)).collect()
}

/// A database with a bit of everything is sound, and the numbers are right.
pub async fn a_used_database_is_sound(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let later = scene.now().await.plus(Duration::from_secs(60));
    for placement in [
        Placement::BornClaimed,
        Placement::Due,
        Placement::DueAt(later),
        Placement::Parked { not_before: None },
    ] {
        scene.send(&endpoint, placement).await;
    }
    scene.delivered(&endpoint).await;
    scene.dead(&endpoint).await;
    let revived = scene.dead(&endpoint).await;
    scene.store.revive(revived.id, &person()).await.expect("revives");
    let cancelled = scene.send(&endpoint, Placement::Due).await;
    scene.store.cancel_delivery(cancelled.id, &person()).await.expect("cancels");
    let report = scene.store.check().await.expect("checks");
    assert_eq!(report.findings, []);
    assert_eq!((report.events, report.live, report.settled, report.dead), (8, 5, 3, 1));
}

/// A delivery that vanished is an event unaccounted for.
pub async fn a_lost_delivery_is_found(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let table = database.table("delivery");
    database.execute(&format!("DELETE FROM {table} WHERE id = {}", database.uuid(sent.id.0))).await;
    assert_eq!(found(&scene).await, [("unaccounted_event", 1)]);
}

/// A row that is live again though its run was settled would be sent twice.
pub async fn a_settled_row_that_is_live_is_found(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let item = scene.retry(&sent, scene.now().await.plus(LONG)).await;
    scene.flush(item).await;
    let attempt = database.table("attempt");
    database.execute(&format!("UPDATE {attempt} SET settles = 'delivered', gen = 99")).await;
    let found = found(&scene).await;
    assert!(found.contains(&("live_and_settled", 1)), "{found:?}");
}

/// A death without its dead letter could not be replayed; a dead letter without a death should not be.
pub async fn dead_letters_and_deaths_must_agree(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let lost = scene.dead(&endpoint).await;
    let table = database.table("dead_letter");
    let id = database.uuid(lost.id.0);
    database.execute(&format!("DELETE FROM {table} WHERE delivery_id = {id}")).await;
    assert_eq!(found(&scene).await, [("death_without_dead_letter", 1)]);
    let other = scene.dead(&endpoint).await;
    let attempt = database.table("attempt");
    let id = database.uuid(other.id.0);
    let sql = format!("UPDATE {attempt} SET settles = 'delivered' WHERE delivery_id = {id}");
    assert_eq!(database.execute(&sql).await, 1);
    let found = found(&scene).await;
    assert!(found.contains(&("dead_letter_without_death", 1)), "{found:?}");
}

/// An owner that nobody knows, or that has been dead for long, keeps its rows from everyone.
pub async fn owners_that_are_gone_are_found(database: &dyn Database) {
    let mut scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    scene.send(&endpoint, Placement::BornClaimed).await;
    scene.store.end_session(scene.session).await.expect("ends");
    scene.session = open_session(&*scene.store, LONG).await;
    assert_eq!(found(&scene).await, [], "a sweep is given its time");
    let long_ago = database.time(scene.now().await.minus(Duration::from_secs(3600)));
    let session = database.table("session");
    database.execute(&format!("UPDATE {session} SET died_at = {long_ago} WHERE state = 'dead'")).await;
    assert_eq!(found(&scene).await, [("dead_owner", 1)]);
    let delivery = database.table("delivery");
    database.execute(&format!("UPDATE {delivery} SET owner = 987654")).await;
    assert_eq!(found(&scene).await, [("unknown_owner", 1)]);
}

/// A live delivery whose body is nowhere can never be sent.
pub async fn a_missing_body_is_found(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    let event = database.table("event");
    database.execute(&format!("DELETE FROM {event} WHERE id = {}", database.uuid(sent.event.id.0))).await;
    let found = found(&scene).await;
    assert!(found.contains(&("body_missing", 1)), "{found:?}");
}

/// A finding says what it means and names an example.
pub async fn a_finding_names_an_example(database: &dyn Database) {
    let scene = begin(database).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::Due).await;
    database.execute(&format!("DELETE FROM {}", database.table("delivery"))).await;
    let report = scene.store.check().await.expect("checks");
    let text = &report.findings[0].text;
    let id = sent.event.id;
    assert!(text.contains(&id.to_string()) || text.contains(&id.0.to_string()), "{text}");
}
