//! A stage under load: two endpoints that get every event, one of them flaky, and the books on both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use pombo_domain::id::EndpointId;
use pombo_testkit::api::Api;
use pombo_testkit::process::Process;
use pombo_testkit::receiver::{Answer, Script};
use serde_json::json;

use super::calls::{create_endpoint, eager_retries, eventually};
use super::database::Database;
use super::load::{Load, Volume};
use super::records::{PATHS, Records};
use super::shop;
use super::stage::Stage;

/// How long everything that was accepted may take to arrive after the faults are over: a lease, the sweep that
/// notices, and the backlog.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// How long the load may take to get a little further.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);
/// What was sent before a process died or stood still has arrived after this.
const IN_THE_AIR: Duration = Duration::from_millis(300);

/// Without its database, a process may send for a second, and a request may take another (K4).
const QUIET: Duration = Duration::from_millis(2_200);
const QUIET_LIMIT: Duration = Duration::from_secs(15);

/// A stage with endpoints and records.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) stage: Stage,
    pub(crate) records: Arc<Records>,
    endpoints: Vec<EndpointId>,
}

impl Trial {
    /// Makes the endpoints and the shop's table; the program must be running.
    pub(crate) async fn prepare(stage: Stage, api: &Api) -> Result<Self> {
        let records = Arc::new(Records::default());
        let mut endpoints = Vec::new();
        for (number, path) in PATHS.into_iter().enumerate() {
            stage.receiver.script(path, script(number, &records));
            let endpoint =
                json!({"url": stage.receiver.url(path), "retry": eager_retries(), "timeoutMs": 1000});
            endpoints.push(create_endpoint(api, &endpoint).await?.id.parse()?);
        }
        shop::open(&stage.database).await?;
        Ok(Self { stage, records, endpoints })
    }

    /// Starts the usual load on those processes.
    pub(crate) fn load(&self, apis: &[Api]) -> Load {
        Load::start(Volume::default(), apis, &self.stage.database, &self.records)
    }

    /// Waits until so many more requests have been taken: the load is under way.
    pub(crate) async fn wait_for_arrivals(&self, more: usize) -> Result<()> {
        let goal = self.records.arrivals() + more;
        let arrived = || async { Ok(self.records.arrivals() >= goal) };
        eventually(PROGRESS_LIMIT, &format!("{more} more arrivals"), arrived).await
    }

    /// Waits until nothing has been sent for longer than a sender may go on without its database (docs/protocol.md K4).
    pub(crate) async fn wait_until_quiet(&self) -> Result<()> {
        let mut last = (self.stage.receiver.hit_count(), Instant::now());
        let mut quiet = move || {
            let hits = self.stage.receiver.hit_count();
            if hits != last.0 {
                last = (hits, Instant::now());
            }
            last.1.elapsed() > QUIET
        };
        eventually(QUIET_LIMIT, "the sending stops", || std::future::ready(Ok(quiet()))).await
    }

    /// How many deliveries the receivers have taken and the database still counts as unsettled, among those that
    /// `theirs` chooses by owner.
    ///
    /// Asked when the sender is dead, frozen or cut off, these are the ones it had in flight or unflushed: the only
    /// ones that may rightly be taken a second time (docs/protocol.md, "The bound").
    pub(crate) async fn exposed(&self, theirs: impl Fn(Option<i64>) -> bool) -> Result<usize> {
        self.exposed_in(&self.stage.database, theirs).await
    }

    /// The same by another way into the database.
    pub(crate) async fn exposed_in(
        &self,
        database: &Database,
        theirs: impl Fn(Option<i64>) -> bool,
    ) -> Result<usize> {
        // Read first: what the receivers take after this snapshot can only make the number larger.
        let live = database.live().await?;
        tokio::time::sleep(IN_THE_AIR).await;
        let taken = live.iter().filter(|live| theirs(live.owner)).filter(|live| {
            let number = self.endpoints.iter().position(|id| *id == live.endpoint);
            number.is_some_and(|number| self.records.has_taken(number, &live.event.to_string()))
        });
        Ok(taken.count())
    }

    /// Waits until everything that was accepted has arrived and is settled, then compares the books: nothing lost,
    /// nothing unexpected (rolled-back orders stay away), at most `duplicates_max` copies too many, none of them
    /// beyond `each_max` of one delivery, and `pombo check` finds nothing, while the program still runs.
    pub(crate) async fn settle(
        &self,
        process: &mut Process,
        duplicates_max: usize,
        each_max: usize,
    ) -> Result<()> {
        process.must_run()?;
        let database = &self.stage.database;
        self.records.settle_by_shop(&shop::orders(database).await?);
        let settled = || async {
            Ok(self.records.outstanding() == 0
                && database.outbox_len().await? == 0
                && database.live().await?.is_empty())
        };
        if let Err(error) = eventually(DRAIN_LIMIT, "everything has arrived and is settled", settled).await {
            let live = database.describe_live().await?;
            let found = self.records.describe();
            return Err(error.context(format!("{found}\n{live}\nthe log:\n{}", process.log_tail(60))));
        }
        self.records.assert_sound(duplicates_max, each_max);
        if let Err(error) = self.stage.check().await {
            let attempts = database.describe_unaccounted().await?;
            return Err(error.context(format!("{attempts}\nthe log:\n{}", process.log_tail(60))));
        }
        Ok(())
    }
}

/// Always 200 at the steady endpoint; at the flaky one, the first try of some events fails in every way there is.
fn script(endpoint: usize, records: &Arc<Records>) -> Script {
    let records = Arc::clone(records);
    Script::by(move |hit| {
        let body = hit.json().unwrap_or_default();
        let key = body["data"]["key"].as_str().unwrap_or("no key in the body");
        let number = records.count_try(endpoint, key);
        let lot = key.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 16;
        if endpoint == 1 && number == 1 {
            match lot {
                0 => return Answer::status(503),
                1 => return Answer::closed(),
                2 => return Answer::status(429),
                _ => {}
            }
        }
        records.arrive(endpoint, key, hit.webhook_id().unwrap_or("no id"));
        if lot == 3 { Answer::status(200).after(Duration::from_millis(100)) } else { Answer::status(200) }
    })
}
