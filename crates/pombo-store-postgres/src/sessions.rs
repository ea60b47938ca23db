//! Sessions and leases (docs/protocol.md, rules S and R3).

use std::time::Duration;

use async_trait::async_trait;
use pombo_domain::delivery::Token;
use pombo_domain::id::{DeliveryId, SessionId};
use pombo_store::error::Result;
use pombo_store::sessions::{Epoch, Heartbeat, LeaseName, NewSession, Release, Renewal, Sessions};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{Fault, Phase};
use crate::pool::{Durability, statement, transaction};
use crate::time::At;

/// What a heartbeat reads, as columns of a statement that writes a session. The server's life is its start
/// time and its timeline (S5).
macro_rules! heartbeat_columns {
    () => {
        "clock_timestamp() AS now,
       pg_postmaster_start_time()::text || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS epoch,
       (SELECT version FROM pombo.config WHERE one) AS config_version,
       ARRAY(SELECT id FROM pombo.session WHERE state = 'live' AND deliver AND NOT draining
             AND expires_at > clock_timestamp() ORDER BY id) AS deliverers,
       CASE current_setting('synchronous_commit') WHEN 'off'
            THEN set_config('synchronous_commit', 'on', true) END AS synchronous"
    };
}

const OPEN: &str = concat!(
    "-- pombo:open_session
WITH opened AS (
  INSERT INTO pombo.session (node, api, relay, deliver, expires_at)
  VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 microsecond') RETURNING id
)
SELECT opened.id, ",
    heartbeat_columns!(),
    " FROM opened"
);

const RENEW: &str = concat!(
    "-- pombo:renew_session
WITH renewed AS (
  UPDATE pombo.session SET expires_at = clock_timestamp() + $2 * interval '1 microsecond'
  WHERE id = $1 AND state = 'live' AND expires_at > clock_timestamp() RETURNING id
)
SELECT renewed.id, ",
    heartbeat_columns!(),
    " FROM renewed"
);

const DRAIN: &str = "-- pombo:drain_session
UPDATE pombo.session SET draining = true WHERE id = $1";

const END: &str = "-- pombo:end_session
UPDATE pombo.session SET state = 'dead', died_at = clock_timestamp() WHERE id = $1 AND state = 'live'";

const BURY: &str = "-- pombo:bury_expired_sessions
UPDATE pombo.session SET state = 'dead', died_at = clock_timestamp()
WHERE state = 'live' AND expires_at < clock_timestamp() RETURNING id";

/// Reads the whole table of live deliveries: 75 ms for a million rows, and no index on owner to keep up on
/// every claim and settle. A dead id never comes back to life, so the list cannot be too old.
const RELEASE_DEAD: &str = "-- pombo:release_dead
WITH abandoned AS MATERIALIZED (
  SELECT id FROM pombo.delivery
  WHERE owner IS NOT NULL
    AND (owner IN (SELECT id FROM pombo.session WHERE state = 'dead')) IS TRUE
  LIMIT $1 FOR UPDATE SKIP LOCKED
), released AS (
  UPDATE pombo.delivery AS d
  SET owner = NULL, gen = d.gen + 1, rescues = least(d.rescues + 1, 32767),
      due_at = greatest(coalesce(d.not_before, clock_timestamp()), clock_timestamp()), not_before = NULL
  WHERE d.id = ANY (ARRAY(SELECT id FROM abandoned)) AND d.owner IS NOT NULL
  RETURNING 1
)
SELECT count(*) AS rows, set_config('synchronous_commit', 'off', true) AS asynchronous FROM released";

const OWNED: &str = "-- pombo:owned
SELECT id, gen FROM pombo.delivery WHERE owner = $1";

pub(crate) const RELEASE: &str = "-- pombo:release
WITH released AS (
  UPDATE pombo.delivery AS d
  SET owner = NULL, gen = d.gen + 1, rescues = least(d.rescues + $4, 32767),
      due_at = greatest(coalesce(d.not_before, clock_timestamp()), clock_timestamp()), not_before = NULL
  WHERE d.id = ANY ($1)
    AND ((d.id, d.owner, d.gen) IN (SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[]))) IS TRUE
  RETURNING 1
)
SELECT count(*) AS rows, set_config('synchronous_commit', 'off', true) AS asynchronous FROM released";

const FORGET: &str = "-- pombo:forget_sessions
DELETE FROM pombo.session AS s
WHERE s.state = 'dead' AND s.died_at < clock_timestamp() - interval '1 day'
  AND NOT EXISTS (SELECT FROM pombo.delivery AS d WHERE d.owner = s.id)";

const LEASE: &str = "-- pombo:lease
SELECT l.holder, l.epoch, s.state IS NOT DISTINCT FROM 'live' AS held
FROM pombo.lease AS l LEFT JOIN pombo.session AS s ON s.id = l.holder WHERE l.name = $1";

/// Waits for the old holder's open transaction, which has locked the row FOR SHARE. The conditions are
/// looked at again on the row that is there after the wait.
const TAKE_LEASE: &str = "-- pombo:take_lease
INSERT INTO pombo.lease AS l (name, holder)
SELECT $1, s.id FROM pombo.session AS s
WHERE s.id = $2 AND s.state = 'live' AND s.expires_at > clock_timestamp()
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, epoch = l.epoch + 1, taken_at = clock_timestamp()
WHERE l.holder = $3
  AND NOT EXISTS (SELECT FROM pombo.session AS old WHERE old.id = l.holder AND old.state = 'live')
RETURNING l.epoch";

fn heartbeat(row: &PgRow) -> sqlx::Result<(SessionId, Heartbeat)> {
    let mut deliverers: Vec<i32> = row.try_get("deliverers")?;
    deliverers.dedup();
    let heartbeat = Heartbeat {
        now: row.try_get::<At, _>("now")?.0,
        epoch: Epoch(row.try_get("epoch")?),
        config_version: row.try_get("config_version")?,
        deliverers: deliverers.into_iter().map(SessionId).collect(),
    };
    Ok((SessionId(row.try_get("id")?), heartbeat))
}

fn micros(span: Duration) -> f64 {
    span.as_micros() as f64
}

async fn open(connection: &mut PgConnection, new: &NewSession) -> Result<(SessionId, Heartbeat), Fault> {
    let row = sqlx::query(OPEN)
        .bind(&new.node)
        .bind(new.roles.api)
        .bind(new.roles.relay)
        .bind(new.roles.deliver)
        .bind(micros(new.ttl))
        .fetch_one(connection)
        .await?;
    let (id, mut heartbeat) = heartbeat(&row)?;
    // The statement cannot see the row that it inserts; a new id is the largest.
    if new.roles.deliver {
        heartbeat.deliverers.push(id);
    }
    Ok((id, heartbeat))
}

async fn renew(connection: &mut PgConnection, id: SessionId, ttl: Duration) -> Result<Renewal, Fault> {
    let row = sqlx::query(RENEW).bind(id.0).bind(micros(ttl)).fetch_optional(connection).await?;
    Ok(match row {
        Some(row) => Renewal::Renewed(heartbeat(&row)?.1),
        None => Renewal::Lost,
    })
}

async fn count(connection: &mut PgConnection, sql: &'static str, limit: u32) -> Result<u32, Fault> {
    let row = sqlx::query(sql).bind(i64::from(limit)).fetch_one(connection).await?;
    Ok(u32::try_from(row.try_get::<i64, _>("rows")?).unwrap_or(u32::MAX))
}

async fn release(connection: &mut PgConnection, tokens: &[Token], why: Release) -> Result<u32, Fault> {
    let columns = TokenColumns::of(tokens.iter().copied());
    let row = sqlx::query(RELEASE)
        .bind(columns.ids)
        .bind(columns.owners)
        .bind(columns.generations)
        .bind(i16::from(why == Release::Rescue))
        .fetch_one(connection)
        .await?;
    Ok(u32::try_from(row.try_get::<i64, _>("rows")?).unwrap_or(u32::MAX))
}

/// Tokens as arrays for a statement, in order of id: two statements that meet lock in the same order.
pub(crate) struct TokenColumns {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) owners: Vec<i32>,
    pub(crate) generations: Vec<i32>,
}

impl TokenColumns {
    pub(crate) fn of(tokens: impl Iterator<Item = Token>) -> Self {
        let mut tokens: Vec<Token> = tokens.collect();
        tokens.sort_unstable_by_key(|token| token.id);
        Self {
            ids: tokens.iter().map(|token| token.id.0).collect(),
            owners: tokens.iter().map(|token| token.owner.0).collect(),
            generations: tokens.iter().map(|token| token.generation).collect(),
        }
    }
}

/// The present holder is asked for without a lock: whoever only keeps a lease, or cannot have it, must not
/// wait for transactions that hold it FOR SHARE.
async fn hold_lease(
    connection: &mut PgConnection,
    name: LeaseName,
    session: SessionId,
) -> Result<Option<i64>, Fault> {
    let found = sqlx::query(LEASE).bind(name.as_str()).fetch_optional(&mut *connection).await?;
    let mut holder = session.0;
    if let Some(row) = found {
        holder = row.try_get("holder")?;
        if row.try_get("held")? {
            return Ok(if holder == session.0 { Some(row.try_get("epoch")?) } else { None });
        }
    }
    let taken = sqlx::query(TAKE_LEASE)
        .bind(name.as_str())
        .bind(session.0)
        .bind(holder)
        .fetch_optional(connection)
        .await?;
    Ok(taken.map(|row| row.try_get("epoch")).transpose()?)
}

async fn run(connection: &mut PgConnection, sql: &'static str, id: SessionId) -> Result<(), Fault> {
    sqlx::query(sql).bind(id.0).execute(connection).await?;
    Ok(())
}

#[async_trait]
impl Sessions for PostgresStore {
    async fn open_session(&self, session: NewSession) -> Result<(SessionId, Heartbeat)> {
        Ok(statement!(self.pools, session, Phase::Commit, |connection| open(connection, &session))?)
    }

    async fn renew_session(&self, id: SessionId, ttl: Duration) -> Result<Renewal> {
        Ok(statement!(self.pools, session, Phase::Commit, |connection| renew(connection, id, ttl))?)
    }

    async fn drain_session(&self, id: SessionId) -> Result<()> {
        let run = transaction!(self.pools, walk, Durability::Synchronous, |connection| {
            run(connection, DRAIN, id)
        });
        Ok(run?)
    }

    async fn end_session(&self, id: SessionId) -> Result<()> {
        let run = transaction!(self.pools, walk, Durability::Synchronous, |connection| {
            run(connection, END, id)
        });
        Ok(run?)
    }

    async fn bury_expired_sessions(&self) -> Result<Vec<SessionId>> {
        let ids = transaction!(self.pools, walk, Durability::Synchronous, |connection| async {
            Ok::<_, Fault>(sqlx::query_scalar::<_, i32>(BURY).fetch_all(connection).await?)
        })?;
        Ok(ids.into_iter().map(SessionId).collect())
    }

    async fn release_dead(&self, limit: u32) -> Result<u32> {
        let released = transaction!(self.pools, walk, Durability::Scanning, |connection| {
            count(connection, RELEASE_DEAD, limit)
        });
        Ok(released?)
    }

    async fn owned(&self, session: SessionId) -> Result<Vec<Token>> {
        let rows = transaction!(self.pools, walk, Durability::Scanning, |connection| async {
            Ok::<_, Fault>(
                sqlx::query_as::<_, (Uuid, i32)>(OWNED).bind(session.0).fetch_all(connection).await?,
            )
        })?;
        let token = |(id, generation)| Token { id: DeliveryId(id), owner: session, generation };
        Ok(rows.into_iter().map(token).collect())
    }

    async fn release(&self, tokens: &[Token], why: Release) -> Result<u32> {
        if tokens.is_empty() {
            return Ok(0);
        }
        Ok(statement!(self.pools, walk, Phase::Commit, |connection| release(connection, tokens, why))?)
    }

    async fn forget_sessions(&self) -> Result<u32> {
        let forgotten = statement!(self.pools, walk, Phase::Commit, |connection| {
            sqlx::query(FORGET).execute(connection)
        })?;
        Ok(u32::try_from(forgotten.rows_affected()).unwrap_or(u32::MAX))
    }

    async fn hold_lease(&self, name: LeaseName, session: SessionId) -> Result<Option<i64>> {
        let taken = transaction!(self.pools, walk, Durability::Synchronous, |connection| {
            hold_lease(connection, name, session)
        });
        Ok(taken?)
    }
}
