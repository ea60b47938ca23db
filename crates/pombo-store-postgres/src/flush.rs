//! Writing results: one statement per batch (docs/protocol.md K5-K8).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use pombo_domain::attempt::Settlement;
use pombo_domain::clock::Timestamp;
use pombo_domain::endpoint::DisabledReason;
use pombo_domain::id::EndpointId;
use pombo_store::admin::Actor;
use pombo_store::endpoints::StatusChange;
use pombo_store::error::Result;
use pombo_store::flush::{Change, Flush, FlushBatch, FlushItem, FlushResult};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::endpoints;
use crate::error::{Fault, Phase};
use crate::partitions::Day;
use crate::pool::{Durability, Failed, statement, transaction};
use crate::sessions::TokenColumns;
use crate::time::At;

/// Rows of the hot table are found by `= ANY` alone, and the token is compared against a hashed list (`IS TRUE`
/// keeps it a list). A join with `unnest` would be planned once, while the table is empty, as a scan of the
/// whole table for each result: 9 s for 500 rows where this takes 5 ms (K5).
///
/// The same result written again is no new attempt (K7), but it may be the first to change its row: after a crash
/// of the database the result may be written, as late, before the relay has made its lost delivery again under the
/// same token, and once more after that, when the new epoch is noticed (S5). What removes the row then settles.
///
/// A row is either owned or not in the snapshot of the statement, so no row is met by two of the three
/// changes.
pub(crate) const FLUSH: &str = "-- pombo:flush
WITH settled AS (
  DELETE FROM pombo.delivery AS d
  WHERE d.id = ANY ($1)
    AND ((d.id, d.owner, d.gen) IN (SELECT * FROM unnest($1::uuid[], $2::int[], $3::int[]))) IS TRUE
  RETURNING d.id, d.gen, d.seq, d.event_id, d.event_at, d.endpoint_id, d.tenant_id, d.type
), late AS (
  DELETE FROM pombo.delivery AS d
  WHERE d.id = ANY ($4) AND d.owner IS NULL
    AND ((d.id, d.gen - 1) IN (SELECT * FROM unnest($4::uuid[], $5::int[]))) IS TRUE
  RETURNING d.id
), rescheduled AS (
  UPDATE pombo.delivery AS d
  SET owner = NULL, gen = d.gen + 1, rescues = 0,
      (due_at, not_before, attempt, last_at, last_status, last_class) = (
        SELECT greatest(($9::timestamptz[])[p.i], clock_timestamp()),
               nullif(($10::timestamptz[])[p.i], '-infinity'), ($11::smallint[])[p.i],
               ($12::timestamptz[])[p.i], nullif(($13::smallint[])[p.i], -1), ($14::text[])[p.i]
        FROM (SELECT array_position($6::uuid[], d.id) AS i OFFSET 0) AS p
      )
  WHERE d.id = ANY ($6)
    AND ((d.id, d.owner, d.gen) IN (SELECT * FROM unnest($6::uuid[], $7::int[], $8::int[]))) IS TRUE
  RETURNING d.id
), dead AS (
  INSERT INTO pombo.dead_letter AS l (delivery_id, event_id, event_at, endpoint_id, tenant_id, type, died_at,
                                      class, status, gen, seq)
  SELECT s.id, s.event_id, s.event_at, s.endpoint_id, s.tenant_id, s.type, clock_timestamp(),
         ($16::text[])[p.i], nullif(($17::smallint[])[p.i], -1), s.gen, s.seq
  FROM settled AS s CROSS JOIN LATERAL (SELECT array_position($15::uuid[], s.id) AS i OFFSET 0) AS p
  WHERE p.i IS NOT NULL
  ON CONFLICT (delivery_id) DO UPDATE
  SET died_at = excluded.died_at, class = excluded.class, status = excluded.status, gen = excluded.gen
), attempts AS (
  INSERT INTO pombo.attempt AS a (delivery_id, started_at, event_id, event_at, endpoint_id, tenant_id, type, n, gen,
                             status, class, message, duration_us, dns_us, connect_us, tls_us, first_byte_us,
                             body_us, response_body, response_truncated, settles, late, manual, retryable,
                             session, delivery_created_at)
  SELECT r.delivery_id, r.started_at, r.event_id, r.event_at, r.endpoint_id, r.tenant_id, r.type, r.n, r.gen,
         r.status, r.class, r.message, r.duration_us, r.dns_us, r.connect_us, r.tls_us, r.first_byte_us,
         r.body_us, r.response_body, r.response_truncated,
         CASE WHEN (r.delivery_id IN (SELECT id FROM settled)) IS TRUE
                OR (r.delivery_id IN (SELECT id FROM late)) IS TRUE THEN r.settles END,
         r.changes AND (r.delivery_id IN (SELECT id FROM settled)) IS NOT TRUE
                   AND (r.delivery_id IN (SELECT id FROM rescheduled)) IS NOT TRUE,
         r.manual, r.retryable, r.session, r.delivery_created_at
  FROM unnest($18::uuid[], $19::timestamptz[], $20::uuid[], $21::timestamptz[], $22::uuid[], $23::uuid[],
              $24::text[], $25::smallint[], $26::int[], $27::smallint[], $28::text[], $29::text[], $30::bigint[],
              $31::bigint[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[], $36::bytea[],
              $37::bool[], $38::text[], $39::bool[], $40::bool[], $41::bool[], $42::int[], $43::timestamptz[])
       AS r (delivery_id, started_at, event_id, event_at, endpoint_id, tenant_id, type, n, gen, status, class,
             message, duration_us, dns_us, connect_us, tls_us, first_byte_us, body_us, response_body,
             response_truncated, settles, changes, manual, retryable, session, delivery_created_at)
  ON CONFLICT (delivery_id, started_at) DO UPDATE
  SET settles = coalesce(excluded.settles, a.settles), late = a.late AND excluded.late
  WHERE (a.settles IS NULL AND excluded.settles IS NOT NULL) OR (a.late AND NOT excluded.late)
)
SELECT ARRAY(SELECT id FROM settled) AS settled, ARRAY(SELECT id FROM late) AS late,
       ARRAY(SELECT id FROM rescheduled) AS rescheduled,
       CASE WHEN $44 THEN set_config('synchronous_commit', 'off', true) END AS asynchronous";

/// A later end stays.
pub(crate) const HOLD: &str = "-- pombo:hold
UPDATE pombo.endpoint_state SET hold_until = $2
WHERE endpoint_id = $1 AND (hold_until IS NULL OR hold_until < $2)";

/// The arrays of [`FLUSH`]. A delivery is in them at most once.
#[derive(Default)]
struct Columns<'a> {
    settle: Vec<pombo_domain::delivery::Token>,
    success: (Vec<Uuid>, Vec<i32>),
    reschedule: Vec<pombo_domain::delivery::Token>,
    plan: HashMap<Uuid, &'a FlushItem>,
    dead: (Vec<Uuid>, Vec<&'static str>, Vec<i16>),
    attempts: Attempts<'a>,
}

#[derive(Default)]
struct Attempts<'a> {
    delivery_ids: Vec<Uuid>,
    started_at: Vec<At>,
    event_ids: Vec<Uuid>,
    event_at: Vec<At>,
    endpoint_ids: Vec<Uuid>,
    tenant_ids: Vec<Uuid>,
    kinds: Vec<&'a str>,
    numbers: Vec<i16>,
    generations: Vec<i32>,
    statuses: Vec<Option<i16>>,
    classes: Vec<Option<&'static str>>,
    messages: Vec<Option<&'a str>>,
    durations: Vec<i64>,
    phases: [Vec<Option<i64>>; 5],
    bodies: Vec<Option<&'a [u8]>>,
    truncated: Vec<bool>,
    settles: Vec<Option<&'static str>>,
    changes: Vec<bool>,
    manual: Vec<bool>,
    retryable: Vec<bool>,
    sessions: Vec<i32>,
    created_at: Vec<At>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, item: &'a FlushItem) {
        let id = item.token.id.0;
        match item.change {
            Change::Settle(settlement) => {
                self.settle.push(item.token);
                match settlement {
                    Settlement::Delivered => {
                        self.success.0.push(id);
                        self.success.1.push(item.token.generation);
                    }
                    Settlement::Dead => {
                        self.dead.0.push(id);
                        // A dead letter without class cannot be: nothing but an attempt kills.
                        self.dead.1.push(item.attempt.class.map_or("interrupted", |class| class.as_str()));
                        self.dead.2.push(item.attempt.status.map_or(-1, |status| status as i16));
                    }
                    Settlement::Cancelled => {}
                }
            }
            Change::Reschedule { .. } => {
                self.reschedule.push(item.token);
                self.plan.insert(id, item);
            }
            Change::RecordOnly => {}
        }
        self.attempts.push(item);
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl<'a> Attempts<'a> {
    fn push(&mut self, item: &'a FlushItem) {
        let attempt = &item.attempt;
        self.delivery_ids.push(attempt.delivery_id.0);
        self.started_at.push(At(attempt.started_at));
        self.event_ids.push(attempt.event_id.0);
        self.event_at.push(At(attempt.event_at));
        self.endpoint_ids.push(attempt.endpoint_id.0);
        self.tenant_ids.push(attempt.tenant_id.0);
        self.kinds.push(item.kind.as_str());
        self.numbers.push(attempt.number);
        self.generations.push(attempt.generation);
        self.statuses.push(attempt.status.map(|status| status as i16));
        self.classes.push(attempt.class.map(pombo_domain::attempt::AttemptClass::as_str));
        self.messages.push(attempt.message.as_deref());
        self.durations.push(micros(attempt.duration));
        let phases = attempt.phases;
        let parts = [phases.dns, phases.connect, phases.tls, phases.first_byte, phases.body];
        for (column, part) in self.phases.iter_mut().zip(parts) {
            column.push(part.map(micros));
        }
        self.bodies.push(attempt.response_body.as_deref());
        self.truncated.push(attempt.response_truncated);
        self.settles.push(match item.change {
            Change::Settle(settlement) => Some(settlement.as_str()),
            _ => None,
        });
        self.changes.push(item.change != Change::RecordOnly);
        self.manual.push(attempt.manual);
        self.retryable.push(attempt.retryable);
        self.sessions.push(attempt.session.0);
        self.created_at.push(At(item.delivery_created_at));
    }
}

/// What is written of a row that goes back to waiting; absent values have stand-ins, because arrays with NULLs
/// are walked from the start for every subscript.
#[derive(Default)]
struct Plans {
    due_at: Vec<At>,
    not_before: Vec<At>,
    attempts: Vec<i16>,
    last_at: Vec<At>,
    last_status: Vec<i16>,
    last_class: Vec<&'static str>,
}

impl Plans {
    fn of(ids: &[Uuid], items: &HashMap<Uuid, &FlushItem>) -> Self {
        let mut plans = Self::default();
        for item in ids.iter().filter_map(|id| items.get(id)) {
            let Change::Reschedule { due_at, not_before, attempts } = item.change else { continue };
            plans.due_at.push(At(due_at));
            plans.not_before.push(not_before.map_or(At::NEG_INFINITY, At));
            plans.attempts.push(i16::try_from(attempts).unwrap_or(i16::MAX));
            plans.last_at.push(At(item.attempt.started_at));
            plans.last_status.push(item.attempt.status.map_or(-1, |status| status as i16));
            plans.last_class.push(item.attempt.class.map_or("interrupted", |class| class.as_str()));
        }
        plans
    }
}

/// Items in rounds in which no delivery is twice. Nearly always one: two results of one delivery meet in a
/// batch only if an old token's result was kept back.
fn rounds(items: &[FlushItem]) -> Vec<Vec<usize>> {
    let mut seen: HashMap<Uuid, usize> = HashMap::new();
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let round = seen.entry(item.token.id.0).and_modify(|round| *round += 1).or_insert(0);
        if rounds.len() == *round {
            rounds.push(Vec::new());
        }
        rounds[*round].push(index);
    }
    rounds
}

async fn write_round(
    connection: &mut PgConnection,
    items: &[FlushItem],
    round: &[usize],
    asynchronous: bool,
) -> Result<Vec<FlushResult>, Fault> {
    let mut columns = Columns::default();
    for index in round {
        columns.push(&items[*index]);
    }
    let row = run(connection, &columns, asynchronous).await?;
    let read = |name: &str| -> sqlx::Result<HashSet<Uuid>> {
        Ok(row.try_get::<Vec<Uuid>, _>(name)?.into_iter().collect())
    };
    let (settled, late, rescheduled) = (read("settled")?, read("late")?, read("rescheduled")?);
    let result = |index: &usize| {
        let id = items[*index].token.id.0;
        match items[*index].change {
            Change::Settle(_) if settled.contains(&id) => FlushResult::Applied,
            Change::Reschedule { .. } if rescheduled.contains(&id) => FlushResult::Applied,
            Change::RecordOnly => FlushResult::Applied,
            _ => FlushResult::Late { settled: late.contains(&id) },
        }
    };
    Ok(round.iter().map(result).collect())
}

async fn run(
    connection: &mut PgConnection,
    columns: &Columns<'_>,
    asynchronous: bool,
) -> Result<sqlx::postgres::PgRow, Fault> {
    let settle = TokenColumns::of(columns.settle.iter().copied());
    let reschedule = TokenColumns::of(columns.reschedule.iter().copied());
    let plans = Plans::of(&reschedule.ids, &columns.plan);
    let attempts = &columns.attempts;
    let [dns, connect, tls, first_byte, body] = &attempts.phases;
    let row = sqlx::query(FLUSH)
        .bind(settle.ids)
        .bind(settle.owners)
        .bind(settle.generations)
        .bind(&columns.success.0)
        .bind(&columns.success.1)
        .bind(reschedule.ids)
        .bind(reschedule.owners)
        .bind(reschedule.generations)
        .bind(plans.due_at)
        .bind(plans.not_before)
        .bind(plans.attempts)
        .bind(plans.last_at)
        .bind(plans.last_status)
        .bind(plans.last_class)
        .bind(&columns.dead.0)
        .bind(&columns.dead.1)
        .bind(&columns.dead.2)
        .bind(&attempts.delivery_ids)
        .bind(&attempts.started_at)
        .bind(&attempts.event_ids)
        .bind(&attempts.event_at)
        .bind(&attempts.endpoint_ids)
        .bind(&attempts.tenant_ids)
        .bind(&attempts.kinds)
        .bind(&attempts.numbers)
        .bind(&attempts.generations)
        .bind(&attempts.statuses)
        .bind(&attempts.classes)
        .bind(&attempts.messages)
        .bind(&attempts.durations)
        .bind(dns)
        .bind(connect)
        .bind(tls)
        .bind(first_byte)
        .bind(body)
        .bind(&attempts.bodies)
        .bind(&attempts.truncated)
        .bind(&attempts.settles)
        .bind(&attempts.changes)
        .bind(&attempts.manual)
        .bind(&attempts.retryable)
        .bind(&attempts.sessions)
        .bind(&attempts.created_at)
        .bind(asynchronous)
        .fetch_one(connection)
        .await?;
    Ok(row)
}

/// Everything of a batch that needs more than one statement.
async fn write_all(
    connection: &mut PgConnection,
    batch: &FlushBatch,
    rounds: &[Vec<usize>],
) -> Result<Vec<FlushResult>, Fault> {
    let mut results = vec![FlushResult::Late { settled: false }; batch.items.len()];
    for round in rounds {
        let written = write_round(connection, &batch.items, round, false).await?;
        for (index, result) in round.iter().zip(written) {
            results[*index] = result;
        }
    }
    let mut holds: Vec<(EndpointId, Timestamp)> = batch.holds.clone();
    holds.sort_unstable();
    let mut disables: Vec<(EndpointId, DisabledReason)> = batch.disables.clone();
    disables.sort_unstable_by_key(|(id, _)| *id);
    disables.dedup_by_key(|(id, _)| *id);
    for (id, reason) in disables {
        endpoints::change_status(connection, id, StatusChange::Disable(reason), &Actor::pombo()).await?;
    }
    for (id, until) in holds {
        sqlx::query(HOLD).bind(id.0).bind(At(until)).execute(&mut *connection).await?;
    }
    Ok(results)
}

#[async_trait]
impl Flush for PostgresStore {
    async fn flush(&self, batch: &FlushBatch) -> Result<Vec<FlushResult>> {
        let mut written = self.write(batch).await;
        if let Err(Failed::Partition(_)) = written {
            self.make_days(batch.items.iter().map(|item| Day::of(item.attempt.started_at))).await?;
            written = self.write(batch).await;
        }
        Ok(written?)
    }
}

impl PostgresStore {
    async fn write(&self, batch: &FlushBatch) -> Result<Vec<FlushResult>, Failed> {
        let rounds = rounds(&batch.items);
        match &rounds[..] {
            [] if batch.holds.is_empty() && batch.disables.is_empty() => Ok(Vec::new()),
            [round] if batch.holds.is_empty() && batch.disables.is_empty() => {
                statement!(self.pools, flush, Phase::Commit, |connection| {
                    write_round(connection, &batch.items, round, true)
                })
            }
            rounds => {
                // A change of the configuration waits for the disk; a hold is only a hint that may be learned anew.
                let durability = if batch.disables.is_empty() {
                    Durability::Asynchronous
                } else {
                    Durability::Synchronous
                };
                transaction!(self.pools, flush, durability, |connection| {
                    write_all(connection, batch, rounds)
                })
            }
        }
    }
}
