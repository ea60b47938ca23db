//! Stopping in order, and starting again on the same database.

use std::sync::Arc;
use std::time::Duration;

use pombo_domain::delivery::DeliveryStatus;
use pombo_engine::{Engine, EngineConfig, EngineError, PublishError, Readiness};
use pombo_testkit::receiver::Answer;

use crate::walk::{LIMIT, Walk, config, draft, egress, start_engine};

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight_and_hands_back_the_rest() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 1).await;
    walk.receiver.script("/a", Answer::status(200).after(Duration::from_millis(400)).into());
    let events = walk.publish_many(50).await;
    walk.hits("/a", 1).await;
    let Walk { engine, running, store, faults, receiver, database: _database } = walk;
    running.stop(LIMIT).await;
    assert_eq!(engine.readiness(), Readiness::Draining);
    let refused = engine.publish(draft(99)).await.expect_err("it has stopped");
    assert!(matches!(refused, PublishError::Stopping), "{refused:?}");
    assert_eq!(receiver.hits().len(), 1, "nothing was begun after the stop");
    let mut statuses = Vec::new();
    for event in &events {
        let id = crate::walk::delivery_id(event, endpoint.id);
        statuses.push(store.delivery(id, None).await.expect("read").expect("exists").status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == DeliveryStatus::Delivered).count(), 1);
    assert_eq!(
        statuses.iter().filter(|status| **status == DeliveryStatus::Pending).count(),
        49,
        "{statuses:?}"
    );
    // The next process goes on at once.
    receiver.script("/a", Answer::status(200).into());
    let second = start_engine(&store, &faults, config(), egress()).await;
    let all = receiver.wait_for(LIMIT, |hits| hits.len() >= 50).await.expect("the rest comes");
    assert_eq!(all.len(), 50);
    assert_eq!(receiver.counts().len(), 50);
    second.stop(LIMIT).await;
}

#[tokio::test]
async fn a_stop_without_work_is_quick_however_often() {
    for _ in 0..5 {
        let walk = Walk::start().await;
        walk.endpoint("/a").await;
        walk.publish(1).await;
        walk.hits("/a", 1).await;
        let stopped = tokio::time::timeout(Duration::from_secs(10), walk.running.stop(LIMIT)).await;
        stopped.expect("no hint is missed");
    }
}

#[tokio::test]
async fn events_handed_over_before_the_stop_are_still_answered() {
    let walk = Walk::start().await;
    let engine = walk.engine.clone();
    let publishing = tokio::spawn(async move { engine.publish_all((0..500).map(draft).collect()).await });
    tokio::task::yield_now().await;
    walk.running.stop(LIMIT).await;
    let mut accepted = 0;
    for answer in publishing.await.expect("no panic") {
        match answer {
            Ok(_) => accepted += 1,
            Err(PublishError::Stopping) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    let report = walk.store.check().await.expect("a check works");
    assert_eq!(report.events, accepted, "what was refused is not there, what was accepted is");
}

#[tokio::test]
async fn two_engines_on_one_database_share_the_work() {
    let walk = Walk::start().await;
    let second = start_engine(&walk.store, &walk.faults, config(), egress()).await;
    for n in 0..16 {
        walk.endpoint(&format!("/{n}")).await;
    }
    let (here, there) = (walk.engine.clone(), second.handle());
    let published = tokio::join!(
        here.publish_all((0..30).map(draft).collect()),
        there.publish_all((30..60).map(draft).collect())
    );
    let published: Vec<_> = published.0.into_iter().chain(published.1).collect();
    assert!(published.iter().all(|answer| answer.as_ref().is_ok_and(|event| event.deliveries == 16)));
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 60 * 16, "each once");
    second.stop(LIMIT).await;
    // What was at home there comes here.
    walk.publish_many(5).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 65 * 16);
}

#[tokio::test]
async fn settings_that_cannot_go_together_are_refused_at_start() {
    let walk = Walk::start().await;
    let config = EngineConfig { lease_ttl: Duration::from_secs(10), ..config() };
    let egress = pombo_egress::EgressClient::new(egress()).expect("a client");
    let parts = pombo_engine::EngineParts { store: Arc::clone(&walk.store), egress, config };
    assert!(matches!(Engine::start(parts).await, Err(EngineError::Config(_))));
}
