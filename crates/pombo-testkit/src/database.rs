//! A database of the test's own, gone when the test ends.

use std::env;
use std::path::{Path, PathBuf};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tempfile::TempDir;
use uuid::Uuid;

/// The variable in which `cargo xtask test` hands the server's URL to the tests.
pub const POSTGRES_VARIABLE: &str = "POMBO_TEST_POSTGRES";

/// Set by `cargo xtask test` to say that the whole server is removed afterwards.
///
/// Dropping a database makes the server write out and sync all others, 0.4 to 1.8 s each where making one takes
/// 0.2 s, so on such a server they are left: some 8 MB each.
const THROWAWAY_VARIABLE: &str = "POMBO_TEST_POSTGRES_THROWAWAY";

/// An empty PostgreSQL database with a name of its own, gone with this value or with its throw-away server.
#[derive(Debug)]
pub struct TempPostgres {
    name: String,
    server: PgConnectOptions,
    left: bool,
}

impl TempPostgres {
    /// Makes the database on the server that `cargo xtask test` started.
    ///
    /// # Panics
    /// There is no such server: a test that cannot run must not look as if it had passed.
    pub async fn create() -> Self {
        let Ok(url) = env::var(POSTGRES_VARIABLE) else {
            panic!(
                "{POSTGRES_VARIABLE} is not set, so there is no PostgreSQL to test against: run `cargo xtask test`, \
                 or `cargo xtask postgres -- cargo test …`"
            );
        };
        let mut database = Self::create_at(&url).await.expect("the test server makes databases");
        database.left = env::var_os(THROWAWAY_VARIABLE).is_some();
        database
    }

    /// Makes the database on the server of that URL; it is dropped with this value.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn create_at(url: &str) -> sqlx::Result<Self> {
        let server: PgConnectOptions = url.parse()?;
        let name = format!("pombo_test_{}", Uuid::new_v4().simple());
        let mut connection = server.connect().await?;
        // template0: nobody can be connected to it, which would make the copy fail.
        connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"))).await?;
        connection.close().await?;
        Ok(Self { name, server, left: false })
    }

    /// The database's name on the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How to connect to the database.
    pub fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }

    /// The same as a URL.
    pub fn url(&self) -> String {
        self.options().to_url_lossy().into()
    }

    /// A connection of its own, for looking at or spoiling what is there.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(&self) -> sqlx::Result<PgConnection> {
        self.options().connect().await
    }

    /// Ends every connection to the database from the server's side and returns how many there were.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn terminate_connections(&self) -> sqlx::Result<u64> {
        let mut connection = self.server.connect().await?;
        let ended = sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1")
            .bind(&self.name)
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(ended.rows_affected())
    }
}

impl Drop for TempPostgres {
    /// Drops the database, whoever is still connected. A failure only leaves it there.
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let server = self.server.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // A thread of its own: `drop` is not async and may run inside a runtime, which must not be blocked on.
        let dropping = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = server.connect().await?;
                connection.execute(AssertSqlSafe(statement)).await?;
                connection.close().await?;
                Ok(())
            })
        });
        let _ = dropping.join();
    }
}

/// A path for a SQLite database in a directory of its own, removed with this value.
#[derive(Debug)]
pub struct TempSqlite {
    directory: TempDir,
}

impl TempSqlite {
    /// Makes the directory; the database is made by whoever opens the path.
    ///
    /// # Panics
    /// No temporary directory can be made.
    pub fn create() -> Self {
        let directory = tempfile::Builder::new().prefix("pombo-sqlite-").tempdir();
        Self { directory: directory.expect("a temporary directory can be made") }
    }

    /// Where the database goes.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("pombo.db")
    }

    /// The directory, for the files that lie beside the database.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{ConnectOptions, Connection, Executor, Row};

    use super::{TempPostgres, TempSqlite};

    async fn exists(beside: &TempPostgres, name: &str) -> sqlx::Result<bool> {
        let mut connection = beside.connect().await?;
        let row = sqlx::query("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(name)
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        row.try_get(0)
    }

    #[tokio::test]
    async fn databases_are_separate_and_dropped_with_connections_open() -> sqlx::Result<()> {
        let second = TempPostgres::create().await;
        let first = TempPostgres::create_at(second.server.to_url_lossy().as_str()).await?;
        let mut connection = first.connect().await?;
        connection.execute("CREATE TABLE only_here (id bigint)").await?;
        let mut other = second.connect().await?;
        assert!(other.execute("SELECT FROM only_here").await.is_err());
        assert!(exists(&second, first.name()).await?);
        let name = first.name().to_owned();
        drop(first);
        assert!(!exists(&second, &name).await?, "dropped although `connection` is open");
        Ok(())
    }

    #[tokio::test]
    async fn url_leads_to_the_database() -> sqlx::Result<()> {
        let database = TempPostgres::create().await;
        let mut connection = sqlx::PgConnection::connect(&database.url()).await?;
        let row = sqlx::query("SELECT current_database()").fetch_one(&mut connection).await?;
        assert_eq!(row.try_get::<String, _>(0)?, database.name());
        Ok(())
    }

    #[tokio::test]
    async fn terminated_connections_are_dead() -> sqlx::Result<()> {
        let database = TempPostgres::create().await;
        let mut connection = database.connect().await?;
        connection.execute("SELECT 1").await?;
        assert_eq!(database.terminate_connections().await?, 1);
        assert!(connection.execute("SELECT 1").await.is_err());
        Ok(())
    }

    #[test]
    fn sqlite_directory_goes_with_the_value() -> std::io::Result<()> {
        let database = TempSqlite::create();
        std::fs::write(database.path(), b"")?;
        let directory = database.directory().to_path_buf();
        assert!(directory.is_dir());
        drop(database);
        assert!(!directory.exists());
        Ok(())
    }
}
