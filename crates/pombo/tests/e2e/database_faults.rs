//! The database crashes, cuts connections or is away, and the program goes on by itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use pombo_domain::limits;
use pombo_testkit::api::Api;
use pombo_testkit::postgres::PostgresServer;
use pombo_testkit::process::{Launch, Process};
use pombo_testkit::proxy::{Fault, FaultProxy};
use rusqlite::TransactionBehavior;
use sqlx::{ConnectOptions, Connection, Row};

use crate::harness::calls::{SOON, eventually};
use crate::harness::database::{Database, Kind};
use crate::harness::shop;
use crate::harness::stage::{BINARY, Stage, with_short_lease};
use crate::harness::trial::Trial;

const ARRIVALS: usize = 150;
/// How long the database is away: a scaled-down version of two minutes.
const OUTAGE: Duration = Duration::from_secs(10);
/// Longer than the short lease.
const LONG_OUTAGE: Duration = Duration::from_secs(12);

/// Waits until the program says that it cannot work.
async fn wait_until_unready(api: &Api) -> Result<()> {
    let unready = || async { Ok(api.get("/readyz").await?.status == 503) };
    eventually(SOON, "readyz fails while the database is away", unready).await
}

/// PostgreSQL is stopped as by a power cut, twice, and comes back; the program is not restarted. Before anyone can
/// change it, the test reads from the crashed database what it has forgotten: deliveries that were taken and whose
/// asynchronous settling was lost, in flight or unflushed. Only these may come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_postgres_loses_nothing_and_the_program_goes_on() -> Result<()> {
    const CRASHES: usize = 2;
    let mut server = PostgresServer::start().await?;
    let stage = Stage::on(Database::at(server.options())).await?;
    let mut process = stage.launch.start().await?;
    let trial = Trial::prepare(stage, process.api()).await?;
    let load = trial.load(&[process.api().clone()]);
    let mut repeatable = 0;
    for _ in 0..CRASHES {
        trial.wait_for_arrivals(ARRIVALS).await?;
        let before = trial.records.arrivals();
        server.crash().await?;
        trial.wait_until_quiet().await?;
        let sent_meanwhile = trial.records.arrivals() - before;
        server.start_hidden().await?;
        let exposed = trial.exposed_in(&Database::at(server.socket_options()), |_| true).await?;
        // In flight and unflushed, and what settled in the last 0.6 s (three times `wal_writer_delay`).
        ensure!(exposed <= limits::UNSETTLED_MAX + ARRIVALS, "{exposed} taken and forgotten");
        ensure!(sent_meanwhile <= limits::UNSETTLED_MAX, "{sent_meanwhile} sent without a database");
        repeatable += exposed;
        server.start_again().await?;
    }
    trial.wait_for_arrivals(ARRIVALS).await?;
    load.stop().await?;
    trial.settle(&mut process, repeatable, CRASHES).await
}

/// Connections of the program are terminated from the server's side, those first that are about to commit. The
/// outcome of such a commit is unknown; the same is then written again, and the receivers never notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_terminated_at_commit_lose_and_repeat_nothing() -> Result<()> {
    let (stage, mut process) = Stage::running(Kind::Postgres).await?;
    let trial = Trial::prepare(stage, process.api()).await?;
    let load = trial.load(&[process.api().clone()]);
    let mut terminated = Terminated::default();
    let mut connection = trial.stage.database.connect().await?;
    let goal = trial.records.arrivals() + 10 * ARRIVALS;
    let progress = async {
        while trial.records.arrivals() < goal || terminated.writing < 20 {
            terminated.count(&mut connection).await?;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON * 2, progress).await??;
    connection.close().await?;
    load.stop().await?;
    trial.settle(&mut process, 0, 0).await
}

#[derive(Debug, Default)]
struct Terminated {
    /// Backends that had something to commit.
    writing: usize,
    any: usize,
}

impl Terminated {
    /// Ends one connection of the program: one that is inside a writing transaction where there is one now.
    async fn count(&mut self, connection: &mut sqlx::PgConnection) -> Result<()> {
        const ONE: &str = "SELECT pg_terminate_backend(pid), writing FROM ( \
             SELECT pid, backend_xid IS NOT NULL AS writing FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name <> 'shop' AND backend_type = 'client backend' \
             ORDER BY writing DESC, random() LIMIT 1) AS chosen";
        for row in sqlx::query(ONE).fetch_all(connection).await? {
            self.any += 1;
            self.writing += usize::from(row.try_get::<bool, _>(1)?);
        }
        Ok(())
    }
}

/// How the database is away.
#[derive(Debug, Clone, Copy)]
enum Away {
    /// Packets vanish.
    Blackhole,
    /// Connections are reset, new ones refused.
    Down,
}

/// A trial whose program reaches its database only through a proxy, and the way there.
async fn behind_a_proxy(change: impl Fn(Launch) -> Launch) -> Result<(Trial, Process, FaultProxy)> {
    let stage = Stage::new(Kind::Postgres).await?;
    let Database::Postgres { options, .. } = &stage.database else { unreachable!("it was just made") };
    let proxy = FaultProxy::start(format!("{}:{}", options.get_host(), options.get_port()).parse()?).await?;
    let url = options.clone().host("127.0.0.1").port(proxy.address().port()).to_url_lossy();
    let launch = change(Launch::serve(BINARY, url.as_str())?);
    let process = launch.start().await?;
    let trial = Trial::prepare(stage.launched(|_| launch), process.api()).await?;
    Ok((trial, process, proxy))
}

/// The database is away for `length` under load. Returns how many deliveries were taken and not recorded meanwhile.
async fn go_away(
    trial: &Trial,
    api: &Api,
    proxy: &FaultProxy,
    away: Away,
    length: Duration,
) -> Result<usize> {
    trial.wait_for_arrivals(ARRIVALS).await?;
    let outage = tokio::time::sleep(length);
    match away {
        Away::Blackhole => proxy.set_both(Fault::Blackhole),
        Away::Down => proxy.down(),
    }
    wait_until_unready(api).await?;
    trial.wait_until_quiet().await?;
    let exposed = trial.exposed(|_| true).await?;
    ensure!(exposed <= limits::UNSETTLED_MAX, "{exposed} taken and not recorded");
    outage.await;
    proxy.heal();
    Ok(exposed)
}

async fn short_outage(away: Away) -> Result<()> {
    let (trial, mut process, proxy) = behind_a_proxy(|launch| launch).await?;
    let load = trial.load(&[process.api().clone()]);
    go_away(&trial, process.api(), &proxy, away, OUTAGE).await?;
    process.wait_ready(SOON).await?;
    trial.wait_for_arrivals(ARRIVALS).await?;
    load.stop().await?;
    // The lease outlives the outage, so every result waits in memory and is written afterwards.
    trial.settle(&mut process, 0, 0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_that_was_down_is_found_again_and_nothing_is_repeated() -> Result<()> {
    short_outage(Away::Down).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_that_was_silent_is_found_again_and_nothing_is_repeated() -> Result<()> {
    short_outage(Away::Blackhole).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_longer_than_the_lease_repeats_only_what_was_unsettled() -> Result<()> {
    let (trial, mut process, proxy) = behind_a_proxy(with_short_lease).await?;
    let load = trial.load(&[process.api().clone()]);
    let exposed = go_away(&trial, process.api(), &proxy, Away::Down, LONG_OUTAGE).await?;
    process.wait_ready(SOON).await?;
    trial.wait_for_arrivals(ARRIVALS).await?;
    load.stop().await?;
    trial.settle(&mut process, exposed, 1).await
}

/// Another application keeps a write transaction open on the SQLite file for longer than anyone should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_file_held_by_an_application_is_used_again_when_it_is_free() -> Result<()> {
    let (stage, mut process) = Stage::running(Kind::Sqlite).await?;
    let trial = Trial::prepare(stage, process.api()).await?;
    let volume = crate::harness::load::Volume { shops: 0, ..Default::default() };
    let load = crate::harness::load::Load::start(
        volume,
        &[process.api().clone()],
        &trial.stage.database,
        &trial.records,
    );
    trial.wait_for_arrivals(ARRIVALS).await?;
    let path = trial.stage.database.path()?;
    let (free, held) = std::sync::mpsc::channel::<()>();
    let holder = tokio::task::spawn_blocking(move || -> Result<()> {
        let mut connection = shop::connect(&path)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Ends early where the test fails and drops its end.
        let _ = held.recv_timeout(OUTAGE);
        Ok(transaction.rollback()?)
    });
    trial.wait_until_quiet().await?;
    let exposed = trial.exposed(|_| true).await?;
    ensure!(exposed <= limits::UNSETTLED_MAX, "{exposed} taken and not recorded");
    holder.await??;
    drop(free);
    trial.wait_for_arrivals(ARRIVALS).await?;
    load.stop().await?;
    trial.settle(&mut process, 0, 0).await
}
