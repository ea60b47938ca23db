//! Opening: who has the file, where it may lie, and what an earlier process left.

use std::os::unix::fs::PermissionsExt;

use pombo_store::StoreError;
use pombo_store::accept::Placement;
use pombo_store::admin::{Admin, SchemaStatus};
use pombo_store::conformance::Database;
use pombo_store::conformance::scene::{LONG, begin, open_session};
use pombo_store::endpoints::Endpoints;
use pombo_store::sessions::{Renewal, Sessions};
use pombo_store_sqlite::SqliteStore;

use crate::scratch::{Scratch, config_of};

fn denied(result: Result<std::sync::Arc<SqliteStore>, StoreError>) -> String {
    match result {
        Err(StoreError::Denied(text)) => text,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it opened"),
    }
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_the_file() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let text = denied(SqliteStore::open(scratch.config()));
    assert!(text.contains("pombo.db"), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    drop(store);
    SqliteStore::open(scratch.config()).expect("the file is free again");
}

#[tokio::test]
async fn a_reader_opens_beside_the_process_and_cannot_write() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let endpoint = scene.endpoint("acme").await;
    let reader = SqliteStore::open_for_reading(scratch.config()).expect("opens beside it");
    let report = reader.check().await.expect("checks");
    assert_eq!(report.findings, []);
    assert!(reader.endpoint(endpoint.id, None).await.expect("reads").is_some());
    let error = reader.migrate().await.expect_err("it only reads");
    assert!(matches!(error, StoreError::ReadOnly(_)), "{error:?}");
}

#[tokio::test]
async fn only_the_owner_may_read_the_files() {
    let scratch = Scratch::new();
    let _store = scratch.store().await;
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut path = scratch.path().into_os_string();
        path.push(suffix);
        let mode = std::fs::metadata(&path).expect("the file is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn places_without_a_database_are_refused_with_a_reason() {
    let scratch = Scratch::new();
    let directory = scratch.path().parent().expect("a directory").to_owned();
    let text = denied(SqliteStore::open(config_of(&directory.join("missing/pombo.db"))));
    assert!(text.contains("missing does not exist"), "{text}");
    let text = denied(SqliteStore::open(config_of(&directory)));
    assert!(text.contains("is a directory"), "{text}");
    let other = directory.join("letter.txt");
    std::fs::write(&other, "Dear pigeon, ".repeat(100)).expect("a file is written");
    let text = denied(SqliteStore::open(config_of(&other)));
    assert!(text.contains("is not a SQLite database"), "{text}");
    let text = denied(SqliteStore::open_for_reading(config_of(&directory.join("nothing.db"))));
    assert!(text.contains("nothing.db does not exist"), "{text}");
}

#[tokio::test]
async fn the_schema_is_older_until_it_is_brought_up() {
    let scratch = Scratch::new();
    let store = SqliteStore::open(scratch.config()).expect("opens");
    assert_eq!(store.schema_status().await.expect("reads"), SchemaStatus::Older { found: 0, wanted: 1 });
    assert_eq!(store.migrate().await.expect("migrates"), 1);
    assert_eq!(store.schema_status().await.expect("reads"), SchemaStatus::Current { version: 1 });
}

/// T9: a newer schema is refused only if it says that this binary is too old for it.
#[tokio::test]
async fn a_newer_schema_says_who_may_run() {
    let scratch = Scratch::new();
    drop(scratch.store().await);
    let application = scratch.application();
    let newer = "INSERT INTO pombo_schema_version (version, applied_at) VALUES (9, 0)";
    application.execute(newer, ()).expect("a newer pombo was here");
    let store = SqliteStore::open(scratch.config()).expect("opens");
    let status = store.schema_status().await.expect("reads");
    assert_eq!(status, SchemaStatus::NewerCompatible { found: 9, wanted: 1 });
    assert_eq!(store.migrate().await.expect("leaves it alone"), 9);
    application.execute("UPDATE pombo_config SET min_binary = 9", ()).expect("a newer pombo was here");
    assert_eq!(store.schema_status().await.expect("reads"), SchemaStatus::TooNew { found: 9, wanted: 1 });
    assert!(matches!(store.migrate().await, Err(StoreError::Schema(_))));
}

#[tokio::test]
async fn what_belongs_to_the_application_is_left_alone() {
    let scratch = Scratch::new();
    let application = scratch.application();
    let theirs =
        "PRAGMA user_version = 41; PRAGMA application_id = 42; CREATE TABLE orders (id INTEGER PRIMARY KEY);";
    application.execute_batch(theirs).expect("an application was here first");
    drop(scratch.store().await);
    for (pragma, value) in [("user_version", 41), ("application_id", 42)] {
        let found: i64 = application.pragma_query_value(None, pragma, |row| row.get(0)).expect("reads");
        assert_eq!(found, value);
    }
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'pombo_%' AND name NOT LIKE 'sqlite_%'";
    let others: i64 = application.query_row(sql, (), |row| row.get(0)).expect("reads");
    assert_eq!(others, 1);
}

/// Q1: the lock proves every earlier session dead, so nothing waits for a lease to run out.
#[tokio::test]
async fn what_an_earlier_process_owned_is_due_at_once() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let (before, earlier) = (scene.store, scene.session);
    let store = scratch.reopen(before).await;
    assert!(matches!(store.renew_session(earlier, LONG).await.expect("answers"), Renewal::Lost));
    let session = open_session(&*store, LONG).await;
    let scene = pombo_store::conformance::scene::Scene { store, session };
    let claimed = scene.claim_one().await;
    assert_eq!((claimed.token.id, claimed.rescues), (sent.id, 1));
    assert!(claimed.token.generation > sent.token.generation + 1);
}

#[tokio::test]
async fn every_opened_store_is_another_epoch() {
    use pombo_store::sessions::{NewSession, Roles};
    let scratch = Scratch::new();
    let mut epochs = Vec::new();
    for _ in 0..2 {
        let store = scratch.store().await;
        let session = NewSession { node: "n".to_owned(), roles: Roles::default(), ttl: LONG };
        epochs.push(store.open_session(session).await.expect("opens").1.epoch);
    }
    assert_ne!(epochs[0], epochs[1]);
}
