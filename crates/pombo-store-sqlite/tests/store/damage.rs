//! Damaged rows, a full file, a wrong key: named for what they are, and nothing else breaks.

use std::sync::Arc;

use pombo_store::StoreError;
use pombo_store::accept::{AcceptBatch, Accepted, Placement};
use pombo_store::admin::Admin;
use pombo_store::conformance::Database;
use pombo_store::conformance::scene::{LONG, Scene, begin, event_of, kind, open_session, tenant};
use pombo_store::endpoints::Endpoints;
use pombo_store::keyring::Keyring;
use pombo_store_sqlite::{SqliteConfig, SqliteStore};

use crate::scratch::Scratch;

fn corrupt<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (&'static str, &'static str, String) {
    match result {
        Err(StoreError::Corrupt { table, column, id }) => (table, column, id),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn unreadable_rows_are_named() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.delivered(&endpoint).await;
    let live = scene.send(&endpoint, Placement::Due).await;
    let store = &scene.store;

    scratch.execute("UPDATE pombo_event SET type = x'ff'").await;
    let place = corrupt(store.event(sent.event.id, None).await);
    assert_eq!(place, ("event", "type", sent.event.id.0.to_string()));
    scratch.execute("UPDATE pombo_attempt SET class = 'nonsense'").await;
    let (table, column, _) = corrupt(store.attempts(sent.id).await);
    assert_eq!((table, column), ("attempt", "class"));
    scratch.execute("UPDATE pombo_endpoint SET retry = '{}'").await;
    let (table, column, _) = corrupt(store.endpoint(endpoint.id, None).await);
    assert_eq!((table, column), ("endpoint", "retry"));
    scratch.execute("UPDATE pombo_delivery SET attempt = -1").await;
    let place = corrupt(store.delivery(live.id, None).await);
    assert_eq!(place, ("delivery", "attempt", live.id.0.to_string()));
}

#[tokio::test]
async fn another_master_key_opens_nothing_and_check_says_so() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    scene.endpoint("acme").await;
    drop(scene);
    let keyring = Arc::new(Keyring::new(&[8; 32]));
    let store = SqliteStore::open(SqliteConfig { keyring, ..scratch.config() }).expect("opens");
    let error = store.catalog_changes(None).await.expect_err("the key is another");
    assert!(matches!(error, StoreError::Sealed { table: "secret" }), "{error:?}");
    let findings = store.check().await.expect("checks").findings;
    assert_eq!(findings.iter().map(|finding| finding.invariant).collect::<Vec<_>>(), ["sealed"]);
}

async fn accept_until_full(scene: &Scene) -> StoreError {
    let config_version = scene.config_version().await;
    for _ in 0..1000 {
        let mut new = event_of(&tenant("acme"), &kind("order.paid"), scene.now().await, b"0");
        new.event.body = bytes::Bytes::from(vec![b'x'; 60_000]);
        let batch = AcceptBatch { events: vec![new], config_version, session: scene.session };
        match scene.store.accept(&batch).await {
            Ok(Accepted::Committed(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
    }
    panic!("the file never filled up");
}

#[tokio::test]
async fn a_full_file_is_told_and_room_helps() {
    let scratch = Scratch::new();
    let config = SqliteConfig { pages_max: Some(400), ..scratch.config() };
    let store = SqliteStore::open(config).expect("opens");
    store.migrate().await.expect("migrates");
    let session = open_session(&*store, LONG).await;
    let scene = Scene { store, session };
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let error = accept_until_full(&scene).await;
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    assert!(error.is_transient());
    assert!(matches!(accept_until_full(&scene).await, StoreError::Full(_)), "it stays full");
    assert_eq!(scene.store.check().await.expect("still reads").findings, []);

    scratch.execute("DELETE FROM pombo_event WHERE length(body) = 60000").await;
    let item = scene.success(&sent).await;
    scene.flush(item).await;
    scene.send(&endpoint, Placement::Due).await;
    assert_eq!(scene.store.check().await.expect("checks").findings, []);
}

#[tokio::test]
async fn damaged_pages_are_found() {
    use std::io::{Seek, SeekFrom, Write};
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let endpoint = scene.endpoint("acme").await;
    for _ in 0..50 {
        scene.send(&endpoint, Placement::Due).await;
    }
    drop(scene);
    let root: i64 = scratch
        .application()
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'pombo_event_by_time'", (), |row| {
            row.get(0)
        })
        .expect("reads");
    let mut file = std::fs::File::options().write(true).open(scratch.path()).expect("opens");
    file.seek(SeekFrom::Start((root as u64 - 1) * 4096 + 200)).expect("seeks");
    file.write_all(&[0xab; 3000]).expect("writes");
    drop(file);
    let store = SqliteStore::open_for_reading(scratch.config()).expect("opens");
    match store.check().await {
        Ok(report) => assert!(report.findings.iter().any(|finding| finding.invariant == "damaged_file")),
        Err(error) => assert!(matches!(error, StoreError::Other(_)), "{error:?}"),
    }
}
