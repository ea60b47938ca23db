//! Claiming (docs/protocol.md, rules C).

use async_trait::async_trait;
use bytes::Bytes;
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use pombo_store::claim::{Claim, ClaimRequest, Claimed, ClaimedDelivery, EventBody};
use pombo_store::error::Result;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{Fault, Phase};
use crate::pool::{Durability, statement, transaction};
use crate::rows;
use crate::time::At;

/// Three walks along the index of due rows, each without a sort: half of the claim from rows that became due
/// in the last 5 s, then older ones, then more recent ones if there is room left. The first keeps new events
/// moving while a backlog is worked off, the second keeps the backlog moving.
///
/// `now()` and not `clock_timestamp()`: only a stable value can bound an index scan. `IS TRUE` keeps `shard`
/// out of the planner's sums. Never a cached plan: the table is empty in one minute and has a million rows in
/// the next; and only walks along indexes, see [`Durability::Claiming`].
pub(crate) const CLAIM_DUE: &str = "-- pombo:claim_due
WITH recent AS MATERIALIZED (
  SELECT id, due_at FROM pombo.delivery
  WHERE due_at > greatest($2::timestamptz, now() - interval '5 s') AND due_at <= now()
    AND due_at < 'infinity' AND (shard = ANY ($3::smallint[])) IS TRUE
  ORDER BY due_at LIMIT ($4::bigint + 1) / 2 FOR UPDATE SKIP LOCKED
), older AS MATERIALIZED (
  SELECT id, due_at FROM pombo.delivery
  WHERE due_at > $2::timestamptz AND due_at <= now() - interval '5 s'
    AND due_at < 'infinity' AND (shard = ANY ($3::smallint[])) IS TRUE
  ORDER BY due_at LIMIT $4::bigint - (SELECT count(*) FROM recent) FOR UPDATE SKIP LOCKED
), newer AS MATERIALIZED (
  SELECT id, due_at FROM pombo.delivery
  WHERE due_at >= (SELECT max(due_at) FROM recent) AND due_at <= now()
    AND due_at < 'infinity' AND (shard = ANY ($3::smallint[])) IS TRUE
    AND (id IN (SELECT id FROM recent)) IS NOT TRUE
  ORDER BY due_at
  LIMIT $4::bigint - (SELECT count(*) FROM recent) - (SELECT count(*) FROM older) FOR UPDATE SKIP LOCKED
), picked AS (
  SELECT id, due_at FROM older UNION ALL SELECT id, due_at FROM recent UNION ALL SELECT id, due_at FROM newer
), claimed AS (
  UPDATE pombo.delivery AS d
  SET owner = $1, gen = d.gen + 1, due_at = NULL
  FROM picked WHERE d.id = picked.id
  RETURNING d.id, d.gen, d.event_id, d.event_at, d.type, d.endpoint_id, d.tenant_id, d.attempt, d.rescues,
            d.not_before, picked.due_at AS was_due_at
)
SELECT s.now, s.config_version, c.id, c.gen, c.event_id, c.event_at, c.type, c.endpoint_id, c.tenant_id, c.attempt,
       c.rescues, c.not_before, c.was_due_at,
       (SELECT e.hold_until FROM pombo.endpoint_state AS e
        WHERE e.endpoint_id = c.endpoint_id AND e.hold_until > s.now) AS hold_until
FROM (SELECT clock_timestamp() AS now, version AS config_version FROM pombo.config WHERE one) AS s
LEFT JOIN claimed AS c ON true";

/// The bounds let the server leave out days before it looks; the pairs are matched by the caller.
pub(crate) const BODIES: &str = "-- pombo:bodies
SELECT id, created_at, body, content_type FROM pombo.event
WHERE id = ANY ($1) AND created_at >= $2 AND created_at <= $3
UNION ALL
SELECT event_id, event_at, body, content_type FROM pombo.kept_body WHERE event_id = ANY ($1)";

pub(crate) async fn claim(connection: &mut PgConnection, request: &ClaimRequest) -> Result<Claimed, Fault> {
    let rows = sqlx::query(CLAIM_DUE)
        .persistent(false)
        .bind(request.session.0)
        .bind(request.floor.map_or(At::NEG_INFINITY, At))
        .bind(&request.shards)
        .bind(i64::from(request.limit))
        .fetch_all(connection)
        .await?;
    let Some(first) = rows.first() else { return Err(Fault::Store(rows::missing_config())) };
    let mut claimed = Claimed {
        deliveries: Vec::with_capacity(rows.len()),
        holds: Vec::new(),
        now: first.try_get::<At, _>("now")?.0,
        config_version: first.try_get("config_version")?,
    };
    let mut due: Vec<(Timestamp, ClaimedDelivery)> = Vec::with_capacity(rows.len());
    for row in &rows {
        // The one row without a delivery carries the clock of a claim that found nothing.
        let Some(was_due_at) = row.try_get::<Option<At>, _>("was_due_at")? else { continue };
        let delivery = claimed_delivery(row, request.session)?;
        if let Some(until) = row.try_get::<Option<At>, _>("hold_until")? {
            claimed.holds.push((delivery.endpoint_id, until.0));
        }
        due.push((was_due_at.0, delivery));
    }
    // RETURNING has no order; a sort here keeps one out of the statement.
    due.sort_by_key(|(due_at, delivery)| (*due_at, delivery.token.id));
    claimed.deliveries = due.into_iter().map(|(_, delivery)| delivery).collect();
    claimed.holds.sort_unstable();
    claimed.holds.dedup();
    Ok(claimed)
}

pub(crate) fn claimed_delivery(row: &PgRow, owner: SessionId) -> Result<ClaimedDelivery, Fault> {
    let id: Uuid = row.try_get("id")?;
    let event_at = row.try_get::<At, _>("event_at")?.0;
    Ok(ClaimedDelivery {
        token: Token { id: DeliveryId(id), owner, generation: row.try_get("gen")? },
        event_id: EventId(row.try_get("event_id")?),
        event_at,
        kind: rows::parse("delivery", "type", id, row.try_get("type")?)?,
        endpoint_id: EndpointId(row.try_get("endpoint_id")?),
        tenant_id: TenantId(row.try_get("tenant_id")?),
        created_at: event_at,
        attempts: rows::small(row.try_get("attempt")?),
        rescues: rows::small(row.try_get("rescues")?),
        not_before: row.try_get::<Option<At>, _>("not_before")?.map(|at| at.0),
    })
}

pub(crate) async fn bodies(
    connection: &mut PgConnection,
    events: &[(EventId, Timestamp)],
) -> Result<Vec<EventBody>, Fault> {
    let (Some(first), Some(last)) =
        (events.iter().map(|(_, at)| *at).min(), events.iter().map(|(_, at)| *at).max())
    else {
        return Ok(Vec::new());
    };
    let ids: Vec<Uuid> = events.iter().map(|(id, _)| id.0).collect();
    let rows = sqlx::query(BODIES).bind(ids).bind(At(first)).bind(At(last)).fetch_all(connection).await?;
    let wanted: std::collections::HashSet<(EventId, Timestamp)> = events.iter().copied().collect();
    let mut found = std::collections::HashSet::new();
    let mut bodies = Vec::with_capacity(rows.len());
    for row in rows {
        let id = EventId(row.try_get("id")?);
        let at = row.try_get::<At, _>("created_at")?.0;
        // A body may stand in both places for the moment in which its day goes.
        if wanted.contains(&(id, at)) && found.insert(id) {
            bodies.push(EventBody {
                event_id: id,
                body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
                content_type: row.try_get("content_type")?,
            });
        }
    }
    Ok(bodies)
}

#[async_trait]
impl Claim for PostgresStore {
    async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed> {
        Ok(transaction!(self.pools, walk, Durability::Claiming, |connection| { claim(connection, request) })?)
    }

    async fn bodies(&self, events: &[(EventId, Timestamp)]) -> Result<Vec<EventBody>> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        Ok(statement!(self.pools, walk, Phase::Before, |connection| bodies(connection, events))?)
    }
}
