//! Deliveries, live and settled, as one list from new to old: by id, which leads with the event's time.
//!
//! Both halves are read in the same snapshot, so a delivery that settles while a person pages through is in
//! exactly one of them on every page.

use std::cmp::Reverse;

use pombo_domain::attempt::{AttemptClass, Settlement};
use pombo_domain::clock::Timestamp;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::endpoint::EndpointStatus;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, TenantId};
use pombo_store::page::{Page, PageRequest};
use pombo_store::reading::{DeliveryFilter, DeliveryRecord};

use super::{Conditions, page_of};
use crate::Tx;
use crate::error::Fault;
use crate::rows::{self, Fields};

const LIVE: &str = "SELECT d.id, d.event_id, d.event_at, d.endpoint_id, d.tenant_id,\n\
    (SELECT t.name FROM pombo_tenant AS t WHERE t.id = d.tenant_id), d.type, d.attempt, d.last_status, d.last_class,\n\
    (SELECT a.message FROM pombo_attempt AS a WHERE a.delivery_id = d.id AND a.started_at = d.last_at),\n\
    d.created_at, d.owner, d.due_at, d.not_before,\n\
    (SELECT e.status FROM pombo_endpoint AS e WHERE e.id = d.endpoint_id),\n\
    (SELECT s.hold_until FROM pombo_endpoint_state AS s WHERE s.endpoint_id = d.endpoint_id)\n\
    FROM pombo_delivery AS d";

/// A parked row of an endpoint that is not sent to.
const IS_PAUSED: &str = "(d.due_at = 9223372036854775807 AND EXISTS (SELECT 1 FROM pombo_endpoint AS e\n\
    WHERE e.id = d.endpoint_id AND e.status IN ('paused', 'disabled')))";

const SETTLED: &str = "SELECT a.delivery_id, a.event_id, a.event_at, a.endpoint_id, a.tenant_id,\n\
    (SELECT t.name FROM pombo_tenant AS t WHERE t.id = a.tenant_id), a.type, a.n, a.status, a.class, a.message,\n\
    a.delivery_created_at, a.settles, a.started_at + a.duration\n\
    FROM pombo_attempt AS a";

/// The latest settlement of a delivery that is not live again.
const IS_FINAL: &str = "a.settles IS NOT NULL\n\
    AND NOT EXISTS (SELECT 1 FROM pombo_delivery AS d WHERE d.id = a.delivery_id)\n\
    AND NOT EXISTS (SELECT 1 FROM pombo_attempt AS b WHERE b.delivery_id = a.delivery_id\n\
        AND b.started_at > a.started_at AND b.settles IS NOT NULL)";

/// What both halves have in the same columns.
fn read_common(row: &Fields<'_>) -> Result<DeliveryRecord, Fault> {
    Ok(DeliveryRecord {
        id: DeliveryId(row.uuid(0, "id")?),
        event_id: EventId(row.uuid(1, "event_id")?),
        event_at: row.time(2, "event_at")?,
        endpoint_id: EndpointId(row.uuid(3, "endpoint_id")?),
        tenant_id: TenantId(row.uuid(4, "tenant_id")?),
        tenant: row.parse(5, "tenant")?,
        kind: row.parse(6, "type")?,
        status: DeliveryStatus::Pending,
        attempts: row.int(7, "attempt")?,
        due_at: None,
        not_before: None,
        hold_until: None,
        last_status: row.opt_int(8, "status")?,
        last_class: row.opt_word(9, "class", AttemptClass::from_word)?,
        last_message: row.opt_text(10, "message")?.map(str::to_owned),
        created_at: row.time(11, "created_at")?,
        settled_at: None,
    })
}

fn read_live(row: &Fields<'_>, now: Timestamp) -> Result<DeliveryRecord, Fault> {
    let mut record = read_common(row)?;
    record.due_at = row.opt_time(13, "due_at")?;
    record.not_before = row.opt_time(14, "not_before")?;
    record.hold_until = row.opt_time(16, "hold_until")?.filter(|until| *until > now);
    let endpoint = row.opt_word(15, "status", EndpointStatus::from_word)?;
    let sent_to = !matches!(endpoint, Some(EndpointStatus::Paused | EndpointStatus::Disabled));
    record.status = if row.opt_int::<i32>(12, "owner")?.is_some() {
        DeliveryStatus::Sending
    } else if record.due_at == Some(Timestamp::INFINITY) && !sent_to {
        DeliveryStatus::Paused
    } else if record.attempts == 0 {
        DeliveryStatus::Pending
    } else {
        DeliveryStatus::Retrying
    };
    Ok(record)
}

fn read_settled(row: &Fields<'_>) -> Result<DeliveryRecord, Fault> {
    let mut record = read_common(row)?;
    record.status = match row.word(12, "settles", Settlement::from_word)? {
        Settlement::Delivered => DeliveryStatus::Delivered,
        Settlement::Dead => DeliveryStatus::Dead,
        Settlement::Cancelled => DeliveryStatus::Cancelled,
    };
    record.settled_at = Some(row.time(13, "started_at")?);
    Ok(record)
}

/// One delivery, wherever it is.
pub(super) fn one(tx: &Tx<'_>, id: DeliveryId) -> Result<Option<DeliveryRecord>, Fault> {
    let live = format!("-- pombo:live_delivery\n{LIVE} WHERE d.id = ?1");
    let parameters = [&id.0.as_bytes()[..]];
    if let Some(record) = rows::first(tx, "delivery", &live, parameters, |row| read_live(row, tx.now))? {
        return Ok(Some(record));
    }
    let settled = format!("-- pombo:settled_delivery\n{SETTLED} WHERE a.delivery_id = ?1 AND {IS_FINAL}");
    rows::first(tx, "attempt", &settled, parameters, read_settled)
}

/// The columns that a filter narrows, which have other names in the two halves.
struct Names {
    id: &'static str,
    endpoint: &'static str,
    tenant: &'static str,
    event: &'static str,
    event_at: &'static str,
    kind: &'static str,
}

const LIVE_NAMES: Names = Names {
    id: "d.id",
    endpoint: "d.endpoint_id",
    tenant: "d.tenant_id",
    event: "d.event_id",
    event_at: "d.event_at",
    kind: "d.type",
};

const SETTLED_NAMES: Names = Names {
    id: "a.delivery_id",
    endpoint: "a.endpoint_id",
    tenant: "a.tenant_id",
    event: "a.event_id",
    event_at: "a.event_at",
    kind: "a.type",
};

fn narrow(filter: &DeliveryFilter, page: PageRequest, names: &Names) -> Conditions {
    let mut conditions = Conditions::default();
    if let Some(endpoint) = filter.endpoint {
        conditions.id(names.endpoint, endpoint.0);
    }
    if let Some(tenant) = filter.tenant {
        conditions.id(names.tenant, tenant.0);
    }
    if let Some((event, at)) = filter.event {
        let (low, high) = DeliveryId::range_at(at);
        conditions.id_between(names.id, low.0, high.0);
        conditions.id(names.event, event.0);
    }
    if let Some(kind) = &filter.kind {
        conditions.word(names.kind, kind.as_str());
    }
    if filter.since.is_some() || filter.until.is_some() {
        // The id leads with the millisecond of the same time: its range spares reading the rest.
        let low = filter.since.map_or(Timestamp::from_micros(0), |since| since);
        let high = filter.until.unwrap_or(Timestamp::from_millis((1 << 48) - 1));
        conditions.id_between(names.id, DeliveryId::range_at(low).0.0, DeliveryId::range_at(high).1.0);
        conditions.between(names.event_at, filter.since, filter.until);
    }
    if let Some(cursor) = page.after {
        conditions.id_below(names.id, cursor.id);
    }
    conditions
}

fn list_live(tx: &Tx<'_>, filter: &DeliveryFilter, page: PageRequest) -> Result<Vec<DeliveryRecord>, Fault> {
    let mut conditions = narrow(filter, page, &LIVE_NAMES);
    match filter.status {
        None => {}
        Some(DeliveryStatus::Sending) => conditions.and("d.owner IS NOT NULL"),
        Some(DeliveryStatus::Paused) => conditions.and(IS_PAUSED),
        Some(status @ (DeliveryStatus::Pending | DeliveryStatus::Retrying)) => {
            conditions.and(if status == DeliveryStatus::Pending { "d.attempt = 0" } else { "d.attempt > 0" });
            conditions.and(&format!("d.owner IS NULL AND NOT {IS_PAUSED}"));
        }
        Some(_) => return Ok(Vec::new()),
    }
    let limit = i64::from(page.limit) + 1;
    let sql = format!("-- pombo:live_deliveries\n{LIVE} WHERE {conditions} ORDER BY d.id DESC LIMIT {limit}");
    rows::all(tx, "delivery", &sql, conditions.params(), |row| read_live(row, tx.now))
}

fn list_settled(
    tx: &Tx<'_>,
    filter: &DeliveryFilter,
    page: PageRequest,
) -> Result<Vec<DeliveryRecord>, Fault> {
    let mut conditions = narrow(filter, page, &SETTLED_NAMES);
    match filter.status {
        None => {}
        Some(DeliveryStatus::Delivered) => conditions.and("a.settles = 'delivered'"),
        Some(DeliveryStatus::Cancelled) => conditions.and("a.settles = 'cancelled'"),
        // Every dead delivery has a dead letter, and there are few of those.
        Some(DeliveryStatus::Dead) => {
            conditions.and("a.settles = 'dead'");
            conditions.and("a.delivery_id IN (SELECT l.delivery_id FROM pombo_dead_letter AS l)");
        }
        Some(_) => return Ok(Vec::new()),
    }
    let limit = i64::from(page.limit) + 1;
    let sql = format!(
        "-- pombo:settled_deliveries\n\
         {SETTLED} WHERE {conditions} AND {IS_FINAL} ORDER BY a.delivery_id DESC LIMIT {limit}"
    );
    rows::all(tx, "attempt", &sql, conditions.params(), read_settled)
}

/// A page of both halves, merged.
pub(super) fn list(
    tx: &Tx<'_>,
    filter: &DeliveryFilter,
    page: PageRequest,
) -> Result<Page<DeliveryRecord>, Fault> {
    let mut records = list_live(tx, filter, page)?;
    records.extend(list_settled(tx, filter, page)?);
    records.sort_unstable_by_key(|record| Reverse(record.id));
    records.truncate(usize::from(page.limit) + 1);
    Ok(page_of(records, page, |record| (record.event_at, record.id.0)))
}
