//! Migrations, partitions and what applications call.

use pombo_domain::clock::Timestamp;
use pombo_store::StoreError;
use pombo_store::admin::{Admin as _, SchemaStatus};
use pombo_store::conformance::Database as _;
use pombo_store::conformance::scene::{self, Scene};
use pombo_store_postgres::PostgresStore;
use sqlx::{Executor, Row};
use uuid::Uuid;

use crate::database::Temp;

#[tokio::test]
async fn schema_comes_up_once_however_many_processes_migrate_at_once() {
    let temp = Temp::create().await;
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let config = temp.config();
        racing.spawn(async move {
            let store = PostgresStore::connect(config).await?;
            store.migrate().await
        });
    }
    let versions = racing.join_all().await;
    for version in versions {
        assert_eq!(version.expect("it migrates"), 1);
    }
    assert_eq!(temp.number("SELECT count(*) FROM pombo.migration").await, 1);
    let store = temp.store().await;
    assert_eq!(store.schema_status().await.expect("known"), SchemaStatus::Current { version: 1 });
}

#[tokio::test]
async fn newer_schema_runs_an_older_binary_until_min_binary_forbids_it() {
    let temp = Temp::create().await;
    let store = temp.store().await;
    temp.execute("INSERT INTO pombo.migration (version, name) VALUES (2, 'later')").await;
    assert_eq!(
        store.schema_status().await.expect("known"),
        SchemaStatus::NewerCompatible { found: 2, wanted: 1 }
    );
    assert_eq!(store.migrate().await.expect("nothing to do"), 2);
    temp.execute("UPDATE pombo.config SET min_binary = 2").await;
    assert_eq!(store.schema_status().await.expect("known"), SchemaStatus::TooNew { found: 2, wanted: 1 });
    assert!(matches!(store.migrate().await, Err(StoreError::Schema(_))));
}

#[tokio::test]
async fn every_table_says_what_it_is() {
    let temp = Temp::create().await;
    temp.store().await;
    let bare = temp
        .number(
            "SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = 'pombo'::regnamespace
             AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'migration'
             AND obj_description(c.oid) IS NULL",
        )
        .await;
    assert_eq!(bare, 0, "tables without a comment");
}

#[tokio::test]
async fn partitions_are_made_ahead_and_making_them_twice_is_making_them_once() {
    let temp = Temp::create().await;
    let store = temp.store().await;
    let attached = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'pombo.event'::regclass";
    store.prepare_partitions(7).await.expect("made");
    assert_eq!(temp.number(attached).await, 8);
    store.prepare_partitions(7).await.expect("nothing to do");
    assert_eq!(temp.number(attached).await, 8);
    // A unique index that had not come along would let an event in twice.
    assert_eq!(
        temp.number(
            "SELECT count(*) FROM pg_inherits AS i JOIN pg_index AS x ON x.indrelid = i.inhrelid
             WHERE i.inhparent = 'pombo.event'::regclass AND x.indisunique"
        )
        .await,
        8
    );
    assert_eq!(
        temp.number("SELECT count(*) FROM pg_inherits WHERE inhparent = 'pombo.attempt'::regclass").await,
        8
    );
}

#[tokio::test]
async fn insert_into_a_day_without_partition_makes_it_and_is_repeated() {
    let temp = Temp::create().await;
    let store = temp.store().await;
    let session = scene::open_session(&*store, scene::LONG).await;
    let scene = Scene { store, session };
    let endpoint = scene.endpoint("acme").await;
    for day in ["2026-02-28T23:59:59.999Z", "2026-03-01T00:00:00Z"] {
        let at = Timestamp::parse(day).expect("a time");
        let sent = scene.send_at(&endpoint, pombo_store::accept::Placement::BornClaimed, at).await;
        let found = scene.store.event(sent.event.id, None).await.expect("readable").expect("there");
        assert_eq!(found.created_at, at);
    }
    let days = "SELECT count(*) FROM pg_class WHERE relname IN ('event_20260228', 'event_20260301')";
    assert_eq!(temp.number(days).await, 2);
}

#[tokio::test]
async fn publish_takes_text_json_and_jsonb_and_says_which_event_it_made() {
    let temp = Temp::create().await;
    temp.store().await;
    let mut prompt = temp.prompt().await;
    for (call, data) in [
        ("pombo.publish('acme', 'order.paid.v1', '{\"a\" : 1}', ordering_key => 'ord_45')", "{\"a\" : 1}"),
        (
            "pombo.publish('acme', 'order.paid.v1', '{\"a\" : 1}'::json, ordering_key => 'ord_45')",
            "{\"a\" : 1}",
        ),
        (
            "pombo.publish('acme', 'order.paid.v1', '{\"a\" : 1}'::jsonb, ordering_key => 'ord_45')",
            "{\"a\": 1}",
        ),
        ("pombo.publish('order.paid.v1', '{\"a\" : 1}')", "{\"a\" : 1}"),
        ("pombo.publish('order.paid.v1', '{\"a\" : 1}'::json)", "{\"a\" : 1}"),
        ("pombo.publish('order.paid.v1', '{\"a\" : 1}'::jsonb)", "{\"a\": 1}"),
        ("pombo.publish('order.paid.v1', json_build_object('a', 1))", "{\"a\" : 1}"),
    ] {
        let id: Uuid = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT {call}")))
            .fetch_one(&mut prompt)
            .await
            .unwrap_or_else(|error| panic!("{call}: {error}"));
        let row = sqlx::query("SELECT tenant, type, data, ordering_key FROM pombo.outbox WHERE id = $1")
            .bind(id)
            .fetch_one(&mut prompt)
            .await
            .expect("the row is there");
        let has_key = call.contains("ordering_key");
        assert_eq!(row.get::<&str, _>("tenant"), if has_key { "acme" } else { "default" }, "{call}");
        assert_eq!(row.get::<&str, _>("type"), "order.paid.v1");
        assert_eq!(row.get::<&str, _>("data"), data, "{call}");
        assert_eq!(row.get::<Option<&str>, _>("ordering_key"), has_key.then_some("ord_45"), "{call}");
    }
}

/// The application learns it in its own transaction; a row that no scan reaches would wait for ever.
#[tokio::test]
async fn number_that_no_scan_reaches_is_refused_to_the_application() {
    let temp = Temp::create().await;
    temp.store().await;
    let mut prompt = temp.prompt().await;
    for seq in [0, -5] {
        let insert =
            "INSERT INTO pombo.outbox (seq, type, data) OVERRIDING SYSTEM VALUE VALUES ($1, 'a', '0')";
        let error = sqlx::query(insert).bind(seq).execute(&mut prompt).await.expect_err("refused");
        assert!(
            error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_check_violation),
            "{seq}: {error}"
        );
    }
}

#[tokio::test]
async fn publish_rolls_back_with_the_transaction_and_takes_every_option() {
    let temp = Temp::create().await;
    temp.store().await;
    let mut prompt = temp.prompt().await;
    prompt.execute("BEGIN; SELECT pombo.publish('order.paid', '1'); ROLLBACK").await.expect("it runs");
    prompt
        .execute(
            "SELECT pombo.publish('acme', 'order.paid', '1', key => 'k', resource_version => 7,
               deliver_at => '2030-01-01Z', endpoint_id => 'ep_x')",
        )
        .await
        .expect("it runs");
    let row = sqlx::query("SELECT key, resource_version, deliver_at::text, endpoint_id FROM pombo.outbox")
        .fetch_one(&mut prompt)
        .await
        .expect("one row");
    assert_eq!(row.get::<&str, _>(0), "k");
    assert_eq!(row.get::<i64, _>(1), 7);
    assert!(row.get::<&str, _>(2).starts_with("2030-01-01"));
    assert_eq!(row.get::<&str, _>(3), "ep_x");
}

/// T7: a day is made while others read and write, and whoever holds it up does not hold up everybody.
#[tokio::test]
async fn day_is_made_beside_an_open_transaction_that_reads_and_writes_history() {
    let temp = Temp::create().await;
    let store = temp.store().await;
    let session = scene::open_session(&*store, scene::LONG).await;
    let scene = Scene { store, session };
    let endpoint = scene.endpoint("acme").await;
    scene.delivered(&endpoint).await;
    let mut other = temp.prompt().await;
    other
        .execute("BEGIN; SELECT count(*) FROM pombo.event; UPDATE pombo.event SET targets = NULL")
        .await
        .expect("it reads and writes");
    let ahead = tokio::time::timeout(std::time::Duration::from_secs(5), scene.store.prepare_partitions(3));
    ahead.await.expect("it waits for nobody").expect("it is made");
    other.execute("ROLLBACK").await.expect("rolled back");
}
