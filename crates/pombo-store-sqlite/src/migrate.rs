//! The schema's version and the steps to it (T9). Our own table; `user_version` belongs to the application.

use rusqlite::{Connection, params};

use pombo_store::StoreError;
use pombo_store::admin::SchemaStatus;
use pombo_store::error::Result;

use crate::error::Fault;
use crate::rows;
use crate::{SqliteStore, Tx};

/// Every step, in order; the first makes version 1.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_walk.sql")];

/// The version this binary knows.
const WANTED: i32 = MIGRATIONS.len() as i32;

/// Whether the tables of version 1 exist.
pub(crate) fn is_set_up(connection: &Connection) -> Result<bool, Fault> {
    Ok(version(connection)? > 0)
}

fn version(connection: &Connection) -> Result<i32, Fault> {
    let table = rows::first(
        connection,
        "sqlite_schema",
        "-- pombo:schema_version_table\n\
         SELECT name FROM sqlite_schema WHERE type = 'table' AND name = 'pombo_schema_version'",
        (),
        |_| Ok(()),
    )?;
    if table.is_none() {
        return Ok(0);
    }
    let version = rows::first(
        connection,
        "schema_version",
        "-- pombo:schema_version\nSELECT coalesce(max(version), 0) FROM pombo_schema_version",
        (),
        |row| row.int(0, "version"),
    )?;
    Ok(version.unwrap_or(0))
}

fn status(connection: &Connection) -> Result<SchemaStatus, Fault> {
    let found = version(connection)?;
    if found == WANTED {
        return Ok(SchemaStatus::Current { version: found });
    }
    if found < WANTED {
        return Ok(SchemaStatus::Older { found, wanted: WANTED });
    }
    let oldest = rows::first(
        connection,
        "config",
        "-- pombo:min_binary\nSELECT min_binary FROM pombo_config WHERE one = 1",
        (),
        |row| row.int::<i32>(0, "min_binary"),
    )?;
    if oldest.is_some_and(|oldest| oldest <= WANTED) {
        Ok(SchemaStatus::NewerCompatible { found, wanted: WANTED })
    } else {
        Ok(SchemaStatus::TooNew { found, wanted: WANTED })
    }
}

/// Runs inside the writer's transaction, so that a step that fails leaves the version before.
fn bring_up(tx: &Tx<'_>) -> Result<i32, Fault> {
    let found = match status(tx)? {
        SchemaStatus::Current { version } => return Ok(version),
        SchemaStatus::NewerCompatible { found, .. } => return Ok(found),
        SchemaStatus::TooNew { found, wanted } => {
            return Err(StoreError::Schema(format!(
                "the database has schema version {found}, which only a newer pombo can run on (this one knows \
                 {wanted}): upgrade pombo"
            ))
            .into());
        }
        SchemaStatus::Older { found, .. } => found,
    };
    tx.execute_batch(
        "-- pombo:create_schema_version\n\
         CREATE TABLE IF NOT EXISTS pombo_schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL)",
    )?;
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found as usize) {
        tx.execute_batch(sql)?;
        rows::change(
            tx,
            "-- pombo:schema_step\nINSERT INTO pombo_schema_version (version, applied_at) VALUES (?1, ?2)",
            params![step as i64 + 1, tx.now.as_micros()],
        )?;
    }
    Ok(WANTED)
}

impl SqliteStore {
    pub(crate) async fn read_schema_status(&self) -> Result<SchemaStatus> {
        self.read(|tx| status(tx)).await
    }

    pub(crate) async fn bring_schema_up(&self) -> Result<i32> {
        self.write(bring_up).await
    }
}
