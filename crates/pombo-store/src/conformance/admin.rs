//! The schema, keys, the audit log and numbers.

use std::time::Duration;

use pombo_domain::id::{KeyId, TenantId};

use super::Database;
use super::scene::{begin, first, fresh_uuid, person, tenant};
use crate::accept::Placement;
use crate::admin::{ApiKey, NewApiKey, SchemaStatus, Scopes};
use crate::endpoints::StatusChange;
use crate::page::PageRequest;

fn key(byte: u8, tenant_id: Option<TenantId>) -> NewApiKey {
    let scopes = Scopes { admin: true, publish: false, read: true };
    let key = ApiKey { id: KeyId(fresh_uuid()), name: "first".to_owned(), scopes, tenant_id };
    NewApiKey { key, hash: [byte; 32] }
}

/// Bringing the schema up twice is bringing it up once.
pub async fn migrating_twice_is_migrating_once(database: &dyn Database) {
    let scene = begin(database).await;
    let SchemaStatus::Current { version } = scene.store.schema_status().await.expect("reads") else {
        panic!("the schema is current");
    };
    assert_eq!(scene.store.migrate().await.expect("migrates"), version);
    let endpoint = scene.endpoint("acme").await;
    let store = database.reopen(scene.store).await;
    assert!(store.endpoint(endpoint.id, None).await.expect("reads").is_some());
}

/// The first key is made once, whoever asks.
pub async fn the_first_key_is_made_once(database: &dyn Database) {
    let scene = begin(database).await;
    let store = &scene.store;
    let answers = tokio::join!(
        store.create_first_key(key(1, None)),
        store.create_first_key(key(2, None)),
        store.create_first_key(key(3, None)),
    );
    let made = [answers.0, answers.1, answers.2].map(|answer| answer.expect("answers"));
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    assert!(!store.create_first_key(key(4, None)).await.expect("answers"));
    let actions = store.audit(None, first(10)).await.expect("lists").items;
    assert_eq!(actions.iter().filter(|entry| entry.action == "key.create").count(), 1);
}

/// A key is found by its hash, with its scopes and tenant, and by nothing else.
pub async fn a_key_is_found_by_its_hash(database: &dyn Database) {
    let scene = begin(database).await;
    let new = key(7, Some(TenantId::of(&tenant("acme"))));
    assert!(scene.store.create_first_key(new.clone()).await.expect("answers"));
    assert_eq!(scene.store.api_key([7; 32]).await.expect("reads"), Some(new.key));
    assert_eq!(scene.store.api_key([8; 32]).await.expect("reads"), None);
}

/// The audit log runs from new to old in pages.
pub async fn the_audit_log_is_listed_in_pages(database: &dyn Database) {
    let scene = begin(database).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(scene.endpoint("acme").await.id.to_string());
    }
    made.reverse();
    let mut seen = Vec::new();
    let mut request = PageRequest { limit: 2, after: None };
    loop {
        let page = scene.store.audit(None, request).await.expect("lists");
        seen.extend(page.items.into_iter().map(|entry| entry.subject));
        match page.next {
            Some(next) => request.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, made);
}

/// The database answers, says what it is, and takes preparations.
pub async fn the_database_answers(database: &dyn Database) {
    let scene = begin(database).await;
    scene.store.ping().await.expect("answers");
    scene.store.prepare_partitions(3).await.expect("prepares");
    scene.store.prepare_partitions(3).await.expect("prepares again");
    assert!(scene.store.describe().await.expect("answers").contains("SQL"));
}

/// The sample counts what is there.
pub async fn the_sample_counts_what_is_there(database: &dyn Database) {
    let scene = begin(database).await;
    let (endpoint, paused) = (scene.endpoint("acme").await, scene.endpoint("acme").await);
    scene.store.set_endpoint_status(paused.id, StatusChange::Pause, &person()).await.expect("pauses");
    let later = scene.now().await.plus(Duration::from_secs(60));
    scene.send(&endpoint, Placement::BornClaimed).await;
    for placement in [Placement::Due, Placement::DueAt(later)] {
        scene.send(&endpoint, placement).await;
    }
    for _ in 0..3 {
        scene.send(&paused, Placement::Parked { not_before: None }).await;
    }
    scene.dead(&endpoint).await;
    let outbox = database.table("outbox");
    database.execute(&format!("INSERT INTO {outbox} (type, data) VALUES ('a', '0')")).await;
    let sample = scene.store.sample().await.expect("samples");
    assert_eq!((sample.owned, sample.waiting, sample.parked), (1, 2, 3));
    assert_eq!((sample.dead_letters, sample.outbox_rows), (1, 1));
    assert_eq!(sample.endpoints, [1, 1, 0]);
    assert!(sample.oldest_due_micros > 0);
}
