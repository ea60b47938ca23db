//! Everything one test has: a database, a receiver, and how to start the program.

use std::time::Duration;

use anyhow::{Result, ensure};
use pombo_testkit::process::{Launch, Process};
use pombo_testkit::receiver::Receiver;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::database::{Database, Kind};

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_pombo");
/// How long a command that looks at the database may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// The machine: shared by all tests, except one that measures times.
static MACHINE: RwLock<()> = RwLock::const_new(());

/// One test's database, receiver and program. A test has only one of them, because each holds the machine.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) database: Database,
    pub(crate) receiver: Receiver,
    pub(crate) launch: Launch,
    _machine: Machine,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum Machine {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Stage {
    /// A stage on a database of that kind.
    pub(crate) async fn new(kind: Kind) -> Result<Self> {
        let machine = Machine::Shared(MACHINE.read().await);
        Self::build(Database::create(kind).await, machine).await
    }

    /// A stage on that database.
    pub(crate) async fn on(database: Database) -> Result<Self> {
        let machine = Machine::Shared(MACHINE.read().await);
        Self::build(database, machine).await
    }

    /// A stage during which no other test runs.
    pub(crate) async fn alone(kind: Kind) -> Result<Self> {
        let machine = Machine::Alone(MACHINE.write().await);
        Self::build(Database::create(kind).await, machine).await
    }

    /// A stage with the program running.
    pub(crate) async fn running(kind: Kind) -> Result<(Self, Process)> {
        let stage = Self::new(kind).await?;
        let process = stage.launch.start().await?;
        Ok((stage, process))
    }

    async fn build(database: Database, machine: Machine) -> Result<Self> {
        let launch = Launch::serve(BINARY, &database.url())?;
        Ok(Self { database, receiver: Receiver::start().await?, launch, _machine: machine })
    }

    /// Changes how the program is started.
    #[must_use]
    pub(crate) fn launched(mut self, change: impl FnOnce(Launch) -> Launch) -> Self {
        self.launch = change(self.launch);
        self
    }

    /// Another process on the same database.
    pub(crate) fn second_launch(&self) -> Result<Launch> {
        Ok(Launch::serve(BINARY, &self.database.url())?)
    }

    /// `pombo check`: every invariant, from the database alone.
    pub(crate) async fn check(&self) -> Result<()> {
        let check = Launch::command(BINARY, &["check", "--database", &self.database.url()])?;
        let ended = check.run(COMMAND_LIMIT).await?;
        ensure!(ended.code == Some(0), "pombo check: {:?}\n{}{}", ended.code, ended.stdout, ended.stderr);
        Ok(())
    }
}

/// A lease as short as the settings allow beside attempts of a second (docs/protocol.md K3), so that a test need not
/// wait 45 s for it to run out.
pub(crate) fn with_short_lease(launch: Launch) -> Launch {
    launch.env("POMBO_LEASE__TTL", "9s").env("POMBO_DELIVERY__TIMEOUT", "1s")
}
