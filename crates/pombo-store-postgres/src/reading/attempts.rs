//! The attempts of one delivery.

use std::time::Duration;

use bytes::Bytes;
use pombo_domain::attempt::{Attempt, Phases, Settlement};
use pombo_domain::id::{DeliveryId, EndpointId, EventId, SessionId, TenantId};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::class_of;
use crate::error::Fault;
use crate::rows::{corrupt, instant};
use crate::time::At;

/// The bound on `started_at` leaves out the days before the delivery was made.
const ATTEMPTS: &str = "-- pombo:attempts
SELECT delivery_id, started_at, event_id, event_at, endpoint_id, tenant_id, n, gen, status, class, message,
       duration_us, dns_us, connect_us, tls_us, first_byte_us, body_us, response_body, response_truncated,
       settles, late, manual, retryable, session
FROM pombo.attempt WHERE delivery_id = $1 AND started_at >= $2
ORDER BY started_at LIMIT 1000";

pub(super) async fn of(connection: &mut PgConnection, id: DeliveryId) -> Result<Vec<Attempt>, Fault> {
    let earliest = At(id.event_at().minus(Duration::from_secs(2 * 86_400)));
    let rows =
        sqlx::query(ATTEMPTS).persistent(false).bind(id.0).bind(earliest).fetch_all(connection).await?;
    rows.iter().map(attempt).collect()
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(micros.unsigned_abs())
}

fn attempt(row: &PgRow) -> Result<Attempt, Fault> {
    let id: Uuid = row.try_get("delivery_id")?;
    let part = |column: &str| -> sqlx::Result<Option<Duration>> {
        Ok(row.try_get::<Option<i64>, _>(column)?.map(span))
    };
    let class: Option<&str> = row.try_get("class")?;
    let settles: Option<&str> = row.try_get("settles")?;
    Ok(Attempt {
        delivery_id: DeliveryId(id),
        event_id: EventId(row.try_get("event_id")?),
        event_at: instant(row, "event_at")?,
        endpoint_id: EndpointId(row.try_get("endpoint_id")?),
        tenant_id: TenantId(row.try_get("tenant_id")?),
        started_at: instant(row, "started_at")?,
        number: row.try_get("n")?,
        generation: row.try_get("gen")?,
        status: row.try_get::<Option<i16>, _>("status")?.map(i16::cast_unsigned),
        class: class.map(|word| class_of("attempt", id, word)).transpose()?,
        message: row.try_get("message")?,
        duration: span(row.try_get("duration_us")?),
        phases: Phases {
            dns: part("dns_us")?,
            connect: part("connect_us")?,
            tls: part("tls_us")?,
            first_byte: part("first_byte_us")?,
            body: part("body_us")?,
        },
        response_body: row.try_get::<Option<Vec<u8>>, _>("response_body")?.map(Bytes::from),
        response_truncated: row.try_get("response_truncated")?,
        settles: settles
            .map(|word| Settlement::from_word(word).ok_or_else(|| corrupt("attempt", "settles", id)))
            .transpose()?,
        late: row.try_get("late")?,
        manual: row.try_get("manual")?,
        session: SessionId(row.try_get("session")?),
        retryable: row.try_get("retryable")?,
    })
}
