//! Parked backlogs (docs/protocol.md, rules P).

use async_trait::async_trait;
use pombo_domain::id::EndpointId;
use pombo_store::error::Result;
use pombo_store::parking::{Parking, Unclaim, Wake, Woken};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{Fault, Phase};
use crate::partitions::Day;
use crate::pool::{Failed, statement};
use crate::time::At;

/// By token, as the flush does it.
pub(crate) const UNCLAIM: &str = "-- pombo:unclaim
WITH given_back AS (
  UPDATE pombo.delivery AS d
  SET owner = NULL, gen = d.gen + 1,
      (due_at, not_before) = (
        SELECT greatest(($4::timestamptz[])[p.i], clock_timestamp()),
               nullif(($5::timestamptz[])[p.i], '-infinity')
        FROM (SELECT array_position($1::uuid[], d.id) AS i OFFSET 0) AS p
      )
  WHERE d.id = ANY ($1)
    AND ((d.id, d.owner, d.gen) IN (SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[]))) IS TRUE
  RETURNING 1
)
SELECT count(*) AS rows, set_config('synchronous_commit', 'off', true) AS asynchronous FROM given_back";

/// One jump along the index for each endpoint, whatever the length of its backlog.
pub(crate) const PARKED: &str = "-- pombo:parked_endpoints
WITH RECURSIVE jump AS (
  (SELECT endpoint_id FROM pombo.delivery WHERE due_at = 'infinity' ORDER BY endpoint_id LIMIT 1)
  UNION ALL
  SELECT (SELECT d.endpoint_id FROM pombo.delivery AS d
          WHERE d.due_at = 'infinity' AND d.endpoint_id > jump.endpoint_id ORDER BY d.endpoint_id LIMIT 1)
  FROM jump WHERE jump.endpoint_id IS NOT NULL
)
SELECT endpoint_id FROM jump WHERE endpoint_id IS NOT NULL LIMIT $1";

/// Under the lock of the endpoint's state: two processes wake one after the other, and a status that changes
/// waits (P1). A row keeps the time that it was parked with.
///
/// The update asks `>=`, which is the same here but fits no partial index: planned on a small table, `=` read every
/// parked row of every endpoint to find these (65 ms for 64 rows among 28,000).
pub(crate) const WAKE: &str = "-- pombo:wake
WITH awake AS MATERIALIZED (
  SELECT s.endpoint_id FROM pombo.endpoint_state AS s
  JOIN pombo.endpoint AS e ON e.id = s.endpoint_id
  WHERE s.endpoint_id = $1 AND e.status = 'active' AND e.deleted_at IS NULL
  FOR UPDATE OF s
), picked AS MATERIALIZED (
  SELECT id FROM pombo.delivery
  WHERE endpoint_id = $1 AND due_at = 'infinity' AND EXISTS (SELECT FROM awake)
  ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED
), woken AS (
  UPDATE pombo.delivery AS d
  SET due_at = greatest(coalesce(nullif(d.not_before, 'infinity'), clock_timestamp()), clock_timestamp()),
      not_before = NULL
  WHERE d.id = ANY (ARRAY(SELECT id FROM picked)) AND d.due_at >= 'infinity'
  RETURNING d.due_at <= clock_timestamp() AS is_due
)
SELECT (SELECT count(*) FROM woken WHERE is_due) AS woken,
       EXISTS (SELECT FROM pombo.delivery AS d
               WHERE d.endpoint_id = $1 AND d.due_at = 'infinity'
                 AND (d.id IN (SELECT id FROM picked)) IS NOT TRUE) AS more,
       set_config('synchronous_commit', 'off', true) AS asynchronous";

/// A cancellation is the newest record of its delivery, also where the process that made the last attempt took its
/// clock to be a little ahead.
macro_rules! cancel_rows {
    ($name:literal, $which:literal) => {
        concat!(
            "-- pombo:",
            $name,
            "
WITH doomed AS MATERIALIZED (
  SELECT id FROM pombo.delivery WHERE ",
            $which,
            " LIMIT $1 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM pombo.delivery AS d WHERE d.id = ANY (ARRAY(SELECT id FROM doomed))
  RETURNING d.id, d.event_id, d.event_at, d.endpoint_id, d.tenant_id, d.type, d.gen, d.last_at
), recorded AS (
  INSERT INTO pombo.attempt (delivery_id, started_at, event_id, event_at, endpoint_id, tenant_id, type, n, gen,
                             message, duration_us, response_truncated, settles, late, manual, retryable,
                             session, delivery_created_at)
  SELECT id, greatest(clock_timestamp(), last_at + interval '1 microsecond'), event_id, event_at, endpoint_id,
         tenant_id, type, 0, gen, 'the endpoint was deleted', 0, false, 'cancelled', false, false, false, 0,
         event_at
  FROM gone RETURNING 1
)
SELECT count(*) AS rows FROM recorded"
        )
    };
}

/// Reads the whole table of live deliveries, as the release does: no index is kept up for this alone.
const CANCEL_DELETED: &str = cancel_rows!(
    "cancel_deleted",
    "(endpoint_id IN (SELECT id FROM pombo.endpoint WHERE deleted_at IS NOT NULL)) IS TRUE"
);

const CANCEL_ROWS_OF: &str = cancel_rows!(
    "cancel_rows_of",
    "endpoint_id = $2 AND EXISTS (SELECT FROM pombo.endpoint WHERE id = $2 AND deleted_at IS NOT NULL)"
);

async fn unclaim(connection: &mut PgConnection, rows: &[Unclaim]) -> Result<u32, Fault> {
    let mut rows: Vec<&Unclaim> = rows.iter().collect();
    rows.sort_unstable_by_key(|row| row.token.id);
    let ids: Vec<Uuid> = rows.iter().map(|row| row.token.id.0).collect();
    let owners: Vec<i32> = rows.iter().map(|row| row.token.owner.0).collect();
    let generations: Vec<i32> = rows.iter().map(|row| row.token.generation).collect();
    let due_at: Vec<At> = rows.iter().map(|row| At(row.due_at)).collect();
    let not_before: Vec<At> = rows.iter().map(|row| row.not_before.map_or(At::NEG_INFINITY, At)).collect();
    let row = sqlx::query(UNCLAIM)
        .bind(ids)
        .bind(owners)
        .bind(generations)
        .bind(due_at)
        .bind(not_before)
        .fetch_one(connection)
        .await?;
    count(&row)
}

fn count(row: &sqlx::postgres::PgRow) -> Result<u32, Fault> {
    Ok(u32::try_from(row.try_get::<i64, _>("rows")?).unwrap_or(u32::MAX))
}

async fn wake(connection: &mut PgConnection, wake: Wake) -> Result<Woken, Fault> {
    let row =
        sqlx::query(WAKE).bind(wake.endpoint_id.0).bind(i64::from(wake.room)).fetch_one(connection).await?;
    let woken: i64 = row.try_get("woken")?;
    Ok(Woken { woken: u32::try_from(woken).unwrap_or(u32::MAX), more: row.try_get("more")? })
}

async fn cancel(
    connection: &mut PgConnection,
    endpoint: Option<EndpointId>,
    limit: u32,
) -> Result<u32, Fault> {
    let query = match endpoint {
        Some(id) => sqlx::query(CANCEL_ROWS_OF).bind(i64::from(limit)).bind(id.0),
        None => sqlx::query(CANCEL_DELETED).bind(i64::from(limit)),
    };
    count(&query.fetch_one(connection).await?)
}

impl PostgresStore {
    async fn cancel(&self, endpoint: Option<EndpointId>, limit: u32) -> Result<u32, Failed> {
        let cancelled =
            statement!(self.pools, walk, Phase::Commit, |connection| cancel(connection, endpoint, limit));
        let Err(Failed::Partition(_)) = cancelled else { return cancelled };
        let now = self.now().await?;
        self.make_days([Day::of(now), Day::of(now).plus(1)]).await?;
        statement!(self.pools, walk, Phase::Commit, |connection| cancel(connection, endpoint, limit))
    }
}

#[async_trait]
impl Parking for PostgresStore {
    async fn unclaim(&self, rows: &[Unclaim]) -> Result<u32> {
        if rows.is_empty() {
            return Ok(0);
        }
        Ok(statement!(self.pools, walk, Phase::Commit, |connection| unclaim(connection, rows))?)
    }

    async fn parked_endpoints(&self, limit: u32) -> Result<Vec<EndpointId>> {
        let ids = statement!(self.pools, walk, Phase::Before, |connection| {
            sqlx::query_scalar::<_, Uuid>(PARKED).bind(i64::from(limit)).fetch_all(connection)
        })?;
        Ok(ids.into_iter().map(EndpointId).collect())
    }

    async fn wake(&self, request: Wake) -> Result<Woken> {
        Ok(statement!(self.pools, walk, Phase::Commit, |connection| wake(connection, request))?)
    }

    async fn cancel_deleted(&self, limit: u32) -> Result<u32> {
        Ok(self.cancel(None, limit).await?)
    }

    async fn cancel_rows_of(&self, endpoint_id: EndpointId, limit: u32) -> Result<u32> {
        Ok(self.cancel(Some(endpoint_id), limit).await?)
    }
}
