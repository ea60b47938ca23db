//! Writing results (K5–K8). Row by row with cached statements inside one transaction: measured twice as fast
//! here as one statement over a list.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use pombo_domain::attempt::{Attempt, AttemptClass, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::Token;
use pombo_domain::event_type::EventType;
use pombo_domain::id::EndpointId;
use pombo_store::error::Result;
use pombo_store::flush::{Change, Flush, FlushBatch, FlushItem, FlushResult};

use crate::error::Fault;
use crate::{SqliteStore, Tx, endpoints, rows};

pub(crate) const SETTLE: &str = "-- pombo:settle\n\
    DELETE FROM pombo_delivery WHERE id = ?1 AND owner = ?2 AND gen = ?3 RETURNING id, seq";

/// A late success settles a row that nobody has taken since: only one step lies between (K6).
pub(crate) const SETTLE_LATE: &str = "-- pombo:settle_late\n\
    DELETE FROM pombo_delivery WHERE id = ?1 AND owner IS NULL AND gen = ?2 + 1 RETURNING id, seq";

pub(crate) const RESCHEDULE: &str = "-- pombo:reschedule\n\
    UPDATE pombo_delivery\n\
    SET owner = NULL, gen = gen + 1, rescues = 0, due_at = ?4, not_before = ?5, attempt = ?6,\n\
        last_status = ?7, last_class = ?8, last_at = ?9\n\
    WHERE id = ?1 AND owner = ?2 AND gen = ?3";

/// The key is fixed when the attempt starts, so the same result written again is no new row (K7). It may be the
/// first to change its delivery all the same, and settles it then.
pub(crate) const INSERT_ATTEMPT: &str = "-- pombo:insert_attempt\n\
    INSERT INTO pombo_attempt (delivery_id, started_at, event_id, event_at, endpoint_id, tenant_id, type, n, gen,\n\
        status, class, message, duration, dns, connect, tls, first_byte, read, response, response_truncated,\n\
        settles, late, manual, retryable, session, delivery_created_at)\n\
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,\n\
        ?23, ?24, ?25, ?26)\n\
    ON CONFLICT (delivery_id, started_at) DO UPDATE\n\
    SET settles = coalesce(excluded.settles, settles), late = min(late, excluded.late)\n\
    WHERE (settles IS NULL AND excluded.settles IS NOT NULL) OR (late = 1 AND excluded.late = 0)";

/// An attempt with what only the store knows of it.
pub(crate) struct AttemptRow<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) kind: &'a EventType,
    pub(crate) delivery_created_at: Timestamp,
    /// Set only by the statement that removed the live row (K6).
    pub(crate) settles: Option<Settlement>,
    pub(crate) late: bool,
}

pub(crate) fn insert_attempt(connection: &Connection, row: &AttemptRow<'_>) -> Result<(), Fault> {
    let attempt = row.attempt;
    let micros = |span: Option<std::time::Duration>| span.map(|span| span.as_micros() as i64);
    rows::change(
        connection,
        INSERT_ATTEMPT,
        params![
            attempt.delivery_id.0.as_bytes(),
            attempt.started_at.as_micros(),
            attempt.event_id.0.as_bytes(),
            attempt.event_at.as_micros(),
            attempt.endpoint_id.0.as_bytes(),
            attempt.tenant_id.0.as_bytes(),
            row.kind.as_str(),
            attempt.number,
            attempt.generation,
            attempt.status,
            attempt.class.map(AttemptClass::as_str),
            attempt.message,
            attempt.duration.as_micros() as i64,
            micros(attempt.phases.dns),
            micros(attempt.phases.connect),
            micros(attempt.phases.tls),
            micros(attempt.phases.first_byte),
            micros(attempt.phases.body),
            attempt.response_body.as_deref(),
            attempt.response_truncated,
            row.settles.map(Settlement::as_str),
            row.late,
            attempt.manual,
            attempt.retryable,
            attempt.session.0,
            row.delivery_created_at.as_micros(),
        ],
    )?;
    Ok(())
}

/// Removes the live row of a token; returns its place in the accepted order.
fn settle(tx: &Tx<'_>, token: Token) -> Result<Option<i64>, Fault> {
    let parameters = params![token.id.0.as_bytes(), token.owner.0, token.generation];
    rows::first(tx, "delivery", SETTLE, parameters, |row| row.int(1, "seq"))
}

fn settle_late(tx: &Tx<'_>, token: Token) -> Result<bool, Fault> {
    let parameters = params![token.id.0.as_bytes(), token.generation];
    Ok(rows::first(tx, "delivery", SETTLE_LATE, parameters, |_| Ok(()))?.is_some())
}

/// `due_at` is never in the past, where a claim's floor would hide it (C2): a result may have waited long
/// for a database that was away.
fn reschedule(tx: &Tx<'_>, item: &FlushItem, due_at: Timestamp, wait: Wait) -> Result<bool, Fault> {
    let (token, attempt) = (item.token, &item.attempt);
    let changed = rows::change(
        tx,
        RESCHEDULE,
        params![
            token.id.0.as_bytes(),
            token.owner.0,
            token.generation,
            due_at.max(tx.now).as_micros(),
            finite(wait.not_before),
            wait.attempts,
            attempt.status,
            attempt.class.map(AttemptClass::as_str),
            attempt.started_at.as_micros(),
        ],
    )?;
    Ok(changed == 1)
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    not_before: Option<Timestamp>,
    attempts: u16,
}

/// What a row waits for, as it is stored: for ever is no time, else it could never wake.
pub(crate) fn finite(not_before: Option<Timestamp>) -> Option<i64> {
    not_before.filter(|at| *at < Timestamp::INFINITY).map(Timestamp::as_micros)
}

fn insert_dead_letter(tx: &Tx<'_>, item: &FlushItem, seq: i64) -> Result<(), Fault> {
    let attempt = &item.attempt;
    let class = attempt.class.unwrap_or(AttemptClass::Interrupted);
    rows::change(
        tx,
        "-- pombo:insert_dead_letter\n\
         INSERT INTO pombo_dead_letter (delivery_id, event_id, event_at, endpoint_id, tenant_id, type, died_at,\n\
             attempt_at, class, status, gen, seq)\n\
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        params![
            attempt.delivery_id.0.as_bytes(),
            attempt.event_id.0.as_bytes(),
            attempt.event_at.as_micros(),
            attempt.endpoint_id.0.as_bytes(),
            attempt.tenant_id.0.as_bytes(),
            item.kind.as_str(),
            tx.now.as_micros(),
            attempt.started_at.as_micros(),
            class.as_str(),
            attempt.status,
            item.token.generation,
            seq,
        ],
    )?;
    Ok(())
}

fn write_result(tx: &Tx<'_>, item: &FlushItem) -> Result<FlushResult, Fault> {
    let (settles, result) = match item.change {
        Change::Settle(end) => match settle(tx, item.token)? {
            Some(seq) => {
                if end == Settlement::Dead {
                    insert_dead_letter(tx, item, seq)?;
                }
                (Some(end), FlushResult::Applied)
            }
            None if end == Settlement::Delivered && settle_late(tx, item.token)? => {
                (Some(end), FlushResult::Late { settled: true })
            }
            None => (None, FlushResult::Late { settled: false }),
        },
        Change::Reschedule { due_at, not_before, attempts } => {
            let applied = reschedule(tx, item, due_at, Wait { not_before, attempts })?;
            (None, if applied { FlushResult::Applied } else { FlushResult::Late { settled: false } })
        }
        Change::RecordOnly => (None, FlushResult::Applied),
    };
    let late = matches!(result, FlushResult::Late { .. });
    let (kind, delivery_created_at) = (&item.kind, item.delivery_created_at);
    insert_attempt(tx, &AttemptRow { attempt: &item.attempt, kind, delivery_created_at, settles, late })?;
    Ok(result)
}

/// A later end stays.
fn hold(tx: &Tx<'_>, endpoint: EndpointId, until: Timestamp) -> Result<(), Fault> {
    rows::change(
        tx,
        "-- pombo:hold\n\
         INSERT INTO pombo_endpoint_state (endpoint_id, hold_until) VALUES (?1, ?2)\n\
         ON CONFLICT (endpoint_id) DO UPDATE SET hold_until = max(coalesce(hold_until, 0), excluded.hold_until)",
        params![endpoint.0.as_bytes(), until.as_micros()],
    )?;
    Ok(())
}

#[async_trait]
impl Flush for SqliteStore {
    async fn flush(&self, batch: &FlushBatch) -> Result<Vec<FlushResult>> {
        let batch = batch.clone();
        self.write(move |tx| {
            let results: Result<Vec<_>, Fault> =
                batch.items.iter().map(|item| write_result(tx, item)).collect();
            for (endpoint, until) in &batch.holds {
                hold(tx, *endpoint, *until)?;
            }
            for (endpoint, reason) in &batch.disables {
                endpoints::disable(tx, *endpoint, *reason)?;
            }
            results
        })
        .await
    }
}
