//! The database of a test, and looks at what Pombo keeps in it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use pombo_domain::id::{EndpointId, EventId};
use pombo_testkit::database::{TempPostgres, TempSqlite};
use rusqlite::OpenFlags;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use uuid::Uuid;

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// A database that only this test uses.
#[derive(Debug)]
pub(crate) enum Database {
    Sqlite(TempSqlite),
    Postgres {
        options: Box<PgConnectOptions>,
        /// Drops the database at the end; `None` where the whole server goes.
        _kept: Option<Box<TempPostgres>>,
    },
}

/// A delivery that is not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) event: EventId,
    pub(crate) endpoint: EndpointId,
    /// The session that holds it.
    pub(crate) owner: Option<i64>,
}

impl Database {
    pub(crate) async fn create(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite(TempSqlite::create()),
            Kind::Postgres => {
                let database = TempPostgres::create().await;
                Self::Postgres { options: Box::new(database.options()), _kept: Some(Box::new(database)) }
            }
        }
    }

    /// A database on a server of the test's own.
    pub(crate) fn at(options: PgConnectOptions) -> Self {
        Self::Postgres { options: Box::new(options), _kept: None }
    }

    /// What `--database` is given.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(database) => format!("sqlite:{}", database.path().display()),
            Self::Postgres { options, .. } => options.to_url_lossy().into(),
        }
    }

    /// The file of a SQLite database.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        match self {
            Self::Sqlite(database) => Ok(database.path()),
            Self::Postgres { .. } => anyhow::bail!("PostgreSQL is no file"),
        }
    }

    /// A connection as another application has one.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        match self {
            Self::Sqlite(_) => anyhow::bail!("SQLite is opened by its path"),
            Self::Postgres { options, .. } => {
                let options = options.clone().application_name("shop").options([("search_path", "public")]);
                options.connect().await.context("the test's own connection")
            }
        }
    }

    /// Every delivery that is not settled.
    pub(crate) async fn live(&self) -> Result<Vec<Live>> {
        let rows = self.rows("SELECT event_id, endpoint_id, owner FROM {delivery}").await?;
        Ok(rows
            .into_iter()
            .map(|row| Live { event: EventId(row.0), endpoint: EndpointId(row.1), owner: row.2 })
            .collect())
    }

    /// What is known of deliveries that are not settled, for a test that fails over them.
    pub(crate) async fn describe_live(&self) -> Result<String> {
        const SQL: &str = "SELECT count(*) || ' live, owner ' || coalesce(CAST(owner AS text), 'none') || ', gen ' || gen || \
             ', attempt ' || attempt || ', rescues ' || rescues || ', due ' || coalesce(CAST(due_at AS text), 'none') \
             FROM {delivery} GROUP BY owner, gen, attempt, rescues, due_at ORDER BY 1 LIMIT 20";
        const SESSIONS: &str = "SELECT 'session ' || id || ' ' || state FROM {session} ORDER BY id";
        let mut lines = self.texts(SQL).await?;
        lines.extend(self.texts(SESSIONS).await?);
        Ok(lines.join("\n"))
    }

    /// Every attempt of events whose settled deliveries are not as many as they were given.
    pub(crate) async fn describe_unaccounted(&self) -> Result<String> {
        const SQL: &str = "SELECT 'fanout ' || e.fanout || ', origin ' || e.origin || ', delivery ' || CAST(a.delivery_id AS text) || \
             ', n ' || a.n || ', gen ' || a.gen || ', session ' || a.session || ', started ' || CAST(a.started_at AS text) || \
             ', ' || coalesce(a.class, 'no class') || ', settles ' || coalesce(a.settles, 'nothing') || \
             ', late ' || CAST(a.late AS text) \
             FROM {event} AS e JOIN {attempt} AS a ON a.event_id = e.id \
             WHERE e.fanout <> (SELECT count(*) FROM {attempt} AS s WHERE s.event_id = e.id AND s.settles IS NOT NULL) \
             ORDER BY a.delivery_id, a.started_at LIMIT 20";
        Ok(self.texts(SQL).await?.join("\n"))
    }

    async fn texts(&self, sql: &str) -> Result<Vec<String>> {
        let sql = self.sql(sql);
        match self {
            Self::Sqlite(_) => {
                self.read(move |connection| {
                    connection.prepare(&sql)?.query_map([], |row| row.get(0))?.collect()
                })
                .await
            }
            Self::Postgres { .. } => {
                let mut connection = self.connect().await?;
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
                rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
            }
        }
    }

    /// The newest session.
    pub(crate) async fn newest_session(&self) -> Result<i64> {
        self.number("SELECT CAST(coalesce(max(id), 0) AS bigint) FROM {session}").await
    }

    /// Rows that wait in the outbox.
    pub(crate) async fn outbox_len(&self) -> Result<i64> {
        self.number("SELECT count(*) FROM {outbox}").await
    }

    /// The reasons for which rows of the outbox were set aside, by the type they were written with.
    pub(crate) async fn rejected(&self) -> Result<BTreeSet<(String, String)>> {
        const SQL: &str = "SELECT type, reason FROM {outbox_rejected}";
        match self {
            Self::Sqlite(_) => {
                let sql = self.sql(SQL);
                self.read(move |connection| {
                    let mut statement = connection.prepare(&sql)?;
                    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                    rows.collect()
                })
                .await
            }
            Self::Postgres { .. } => {
                let mut connection = self.connect().await?;
                let rows = sqlx::query(AssertSqlSafe(self.sql(SQL))).fetch_all(&mut connection).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
            }
        }
    }

    /// A number that one statement gives.
    pub(crate) async fn number(&self, sql: &str) -> Result<i64> {
        let sql = self.sql(sql);
        match self {
            Self::Sqlite(_) => {
                self.read(move |connection| connection.query_row(&sql, [], |row| row.get(0))).await
            }
            Self::Postgres { .. } => {
                let mut connection = self.connect().await?;
                let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut connection).await?;
                Ok(row.try_get(0)?)
            }
        }
    }

    async fn rows(&self, sql: &str) -> Result<Vec<(Uuid, Uuid, Option<i64>)>> {
        let sql = self.sql(sql);
        match self {
            Self::Sqlite(_) => {
                self.read(move |connection| {
                    let mut statement = connection.prepare(&sql)?;
                    let rows = statement.query_map([], |row| {
                        let [event, endpoint]: [[u8; 16]; 2] = [row.get(0)?, row.get(1)?];
                        Ok((Uuid::from_bytes(event), Uuid::from_bytes(endpoint), row.get(2)?))
                    })?;
                    rows.collect()
                })
                .await
            }
            Self::Postgres { .. } => {
                let mut connection = self.connect().await?;
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
                let read = |row: &sqlx::postgres::PgRow| -> Result<_> {
                    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get::<Option<i32>, _>(2)?.map(i64::from)))
                };
                rows.iter().map(read).collect()
            }
        }
    }

    /// Reads a SQLite database as a stranger would, who may have to wait for a checkpoint.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = self.path()?;
        let looked = tokio::task::spawn_blocking(move || {
            // Read and write: after a kill the first to open the file must be able to recover its log.
            let connection = rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            look(&connection)
        });
        Ok(looked.await??)
    }

    /// `{name}` becomes the name of Pombo's table in this kind of database.
    fn sql(&self, sql: &str) -> String {
        let prefix = match self {
            Self::Sqlite(_) => "pombo_",
            Self::Postgres { .. } => "pombo.",
        };
        sql.replace('{', prefix).replace('}', "")
    }
}
