//! Accepting (A): events, keys and deliveries in one transaction, in the order of the batch.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;

use pombo_domain::clock::Timestamp;
use pombo_domain::id::{EventId, SessionId, TenantId};
use pombo_domain::name::TenantName;
use pombo_store::accept::{
    Accept, AcceptBatch, AcceptResult, Accepted, EarlierEvent, NewDelivery, NewEvent, Placement,
};
use pombo_store::error::Result;

use crate::error::Fault;
use crate::sessions::config_version;
use crate::{SqliteStore, Tx, rows};

/// What stays the same for all events of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Owns what is born claimed.
    pub(crate) session: SessionId,
    /// How long callers' own ids are remembered.
    pub(crate) key_ttl: Duration,
}

/// Inserts the events of one batch. What all of them need is written once: their tenants, and a run of numbers
/// of the accepted order, of which those of an event whose key is taken stay unused.
pub(crate) struct Inserter<'tx> {
    tx: &'tx Tx<'tx>,
    terms: Terms,
    next_seq: i64,
}

impl<'tx> Inserter<'tx> {
    /// For these events, before the first is inserted.
    pub(crate) fn begin<'a>(
        tx: &'tx Tx<'tx>,
        events: impl Iterator<Item = &'a NewEvent>,
        terms: Terms,
    ) -> Result<Self, Fault> {
        let (mut tenants, mut deliveries) = (HashSet::new(), 0);
        for new in events {
            deliveries += new.deliveries.len();
            if tenants.insert(new.event.tenant_id) {
                know_tenant(tx, new.event.tenant_id, &new.tenant)?;
            }
        }
        let next_seq = if deliveries == 0 { 0 } else { take_seq(tx, deliveries)? };
        Ok(Self { tx, terms, next_seq })
    }

    /// Inserts one event with its deliveries, unless its key is taken. The one writer makes a key's look-up and
    /// its insert one step, so no order among keys is needed (A4).
    pub(crate) fn insert(&mut self, new: &NewEvent) -> Result<AcceptResult, Fault> {
        if let Some(earlier) = take_key(self.tx, new, self.terms)? {
            return Ok(AcceptResult::Taken(earlier));
        }
        insert_event_row(self.tx, new)?;
        insert_deliveries(self.tx, new, self.terms.session, self.next_seq)?;
        self.next_seq += new.deliveries.len() as i64;
        Ok(AcceptResult::Created)
    }
}

/// Makes the tenant where it is new.
pub(crate) fn know_tenant(tx: &Tx<'_>, id: TenantId, name: &TenantName) -> Result<(), Fault> {
    rows::change(
        tx,
        "-- pombo:know_tenant\n\
         INSERT INTO pombo_tenant (id, name, created_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        params![id.0.as_bytes(), name.as_str(), tx.now.as_micros()],
    )?;
    Ok(())
}

/// Takes the event's key, over from an expired one too. Returns who has it otherwise.
fn take_key(tx: &Tx<'_>, new: &NewEvent, terms: Terms) -> Result<Option<EarlierEvent>, Fault> {
    let Some(key) = &new.client_key else { return Ok(None) };
    let event = &new.event;
    let taken = rows::change(
        tx,
        "-- pombo:take_key\n\
         INSERT INTO pombo_event_key (tenant_id, key, event_id, event_at, content_hash, expires_at)\n\
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)\n\
         ON CONFLICT (tenant_id, key) DO UPDATE\n\
         SET event_id = excluded.event_id, event_at = excluded.event_at,\n\
             content_hash = excluded.content_hash, expires_at = excluded.expires_at\n\
         WHERE expires_at < ?7",
        params![
            event.tenant_id.0.as_bytes(),
            key.as_str(),
            event.id.0.as_bytes(),
            event.created_at.as_micros(),
            new.content_hash,
            tx.now.plus(terms.key_ttl).as_micros(),
            tx.now.as_micros(),
        ],
    )?;
    if taken == 1 {
        return Ok(None);
    }
    // `event` is asked for the fan-out alone, and may be gone before the key is.
    rows::first(
        tx,
        "event_key",
        "-- pombo:earlier_event\n\
         SELECT k.event_id, k.event_at, k.content_hash, coalesce(e.fanout, 0)\n\
         FROM pombo_event_key AS k LEFT JOIN pombo_event AS e ON e.id = k.event_id\n\
         WHERE k.tenant_id = ?1 AND k.key = ?2",
        params![event.tenant_id.0.as_bytes(), key.as_str()],
        |row| {
            Ok(EarlierEvent {
                id: EventId(row.uuid(0, "event_id")?),
                created_at: row.time(1, "event_at")?,
                fanout: row.int(3, "fanout")?,
                same_content: row.bytes(2, "content_hash")? == new.content_hash,
            })
        },
    )
}

fn insert_event_row(tx: &Tx<'_>, new: &NewEvent) -> Result<(), Fault> {
    let event = &new.event;
    let targets = new.targets.as_ref().map(|ids| {
        let uuids: Vec<_> = ids.iter().map(|id| id.0).collect();
        serde_json::to_string(&uuids).expect("uuids are JSON strings")
    });
    rows::change(
        tx,
        "-- pombo:insert_event\n\
         INSERT INTO pombo_event (id, tenant_id, type, body, content_type, client_key, ordering_key,\n\
             resource_version, origin, fanout, targets, deliver_at, created_at)\n\
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            event.id.0.as_bytes(),
            event.tenant_id.0.as_bytes(),
            event.kind.as_str(),
            &event.body[..],
            event.content_type,
            new.client_key.as_ref().map(pombo_domain::name::ClientKey::as_str),
            event.ordering_key.as_ref().map(pombo_domain::name::OrderingKey::as_str),
            event.resource_version.map(pombo_domain::event::ResourceVersion::get),
            event.origin.as_str(),
            new.deliveries.len() as i64,
            targets,
            new.deliver_at.map(Timestamp::as_micros),
            event.created_at.as_micros(),
        ],
    )?;
    Ok(())
}

fn insert_deliveries(tx: &Tx<'_>, new: &NewEvent, session: SessionId, first_seq: i64) -> Result<(), Fault> {
    let mut statement = tx.prepare_cached(
        "-- pombo:insert_delivery\n\
         INSERT INTO pombo_delivery (id, event_id, event_at, endpoint_id, tenant_id, type, shard, seq, owner, gen,\n\
             attempt, rescues, due_at, not_before, ordering_key, created_at)\n\
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1, 0, 0, ?10, ?11, ?12, ?3)",
    )?;
    let event = &new.event;
    for (seq, delivery) in (first_seq..).zip(&new.deliveries) {
        let place = place(delivery, session, tx.now);
        statement.execute(params![
            delivery.id.0.as_bytes(),
            event.id.0.as_bytes(),
            event.created_at.as_micros(),
            delivery.endpoint_id.0.as_bytes(),
            event.tenant_id.0.as_bytes(),
            event.kind.as_str(),
            delivery.shard,
            seq,
            place.owner,
            place.due_at,
            place.not_before,
            event.ordering_key.as_ref().map(pombo_domain::name::OrderingKey::as_str),
        ])?;
    }
    Ok(())
}

/// Takes `count` numbers of the accepted order; returns the first.
pub(crate) fn take_seq(tx: &Tx<'_>, count: usize) -> Result<i64, Fault> {
    let last: Option<i64> = rows::first(
        tx,
        "counter",
        "-- pombo:take_seq\n\
         UPDATE pombo_counter SET value = value + ?1 WHERE name = 'delivery' RETURNING name, value",
        params![count as i64],
        |row| row.int(1, "value"),
    )?;
    let last = last.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    Ok(last - count as i64 + 1)
}

struct Place {
    owner: Option<i32>,
    due_at: Option<i64>,
    not_before: Option<i64>,
}

/// A time that is over becomes now: a claim's floor would hide an older one (C2).
fn place(delivery: &NewDelivery, session: SessionId, now: Timestamp) -> Place {
    let due = |at: Timestamp| Place { owner: None, due_at: Some(at.as_micros()), not_before: None };
    match delivery.placement {
        Placement::BornClaimed => Place { owner: Some(session.0), due_at: None, not_before: None },
        Placement::Due => due(now),
        Placement::DueAt(at) => due(at.max(now)),
        Placement::Parked { not_before } => Place {
            not_before: not_before.filter(|at| *at < Timestamp::INFINITY).map(Timestamp::as_micros),
            ..due(Timestamp::INFINITY)
        },
    }
}

#[async_trait]
impl Accept for SqliteStore {
    async fn accept(&self, batch: &AcceptBatch) -> Result<Accepted> {
        let batch = batch.clone();
        let terms = Terms { session: batch.session, key_ttl: self.config.client_key_ttl };
        self.write(move |tx| {
            let config_version = config_version(tx)?;
            if config_version != batch.config_version {
                return Ok(Accepted::Stale { config_version });
            }
            let mut inserter = Inserter::begin(tx, batch.events.iter(), terms)?;
            let results: Result<Vec<_>, Fault> =
                batch.events.iter().map(|new| inserter.insert(new)).collect();
            results.map(Accepted::Committed)
        })
        .await
    }
}
