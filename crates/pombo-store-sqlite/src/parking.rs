//! Parking, waking, and what becomes of the rows of deleted endpoints (P).

use async_trait::async_trait;
use rusqlite::{Connection, params};

use pombo_domain::endpoint::EndpointStatus;
use pombo_domain::id::{DeliveryId, EndpointId};
use pombo_store::error::Result;
use pombo_store::parking::{Parking, Unclaim, Wake, Woken};

use crate::error::Fault;
use crate::flush::finite;
use crate::people::{self, Reason};
use crate::{SqliteStore, Tx, rows};

/// Steps from endpoint to endpoint through the index of parked rows, whatever the length of a backlog.
pub(crate) const PARKED_ENDPOINTS: &str = "-- pombo:parked_endpoints\n\
    WITH RECURSIVE walk (id) AS (\n\
        SELECT min(endpoint_id) FROM pombo_delivery INDEXED BY pombo_delivery_parked\n\
        WHERE due_at = 9223372036854775807\n\
        UNION ALL\n\
        SELECT (SELECT min(d.endpoint_id) FROM pombo_delivery AS d INDEXED BY pombo_delivery_parked\n\
                WHERE d.due_at = 9223372036854775807 AND d.endpoint_id > walk.id)\n\
        FROM walk WHERE walk.id IS NOT NULL\n\
    ) SELECT id FROM walk WHERE id IS NOT NULL LIMIT ?1";

/// The oldest parked rows of an endpoint.
pub(crate) const OLDEST_PARKED: &str = "-- pombo:oldest_parked\n\
    SELECT id FROM pombo_delivery INDEXED BY pombo_delivery_parked\n\
    WHERE due_at = 9223372036854775807 AND endpoint_id = ?1 ORDER BY seq LIMIT ?2";

fn unclaim(tx: &Tx<'_>, row: &Unclaim) -> Result<usize, Fault> {
    let token = row.token;
    rows::change(
        tx,
        "-- pombo:unclaim\n\
         UPDATE pombo_delivery SET owner = NULL, gen = gen + 1, due_at = ?4, not_before = ?5\n\
         WHERE id = ?1 AND owner = ?2 AND gen = ?3",
        params![
            token.id.0.as_bytes(),
            token.owner.0,
            token.generation,
            row.due_at.max(tx.now).as_micros(),
            finite(row.not_before),
        ],
    )
}

fn oldest_parked(
    connection: &Connection,
    endpoint: EndpointId,
    limit: u32,
) -> Result<Vec<DeliveryId>, Fault> {
    let parameters = params![endpoint.0.as_bytes(), limit];
    rows::all(connection, "delivery", OLDEST_PARKED, parameters, |row| row.uuid(0, "id").map(DeliveryId))
}

fn is_active(connection: &Connection, endpoint: EndpointId) -> Result<bool, Fault> {
    let status = rows::first(
        connection,
        "endpoint",
        "-- pombo:live_endpoint_status\nSELECT id, status FROM pombo_endpoint WHERE id = ?1 AND deleted_at IS NULL",
        params![endpoint.0.as_bytes()],
        |row| row.word(1, "status", EndpointStatus::from_word),
    )?;
    Ok(status == Some(EndpointStatus::Active))
}

fn wake(tx: &Tx<'_>, wake: Wake) -> Result<Woken, Fault> {
    if !is_active(tx, wake.endpoint_id)? {
        return Ok(Woken::default());
    }
    // One more than there is room for tells whether more are parked.
    let parked = oldest_parked(tx, wake.endpoint_id, wake.room.saturating_add(1))?;
    let more = parked.len() > wake.room as usize;
    let mut woken = 0;
    for id in parked.iter().take(wake.room as usize) {
        let due_at = rows::first(
            tx,
            "delivery",
            "-- pombo:wake\n\
             UPDATE pombo_delivery SET due_at = max(coalesce(not_before, 0), ?2), not_before = NULL\n\
             WHERE id = ?1 AND due_at = 9223372036854775807 RETURNING id, due_at",
            params![id.0.as_bytes(), tx.now.as_micros()],
            |row| row.time(1, "due_at"),
        )?;
        woken += u32::from(due_at.is_some_and(|due_at| due_at <= tx.now));
    }
    Ok(Woken { woken, more })
}

impl SqliteStore {
    /// Cancels rows found by a reader: the scan must not hold the writer. A deleted endpoint stays deleted,
    /// so what the reader saw is still true, and a row that was settled meanwhile is simply not there.
    async fn cancel_found(&self, ids: Vec<DeliveryId>) -> Result<u32> {
        if ids.is_empty() {
            return Ok(0);
        }
        self.write(move |tx| {
            let mut cancelled = 0;
            for id in ids {
                cancelled += u32::from(people::cancel(tx, id, Reason::EndpointDeleted)?.is_some());
            }
            Ok(cancelled)
        })
        .await
    }
}

#[async_trait]
impl Parking for SqliteStore {
    async fn unclaim(&self, rows: &[Unclaim]) -> Result<u32> {
        let rows = rows.to_vec();
        self.write(move |tx| {
            let mut matched = 0;
            for row in &rows {
                matched += unclaim(tx, row)?;
            }
            Ok(matched as u32)
        })
        .await
    }

    async fn parked_endpoints(&self, limit: u32) -> Result<Vec<EndpointId>> {
        self.read(move |tx| {
            let read = |row: &rows::Fields<'_>| row.uuid(0, "endpoint_id").map(EndpointId);
            rows::all(tx, "delivery", PARKED_ENDPOINTS, params![limit], read)
        })
        .await
    }

    async fn wake(&self, ask: Wake) -> Result<Woken> {
        self.write(move |tx| wake(tx, ask)).await
    }

    async fn cancel_deleted(&self, limit: u32) -> Result<u32> {
        let found = self
            .read(move |tx| {
                rows::all(
                    tx,
                    "delivery",
                    "-- pombo:rows_of_deleted\n\
                     SELECT id FROM pombo_delivery\n\
                     WHERE endpoint_id IN (SELECT id FROM pombo_endpoint WHERE deleted_at IS NOT NULL) LIMIT ?1",
                    params![limit],
                    |row| row.uuid(0, "id").map(DeliveryId),
                )
            })
            .await?;
        self.cancel_found(found).await
    }

    async fn cancel_rows_of(&self, endpoint_id: EndpointId, limit: u32) -> Result<u32> {
        let found = self
            .read(move |tx| {
                rows::all(
                    tx,
                    "delivery",
                    "-- pombo:rows_of_one_deleted\n\
                     SELECT id FROM pombo_delivery WHERE endpoint_id = ?1\n\
                     AND EXISTS (SELECT 1 FROM pombo_endpoint WHERE id = ?1 AND deleted_at IS NOT NULL) LIMIT ?2",
                    params![endpoint_id.0.as_bytes(), limit],
                    |row| row.uuid(0, "id").map(DeliveryId),
                )
            })
            .await?;
        self.cancel_found(found).await
    }
}
