//! Days of history (docs/protocol.md T7): made ahead, or by the insert that finds none.

use std::collections::BTreeSet;
use std::time::Duration;

use pombo_domain::clock::Timestamp;
use pombo_store::StoreError;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::PostgresStore;
use crate::error::{Fault, Phase};
use crate::migrate::LOCK_SPACE;
use crate::pool::{Durability, statement, transaction};
use crate::time::At;

const LOCK_PARTITIONS: i32 = 2;
const SECONDS_PER_DAY: i64 = 86_400;
/// Days since 1970 between which partitions are made: 1970 to 9999. A bound, not a policy.
const DAYS: std::ops::Range<i64> = 0..2_932_897;

/// Most times that a day is begun, and the wait in between.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Tables of history, one partition per day each.
const TABLES: [&str; 2] = ["event", "attempt"];

/// A day in UTC, counted from 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Day(i64);

impl Day {
    pub(crate) fn of(at: Timestamp) -> Self {
        Self(at.as_secs().div_euclid(SECONDS_PER_DAY))
    }

    pub(crate) fn plus(self, days: u16) -> Self {
        Self(self.0 + i64::from(days))
    }

    fn start(self) -> Timestamp {
        Timestamp::from_secs(self.0 * SECONDS_PER_DAY)
    }

    /// `20261130`.
    fn name(self) -> String {
        self.start().to_string().chars().take(10).filter(char::is_ascii_digit).collect()
    }
}

impl PostgresStore {
    /// Makes the partitions of these days, in both tables.
    pub(crate) async fn make_days(&self, days: impl IntoIterator<Item = Day>) -> Result<(), StoreError> {
        let days: BTreeSet<Day> = days.into_iter().filter(|day| DAYS.contains(&day.0)).collect();
        for day in days {
            self.make_one(day).await?;
        }
        Ok(())
    }

    /// A transaction for each day: the locks it takes stop nobody for longer than that. Who holds them up is
    /// given a few chances to get out of the way.
    async fn make_one(&self, day: Day) -> Result<(), StoreError> {
        for _ in 1..TRIES_MAX {
            let made = transaction!(self.pools, walk, Durability::Synchronous, |connection| make_day(
                connection, day
            ));
            match made.map_err(StoreError::from) {
                Err(StoreError::Busy(_)) => tokio::time::sleep(PAUSE).await,
                made => return made,
            }
        }
        Ok(transaction!(self.pools, walk, Durability::Synchronous, |connection| make_day(connection, day))?)
    }

    /// The database's clock.
    pub(crate) async fn now(&self) -> Result<Timestamp, StoreError> {
        let now = statement!(self.pools, walk, Phase::Before, |connection| {
            sqlx::query_scalar::<_, At>("-- pombo:now\nSELECT clock_timestamp()").fetch_one(connection)
        })?;
        Ok(now.0)
    }

    pub(crate) async fn make_days_ahead(&self, days: u16) -> Result<(), StoreError> {
        let now = self.now().await?;
        let today = Day::of(now);
        self.make_days((0..=days).map(|ahead| today.plus(ahead))).await
    }
}

/// `CREATE TABLE … LIKE` and `ATTACH`: attaching takes a lock that reading and writing go on under, while
/// `PARTITION OF` would lock the whole table exclusively and queue everybody behind it. Bounded to 200 ms, so
/// that a long statement elsewhere holds up nobody behind us either.
async fn make_day(connection: &mut PgConnection, day: Day) -> Result<(), Fault> {
    // Two processes that need the same day: the second waits, and finds it made.
    sqlx::query("-- pombo:partition_lock\nSELECT pg_advisory_xact_lock($1, $2)")
        .bind(LOCK_SPACE)
        .bind(LOCK_PARTITIONS)
        .execute(&mut *connection)
        .await?;
    sqlx::raw_sql("SET LOCAL lock_timeout = '200ms'").execute(&mut *connection).await?;
    for table in TABLES {
        let partition = format!("pombo.{table}_{}", day.name());
        let exists: bool =
            sqlx::query_scalar("-- pombo:partition_exists\nSELECT to_regclass($1) IS NOT NULL")
                .bind(&partition)
                .fetch_one(&mut *connection)
                .await?;
        if exists {
            continue;
        }
        // Every part of this text is a constant or a number.
        let make = format!(
            "CREATE TABLE {partition} (LIKE pombo.{table} INCLUDING ALL); \
             ALTER TABLE pombo.{table} ATTACH PARTITION {partition} FOR VALUES FROM ('{}') TO ('{}')",
            day.start(),
            day.plus(1).start()
        );
        sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut *connection).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Day, Timestamp};

    #[test]
    fn days_begin_at_midnight_utc() {
        let last = Timestamp::parse("2026-11-30T23:59:59.999999Z").expect("a time");
        assert_eq!(Day::of(last).name(), "20261130");
        assert_eq!(Day::of(last.plus(std::time::Duration::from_micros(1))).name(), "20261201");
        assert_eq!(Day::of(last).plus(1).start().to_string(), "2026-12-01T00:00:00.000Z");
    }
}
