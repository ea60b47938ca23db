//! Lists and single things (T8), each in one snapshot.

mod conditions;
mod deliveries;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::params;

use pombo_domain::attempt::{Attempt, AttemptClass, Phases, Settlement};
use pombo_domain::event::{Origin, ResourceVersion};
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use pombo_store::claim::EventBody;
use pombo_store::error::Result;
use pombo_store::page::{Page, PageRequest};
use pombo_store::reading::{
    DeadFilter, DeadLetter, DeliveryFilter, DeliveryRecord, EventFilter, EventRecord, Reading,
};

use crate::claim::body_of;
use crate::error::Fault;
use crate::rows::{self, Fields};
use crate::{SqliteStore, Tx};

pub(crate) use conditions::{Conditions, page_of};

/// Most attempts of one delivery that are read.
const ATTEMPTS_MAX: u32 = 1000;

const EVENT: &str = "SELECT e.id, e.tenant_id, (SELECT t.name FROM pombo_tenant AS t WHERE t.id = e.tenant_id),\n\
    e.type, e.content_type, length(e.body), e.client_key, e.ordering_key, e.resource_version, e.origin, e.fanout,\n\
    e.targets, e.created_at FROM pombo_event AS e";

fn read_event(row: &Fields<'_>) -> Result<EventRecord, Fault> {
    let version = row
        .opt_int(8, "resource_version")?
        .map(|version| ResourceVersion::new(version).ok_or_else(|| row.corrupt("resource_version")));
    Ok(EventRecord {
        id: EventId(row.uuid(0, "id")?),
        tenant_id: TenantId(row.uuid(1, "tenant_id")?),
        tenant: row.parse(2, "tenant")?,
        kind: row.parse(3, "type")?,
        content_type: row.text(4, "content_type")?.to_owned(),
        body_bytes: row.int(5, "body")?,
        client_key: row.opt_parse(6, "client_key")?,
        ordering_key: row.opt_parse(7, "ordering_key")?,
        resource_version: version.transpose()?,
        origin: row.word(9, "origin", Origin::from_word)?,
        fanout: row.int(10, "fanout")?,
        targets: row.opt_targets(11, "targets")?,
        created_at: row.time(12, "created_at")?,
    })
}

fn one_event(tx: &Tx<'_>, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventRecord>, Fault> {
    let sql = format!("-- pombo:event\n{EVENT} WHERE e.id = ?1");
    let event = rows::first(tx, "event", &sql, params![id.0.as_bytes()], read_event)?;
    Ok(event.filter(|event| tenant.is_none_or(|tenant| tenant == event.tenant_id)))
}

fn list_events(tx: &Tx<'_>, filter: &EventFilter, page: PageRequest) -> Result<Page<EventRecord>, Fault> {
    let mut conditions = Conditions::default();
    if filter.unmatched {
        conditions.and("e.fanout = 0");
    }
    if let Some(tenant) = filter.tenant {
        conditions.id("e.tenant_id", tenant.0);
    }
    if let Some(kind) = &filter.kind {
        conditions.word("e.type", kind.as_str());
    }
    conditions.between("e.created_at", filter.since, filter.until);
    conditions.behind("e.created_at", "e.id", page.after);
    let sql = format!(
        "-- pombo:events\n{EVENT} WHERE {conditions} ORDER BY e.created_at DESC, e.id DESC LIMIT {}",
        i64::from(page.limit) + 1
    );
    let events = rows::all(tx, "event", &sql, conditions.params(), read_event)?;
    Ok(page_of(events, page, |event| (event.created_at, event.id.0)))
}

fn read_attempt(row: &Fields<'_>) -> Result<Attempt, Fault> {
    Ok(Attempt {
        delivery_id: DeliveryId(row.uuid(0, "delivery_id")?),
        event_id: EventId(row.uuid(1, "event_id")?),
        event_at: row.time(2, "event_at")?,
        endpoint_id: EndpointId(row.uuid(3, "endpoint_id")?),
        tenant_id: TenantId(row.uuid(4, "tenant_id")?),
        started_at: row.time(5, "started_at")?,
        number: row.int(6, "n")?,
        generation: row.int(7, "gen")?,
        status: row.opt_int(8, "status")?,
        class: row.opt_word(9, "class", AttemptClass::from_word)?,
        message: row.opt_text(10, "message")?.map(str::to_owned),
        duration: Duration::from_micros(row.int(11, "duration")?),
        phases: Phases {
            dns: row.opt_span(12, "dns")?,
            connect: row.opt_span(13, "connect")?,
            tls: row.opt_span(14, "tls")?,
            first_byte: row.opt_span(15, "first_byte")?,
            body: row.opt_span(16, "read")?,
        },
        response_body: row.opt_bytes(17, "response")?.map(Bytes::copy_from_slice),
        response_truncated: row.flag(18, "response_truncated")?,
        settles: row.opt_word(19, "settles", Settlement::from_word)?,
        late: row.flag(20, "late")?,
        manual: row.flag(21, "manual")?,
        session: SessionId(row.int(22, "session")?),
        retryable: row.flag(23, "retryable")?,
    })
}

fn attempts_of(tx: &Tx<'_>, id: DeliveryId) -> Result<Vec<Attempt>, Fault> {
    rows::all(
        tx,
        "attempt",
        "-- pombo:attempts\n\
         SELECT delivery_id, event_id, event_at, endpoint_id, tenant_id, started_at, n, gen, status, class, message,\n\
             duration, dns, connect, tls, first_byte, read, response, response_truncated, settles, late, manual,\n\
             session, retryable\n\
         FROM pombo_attempt WHERE delivery_id = ?1 ORDER BY started_at LIMIT ?2",
        params![id.0.as_bytes(), ATTEMPTS_MAX],
        read_attempt,
    )
}

fn read_dead_letter(row: &Fields<'_>) -> Result<DeadLetter, Fault> {
    Ok(DeadLetter {
        delivery_id: DeliveryId(row.uuid(0, "delivery_id")?),
        event_id: EventId(row.uuid(1, "event_id")?),
        endpoint_id: EndpointId(row.uuid(2, "endpoint_id")?),
        tenant_id: TenantId(row.uuid(3, "tenant_id")?),
        tenant: row.parse(4, "tenant")?,
        kind: row.parse(5, "type")?,
        died_at: row.time(6, "died_at")?,
        class: row.word(7, "class", AttemptClass::from_word)?,
        status: row.opt_int(8, "status")?,
    })
}

fn list_dead_letters(tx: &Tx<'_>, filter: &DeadFilter, page: PageRequest) -> Result<Page<DeadLetter>, Fault> {
    let mut conditions = Conditions::default();
    if let Some(tenant) = filter.tenant {
        conditions.id("l.tenant_id", tenant.0);
    }
    if let Some(endpoint) = filter.endpoint {
        conditions.id("l.endpoint_id", endpoint.0);
    }
    if let Some(kind) = &filter.kind {
        conditions.word("l.type", kind.as_str());
    }
    conditions.between("l.died_at", filter.since, filter.until);
    conditions.behind("l.died_at", "l.delivery_id", page.after);
    let sql = format!(
        "-- pombo:dead_letters\n\
         SELECT l.delivery_id, l.event_id, l.endpoint_id, l.tenant_id,\n\
             (SELECT t.name FROM pombo_tenant AS t WHERE t.id = l.tenant_id), l.type, l.died_at, l.class, l.status\n\
         FROM pombo_dead_letter AS l WHERE {conditions} ORDER BY l.died_at DESC, l.delivery_id DESC LIMIT {}",
        i64::from(page.limit) + 1
    );
    let letters = rows::all(tx, "dead_letter", &sql, conditions.params(), read_dead_letter)?;
    Ok(page_of(letters, page, |letter| (letter.died_at, letter.delivery_id.0)))
}

#[async_trait]
impl Reading for SqliteStore {
    async fn event(&self, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventRecord>> {
        self.read(move |tx| one_event(tx, id, tenant)).await
    }

    async fn event_body(&self, id: EventId, tenant: Option<TenantId>) -> Result<Option<EventBody>> {
        self.read(move |tx| match one_event(tx, id, tenant)? {
            Some(_) => body_of(tx, id),
            None => Ok(None),
        })
        .await
    }

    async fn events(&self, filter: &EventFilter, page: PageRequest) -> Result<Page<EventRecord>> {
        let filter = filter.clone();
        self.read(move |tx| list_events(tx, &filter, page)).await
    }

    async fn delivery(&self, id: DeliveryId, tenant: Option<TenantId>) -> Result<Option<DeliveryRecord>> {
        let found = self.read(move |tx| deliveries::one(tx, id)).await?;
        Ok(found.filter(|delivery| tenant.is_none_or(|tenant| tenant == delivery.tenant_id)))
    }

    async fn attempts(&self, id: DeliveryId) -> Result<Vec<Attempt>> {
        self.read(move |tx| attempts_of(tx, id)).await
    }

    async fn deliveries(&self, filter: &DeliveryFilter, page: PageRequest) -> Result<Page<DeliveryRecord>> {
        let filter = filter.clone();
        self.read(move |tx| deliveries::list(tx, &filter, page)).await
    }

    async fn dead_letters(&self, filter: &DeadFilter, page: PageRequest) -> Result<Page<DeadLetter>> {
        let filter = filter.clone();
        self.read(move |tx| list_dead_letters(tx, &filter, page)).await
    }
}
