//! The relay: from rows of the outbox to events, in one transaction (docs/protocol.md, rules R).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pombo_domain::clock::Timestamp;
use pombo_domain::id::EventId;
use pombo_store::accept::{AcceptResult, NewEvent};
use pombo_store::error::Result;
use pombo_store::outbox::{
    Outbox, OutboxRow, Planner, RejectedRow, Rejection, RelayMark, RelayRequest, Relayed,
};
use pombo_store::sessions::LeaseName;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::PostgresStore;
use crate::accept::{self, Columns, Terms};
use crate::error::{Fault, Phase};
use crate::partitions::Day;
use crate::pool::{Durability, Failed, statement, transaction};
use crate::rows::{instant, maybe_instant};
use crate::time::At;

/// The first statement of every relay: whoever takes the lease over waits for this transaction (R3). It also
/// reads the highest `seq` that was given out, before the snapshot of the next statement: every row up to it
/// belongs to a transaction that began to write before that snapshot, or is about to.
pub(crate) const FENCE: &str = "-- pombo:relay_fence
WITH held AS MATERIALIZED (
  SELECT 1 FROM pombo.lease AS l WHERE l.name = $1 AND l.holder = $2 AND l.epoch = $3
    AND EXISTS (SELECT FROM pombo.session AS s WHERE s.id = $2 AND s.state = 'live')
  FOR SHARE OF l
)
SELECT EXISTS (SELECT FROM held) AS held, c.version AS config_version,
       CASE WHEN s.is_called THEN s.last_value ELSE 0 END AS seq_high, clock_timestamp() AS now
FROM pombo.config AS c, pombo.outbox_seq_seq AS s WHERE c.one";

/// Rows by `seq`, never by transaction: that would turn two versions of one key round (R1). They are found
/// again by a range of the primary key: `= ANY` of a list would be a scan of a table that was planned empty.
pub(crate) const TAKE: &str = "-- pombo:relay_take
WITH picked AS MATERIALIZED (
  SELECT seq, octet_length(data) AS bytes FROM pombo.outbox
  WHERE seq > $1 ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED
), within AS MATERIALIZED (
  SELECT seq FROM (SELECT seq, bytes, sum(bytes) OVER (ORDER BY seq) AS total FROM picked) AS p
  WHERE total <= $3 OR total = bytes
), taken AS (
  DELETE FROM pombo.outbox AS o
  WHERE o.seq >= (SELECT min(seq) FROM within) AND o.seq <= (SELECT max(seq) FROM within)
    AND (o.seq IN (SELECT seq FROM within)) IS TRUE
  RETURNING o.seq, o.id, o.tenant, o.type, o.data, o.ordering_key, o.key, o.resource_version, o.deliver_at,
            o.endpoint_id, o.content_type, o.headers, o.created_at
)
SELECT m.xmin, m.xmax, t.seq, t.id, t.tenant, t.type, t.data, t.ordering_key, t.key, t.resource_version,
       t.deliver_at, t.endpoint_id, t.content_type, t.headers::text AS headers, t.created_at
FROM (SELECT pg_snapshot_xmin(s)::text::bigint AS xmin, pg_snapshot_xmax(s)::text::bigint AS xmax
      FROM pg_current_snapshot() AS s) AS m
LEFT JOIN taken AS t ON true";

/// Ordered, because `EXISTS` would be answered by a scan over dead rows from the start of the table.
pub(crate) const HINT: &str = "-- pombo:outbox_hint
SELECT coalesce((SELECT true FROM pombo.outbox WHERE seq > $1 ORDER BY seq LIMIT 1), false)";

const SET_ASIDE: &str = "-- pombo:set_aside
INSERT INTO pombo.outbox_rejected (seq, id, tenant, type, data, ordering_key, key, resource_version, deliver_at,
                                   endpoint_id, content_type, headers, created_at, reason, detail)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::json, $13, $14, $15)
ON CONFLICT (seq) DO NOTHING";

/// Asked only of rows whose event exists: nearly never.
const SAME_EVENT: &str = "-- pombo:same_event
SELECT tenant_id = $3 AND type = $4 AND body = $5 FROM pombo.event WHERE id = $1 AND created_at = $2";

const REJECTED: &str = "-- pombo:rejected_rows
SELECT id, tenant, type, reason, detail, rejected_at FROM pombo.outbox_rejected
ORDER BY rejected_at DESC, seq DESC LIMIT $1";

/// How far from now an application may have dated a row: it becomes the event's time, which decides the day
/// of history it is kept in.
const DATED_BACK_MAX: Duration = Duration::from_secs(400 * 86_400);
const DATED_AHEAD_MAX: Duration = Duration::from_secs(86_400);

/// What a transaction came to.
enum End {
    Done(Relayed),
    /// The configuration moved between the fence and the insert; everything is rolled back.
    Moved(i64),
}

/// A row as it was taken, with what the planner does not need.
struct Taken {
    row: OutboxRow,
    headers: Option<String>,
}

struct Fence {
    config_version: i64,
    seq_high: i64,
    now: Timestamp,
}

async fn fence(connection: &mut PgConnection, request: RelayRequest) -> Result<Option<Fence>, Fault> {
    let row = sqlx::query(FENCE)
        .bind(LeaseName::OwnOutbox.as_str())
        .bind(request.session.0)
        .bind(request.lease_epoch)
        .fetch_optional(connection)
        .await?;
    let row = row.ok_or_else(|| Fault::Store(crate::rows::missing_config()))?;
    if !row.try_get::<bool, _>("held")? {
        return Ok(None);
    }
    Ok(Some(Fence {
        config_version: row.try_get("config_version")?,
        seq_high: row.try_get("seq_high")?,
        now: instant(&row, "now")?,
    }))
}

async fn take(
    connection: &mut PgConnection,
    request: RelayRequest,
    seq_high: i64,
) -> Result<(Vec<Taken>, RelayMark), Fault> {
    let rows = sqlx::query(TAKE)
        .bind(request.floor)
        .bind(i64::from(request.limit))
        .bind(i64::try_from(request.bytes_max).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    let mut mark = RelayMark { seq_high, xmin: 0, xmax: 0 };
    let mut taken = Vec::with_capacity(rows.len());
    for row in &rows {
        mark = RelayMark { seq_high, xmin: row.try_get("xmin")?, xmax: row.try_get("xmax")? };
        if let Some(seq) = row.try_get::<Option<i64>, _>("seq")? {
            taken.push(outbox_row(row, seq)?);
        }
    }
    taken.sort_unstable_by_key(|taken| taken.row.seq);
    Ok((taken, mark))
}

fn outbox_row(row: &PgRow, seq: i64) -> sqlx::Result<Taken> {
    let data: String = row.try_get("data")?;
    Ok(Taken {
        headers: row.try_get("headers")?,
        row: OutboxRow {
            seq,
            id: EventId(row.try_get("id")?),
            tenant: row.try_get("tenant")?,
            kind: row.try_get("type")?,
            data: Bytes::from(data),
            ordering_key: row.try_get("ordering_key")?,
            key: row.try_get("key")?,
            resource_version: row.try_get("resource_version")?,
            deliver_at: maybe_instant(row, "deliver_at")?,
            endpoint_id: row.try_get("endpoint_id")?,
            content_type: row.try_get("content_type")?,
            created_at: instant(row, "created_at")?,
        },
    })
}

async fn set_aside(connection: &mut PgConnection, taken: &Taken, why: (&str, &str)) -> Result<(), Fault> {
    let row = &taken.row;
    // It came out of a text column a moment ago.
    let data = std::str::from_utf8(&row.data).expect("a text of the database is UTF-8");
    sqlx::query(SET_ASIDE)
        .bind(row.seq)
        .bind(row.id.0)
        .bind(&row.tenant)
        .bind(&row.kind)
        .bind(data)
        .bind(&row.ordering_key)
        .bind(&row.key)
        .bind(row.resource_version)
        .bind(row.deliver_at.map(At))
        .bind(&row.endpoint_id)
        .bind(&row.content_type)
        .bind(&taken.headers)
        .bind(At(row.created_at))
        .bind(why.0)
        .bind(why.1)
        .execute(connection)
        .await?;
    Ok(())
}

/// Rows that the planner sees, and those dated so far off that no day of history should be made for them.
fn split_by_date(taken: Vec<Taken>, now: Timestamp) -> (Vec<Taken>, Vec<Taken>) {
    let dated = now.minus(DATED_BACK_MAX)..now.plus(DATED_AHEAD_MAX);
    taken.into_iter().partition(|taken| dated.contains(&taken.row.created_at))
}

const MISDATED: (&str, &str) =
    ("unreadable", "created_at lies more than a day ahead or 400 days back: leave it to its default");

const KEY_CONFLICT: (&str, &str) =
    ("key_conflict", "its key (or its id) belongs to an earlier event with other content");

/// An event that stands already under its own id is a repetition only if it is the same one: where an application
/// used an id twice, the second row must not vanish.
async fn compare_copies<'a>(
    connection: &mut PgConnection,
    results: impl Iterator<Item = (&'a NewEvent, &'a mut AcceptResult)>,
) -> Result<(), Fault> {
    for (new, result) in results {
        let AcceptResult::Taken(earlier) = result else { continue };
        if earlier.id != new.event.id {
            continue;
        }
        let event = &new.event;
        let same: Option<bool> = sqlx::query_scalar(SAME_EVENT)
            .bind(event.id.0)
            .bind(At(event.created_at))
            .bind(event.tenant_id.0)
            .bind(event.kind.as_str())
            .bind(&event.body[..])
            .fetch_optional(&mut *connection)
            .await?;
        earlier.same_content &= same.unwrap_or(false);
    }
    Ok(())
}

/// What the loop around the transaction needs to know after it failed.
#[derive(Default)]
struct Days(Vec<Day>);

async fn relay(
    connection: &mut PgConnection,
    request: RelayRequest,
    key_ttl: Duration,
    (plan, days): (Planner<'_>, &mut Days),
) -> Result<End, Fault> {
    let Some(fence) = fence(connection, request).await? else { return Ok(End::Done(Relayed::LeaseLost)) };
    if fence.config_version != request.config_version {
        return Ok(End::Done(Relayed::Stale { config_version: fence.config_version }));
    }
    let (taken, mark) = take(connection, request, fence.seq_high).await?;
    if taken.is_empty() {
        return Ok(End::Done(Relayed::Empty(mark)));
    }
    let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
    let (taken, misdated) = split_by_date(taken, fence.now);
    for row in &misdated {
        set_aside(connection, row, MISDATED).await?;
    }
    let rows: Vec<OutboxRow> = taken.iter().map(|taken| taken.row.clone()).collect();
    let plan = plan(&rows);
    for Rejection { index, reason, detail } in &plan.rejected {
        set_aside(connection, &taken[*index], (reason, detail)).await?;
    }
    let columns = Columns::of(plan.events.iter().map(|(_, new)| new));
    days.0 = columns.days().collect();
    let terms = Terms {
        config_version: request.config_version,
        session: request.session,
        key_ttl,
        synchronous: false,
    };
    let inserted = accept::insert(connection, &columns, terms).await?;
    if inserted.config_version != request.config_version {
        return Ok(End::Moved(inserted.config_version));
    }
    let events = || plan.events.iter().map(|(_, new)| new);
    let lost = events().filter(|new| !inserted.created.contains(&new.event.id.0));
    let winners = accept::winners(connection, lost).await?;
    let mut results = accept::results(events(), &inserted.created, &winners);
    compare_copies(connection, events().zip(&mut results)).await?;
    for ((index, _), result) in plan.events.iter().zip(&results) {
        if matches!(result, AcceptResult::Taken(earlier) if !earlier.same_content) {
            set_aside(connection, &taken[*index], KEY_CONFLICT).await?;
        }
    }
    Ok(End::Done(Relayed::Committed { taken: count, results, mark }))
}

/// As [`relay`], but a configuration that moved meanwhile is an error, so that the transaction rolls back.
async fn relay_or_roll_back(
    connection: &mut PgConnection,
    request: RelayRequest,
    key_ttl: Duration,
    (plan, days, moved): (Planner<'_>, &mut Days, &mut Option<i64>),
) -> Result<Relayed, Fault> {
    match relay(connection, request, key_ttl, (plan, days)).await? {
        End::Done(relayed) => Ok(relayed),
        End::Moved(version) => {
            *moved = Some(version);
            Err(Fault::Store(pombo_store::StoreError::Busy("the configuration moved on".into())))
        }
    }
}

impl PostgresStore {
    async fn relay_once(
        &self,
        request: RelayRequest,
        plan: Planner<'_>,
        days: &mut Days,
    ) -> Result<Relayed, Failed> {
        let mut moved = None;
        let relayed = transaction!(self.pools, walk, Durability::Asynchronous, |connection| {
            relay_or_roll_back(connection, request, self.client_key_ttl, (plan, days, &mut moved))
        });
        match moved {
            Some(config_version) => Ok(Relayed::Stale { config_version }),
            None => relayed,
        }
    }
}

#[async_trait]
impl Outbox for PostgresStore {
    async fn relay(&self, request: RelayRequest, plan: Planner<'_>) -> Result<Relayed> {
        let mut days = Days::default();
        let mut relayed = self.relay_once(request, plan, &mut days).await;
        if let Err(Failed::Partition(_)) = relayed {
            self.make_days(std::mem::take(&mut days.0)).await?;
            relayed = self.relay_once(request, plan, &mut days).await;
        }
        Ok(relayed?)
    }

    async fn outbox_hint(&self, floor: i64) -> Result<bool> {
        Ok(statement!(self.pools, walk, Phase::Before, |connection| {
            sqlx::query_scalar(HINT).bind(floor).fetch_one(connection)
        })?)
    }

    async fn rejected_rows(&self, limit: u16) -> Result<Vec<RejectedRow>> {
        let rows = statement!(self.pools, read, Phase::Before, |connection| {
            sqlx::query(REJECTED).bind(i64::from(limit)).fetch_all(connection)
        })?;
        let read = |row: &PgRow| -> sqlx::Result<RejectedRow> {
            Ok(RejectedRow {
                id: EventId(row.try_get("id")?),
                tenant: row.try_get("tenant")?,
                kind: row.try_get("type")?,
                reason: row.try_get("reason")?,
                detail: row.try_get("detail")?,
                rejected_at: instant(row, "rejected_at")?,
            })
        };
        let rows: sqlx::Result<Vec<RejectedRow>> = rows.iter().map(read).collect();
        rows.map_err(|error| crate::error::final_error(Fault::Sql(error), Phase::Before))
    }
}
