//! Two processes on one PostgreSQL: what happens to one is made good by the other.

use anyhow::Result;
use pombo_domain::limits::CONCURRENCY_DEFAULT;
use pombo_testkit::process::{Launch, Process};

use crate::harness::calls::{SOON, eventually};
use crate::harness::database::Kind;
use crate::harness::load::Load;
use crate::harness::records::PATHS;
use crate::harness::stage::{Stage, with_short_lease};
use crate::harness::trial::Trial;

/// Arrivals before and after each event of the story.
const ARRIVALS: usize = 200;

/// Two processes under load. `first` will be harmed.
struct Pair {
    trial: Trial,
    load: Load,
    first: Process,
    first_launch: Launch,
    first_session: i64,
    second: Process,
}

impl Pair {
    async fn start() -> Result<Self> {
        let stage = Stage::new(Kind::Postgres).await?;
        let stage = stage.launched(with_short_lease);
        let first_launch = with_short_lease(stage.second_launch()?);
        let first = first_launch.start().await?;
        let first_session = stage.database.newest_session().await?;
        let second = stage.launch.start().await?;
        let trial = Trial::prepare(stage, second.api()).await?;
        let load = trial.load(&[first.api().clone(), second.api().clone()]);
        trial.wait_for_arrivals(ARRIVALS).await?;
        Ok(Self { trial, load, first, first_launch, first_session, second })
    }

    /// Waits until nothing belongs to the first session any more, which the second process sees to.
    async fn wait_for_take_over(trial: &Trial, session: i64) -> Result<()> {
        let taken_over = || async {
            Ok(trial.stage.database.live().await?.iter().all(|live| live.owner != Some(session)))
        };
        eventually(SOON, "the other process takes over", taken_over).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_process_is_replaced_by_the_other() -> Result<()> {
    let Pair { trial, load, first, first_launch, first_session, mut second } = Pair::start().await?;
    first.kill().await?;
    let exposed = trial.exposed(|owner| owner == Some(first_session)).await?;
    Pair::wait_for_take_over(&trial, first_session).await?;
    trial.wait_for_arrivals(ARRIVALS).await?;
    let _first = first_launch.start().await?;
    load.stop().await?;
    trial.settle(&mut second, exposed, 1).await
}

/// The frozen process does not know that its lease has run out: what it held is sent by the other one, and when it
/// goes on it must see that before it writes to a socket or to the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_frozen_past_its_lease_does_no_harm_when_it_goes_on() -> Result<()> {
    let Pair { trial, load, mut first, first_session, mut second, .. } = Pair::start().await?;
    first.freeze()?;
    let exposed = trial.exposed(|owner| owner == Some(first_session)).await?;
    Pair::wait_for_take_over(&trial, first_session).await?;
    trial.wait_for_arrivals(ARRIVALS).await?;
    first.thaw()?;
    first.wait_ready(SOON).await?;
    trial.wait_for_arrivals(ARRIVALS).await?;
    load.stop().await?;
    first.must_run()?;
    // No sender can prevent it: a process stopped between its lease check and the write writes when it goes on.
    let about_to_write = PATHS.len() * usize::from(CONCURRENCY_DEFAULT);
    trial.settle(&mut second, exposed + about_to_write, 1).await
}
