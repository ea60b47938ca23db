//! A database file of its own for every test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use uuid::Uuid;

use pombo_domain::clock::Timestamp;
use pombo_store::Store;
use pombo_store::admin::Admin;
use pombo_store::conformance::Database;
use pombo_store::keyring::Keyring;
use pombo_store_sqlite::{SqliteConfig, SqliteStore};

/// A directory with a database in it, removed at the end.
pub(crate) struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory for the test") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("pombo.db")
    }

    pub(crate) fn config(&self) -> SqliteConfig {
        config_of(&self.path())
    }

    /// Opens the store, migrated.
    pub(crate) async fn store(&self) -> Arc<SqliteStore> {
        let store = SqliteStore::open(self.config()).expect("the store opens");
        store.migrate().await.expect("the schema is brought up");
        store
    }

    /// A connection as an application has it.
    pub(crate) fn application(&self) -> Connection {
        let connection = Connection::open(self.path()).expect("an application opens the file");
        connection.busy_timeout(Duration::from_secs(5)).expect("a timeout is set");
        connection
    }
}

pub(crate) fn config_of(path: &Path) -> SqliteConfig {
    SqliteConfig::new(path, Arc::new(Keyring::new(&[7; 32])))
}

#[async_trait]
impl Database for Scratch {
    async fn open(&self) -> Arc<dyn Store> {
        self.store().await
    }

    async fn reopen(&self, old: Arc<dyn Store>) -> Arc<dyn Store> {
        assert_eq!(Arc::strong_count(&old), 1, "the only handle");
        drop(old);
        self.store().await
    }

    fn table(&self, name: &str) -> String {
        format!("pombo_{name}")
    }

    fn uuid(&self, id: Uuid) -> String {
        format!("x'{}'", id.simple())
    }

    fn time(&self, at: Timestamp) -> String {
        at.as_micros().to_string()
    }

    async fn execute(&self, sql: &str) -> u64 {
        self.application().execute(sql, ()).unwrap_or_else(|error| panic!("{sql}: {error}")) as u64
    }

    async fn number(&self, sql: &str) -> i64 {
        let connection = self.application();
        let number = connection.query_row(sql, (), |row| row.get(0));
        number.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn holds(&self, needle: &[u8]) -> bool {
        let finds = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        let files = std::fs::read_dir(self.directory.path()).expect("the directory is read");
        let in_files = files
            .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file is read"))
            .any(|bytes| finds(&bytes));
        in_files || in_tables(&self.application(), finds)
    }
}

/// Pages split long values, so the columns are looked at too.
fn in_tables(connection: &Connection, finds: impl Fn(&[u8]) -> bool) -> bool {
    let names: Vec<String> = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'pombo%'")
        .and_then(|mut statement| statement.query_map((), |row| row.get(0))?.collect())
        .expect("the tables are listed");
    names.iter().any(|name| {
        let mut statement = connection.prepare(&format!("SELECT * FROM {name}")).expect("a table is read");
        let columns = statement.column_count();
        let mut rows = statement.query(()).expect("a table is read");
        while let Some(row) = rows.next().expect("a row is read") {
            let found = (0..columns).any(|column| match row.get_ref(column).expect("a column is read") {
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => finds(bytes),
                _ => false,
            });
            if found {
                return true;
            }
        }
        false
    })
}
