//! The databases that are measured: made beside the one named, and dropped again. The one named is not touched.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;
use uuid::Uuid;

use super::messages::{Layout, Where};
use crate::cli::bench::event::{KIND, PADDING};

/// Rows of one statement that fills an outbox.
const FILL_ROWS: u64 = 10_000;

/// What `--database` names.
#[derive(Debug, Clone)]
pub(super) enum Named {
    /// Files in this directory; without one, in the system's temporary directory.
    Sqlite(Option<PathBuf>),
    /// Databases on this server.
    Postgres(Box<PgConnectOptions>),
}

/// A database of the bench's own, dropped with this value, and a directory beside it.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: TempDir,
    postgres: Option<ScratchPostgres>,
}

#[derive(Debug)]
struct ScratchPostgres {
    server: PgConnectOptions,
    name: String,
}

impl Scratch {
    /// Makes a new one.
    pub(super) async fn make(named: &Named) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("pombo-bench-");
        let directory = match named {
            Named::Sqlite(Some(beside)) => builder.tempdir_in(beside),
            _ => builder.tempdir(),
        };
        let directory = directory.context("cannot make a directory for the scratch database")?;
        let postgres = match named {
            Named::Sqlite(_) => None,
            Named::Postgres(server) => Some(ScratchPostgres::make(server).await?),
        };
        Ok(Self { directory, postgres })
    }

    /// For logs, and the file of SQLite.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// As `--database` takes it.
    pub(super) fn url(&self) -> String {
        match self.place() {
            Where::Sqlite(path) => format!("sqlite:{}", path.display()),
            Where::Postgres(url) => url,
        }
    }

    /// Where it is.
    pub(super) fn place(&self) -> Where {
        match &self.postgres {
            None => Where::Sqlite(self.directory().join("pombo.db")),
            Some(postgres) => Where::Postgres(postgres.options().to_url_lossy().into()),
        }
    }

    /// A connection of its own; `None` for SQLite.
    pub(super) async fn connect(&self) -> Result<Option<PgConnection>> {
        match &self.postgres {
            None => Ok(None),
            Some(postgres) => {
                Ok(Some(postgres.options().connect().await.context("cannot reach the scratch database")?))
            }
        }
    }

    /// Fills the outbox: events `0..rows` of a run, dealt out over the tenants. Calls `filled` as it goes on.
    pub(super) async fn fill(&self, run: u64, tenants: u64, rows: u64, filled: impl Fn(u64)) -> Result<()> {
        let chunks = (0..rows).step_by(FILL_ROWS as usize).map(|from| (from, (from + FILL_ROWS).min(rows)));
        match self.place() {
            Where::Postgres(_) => {
                let mut connection = self.connect().await?.context("a server has connections")?;
                for (from, to) in chunks {
                    connection.execute(AssertSqlSafe(fill_postgres(run, tenants, from, to))).await?;
                    filled(to);
                }
                connection.close().await?;
            }
            Where::Sqlite(path) => {
                let connection = rusqlite::Connection::open(path)?;
                for (from, to) in chunks {
                    connection.execute_batch(&fill_sqlite(run, tenants, from, to))?;
                    filled(to);
                }
            }
        }
        Ok(())
    }
}

fn fill_postgres(run: u64, tenants: u64, from: u64, to: u64) -> String {
    let (tenant, last) = (Layout::tenant(0).replace('0', ""), to - 1);
    format!(
        "INSERT INTO pombo.outbox (tenant, type, data) \
         SELECT '{tenant}' || (n % {tenants}), '{KIND}', \
         '{{\"run\":{run},\"n\":' || n || ',\"at\":0,\"text\":\"{PADDING}\"}}' \
         FROM generate_series({from}, {last}) AS n ORDER BY n"
    )
}

fn fill_sqlite(run: u64, tenants: u64, from: u64, to: u64) -> String {
    let (tenant, last) = (Layout::tenant(0).replace('0', ""), to - 1);
    format!(
        "INSERT INTO pombo_outbox (tenant, type, data) \
         WITH RECURSIVE series(n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM series WHERE n < {last}) \
         SELECT '{tenant}' || (n % {tenants}), '{KIND}', \
         '{{\"run\":{run},\"n\":' || n || ',\"at\":0,\"text\":\"{PADDING}\"}}' FROM series"
    )
}

impl ScratchPostgres {
    async fn make(server: &PgConnectOptions) -> Result<Self> {
        let name = format!("pombo_bench_{}", Uuid::new_v4().simple());
        let mut connection = server.connect().await.context("cannot reach the PostgreSQL server")?;
        let made =
            connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"))).await;
        made.context("cannot make a scratch database: the user needs CREATEDB")?;
        connection.close().await?;
        Ok(Self { server: server.clone(), name })
    }

    fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }
}

impl Drop for ScratchPostgres {
    /// Drops the database, whoever is still connected. A failure only leaves it there.
    fn drop(&mut self) {
        let server = self.server.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // A thread of its own: `drop` is not async and runs inside the runtime, which must not be blocked on.
        let dropping = std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = server.connect().await?;
                connection.execute(AssertSqlSafe(statement)).await?;
                connection.close().await?;
                Ok(())
            })
        });
        if !matches!(dropping.join(), Ok(Ok(()))) {
            crate::output::note(&format!("the scratch database {} could not be dropped", self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::event::{Mark, mark_of};

    #[test]
    fn filled_rows_are_the_events_of_their_run() -> Result<()> {
        let connection = rusqlite::Connection::open_in_memory()?;
        connection.execute_batch("CREATE TABLE pombo_outbox (tenant TEXT, type TEXT, data TEXT)")?;
        connection.execute_batch(&fill_sqlite(7, 8, 10, 13))?;
        let mut statement = connection.prepare("SELECT tenant, data FROM pombo_outbox ORDER BY rowid")?;
        let rows: Vec<(String, String)> =
            statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].0, Layout::tenant(2));
        let mark = Mark { run: 7, number: 12, sent_at: 0 };
        assert_eq!(mark_of(rows[2].1.as_bytes()), Some(mark));
        assert_eq!(rows[2].1, crate::cli::bench::event::data(mark), "the same bytes as by the API");
        Ok(())
    }
}
