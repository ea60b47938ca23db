//! Endpoints, their secrets, and the catalogue (A3). Every change bumps `config.version` and is audited, in
//! the same transaction.

mod secrets;
mod stored;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;

use pombo_domain::endpoint::{DisabledReason, Endpoint, EndpointSettings, EndpointStatus};
use pombo_domain::id::{EndpointId, TenantId};
use pombo_domain::secret::SecretText;
use pombo_store::StoreError;
use pombo_store::admin::Actor;
use pombo_store::endpoints::{
    CatalogChanges, CatalogEndpoint, EndpointFilter, EndpointSecret, Endpoints, NewEndpoint, StatusChange,
};
use pombo_store::error::Result;
use pombo_store::keyring::Keyring;
use pombo_store::page::{Page, PageRequest};

use crate::accept::know_tenant;
use crate::audit::{self, Act};
use crate::claim::hold_of;
use crate::error::Fault;
use crate::reading::{Conditions, page_of};
use crate::rows;
use crate::sessions::config_version;
use crate::{SqliteStore, Tx};

use stored::{COLUMNS, read_endpoint, seal_headers, write_settings};

/// The next version of the configuration.
fn bump_config(tx: &Tx<'_>) -> Result<i64, Fault> {
    let version = rows::first(
        tx,
        "config",
        "-- pombo:bump_config\nUPDATE pombo_config SET version = version + 1 WHERE one = 1 RETURNING version",
        (),
        |row| row.int(0, "version"),
    )?;
    version.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
}

/// An endpoint that exists.
fn load(tx: &Tx<'_>, ring: &Keyring, id: EndpointId) -> Result<Option<Endpoint>, Fault> {
    let sql = format!("-- pombo:endpoint\n{COLUMNS} WHERE e.id = ?1 AND e.deleted_at IS NULL");
    rows::first(tx, "endpoint", &sql, params![id.0.as_bytes()], |row| read_endpoint(row, ring))
}

/// Whether everything sealed of an endpoint opens.
pub(crate) fn opens(tx: &Tx<'_>, ring: &Keyring, id: EndpointId) -> Result<bool, Fault> {
    match load(tx, ring, id).and_then(|_| secrets::of(tx, ring, id)) {
        Ok(_) => Ok(true),
        Err(Fault(StoreError::Sealed { .. })) => Ok(false),
        Err(other) => Err(other),
    }
}

fn record(
    tx: &Tx<'_>,
    action: &'static str,
    id: EndpointId,
    tenant: TenantId,
    actor: &Actor,
) -> Result<(), Fault> {
    audit::record(tx, actor, &Act { action, subject: id.to_string(), tenant_id: Some(tenant) })
}

fn create(tx: &Tx<'_>, ring: &Keyring, new: &NewEndpoint, actor: &Actor) -> Result<Endpoint, Fault> {
    let tenant_id = TenantId::of(&new.tenant);
    know_tenant(tx, tenant_id, &new.tenant)?;
    let version = bump_config(tx)?;
    stored::insert(tx, ring, new, version)?;
    secrets::add(tx, ring, new.id, &new.secret)?;
    record(tx, "endpoint.create", new.id, tenant_id, actor)?;
    load(tx, ring, new.id)?.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
}

fn update(
    tx: &Tx<'_>,
    ring: &Keyring,
    known: (EndpointId, i64),
    settings: &EndpointSettings,
    actor: &Actor,
) -> Result<Option<Endpoint>, Fault> {
    let (id, version) = known;
    let Some(before) = load(tx, ring, id)?.filter(|endpoint| endpoint.version == version) else {
        return Ok(None);
    };
    let headers = seal_headers(ring, id, &settings.headers);
    write_settings(tx, id, settings, headers.as_deref(), bump_config(tx)?)?;
    record(tx, "endpoint.update", id, before.tenant_id, actor)?;
    load(tx, ring, id)
}

/// Whether the change changes anything, and how the audit calls it.
fn changed_to(
    endpoint: &Endpoint,
    change: StatusChange,
) -> Option<(EndpointStatus, Option<DisabledReason>, &'static str)> {
    let (status, reason, action) = match change {
        StatusChange::Resume => (EndpointStatus::Active, None, "endpoint.resume"),
        StatusChange::Pause => (EndpointStatus::Paused, None, "endpoint.pause"),
        StatusChange::Disable(reason) => (EndpointStatus::Disabled, Some(reason), "endpoint.disable"),
    };
    (endpoint.status != status).then_some((status, reason, action))
}

fn set_status(
    tx: &Tx<'_>,
    ring: &Keyring,
    id: EndpointId,
    change: StatusChange,
    actor: &Actor,
) -> Result<Option<Endpoint>, Fault> {
    let Some(endpoint) = load(tx, ring, id)? else { return Ok(None) };
    let Some((status, reason, action)) = changed_to(&endpoint, change) else { return Ok(Some(endpoint)) };
    write_status(tx, id, status, reason)?;
    record(tx, action, id, endpoint.tenant_id, actor)?;
    load(tx, ring, id)
}

fn write_status(
    tx: &Tx<'_>,
    id: EndpointId,
    status: EndpointStatus,
    reason: Option<DisabledReason>,
) -> Result<(), Fault> {
    rows::change(
        tx,
        "-- pombo:set_endpoint_status\n\
         UPDATE pombo_endpoint SET status = ?2, disabled_reason = ?3, version = ?4, updated_at = ?5 WHERE id = ?1",
        params![
            id.0.as_bytes(),
            status.as_str(),
            reason.map(DisabledReason::as_str),
            bump_config(tx)?,
            tx.now.as_micros()
        ],
    )?;
    Ok(())
}

/// What a 410 does (a flush calls this). An endpoint that is disabled already, or gone, stays as it is.
pub(crate) fn disable(tx: &Tx<'_>, id: EndpointId, reason: DisabledReason) -> Result<(), Fault> {
    let tenant = rows::first(
        tx,
        "endpoint",
        "-- pombo:disableable\n\
         SELECT id, tenant_id FROM pombo_endpoint WHERE id = ?1 AND deleted_at IS NULL AND status <> 'disabled'",
        params![id.0.as_bytes()],
        |row| row.uuid(1, "tenant_id").map(TenantId),
    )?;
    let Some(tenant) = tenant else { return Ok(()) };
    write_status(tx, id, EndpointStatus::Disabled, Some(reason))?;
    record(tx, "endpoint.disable", id, tenant, &Actor::pombo())
}

fn rotate(
    tx: &Tx<'_>,
    ring: &Keyring,
    id: EndpointId,
    secret: &SecretText,
    overlap: Duration,
) -> Result<Option<Endpoint>, Fault> {
    if load(tx, ring, id)?.is_none() {
        return Ok(None);
    }
    secrets::retire_current(tx, id, overlap)?;
    secrets::add(tx, ring, id, secret)?;
    touch(tx, id)?;
    load(tx, ring, id)
}

fn touch(tx: &Tx<'_>, id: EndpointId) -> Result<(), Fault> {
    rows::change(
        tx,
        "-- pombo:touch_endpoint\nUPDATE pombo_endpoint SET version = ?2, updated_at = ?3 WHERE id = ?1",
        params![id.0.as_bytes(), bump_config(tx)?, tx.now.as_micros()],
    )?;
    Ok(())
}

/// Marks it deleted; what is secret about it goes at once.
fn delete(tx: &Tx<'_>, ring: &Keyring, id: EndpointId, actor: &Actor) -> Result<bool, Fault> {
    let Some(endpoint) = load(tx, ring, id)? else { return Ok(false) };
    rows::change(
        tx,
        "-- pombo:delete_endpoint\n\
         UPDATE pombo_endpoint SET deleted_at = ?3, version = ?2, updated_at = ?3, headers = NULL WHERE id = ?1",
        params![id.0.as_bytes(), bump_config(tx)?, tx.now.as_micros()],
    )?;
    secrets::forget(tx, id)?;
    record(tx, "endpoint.delete", id, endpoint.tenant_id, actor)?;
    Ok(true)
}

fn changes(tx: &Tx<'_>, ring: &Keyring, since: Option<i64>) -> Result<CatalogChanges, Fault> {
    let sql = format!(
        "-- pombo:changed_endpoints\n{COLUMNS} WHERE e.version > ?1 AND e.deleted_at IS NULL ORDER BY e.version"
    );
    let since_or_all = since.unwrap_or(i64::MIN);
    let endpoints = rows::all(tx, "endpoint", &sql, params![since_or_all], |row| read_endpoint(row, ring))?;
    let mut changed = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let secrets = secrets::of(tx, ring, endpoint.id)?;
        let hold_until = hold_of(tx, endpoint.id, tx.now)?;
        changed.push(CatalogEndpoint { endpoint, secrets, hold_until });
    }
    let deleted = match since {
        None => Vec::new(),
        Some(since) => rows::all(
            tx,
            "endpoint",
            "-- pombo:deleted_endpoints\nSELECT id FROM pombo_endpoint WHERE version > ?1 AND deleted_at IS NOT NULL",
            params![since],
            |row| row.uuid(0, "id").map(EndpointId),
        )?,
    };
    Ok(CatalogChanges { version: config_version(tx)?, changed, deleted })
}

fn list(
    tx: &Tx<'_>,
    ring: &Keyring,
    filter: &EndpointFilter,
    page: PageRequest,
) -> Result<Page<Endpoint>, Fault> {
    let mut conditions = Conditions::default();
    conditions.and("e.deleted_at IS NULL");
    if let Some(tenant) = filter.tenant {
        conditions.id("e.tenant_id", tenant.0);
    }
    if let Some(status) = filter.status {
        conditions.word("e.status", status.as_str());
    }
    conditions.behind("e.created_at", "e.id", page.after);
    let sql = format!(
        "-- pombo:endpoints\n{COLUMNS} WHERE {conditions} ORDER BY e.created_at DESC, e.id DESC LIMIT {}",
        i64::from(page.limit) + 1
    );
    let endpoints = rows::all(tx, "endpoint", &sql, conditions.params(), |row| read_endpoint(row, ring))?;
    Ok(page_of(endpoints, page, |endpoint| (endpoint.created_at, endpoint.id.0)))
}

#[async_trait]
impl Endpoints for SqliteStore {
    async fn create_endpoint(&self, new: NewEndpoint, actor: &Actor) -> Result<Endpoint> {
        let (ring, actor) = (Arc::clone(&self.config.keyring), actor.clone());
        self.write(move |tx| create(tx, &ring, &new, &actor)).await
    }

    async fn endpoint(&self, id: EndpointId, tenant: Option<TenantId>) -> Result<Option<Endpoint>> {
        let ring = Arc::clone(&self.config.keyring);
        let found = self.read(move |tx| load(tx, &ring, id)).await?;
        Ok(found.filter(|endpoint| tenant.is_none_or(|tenant| tenant == endpoint.tenant_id)))
    }

    async fn endpoints(&self, filter: &EndpointFilter, page: PageRequest) -> Result<Page<Endpoint>> {
        let (ring, filter) = (Arc::clone(&self.config.keyring), filter.clone());
        self.read(move |tx| list(tx, &ring, &filter, page)).await
    }

    async fn update_endpoint(
        &self,
        id: EndpointId,
        version: i64,
        settings: EndpointSettings,
        actor: &Actor,
    ) -> Result<Option<Endpoint>> {
        let (ring, actor) = (Arc::clone(&self.config.keyring), actor.clone());
        self.write(move |tx| update(tx, &ring, (id, version), &settings, &actor)).await
    }

    async fn set_endpoint_status(
        &self,
        id: EndpointId,
        change: StatusChange,
        actor: &Actor,
    ) -> Result<Option<Endpoint>> {
        let (ring, actor) = (Arc::clone(&self.config.keyring), actor.clone());
        self.write(move |tx| set_status(tx, &ring, id, change, &actor)).await
    }

    async fn rotate_secret(
        &self,
        id: EndpointId,
        secret: SecretText,
        overlap: Duration,
        actor: &Actor,
    ) -> Result<Option<Endpoint>> {
        let (ring, actor) = (Arc::clone(&self.config.keyring), actor.clone());
        self.write(move |tx| {
            let rotated = rotate(tx, &ring, id, &secret, overlap)?;
            if let Some(endpoint) = &rotated {
                record(tx, "endpoint.rotate_secret", id, endpoint.tenant_id, &actor)?;
            }
            Ok(rotated)
        })
        .await
    }

    async fn reveal_secrets(&self, id: EndpointId, actor: &Actor) -> Result<Option<Vec<EndpointSecret>>> {
        let (ring, actor) = (Arc::clone(&self.config.keyring), actor.clone());
        self.write(move |tx| {
            let Some(endpoint) = load(tx, &ring, id)? else { return Ok(None) };
            record(tx, "endpoint.reveal_secret", id, endpoint.tenant_id, &actor)?;
            secrets::of(tx, &ring, id).map(Some)
        })
        .await
    }

    async fn delete_endpoint(&self, id: EndpointId, actor: &Actor) -> Result<bool> {
        let (ring, actor) = (Arc::clone(&self.config.keyring), actor.clone());
        self.write(move |tx| delete(tx, &ring, id, &actor)).await
    }

    async fn catalog_changes(&self, since: Option<i64>) -> Result<CatalogChanges> {
        let ring = Arc::clone(&self.config.keyring);
        self.read(move |tx| changes(tx, &ring, since)).await
    }
}
