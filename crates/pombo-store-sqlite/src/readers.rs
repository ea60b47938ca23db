//! A few connections that read, on blocking threads, each read in one snapshot and for a second at most: a
//! snapshot that stays open keeps the WAL from being reset (Q1).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use pombo_store::StoreError;
use pombo_store::error::Result;

use crate::error::Fault;
use crate::file::{self, Access};
use crate::{SqliteConfig, Tx, clock};

/// Longest read.
const READ_MAX: Duration = Duration::from_secs(1);
/// Virtual machine instructions between two looks at the clock: a few dozen microseconds.
const INSTRUCTIONS_PER_LOOK: i32 = 2000;

/// The pool. Connections are opened when first needed and kept.
#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: SqliteConfig,
    permits: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(crate) fn new(config: &SqliteConfig) -> Self {
        let permits = Semaphore::new(config.readers.max(1) as usize);
        Self { shared: Arc::new(Shared { config: config.clone(), permits, idle: Mutex::default() }) }
    }

    /// Reads in one snapshot.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.run_for(READ_MAX, work).await
    }

    /// As [`Readers::run`], with another deadline.
    pub(crate) async fn run_for<T, F>(&self, longest: Duration, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let _permit =
            self.shared.permits.acquire().await.map_err(|error| StoreError::Other(Box::new(error)))?;
        tokio::task::spawn_blocking(move || shared.read(longest, work))
            .await
            .map_err(|error| StoreError::Other(Box::new(error)))?
    }
}

impl Shared {
    fn read<T>(&self, longest: Duration, work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>) -> Result<T> {
        let connection = match self.idle().pop() {
            Some(connection) => connection,
            None => file::connect(&self.config, Access::Read)?,
        };
        let result = snapshot(&connection, longest, work);
        // After a panic the connection is dropped with the stack, and the next read opens a new one.
        self.idle().push(connection);
        result.map_err(StoreError::from)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn snapshot<T>(
    connection: &Connection,
    longest: Duration,
    work: impl FnOnce(&Tx<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let end = Instant::now() + longest;
    connection.progress_handler(INSTRUCTIONS_PER_LOOK, Some(move || Instant::now() > end))?;
    // Dropping it ends the read, also where `work` fails.
    let transaction = connection.unchecked_transaction()?;
    work(&Tx { connection: &transaction, now: clock::now() })
}
