//! An application that writes its orders and their events in one transaction.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::TransactionBehavior;
use sqlx::{Connection, Executor, PgConnection, Row};

use super::database::Database;

/// How long the shop waits for a lock, as the README tells applications to.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const TABLE: &str = "CREATE TABLE shop_order (key text PRIMARY KEY)";
const ORDERS: &str = "SELECT key FROM shop_order";

/// The event of an order: its data.
pub(crate) fn data(key: &str) -> String {
    format!(r#"{{"key":"{key}"}}"#)
}

/// Makes the shop's own table.
pub(crate) async fn open(database: &Database) -> Result<()> {
    match database {
        Database::Sqlite(file) => {
            let path = file.path();
            tokio::task::spawn_blocking(move || -> Result<()> { Ok(connect(&path)?.execute_batch(TABLE)?) })
                .await?
        }
        Database::Postgres { .. } => {
            database.connect().await?.execute(TABLE).await?;
            Ok(())
        }
    }
}

/// Every order that was committed.
pub(crate) async fn orders(database: &Database) -> Result<BTreeSet<String>> {
    match database {
        Database::Sqlite(file) => {
            let path = file.path();
            tokio::task::spawn_blocking(move || -> Result<BTreeSet<String>> {
                let connection = connect(&path)?;
                let mut statement = connection.prepare(ORDERS)?;
                let keys = statement.query_map([], |row| row.get(0))?;
                Ok(keys.collect::<rusqlite::Result<_>>()?)
            })
            .await?
        }
        Database::Postgres { .. } => {
            let rows = database.connect().await?.fetch_all(ORDERS).await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        }
    }
}

/// A connection to a SQLite file that Pombo writes to as well.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// How an order ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    RollBack,
}

/// Writes an order and its event in one SQLite transaction, and says how long that took.
pub(crate) fn order_in_sqlite(
    connection: &mut rusqlite::Connection,
    key: &str,
    end: End,
) -> rusqlite::Result<Duration> {
    let since = Instant::now();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("INSERT INTO shop_order (key) VALUES (?1)", [key])?;
    transaction.execute("INSERT INTO pombo_outbox (type, data) VALUES ('order.paid', ?1)", [data(key)])?;
    match end {
        End::Commit => transaction.commit()?,
        End::RollBack => transaction.rollback()?,
    }
    Ok(since.elapsed())
}

/// Writes an order and its event in one PostgreSQL transaction.
pub(crate) async fn order_in_postgres(
    connection: &mut PgConnection,
    key: &str,
    end: End,
) -> sqlx::Result<()> {
    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO shop_order (key) VALUES ($1)").bind(key).execute(&mut *transaction).await?;
    sqlx::query("SELECT pombo.publish('order.paid', $1::text)")
        .bind(data(key))
        .execute(&mut *transaction)
        .await?;
    match end {
        End::Commit => transaction.commit().await,
        End::RollBack => transaction.rollback().await,
    }
}
