//! The one thread that writes, and its group commit.
//!
//! Everything that changes the database is a job for this thread. It opens a transaction for the first job
//! that waits, runs it and those behind it, each in a savepoint, commits once with fsync, and only then
//! answers all of them. So a job that fails takes nothing else with it, an answer means "on the disk", and
//! the cost of an fsync is shared by all who wait.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use pombo_store::StoreError;
use pombo_store::error::Result;

use crate::error::{Fault, commit_error, repeat, store_error};
use crate::{SqliteConfig, Tx, clock};

/// A WAL larger than this is cut back as soon as no reader needs it (Q1).
pub(crate) const WAL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Jobs that wait for the thread; more make their callers wait.
const QUEUE_MAX: usize = 1024;
/// Jobs in one transaction.
const GROUP_MAX: usize = 256;
/// Work in one transaction while the file is ours alone.
const GROUP_TIME_MAX: Duration = Duration::from_millis(20);
/// Work in one transaction while applications write to the file too.
const SHARED_GROUP_TIME_MAX: Duration = Duration::from_millis(4);
/// How long the file is left free after a commit while applications write to it: their SQLite looks again
/// 1, 2, 5, 10, 15, 20, 25 … ms after it found the file locked, so a shorter gap is rarely met.
const LEAVE_FREE: Duration = Duration::from_millis(2);
/// Whoever waits meets that gap by luck, and the less of it, the slower the disk is: a commit of 10 ms leaves them
/// one look in six. So after this long without a commit of theirs there is a gap that nobody can miss.
const LET_IN_EVERY: Duration = Duration::from_millis(40);
/// Longer than SQLite waits between two looks in the first eighth of a second; over as soon as somebody committed.
const LET_IN_FOR: Duration = Duration::from_millis(26);
/// How often it is looked at whether somebody did.
const LET_IN_LOOK: Duration = Duration::from_millis(1);
/// How long after the last sign of another writer the file is still shared with it.
const SHARED_FOR: Duration = Duration::from_secs(5);
/// A BEGIN that takes longer has waited for somebody.
const BEGIN_USUAL: Duration = Duration::from_micros(900);
/// How often the size of the WAL is looked at.
const LOOK_AT_WAL_EVERY: Duration = Duration::from_millis(500);

/// Told whether the work was committed: `None` is yes.
type Answer = Box<dyn FnOnce(Option<StoreError>) + Send>;

/// What a job leaves behind.
enum Done {
    /// Its changes stand, if the commit does.
    Keep(Answer),
    /// It failed, and its caller knows already: its changes must go.
    Undo,
}

/// Work on the database. Given an error instead of a transaction, it only tells its caller.
type Job = Box<dyn FnOnce(Result<&Tx<'_>>) -> Done + Send>;

/// The handle on the thread.
#[derive(Debug)]
pub(crate) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread on its connection.
    pub(crate) fn start(connection: Connection, config: &SqliteConfig) -> Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let mut wal = config.path.as_os_str().to_owned();
        wal.push("-wal");
        let state = Thread::new(connection, config.busy_timeout, wal.into()).map_err(store_error)?;
        let thread = thread::Builder::new()
            .name("pombo-sqlite".to_owned())
            .spawn(move || state.run(queue))
            .map_err(|error| StoreError::Other(Box::new(error)))?;
        Ok(Self { jobs: Some(jobs), thread: Mutex::new(Some(thread)) })
    }

    /// Runs `work` in a transaction. Dropping the future does not stop it.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Tx<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |transaction| match transaction.and_then(|tx| Ok(work(tx)?)) {
            Ok(value) => Done::Keep(Box::new(move |error| {
                // Nobody listens any more where the caller was dropped; the work stands all the same.
                let _ = tell.send(error.map_or(Ok(value), Err));
            })),
            Err(error) => {
                let _ = tell.send(Err(error));
                Done::Undo
            }
        });
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).await.map_err(|_| gone())?;
        told.await.map_err(|_| StoreError::Other("the work panicked; its changes were undone".into()))?
    }
}

fn gone() -> StoreError {
    StoreError::Unavailable("the writer thread has ended".into())
}

impl Drop for Writer {
    /// Waits until everything handed over is committed: the file's lock may be given up only after that.
    fn drop(&mut self) {
        drop(self.jobs.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writer thread of the SQLite store panicked");
        }
    }
}

/// What the thread keeps.
struct Thread {
    connection: Connection,
    busy_timeout: Duration,
    wal: PathBuf,
    wal_looked_at: Instant,
    /// `PRAGMA data_version`: changes when another connection commits, never by our own commits.
    data_version: i64,
    shared_until: Option<Instant>,
    /// When somebody else last committed, or could not have missed the gap.
    let_in_at: Instant,
}

impl Thread {
    fn new(connection: Connection, busy_timeout: Duration, wal: PathBuf) -> rusqlite::Result<Self> {
        let data_version = data_version(&connection)?;
        let now = Instant::now();
        Ok(Self {
            connection,
            busy_timeout,
            wal,
            wal_looked_at: now,
            data_version,
            shared_until: None,
            let_in_at: now,
        })
    }

    fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        while let Some(first) = queue.blocking_recv() {
            self.transact(first, &mut queue);
            self.look_for_others();
            self.bound_the_wal();
            if self.is_shared() {
                self.leave_free();
            }
        }
    }

    /// Lets applications at the file: a short gap after each commit, and a long one where none of them has used
    /// those for a while. Whether somebody waits cannot be seen, so this costs Pombo up to a third of its writing for
    /// as long as the file counts as shared.
    fn leave_free(&mut self) {
        if self.let_in_at.elapsed() < LET_IN_EVERY {
            return thread::sleep(LEAVE_FREE);
        }
        let end = Instant::now() + LET_IN_FOR;
        loop {
            thread::sleep(LET_IN_LOOK);
            if self.look_for_others() || Instant::now() >= end {
                break;
            }
        }
        self.let_in_at = Instant::now();
    }

    fn transact(&mut self, first: Job, queue: &mut mpsc::Receiver<Job>) {
        if let Err(error) = self.begin() {
            let waiting = std::iter::from_fn(|| queue.try_recv().ok()).take(GROUP_MAX);
            for job in std::iter::once(first).chain(waiting) {
                job(Err(store_error(repeat(&error))));
            }
            return;
        }
        let limit = if self.is_shared() { SHARED_GROUP_TIME_MAX } else { GROUP_TIME_MAX };
        let end = Instant::now() + limit;
        let mut answers = Vec::new();
        let mut next = Some(first);
        let mut count = 0;
        while let Some(job) = next {
            if let Err(error) = self.run_one(job, &mut answers) {
                return self.lose(answers, &error);
            }
            count += 1;
            next = if count < GROUP_MAX && Instant::now() < end { queue.try_recv().ok() } else { None };
        }
        match self.execute("COMMIT") {
            Ok(()) => answers.into_iter().for_each(|answer| answer(None)),
            Err(error) => self.lose(answers, &error),
        }
    }

    fn begin(&mut self) -> rusqlite::Result<()> {
        let began = Instant::now();
        let end = began + self.busy_timeout;
        // Our own patience instead of SQLite's: its looks are up to 100 ms apart, and an application that
        // writes without pause would starve us.
        self.connection.busy_timeout(Duration::ZERO)?;
        let result = loop {
            match self.execute("BEGIN IMMEDIATE") {
                Err(error)
                    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                        && Instant::now() < end =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                result => break result,
            }
        };
        self.connection.busy_timeout(self.busy_timeout)?;
        if began.elapsed() > BEGIN_USUAL {
            self.shared_until = Some(Instant::now() + SHARED_FOR);
        }
        result
    }

    /// Runs one job in a savepoint. An error means that the whole transaction is lost.
    fn run_one(&self, job: Job, answers: &mut Vec<Answer>) -> rusqlite::Result<()> {
        self.execute("SAVEPOINT pombo_item")?;
        let tx = Tx { connection: &self.connection, now: clock::now() };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(Ok(&tx))));
        match done {
            Ok(Done::Keep(answer)) => answers.push(answer),
            Ok(Done::Undo) => self.undo_one()?,
            Err(_) => {
                tracing::error!("work for the SQLite store panicked; its changes were undone");
                self.undo_one()?;
            }
        }
        self.execute("RELEASE pombo_item")
    }

    /// SQLite rolls the whole transaction back by itself after some failures (a full disk, no memory); then
    /// there is no savepoint any more, and this fails.
    fn undo_one(&self) -> rusqlite::Result<()> {
        self.execute("ROLLBACK TO pombo_item")
    }

    /// The transaction is lost with everything in it.
    fn lose(&self, answers: Vec<Answer>, error: &rusqlite::Error) {
        tracing::warn!(%error, jobs = answers.len(), "a transaction of the SQLite store was rolled back");
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK")
        {
            tracing::error!(%error, "the SQLite store cannot roll back");
        }
        for answer in answers {
            answer(Some(commit_error(repeat(error))));
        }
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute(()).map(drop)
    }

    /// Whether somebody else has committed since the last look.
    fn look_for_others(&mut self) -> bool {
        let Ok(version) = data_version(&self.connection) else { return false };
        let committed = version != self.data_version;
        if committed {
            let now = Instant::now();
            self.data_version = version;
            self.shared_until = Some(now + SHARED_FOR);
            self.let_in_at = now;
        }
        committed
    }

    fn is_shared(&self) -> bool {
        self.shared_until.is_some_and(|until| Instant::now() < until)
    }

    /// SQLite's own checkpoints never wait, so a reader that is always there lets the WAL grow without end.
    /// Reads end within a second, so waiting a moment for them works.
    fn bound_the_wal(&mut self) {
        if self.wal_looked_at.elapsed() < LOOK_AT_WAL_EVERY {
            return;
        }
        self.wal_looked_at = Instant::now();
        if std::fs::metadata(&self.wal).map_or(0, |wal| wal.len()) <= WAL_BYTES_MAX {
            return;
        }
        let checkpoint = || -> rusqlite::Result<()> {
            self.connection.busy_timeout(Duration::from_millis(50))?;
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
            self.connection.busy_timeout(self.busy_timeout)
        };
        if let Err(error) = checkpoint() {
            tracing::debug!(%error, "the WAL is long and cannot be cut back yet");
        }
    }
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row((), |row| row.get(0))
}
