//! Events.

use bytes::Bytes;
use pombo_domain::event::{Origin, ResourceVersion};
use pombo_domain::id::{EndpointId, EventId, TenantId};
use pombo_store::claim::EventBody;
use pombo_store::page::{Cursor, Page, PageRequest};
use pombo_store::reading::{EventFilter, EventRecord};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};
use uuid::Uuid;

use crate::endpoints::cut;
use crate::error::Fault;
use crate::rows::{corrupt, instant, parse};
use crate::time::At;

macro_rules! event_columns {
    () => {
        "SELECT e.id, e.tenant_id, t.name AS tenant, e.type, e.content_type, octet_length(e.body)::bigint AS body_bytes,
       e.client_key, e.ordering_key, e.resource_version, e.origin, e.fanout, e.targets, e.created_at
FROM pombo.event AS e JOIN pombo.tenant AS t ON t.id = e.tenant_id"
    };
}

const ONE: &str = concat!(
    "-- pombo:event\n",
    event_columns!(),
    " WHERE e.id = $1 AND ($2::uuid IS NULL OR e.tenant_id = $2) ORDER BY e.created_at DESC LIMIT 1"
);

const BODY: &str = "-- pombo:event_body
SELECT e.body, e.content_type FROM pombo.event AS e
WHERE e.id = $1 AND ($2::uuid IS NULL OR e.tenant_id = $2)
UNION ALL
SELECT k.body, k.content_type FROM pombo.kept_body AS k
WHERE k.event_id = $1 AND ($2::uuid IS NULL OR k.tenant_id = $2)
LIMIT 1";

pub(super) async fn one(
    connection: &mut PgConnection,
    id: EventId,
    tenant: Option<TenantId>,
) -> Result<Option<EventRecord>, Fault> {
    let row = sqlx::query(ONE).bind(id.0).bind(tenant.map(|id| id.0)).fetch_optional(connection).await?;
    row.as_ref().map(record).transpose()
}

pub(super) async fn body(
    connection: &mut PgConnection,
    id: EventId,
    tenant: Option<TenantId>,
) -> Result<Option<EventBody>, Fault> {
    let row = sqlx::query(BODY).bind(id.0).bind(tenant.map(|id| id.0)).fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(EventBody {
        event_id: id,
        body: Bytes::from(row.try_get::<Vec<u8>, _>("body")?),
        content_type: row.try_get("content_type")?,
    }))
}

pub(super) async fn list(
    connection: &mut PgConnection,
    filter: &EventFilter,
    page: PageRequest,
) -> Result<Page<EventRecord>, Fault> {
    let mut query =
        QueryBuilder::<Postgres>::new(concat!("-- pombo:events\n", event_columns!(), " WHERE true"));
    if let Some(tenant) = filter.tenant {
        query.push(" AND e.tenant_id = ").push_bind(tenant.0);
    }
    if let Some(kind) = &filter.kind {
        query.push(" AND e.type = ").push_bind(kind.as_str());
    }
    if filter.unmatched {
        query.push(" AND e.fanout = 0");
    }
    if let Some(since) = filter.since {
        query.push(" AND e.created_at >= ").push_bind(At(since));
    }
    if let Some(until) = filter.until {
        query.push(" AND e.created_at < ").push_bind(At(until));
    }
    if let Some(Cursor { at, id }) = page.after {
        // The first condition alone leaves out whole days.
        query.push(" AND e.created_at <= ").push_bind(At(at));
        query.push(" AND (e.created_at, e.id) < (").push_bind(At(at)).push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY e.created_at DESC, e.id DESC LIMIT ").push_bind(i64::from(page.limit) + 1);
    let rows = query.build().persistent(false).fetch_all(connection).await?;
    let records: Result<Vec<EventRecord>, Fault> = rows.iter().map(record).collect();
    Ok(cut(records?, page, |record| Cursor { at: record.created_at, id: record.id.0 }))
}

fn record(row: &PgRow) -> Result<EventRecord, Fault> {
    let id: Uuid = row.try_get("id")?;
    let client_key: Option<&str> = row.try_get("client_key")?;
    let ordering_key: Option<&str> = row.try_get("ordering_key")?;
    let version: Option<i64> = row.try_get("resource_version")?;
    let targets: Option<Vec<Uuid>> = row.try_get("targets")?;
    Ok(EventRecord {
        id: EventId(id),
        tenant_id: TenantId(row.try_get("tenant_id")?),
        tenant: parse("tenant", "name", id, row.try_get("tenant")?)?,
        kind: parse("event", "type", id, row.try_get("type")?)?,
        content_type: row.try_get("content_type")?,
        body_bytes: row.try_get("body_bytes")?,
        client_key: client_key.map(|text| parse("event", "client_key", id, text)).transpose()?,
        ordering_key: ordering_key.map(|text| parse("event", "ordering_key", id, text)).transpose()?,
        resource_version: version
            .map(|value| ResourceVersion::new(value).ok_or_else(|| corrupt("event", "resource_version", id)))
            .transpose()?,
        origin: Origin::from_word(row.try_get("origin")?).ok_or_else(|| corrupt("event", "origin", id))?,
        fanout: row.try_get("fanout")?,
        targets: targets.map(|ids| ids.into_iter().map(EndpointId).collect()),
        created_at: instant(row, "created_at")?,
    })
}
