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
/// How long the application works beside it.
const LENGTH: Duration = Duration::from_secs(8);
/// Pause of the application between two transactions.
const PACE: Duration = Duration::from_millis(5);
/// Of a hundred of its transactions, 99 take no longer.
const P99_MAX: Duration = Duration::from_millis(100);

/// The only test that measures a time, so nothing else runs beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn application_writes_to_the_same_file_without_waiting_long() -> Result<()> {
    let stage = Stage::alone(Kind::Sqlite).await?;
    let mut process = stage.launch.start().await?;
    let trial = Trial::prepare(stage, process.api()).await?;
    let load = Load::start(FULL, &[process.api().clone()], &trial.stage.database, &trial.records);
    trial.wait_for_arrivals(500).await?;
    let (path, records) = (trial.stage.database.path()?, trial.records.clone());
    let before = trial.records.arrivals();
    let working = tokio::task::spawn_blocking(move || -> Result<Vec<Duration>> {
        let mut connection = shop::connect(&path)?;
        let (since, mut times) = (Instant::now(), Vec::new());
        while since.elapsed() < LENGTH {
            let key = format!("beside-{}", times.len());
            records.attempt_by_shop(&key);
            // SQLITE_BUSY would end the test here.
            times.push(shop::order_in_sqlite(&mut connection, &key, End::Commit)?);
            std::thread::sleep(PACE);
        }
        Ok(times)
    });
    let mut times = working.await??;
    let arrived = trial.records.arrivals() - before;
    load.stop().await?;
    times.sort_unstable();
    ensure!(times.len() >= 200, "only {} transactions: the numbers say nothing", times.len());
    ensure!(arrived >= 500, "only {arrived} arrivals meanwhile: that is no load");
    let p99 = times[times.len() * 99 / 100];
    ensure!(p99 < P99_MAX, "p99 is {p99:?} over {} transactions beside {arrived} arrivals", times.len());
    trial.settle(&mut process, 0, 0).await
}
