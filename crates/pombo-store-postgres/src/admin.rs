//! The schema, API keys, the audit log and the numbers.

use std::time::Duration;

use async_trait::async_trait;
use pombo_domain::id::{AuditId, KeyId, TenantId};
use pombo_store::StoreError;
use pombo_store::admin::{
    Actor, Admin, ApiKey, AuditEntry, CheckReport, NewApiKey, Sample, SchemaStatus, Scopes,
};
use pombo_store::error::Result;
use pombo_store::page::{Cursor, Page, PageRequest};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row};

use crate::PostgresStore;
use crate::error::{Fault, Phase};
use crate::pool::{Durability, statement, transaction};
use crate::rows::instant;
use crate::time::At;
use crate::{check, migrate};

/// An act to be written to the audit log.
pub(crate) struct Entry {
    pub(crate) action: &'static str,
    pub(crate) subject: String,
    pub(crate) tenant_id: Option<TenantId>,
}

const AUDIT: &str = "-- pombo:audit
INSERT INTO pombo.audit (id, at, actor, action, subject, tenant_id, reason)
VALUES (gen_random_uuid(), clock_timestamp(), $1, $2, $3, $4, $5)";

pub(crate) async fn write_audit(
    connection: &mut PgConnection,
    actor: &Actor,
    entry: Entry,
) -> Result<(), Fault> {
    sqlx::query(AUDIT)
        .bind(&actor.name)
        .bind(entry.action)
        .bind(entry.subject)
        .bind(entry.tenant_id.map(|id| id.0))
        .bind(&actor.reason)
        .execute(connection)
        .await?;
    Ok(())
}

/// Takes a row lock, which only a database that takes writes gives: a standby or one that is read-only refuses.
const PING: &str = "-- pombo:ping
SELECT 1 FROM pombo.config WHERE one FOR KEY SHARE";

/// A lock of its own mode: two processes look one after the other, readers do not wait.
const LOCK_KEYS: &str = "LOCK TABLE pombo.api_key IN SHARE ROW EXCLUSIVE MODE";

const ANY_KEY: &str = "-- pombo:any_api_key
SELECT EXISTS (SELECT FROM pombo.api_key)";

const NEW_KEY: &str = "-- pombo:new_api_key
INSERT INTO pombo.api_key (id, name, hash, scope_admin, scope_publish, scope_read, tenant_id)
VALUES ($1, $2, $3, $4, $5, $6, $7)";

const KEY: &str = "-- pombo:api_key
SELECT id, name, scope_admin, scope_publish, scope_read, tenant_id FROM pombo.api_key WHERE hash = $1";

/// Live rows and outboxes are counted, history never; the live table is small unless something is wrong, and
/// then the number is wanted.
const SAMPLE: &str = "-- pombo:sample
SELECT
  (SELECT count(*) FROM pombo.delivery WHERE owner IS NOT NULL) AS owned,
  (SELECT count(*) FROM pombo.delivery WHERE due_at < 'infinity') AS waiting,
  (SELECT count(*) FROM pombo.delivery WHERE due_at = 'infinity') AS parked,
  (SELECT due_at FROM pombo.delivery WHERE due_at < 'infinity' ORDER BY due_at LIMIT 1) AS oldest_due,
  (SELECT count(*) FROM pombo.outbox) AS outbox_rows,
  (SELECT created_at FROM pombo.outbox ORDER BY seq LIMIT 1) AS outbox_oldest,
  (SELECT count(*) FROM pombo.dead_letter) AS dead_letters,
  (SELECT count(*) FROM pombo.endpoint WHERE deleted_at IS NULL AND status = 'active') AS active,
  (SELECT count(*) FROM pombo.endpoint WHERE deleted_at IS NULL AND status = 'paused') AS paused,
  (SELECT count(*) FROM pombo.endpoint WHERE deleted_at IS NULL AND status = 'disabled') AS disabled,
  clock_timestamp() AS now";

async fn create_first_key(connection: &mut PgConnection, new: &NewApiKey) -> Result<bool, Fault> {
    sqlx::raw_sql(LOCK_KEYS).execute(&mut *connection).await?;
    if sqlx::query_scalar(ANY_KEY).fetch_one(&mut *connection).await? {
        return Ok(false);
    }
    let NewApiKey { key, hash } = new;
    sqlx::query(NEW_KEY)
        .bind(key.id.0)
        .bind(&key.name)
        .bind(hash.as_slice())
        .bind(key.scopes.admin)
        .bind(key.scopes.publish)
        .bind(key.scopes.read)
        .bind(key.tenant_id.map(|id| id.0))
        .execute(&mut *connection)
        .await?;
    let entry = Entry { action: "key.create", subject: key.id.to_string(), tenant_id: key.tenant_id };
    write_audit(connection, &Actor::pombo(), entry).await?;
    Ok(true)
}

fn api_key(row: &PgRow) -> Result<ApiKey, Fault> {
    Ok(ApiKey {
        id: KeyId(row.try_get("id")?),
        name: row.try_get("name")?,
        scopes: Scopes {
            admin: row.try_get("scope_admin")?,
            publish: row.try_get("scope_publish")?,
            read: row.try_get("scope_read")?,
        },
        tenant_id: row.try_get::<Option<_>, _>("tenant_id")?.map(TenantId),
    })
}

async fn read_key(connection: &mut PgConnection, hash: [u8; 32]) -> Result<Option<ApiKey>, Fault> {
    let row = sqlx::query(KEY).bind(hash.as_slice()).fetch_optional(connection).await?;
    row.as_ref().map(api_key).transpose()
}

async fn read_audit(
    connection: &mut PgConnection,
    tenant: Option<TenantId>,
    page: PageRequest,
) -> Result<Page<AuditEntry>, Fault> {
    let mut query = QueryBuilder::<Postgres>::new(
        "-- pombo:audit_log\nSELECT id, at, actor, action, subject, tenant_id, reason FROM pombo.audit WHERE true",
    );
    if let Some(tenant) = tenant {
        query.push(" AND tenant_id = ").push_bind(tenant.0);
    }
    if let Some(Cursor { at, id }) = page.after {
        query.push(" AND (at, id) < (").push_bind(At(at)).push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY at DESC, id DESC LIMIT ").push_bind(i64::from(page.limit) + 1);
    let rows = query.build().persistent(false).fetch_all(connection).await?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        entries.push(AuditEntry {
            id: AuditId(row.try_get("id")?),
            at: instant(row, "at")?,
            actor: row.try_get("actor")?,
            action: row.try_get("action")?,
            subject: row.try_get("subject")?,
            tenant_id: row.try_get::<Option<_>, _>("tenant_id")?.map(TenantId),
            reason: row.try_get("reason")?,
        });
    }
    Ok(crate::endpoints::cut(entries, page, |entry| Cursor { at: entry.at, id: entry.id.0 }))
}

async fn read_sample(connection: &mut PgConnection) -> Result<Sample, Fault> {
    let row = sqlx::query(SAMPLE).fetch_one(connection).await?;
    let now = instant(&row, "now")?;
    let age = |column: &str| -> sqlx::Result<i64> {
        let since = row.try_get::<Option<At>, _>(column)?.map_or(now, |at| at.0);
        Ok(i64::try_from(now.since(since).as_micros()).unwrap_or(i64::MAX))
    };
    Ok(Sample {
        owned: row.try_get("owned")?,
        waiting: row.try_get("waiting")?,
        parked: row.try_get("parked")?,
        oldest_due_micros: age("oldest_due")?,
        outbox_rows: row.try_get("outbox_rows")?,
        outbox_oldest_micros: age("outbox_oldest")?,
        dead_letters: row.try_get("dead_letters")?,
        endpoints: [row.try_get("active")?, row.try_get("paused")?, row.try_get("disabled")?],
    })
}

/// Longest wait for an answer to [`Admin::ping`].
const PING_LIMIT: Duration = Duration::from_secs(2);

#[async_trait]
impl Admin for PostgresStore {
    async fn describe(&self) -> Result<String> {
        Ok(format!("PostgreSQL {}", self.server.version_text))
    }

    async fn ping(&self) -> Result<()> {
        let ping = async {
            let ping = transaction!(self.pools, read, Durability::Asynchronous, |connection| async {
                sqlx::query(PING).execute(connection).await.map_err(Fault::from)
            });
            ping.map_err(StoreError::from)
        };
        match tokio::time::timeout(PING_LIMIT, ping).await {
            Ok(answered) => answered.map(drop),
            Err(elapsed) => Err(StoreError::Unavailable(elapsed.into())),
        }
    }

    async fn schema_status(&self) -> Result<SchemaStatus> {
        migrate::status(self).await
    }

    async fn migrate(&self) -> Result<i32> {
        migrate::migrate(self).await
    }

    async fn prepare_partitions(&self, days: u16) -> Result<()> {
        self.make_days_ahead(days).await
    }

    async fn create_first_key(&self, key: NewApiKey) -> Result<bool> {
        Ok(transaction!(self.pools, read, Durability::Synchronous, |connection| {
            create_first_key(connection, &key)
        })?)
    }

    async fn api_key(&self, hash: [u8; 32]) -> Result<Option<ApiKey>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| read_key(connection, hash))?)
    }

    async fn audit(&self, tenant: Option<TenantId>, page: PageRequest) -> Result<Page<AuditEntry>> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| read_audit(connection, tenant, page))?)
    }

    async fn check(&self) -> Result<CheckReport> {
        check::check(self).await
    }

    async fn sample(&self) -> Result<Sample> {
        Ok(statement!(self.pools, read, Phase::Before, |connection| read_sample(connection))?)
    }
}
