//! Reading events, deliveries and dead letters (docs/protocol.md T8).
//!
//! Filters differ from call to call, so these statements are put together and planned each time: a plan that
//! has to do for every filter would be good for none.

use async_trait::async_trait;
use pombo_domain::attempt::{Attempt, AttemptClass};
use pombo_domain::id::{DeliveryId, EndpointId, EventId, TenantId};
use pombo_store::claim::EventBody;
use pombo_store::error::Result;
use pombo_store::page::{Cursor, Page, PageRequest};
use pombo_store::reading::{
    DeadFilter, DeadLetter, DeliveryFilter, DeliveryRecord, EventFilter, EventRecord, Reading,
};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};
use uuid::Uuid;

use crate::PostgresStore;
use crate::endpoints::cut;
use crate::error::{Fault, Phase};
use crate::pool::statement;
use crate::rows::{corrupt, instant, parse};
use crate::time::At;

mod attempts;
mod deliveries;
mod events;

async fn dead_letters(
    connection: &mut PgConnection,
    filter: &DeadFilter,
    page: PageRequest,
) -> Result<Page<DeadLetter>, Fault> {
    let mut query = QueryBuilder::<Postgres>::new(
        "-- pombo:dead_letters
SELECT l.delivery_id, l.event_id, l.endpoint_id, l.tenant_id, t.name AS tenant, l.type, l.died_at, l.class,
       l.status
FROM pombo.dead_letter AS l JOIN pombo.tenant AS t ON t.id = l.tenant_id WHERE true",
    );
    if let Some(tenant) = filter.tenant {
        query.push(" AND l.tenant_id = ").push_bind(tenant.0);
    }
    if let Some(endpoint) = filter.endpoint {
        query.push(" AND l.endpoint_id = ").push_bind(endpoint.0);
    }
    if let Some(kind) = &filter.kind {
        query.push(" AND l.type = ").push_bind(kind.as_str());
    }
    if let Some(since) = filter.since {
        query.push(" AND l.died_at >= ").push_bind(At(since));
    }
    if let Some(until) = filter.until {
        query.push(" AND l.died_at < ").push_bind(At(until));
    }
    if let Some(Cursor { at, id }) = page.after {
        query.push(" AND (l.died_at, l.delivery_id) < (").push_bind(At(at));
        query.push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY l.died_at DESC, l.delivery_id DESC LIMIT ").push_bind(i64::from(page.limit) + 1);
    let rows = query.build().persistent(false).fetch_all(connection).await?;
    let letters: Result<Vec<DeadLetter>, Fault> = rows.iter().map(dead_letter).collect();
    Ok(cut(letters?, page, |letter| Cursor { at: letter.died_at, id: letter.delivery_id.0 }))
}

fn dead_letter(row: &PgRow) -> Result<DeadLetter, Fault> {
    let id: Uuid = row.try_get("delivery_id")?;
    Ok(DeadLetter {
        delivery_id: DeliveryId(id),
        event_id: EventId(row.try_get("event_id")?),
        endpoint_id: EndpointId(row.try_get("endpoint_id")?),
        tenant_id: TenantId(row.try_get("tenant_id")?),
        tenant: parse("tenant", "name", id, row.try_get("tenant")?)?,
        kind: parse("dead_letter", "type", id, row.try_get("type")?)?,
        died_at: instant(row, "died_at")?,
        class: class_of("dead_letter", id, row.try_get("class")?)?,
        status: row.try_get::<Option<i16>, _>("status")?.map(i16::cast_unsigned),
    })
}

fn class_of(table: &'static str, id: Uuid, word: &str) -> Result<AttemptClass, Fault> {
    AttemptClass::from_word(word).ok_or_else(|| corrupt(table, "class", id))
}

#[async_trait]
impl Reading for PostgresStore {
    async fn event(&self, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventRecord>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| events::one(connection, id, tenant))?)
    }

    async fn event_body(&self, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventBody>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| events::body(connection, id, tenant))?)
    }

    async fn events(&self, filter: &EventFilter, page: PageRequest) -> Result<Page<EventRecord>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| events::list(connection, filter, page))?)
    }

    async fn delivery(&self, id: DeliveryId, tenant: Option<TenantId>) -> Result<Option<DeliveryRecord>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| {
            deliveries::one(connection, id, tenant)
        })?)
    }

    async fn attempts(&self, id: DeliveryId) -> Result<Vec<Attempt>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| attempts::of(connection, id))?)
    }

    async fn deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> Result<Page<DeliveryRecord>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| {
            deliveries::list(connection, filter, page)
        })?)
    }

    async fn dead_letters(&self, filter: &DeadFilter, page: PageRequest) -> Result<Page<DeadLetter>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| {
            dead_letters(connection, filter, page)
        })?)
    }
}
