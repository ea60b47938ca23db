//! Puts the process together: store, way out, engine, from settings.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pombo_egress::{AddressPolicy, EgressClient, EgressConfig, discover_nat64};
use pombo_engine::EngineConfig;
use pombo_store::Store;
use pombo_store::admin::SchemaStatus;
use pombo_store_postgres::{Pooling, PostgresConfig, PostgresStore};
use pombo_store_sqlite::{SqliteConfig, SqliteStore};

use crate::config::Settings;
use crate::database::{Database, DatabaseUrl};
use crate::failure::{Failure, Outcome};
use crate::master_key::MasterKey;

/// How long a start waits for the answer that shows a NAT64.
const NAT64_MAX: Duration = Duration::from_secs(1);

/// What a command does with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads and writes; a SQLite file is then this process's alone.
    Write,
    /// Reads, also beside a process that serves.
    Read,
}

/// Opens a database as it is; the schema may be older, newer or missing.
pub(crate) async fn open(
    database: &Database,
    key: &MasterKey,
    settings: &Settings,
    access: Access,
) -> Outcome<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match &database.url {
        DatabaseUrl::Sqlite(path) => {
            let config = SqliteConfig::new(path, key.keyring());
            let opened = match access {
                Access::Write => SqliteStore::open(config),
                Access::Read => SqliteStore::open_for_reading(config),
            };
            opened.map_err(|error| database.failure(error))?
        }
        DatabaseUrl::Postgres(url) => {
            let mut config = PostgresConfig::new(url.clone(), key.keyring());
            config.lease_ttl = settings.lease_ttl;
            if settings.is_pooled {
                config.pooling = Pooling::Transaction;
            }
            PostgresStore::connect(config).await.map_err(|error| database.failure(error))?
        }
    };
    Ok(store)
}

/// Opens a database to write, keeps a new master key, and brings the schema up. Several processes may do it at once.
pub(crate) async fn open_and_migrate(
    database: &Database,
    key: &MasterKey,
    settings: &Settings,
) -> Outcome<Arc<dyn Store>> {
    let store = open(database, key, settings, Access::Write).await?;
    let status = store.schema_status().await.map_err(|error| database.failure(error))?;
    let is_empty = matches!(status, SchemaStatus::Older { found: 0, .. });
    if let Some(file) = key.keep(&database.url, is_empty)? {
        tracing::info!("A master key was made in {}; back it up with the database", file.display());
    }
    store.migrate().await.map_err(|error| database.failure(error))?;
    Ok(store)
}

/// Refuses a schema that a command which only reads cannot use.
pub(crate) async fn need_schema(database: &Database, store: &dyn Store) -> Outcome {
    let url = &database.url;
    match store.schema_status().await.map_err(|error| database.failure(error))? {
        SchemaStatus::Current { .. } | SchemaStatus::NewerCompatible { .. } => Ok(()),
        SchemaStatus::Older { found: 0, .. } => Err(Failure::failed(format!(
            "{url} holds no tables of Pombo yet: run `pombo migrate` or `pombo serve`"
        ))),
        SchemaStatus::Older { found, wanted } => Err(Failure::failed(format!(
            "{url} has schema version {found}, and this pombo needs {wanted}: run `pombo migrate`"
        ))),
        SchemaStatus::TooNew { found, wanted } => Err(too_new(database, found, wanted)),
    }
}

/// The sentence for a schema that this binary must not touch.
pub(crate) fn too_new(database: &Database, found: i32, wanted: i32) -> Failure {
    Failure::failed(format!(
        "{} has schema version {found}, which only a newer pombo can use (this one knows {wanted}): use that one",
        database.url
    ))
}

/// The only way out. Looks for a NAT64 of this network where the settings name none, at most [`NAT64_MAX`] long.
pub(crate) async fn egress(settings: &Settings, is_dev: bool) -> Outcome<EgressClient> {
    let egress = &settings.egress;
    let mut config = EgressConfig {
        policy: AddressPolicy {
            allow_http: egress.allow_http || is_dev,
            allow_private: is_dev,
            allow: egress.allow.clone(),
            deny: egress.deny.clone(),
            nat64: egress.nat64.clone(),
        },
        proxy: egress.proxy.clone(),
        ..EgressConfig::default()
    };
    if let Some(file) = &egress.ca_file {
        let pem = std::fs::read(file)
            .with_context(|| format!("cannot read `egress.ca_file` {}", file.display()))?;
        config.add_roots_pem(&pem).with_context(|| format!("`egress.ca_file` {}", file.display()))?;
    }
    // Where private targets are allowed, a translator leads to nothing that is refused.
    if config.policy.nat64.is_empty() && settings.roles.deliver && !is_dev {
        config.policy.nat64 = discover_nat64(config.resolver.as_ref(), NAT64_MAX).await;
    }
    Ok(EgressClient::new(config).context("cannot make the HTTP client of deliveries")?)
}

/// The settings of the engine.
pub(crate) fn engine_config(settings: &Settings) -> EngineConfig {
    EngineConfig {
        node: node(),
        roles: settings.roles,
        lease_ttl: settings.lease_ttl,
        retry: settings.retry.clone(),
        timeout: settings.timeout,
        user_agent: settings.user_agent.clone(),
        slots: settings.slots,
    }
}

/// Host name and process id: what people call a process.
fn node() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}
