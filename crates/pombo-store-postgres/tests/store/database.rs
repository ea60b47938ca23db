//! A database for each test, seen as a store and as a person at a prompt sees it.

use std::sync::Arc;

use async_trait::async_trait;
use pombo_domain::clock::Timestamp;
use pombo_domain::secret::SecretText;
use pombo_store::Store;
use pombo_store::admin::Admin as _;
use pombo_store::conformance::Database;
use pombo_store::keyring::Keyring;
use pombo_store_postgres::{PostgresConfig, PostgresStore};
use pombo_testkit::database::TempPostgres;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use uuid::Uuid;

/// A database of Pombo.
pub(crate) struct Temp {
    pub(crate) postgres: TempPostgres,
}

pub(crate) async fn fresh() -> Box<dyn Database> {
    Box::new(Temp::create().await)
}

impl Temp {
    pub(crate) async fn create() -> Self {
        Self { postgres: TempPostgres::create().await }
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        let mut config =
            PostgresConfig::new(SecretText::new(self.postgres.url()), Arc::new(Keyring::new(&[7; 32])));
        // Sixty tests at a time share one server.
        config.accept_connections = 2;
        config.flush_connections = 1;
        config.walk_connections = 2;
        config.read_connections = 2;
        config.acquire_timeout = std::time::Duration::from_secs(30);
        config
    }

    pub(crate) async fn store(&self) -> Arc<PostgresStore> {
        let store = PostgresStore::connect(self.config()).await.expect("the database can be opened");
        store.migrate().await.expect("the schema comes up");
        store
    }

    pub(crate) async fn prompt(&self) -> PgConnection {
        self.postgres.connect().await.expect("the server takes a connection")
    }
}

#[async_trait]
impl Database for Temp {
    async fn open(&self) -> Arc<dyn Store> {
        self.store().await
    }

    async fn reopen(&self, old: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(old);
        self.store().await
    }

    fn table(&self, name: &str) -> String {
        format!("pombo.{name}")
    }

    fn uuid(&self, id: Uuid) -> String {
        format!("'{id}'::uuid")
    }

    fn time(&self, at: Timestamp) -> String {
        if at == Timestamp::INFINITY {
            return "'infinity'::timestamptz".to_owned();
        }
        format!("(timestamptz 'epoch' + {} * interval '1 microsecond')", at.as_micros())
    }

    async fn execute(&self, sql: &str) -> u64 {
        let mut connection = self.prompt().await;
        let done = connection.execute(AssertSqlSafe(sql.to_owned())).await;
        connection.close().await.expect("a connection closes");
        done.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
    }

    async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.prompt().await;
        let sql = format!("SELECT ({sql})::bigint");
        let number = sqlx::query_scalar(AssertSqlSafe(sql.clone())).fetch_one(&mut connection).await;
        connection.close().await.expect("a connection closes");
        number.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Looks at every row as text, and at the bytes of every `bytea` in it as the dump would write them.
    async fn holds(&self, needle: &[u8]) -> bool {
        let mut connection = self.prompt().await;
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT c.oid::regclass::text FROM pg_class AS c
             WHERE c.relnamespace = 'pombo'::regnamespace AND c.relkind = 'r' AND NOT c.relispartition
             UNION ALL
             SELECT c.oid::regclass::text FROM pg_class AS c
             WHERE c.relnamespace = 'pombo'::regnamespace AND c.relkind = 'p'",
        )
        .fetch_all(&mut connection)
        .await
        .expect("the catalogue can be read");
        assert!(tables.len() > 15, "all tables of Pombo are looked at");
        let hex = needle.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        for table in tables {
            let sql = format!(
                "SELECT EXISTS (SELECT FROM {table} AS x
                 WHERE strpos(x::text, $1) > 0 OR strpos(x::text, $2) > 0)"
            );
            let found: bool = sqlx::query_scalar(AssertSqlSafe(sql))
                .bind(String::from_utf8_lossy(needle).into_owned())
                .bind(&hex)
                .fetch_one(&mut connection)
                .await
                .expect("a table can be read");
            if found {
                return true;
            }
        }
        false
    }
}
