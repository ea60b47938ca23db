//! What PostgreSQL counted: write-ahead log, and statements where it counts them.

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};

use super::scratch::Scratch;

/// Counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    /// Bytes of write-ahead log of the whole server.
    pub(super) wal_bytes: i64,
    /// Transactions of the scratch database, by pg_stat_database; reaches us up to a second late.
    pub(super) transactions: i64,
    /// Statements of the scratch database, where pg_stat_statements is loaded.
    pub(super) statements: Option<i64>,
}

impl Counters {
    /// Reads them; `None` for SQLite, which counts nothing.
    pub(super) async fn read(scratch: &Scratch) -> Result<Option<Self>> {
        let Some(mut connection) = scratch.connect().await? else { return Ok(None) };
        let (wal_bytes, transactions) = sqlx::query_as(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, \
             (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database())",
        )
        .fetch_one(&mut connection)
        .await?;
        let statements = statements(&mut connection).await;
        connection.close().await?;
        Ok(Some(Self { wal_bytes, transactions, statements }))
    }

    /// What was counted since.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            wal_bytes: self.wal_bytes - before.wal_bytes,
            transactions: self.transactions - before.transactions,
            statements: self.statements.zip(before.statements).map(|(now, before)| now - before),
        }
    }
}

/// Absent where the extension is not installed, not loaded, or not ours to read.
async fn statements(connection: &mut PgConnection) -> Option<i64> {
    sqlx::query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&mut *connection).await.ok()?;
    let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
         WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
    sqlx::query_scalar(calls).fetch_one(connection).await.ok()
}

/// The server's version.
pub(super) async fn version(scratch: &Scratch) -> Result<String> {
    match scratch.connect().await? {
        None => Ok(format!("SQLite {}", rusqlite::version())),
        Some(mut connection) => {
            let version: String =
                sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?;
            let fsync: String = sqlx::query_scalar("SHOW fsync").fetch_one(&mut connection).await?;
            connection.close().await?;
            Ok(format!("PostgreSQL {version} (fsync {fsync})"))
        }
    }
}
