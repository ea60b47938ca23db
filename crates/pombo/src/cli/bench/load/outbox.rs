//! An application that writes single rows into the outbox, each in a transaction of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use sqlx::{Connection as _, PgConnection};

use super::LATE;
use crate::cli::bench::event::{self, KIND, Mark};
use crate::cli::bench::latency::Histogram;
use crate::cli::bench::messages::{Layout, OutboxLoad, Sent, Where};

/// How long an insert waits for other writers of the same file, as applications are told to set it.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// Inserts the rows. The moment in each is that before its transaction, so that latencies include the commit.
pub(super) async fn insert(load: OutboxLoad) -> Result<Sent> {
    let started_at = event::now();
    let latency = match load.database.clone() {
        Where::Postgres(url) => postgres(&load, &url).await?,
        Where::Sqlite(path) => {
            let rows = Rows::of(&load);
            tokio::task::spawn_blocking(move || sqlite(rows, &path)).await??
        }
    };
    Ok(Sent {
        numbered: load.rows,
        not_accepted: Vec::new(),
        refusal: None,
        started_at,
        ended_at: event::now(),
        latency: latency.summary(),
    })
}

/// The rows, one after the other.
struct Rows {
    run: u64,
    tenants: u64,
    length: u64,
    next: u64,
    begin: Instant,
    rate: f64,
}

impl Rows {
    fn of(load: &OutboxLoad) -> Self {
        let OutboxLoad { run, tenants, rows, rate, .. } = *load;
        Self { run, tenants, length: rows, next: 0, begin: Instant::now(), rate }
    }

    /// When the next is due.
    fn due(&self) -> Option<Instant> {
        let due = self.begin + Duration::from_secs_f64(self.next as f64 / self.rate);
        (self.next < self.length).then_some(due)
    }

    /// The next, as it is due now: tenant, data, the moment.
    fn take(&mut self, due: Instant) -> (String, String, i64) {
        let late = due.elapsed();
        let late_micros = if late > LATE { late.as_micros() as i64 } else { 0 };
        let sent_at = event::now() - late_micros;
        let data = event::data(Mark { run: self.run, number: self.next, sent_at });
        let tenant = Layout::tenant(self.next % self.tenants);
        self.next += 1;
        (tenant, data, sent_at)
    }
}

async fn postgres(load: &OutboxLoad, url: &str) -> Result<Histogram> {
    let mut connection = PgConnection::connect(url).await.context("the load cannot reach PostgreSQL")?;
    let mut latency = Histogram::default();
    let mut rows = Rows::of(load);
    while let Some(due) = rows.due() {
        tokio::time::sleep_until(due.into()).await;
        let (tenant, data, sent_at) = rows.take(due);
        sqlx::query("INSERT INTO pombo.outbox (tenant, type, data) VALUES ($1, $2, $3)")
            .bind(tenant)
            .bind(KIND)
            .bind(data)
            .execute(&mut connection)
            .await
            .context("cannot insert into pombo.outbox")?;
        latency.add((event::now() - sent_at).max(0) as u64);
    }
    connection.close().await?;
    Ok(latency)
}

fn sqlite(mut rows: Rows, path: &Path) -> Result<Histogram> {
    let connection = rusqlite::Connection::open(path).context("the load cannot open the database")?;
    connection.busy_timeout(BUSY_MAX)?;
    let mut insert = connection
        .prepare("INSERT INTO pombo_outbox (tenant, type, data) VALUES (?1, ?2, ?3)")
        .context("cannot insert into pombo_outbox")?;
    let mut latency = Histogram::default();
    while let Some(due) = rows.due() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let (tenant, data, sent_at) = rows.take(due);
        insert.execute((tenant, KIND, data)).context("cannot insert into pombo_outbox")?;
        latency.add((event::now() - sent_at).max(0) as u64);
    }
    Ok(latency)
}
