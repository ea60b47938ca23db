//! An application and Pombo in one SQLite file.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::harness::database::Kind;
use crate::harness::load::{Load, Volume};
use crate::harness::shop::{self, End};
use crate::harness::stage::Stage;
use crate::harness::trial::Trial;

/// Full load: clients that wait for nothing.
const FULL: Volume = Volume { api_clients: 32, shops: 0, pace: Duration::ZERO };
/// How long the application works beside it, each time it is measured.
const LENGTH: Duration = Duration::from_secs(5);
/// Times it is measured: what Pombo does to the application shows each time, what other programs on the machine do,
/// not.
const TIMES: usize = 3;
/// Pause of the application between two transactions.
const PACE: Duration = Duration::from_millis(5);
/// Of a hundred of its transactions, 99 take no longer.
const P99_MAX: Duration = Duration::from_millis(100);

/// The shop's tables in a file without Pombo.
const CONTROL: &str = "PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS shop_order (key text PRIMARY KEY); \
     CREATE TABLE IF NOT EXISTS pombo_outbox (type text, data text)";

/// The only test that measures a time, so no other test runs beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn application_writes_to_the_same_file_without_waiting_long() -> Result<()> {
    let stage = Stage::alone(Kind::Sqlite).await?;
    let mut process = stage.launch.start().await?;
    let trial = Trial::prepare(stage, process.api()).await?;
    let load = Load::start(FULL, &[process.api().clone()], &trial.stage.database, &trial.records);
    trial.wait_for_arrivals(500).await?;
    let mut measured = Vec::new();
    for time in 0..TIMES {
        let before = trial.records.arrivals();
        let p99 = work(&trial, time).await?;
        let good = p99.shared < P99_MAX;
        let arrived = trial.records.arrivals() - before;
        ensure!(arrived >= 300, "only {arrived} arrivals meanwhile: that is no load");
        measured.push((good, p99));
        if good {
            break;
        }
    }
    load.stop().await?;
    ensure!(measured.iter().any(|(good, _)| *good), "each time the p99 was too long: {measured:?}");
    trial.settle(&mut process, 0, 0).await
}

/// 99 of a hundred transactions took no longer.
#[derive(Debug)]
#[expect(dead_code, reason = "`control` is for the eyes of who reads a failure")]
struct P99 {
    /// In the file that Pombo writes to as well.
    shared: Duration,
    /// In a file that nobody else uses, at the same time. A failure shows it, to tell how much was the machine.
    control: Duration,
}

/// The application works for a while, in turn in the shared file and in one of its own.
async fn work(trial: &Trial, time: usize) -> Result<P99> {
    let (path, records) = (trial.stage.database.path()?, trial.records.clone());
    let working = tokio::task::spawn_blocking(move || -> Result<(Vec<Duration>, Vec<Duration>)> {
        let (mut shared, mut control) =
            (shop::connect(&path)?, shop::connect(&path.with_extension("control"))?);
        control.execute_batch(CONTROL)?;
        let (since, mut times, mut control_times) = (Instant::now(), Vec::new(), Vec::new());
        while since.elapsed() < LENGTH {
            let key = format!("beside-{time}-{}", times.len());
            records.attempt_by_shop(&key);
            // SQLITE_BUSY would end the test here.
            times.push(shop::order_in_sqlite(&mut shared, &key, End::Commit)?);
            std::thread::sleep(PACE);
            control_times.push(shop::order_in_sqlite(&mut control, &key, End::Commit)?);
            std::thread::sleep(PACE);
        }
        Ok((times, control_times))
    });
    let (shared, control) = working.await??;
    ensure!(shared.len() >= 50, "only {} transactions: the numbers say nothing", shared.len());
    Ok(P99 { shared: p99(shared), control: p99(control) })
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}
