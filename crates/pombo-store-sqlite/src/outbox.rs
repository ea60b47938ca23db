//! The relay (R). Rows are read and planned outside the transaction, so the file is never locked while the
//! planner works; the transaction takes each row only if it is still exactly what was planned.

mod written;

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use rusqlite::params;

use pombo_domain::id::EventId;
use pombo_store::accept::{AcceptResult, EarlierEvent, NewEvent};
use pombo_store::error::Result;
use pombo_store::outbox::{
    Outbox, OutboxRow, Planner, RejectedRow, Rejection, RelayMark, RelayRequest, Relayed,
};
use pombo_store::sessions::LeaseName;

use crate::accept::{Inserter, Terms};
use crate::error::Fault;
use crate::sessions::{config_version, holds_lease};
use crate::{SqliteStore, Tx, rows};

use written::{WrittenRow, read_rows, still_written};

/// What one relay transaction carries out.
struct Haul {
    /// Every row read, in order of `seq`.
    rows: Vec<WrittenRow>,
    /// Events with the position of their row in `rows`, in the plan's order.
    events: Vec<(usize, NewEvent)>,
    /// Rows to be set aside, by position in `rows`.
    rejected: Vec<Rejection>,
}

/// Hands the readable rows to the planner and puts its answer in terms of all rows.
fn plan_rows(written: Vec<WrittenRow>, plan: Planner<'_>) -> Haul {
    let mut readable: Vec<OutboxRow> = Vec::with_capacity(written.len());
    let mut position = Vec::with_capacity(written.len());
    let mut rejected = Vec::new();
    for (index, row) in written.iter().enumerate() {
        match row.parse() {
            Ok(parsed) => {
                readable.push(parsed);
                position.push(index);
            }
            Err(unreadable) => rejected.push(Rejection { index, ..unreadable }),
        }
    }
    let plan = plan(&readable);
    let events = plan.events.into_iter().map(|(index, event)| (position[index], event)).collect();
    let planned = plan.rejected.into_iter();
    rejected.extend(planned.map(|rejection| Rejection { index: position[rejection.index], ..rejection }));
    Haul { rows: written, events, rejected }
}

/// Takes a row out of the outbox. It was just seen to be what was planned, and this transaction is the only
/// writer; a row that changed since it was planned stays for the next relay.
fn take(tx: &Tx<'_>, row: &WrittenRow) -> Result<(), Fault> {
    let sql = "-- pombo:take_outbox_row\nDELETE FROM pombo_outbox WHERE seq = ?1";
    rows::change(tx, sql, params![row.seq])?;
    Ok(())
}

fn set_aside(tx: &Tx<'_>, row: &WrittenRow, reason: &str, detail: &str) -> Result<(), Fault> {
    rows::change(
        tx,
        "-- pombo:set_aside\n\
         INSERT INTO pombo_outbox_rejected (event_id, reason, detail, rejected_at, seq, id, tenant, type, data,\n\
             ordering_key, key, resource_version, deliver_at, endpoint_id, content_type, created_at)\n\
         SELECT ?2, ?3, ?4, ?5, seq, id, tenant, type, data, ordering_key, key, resource_version, deliver_at,\n\
             endpoint_id, content_type, created_at\n\
         FROM pombo_outbox WHERE seq = ?1",
        params![row.seq, row.event_id().0.as_bytes(), reason, detail, tx.now.as_micros()],
    )?;
    Ok(())
}

/// An event with this id from before: an application wrote the same id twice, or a relay ran twice (A2).
fn event_with_id(tx: &Tx<'_>, new: &NewEvent) -> Result<Option<EarlierEvent>, Fault> {
    rows::first(
        tx,
        "event",
        "-- pombo:event_with_id\nSELECT id, created_at, fanout, body, tenant_id, type FROM pombo_event WHERE id = ?1",
        params![new.event.id.0.as_bytes()],
        |row| {
            let same_content = row.bytes(3, "body")? == &new.event.body[..]
                && row.uuid(4, "tenant_id")? == new.event.tenant_id.0
                && row.text(5, "type")? == new.event.kind.as_str();
            Ok(EarlierEvent {
                id: EventId(row.uuid(0, "id")?),
                created_at: row.time(1, "created_at")?,
                fanout: row.int(2, "fanout")?,
                same_content,
            })
        },
    )
}

fn relay_event(
    tx: &Tx<'_>,
    row: &WrittenRow,
    new: &NewEvent,
    inserter: &mut Inserter<'_>,
) -> Result<AcceptResult, Fault> {
    let result = match event_with_id(tx, new)? {
        Some(earlier) => AcceptResult::Taken(earlier),
        None => inserter.insert(new)?,
    };
    if let AcceptResult::Taken(earlier) = &result
        && !earlier.same_content
    {
        let detail = format!("an earlier event, {}, has this key (or id) with other content", earlier.id);
        set_aside(tx, row, "key_conflict", &detail)?;
    }
    Ok(result)
}

/// What is neither planned nor rejected stays in the outbox. So does a row that changed since it was read;
/// its event, if one was planned, is answered as if a copy of it existed, because nothing was inserted.
fn carry_out(tx: &Tx<'_>, haul: &Haul, terms: Terms) -> Result<(u32, Vec<AcceptResult>), Fault> {
    let mut gone: HashSet<usize> = HashSet::new();
    for rejection in &haul.rejected {
        let row = &haul.rows[rejection.index];
        if still_written(tx, row)? {
            set_aside(tx, row, rejection.reason, &rejection.detail)?;
            take(tx, row)?;
            gone.insert(rejection.index);
        }
    }
    let mut inserter = Inserter::begin(tx, haul.events.iter().map(|(_, new)| new), terms)?;
    let mut results = Vec::with_capacity(haul.events.len());
    for (index, new) in &haul.events {
        let row = &haul.rows[*index];
        if !still_written(tx, row)? {
            results.push(AcceptResult::Taken(EarlierEvent {
                id: new.event.id,
                created_at: new.event.created_at,
                fanout: 0,
                same_content: true,
            }));
            continue;
        }
        results.push(relay_event(tx, row, new, &mut inserter)?);
        take(tx, row)?;
        gone.insert(*index);
    }
    Ok((gone.len() as u32, results))
}

impl SqliteStore {
    /// The snapshot for R2. Writers take turns, so a snapshot sees every number given before it, and the
    /// next snapshot is newer than this one.
    fn mark(&self, seq_high: i64) -> RelayMark {
        let number = self.relay_marks.fetch_add(1, Ordering::Relaxed) + 1;
        RelayMark { seq_high, xmin: number, xmax: number }
    }

    async fn carry_out_relay(&self, request: RelayRequest, haul: Haul, mark: RelayMark) -> Result<Relayed> {
        let terms = Terms { session: request.session, key_ttl: self.config.client_key_ttl };
        self.write(move |tx| {
            if !holds_lease(tx, LeaseName::OwnOutbox, request.session, request.lease_epoch)? {
                return Ok(Relayed::LeaseLost);
            }
            let config_version = config_version(tx)?;
            if config_version != request.config_version {
                return Ok(Relayed::Stale { config_version });
            }
            let (taken, results) = carry_out(tx, &haul, terms)?;
            Ok(Relayed::Committed { taken, results, mark })
        })
        .await
    }
}

/// Whether the session may relay against this configuration; looked at once more when writing.
fn refused(tx: &Tx<'_>, request: &RelayRequest) -> Result<Option<Relayed>, Fault> {
    if !holds_lease(tx, LeaseName::OwnOutbox, request.session, request.lease_epoch)? {
        return Ok(Some(Relayed::LeaseLost));
    }
    let config_version = config_version(tx)?;
    Ok((config_version != request.config_version).then_some(Relayed::Stale { config_version }))
}

/// The highest `seq` given so far.
fn seq_high(tx: &Tx<'_>) -> Result<i64, Fault> {
    let sql = "-- pombo:seq_high\nSELECT name, seq FROM sqlite_sequence WHERE name = 'pombo_outbox'";
    Ok(rows::first(tx, "sqlite_sequence", sql, (), |row| row.int(1, "seq"))?.unwrap_or(0))
}

#[async_trait]
impl Outbox for SqliteStore {
    async fn relay(&self, request: RelayRequest, plan: Planner<'_>) -> Result<Relayed> {
        let (refusal, written, high) = self
            .read(move |tx| {
                let refusal = refused(tx, &request)?;
                let written = if refusal.is_some() { Vec::new() } else { read_rows(tx, &request)? };
                Ok((refusal, written, seq_high(tx)?))
            })
            .await?;
        if let Some(refusal) = refusal {
            return Ok(refusal);
        }
        let mark = self.mark(high);
        if written.is_empty() {
            return Ok(Relayed::Empty(mark));
        }
        let haul = plan_rows(written, plan);
        self.carry_out_relay(request, haul, mark).await
    }

    async fn outbox_hint(&self, floor: i64) -> Result<bool> {
        self.read(move |tx| {
            let sql = "-- pombo:outbox_hint\nSELECT seq FROM pombo_outbox WHERE seq > ?1 LIMIT 1";
            Ok(rows::first(tx, "outbox", sql, params![floor], |_| Ok(()))?.is_some())
        })
        .await
    }

    async fn rejected_rows(&self, limit: u16) -> Result<Vec<RejectedRow>> {
        self.read(move |tx| {
            rows::all(
                tx,
                "outbox_rejected",
                "-- pombo:rejected_rows\n\
                 SELECT n, event_id, CAST(tenant AS TEXT), CAST(type AS TEXT), reason, detail, rejected_at\n\
                 FROM pombo_outbox_rejected ORDER BY n DESC LIMIT ?1",
                params![limit],
                |row| {
                    let as_written = |index| {
                        row.written(index).map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned())
                    };
                    Ok(RejectedRow {
                        id: EventId(row.uuid(1, "event_id")?),
                        tenant: as_written(2)?,
                        kind: as_written(3)?,
                        reason: row.text(4, "reason")?.to_owned(),
                        detail: row.text(5, "detail")?.to_owned(),
                        rejected_at: row.time(6, "rejected_at")?,
                    })
                },
            )
        })
        .await
    }
}
