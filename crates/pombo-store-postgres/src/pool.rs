//! Connections: pools by purpose, limits on both sides, and how a statement or transaction is run.

use std::sync::Arc;
use std::time::Duration;

use pombo_store::StoreError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool, Postgres};

use crate::error::{self, Fault, Phase, Verdict};
use crate::{Pooling, PostgresConfig};

/// Most runs of a statement or transaction that meets serialization failures or deadlocks.
const TRIES_MAX: u32 = 5;

/// Pools that cannot starve each other: a burst of accepts must not hold up the flush, and nothing may hold
/// up the renewal of the session.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    pub(crate) accept: PgPool,
    pub(crate) flush: PgPool,
    pub(crate) walk: PgPool,
    pub(crate) session: PgPool,
    pub(crate) read: PgPool,
    /// How long this side waits for an answer before it gives a connection up.
    pub(crate) silence: Duration,
    /// Whether even a single statement needs a transaction around it, see [`crate::Pooling::Transaction`].
    pub(crate) wrap: bool,
    begin_synchronous: Arc<str>,
    begin_asynchronous: Arc<str>,
    begin_claiming: Arc<str>,
    begin_scanning: Arc<str>,
}

impl Pools {
    pub(crate) fn new(config: &PostgresConfig, options: &PgConnectOptions) -> Self {
        let limits = Limits::below(config.lease_ttl);
        let hot = match config.pooling {
            Pooling::Session => options.clone().options([NO_SCANS]),
            // Nothing is prepared there: every run is planned on the tables as they are.
            Pooling::Transaction => options.clone(),
        };
        let pool = |connections: u32, options: &PgConnectOptions| {
            PgPoolOptions::new()
                .max_connections(connections.max(1))
                .acquire_timeout(config.acquire_timeout)
                .idle_timeout(Duration::from_secs(600))
                // Asking first costs 8 % at one client (measured); a dead connection is found by its first statement.
                .test_before_acquire(false)
                .connect_lazy_with(options.clone())
        };
        Self {
            accept: pool(config.accept_connections, &hot),
            flush: pool(config.flush_connections, &hot),
            walk: pool(config.walk_connections, &hot),
            session: pool(1, options),
            read: pool(config.read_connections, options),
            silence: limits.statement + Duration::from_secs(5),
            wrap: config.pooling == Pooling::Transaction,
            begin_synchronous: Durability::Synchronous.begin(limits).into(),
            begin_asynchronous: Durability::Asynchronous.begin(limits).into(),
            begin_claiming: Durability::Claiming.begin(limits).into(),
            begin_scanning: Durability::Scanning.begin(limits).into(),
        }
    }

    /// The text that opens a transaction: made of durations and constants only.
    pub(crate) fn begin(&self, durability: Durability) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(match durability {
            Durability::Synchronous => Arc::clone(&self.begin_synchronous),
            Durability::Asynchronous => Arc::clone(&self.begin_asynchronous),
            Durability::Claiming => Arc::clone(&self.begin_claiming),
            Durability::Scanning => Arc::clone(&self.begin_scanning),
        })
    }

    pub(crate) async fn close(&self) {
        for pool in [&self.accept, &self.flush, &self.walk, &self.read, &self.session] {
            pool.close().await;
        }
    }
}

/// Whether a commit waits for the disk (docs/protocol.md K8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Synchronous,
    Asynchronous,
    /// As `Asynchronous`, and the planner may only walk along indexes.
    ///
    /// Nothing in a statement can make the planner do so, and right after a start it takes ten due rows for
    /// granted and would rather sort: with a backlog of a million that is a sort of a million for each claim.
    Claiming,
    /// As `Asynchronous`, and a table may be read from end to end, which [`NO_SCANS`] forbids.
    Scanning,
}

/// Setting of the connections of the walk.
///
/// A hot statement keeps the plan that was made when its table was small. Of a table with one page the planner reads
/// that page, whatever the indexes; the plan stays when there are a thousand (measured with 40,000 live rows: 1.4 s
/// for a flush of 512 results, and less than 60 ms along the primary key). A table that was never vacuumed is taken for ten
/// pages long, which hides this.
pub(crate) const NO_SCANS: (&str, &str) = ("enable_seqscan", "off");

/// What [`Durability::Claiming`] forbids the planner.
pub(crate) const INDEXES_ONLY: &str = "SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
     SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

impl Durability {
    /// Opens a transaction with limits of its own, in one round trip: no session state, so that a pooler that
    /// hands out connections per transaction does no harm (T10, S7).
    fn begin(self, limits: Limits) -> String {
        let commit = match self {
            // Only where the role or database turned commits asynchronous: a stronger setting such as
            // `remote_apply` stays.
            Self::Synchronous => {
                "SELECT CASE current_setting('synchronous_commit') WHEN 'off' \
                 THEN set_config('synchronous_commit', 'on', true) END"
            }
            Self::Asynchronous | Self::Claiming | Self::Scanning => "SET LOCAL synchronous_commit = off",
        };
        let plans = match self {
            Self::Claiming => INDEXES_ONLY,
            Self::Scanning => "SET LOCAL enable_seqscan = on",
            Self::Synchronous | Self::Asynchronous => "",
        };
        format!(
            "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; SET LOCAL jit = off; \
             SET LOCAL idle_in_transaction_session_timeout = {}; {commit}; {plans}",
            limits.lock.as_millis(),
            limits.statement.as_millis(),
            limits.idle_in_transaction.as_millis()
        )
    }
}

/// Limits that the server keeps, all well below the lease of a session (S7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) statement: Duration,
    pub(crate) lock: Duration,
    pub(crate) idle_in_transaction: Duration,
    pub(crate) transaction: Duration,
}

impl Limits {
    pub(crate) fn below(lease_ttl: Duration) -> Self {
        Self {
            statement: (lease_ttl / 3).clamp(Duration::from_secs(1), Duration::from_secs(15)),
            lock: (lease_ttl / 10).clamp(Duration::from_millis(200), Duration::from_secs(3)),
            idle_in_transaction: (lease_ttl / 3).clamp(Duration::from_secs(1), Duration::from_secs(5)),
            transaction: (lease_ttl * 2 / 3).clamp(Duration::from_secs(2), Duration::from_secs(30)),
        }
    }

    /// As settings of a connection, for the statements that commit themselves. Servers before 17 do not know
    /// the last one and refuse the whole connection for it.
    pub(crate) fn options(self, server_version: i32) -> Vec<(&'static str, String)> {
        let millis = |limit: Duration| limit.as_millis().to_string();
        let mut options = vec![
            ("statement_timeout", millis(self.statement)),
            ("lock_timeout", millis(self.lock)),
            ("idle_in_transaction_session_timeout", millis(self.idle_in_transaction)),
            // Compiling pays for reports. A plan that the planner finds dear, rightly or because it was forbidden
            // the cheap one, takes two seconds to compile and twenty milliseconds to run.
            ("jit", "off".to_owned()),
            // The server notices a process that vanished, and gives its locks free.
            ("tcp_keepalives_idle", "10".to_owned()),
            ("tcp_keepalives_interval", "5".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
            ("tcp_user_timeout", "20000".to_owned()),
        ];
        if server_version >= 170_000 {
            options.push(("transaction_timeout", millis(self.transaction)));
        }
        options
    }
}

pub(crate) async fn acquire(pool: &PgPool) -> Result<Held, StoreError> {
    // A pool that runs out of time while connecting hides why; both mean "not now".
    let acquired = pool.acquire().await;
    let connection = acquired.map_err(|error| error::final_error(Fault::Sql(error), Phase::Before))?;
    Ok(Held { connection, is_opening: false })
}

/// A connection of a pool, which goes back only without a transaction that nobody knows of.
///
/// A caller who goes away (a client that closes its connection is enough) drops the call wherever it waits.
/// sqlx then rolls back what it knows to be open. While the answer to `BEGIN` is outstanding it knows of nothing,
/// and the pool would hand the next caller a connection inside a transaction: what that one writes is not
/// committed when it is told so. Such a connection is closed.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) connection: PoolConnection<Postgres>,
    /// `BEGIN` was sent, and its answer is not here.
    pub(crate) is_opening: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_opening {
            self.connection.close_on_drop();
        }
    }
}

/// Counts the runs of one statement or transaction.
#[derive(Debug, Default)]
pub(crate) struct Runs(u32);

/// What a run that failed leads to.
#[derive(Debug)]
pub(crate) enum Next {
    /// The same again, after this pause.
    Again(Duration),
    /// Make partitions, then the same again.
    Partition(StoreError),
    /// Over.
    Fail(StoreError),
}

impl Runs {
    /// Judges a failed run and throws its connection away where it must not be used again.
    pub(crate) fn judge(&mut self, fault: Fault, phase: Phase, held: &mut Held) -> Next {
        match error::judge(fault, phase) {
            Verdict::Again(error) => {
                self.0 += 1;
                if self.0 >= TRIES_MAX { Next::Fail(error) } else { Next::Again(pause(self.0)) }
            }
            Verdict::NoPartition(error) => Next::Partition(error),
            Verdict::Fail { error, discard } => {
                if discard {
                    held.connection.close_on_drop();
                }
                Next::Fail(error)
            }
        }
    }
}

/// Spread by chance, so that two processes that met once do not meet again.
fn pause(run: u32) -> Duration {
    Duration::from_millis(u64::from(rand::random::<u8>() % 8) * u64::from(run))
}

/// What went wrong when a run of [`statement!`] or [`transaction!`] is not to be repeated as it stands.
#[derive(Debug)]
pub(crate) enum Failed {
    /// A partition is missing; see [`crate::partitions`].
    Partition(StoreError),
    /// Anything else.
    Store(StoreError),
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Partition(error) | Failed::Store(error) => error,
        }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Runs one statement that commits itself. `$phase` says what a lost connection means: [`Phase::Commit`] for
/// a write, [`Phase::Before`] for a read. Evaluates to `Result<_, Failed>`.
///
/// Macros and not functions that take closures: the futures of async closures that borrow cannot be shown to
/// be `Send` yet.
macro_rules! statement {
    ($pools:expr, $pool:ident, $phase:expr, |$connection:ident| $body:expr) => {{
        let mut runs = $crate::pool::Runs::default();
        loop {
            let mut held = match $crate::pool::acquire(&$pools.$pool).await {
                Ok(held) => held,
                Err(error) => break Err($crate::pool::Failed::Store(error)),
            };
            let result = tokio::time::timeout($pools.silence, async {
                // A statement is parsed in one message and run in the next; a pooler may send the two to different
                // servers unless a transaction holds them together.
                if $pools.wrap {
                    let begin = $pools.begin($crate::pool::Durability::Synchronous);
                    held.is_opening = true;
                    let mut open = sqlx::Connection::begin_with(&mut *held.connection, begin).await?;
                    held.is_opening = false;
                    let value = {
                        let $connection: &mut sqlx::PgConnection = &mut open;
                        $body.await?
                    };
                    open.commit().await?;
                    return Ok::<_, $crate::error::Fault>(value);
                }
                let $connection: &mut sqlx::PgConnection = &mut held.connection;
                $body.await.map_err($crate::error::Fault::from)
            })
            .await;
            let fault = match result {
                Ok(Ok(value)) => break Ok(value),
                Ok(Err(fault)) => fault,
                Err(_) => $crate::error::Fault::Silent($pools.silence),
            };
            match runs.judge(fault, $phase, &mut held) {
                $crate::pool::Next::Again(pause) => {
                    drop(held);
                    tokio::time::sleep(pause).await;
                }
                $crate::pool::Next::Partition(error) => break Err($crate::pool::Failed::Partition(error)),
                $crate::pool::Next::Fail(error) => break Err($crate::pool::Failed::Store(error)),
            }
        }
    }};
}

/// Runs a transaction. The body gives `Result<T, Fault>`; an error rolls back. Evaluates to
/// `Result<T, Failed>`.
macro_rules! transaction {
    ($pools:expr, $pool:ident, $durability:expr, |$connection:ident| $body:expr) => {{
        let mut runs = $crate::pool::Runs::default();
        loop {
            let mut held = match $crate::pool::acquire(&$pools.$pool).await {
                Ok(held) => held,
                Err(error) => break Err($crate::pool::Failed::Store(error)),
            };
            let mut phase = $crate::error::Phase::Before;
            let result = tokio::time::timeout($pools.silence, async {
                let begin = $pools.begin($durability);
                held.is_opening = true;
                let mut open = sqlx::Connection::begin_with(&mut *held.connection, begin).await?;
                held.is_opening = false;
                let value = {
                    let $connection: &mut sqlx::PgConnection = &mut open;
                    $body.await?
                };
                phase = $crate::error::Phase::Commit;
                open.commit().await?;
                Ok::<_, $crate::error::Fault>(value)
            })
            .await;
            let fault = match result {
                Ok(Ok(value)) => break Ok(value),
                Ok(Err(fault)) => fault,
                Err(_) => $crate::error::Fault::Silent($pools.silence),
            };
            match runs.judge(fault, phase, &mut held) {
                $crate::pool::Next::Again(pause) => {
                    drop(held);
                    tokio::time::sleep(pause).await;
                }
                $crate::pool::Next::Partition(error) => break Err($crate::pool::Failed::Partition(error)),
                $crate::pool::Next::Fail(error) => break Err($crate::pool::Failed::Store(error)),
            }
        }
    }};
}

pub(crate) use {statement, transaction};
