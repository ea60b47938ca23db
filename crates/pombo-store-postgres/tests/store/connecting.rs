//! Opening a database: what is refused, and in which words.

use std::time::Duration;

use pombo_domain::secret::SecretText;
use pombo_store::StoreError;
use pombo_store::accept::Placement;
use pombo_store::admin::{Admin as _, SchemaStatus};
use pombo_store::conformance::scene;
use pombo_store::reading::DeliveryFilter;
use pombo_store_postgres::{Pooling, PostgresConfig, PostgresStore};
use sqlx::{AssertSqlSafe, Executor};

use crate::database::Temp;

async fn connect_to(temp: &Temp, url: String) -> StoreError {
    let config = PostgresConfig {
        url: SecretText::new(url),
        acquire_timeout: Duration::from_secs(5),
        ..temp.config()
    };
    PostgresStore::connect(config).await.expect_err("it must not be opened")
}

#[tokio::test]
async fn port_where_nobody_listens_is_unavailable_and_named() {
    let temp = Temp::create().await;
    // Bound and dropped: free a moment ago.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let error = connect_to(&temp, format!("postgres://pombo:hunter2@127.0.0.1:{port}/pombo")).await;
    let StoreError::Unavailable(cause) = &error else { panic!("{error:?}") };
    assert!(cause.to_string().starts_with(&format!("no PostgreSQL server answers at 127.0.0.1:{port}")));
    assert!(!format!("{error:?}").contains("hunter2"));
    assert!(error.is_transient());
}

#[tokio::test]
async fn unknown_database_and_unknown_role_are_denied_in_the_servers_words() {
    let temp = Temp::create().await;
    let url = temp.postgres.url();
    let elsewhere = url.replace(temp.postgres.name(), "pombo_nowhere");
    let StoreError::Denied(words) = connect_to(&temp, elsewhere).await else { panic!("denied") };
    assert!(words.contains("pombo_nowhere"), "{words}");
    let (_, rest) = url.split_once('@').expect("a URL with a user");
    let StoreError::Denied(words) = connect_to(&temp, format!("postgres://nobody_here@{rest}")).await else {
        panic!("denied")
    };
    assert!(words.contains("nobody_here"), "{words}");
}

#[tokio::test]
async fn text_that_is_no_url_is_refused_without_repeating_it() {
    let temp = Temp::create().await;
    let error = connect_to(&temp, "postgres://user:s3cret@host:notaport/db".to_owned()).await;
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("s3cret"));
}

#[tokio::test]
async fn database_of_another_encoding_is_refused() {
    let temp = Temp::create().await;
    let name = format!("{}_latin", temp.postgres.name());
    let make = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'");
    let mut prompt = temp.prompt().await;
    prompt.execute(AssertSqlSafe(make)).await.expect("a database is made");
    let error = connect_to(&temp, temp.postgres.url().replace(temp.postgres.name(), &name)).await;
    if std::env::var_os("POMBO_TEST_POSTGRES_THROWAWAY").is_none() {
        prompt.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.expect("dropped");
    }
    let StoreError::Schema(words) = error else { panic!("{error:?}") };
    assert!(words.contains("LATIN1"), "{words}");
}

#[tokio::test]
async fn server_tells_its_version_and_whether_it_syncs() {
    let temp = Temp::create().await;
    let store = temp.store().await;
    let facts = store.server();
    assert!((140_000..190_000).contains(&facts.version), "{facts:?}");
    assert!(facts.fsync && facts.full_page_writes, "{facts:?}");
    let text = store.describe().await.expect("it is known");
    assert_eq!(text, format!("PostgreSQL {}", facts.version_text));
    store.ping().await.expect("it answers");
}

#[tokio::test]
async fn database_that_nobody_migrated_says_what_to_do() {
    let temp = Temp::create().await;
    let store = PostgresStore::connect(temp.config()).await.expect("opens");
    assert_eq!(store.schema_status().await.expect("known"), SchemaStatus::Older { found: 0, wanted: 1 });
    let StoreError::Schema(words) = store.sample().await.expect_err("no tables") else { panic!("schema") };
    assert!(words.contains("pombo migrate"), "{words}");
}

/// S7: every limit that the server keeps for us is below the lease.
#[tokio::test]
async fn statements_run_under_limits_below_the_lease_with_and_without_a_pooler() {
    let temp = Temp::create().await;
    for pooling in [Pooling::Session, Pooling::Transaction] {
        let config = PostgresConfig { pooling, lease_ttl: Duration::from_secs(9), ..temp.config() };
        let store = PostgresStore::connect(config).await.expect("opens");
        store.migrate().await.expect("the schema comes up");
        let mut prompt = temp.prompt().await;
        prompt
            .execute("CREATE TABLE seen AS SELECT current_setting('statement_timeout') AS t LIMIT 0")
            .await
            .expect("a table");
        prompt
            .execute(
                "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   INSERT INTO seen VALUES (current_setting('statement_timeout')); RETURN NEW; END $$;
                 CREATE TRIGGER look BEFORE INSERT ON pombo.session FOR EACH ROW EXECUTE FUNCTION look()",
            )
            .await
            .expect("a trigger");
        let scene_session =
            pombo_store::conformance::scene::open_session(&*store, pombo_store::conformance::scene::LONG)
                .await;
        assert!(scene_session.0 > 0);
        let seen: String =
            sqlx::query_scalar("SELECT t FROM seen").fetch_one(&mut prompt).await.expect("it was seen");
        assert_eq!(seen, "3s", "{pooling:?}");
        prompt
            .execute("DROP TRIGGER look ON pombo.session; DROP FUNCTION look(); DROP TABLE seen")
            .await
            .expect("gone");
    }
}

/// Everything works with statements that are never prepared by name and always in a transaction.
#[tokio::test]
async fn walk_goes_on_behind_a_pooler_that_hands_out_connections_per_transaction() {
    let temp = Temp::create().await;
    let config = PostgresConfig { pooling: Pooling::Transaction, ..temp.config() };
    let store = PostgresStore::connect(config).await.expect("opens");
    store.migrate().await.expect("the schema comes up");
    let session = scene::open_session(&*store, scene::LONG).await;
    let walk = scene::Scene { store, session };
    let endpoint = walk.endpoint("acme").await;
    walk.delivered(&endpoint).await;
    walk.send(&endpoint, Placement::Due).await;
    assert_eq!(walk.claim_one().await.attempts, 0);
    let page = walk.store.deliveries(&DeliveryFilter::default(), scene::first(10)).await.expect("lists");
    assert_eq!(page.items.len(), 2);
    assert_eq!(walk.store.check().await.expect("checks").findings, []);
}
