//! What people do to deliveries (docs/protocol.md, rules M and P3).

use async_trait::async_trait;
use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::shard_of;
use pombo_domain::id::{DeliveryId, EndpointId, SessionId, TenantId};
use pombo_store::admin::Actor;
use pombo_store::error::Result;
use pombo_store::people::{Cancellation, ManualClaim, People, Revival};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::admin::{self, Entry};
use crate::claim::claimed_delivery;
use crate::error::Fault;
use crate::partitions::Day;
use crate::pool::{Durability, Failed, transaction};
use crate::time::At;

/// What the row waited for stays in `not_before`, infinity for a parked one: a failure or a crash gives it back (M1).
const CLAIM: &str = "-- pombo:claim_manually
UPDATE pombo.delivery AS d
SET owner = $2, gen = d.gen + 1, due_at = NULL,
    not_before = CASE WHEN d.due_at < 'infinity' THEN d.due_at ELSE coalesce(d.not_before, d.due_at) END
WHERE d.id = $1 AND d.owner IS NULL
RETURNING d.id, d.gen, d.event_id, d.event_at, d.type, d.endpoint_id, d.tenant_id, d.attempt, d.rescues,
          d.not_before";

const IS_LIVE: &str = "-- pombo:is_live
SELECT EXISTS (SELECT FROM pombo.delivery WHERE id = $1)";

/// Two revivals of one delivery go one after the other, so that the second sees what became of the first: the
/// final record of a cancelled delivery is not taken away as a dead letter is.
const LOCK: &str = "-- pombo:revival_lock
SELECT pg_advisory_xact_lock($1, $2)";
const LOCK_REVIVALS: i32 = 0x706f_0000;

const TAKE_DEAD: &str = "-- pombo:take_dead_letter
DELETE FROM pombo.dead_letter WHERE delivery_id = $1
RETURNING gen, event_id, event_at, endpoint_id, tenant_id, type";

const FINAL: &str = "-- pombo:final_record
SELECT settles, gen, event_id, event_at, endpoint_id, tenant_id, type FROM pombo.attempt
WHERE delivery_id = $1 AND settles IS NOT NULL AND started_at >= $2
ORDER BY started_at DESC LIMIT 1";

/// Largest generation of any attempt: a late one may lie above the final record's.
const LAST_GENERATION: &str = "-- pombo:last_generation
SELECT max(gen) FROM pombo.attempt WHERE delivery_id = $1 AND started_at >= $2";

const REVIVE: &str = "-- pombo:revive
INSERT INTO pombo.delivery (id, event_id, event_at, endpoint_id, tenant_id, type, ordering_key, shard, seq, gen,
                            attempt, rescues, due_at)
SELECT $1, $2, $3, $4, $5, $6,
       (SELECT ordering_key FROM pombo.event WHERE id = $2 AND created_at = $3), $7,
       nextval('pombo.delivery_seq'), $8, 0, 0,
       CASE WHEN e.status = 'active' THEN clock_timestamp() ELSE 'infinity' END
FROM pombo.endpoint AS e WHERE e.id = $4 AND e.deleted_at IS NULL
ON CONFLICT DO NOTHING";

const HAS_BODY: &str = "-- pombo:has_body
SELECT EXISTS (SELECT FROM pombo.event WHERE id = $1 AND created_at = $2)
    OR EXISTS (SELECT FROM pombo.kept_body WHERE event_id = $1)";

/// The newest record of its delivery, also where the process that made the last attempt took its clock to be a little
/// ahead.
const CANCEL: &str = "-- pombo:cancel_delivery
WITH gone AS (
  DELETE FROM pombo.delivery WHERE id = $1
  RETURNING id, event_id, event_at, endpoint_id, tenant_id, type, gen, last_at
), recorded AS (
  INSERT INTO pombo.attempt (delivery_id, started_at, event_id, event_at, endpoint_id, tenant_id, type, n, gen,
                             message, duration_us, response_truncated, settles, late, manual, retryable,
                             session, delivery_created_at)
  SELECT id, greatest(clock_timestamp(), last_at + interval '1 microsecond'), event_id, event_at, endpoint_id,
         tenant_id, type, 0, gen, $2, 0, false, 'cancelled', false, true, false, 0, event_at
  FROM gone
)
SELECT tenant_id FROM gone";

/// The clock of an application may be ahead of the database's, but not by more than a day (it would be set
/// aside): attempts of a delivery begin after this.
fn earliest(id: DeliveryId) -> At {
    At(id.event_at().minus(std::time::Duration::from_secs(2 * 86_400)))
}

async fn is_live(connection: &mut PgConnection, id: DeliveryId) -> Result<bool, Fault> {
    Ok(sqlx::query_scalar(IS_LIVE).bind(id.0).fetch_one(connection).await?)
}

async fn audit(
    connection: &mut PgConnection,
    actor: &Actor,
    (action, id): (&'static str, DeliveryId),
    tenant_id: TenantId,
) -> Result<(), Fault> {
    let entry = Entry { action, subject: id.to_string(), tenant_id: Some(tenant_id) };
    admin::write_audit(connection, actor, entry).await
}

async fn claim(
    connection: &mut PgConnection,
    id: DeliveryId,
    session: SessionId,
    actor: &Actor,
) -> Result<ManualClaim, Fault> {
    let row = sqlx::query(CLAIM).bind(id.0).bind(session.0).fetch_optional(&mut *connection).await?;
    let Some(row) = row else {
        let live = is_live(connection, id).await?;
        return Ok(if live { ManualClaim::Owned } else { ManualClaim::NotLive });
    };
    let claimed = claimed_delivery(&row, session)?;
    audit(connection, actor, ("delivery.retry", id), claimed.tenant_id).await?;
    Ok(ManualClaim::Claimed(claimed))
}

/// A settled delivery, as far as it is needed to live again.
struct Settled {
    generation: i32,
    event_id: Uuid,
    event_at: At,
    endpoint_id: EndpointId,
    tenant_id: TenantId,
    kind: String,
}

impl Settled {
    fn of(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            generation: row.try_get("gen")?,
            event_id: row.try_get("event_id")?,
            event_at: row.try_get("event_at")?,
            endpoint_id: EndpointId(row.try_get("endpoint_id")?),
            tenant_id: TenantId(row.try_get("tenant_id")?),
            kind: row.try_get("type")?,
        })
    }
}

/// Takes the dead letter, or finds that the delivery's last end was a cancellation.
async fn take(connection: &mut PgConnection, id: DeliveryId) -> Result<Option<Settled>, Fault> {
    if let Some(row) = sqlx::query(TAKE_DEAD).bind(id.0).fetch_optional(&mut *connection).await? {
        return Ok(Some(Settled::of(&row)?));
    }
    let last = sqlx::query(FINAL).bind(id.0).bind(earliest(id)).fetch_optional(connection).await?;
    match last {
        Some(row) if row.try_get::<&str, _>("settles")? == "cancelled" => Ok(Some(Settled::of(&row)?)),
        _ => Ok(None),
    }
}

async fn revive(connection: &mut PgConnection, id: DeliveryId, actor: &Actor) -> Result<Revival, Fault> {
    // The last bits of an id are those of a hash; two deliveries that share them only wait for each other.
    let lock = id.0.as_u128() as i32;
    sqlx::query(LOCK).bind(LOCK_REVIVALS).bind(lock).execute(&mut *connection).await?;
    if is_live(connection, id).await? {
        return Ok(Revival::AlreadyLive);
    }
    let Some(settled) = take(connection, id).await? else {
        // Somebody may have taken the dead letter while we waited for it.
        let live = is_live(connection, id).await?;
        return Ok(if live { Revival::AlreadyLive } else { Revival::NotDead });
    };
    let has_body: bool = sqlx::query_scalar(HAS_BODY)
        .bind(settled.event_id)
        .bind(settled.event_at)
        .fetch_one(&mut *connection)
        .await?;
    if !has_body {
        return Err(Fault::Store(pombo_store::StoreError::Corrupt {
            table: "event",
            column: "body",
            id: settled.event_id.to_string(),
        }));
    }
    let last: Option<i32> =
        sqlx::query_scalar(LAST_GENERATION).bind(id.0).bind(earliest(id)).fetch_one(&mut *connection).await?;
    let generation = settled.generation.max(last.unwrap_or(0)) + 1;
    let revived = sqlx::query(REVIVE)
        .bind(id.0)
        .bind(settled.event_id)
        .bind(settled.event_at)
        .bind(settled.endpoint_id.0)
        .bind(settled.tenant_id.0)
        .bind(&settled.kind)
        .bind(shard_of(settled.endpoint_id))
        .bind(generation)
        .execute(&mut *connection)
        .await?;
    if revived.rows_affected() == 0 {
        // Live by somebody faster, or an endpoint that is deleted: there the dead letter must stay.
        let live = is_live(connection, id).await?;
        return if live { Ok(Revival::AlreadyLive) } else { Err(Fault::Store(endpoint_gone())) };
    }
    audit(connection, actor, ("delivery.revive", id), settled.tenant_id).await?;
    Ok(Revival::Revived)
}

/// Rolls the transaction back; see [`People::revive`] below.
fn endpoint_gone() -> pombo_store::StoreError {
    pombo_store::StoreError::Rejected(Box::new(EndpointGone))
}

#[derive(Debug, thiserror::Error)]
#[error("the endpoint was deleted")]
struct EndpointGone;

async fn cancel(connection: &mut PgConnection, id: DeliveryId, actor: &Actor) -> Result<Cancellation, Fault> {
    let row = sqlx::query(CANCEL).bind(id.0).bind(&actor.reason).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(Cancellation::NotLive) };
    audit(connection, actor, ("delivery.cancel", id), TenantId(row.try_get("tenant_id")?)).await?;
    Ok(Cancellation::Cancelled)
}

impl PostgresStore {
    async fn cancel_one(&self, id: DeliveryId, actor: &Actor) -> Result<Cancellation, Failed> {
        transaction!(self.pools, read, Durability::Synchronous, |connection| cancel(connection, id, actor))
    }
}

#[async_trait]
impl People for PostgresStore {
    async fn claim_manually(&self, id: DeliveryId, session: SessionId, actor: &Actor) -> Result<ManualClaim> {
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| {
            claim(connection, id, session, actor)
        })?)
    }

    async fn revive(&self, id: DeliveryId, actor: &Actor) -> Result<Revival> {
        let revived = transaction!(self.pools, read, Durability::Synchronous, |connection| {
            revive(connection, id, actor)
        });
        match revived {
            // Nothing to send to: the letter stays where it is.
            Err(Failed::Store(pombo_store::StoreError::Rejected(cause))) if cause.is::<EndpointGone>() => {
                Ok(Revival::NotDead)
            }
            revived => Ok(revived?),
        }
    }

    async fn cancel_delivery(&self, id: DeliveryId, actor: &Actor) -> Result<Cancellation> {
        let mut cancelled = self.cancel_one(id, actor).await;
        if let Err(Failed::Partition(_)) = cancelled {
            let now: Timestamp = self.now().await?;
            self.make_days([Day::of(now), Day::of(now).plus(1)]).await?;
            cancelled = self.cancel_one(id, actor).await;
        }
        Ok(cancelled?)
    }
}
