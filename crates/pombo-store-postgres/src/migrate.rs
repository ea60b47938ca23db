//! The schema: forward only, under a lock, expand-only (docs/protocol.md T9).

use pombo_store::StoreError;
use pombo_store::admin::SchemaStatus;
use sqlx::{PgConnection, Row};

use crate::PostgresStore;
use crate::error::Fault;
use crate::pool::{Durability, statement, transaction};

/// A step of the schema. Its number and name are the same on SQLite.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, name: "walk", sql: include_str!("../migrations/0001_walk.sql") }];

/// The schema this binary knows.
pub(crate) const VERSION: i32 = 1;

/// Transaction-scoped locks (`pg_advisory_xact_lock`): two numbers, the first says that it is Pombo's.
pub(crate) const LOCK_SPACE: i32 = 0x706f_6d62;
const LOCK_MIGRATION: i32 = 1;

const MIGRATIONS_TABLE: &str = "-- pombo:migrations_table
CREATE TABLE IF NOT EXISTS pombo.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)";

/// Steps may take long on a database that is full; waiting for the lock may too.
const LIMITS: &str = "SET LOCAL statement_timeout = '10min'; SET LOCAL lock_timeout = '60s'";
/// A step that changes a table in use must not make everybody queue behind it.
const STEP_LIMITS: &str = "SET LOCAL lock_timeout = '5s'";

pub(crate) async fn status(store: &PostgresStore) -> Result<SchemaStatus, StoreError> {
    let read = statement!(store.pools, read, crate::error::Phase::Before, |connection| found(connection));
    Ok(judge(read.map_err(StoreError::from)?))
}

fn judge(found: Option<(i32, i32)>) -> SchemaStatus {
    let (found, min_binary) = found.unwrap_or((0, 0));
    match found {
        VERSION => SchemaStatus::Current { version: VERSION },
        older if older < VERSION => SchemaStatus::Older { found: older, wanted: VERSION },
        newer if min_binary <= VERSION => SchemaStatus::NewerCompatible { found: newer, wanted: VERSION },
        newer => SchemaStatus::TooNew { found: newer, wanted: VERSION },
    }
}

/// Version of the schema and the smallest that a binary must know; `None` where nothing is there.
async fn found(connection: &mut PgConnection) -> Result<Option<(i32, i32)>, Fault> {
    let exists: bool = sqlx::query_scalar(
        "-- pombo:schema_exists
SELECT to_regclass('pombo.migration') IS NOT NULL",
    )
    .fetch_one(&mut *connection)
    .await?;
    if !exists {
        return Ok(None);
    }
    let row = sqlx::query(
        "-- pombo:schema_version
SELECT (SELECT max(version) FROM pombo.migration) AS version,
       (SELECT min_binary FROM pombo.config WHERE one) AS min_binary",
    )
    .fetch_one(connection)
    .await?;
    let version: Option<i32> = row.try_get("version")?;
    let min_binary: Option<i32> = row.try_get("min_binary")?;
    Ok(version.map(|version| (version, min_binary.unwrap_or(0))))
}

pub(crate) async fn migrate(store: &PostgresStore) -> Result<i32, StoreError> {
    let mut pools = store.pools.clone();
    pools.silence = std::time::Duration::from_secs(660);
    let version: i32 = transaction!(pools, read, Durability::Synchronous, |connection| bring_up(connection))?;
    // The first events need not be the ones that make their day.
    store.make_days_ahead(1).await?;
    Ok(version)
}

async fn bring_up(connection: &mut PgConnection) -> Result<i32, Fault> {
    sqlx::raw_sql(LIMITS).execute(&mut *connection).await?;
    // Whoever comes second waits here and then finds nothing to do.
    sqlx::query(
        "-- pombo:migration_lock
SELECT pg_advisory_xact_lock($1, $2)",
    )
    .bind(LOCK_SPACE)
    .bind(LOCK_MIGRATION)
    .execute(&mut *connection)
    .await?;
    let found = found(connection).await?;
    if let SchemaStatus::TooNew { found, wanted } = judge(found) {
        return Err(Fault::Store(StoreError::Schema(format!(
            "the database has schema {found}, and this version of Pombo knows {wanted}: install a newer one"
        ))));
    }
    let version = found.map_or(0, |(version, _)| version);
    if version >= VERSION {
        return Ok(version);
    }
    // Asked first: a role that may not create a schema can still migrate one that was made for it.
    let has_schema: bool = sqlx::query_scalar(
        "-- pombo:has_schema
SELECT to_regnamespace('pombo') IS NOT NULL",
    )
    .fetch_one(&mut *connection)
    .await?;
    if !has_schema {
        sqlx::raw_sql("CREATE SCHEMA pombo").execute(&mut *connection).await?;
    }
    sqlx::raw_sql(MIGRATIONS_TABLE).execute(&mut *connection).await?;
    sqlx::raw_sql(STEP_LIMITS).execute(&mut *connection).await?;
    for step in MIGRATIONS.iter().filter(|step| step.version > version) {
        sqlx::raw_sql(step.sql).execute(&mut *connection).await?;
        sqlx::query(
            "-- pombo:migration_done
INSERT INTO pombo.migration (version, name) VALUES ($1, $2)",
        )
        .bind(step.version)
        .bind(step.name)
        .execute(&mut *connection)
        .await?;
        tracing::info!(version = step.version, "brought the schema to version {}", step.version);
    }
    Ok(VERSION)
}

#[cfg(test)]
mod tests {
    use super::{MIGRATIONS, SchemaStatus, VERSION, judge};

    #[test]
    fn migrations_are_numbered_without_gaps_up_to_the_version_of_this_binary() {
        let numbers: Vec<i32> = MIGRATIONS.iter().map(|step| step.version).collect();
        assert_eq!(numbers, (1..=VERSION).collect::<Vec<_>>());
    }

    #[test]
    fn newer_schema_is_refused_only_below_min_binary() {
        assert_eq!(judge(None), SchemaStatus::Older { found: 0, wanted: VERSION });
        assert_eq!(judge(Some((VERSION, 1))), SchemaStatus::Current { version: VERSION });
        let newer = VERSION + 1;
        assert_eq!(
            judge(Some((newer, VERSION))),
            SchemaStatus::NewerCompatible { found: newer, wanted: VERSION }
        );
        assert_eq!(judge(Some((newer, newer))), SchemaStatus::TooNew { found: newer, wanted: VERSION });
    }
}
