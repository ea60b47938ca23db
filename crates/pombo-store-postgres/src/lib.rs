//! The store on PostgreSQL 14–18: the only code that holds SQL for it.
//!
//! Everything lives in schema `pombo`, always qualified. No connection keeps state between two
//! transactions, so a pooler in transaction mode may stand in between ([`Pooling::Transaction`]). Isolation is READ COMMITTED;
//! serialization failures and deadlocks are repeated. Which commits wait for the disk is decided per statement
//! (docs/protocol.md K8).
//!
//! It must never hold a transaction open while anything but the database is waited for, and never NOTIFY.

mod accept;
mod admin;
mod check;
mod claim;
mod connect;
mod endpoints;
mod error;
mod flush;
mod migrate;
mod outbox;
mod parking;
mod partitions;
mod people;
#[cfg(test)]
mod plans;
mod pool;
mod reading;
mod rows;
mod sessions;
mod time;

use std::sync::Arc;
use std::time::Duration;

use pombo_domain::limits;
use pombo_domain::secret::SecretText;
use pombo_store::keyring::Keyring;
use pombo_store::{Store, StoreError};

use crate::pool::Pools;

pub use crate::connect::ServerFacts;

/// What stands between Pombo and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Nothing, or a pooler that keeps a connection for a whole session.
    #[default]
    Session,
    /// A pooler that hands out connections per transaction, such as PgBouncer: no settings at the start of a
    /// connection and no prepared statements are used, and every statement stands in a transaction, which costs
    /// two more round trips each.
    Transaction,
}

/// How to reach the database, and with how many connections.
#[derive(Debug, Clone)]
pub struct PostgresConfig {
    /// `postgres://user:password@host:port/database?sslmode=…`.
    pub url: SecretText,
    /// Seals and opens secrets.
    pub keyring: Arc<Keyring>,
    /// Length of a session's lease: every limit that the server keeps is below it (S7).
    pub lease_ttl: Duration,
    /// How long a caller's own id is remembered.
    pub client_key_ttl: Duration,
    /// How long to wait for a free connection, or for a new one.
    pub acquire_timeout: Duration,
    /// What stands in between.
    pub pooling: Pooling,
    /// Most connections that accept events.
    pub accept_connections: u32,
    /// Most connections that write results.
    pub flush_connections: u32,
    /// Most connections that claim, relay, park and sweep.
    pub walk_connections: u32,
    /// Most connections that read for people and change endpoints.
    pub read_connections: u32,
}

impl PostgresConfig {
    /// The usual sizes: 10 connections in all, one of them for the session.
    pub fn new(url: SecretText, keyring: Arc<Keyring>) -> Self {
        Self {
            url,
            keyring,
            lease_ttl: limits::LEASE_TTL_DEFAULT,
            client_key_ttl: limits::CLIENT_KEY_TTL,
            acquire_timeout: Duration::from_secs(3),
            pooling: Pooling::Session,
            accept_connections: 2,
            flush_connections: 2,
            walk_connections: 3,
            read_connections: 3,
        }
    }
}

/// A PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    pools: Pools,
    keyring: Arc<Keyring>,
    client_key_ttl: Duration,
    server: ServerFacts,
}

impl PostgresStore {
    /// Connects once, looks whether the server will do, and makes the pools.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if nothing answers there, [`StoreError::Denied`] for a wrong password, role
    /// or database, [`StoreError::Schema`] for a server that will not do (version, encoding).
    pub async fn connect(config: PostgresConfig) -> Result<Arc<Self>, StoreError> {
        let (options, server) = connect::probe(&config).await?;
        Ok(Arc::new(Self {
            pools: Pools::new(&config, &options),
            keyring: Arc::clone(&config.keyring),
            client_key_ttl: config.client_key_ttl,
            server,
        }))
    }

    /// What the server said of itself when it was connected to.
    pub fn server(&self) -> &ServerFacts {
        &self.server
    }

    /// Closes every connection, waiting for those in use.
    pub async fn close(&self) {
        self.pools.close().await;
    }
}

impl Store for PostgresStore {}
