//! What people do to deliveries.

use std::time::Duration;

use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::event::Draft;
use pombo_engine::{ActError, EngineConfig, Retried};
use pombo_store::endpoints::StatusChange;
use pombo_testkit::receiver::{Answer, Script};

use crate::faulty::Fault;
use crate::walk::{Walk, config, delivery_id, draft, egress, person, schedule};

const HOUR: u64 = 3_600_000;

/// One attempt at once, the next an hour later.
async fn patient() -> Walk {
    let config = EngineConfig { retry: schedule(&[0, HOUR]), ..config() };
    Walk::with(config, egress()).await
}

fn status_of(retried: Result<Retried, ActError>) -> Option<u16> {
    match retried.expect("an attempt is made") {
        Retried::Attempted(attempt) => {
            assert!(attempt.manual);
            attempt.status
        }
        Retried::Revived => panic!("it was revived"),
    }
}

#[tokio::test]
async fn a_waiting_delivery_is_tried_now_and_failure_leaves_its_schedule() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Script::sequence([503, 502, 200].map(Answer::status)));
    let event = walk.publish(1).await;
    let before = walk.delivery(&event, endpoint.id, DeliveryStatus::Retrying).await;
    let id = delivery_id(&event, endpoint.id);
    assert_eq!(status_of(walk.engine.retry(id, &person(), false).await), Some(502));
    let after = walk.delivery(&event, endpoint.id, DeliveryStatus::Retrying).await;
    assert_eq!((after.due_at, after.attempts), (before.due_at, 1));
    assert_eq!(status_of(walk.engine.retry(id, &person(), false).await), Some(200));
    walk.delivered(&event, endpoint.id).await;
    walk.is_sound().await;
}

#[tokio::test]
async fn a_parked_delivery_needs_force_and_keeps_the_time_it_waits_for() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Script::sequence([503, 503, 200].map(Answer::status)));
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    let at = walk.engine.now().plus(Duration::from_millis(HOUR)).to_millis_precision();
    let later = Draft { deliver_at: Some(at), ..draft(1) };
    let (later, plain) = (walk.engine.publish(later).await.expect("accepted"), walk.publish(2).await);
    for event in [&later, &plain] {
        walk.delivery(event, endpoint.id, DeliveryStatus::Paused).await;
        let id = delivery_id(event, endpoint.id);
        let refused = walk.engine.retry(id, &person(), false).await.expect_err("paused");
        assert!(matches!(refused, ActError::EndpointNotActive), "{refused:?}");
        assert_eq!(status_of(walk.engine.retry(id, &person(), true).await), Some(503));
    }
    let parked = walk.delivery(&plain, endpoint.id, DeliveryStatus::Paused).await;
    assert_eq!((parked.attempts, parked.not_before), (0, None));
    let waits_for = async || {
        let record =
            walk.store.delivery(delivery_id(&later, endpoint.id), None).await.expect("read").expect("exists");
        let due_then = record.due_at == Some(at) || record.not_before == Some(at);
        if due_then { Ok(()) } else { Err(format!("{record:?}")) }
    };
    crate::walk::until(waits_for).await;
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    walk.delivered(&plain, endpoint.id).await;
    assert_eq!(walk.receiver.hits().len(), 3, "the other waits for its hour");
}

#[tokio::test]
async fn a_delivery_that_is_being_sent_is_not_sent_beside() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Answer::status(200).after(Duration::from_millis(400)).into());
    let event = walk.publish(1).await;
    walk.hits("/a", 1).await;
    let refused = walk.engine.retry(delivery_id(&event, endpoint.id), &person(), false).await;
    assert!(matches!(refused, Err(ActError::BeingSent)), "{refused:?}");
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_dead_delivery_lives_again_and_a_delivered_one_is_only_sent() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Script::sequence([400, 200, 500].map(Answer::status)));
    let event = walk.publish(1).await;
    walk.delivery(&event, endpoint.id, DeliveryStatus::Dead).await;
    let id = delivery_id(&event, endpoint.id);
    assert_eq!(walk.engine.retry(id, &person(), false).await.expect("revived"), Retried::Revived);
    walk.delivered(&event, endpoint.id).await;
    assert_eq!(status_of(walk.engine.retry(id, &person(), false).await), Some(500));
    let recorded = async || match walk.attempts(&event, endpoint.id).await.len() {
        3 => Ok(()),
        count => Err(format!("{count} attempts")),
    };
    crate::walk::until(recorded).await;
    walk.delivered(&event, endpoint.id).await;
    walk.is_sound().await;
}

#[tokio::test]
async fn a_person_does_not_wait_for_the_receivers_pause() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    let busy = Answer::status(429).header("retry-after", "3600");
    walk.receiver.script("/a", Script::sequence([busy, Answer::status(200)]));
    let event = walk.publish(1).await;
    walk.delivery(&event, endpoint.id, DeliveryStatus::Retrying).await;
    let id = delivery_id(&event, endpoint.id);
    assert_eq!(status_of(walk.engine.retry(id, &person(), false).await), Some(200));
    walk.delivered(&event, endpoint.id).await;
}

#[tokio::test]
async fn a_manual_claim_whose_answer_is_lost_goes_back_to_its_schedule() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Answer::status(503).into());
    let event = walk.publish(1).await;
    let before = walk.delivery(&event, endpoint.id, DeliveryStatus::Retrying).await;
    walk.faults.next("claim_manually", Fault::UnknownDone);
    let id = delivery_id(&event, endpoint.id);
    walk.engine.retry(id, &person(), false).await.expect_err("the answer is lost");
    let after = walk.delivery(&event, endpoint.id, DeliveryStatus::Retrying).await;
    assert_eq!(after.due_at, before.due_at);
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_test_reaches_a_paused_endpoint_and_leaves_nothing_behind() {
    let walk = patient().await;
    let endpoint = walk.endpoint("/a").await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    let attempt = walk.engine.send_test(endpoint.id).await.expect("a test is sent");
    assert_eq!(attempt.status, Some(200));
    let hit = walk.hits("/a", 1).await.remove(0);
    assert_eq!(hit.json().expect("JSON")["type"], "pombo.test");
    let unknown = pombo_domain::id::EndpointId(uuid::Uuid::from_u128(u128::MAX));
    assert!(matches!(walk.engine.send_test(unknown).await, Err(ActError::NotFound)));
    walk.is_sound().await;
}
