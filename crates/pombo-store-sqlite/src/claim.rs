//! Claiming (C).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, params};

use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use pombo_store::claim::{Claim, ClaimRequest, Claimed, ClaimedDelivery, EventBody};
use pombo_store::error::Result;

use crate::error::Fault;
use crate::rows::{self, Fields};
use crate::sessions::config_version;
use crate::{SqliteStore, Tx};

/// Rows due within this time are the fresh half of a claim (C1).
const FRESH: Duration = Duration::from_secs(5);

/// Rows due in (`?1`, `?2`], oldest first. The last condition is the one of the partial index.
pub(crate) const DUE: &str = "-- pombo:due\n\
    SELECT id, due_at, shard FROM pombo_delivery\n\
    WHERE due_at > ?1 AND due_at <= ?2 AND due_at < 9223372036854775807 ORDER BY due_at";

/// Takes a row that is still as it was read.
const CLAIM: &str = "-- pombo:claim_due\n\
    UPDATE pombo_delivery SET owner = ?2, gen = gen + 1, due_at = NULL\n\
    WHERE id = ?1 AND owner IS NULL AND due_at < 9223372036854775807\n\
    RETURNING id, gen, event_id, event_at, type, endpoint_id, tenant_id, created_at, attempt, rescues, not_before";

/// A set of shards.
struct Shards([bool; 256]);

impl Shards {
    fn of(list: &[i16]) -> Self {
        let mut set = [false; 256];
        for shard in list {
            if let Some(member) = usize::try_from(*shard).ok().and_then(|shard| set.get_mut(shard)) {
                *member = true;
            }
        }
        Self(set)
    }

    fn holds(&self, shard: i64) -> bool {
        usize::try_from(shard).ok().and_then(|shard| self.0.get(shard)).copied().unwrap_or(false)
    }
}

/// Ids of at most `limit` rows of my shards that are due in (`after`, `until`], oldest first.
fn due(
    tx: &Tx<'_>,
    shards: &Shards,
    after: Timestamp,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<DeliveryId>, Fault> {
    let mut statement = tx.prepare_cached(DUE)?;
    let mut found = statement.query(params![after.as_micros(), until.as_micros()])?;
    let mut ids = Vec::new();
    while ids.len() < limit
        && let Some(row) = found.next()?
    {
        let row = Fields::of(row, "delivery");
        if shards.holds(row.int(2, "shard")?) {
            ids.push(DeliveryId(row.uuid(0, "id")?));
        }
    }
    Ok(ids)
}

/// Which rows a claim takes: up to half from the fresh ones, so that a long backlog does not hold up what
/// came just now, the rest from older ones; either share that is not needed goes to the other (C1).
fn choose(tx: &Tx<'_>, request: &ClaimRequest) -> Result<Vec<DeliveryId>, Fault> {
    let limit = request.limit as usize;
    if request.shards.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    let shards = Shards::of(&request.shards);
    let floor = request.floor.unwrap_or(Timestamp::from_micros(i64::MIN));
    let border = tx.now.minus(FRESH).max(floor);
    let mut old = due(tx, &shards, floor, border, limit)?;
    let fresh = due(tx, &shards, border, tx.now, limit)?;
    let fresh_share = fresh.len().min((limit / 2).max(limit - old.len()));
    old.truncate(limit - fresh_share);
    old.extend(fresh.into_iter().take(fresh_share));
    Ok(old)
}

/// Reads what [`CLAIM`] returns (also used for manual claims).
pub(crate) fn read_claimed(row: &Fields<'_>, session: SessionId) -> Result<ClaimedDelivery, Fault> {
    Ok(ClaimedDelivery {
        token: Token { id: DeliveryId(row.uuid(0, "id")?), owner: session, generation: row.int(1, "gen")? },
        event_id: EventId(row.uuid(2, "event_id")?),
        event_at: row.time(3, "event_at")?,
        kind: row.parse(4, "type")?,
        endpoint_id: EndpointId(row.uuid(5, "endpoint_id")?),
        tenant_id: TenantId(row.uuid(6, "tenant_id")?),
        created_at: row.time(7, "created_at")?,
        attempts: row.int(8, "attempt")?,
        rescues: row.int(9, "rescues")?,
        not_before: row.opt_time(10, "not_before")?,
    })
}

fn holds_of(tx: &Tx<'_>, claimed: &[ClaimedDelivery]) -> Result<Vec<(EndpointId, Timestamp)>, Fault> {
    let mut endpoints: Vec<_> = claimed.iter().map(|delivery| delivery.endpoint_id).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    let mut holds = Vec::new();
    for endpoint in endpoints {
        if let Some(until) = hold_of(tx, endpoint, tx.now)? {
            holds.push((endpoint, until));
        }
    }
    Ok(holds)
}

/// The end of an endpoint's hold, where it lies ahead.
pub(crate) fn hold_of(
    connection: &Connection,
    endpoint: EndpointId,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    rows::first(
        connection,
        "endpoint_state",
        "-- pombo:hold_of\nSELECT endpoint_id, hold_until FROM pombo_endpoint_state WHERE endpoint_id = ?1 AND hold_until > ?2",
        params![endpoint.0.as_bytes(), now.as_micros()],
        |row| row.time(1, "hold_until"),
    )
}

fn claim(tx: &Tx<'_>, request: &ClaimRequest) -> Result<Claimed, Fault> {
    let mut deliveries = Vec::new();
    for id in choose(tx, request)? {
        let parameters = params![id.0.as_bytes(), request.session.0];
        let row = rows::first(tx, "delivery", CLAIM, parameters, |row| read_claimed(row, request.session))?;
        deliveries.extend(row);
    }
    let holds = holds_of(tx, &deliveries)?;
    Ok(Claimed { deliveries, holds, now: tx.now, config_version: config_version(tx)? })
}

#[async_trait]
impl Claim for SqliteStore {
    async fn claim_due(&self, request: &ClaimRequest) -> Result<Claimed> {
        let request = request.clone();
        self.write(move |tx| claim(tx, &request)).await
    }

    async fn bodies(&self, events: &[(EventId, Timestamp)]) -> Result<Vec<EventBody>> {
        let ids: Vec<EventId> = events.iter().map(|(id, _)| *id).collect();
        self.read(move |tx| {
            let mut bodies = Vec::with_capacity(ids.len());
            for id in ids {
                bodies.extend(body_of(tx, id)?);
            }
            Ok(bodies)
        })
        .await
    }
}

/// The exact bytes of one event.
pub(crate) fn body_of(connection: &Connection, id: EventId) -> Result<Option<EventBody>, Fault> {
    rows::first(
        connection,
        "event",
        "-- pombo:body\nSELECT id, body, content_type FROM pombo_event WHERE id = ?1",
        params![id.0.as_bytes()],
        |row| {
            Ok(EventBody {
                event_id: EventId(row.uuid(0, "id")?),
                body: Bytes::copy_from_slice(row.bytes(1, "body")?),
                content_type: row.text(2, "content_type")?.to_owned(),
            })
        },
    )
}
