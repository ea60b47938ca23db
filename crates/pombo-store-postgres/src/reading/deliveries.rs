//! Deliveries: live rows and final records, in one statement and so in one snapshot (T8).

use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::id::{DeliveryId, EndpointId, EventId, TenantId};
use pombo_store::page::{Cursor, Page, PageRequest};
use pombo_store::reading::{DeliveryFilter, DeliveryRecord};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::class_of;
use crate::endpoints::cut;
use crate::error::Fault;
use crate::rows::{corrupt, instant, maybe_instant, parse, small};
use crate::time::At;

/// The word of a live row. Parked rows of an active endpoint only wait for room, and read by their attempts.
const LIVE_STATUS: &str = "CASE WHEN d.owner IS NOT NULL THEN 'sending'
            WHEN d.due_at = 'infinity' AND e.status <> 'active' THEN 'paused'
            WHEN d.attempt = 0 THEN 'pending' ELSE 'retrying' END";

const LIVE: &str = " AS status, d.id, d.event_id, d.event_at, d.endpoint_id, d.tenant_id, d.type, d.attempt,
       d.due_at, d.not_before, s.hold_until, d.last_at, d.last_status, d.last_class, NULL::text AS last_message,
       NULL::timestamptz AS settled_at
FROM pombo.delivery AS d
LEFT JOIN pombo.endpoint AS e ON e.id = d.endpoint_id
LEFT JOIN pombo.endpoint_state AS s ON s.endpoint_id = d.endpoint_id AND s.hold_until > clock_timestamp()
WHERE true";

const SETTLED: &str =
    "SELECT a.settles AS status, a.delivery_id AS id, a.event_id, a.event_at, a.endpoint_id,
       a.tenant_id, a.type, a.n AS attempt, NULL::timestamptz AS due_at, NULL::timestamptz AS not_before,
       NULL::timestamptz AS hold_until, NULL::timestamptz AS last_at, a.status AS last_status,
       a.class AS last_class, a.message AS last_message,
       a.started_at + a.duration_us * interval '1 microsecond' AS settled_at
FROM pombo.attempt AS a
WHERE a.settles IS NOT NULL
  AND NOT EXISTS (SELECT FROM pombo.delivery AS d WHERE d.id = a.delivery_id)
  AND NOT EXISTS (SELECT FROM pombo.attempt AS later
                  WHERE later.delivery_id = a.delivery_id AND later.started_at > a.started_at
                    AND later.settles IS NOT NULL)";

/// The message of a live row's last attempt is one look-up by primary key.
const OUTER: &str = ") AS x
JOIN pombo.tenant AS t ON t.id = x.tenant_id
LEFT JOIN pombo.attempt AS m ON m.delivery_id = x.id AND m.started_at = x.last_at
ORDER BY x.id DESC LIMIT ";

/// Which deliveries a statement is about.
enum Which<'a> {
    One(DeliveryId, Option<TenantId>),
    Some(&'a DeliveryFilter, PageRequest),
}

pub(super) async fn one(
    connection: &mut PgConnection,
    id: DeliveryId,
    tenant: Option<TenantId>,
) -> Result<Option<DeliveryRecord>, Fault> {
    let rows = read(connection, &Which::One(id, tenant), 1).await?;
    rows.first().map(record).transpose()
}

pub(super) async fn list(
    connection: &mut PgConnection,
    filter: &DeliveryFilter,
    page: PageRequest,
) -> Result<Page<DeliveryRecord>, Fault> {
    let rows = read(connection, &Which::Some(filter, page), i64::from(page.limit) + 1).await?;
    let records: Result<Vec<DeliveryRecord>, Fault> = rows.iter().map(record).collect();
    Ok(cut(records?, page, |record| Cursor { at: record.created_at, id: record.id.0 }))
}

async fn read(connection: &mut PgConnection, which: &Which<'_>, limit: i64) -> Result<Vec<PgRow>, Fault> {
    let mut query = QueryBuilder::<Postgres>::new(
        "-- pombo:deliveries\nSELECT x.status, x.id, x.event_id, x.event_at, x.endpoint_id, x.tenant_id,
       t.name AS tenant, x.type, x.attempt, x.due_at, x.not_before, x.hold_until, x.last_status, x.last_class,
       coalesce(x.last_message, m.message) AS last_message, x.settled_at
FROM (",
    );
    let status = match which {
        Which::Some(filter, _) => filter.status,
        Which::One(..) => None,
    };
    let (live, settled) = (status.is_none_or(DeliveryStatus::is_live), status.is_none_or(|s| !s.is_live()));
    if live {
        query.push("(SELECT ").push(LIVE_STATUS).push(LIVE);
        narrow(&mut query, which, "d", "d.id");
        if let Some(status) = status {
            query.push(" AND ").push(LIVE_STATUS).push(" = ").push_bind(status.as_str());
        }
        query.push(" ORDER BY d.id DESC LIMIT ").push_bind(limit).push(")");
    }
    if live && settled {
        query.push(" UNION ALL ");
    }
    if settled {
        query.push("(").push(SETTLED);
        narrow(&mut query, which, "a", "a.delivery_id");
        if let Some(status) = status {
            query.push(" AND a.settles = ").push_bind(status.as_str());
        }
        query.push(" ORDER BY a.delivery_id DESC LIMIT ").push_bind(limit).push(")");
    }
    query.push(OUTER).push_bind(limit);
    Ok(query.build().persistent(false).fetch_all(connection).await?)
}

/// The same conditions on either table. Ids lead with the event's millisecond, so bounds on time bound them.
fn narrow(query: &mut QueryBuilder<Postgres>, which: &Which<'_>, table: &'static str, id: &'static str) {
    let column = |name: &str| format!(" AND {table}.{name}");
    let id_column = format!(" AND {id}");
    match which {
        Which::One(delivery, tenant) => {
            query.push(&id_column).push(" = ").push_bind(delivery.0);
            if let Some(tenant) = tenant {
                query.push(column("tenant_id")).push(" = ").push_bind(tenant.0);
            }
        }
        Which::Some(filter, page) => {
            if let Some(endpoint) = filter.endpoint {
                query.push(column("endpoint_id")).push(" = ").push_bind(endpoint.0);
            }
            if let Some(tenant) = filter.tenant {
                query.push(column("tenant_id")).push(" = ").push_bind(tenant.0);
            }
            if let Some(kind) = &filter.kind {
                query.push(column("type")).push(" = ").push_bind(kind.as_str().to_owned());
            }
            if let Some((event, at)) = filter.event {
                let (low, high) = DeliveryId::range_at(at);
                query.push(&id_column).push(" BETWEEN ").push_bind(low.0).push(" AND ").push_bind(high.0);
                query.push(column("event_id")).push(" = ").push_bind(event.0);
            }
            if let Some(since) = filter.since {
                query.push(&id_column).push(" >= ").push_bind(DeliveryId::range_at(since).0.0);
                query.push(column("event_at")).push(" >= ").push_bind(At(since));
            }
            if let Some(until) = filter.until {
                query.push(&id_column).push(" <= ").push_bind(DeliveryId::range_at(until).1.0);
                query.push(column("event_at")).push(" < ").push_bind(At(until));
            }
            if let Some(Cursor { id, .. }) = page.after {
                query.push(&id_column).push(" < ").push_bind(id);
            }
        }
    }
}

fn record(row: &PgRow) -> Result<DeliveryRecord, Fault> {
    let id: Uuid = row.try_get("id")?;
    let event_at = instant(row, "event_at")?;
    let class: Option<&str> = row.try_get("last_class")?;
    let word: &str = row.try_get("status")?;
    let settled_at = maybe_instant(row, "settled_at")?;
    Ok(DeliveryRecord {
        id: DeliveryId(id),
        event_id: EventId(row.try_get("event_id")?),
        event_at,
        endpoint_id: EndpointId(row.try_get("endpoint_id")?),
        tenant_id: TenantId(row.try_get("tenant_id")?),
        tenant: parse("tenant", "name", id, row.try_get("tenant")?)?,
        kind: parse("delivery", "type", id, row.try_get("type")?)?,
        status: DeliveryStatus::from_word(word).ok_or_else(|| corrupt("delivery", "status", id))?,
        attempts: small(row.try_get("attempt")?),
        due_at: maybe_instant(row, "due_at")?,
        not_before: maybe_instant(row, "not_before")?,
        hold_until: maybe_instant(row, "hold_until")?,
        last_status: row.try_get::<Option<i16>, _>("last_status")?.map(i16::cast_unsigned),
        last_class: class.map(|word| class_of("attempt", id, word)).transpose()?,
        last_message: row.try_get("last_message")?,
        created_at: event_at,
        settled_at,
    })
}
