//! What every process keeps of the endpoints in memory.

use std::collections::HashMap;

use pombo_domain::id::EndpointId;
use pombo_store::StoreError;
use pombo_store::endpoints::{CatalogChanges, CatalogEndpoint, EndpointSecret};
use pombo_store::keyring::{Keyring, Place};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::{endpoint_columns, maybe_instant, rows};
use crate::error::Fault;
use crate::rows::instant;

const VERSION: &str = "-- pombo:config_version
SELECT version FROM pombo.config WHERE one";

const CHANGED: &str = concat!(
    "-- pombo:catalog_changed\nSELECT ",
    endpoint_columns!(),
    ", CASE WHEN s.hold_until > clock_timestamp() THEN s.hold_until END AS hold_until
FROM pombo.endpoint AS e
JOIN pombo.tenant AS t ON t.id = e.tenant_id
LEFT JOIN pombo.endpoint_state AS s ON s.endpoint_id = e.id
WHERE e.version > $1 AND e.deleted_at IS NULL"
);

const DELETED: &str = "-- pombo:catalog_deleted
SELECT id FROM pombo.endpoint WHERE version > $1 AND deleted_at IS NOT NULL";

const SECRETS: &str = "-- pombo:secrets
SELECT endpoint_id, n, sealed, created_at, expires_at FROM pombo.secret
WHERE endpoint_id = ANY ($1) AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY endpoint_id, n DESC";

/// The version is read first: each later statement sees at least what it covers, and what it sees beyond is
/// sent once more next time.
pub(super) async fn changes(
    connection: &mut PgConnection,
    keyring: &Keyring,
    since: Option<i64>,
) -> Result<CatalogChanges, Fault> {
    let version = sqlx::query_scalar(VERSION).fetch_optional(&mut *connection).await?;
    let version: i64 = version.ok_or_else(|| Fault::Store(rows::missing_config()))?;
    if since.is_some_and(|since| since >= version) {
        return Ok(CatalogChanges { version, changed: Vec::new(), deleted: Vec::new() });
    }
    // Everything that exists: what was deleted before is nobody's news.
    let deleted = match since {
        Some(since) => sqlx::query_scalar(DELETED).bind(since).fetch_all(&mut *connection).await?,
        None => Vec::new(),
    };
    let rows = sqlx::query(CHANGED).bind(since.unwrap_or(0)).fetch_all(&mut *connection).await?;
    let mut changed = Vec::with_capacity(rows.len());
    for row in &rows {
        changed.push(CatalogEndpoint {
            endpoint: rows::endpoint(row, keyring)?,
            secrets: Vec::new(),
            hold_until: maybe_instant(row, "hold_until")?,
        });
    }
    let ids: Vec<Uuid> = changed.iter().map(|entry| entry.endpoint.id.0).collect();
    let mut secrets = secrets(connection, keyring, &ids).await?;
    for entry in &mut changed {
        entry.secrets = secrets.remove(&entry.endpoint.id.0).unwrap_or_default();
    }
    // Deleted between two of these statements: news of the next version.
    changed.retain(|entry| !entry.secrets.is_empty());
    Ok(CatalogChanges { version, changed, deleted: deleted.into_iter().map(EndpointId).collect() })
}

/// Endpoints with something that this installation's master key does not open.
pub(crate) async fn sealed(
    connection: &mut PgConnection,
    keyring: &Keyring,
) -> Result<Vec<EndpointId>, Fault> {
    let rows = sqlx::query(CHANGED).bind(0_i64).fetch_all(&mut *connection).await?;
    let mut closed = Vec::new();
    for row in &rows {
        let id = EndpointId(row.try_get("id")?);
        let opened = match rows::endpoint(row, keyring) {
            Ok(_) => secrets(connection, keyring, &[id.0]).await.map(drop),
            Err(fault) => Err(fault),
        };
        match opened {
            Err(Fault::Store(StoreError::Sealed { .. })) => closed.push(id),
            opened => opened?,
        }
    }
    Ok(closed)
}

/// Secrets that sign, by endpoint, the current one first.
pub(super) async fn secrets(
    connection: &mut PgConnection,
    keyring: &Keyring,
    endpoints: &[Uuid],
) -> Result<HashMap<Uuid, Vec<EndpointSecret>>, Fault> {
    let mut secrets: HashMap<Uuid, Vec<EndpointSecret>> = HashMap::new();
    let rows = sqlx::query(SECRETS).bind(endpoints).fetch_all(connection).await?;
    for row in rows {
        let endpoint: Uuid = row.try_get("endpoint_id")?;
        let bound_to = rows::secret_row(endpoint, row.try_get("n")?);
        let place = Place { table: rows::SECRET, row: &bound_to };
        secrets.entry(endpoint).or_default().push(EndpointSecret {
            secret: keyring.open(place, row.try_get("sealed")?)?,
            created_at: instant(&row, "created_at")?,
            expires_at: maybe_instant(&row, "expires_at")?,
        });
    }
    Ok(secrets)
}
