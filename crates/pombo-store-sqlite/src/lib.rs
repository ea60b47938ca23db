//! The store on one SQLite file: one process, one writer thread that commits in groups, a few readers.
//!
//! Place in the walk: everything durable of an installation without a database server. Applications write
//! their outbox rows, and their own tables, into the same file. The walk is the one of `docs/protocol.md`
//! with its rules Q; files here stand side by side with those of `pombo-store-postgres`.
//!
//! It never keeps the file locked while it waits for anything but the disk, never reads for longer than a
//! second, and never touches `user_version`, `application_id` or a table that does not begin with `pombo_`.

mod accept;
mod admin;
mod audit;
mod check;
mod claim;
mod clock;
mod endpoints;
mod error;
mod file;
mod flush;
mod migrate;
mod outbox;
mod parking;
mod people;
#[cfg(test)]
mod plans;
mod readers;
mod reading;
mod rows;
mod sessions;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use rusqlite::Connection;

use pombo_domain::clock::Timestamp;
use pombo_domain::limits;
use pombo_store::error::Result;
use pombo_store::keyring::Keyring;
use pombo_store::sessions::Epoch;
use pombo_store::{Store, StoreError};

use crate::error::Fault;
use crate::file::{Access, FileLock};
use crate::readers::Readers;
use crate::writer::Writer;

/// How to open a store.
#[derive(Debug, Clone)]
pub struct SqliteConfig {
    /// The database file; made where it is missing, readable by its owner alone.
    pub path: PathBuf,
    /// Seals and opens secrets.
    pub keyring: Arc<Keyring>,
    /// How long callers' own ids are remembered (A4).
    pub client_key_ttl: Duration,
    /// How long a statement waits for an application that holds the file.
    pub busy_timeout: Duration,
    /// Connections that read at the same time, at least 1.
    pub readers: u32,
    /// A quota: the largest the file may grow, in pages of 4 KiB (a file made elsewhere may have others).
    /// Reaching it is [`StoreError::Full`], as a full disk is. `None`: as large as the disk.
    pub pages_max: Option<u32>,
}

impl SqliteConfig {
    /// The settings that fit nearly everyone.
    pub fn new(path: impl Into<PathBuf>, keyring: Arc<Keyring>) -> Self {
        Self {
            path: path.into(),
            keyring,
            client_key_ttl: limits::CLIENT_KEY_TTL,
            busy_timeout: Duration::from_secs(5),
            readers: 4,
            pages_max: None,
        }
    }
}

/// A store on a SQLite file. Dropping the last handle ends the writer thread, after what was handed to it is
/// committed, and gives the file free.
#[derive(Debug)]
pub struct SqliteStore {
    config: SqliteConfig,
    epoch: Epoch,
    readers: Readers,
    /// `None` for a store that only reads.
    writer: Option<Writer>,
    /// Number of the last relay snapshot: on SQLite every snapshot is newer than all before (R2).
    relay_marks: AtomicI64,
    /// Declared last: the file is free only when nothing uses it any more.
    _lock: Option<FileLock>,
}

impl SqliteStore {
    /// Opens the file for this process alone. Sessions of earlier processes are dead, which the lock proves
    /// (Q1): they are buried and their deliveries released before this returns.
    ///
    /// Blocks on the disk for a moment. The schema is brought up by
    /// [`pombo_store::admin::Admin::migrate`], not here.
    ///
    /// # Errors
    /// [`StoreError::Denied`] with a sentence for people: another process has the file, no such directory,
    /// not a database, a network file system. [`StoreError::ReadOnly`]: the file or directory may not be written.
    pub fn open(config: SqliteConfig) -> Result<Arc<Self>> {
        file::check_place(&config.path)?;
        let lock = FileLock::take(&config.path)?;
        file::create(&config.path)?;
        let connection = file::connect(&config, Access::Write)?;
        file::set_up_writing(&connection, &config)?;
        sessions::bury_earlier(&connection).map_err(StoreError::from)?;
        let writer = Writer::start(connection, &config)?;
        Ok(Arc::new(Self::assemble(config, Some(writer), Some(lock))))
    }

    /// Opens the file to read it, also beside a process that has it open. Everything that writes answers
    /// [`StoreError::ReadOnly`].
    ///
    /// # Errors
    /// [`StoreError::Denied`]: there is no such file, or it is not a database.
    pub fn open_for_reading(config: SqliteConfig) -> Result<Arc<Self>> {
        file::check_place(&config.path)?;
        file::connect(&config, Access::Read)?;
        Ok(Arc::new(Self::assemble(config, None, None)))
    }

    fn assemble(config: SqliteConfig, writer: Option<Writer>, lock: Option<FileLock>) -> Self {
        Self {
            epoch: Epoch(format!("{}/{}", std::process::id(), uuid::Uuid::new_v4())),
            readers: Readers::new(&config),
            writer,
            relay_marks: AtomicI64::new(0),
            _lock: lock,
            config,
        }
    }

    /// Runs one transaction, committed with fsync together with others that wait.
    async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
    {
        match &self.writer {
            Some(writer) => writer.run(work).await,
            None => Err(StoreError::ReadOnly("the store was opened for reading".into())),
        }
    }

    /// Reads in one snapshot, at most a second.
    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.readers.run(work).await
    }
}

impl Store for SqliteStore {}

/// A transaction, and the instant at which it began to work.
struct Tx<'c> {
    connection: &'c Connection,
    /// Never runs backwards within a process.
    now: Timestamp,
}

impl std::ops::Deref for Tx<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.connection
    }
}
