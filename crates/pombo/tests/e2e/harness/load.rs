//! Publishers that keep going through every fault, by the API and by the outbox.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pombo_testkit::api::Api;
use serde_json::json;
use sqlx::PgConnection;
use tokio::task::JoinSet;

use super::database::Database;
use super::records::Records;
use super::shop::{self, End};

/// Every so many-th order of the shop is rolled back.
const ROLLED_BACK_EVERY: usize = 5;
/// Between two tries of what failed.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How long after the stop a client still tries to have its last event answered.
const LAST_ANSWER_LIMIT: Duration = Duration::from_secs(40);

/// How much is published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Volume {
    /// Clients of the API; every fourth never repeats an event whose answer was lost.
    pub(crate) api_clients: usize,
    /// Writers of the outbox.
    pub(crate) shops: usize,
    /// Pause of each between two events.
    pub(crate) pace: Duration,
}

impl Default for Volume {
    /// A few hundred events a second: enough that something is always under way, on two busy cores.
    fn default() -> Self {
        Self { api_clients: 8, shops: 2, pace: Duration::from_millis(20) }
    }
}

/// Running publishers. They stop when told to, or when dropped.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    publishers: JoinSet<()>,
}

impl Load {
    /// Starts publishers; client `n` of the API calls `apis[n % apis.len()]`.
    pub(crate) fn start(volume: Volume, apis: &[Api], database: &Database, records: &Arc<Records>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut publishers = JoinSet::new();
        let publisher = |name: String| Publisher {
            name,
            pace: volume.pace,
            stop: Arc::clone(&stop),
            records: Arc::clone(records),
        };
        for (client, api) in apis.iter().cycle().take(volume.api_clients).enumerate() {
            let patient = client % 4 != 3;
            publishers.spawn(publisher(format!("api{client}")).by_api(api.clone(), patient));
        }
        for number in 0..volume.shops {
            let publisher = publisher(format!("shop{number}"));
            match database {
                Database::Sqlite(file) => {
                    let path = file.path();
                    publishers.spawn_blocking(move || publisher.by_sqlite(&path));
                }
                Database::Postgres { options, .. } => {
                    publishers.spawn(publisher.by_postgres(Database::at((**options).clone())));
                }
            }
        }
        Self { stop, publishers }
    }

    /// Lets every publisher finish what it has begun.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.publishers.join_next().await {
            ended.context("a publisher panicked")?;
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Those on threads of their own cannot be aborted.
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Publisher {
    name: String,
    pace: Duration,
    stop: Arc<AtomicBool>,
    records: Arc<Records>,
}

impl Publisher {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn key(&self, n: usize) -> String {
        format!("{}-{n}", self.name)
    }

    async fn by_api(self, api: Api, patient: bool) {
        for n in 0.. {
            if self.stopped() {
                return;
            }
            let key = self.key(n);
            self.records.attempt(&key);
            self.publish(&api, &key, patient).await;
            tokio::time::sleep(self.pace).await;
        }
    }

    /// Publishes until it is answered, always under the same `id`; an impatient client leaves it at one try.
    async fn publish(&self, api: &Api, key: &str, patient: bool) {
        let event = json!({"type": "order.paid", "id": key, "data": {"key": key}});
        let mut stopped_at = None;
        loop {
            match api.post("/v1/events", &event).await {
                Ok(answer) if matches!(answer.status, 200 | 202) => return self.records.acknowledge(key),
                Ok(answer) if (400..500).contains(&answer.status) && answer.status != 429 => {
                    return self.records.complain(format!("{key}: {} {}", answer.status, answer.text()));
                }
                _ if !patient => return,
                _ => {}
            }
            if self.stopped() && stopped_at.get_or_insert_with(Instant::now).elapsed() > LAST_ANSWER_LIMIT {
                return self
                    .records
                    .complain(format!("{key}: no answer {LAST_ANSWER_LIMIT:?} after the end"));
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    async fn by_postgres(self, database: Database) {
        let mut connection: Option<PgConnection> = None;
        for n in 0.. {
            if self.stopped() {
                return;
            }
            let Some(open) = &mut connection else {
                connection = database.connect().await.ok();
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            };
            let key = self.key(n);
            self.records.attempt_by_shop(&key);
            match shop::order_in_postgres(open, &key, end_of(n)).await {
                Ok(()) => self.ended(&key, end_of(n)),
                // Nobody knows yet what became of it: the shop's table will tell at the end.
                Err(_) => connection = None,
            }
            tokio::time::sleep(self.pace).await;
        }
    }

    fn by_sqlite(self, path: &Path) {
        let mut connection = match shop::connect(path) {
            Ok(connection) => connection,
            Err(error) => return self.records.complain(format!("the shop cannot open the file: {error}")),
        };
        for n in 0.. {
            if self.stopped() {
                return;
            }
            let key = self.key(n);
            self.records.attempt_by_shop(&key);
            match shop::order_in_sqlite(&mut connection, &key, end_of(n)) {
                Ok(_) => self.ended(&key, end_of(n)),
                Err(error) => self.records.complain(format!("the shop's transaction failed: {error}")),
            }
            std::thread::sleep(self.pace);
        }
    }

    fn ended(&self, key: &str, end: End) {
        match end {
            End::Commit => self.records.acknowledge(key),
            End::RollBack => self.records.refuse(key),
        }
    }
}

fn end_of(n: usize) -> End {
    if n % ROLLED_BACK_EVERY == ROLLED_BACK_EVERY - 1 { End::RollBack } else { End::Commit }
}
