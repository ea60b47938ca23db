//! Accepting: one statement per batch (docs/protocol.md, rules A).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use pombo_domain::event::Event;
use pombo_domain::id::{EventId, SessionId, TenantId};
use pombo_domain::name::{ClientKey, OrderingKey};
use pombo_store::StoreError;
use pombo_store::accept::{Accept, AcceptBatch, AcceptResult, Accepted, EarlierEvent, NewEvent, Placement};
use pombo_store::error::Result;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::{Fault, Phase};
use crate::partitions::Day;
use crate::pool::{Failed, statement};
use crate::time::At;

/// Everything hangs on `fresh`: a configuration that has moved on inserts nothing (A3).
///
/// Keys come sorted, so that two nodes that meet lock them in one order (A4). `IS TRUE` keeps the planner from
/// turning the look-ups into joins: a join would take `seq` in another order than the batch's, and with the
/// ten rows that it expects of `unnest` it may be a nested loop.
pub(crate) const ACCEPT: &str = "-- pombo:accept
WITH fresh AS MATERIALIZED (
  SELECT 1 FROM pombo.config WHERE one AND version = $1
), tenants AS (
  INSERT INTO pombo.tenant (id, name)
  SELECT * FROM unnest($2::uuid[], $3::text[]) WHERE EXISTS (SELECT FROM fresh)
  ON CONFLICT DO NOTHING
), keys AS (
  INSERT INTO pombo.event_key AS k (tenant_id, key, event_id, event_at, content_hash, expires_at)
  SELECT r.tenant_id, r.key, r.event_id, r.event_at, r.content_hash,
         clock_timestamp() + $9 * interval '1 microsecond'
  FROM unnest($4::uuid[], $5::text[], $6::uuid[], $7::timestamptz[], $8::bytea[])
       AS r (tenant_id, key, event_id, event_at, content_hash)
  WHERE EXISTS (SELECT FROM fresh)
  ON CONFLICT (tenant_id, key) DO UPDATE
  SET event_id = excluded.event_id, event_at = excluded.event_at, content_hash = excluded.content_hash,
      expires_at = excluded.expires_at
  WHERE k.expires_at < clock_timestamp()
  RETURNING k.event_id
), events AS (
  INSERT INTO pombo.event (id, tenant_id, type, body, content_type, client_key, ordering_key,
                           resource_version, origin, fanout, targets, deliver_at, created_at)
  SELECT r.id, r.tenant_id, r.type, r.body, r.content_type, r.client_key, r.ordering_key,
         r.resource_version, r.origin, r.fanout, r.targets::uuid[], r.deliver_at, r.created_at
  FROM unnest($10::uuid[], $11::uuid[], $12::text[], $13::bytea[], $14::text[], $15::text[], $16::text[],
              $17::bigint[], $18::text[], $19::int[], $20::text[], $21::timestamptz[], $22::timestamptz[])
       AS r (id, tenant_id, type, body, content_type, client_key, ordering_key,
             resource_version, origin, fanout, targets, deliver_at, created_at)
  WHERE EXISTS (SELECT FROM fresh)
    AND (r.client_key IS NULL OR (r.id IN (SELECT event_id FROM keys)) IS TRUE)
  ON CONFLICT DO NOTHING
  RETURNING id
), deliveries AS (
  INSERT INTO pombo.delivery (id, event_id, event_at, endpoint_id, tenant_id, type, ordering_key, shard, seq,
                              owner, gen, attempt, rescues, due_at, not_before)
  SELECT r.id, r.event_id, r.event_at, r.endpoint_id, r.tenant_id, r.type, r.ordering_key, r.shard,
         nextval('pombo.delivery_seq'),
         CASE WHEN r.owned THEN $34::int END, 1, 0, 0,
         CASE WHEN r.owned THEN NULL
              ELSE greatest(coalesce(r.due_at, clock_timestamp()), clock_timestamp()) END,
         r.not_before
  FROM unnest($23::uuid[], $24::uuid[], $25::timestamptz[], $26::uuid[], $27::uuid[], $28::text[],
              $29::text[], $30::smallint[], $31::bool[], $32::timestamptz[], $33::timestamptz[])
       AS r (id, event_id, event_at, endpoint_id, tenant_id, type, ordering_key, shard, owned, due_at,
             not_before)
  WHERE (r.event_id IN (SELECT id FROM events)) IS TRUE
)
SELECT (SELECT version FROM pombo.config WHERE one) AS config_version,
       ARRAY(SELECT id FROM events) AS created,
       CASE WHEN current_setting('synchronous_commit') = 'off' AND $35
            THEN set_config('synchronous_commit', 'on', true) END AS synchronous";

/// The winners of keys that were lost. A statement of its own: the first cannot see a row that was committed
/// after it began (A4).
pub(crate) const WINNERS: &str = "-- pombo:winners
SELECT k.tenant_id, k.key, k.event_id, k.event_at, k.content_hash, coalesce(e.fanout, 0) AS fanout
FROM unnest($1::uuid[], $2::text[]) AS r (tenant_id, key)
CROSS JOIN LATERAL (
  SELECT * FROM pombo.event_key AS k WHERE k.tenant_id = r.tenant_id AND k.key = r.key LIMIT 1
) AS k
LEFT JOIN LATERAL (
  SELECT e.fanout FROM pombo.event AS e WHERE e.id = k.event_id AND e.created_at = k.event_at LIMIT 1
) AS e ON true";

/// The arrays of [`ACCEPT`], made once however often the statement runs.
#[derive(Debug, Default)]
pub(crate) struct Columns<'a> {
    tenants: (Vec<Uuid>, Vec<&'a str>),
    keys: Keys<'a>,
    events: Events<'a>,
    deliveries: Deliveries<'a>,
}

#[derive(Debug, Default)]
struct Keys<'a> {
    tenants: Vec<Uuid>,
    texts: Vec<&'a str>,
    events: Vec<Uuid>,
    events_at: Vec<At>,
    hashes: Vec<&'a [u8]>,
}

#[derive(Debug, Default)]
struct Events<'a> {
    ids: Vec<Uuid>,
    tenants: Vec<Uuid>,
    kinds: Vec<&'a str>,
    bodies: Vec<&'a [u8]>,
    content_types: Vec<&'a str>,
    client_keys: Vec<Option<&'a str>>,
    ordering_keys: Vec<Option<&'a str>>,
    versions: Vec<Option<i64>>,
    origins: Vec<&'static str>,
    fanouts: Vec<i32>,
    targets: Vec<Option<String>>,
    deliver_at: Vec<Option<At>>,
    created_at: Vec<At>,
}

#[derive(Debug, Default)]
struct Deliveries<'a> {
    ids: Vec<Uuid>,
    events: Vec<Uuid>,
    events_at: Vec<At>,
    endpoints: Vec<Uuid>,
    tenants: Vec<Uuid>,
    kinds: Vec<&'a str>,
    ordering_keys: Vec<Option<&'a str>>,
    shards: Vec<i16>,
    owned: Vec<bool>,
    due_at: Vec<Option<At>>,
    not_before: Vec<Option<At>>,
}

/// Tenant and key of an event that has one.
fn key_of(new: &NewEvent) -> Option<(TenantId, &str)> {
    Some((new.event.tenant_id, new.client_key.as_ref()?.as_str()))
}

impl<'a> Columns<'a> {
    /// Events whose key or id an earlier one of the same batch has are left out: they lose in any case.
    pub(crate) fn of(events: impl Iterator<Item = &'a NewEvent>) -> Self {
        let mut columns = Self::default();
        let mut tenants = BTreeMap::new();
        let mut keys = BTreeMap::new();
        let mut ids = HashSet::new();
        for new in events {
            tenants.insert(new.event.tenant_id, new.tenant.as_str());
            if !ids.insert((new.event.id, new.event.created_at)) {
                continue;
            }
            if let Some(key) = key_of(new) {
                if keys.contains_key(&key) {
                    continue;
                }
                keys.insert(key, new);
            }
            columns.events.push(new);
            for delivery in &new.deliveries {
                columns.deliveries.push(&new.event, delivery);
            }
        }
        for (id, name) in tenants {
            columns.tenants.0.push(id.0);
            columns.tenants.1.push(name);
        }
        for ((tenant, key), new) in keys {
            columns.keys.push(tenant, key, new);
        }
        columns
    }

    /// The days of its events.
    pub(crate) fn days(&self) -> impl Iterator<Item = Day> + '_ {
        self.events.created_at.iter().map(|at| Day::of(at.0)).collect::<HashSet<_>>().into_iter()
    }
}

impl<'a> Keys<'a> {
    fn push(&mut self, tenant: TenantId, key: &'a str, new: &'a NewEvent) {
        self.tenants.push(tenant.0);
        self.texts.push(key);
        self.events.push(new.event.id.0);
        self.events_at.push(At(new.event.created_at));
        self.hashes.push(&new.content_hash);
    }
}

impl<'a> Events<'a> {
    fn push(&mut self, new: &'a NewEvent) {
        let event = &new.event;
        self.ids.push(event.id.0);
        self.tenants.push(event.tenant_id.0);
        self.kinds.push(event.kind.as_str());
        self.bodies.push(&event.body);
        self.content_types.push(&event.content_type);
        self.client_keys.push(new.client_key.as_ref().map(ClientKey::as_str));
        self.ordering_keys.push(event.ordering_key.as_ref().map(OrderingKey::as_str));
        self.versions.push(event.resource_version.map(pombo_domain::event::ResourceVersion::get));
        self.origins.push(event.origin.as_str());
        self.fanouts.push(i32::try_from(new.deliveries.len()).unwrap_or(i32::MAX));
        self.targets.push(new.targets.as_deref().map(array_text));
        self.deliver_at.push(new.deliver_at.map(At));
        self.created_at.push(At(event.created_at));
    }
}

/// An array as text: arrays of arrays of different lengths do not exist in PostgreSQL.
fn array_text(targets: &[pombo_domain::id::EndpointId]) -> String {
    let ids: Vec<String> = targets.iter().map(|id| id.0.to_string()).collect();
    format!("{{{}}}", ids.join(","))
}

impl<'a> Deliveries<'a> {
    fn push(&mut self, event: &'a Event, delivery: &pombo_store::accept::NewDelivery) {
        use pombo_domain::clock::Timestamp;
        let (due_at, not_before) = match delivery.placement {
            Placement::BornClaimed | Placement::Due => (None, None),
            Placement::DueAt(at) => (Some(at), None),
            Placement::Parked { not_before } => (Some(Timestamp::INFINITY), not_before),
        };
        self.ids.push(delivery.id.0);
        self.events.push(event.id.0);
        self.events_at.push(At(event.created_at));
        self.endpoints.push(delivery.endpoint_id.0);
        self.tenants.push(event.tenant_id.0);
        self.kinds.push(event.kind.as_str());
        self.ordering_keys.push(event.ordering_key.as_ref().map(OrderingKey::as_str));
        self.shards.push(delivery.shard);
        self.owned.push(delivery.placement == Placement::BornClaimed);
        self.due_at.push(due_at.map(At));
        self.not_before.push(not_before.map(At));
    }
}

/// What [`ACCEPT`] is run with beside the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) config_version: i64,
    pub(crate) session: SessionId,
    pub(crate) key_ttl: Duration,
    /// Whether the statement commits itself, and synchronously.
    pub(crate) synchronous: bool,
}

/// What [`ACCEPT`] did.
#[derive(Debug)]
pub(crate) struct Inserted {
    pub(crate) config_version: i64,
    pub(crate) created: HashSet<Uuid>,
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    columns: &Columns<'_>,
    terms: Terms,
) -> Result<Inserted, Fault> {
    let Columns { tenants, keys, events, deliveries } = columns;
    let row = sqlx::query(ACCEPT)
        .bind(terms.config_version)
        .bind(&tenants.0)
        .bind(&tenants.1)
        .bind(&keys.tenants)
        .bind(&keys.texts)
        .bind(&keys.events)
        .bind(&keys.events_at)
        .bind(&keys.hashes)
        .bind(terms.key_ttl.as_micros() as f64)
        .bind(&events.ids)
        .bind(&events.tenants)
        .bind(&events.kinds)
        .bind(&events.bodies)
        .bind(&events.content_types)
        .bind(&events.client_keys)
        .bind(&events.ordering_keys)
        .bind(&events.versions)
        .bind(&events.origins)
        .bind(&events.fanouts)
        .bind(&events.targets)
        .bind(&events.deliver_at)
        .bind(&events.created_at)
        .bind(&deliveries.ids)
        .bind(&deliveries.events)
        .bind(&deliveries.events_at)
        .bind(&deliveries.endpoints)
        .bind(&deliveries.tenants)
        .bind(&deliveries.kinds)
        .bind(&deliveries.ordering_keys)
        .bind(&deliveries.shards)
        .bind(&deliveries.owned)
        .bind(&deliveries.due_at)
        .bind(&deliveries.not_before)
        .bind(terms.session.0)
        .bind(terms.synchronous)
        .fetch_one(connection)
        .await?;
    let created: Vec<Uuid> = row.try_get("created")?;
    Ok(Inserted { config_version: row.try_get("config_version")?, created: created.into_iter().collect() })
}

/// Winners by tenant and key.
pub(crate) type Winners = HashMap<(Uuid, String), (EarlierEvent, Vec<u8>)>;

/// Reads who has the keys that these events did not get.
pub(crate) async fn winners<'a>(
    connection: &mut PgConnection,
    losers: impl Iterator<Item = &'a NewEvent>,
) -> Result<Winners, Fault> {
    let (tenants, keys): (Vec<Uuid>, Vec<String>) =
        losers.filter_map(key_of).map(|(tenant, key)| (tenant.0, key.to_owned())).unzip();
    if keys.is_empty() {
        return Ok(Winners::new());
    }
    let rows = sqlx::query(WINNERS).bind(tenants).bind(keys).fetch_all(connection).await?;
    let mut winners = Winners::with_capacity(rows.len());
    for row in rows {
        let earlier = EarlierEvent {
            id: EventId(row.try_get("event_id")?),
            created_at: row.try_get::<At, _>("event_at")?.0,
            fanout: row.try_get("fanout")?,
            same_content: false,
        };
        winners.insert(
            (row.try_get("tenant_id")?, row.try_get("key")?),
            (earlier, row.try_get("content_hash")?),
        );
    }
    Ok(winners)
}

/// What became of each event. An event whose id existed before is a repetition of itself: `Taken` with the
/// same content.
pub(crate) fn results<'a>(
    events: impl Iterator<Item = &'a NewEvent>,
    created: &HashSet<Uuid>,
    winners: &Winners,
) -> Vec<AcceptResult> {
    let mut first: HashSet<Uuid> = HashSet::new();
    events
        .map(|new| {
            if created.contains(&new.event.id.0) && first.insert(new.event.id.0) {
                return AcceptResult::Created;
            }
            let found = key_of(new).and_then(|(tenant, key)| winners.get(&(tenant.0, key.to_owned())));
            AcceptResult::Taken(match found {
                Some((winner, hash)) => {
                    EarlierEvent { same_content: *hash == new.content_hash, ..winner.clone() }
                }
                None => EarlierEvent {
                    id: new.event.id,
                    created_at: new.event.created_at,
                    fanout: i32::try_from(new.deliveries.len()).unwrap_or(i32::MAX),
                    same_content: true,
                },
            })
        })
        .collect()
}

#[async_trait]
impl Accept for PostgresStore {
    async fn accept(&self, batch: &AcceptBatch) -> Result<Accepted> {
        if batch.events.is_empty() {
            return Ok(Accepted::Committed(Vec::new()));
        }
        let columns = Columns::of(batch.events.iter());
        let terms = Terms {
            config_version: batch.config_version,
            session: batch.session,
            key_ttl: self.client_key_ttl,
            synchronous: true,
        };
        let mut insertion = self.insert_batch(&columns, terms).await;
        if let Err(Failed::Partition(_)) = insertion {
            self.make_days(columns.days()).await?;
            insertion = self.insert_batch(&columns, terms).await;
        }
        let inserted = insertion?;
        if inserted.config_version != batch.config_version {
            return Ok(Accepted::Stale { config_version: inserted.config_version });
        }
        let lost = batch.events.iter().filter(|new| !inserted.created.contains(&new.event.id.0));
        let lost: Vec<&NewEvent> = lost.collect();
        // What is created is committed: failing to read the winners leaves the caller with an unknown outcome.
        let winners = if lost.is_empty() {
            Winners::new()
        } else {
            statement!(self.pools, accept, Phase::Commit, |connection| {
                winners(connection, lost.iter().copied())
            })
            .map_err(|failed| after_commit(failed.into()))?
        };
        Ok(Accepted::Committed(results(batch.events.iter(), &inserted.created, &winners)))
    }
}

/// A batch that is committed cannot be said to have failed, whatever went wrong afterwards.
fn after_commit(error: StoreError) -> StoreError {
    match error {
        unknown @ StoreError::OutcomeUnknown(_) => unknown,
        other => StoreError::OutcomeUnknown(other.into()),
    }
}

impl PostgresStore {
    async fn insert_batch(&self, columns: &Columns<'_>, terms: Terms) -> Result<Inserted, Failed> {
        statement!(self.pools, accept, Phase::Commit, |connection| insert(connection, columns, terms))
    }
}

#[cfg(test)]
mod tests {
    use super::{StoreError, after_commit};

    #[test]
    fn after_the_commit_no_error_says_that_nothing_happened() {
        for error in [
            StoreError::Unavailable("gone".into()),
            StoreError::ReadOnly("a standby answers".into()),
            StoreError::Rejected("refused".into()),
            StoreError::Corrupt { table: "event_key", column: "event_at", id: "k".to_owned() },
        ] {
            assert!(matches!(after_commit(error), StoreError::OutcomeUnknown(_)));
        }
    }
}
