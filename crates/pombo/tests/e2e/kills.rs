//! The process dies without a word, under load.

use anyhow::{Result, ensure};
use pombo_domain::limits;

use crate::harness::database::Kind;
use crate::harness::on_both;
use crate::harness::stage::{Stage, with_short_lease};
use crate::harness::trial::Trial;

/// How often the process is killed.
const ROUNDS: usize = 4;
/// Arrivals between two kills.
const ARRIVALS: usize = 150;

on_both!(killed_process_loses_nothing_and_repeats_only_what_was_unsettled);

/// API clients and shops publish, the process is killed and started again, several times. Each delivery that was in
/// flight or unflushed at a kill may be taken once more, and nothing else may: the test counts them in the database
/// after each kill.
async fn killed_process_loses_nothing_and_repeats_only_what_was_unsettled(kind: Kind) -> Result<()> {
    let stage = Stage::new(kind).await?.launched(with_short_lease);
    let mut process = stage.launch.start().await?;
    let trial = Trial::prepare(stage, process.api()).await?;
    let load = trial.load(&[process.api().clone()]);
    let mut repeatable = 0;
    for _ in 0..ROUNDS {
        // Nobody else opens sessions: from this one on they are the process's own.
        let session = trial.stage.database.newest_session().await?;
        trial.wait_for_arrivals(ARRIVALS).await?;
        process.kill().await?;
        let exposed = trial.exposed(|owner| owner.is_some_and(|owner| owner >= session)).await?;
        ensure!(exposed <= limits::UNSETTLED_MAX, "{exposed} unsettled at a kill");
        repeatable += exposed;
        process = trial.stage.launch.start().await?;
    }
    trial.wait_for_arrivals(ARRIVALS).await?;
    load.stop().await?;
    trial.settle(&mut process, repeatable, ROUNDS).await
}
