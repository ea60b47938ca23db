//! What people do to deliveries (M, P3).

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;

use pombo_domain::attempt::{Attempt, Phases, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::{EndpointStatus, shard_of};
use pombo_domain::event_type::EventType;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use pombo_store::admin::Actor;
use pombo_store::error::Result;
use pombo_store::people::{Cancellation, ManualClaim, People, Revival};

use crate::accept::take_seq;
use crate::audit::{self, Act};
use crate::claim::read_claimed;
use crate::error::Fault;
use crate::flush::{AttemptRow, insert_attempt};
use crate::rows::{self, Fields};
use crate::{SqliteStore, Tx};

/// Why a delivery is cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reason<'a> {
    /// The sweep found it behind a deleted endpoint.
    EndpointDeleted,
    /// A person, with what the person said.
    Person(Option<&'a str>),
}

/// Removes a live row, owned or not, and writes its final record. Returns its tenant.
pub(crate) fn cancel(tx: &Tx<'_>, id: DeliveryId, reason: Reason<'_>) -> Result<Option<TenantId>, Fault> {
    let removed = rows::first(
        tx,
        "delivery",
        "-- pombo:cancel\n\
         DELETE FROM pombo_delivery WHERE id = ?1\n\
         RETURNING id, event_id, event_at, endpoint_id, tenant_id, type, gen, created_at",
        params![id.0.as_bytes()],
        |row| {
            let kind: EventType = row.parse(5, "type")?;
            Ok((cancellation(tx, row, reason)?, kind, row.time(7, "created_at")?))
        },
    )?;
    let Some((mut attempt, kind, delivery_created_at)) = removed else { return Ok(None) };
    attempt.started_at = after_all_attempts(tx, id)?;
    let settles = Some(Settlement::Cancelled);
    insert_attempt(
        tx,
        &AttemptRow { attempt: &attempt, kind: &kind, delivery_created_at, settles, late: false },
    )?;
    Ok(Some(attempt.tenant_id))
}

fn cancellation(tx: &Tx<'_>, row: &Fields<'_>, reason: Reason<'_>) -> Result<Attempt, Fault> {
    let (manual, message) = match reason {
        Reason::EndpointDeleted => (false, Some("the endpoint was deleted".to_owned())),
        Reason::Person(said) => (true, said.map(str::to_owned)),
    };
    Ok(Attempt {
        delivery_id: DeliveryId(row.uuid(0, "id")?),
        event_id: EventId(row.uuid(1, "event_id")?),
        event_at: row.time(2, "event_at")?,
        endpoint_id: EndpointId(row.uuid(3, "endpoint_id")?),
        tenant_id: TenantId(row.uuid(4, "tenant_id")?),
        started_at: tx.now,
        number: 0,
        generation: row.int(6, "gen")?,
        status: None,
        class: None,
        message,
        duration: Duration::ZERO,
        phases: Phases::default(),
        response_body: None,
        response_truncated: false,
        settles: None,
        late: false,
        manual,
        session: SessionId(0),
        retryable: false,
    })
}

/// Now, or just after the newest attempt: the final record must be the newest, and its key new.
fn after_all_attempts(tx: &Tx<'_>, id: DeliveryId) -> Result<Timestamp, Fault> {
    let newest = rows::first(
        tx,
        "attempt",
        "-- pombo:newest_attempt\nSELECT delivery_id, max(started_at) FROM pombo_attempt WHERE delivery_id = ?1",
        params![id.0.as_bytes()],
        |row| row.opt_time(1, "started_at"),
    )?;
    let next = newest.flatten().map(|at| at.plus(Duration::from_micros(1)));
    Ok(next.map_or(tx.now, |next| next.max(tx.now)))
}

/// How a settled delivery ended, with what its next life needs.
struct Ended {
    event_id: EventId,
    event_at: Timestamp,
    endpoint_id: EndpointId,
    tenant_id: TenantId,
    kind: EventType,
    generation: i32,
    created_at: Timestamp,
}

/// The last settlement of a delivery, if it may live again: dead or cancelled (M2).
fn revivable(tx: &Tx<'_>, id: DeliveryId) -> Result<Option<Ended>, Fault> {
    let last = rows::first(
        tx,
        "attempt",
        "-- pombo:last_settlement\n\
         SELECT delivery_id, settles, event_id, event_at, endpoint_id, tenant_id, type, gen, delivery_created_at\n\
         FROM pombo_attempt WHERE delivery_id = ?1 AND settles IS NOT NULL ORDER BY started_at DESC LIMIT 1",
        params![id.0.as_bytes()],
        |row| {
            let end = row.word(1, "settles", Settlement::from_word)?;
            Ok((
                end,
                Ended {
                    event_id: EventId(row.uuid(2, "event_id")?),
                    event_at: row.time(3, "event_at")?,
                    endpoint_id: EndpointId(row.uuid(4, "endpoint_id")?),
                    tenant_id: TenantId(row.uuid(5, "tenant_id")?),
                    kind: row.parse(6, "type")?,
                    generation: row.int(7, "gen")?,
                    created_at: row.time(8, "delivery_created_at")?,
                },
            ))
        },
    )?;
    Ok(last.and_then(|(end, ended)| (end != Settlement::Delivered).then_some(ended)))
}

/// What of an event its deliveries repeat.
struct Repeated {
    ordering_key: Option<String>,
}

/// `None` for an event that is gone, and its body with it.
fn repeated(tx: &Tx<'_>, event: EventId) -> Result<Option<Repeated>, Fault> {
    rows::first(
        tx,
        "event",
        "-- pombo:ordering_key_of\nSELECT id, ordering_key FROM pombo_event WHERE id = ?1",
        params![event.0.as_bytes()],
        |row| Ok(Repeated { ordering_key: row.opt_text(1, "ordering_key")?.map(str::to_owned) }),
    )
}

/// The status of an endpoint; `None` for an unknown or deleted one.
fn status_of(tx: &Tx<'_>, endpoint: EndpointId) -> Result<Option<EndpointStatus>, Fault> {
    rows::first(
        tx,
        "endpoint",
        "-- pombo:status_of\nSELECT id, status FROM pombo_endpoint WHERE id = ?1 AND deleted_at IS NULL",
        params![endpoint.0.as_bytes()],
        |row| row.word(1, "status", EndpointStatus::from_word),
    )
}

fn is_live(tx: &Tx<'_>, id: DeliveryId) -> Result<bool, Fault> {
    let sql = "-- pombo:is_live\nSELECT id FROM pombo_delivery WHERE id = ?1";
    Ok(rows::first(tx, "delivery", sql, params![id.0.as_bytes()], |_| Ok(()))?.is_some())
}

fn revive(tx: &Tx<'_>, id: DeliveryId, actor: &Actor) -> Result<Revival, Fault> {
    if is_live(tx, id)? {
        return Ok(Revival::AlreadyLive);
    }
    let Some(ended) = revivable(tx, id)? else { return Ok(Revival::NotDead) };
    let Some(event) = repeated(tx, ended.event_id)? else { return Ok(Revival::NotDead) };
    // What was sent to an endpoint that is gone can go nowhere.
    let Some(status) = status_of(tx, ended.endpoint_id)? else { return Ok(Revival::NotDead) };
    let sql = "-- pombo:take_dead_letter\nDELETE FROM pombo_dead_letter WHERE delivery_id = ?1";
    rows::change(tx, sql, params![id.0.as_bytes()])?;
    let due_at = if status == EndpointStatus::Active { tx.now } else { Timestamp::INFINITY };
    rows::change(
        tx,
        "-- pombo:revive\n\
         INSERT INTO pombo_delivery (id, event_id, event_at, endpoint_id, tenant_id, type, shard, seq, gen, attempt,\n\
             rescues, due_at, ordering_key, created_at)\n\
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, 0, ?10, ?11, ?12)",
        params![
            id.0.as_bytes(),
            ended.event_id.0.as_bytes(),
            ended.event_at.as_micros(),
            ended.endpoint_id.0.as_bytes(),
            ended.tenant_id.0.as_bytes(),
            ended.kind.as_str(),
            shard_of(ended.endpoint_id),
            take_seq(tx, 1)?,
            ended.generation.saturating_add(1),
            due_at.as_micros(),
            event.ordering_key,
            ended.created_at.as_micros(),
        ],
    )?;
    record(tx, "delivery.revive", id, ended.tenant_id, actor)?;
    Ok(Revival::Revived)
}

fn claim_manually(
    tx: &Tx<'_>,
    id: DeliveryId,
    session: SessionId,
    actor: &Actor,
) -> Result<ManualClaim, Fault> {
    let claimed = rows::first(
        tx,
        "delivery",
        "-- pombo:claim_manually\n\
         UPDATE pombo_delivery SET owner = ?2, gen = gen + 1, due_at = NULL,\n\
             not_before = CASE WHEN due_at < 9223372036854775807 THEN due_at ELSE coalesce(not_before, due_at) END\n\
         WHERE id = ?1 AND owner IS NULL\n\
         RETURNING id, gen, event_id, event_at, type, endpoint_id, tenant_id, created_at, attempt, rescues, not_before",
        params![id.0.as_bytes(), session.0],
        |row| read_claimed(row, session),
    )?;
    match claimed {
        Some(claimed) => {
            record(tx, "delivery.retry", id, claimed.tenant_id, actor)?;
            Ok(ManualClaim::Claimed(claimed))
        }
        None if is_live(tx, id)? => Ok(ManualClaim::Owned),
        None => Ok(ManualClaim::NotLive),
    }
}

fn record(
    tx: &Tx<'_>,
    action: &'static str,
    id: DeliveryId,
    tenant: TenantId,
    actor: &Actor,
) -> Result<(), Fault> {
    audit::record(tx, actor, &Act { action, subject: id.to_string(), tenant_id: Some(tenant) })
}

#[async_trait]
impl People for SqliteStore {
    async fn claim_manually(&self, id: DeliveryId, session: SessionId, actor: &Actor) -> Result<ManualClaim> {
        let actor = actor.clone();
        self.write(move |tx| claim_manually(tx, id, session, &actor)).await
    }

    async fn revive(&self, id: DeliveryId, actor: &Actor) -> Result<Revival> {
        let actor = actor.clone();
        self.write(move |tx| revive(tx, id, &actor)).await
    }

    async fn cancel_delivery(&self, id: DeliveryId, actor: &Actor) -> Result<Cancellation> {
        let actor = actor.clone();
        self.write(move |tx| match cancel(tx, id, Reason::Person(actor.reason.as_deref()))? {
            Some(tenant) => {
                record(tx, "delivery.cancel", id, tenant, &actor)?;
                Ok(Cancellation::Cancelled)
            }
            None => Ok(Cancellation::NotLive),
        })
        .await
    }
}
