//! Endpoints, their secrets, and the catalogue (docs/protocol.md A3).
//!
//! Every change takes its version first: the lock on the one row of configuration puts changes in a line, so
//! that versions are committed in their order and "everything since" misses nothing.

use std::time::Duration;

use async_trait::async_trait;
use pombo_domain::endpoint::{DisabledReason, Endpoint, EndpointSettings, EndpointStatus};
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::secret::SecretText;
use pombo_store::admin::Actor;
use pombo_store::endpoints::{
    CatalogChanges, EndpointFilter, EndpointSecret, Endpoints, NewEndpoint, StatusChange,
};
use pombo_store::error::Result;
use pombo_store::keyring::{Keyring, Place};
use pombo_store::page::{Cursor, Page, PageRequest};
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};

use crate::PostgresStore;
use crate::admin::{self, Entry};
use crate::error::{Fault, Phase};
use crate::pool::{Durability, statement, transaction};
use crate::rows::{self, SettingsColumns, endpoint_columns, maybe_instant};
use crate::time::At;

mod catalog;

pub(crate) use catalog::sealed;

const NEXT_VERSION: &str = "-- pombo:next_config_version
UPDATE pombo.config SET version = version + 1 WHERE one RETURNING version";

const NEW_TENANT: &str = "-- pombo:new_tenant
INSERT INTO pombo.tenant (id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING";

const CREATE: &str = "-- pombo:create_endpoint
INSERT INTO pombo.endpoint (id, tenant_id, version, url, description, event_types, header_names, header_values,
                            header_style, retry, timeout_ms, max_concurrency, retry_client_errors,
                            store_responses, metadata)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::json, $11, $12, $13, $14, $15::json)";

const UPDATE: &str = "-- pombo:update_endpoint
UPDATE pombo.endpoint
SET version = $3, url = $4, description = $5, event_types = $6, header_names = $7, header_values = $8,
    header_style = $9, retry = $10::json, timeout_ms = $11, max_concurrency = $12, retry_client_errors = $13,
    store_responses = $14, metadata = $15::json, updated_at = clock_timestamp()
WHERE id = $1 AND version = $2 AND deleted_at IS NULL";

const ONE: &str = concat!(
    "-- pombo:endpoint\nSELECT ",
    endpoint_columns!(),
    " FROM pombo.endpoint AS e JOIN pombo.tenant AS t ON t.id = e.tenant_id
WHERE e.id = $1 AND e.deleted_at IS NULL AND ($2::uuid IS NULL OR e.tenant_id = $2)"
);

/// Locks the endpoint for a change of it.
const STATUS: &str = "-- pombo:endpoint_status
SELECT tenant_id, status FROM pombo.endpoint
WHERE id = $1 AND deleted_at IS NULL FOR UPDATE";

const SET_STATUS: &str = "-- pombo:set_endpoint_status
UPDATE pombo.endpoint
SET status = $2, disabled_reason = $3, version = $4, updated_at = clock_timestamp() WHERE id = $1";

const TOUCH: &str = "-- pombo:touch_endpoint
UPDATE pombo.endpoint SET version = $2, updated_at = clock_timestamp() WHERE id = $1";

/// The lock that wake-ups take: none is under way while the status changes (P1).
const LOCK_STATE: &str = "-- pombo:lock_endpoint_state
SELECT 1 FROM pombo.endpoint_state WHERE endpoint_id = $1 FOR UPDATE";

const NEW_STATE: &str = "-- pombo:new_endpoint_state
INSERT INTO pombo.endpoint_state (endpoint_id) VALUES ($1)";

const NEW_SECRET: &str = "-- pombo:new_secret
INSERT INTO pombo.secret (endpoint_id, n, sealed) VALUES ($1, $2, $3)";

const LAST_SECRET: &str = "-- pombo:last_secret
SELECT max(n) AS n FROM pombo.secret WHERE endpoint_id = $1";

/// All of them: whoever rotates without overlap has lost a secret, and none of the older ones may live on.
const RETIRE_SECRET: &str = "-- pombo:retire_secret
UPDATE pombo.secret SET expires_at = least(expires_at, clock_timestamp() + $2 * interval '1 microsecond')
WHERE endpoint_id = $1";

const FORGET_SECRETS: &str = "-- pombo:forget_secrets
DELETE FROM pombo.secret WHERE endpoint_id = $1 AND ($2 OR expires_at <= clock_timestamp())";

/// The headers go with the endpoint: they are often credentials.
const DELETE: &str = "-- pombo:delete_endpoint
UPDATE pombo.endpoint
SET deleted_at = clock_timestamp(), updated_at = clock_timestamp(), version = $2, header_names = '{}',
    header_values = '{}'
WHERE id = $1";

async fn next_version(connection: &mut PgConnection) -> Result<i64, Fault> {
    let version = sqlx::query_scalar(NEXT_VERSION).fetch_optional(connection).await?;
    version.ok_or_else(|| Fault::Store(rows::missing_config()))
}

async fn read(
    connection: &mut PgConnection,
    keyring: &Keyring,
    id: EndpointId,
    tenant: Option<TenantId>,
) -> Result<Option<Endpoint>, Fault> {
    let row = sqlx::query(ONE).bind(id.0).bind(tenant.map(|id| id.0)).fetch_optional(connection).await?;
    row.map(|row| rows::endpoint(&row, keyring)).transpose()
}

async fn add_secret(
    connection: &mut PgConnection,
    keyring: &Keyring,
    id: EndpointId,
    secret: &SecretText,
) -> Result<(), Fault> {
    let last: Option<i32> = sqlx::query_scalar(LAST_SECRET).bind(id.0).fetch_one(&mut *connection).await?;
    let n = last.unwrap_or(0) + 1;
    let place = Place { table: rows::SECRET, row: &rows::secret_row(id.0, n) };
    let sealed = rows::seal(keyring, place, secret);
    sqlx::query(NEW_SECRET).bind(id.0).bind(n).bind(sealed).execute(connection).await?;
    Ok(())
}

async fn create(
    connection: &mut PgConnection,
    keyring: &Keyring,
    new: &NewEndpoint,
    actor: &Actor,
) -> Result<Endpoint, Fault> {
    let tenant_id = TenantId::of(&new.tenant);
    let version = next_version(connection).await?;
    sqlx::query(NEW_TENANT).bind(tenant_id.0).bind(new.tenant.as_str()).execute(&mut *connection).await?;
    let columns = SettingsColumns::of(&new.settings, new.id, keyring);
    let query = sqlx::query(CREATE).bind(new.id.0).bind(tenant_id.0).bind(version);
    bind_settings(query, columns).execute(&mut *connection).await?;
    sqlx::query(NEW_STATE).bind(new.id.0).execute(&mut *connection).await?;
    add_secret(connection, keyring, new.id, &new.secret).await?;
    let entry = Entry { action: "endpoint.create", subject: new.id.to_string(), tenant_id: Some(tenant_id) };
    admin::write_audit(connection, actor, entry).await?;
    let made = read(connection, keyring, new.id, None).await?;
    made.ok_or_else(|| rows::corrupt("endpoint", "id", new.id))
}

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

fn bind_settings(query: Query<'_>, columns: SettingsColumns) -> Query<'_> {
    query
        .bind(columns.url)
        .bind(columns.description)
        .bind(columns.event_types)
        .bind(columns.header_names)
        .bind(columns.header_values)
        .bind(columns.header_style)
        .bind(columns.retry)
        .bind(columns.timeout_ms)
        .bind(columns.max_concurrency)
        .bind(columns.retry_client_errors)
        .bind(columns.store_responses)
        .bind(columns.metadata)
}

/// Who changes which endpoint.
#[derive(Clone, Copy)]
struct Change<'a> {
    keyring: &'a Keyring,
    id: EndpointId,
    actor: &'a Actor,
}

impl Change<'_> {
    async fn audit(
        &self,
        connection: &mut PgConnection,
        action: &'static str,
        tenant_id: TenantId,
    ) -> Result<(), Fault> {
        let entry = Entry { action, subject: self.id.to_string(), tenant_id: Some(tenant_id) };
        admin::write_audit(connection, self.actor, entry).await
    }

    async fn settings(
        self,
        connection: &mut PgConnection,
        version: i64,
        settings: &EndpointSettings,
    ) -> Result<Option<Endpoint>, Fault> {
        let Some(found) = read(connection, self.keyring, self.id, None).await? else { return Ok(None) };
        if found.version != version {
            return Ok(None);
        }
        let next = next_version(connection).await?;
        let columns = SettingsColumns::of(settings, self.id, self.keyring);
        let query = sqlx::query(UPDATE).bind(self.id.0).bind(version).bind(next);
        let updated = bind_settings(query, columns).execute(&mut *connection).await?;
        if updated.rows_affected() == 0 {
            // Somebody else was faster; nothing but the version moves.
            return Ok(None);
        }
        self.audit(connection, "endpoint.update", found.tenant_id).await?;
        read(connection, self.keyring, self.id, None).await
    }

    async fn rotate(
        self,
        connection: &mut PgConnection,
        secret: &SecretText,
        overlap: Duration,
    ) -> Result<Option<Endpoint>, Fault> {
        let Some(found) = read(connection, self.keyring, self.id, None).await? else { return Ok(None) };
        let version = next_version(connection).await?;
        // Deleted since: `next_version` waited for that.
        let Some(_) = sqlx::query(STATUS).bind(self.id.0).fetch_optional(&mut *connection).await? else {
            return Ok(None);
        };
        let overlap = overlap.as_micros() as f64;
        sqlx::query(RETIRE_SECRET).bind(self.id.0).bind(overlap).execute(&mut *connection).await?;
        add_secret(connection, self.keyring, self.id, secret).await?;
        sqlx::query(FORGET_SECRETS).bind(self.id.0).bind(false).execute(&mut *connection).await?;
        sqlx::query(TOUCH).bind(self.id.0).bind(version).execute(&mut *connection).await?;
        self.audit(connection, "endpoint.rotate_secret", found.tenant_id).await?;
        read(connection, self.keyring, self.id, None).await
    }

    async fn reveal(self, connection: &mut PgConnection) -> Result<Option<Vec<EndpointSecret>>, Fault> {
        let Some(found) = read(connection, self.keyring, self.id, None).await? else { return Ok(None) };
        let secrets = catalog::secrets(connection, self.keyring, &[self.id.0]).await?;
        self.audit(connection, "endpoint.reveal_secret", found.tenant_id).await?;
        Ok(Some(secrets.into_values().next().unwrap_or_default()))
    }

    async fn status(
        self,
        connection: &mut PgConnection,
        change: StatusChange,
    ) -> Result<Option<Endpoint>, Fault> {
        change_status(connection, self.id, change, self.actor).await?;
        read(connection, self.keyring, self.id, None).await
    }

    async fn delete(self, connection: &mut PgConnection) -> Result<bool, Fault> {
        let version = next_version(connection).await?;
        let Some(row) = sqlx::query(STATUS).bind(self.id.0).fetch_optional(&mut *connection).await? else {
            return Ok(false);
        };
        sqlx::query(LOCK_STATE).bind(self.id.0).execute(&mut *connection).await?;
        sqlx::query(DELETE).bind(self.id.0).bind(version).execute(&mut *connection).await?;
        sqlx::query(FORGET_SECRETS).bind(self.id.0).bind(true).execute(&mut *connection).await?;
        self.audit(connection, "endpoint.delete", TenantId(row.try_get("tenant_id")?)).await?;
        Ok(true)
    }
}

/// Pauses, resumes or disables, inside a transaction of the caller. An unknown endpoint and a status that is
/// there already change nothing but the version.
pub(crate) async fn change_status(
    connection: &mut PgConnection,
    id: EndpointId,
    change: StatusChange,
    actor: &Actor,
) -> Result<(), Fault> {
    let (status, reason, action) = match change {
        StatusChange::Resume => (EndpointStatus::Active, None, "endpoint.resume"),
        StatusChange::Pause => (EndpointStatus::Paused, None, "endpoint.pause"),
        StatusChange::Disable(reason) => (EndpointStatus::Disabled, Some(reason), "endpoint.disable"),
    };
    let reason = reason.map(DisabledReason::as_str);
    // The version before the endpoint: the order in which every change takes its locks.
    let version = next_version(connection).await?;
    let Some(row) = sqlx::query(STATUS).bind(id.0).fetch_optional(&mut *connection).await? else {
        return Ok(());
    };
    if row.try_get::<&str, _>("status")? == status.as_str() {
        return Ok(());
    }
    sqlx::query(LOCK_STATE).bind(id.0).execute(&mut *connection).await?;
    sqlx::query(SET_STATUS)
        .bind(id.0)
        .bind(status.as_str())
        .bind(reason)
        .bind(version)
        .execute(&mut *connection)
        .await?;
    let tenant_id = Some(TenantId(row.try_get("tenant_id")?));
    admin::write_audit(connection, actor, Entry { action, subject: id.to_string(), tenant_id }).await
}

async fn list(
    connection: &mut PgConnection,
    keyring: &Keyring,
    filter: &EndpointFilter,
    page: PageRequest,
) -> Result<Page<Endpoint>, Fault> {
    let mut query = QueryBuilder::<Postgres>::new(concat!(
        "-- pombo:endpoints\nSELECT ",
        endpoint_columns!(),
        " FROM pombo.endpoint AS e JOIN pombo.tenant AS t ON t.id = e.tenant_id WHERE e.deleted_at IS NULL"
    ));
    if let Some(tenant) = filter.tenant {
        query.push(" AND e.tenant_id = ").push_bind(tenant.0);
    }
    if let Some(status) = filter.status {
        query.push(" AND e.status = ").push_bind(status.as_str());
    }
    if let Some(Cursor { at, id }) = page.after {
        query.push(" AND (e.created_at, e.id) < (").push_bind(At(at));
        query.push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY e.created_at DESC, e.id DESC LIMIT ").push_bind(i64::from(page.limit) + 1);
    let rows = query.build().persistent(false).fetch_all(connection).await?;
    let endpoints: Result<Vec<Endpoint>, Fault> =
        rows.iter().map(|row| rows::endpoint(row, keyring)).collect();
    Ok(cut(endpoints?, page, |endpoint| Cursor { at: endpoint.created_at, id: endpoint.id.0 }))
}

/// A page of the items that were read, one more than wanted where there are more.
pub(crate) fn cut<T>(mut items: Vec<T>, page: PageRequest, cursor: impl Fn(&T) -> Cursor) -> Page<T> {
    let more = items.len() > usize::from(page.limit);
    items.truncate(usize::from(page.limit));
    let next = if more { items.last().map(cursor) } else { None };
    Page { items, next }
}

impl PostgresStore {
    fn change<'a>(&'a self, id: EndpointId, actor: &'a Actor) -> Change<'a> {
        Change { keyring: &self.keyring, id, actor }
    }
}

#[async_trait]
impl Endpoints for PostgresStore {
    async fn create_endpoint(&self, new: NewEndpoint, actor: &Actor) -> Result<Endpoint> {
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| {
            create(connection, &self.keyring, &new, actor)
        })?)
    }

    async fn endpoint(&self, id: EndpointId, tenant: Option<TenantId>) -> Result<Option<Endpoint>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| {
            read(connection, &self.keyring, id, tenant)
        })?)
    }

    async fn endpoints(&self, filter: &EndpointFilter, page: PageRequest) -> Result<Page<Endpoint>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| {
            list(connection, &self.keyring, filter, page)
        })?)
    }

    async fn update_endpoint(
        &self,
        id: EndpointId,
        version: i64,
        settings: EndpointSettings,
        actor: &Actor,
    ) -> Result<Option<Endpoint>> {
        let change = self.change(id, actor);
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| {
            change.settings(connection, version, &settings)
        })?)
    }

    async fn set_endpoint_status(
        &self,
        id: EndpointId,
        to: StatusChange,
        actor: &Actor,
    ) -> Result<Option<Endpoint>> {
        let change = self.change(id, actor);
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| {
            change.status(connection, to)
        })?)
    }

    async fn rotate_secret(
        &self,
        id: EndpointId,
        secret: SecretText,
        overlap: Duration,
        actor: &Actor,
    ) -> Result<Option<Endpoint>> {
        let change = self.change(id, actor);
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| {
            change.rotate(connection, &secret, overlap)
        })?)
    }

    async fn reveal_secrets(&self, id: EndpointId, actor: &Actor) -> Result<Option<Vec<EndpointSecret>>> {
        let change = self.change(id, actor);
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| change.reveal(connection))?)
    }

    async fn delete_endpoint(&self, id: EndpointId, actor: &Actor) -> Result<bool> {
        let change = self.change(id, actor);
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| change.delete(connection))?)
    }

    async fn catalog_changes(&self, since: Option<i64>) -> Result<CatalogChanges> {
        Ok(statement!(self.pools, walk, Phase::Before, |connection| {
            catalog::changes(connection, &self.keyring, since)
        })?)
    }
}
