//! Connections that die, a database that turns read-only, statements that wait too long.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pombo_store::StoreError;
use pombo_store::accept::{Accept as _, AcceptBatch, Accepted, Placement};
use pombo_store::admin::Admin as _;
use pombo_store::conformance::Database as _;
use pombo_store::conformance::scene::{self, Scene};
use pombo_store::flush::{Flush as _, FlushBatch, FlushResult};
use pombo_store::reading::Reading as _;
use pombo_store_postgres::PostgresStore;
use sqlx::{Connection, Executor, PgConnection};

use crate::database::Temp;

/// Longest wait for anything here.
const LIMIT: Duration = Duration::from_secs(20);

async fn begin(temp: &Temp) -> (Arc<PostgresStore>, Scene) {
    let store = temp.store().await;
    let session = scene::open_session(&*store, scene::LONG).await;
    (Arc::clone(&store), Scene { store, session })
}

/// Waits until a statement of Pombo with this name waits for a lock, and ends its connection.
async fn terminate_when_blocked(prompt: &mut PgConnection, statement: &str) {
    let end = tokio::time::Instant::now() + LIMIT;
    loop {
        let ended: i64 = sqlx::query_scalar(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1",
        )
        .bind(format!("-- pombo:{statement}%"))
        .fetch_one(&mut *prompt)
        .await
        .expect("the server tells who waits");
        if ended > 0 {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{statement} never waited for a lock");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connection_that_dies_during_accept_leaves_the_outcome_unknown_and_the_pool_recovers() {
    let temp = Temp::create().await;
    let (store, scene) = begin(&temp).await;
    let endpoint = scene.endpoint("acme").await;
    let mut new = scene::event_of(&endpoint.tenant, &scene::kind("a"), scene.now().await, b"1");
    new.client_key = Some("k".parse().expect("a key"));
    let batch = AcceptBatch {
        events: vec![new],
        config_version: scene.config_version().await,
        session: scene.session,
    };
    // The key is taken by a transaction that stays open: the accept waits for it.
    let mut blocker = temp.prompt().await;
    let block = format!(
        "BEGIN; INSERT INTO pombo.event_key VALUES ({}, 'k', gen_random_uuid(), now(), '\\x{}', now())",
        temp.uuid(endpoint.tenant_id.0),
        "00".repeat(32)
    );
    blocker.execute(sqlx::AssertSqlSafe(block)).await.expect("blocked");
    let accepting = {
        let (store, batch) = (Arc::clone(&store), batch.clone());
        tokio::spawn(async move { store.accept(&batch).await })
    };
    terminate_when_blocked(&mut temp.prompt().await, "accept").await;
    let error = accepting.await.expect("no panic").expect_err("the connection is gone");
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error:?}");
    blocker.execute("ROLLBACK").await.expect("rolled back");
    let again = store.accept(&batch).await.expect("the pool has another connection");
    assert!(matches!(again, Accepted::Committed(_)), "{again:?}");
    assert_eq!(temp.number("SELECT count(*) FROM pombo.event").await, 1);
}

#[tokio::test]
async fn connection_that_dies_during_flush_is_unknown_and_the_same_flush_again_settles_it() {
    let temp = Temp::create().await;
    let (store, scene) = begin(&temp).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let batch = FlushBatch { items: vec![scene.success(&sent).await], ..FlushBatch::default() };
    let mut blocker = temp.prompt().await;
    blocker.execute("BEGIN; SELECT 1 FROM pombo.delivery FOR UPDATE").await.expect("blocked");
    let flushing = {
        let (store, batch) = (Arc::clone(&store), batch.clone());
        tokio::spawn(async move { store.flush(&batch).await })
    };
    terminate_when_blocked(&mut temp.prompt().await, "flush").await;
    let error = flushing.await.expect("no panic").expect_err("the connection is gone");
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error:?}");
    blocker.execute("ROLLBACK").await.expect("rolled back");
    assert_eq!(store.flush(&batch).await.expect("it recovers"), [FlushResult::Applied]);
    let delivery = store.delivery(sent.id, None).await.expect("readable").expect("there");
    assert_eq!(delivery.status, pombo_domain::delivery::DeliveryStatus::Delivered);
}

#[tokio::test]
async fn connection_that_dies_before_the_commit_is_sent_changed_nothing() {
    let temp = Temp::create().await;
    let (store, scene) = begin(&temp).await;
    let mut blocker = temp.prompt().await;
    blocker.execute("BEGIN; SELECT 1 FROM pombo.config FOR UPDATE").await.expect("blocked");
    let making = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let scene = Scene { store, session: scene.session };
            let new = pombo_store::endpoints::NewEndpoint {
                id: pombo_domain::id::EndpointId(scene::fresh_uuid()),
                tenant: scene::tenant("acme"),
                settings: scene::settings(),
                secret: pombo_domain::secret::SecretText::new(scene::SECRET.to_owned()),
            };
            scene.store.create_endpoint(new, &scene::person()).await
        })
    };
    terminate_when_blocked(&mut temp.prompt().await, "next_config_version").await;
    let error = making.await.expect("no panic").expect_err("the connection is gone");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    blocker.execute("ROLLBACK").await.expect("rolled back");
    assert_eq!(temp.number("SELECT count(*) FROM pombo.endpoint").await, 0);
    store.ping().await.expect("the pool recovers");
}

#[tokio::test]
async fn every_pool_recovers_after_all_connections_were_ended() {
    let temp = Temp::create().await;
    let (store, scene) = begin(&temp).await;
    let endpoint = scene.endpoint("acme").await;
    let sent = scene.send(&endpoint, Placement::BornClaimed).await;
    let item = scene.success(&sent).await;
    temp.postgres.terminate_connections().await.expect("ended");
    let batch = FlushBatch { items: vec![item], ..FlushBatch::default() };
    // Each dead connection costs one call at most; no pool has more than two.
    let mut failures = 0;
    while let Err(error) = store.flush(&batch).await {
        assert!(error.is_transient(), "{error:?}");
        failures += 1;
        assert!(failures <= 2, "the pool does not recover");
    }
    while let Err(error) = store.ping().await {
        assert!(error.is_transient(), "{error:?}");
        failures += 1;
        assert!(failures <= 4, "the pool does not recover");
    }
}

/// Polls a call at most `times` times and drops it: a caller who goes away. Whether it came to its end.
async fn abandon<T>(call: impl Future<Output = T>, times: usize) -> bool {
    let mut call = std::pin::pin!(call);
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        polls += 1;
        match call.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == times => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[tokio::test]
async fn call_that_is_dropped_anywhere_leaves_no_transaction_open() {
    let temp = Temp::create().await;
    let (store, _scene) = begin(&temp).await;
    let mut times = 1;
    // Each wait of the call is the last one once; the call that comes to its end ends this.
    while !abandon(store.ping(), times).await {
        times += 1;
        assert!(times < 100, "the call never ends");
        let mut prompt = temp.prompt().await;
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL \
             AND application_name = 'pombo' AND pid <> pg_backend_pid()";
        let end = tokio::time::Instant::now() + Duration::from_secs(2);
        while sqlx::query_scalar::<_, i64>(open).fetch_one(&mut prompt).await.expect("counted") > 0 {
            assert!(tokio::time::Instant::now() < end, "a transaction stays open after {times} waits");
            tokio::task::yield_now().await;
        }
    }
    assert!(times > 2, "the call waits more than once");
}

#[tokio::test]
async fn database_that_turned_read_only_is_named_so_and_its_connections_are_thrown_away() {
    let temp = Temp::create().await;
    let (store, scene) = begin(&temp).await;
    let name = temp.postgres.name().to_owned();
    let mut prompt = temp.prompt().await;
    let set = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    prompt.execute(sqlx::AssertSqlSafe(set)).await.expect("set");
    // New connections read it; these go.
    temp.postgres.terminate_connections().await.expect("ended");
    let mut seen = None;
    for _ in 0..4 {
        match store.ping().await {
            Err(StoreError::ReadOnly(cause)) => seen = Some(cause),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
            Ok(()) => panic!("a read-only database takes no writes"),
        }
    }
    assert!(seen.is_some(), "it says that it is read-only");
    let mut prompt = temp.prompt().await;
    prompt.execute("SET default_transaction_read_only = off").await.expect("set");
    let reset = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
    prompt.execute(sqlx::AssertSqlSafe(reset)).await.expect("reset");
    // No connection of the read-only time is left in the pool.
    store.ping().await.expect("a new connection takes writes");
    assert!(scene.session.0 > 0);
}

#[tokio::test]
async fn waiting_longer_than_the_lock_limit_is_busy_and_not_a_lost_connection() {
    let temp = Temp::create().await;
    let config = pombo_store_postgres::PostgresConfig { lease_ttl: Duration::from_secs(3), ..temp.config() };
    temp.store().await;
    let store = PostgresStore::connect(config).await.expect("opens");
    let mut blocker = temp.prompt().await;
    blocker.execute("BEGIN; LOCK TABLE pombo.session IN ACCESS EXCLUSIVE MODE").await.expect("blocked");
    let session = pombo_store::sessions::NewSession {
        node: "test".to_owned(),
        roles: pombo_store::sessions::Roles::default(),
        ttl: scene::LONG,
    };
    let error = pombo_store::sessions::Sessions::open_session(&*store, session).await.expect_err("blocked");
    assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
    blocker.close().await.expect("closed");
}

#[tokio::test]
async fn dump_of_the_database_holds_no_secret_in_plain_text() {
    let temp = Temp::create().await;
    let (_store, scene) = begin(&temp).await;
    let mut settings = scene::settings();
    let header = ("authorization".to_owned(), "Bearer t0psecret".to_owned());
    settings.headers = pombo_domain::endpoint::CustomHeader::check_all(vec![header]).expect("a header");
    let endpoint = scene.endpoint_with("acme", settings).await;
    scene.send(&endpoint, Placement::BornClaimed).await;
    assert!(temp.holds(b"https://example.com/hooks").await, "the search finds what is there");
    assert!(!temp.holds(scene::SECRET.as_bytes()).await);
    assert!(!temp.holds(b"t0psecret").await);
    assert!(!temp.holds(b"dGhlIHBpZ2VvbiBrbm93").await);
}
