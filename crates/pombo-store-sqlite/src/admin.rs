//! The schema, keys, the audit log and numbers.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;

use pombo_domain::id::{AuditId, KeyId, TenantId};
use pombo_store::StoreError;
use pombo_store::admin::{
    Actor, Admin, ApiKey, AuditEntry, CheckReport, NewApiKey, Sample, SchemaStatus, Scopes,
};
use pombo_store::error::Result;
use pombo_store::page::{Page, PageRequest};

use crate::audit::{self, Act};
use crate::error::Fault;
use crate::reading::{Conditions, page_of};
use crate::rows::{self, Fields};
use crate::sessions::config_version;
use crate::{SqliteStore, Tx};

/// Longest wait of [`Admin::ping`].
const PING_MAX: Duration = Duration::from_secs(2);

fn create_first_key(tx: &Tx<'_>, new: &NewApiKey) -> Result<bool, Fault> {
    let key = &new.key;
    let made = rows::change(
        tx,
        "-- pombo:create_first_key\n\
         INSERT INTO pombo_api_key (id, name, hash, admin, publish, read, tenant_id, created_at)\n\
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE NOT EXISTS (SELECT 1 FROM pombo_api_key)",
        params![
            key.id.0.as_bytes(),
            key.name,
            new.hash,
            key.scopes.admin,
            key.scopes.publish,
            key.scopes.read,
            key.tenant_id.as_ref().map(|id| id.0.as_bytes()),
            tx.now.as_micros(),
        ],
    )?;
    if made == 1 {
        let act = Act { action: "key.create", subject: key.id.to_string(), tenant_id: key.tenant_id };
        audit::record(tx, &Actor::pombo(), &act)?;
    }
    Ok(made == 1)
}

fn read_key(row: &Fields<'_>) -> Result<ApiKey, Fault> {
    Ok(ApiKey {
        id: KeyId(row.uuid(0, "id")?),
        name: row.text(1, "name")?.to_owned(),
        scopes: Scopes {
            admin: row.flag(2, "admin")?,
            publish: row.flag(3, "publish")?,
            read: row.flag(4, "read")?,
        },
        tenant_id: row.opt_uuid(5, "tenant_id")?.map(TenantId),
    })
}

fn read_entry(row: &Fields<'_>) -> Result<AuditEntry, Fault> {
    Ok(AuditEntry {
        id: AuditId(row.uuid(0, "id")?),
        at: row.time(1, "at")?,
        actor: row.text(2, "actor")?.to_owned(),
        action: row.text(3, "action")?.to_owned(),
        subject: row.text(4, "subject")?.to_owned(),
        tenant_id: row.opt_uuid(5, "tenant_id")?.map(TenantId),
        reason: row.opt_text(6, "reason")?.map(str::to_owned),
    })
}

fn list_audit(tx: &Tx<'_>, tenant: Option<TenantId>, page: PageRequest) -> Result<Page<AuditEntry>, Fault> {
    let mut conditions = Conditions::default();
    if let Some(tenant) = tenant {
        conditions.id("tenant_id", tenant.0);
    }
    conditions.behind("at", "id", page.after);
    let sql = format!(
        "-- pombo:audit_log\n\
         SELECT id, at, actor, action, subject, tenant_id, reason FROM pombo_audit\n\
         WHERE {conditions} ORDER BY at DESC, id DESC LIMIT {}",
        i64::from(page.limit) + 1
    );
    let entries = rows::all(tx, "audit", &sql, conditions.params(), read_entry)?;
    Ok(page_of(entries, page, |entry| (entry.at, entry.id.0)))
}

fn number(tx: &Tx<'_>, sql: &str) -> Result<i64, Fault> {
    Ok(rows::first(tx, "sample", sql, (), |row| row.int(0, "count"))?.unwrap_or(0))
}

fn instant(tx: &Tx<'_>, sql: &str) -> Result<i64, Fault> {
    let at = rows::first(tx, "sample", sql, (), |row| row.opt_time(0, "at"))?.flatten();
    Ok(at.map_or(0, |at| tx.now.since(at).as_micros() as i64))
}

/// Counts of live rows are one walk over a table that is small when all is well; the rest are index look-ups.
fn sample(tx: &Tx<'_>) -> Result<Sample, Fault> {
    let live = rows::first(
        tx,
        "delivery",
        "-- pombo:sample_live\n\
         SELECT count(owner), count(*) FILTER (WHERE due_at < 9223372036854775807),\n\
             count(*) FILTER (WHERE due_at = 9223372036854775807) FROM pombo_delivery",
        (),
        |row| Ok([row.int(0, "owner")?, row.int(1, "due_at")?, row.int(2, "due_at")?]),
    )?;
    let [owned, waiting, parked] = live.unwrap_or_default();
    let mut endpoints = [0; 3];
    for (slot, status) in endpoints.iter_mut().zip(["active", "paused", "disabled"]) {
        *slot = number(
            tx,
            &format!(
                "-- pombo:sample_endpoints\n\
                 SELECT count(*) FROM pombo_endpoint WHERE deleted_at IS NULL AND status = '{status}'"
            ),
        )?;
    }
    Ok(Sample {
        owned,
        waiting,
        parked,
        oldest_due_micros: instant(
            tx,
            "-- pombo:sample_oldest_due\n\
             SELECT min(due_at) FROM pombo_delivery WHERE due_at < 9223372036854775807",
        )?,
        outbox_rows: number(tx, "-- pombo:sample_outbox\nSELECT count(*) FROM pombo_outbox")?,
        outbox_oldest_micros: instant(
            tx,
            // By order of insertion: an application may have written any time it likes.
            "-- pombo:sample_outbox_oldest\n\
             SELECT CASE typeof(created_at) WHEN 'integer' THEN created_at END FROM pombo_outbox ORDER BY seq LIMIT 1",
        )?,
        dead_letters: number(tx, "-- pombo:sample_dead_letters\nSELECT count(*) FROM pombo_dead_letter")?,
        endpoints,
    })
}

#[async_trait]
impl Admin for SqliteStore {
    async fn describe(&self) -> Result<String> {
        Ok(format!("SQLite {}", rusqlite::version()))
    }

    /// A transaction of the writer that changes nothing: it takes its turn and the file's lock.
    async fn ping(&self) -> Result<()> {
        let written = tokio::time::timeout(PING_MAX, self.write(|tx| config_version(tx))).await;
        written.map_err(|error| StoreError::Busy(Box::new(error)))?.map(drop)
    }

    async fn schema_status(&self) -> Result<SchemaStatus> {
        self.read_schema_status().await
    }

    async fn migrate(&self) -> Result<i32> {
        self.bring_schema_up().await
    }

    async fn prepare_partitions(&self, _days: u16) -> Result<()> {
        Ok(())
    }

    async fn create_first_key(&self, key: NewApiKey) -> Result<bool> {
        self.write(move |tx| create_first_key(tx, &key)).await
    }

    async fn api_key(&self, hash: [u8; 32]) -> Result<Option<ApiKey>> {
        self.read(move |tx| {
            let sql = "-- pombo:api_key\n\
                       SELECT id, name, admin, publish, read, tenant_id FROM pombo_api_key WHERE hash = ?1";
            rows::first(tx, "api_key", sql, params![hash], read_key)
        })
        .await
    }

    async fn audit(&self, tenant: Option<TenantId>, page: PageRequest) -> Result<Page<AuditEntry>> {
        self.read(move |tx| list_audit(tx, tenant, page)).await
    }

    async fn check(&self) -> Result<CheckReport> {
        self.run_check().await
    }

    async fn sample(&self) -> Result<Sample> {
        self.read(sample).await
    }
}
