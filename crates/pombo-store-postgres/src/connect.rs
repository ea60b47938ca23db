//! The first connection: is anybody there, and will it do?

use std::time::Duration;

use pombo_store::StoreError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Row};

use crate::error::{self, Fault, Phase};
use crate::pool::Limits;
use crate::{Pooling, PostgresConfig};

/// Oldest and first unknown major version.
const VERSIONS: std::ops::Range<i32> = 14..19;

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The whole number, such as 150018.
    pub version: i32,
    /// As shown, such as `15.18`.
    pub version_text: String,
    /// Setting `fsync`: off, a crash of the machine loses accepted events.
    pub fsync: bool,
    /// Setting `full_page_writes`: off, a crash of the machine may tear pages.
    pub full_page_writes: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("no PostgreSQL server answers at {place}: {cause}")]
struct NobodyThere {
    place: String,
    cause: String,
}

pub(crate) async fn probe(config: &PostgresConfig) -> Result<(PgConnectOptions, ServerFacts), StoreError> {
    // The parser's own words may repeat the text, which holds a password.
    let options: PgConnectOptions = config.url.expose().parse().map_err(|_| {
        StoreError::Denied("its address must be like postgres://user:password@host:5432/database".to_owned())
    })?;
    let options = options
        .application_name("pombo")
        .log_slow_statements(tracing::log::LevelFilter::Off, Duration::ZERO)
        .log_statements(tracing::log::LevelFilter::Off);
    let connecting = tokio::time::timeout(config.acquire_timeout, options.connect());
    let mut connection = match connecting.await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(unreachable_or_denied(&options, error)),
        Err(_) => return Err(nobody_there(&options, "it does not answer in time")),
    };
    let facts = read_facts(&mut connection).await?;
    // Nothing is lost if the server has already hung up.
    drop(connection.close().await);
    let options = match config.pooling {
        Pooling::Session => options.options(Limits::below(config.lease_ttl).options(facts.version)),
        Pooling::Transaction => options.statement_cache_capacity(0),
    };
    Ok((options, facts))
}

fn unreachable_or_denied(options: &PgConnectOptions, error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Io(error) => nobody_there(options, &error.to_string()),
        error => error::final_error(Fault::Sql(error), Phase::Before),
    }
}

fn nobody_there(options: &PgConnectOptions, cause: &str) -> StoreError {
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    StoreError::Unavailable(NobodyThere { place, cause: cause.to_owned() }.into())
}

const FACTS: &str = "-- pombo:server_facts
SELECT current_setting('server_version_num')::int AS version,
       split_part(current_setting('server_version'), ' ', 1) AS version_text,
       current_setting('server_encoding') AS encoding,
       current_setting('fsync')::bool AS fsync,
       current_setting('full_page_writes')::bool AS full_page_writes";

async fn read_facts(connection: &mut PgConnection) -> Result<ServerFacts, StoreError> {
    let failed = |error| error::final_error(Fault::Sql(error), Phase::Before);
    let row = sqlx::query(FACTS).persistent(false).fetch_one(connection).await.map_err(failed)?;
    let facts = ServerFacts {
        version: row.try_get("version").map_err(failed)?,
        version_text: row.try_get("version_text").map_err(failed)?,
        fsync: row.try_get("fsync").map_err(failed)?,
        full_page_writes: row.try_get("full_page_writes").map_err(failed)?,
    };
    if !VERSIONS.contains(&(facts.version / 10_000)) {
        return Err(StoreError::Schema(format!(
            "the server is PostgreSQL {}; Pombo is made for 14 to 18",
            facts.version_text
        )));
    }
    let encoding: String = row.try_get("encoding").map_err(failed)?;
    if encoding != "UTF8" {
        return Err(StoreError::Schema(format!(
            "the database is encoded in {encoding}; Pombo needs one made with ENCODING 'UTF8'"
        )));
    }
    Ok(facts)
}
