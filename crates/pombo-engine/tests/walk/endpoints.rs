//! Endpoints that change while deliveries are under way.

use std::time::Duration;

use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::secret::SecretText;
use pombo_signature::{Signer, SigningSecret, standard};
use pombo_store::endpoints::StatusChange;
use pombo_testkit::receiver::{Answer, Hit, Script};

use crate::walk::{SECRET, Walk, config, egress, person, schedule};

#[tokio::test]
async fn an_endpoint_paused_with_a_hundred_pending_retries_sends_them_all_when_it_is_resumed() {
    let slow = pombo_engine::EngineConfig { retry: schedule(&[0, 300, 300]), ..config() };
    let walk = Walk::with(slow, egress()).await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 32).await;
    let mut answered = 0;
    let script = Script::by(move |_| {
        answered += 1;
        Answer::status(if answered <= 100 { 503 } else { 200 })
    });
    walk.receiver.script("/a", script);
    let events = walk.publish_many(100).await;
    walk.hits("/a", 100).await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    for event in &events {
        let parked = walk.delivery(event, endpoint.id, DeliveryStatus::Paused);
        let done = walk.delivered(event, endpoint.id);
        // A few may have been on their way.
        tokio::select! { _ = parked => {}, _ = done => {} }
    }
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    for event in &events {
        walk.delivered(event, endpoint.id).await;
    }
    walk.is_sound().await;
}

#[tokio::test]
async fn deliveries_of_a_paused_endpoint_wait_and_go_when_it_is_resumed() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    let events = walk.publish_many(100).await;
    for event in &events {
        walk.delivery(event, endpoint.id, DeliveryStatus::Paused).await;
    }
    assert!(walk.receiver.hits().is_empty());
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.counts().len(), 100);
}

#[tokio::test]
async fn a_long_backlog_of_later_times_wakes_without_keeping_what_is_due_waiting() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    walk.publish_many(1).await;
    let in_an_hour = walk.engine.now().plus(Duration::from_secs(3600));
    let later: Vec<_> = (0..400)
        .map(|n| pombo_domain::event::Draft { deliver_at: Some(in_an_hour), ..crate::walk::draft(n) })
        .collect();
    for answer in walk.engine.publish_all(later).await {
        answer.expect("accepted");
    }
    let last = walk.publish(500).await;
    walk.delivery(&last, endpoint.id, DeliveryStatus::Paused).await;
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    let resumed_at = walk.engine.now();
    walk.delivered(&last, endpoint.id).await;
    let took = walk.engine.now().since(resumed_at);
    assert!(took < Duration::from_secs(9), "it took {took:?}, as if each wake waited for the sweep");
    assert_eq!(walk.receiver.hits().len(), 2);
}

#[tokio::test]
async fn a_rotated_secret_signs_the_next_attempt_and_the_old_one_too_during_the_overlap() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.publish(1).await;
    let hits = walk.hits("/a", 1).await;
    assert_eq!(signatures(&hits[0]), [signature(&hits[0], SECRET)]);
    let new = "whsec_YW5vdGhlciBzZWNyZXQgZm9yIHRoZSBwaWdlb24=";
    let overlap = Duration::from_secs(3600);
    let rotated =
        walk.store.rotate_secret(endpoint.id, SecretText::new(new.to_owned()), overlap, &person()).await;
    rotated.expect("rotated").expect("it exists");
    // Even without a hint from whoever rotated it: the commit finds the newer configuration (A3).
    walk.publish(2).await;
    let hits = walk.hits("/a", 2).await;
    assert_eq!(signatures(&hits[1]), [signature(&hits[1], new), signature(&hits[1], SECRET)]);
}

fn signatures(hit: &Hit) -> Vec<String> {
    let all = hit.header("webhook-signature").expect("a signature");
    all.split(' ').map(str::to_owned).collect()
}

fn signature(hit: &Hit, secret: &str) -> String {
    let signer = Signer::new(&SigningSecret::parse(secret).expect("a secret"));
    let at = hit.header("webhook-timestamp").expect("a timestamp").parse().expect("seconds");
    let id = hit.webhook_id().expect("an id");
    let headers = standard::headers(&[&signer], id, at, &hit.body);
    headers.into_iter().find(|(name, _)| *name == "webhook-signature").expect("a signature").1
}

#[tokio::test]
async fn a_pause_made_elsewhere_acts_within_a_second() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.publish(1).await;
    walk.hits("/a", 1).await;
    // No hint to this process: the claim tells the version.
    let paused = walk.store.set_endpoint_status(endpoint.id, StatusChange::Pause, &person()).await;
    paused.expect("set").expect("it exists");
    let before = walk.faults.calls("catalog_changes");
    let loaded = crate::walk::until(async || match walk.faults.calls("catalog_changes") {
        calls if calls > before => Ok(()),
        _ => Err("not asked".to_owned()),
    });
    tokio::time::timeout(Duration::from_secs(1), loaded).await.expect("within a second");
}

#[tokio::test]
async fn deleting_an_endpoint_cancels_what_waits_and_what_is_in_flight_ends_late() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 1).await;
    walk.receiver.script("/a", Answer::status(500).after(Duration::from_millis(500)).into());
    let events = walk.publish_many(40).await;
    walk.hits("/a", 1).await;
    assert!(walk.store.delete_endpoint(endpoint.id, &person()).await.expect("deleted"));
    walk.engine.endpoint_deleted(endpoint.id);
    for event in &events {
        walk.delivery(event, endpoint.id, DeliveryStatus::Cancelled).await;
    }
    let late = async || {
        let mut late = 0;
        for event in &events {
            late += walk.attempts(event, endpoint.id).await.iter().filter(|attempt| attempt.late).count();
        }
        if late == 1 { Ok(()) } else { Err(format!("{late} late results")) }
    };
    crate::walk::until(late).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_delivery_cancelled_in_flight_is_not_sent_again() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    let slow = Answer::status(503).after(Duration::from_millis(300));
    walk.receiver.script("/a", Script::sequence([slow, Answer::status(200)]));
    let event = walk.publish(1).await;
    walk.hits("/a", 1).await;
    let id = crate::walk::delivery_id(&event, endpoint.id);
    walk.store.cancel_delivery(id, &person()).await.expect("cancelled");
    let late = async || match walk.attempts(&event, endpoint.id).await {
        attempts if attempts.iter().any(|attempt| attempt.late) => Ok(()),
        attempts => Err(format!("{attempts:?}")),
    };
    crate::walk::until(late).await;
    walk.delivery(&event, endpoint.id, DeliveryStatus::Cancelled).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_delivery_whose_endpoint_has_no_usable_secret_waits_and_is_never_sent_unsigned() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    let broken = SecretText::new("whsec_!".to_owned());
    walk.store.rotate_secret(endpoint.id, broken, Duration::ZERO, &person()).await.expect("rotated");
    let event = walk.publish(1).await;
    let waiting = walk.delivery(&event, endpoint.id, DeliveryStatus::Pending).await;
    assert!(waiting.due_at.is_some(), "{waiting:?}");
    assert!(walk.receiver.hits().is_empty());
}
