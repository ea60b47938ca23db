//! The walk on PostgreSQL: several processes, and a server that crashes.

use std::sync::Arc;
use std::time::Duration;

use pombo_domain::secret::SecretText;
use pombo_engine::PublishError;
use pombo_store::Store;
use pombo_store::keyring::Keyring;
use pombo_store_postgres::{PostgresConfig, PostgresStore};
use pombo_testkit::database::TempPostgres;
use pombo_testkit::postgres::PostgresServer;
use pombo_testkit::receiver::Answer;

use crate::faulty::Faults;
use crate::walk::{LIMIT, Walk, config, draft, egress, start_engine, until};

async fn connect(url: String) -> Arc<dyn Store> {
    let config = PostgresConfig::new(SecretText::new(url), Arc::new(Keyring::new(&[7; 32])));
    PostgresStore::connect(config).await.expect("a store")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_the_work_and_one_takes_over() {
    let database = TempPostgres::create().await;
    let walk = Walk::on(connect(database.url()).await, config(), egress()).await;
    let other =
        start_engine(&connect(database.url()).await, &Arc::new(Faults::default()), config(), egress()).await;
    for n in 0..16 {
        walk.endpoint(&format!("/{n}")).await;
    }
    let there = other.handle();
    for round in 0..10 {
        let batch = |from: u32| (from..from + 5).map(draft).collect();
        let (here, there) = tokio::join!(
            walk.engine.publish_all(batch(round * 10)),
            there.publish_all(batch(round * 10 + 5))
        );
        let answers = here.into_iter().chain(there);
        answers.for_each(|answer| assert_eq!(answer.expect("accepted").deliveries, 16));
    }
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 100 * 16, "each once");
    other.stop(LIMIT).await;
    walk.publish_many(5).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 105 * 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_nothing_and_the_walk_goes_on_alone() {
    let mut server = PostgresServer::start().await.expect("a server starts");
    let walk = Walk::on(connect(server.url()).await, config(), egress()).await;
    walk.endpoint_with("/a", |settings| settings.max_concurrency = 4).await;
    walk.receiver.script("/a", Answer::status(200).after(Duration::from_millis(20)).into());
    let mut accepted = walk.publish_many(100).await;
    walk.hits("/a", 20).await;
    server.crash().await.expect("it crashes");
    let away = walk.engine.publish(draft(100)).await.expect_err("away");
    assert!(matches!(away, PublishError::Unavailable | PublishError::OutcomeUnknown), "{away:?}");
    server.start_again().await.expect("it starts again");
    let again = async || walk.engine.publish(draft(101)).await.map_err(|error| error.to_string());
    accepted.push(until(again).await);
    walk.is_sound().await;
    let counts = walk.receiver.counts();
    let lost: Vec<_> = accepted.iter().filter(|event| !counts.contains_key(&event.id.to_string())).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let repeated = counts.values().filter(|count| **count > 1).count();
    assert!(repeated <= 101 - 20 + 8, "{repeated} came twice");
    assert!(walk.faults.calls("open_session") >= 2, "no session outlives a restart");
}
