//! Sending: retries, holds, panics, what cannot be sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pombo_domain::attempt::AttemptClass;
use pombo_domain::delivery::DeliveryStatus;
use pombo_domain::endpoint::{EndpointStatus, EndpointUrl};
use pombo_egress::{EgressConfig, Resolve, Resolving, SystemResolver};
use pombo_store::endpoints::StatusChange;
use pombo_testkit::receiver::{Answer, Script};

use crate::faulty::{Fault, Gate};
use crate::walk::{Walk, config, egress, until};

#[tokio::test]
async fn only_the_endpoint_that_failed_is_tried_again() {
    let walk = Walk::start().await;
    let paths = ["/1", "/2", "/3", "/4", "/5"];
    let mut endpoints = Vec::new();
    for path in paths {
        endpoints.push(walk.endpoint(path).await);
    }
    walk.receiver
        .script("/5", Script::sequence([Answer::status(500), Answer::status(500), Answer::status(200)]));
    let event = walk.publish(1).await;
    assert_eq!(event.deliveries, 5);
    walk.hits("/5", 3).await;
    walk.is_sound().await;
    for path in &paths[..4] {
        assert_eq!(walk.receiver.hits_at(path).len(), 1, "{path}");
    }
    let attempts = walk.attempts(&event, endpoints[4].id).await;
    let seen: Vec<_> = attempts.iter().map(|attempt| (attempt.number, attempt.status)).collect();
    assert_eq!(seen, [(1, Some(500)), (2, Some(500)), (3, Some(200))]);
}

#[tokio::test]
async fn retry_after_holds_the_whole_endpoint_and_no_other() {
    let walk = Walk::start().await;
    let held = walk.endpoint_with("/held", |settings| settings.max_concurrency = 1).await;
    walk.endpoint("/free").await;
    let busy = Answer::status(429).header("retry-after", "2").after(Duration::from_millis(100));
    walk.receiver.script("/held", Script::sequence([busy, Answer::status(200)]));
    let first = walk.publish_many(20).await;
    walk.hits("/free", 20).await;
    // Due at the end of the hold, in the database and not in memory, those that were queued and those that come.
    let late = walk.publish(99).await;
    for event in first.iter().chain([&late]) {
        let record = walk.delivery(event, held.id, DeliveryStatus::Pending);
        let record = tokio::select! {
            record = record => record,
            record = walk.delivery(event, held.id, DeliveryStatus::Retrying) => record,
        };
        assert!(record.hold_until.is_some() && record.due_at >= record.hold_until, "{record:?}");
    }
    walk.hits("/free", 21).await;
    assert_eq!(walk.receiver.hits_at("/held").len(), 1);
    let hits = walk.hits("/held", 22).await;
    let pause = hits[1].at - hits[0].at;
    assert!(pause >= Duration::from_millis(1900), "{pause:?}");
    walk.is_sound().await;
}

/// Panics at its first name.
#[derive(Debug)]
struct Fragile {
    has_panicked: AtomicBool,
    resolver: SystemResolver,
}

impl Resolve for Fragile {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        assert!(self.has_panicked.swap(true, Ordering::AcqRel), "the panic of the test");
        self.resolver.resolve(name)
    }
}

#[tokio::test]
async fn a_panic_frees_its_slot_and_the_delivery_is_tried_again() {
    let resolver =
        Arc::new(Fragile { has_panicked: AtomicBool::new(false), resolver: SystemResolver::new() });
    let config = pombo_engine::EngineConfig { slots: 1, ..config() };
    let walk = Walk::with(config, EgressConfig { resolver, ..egress() }).await;
    let endpoint = walk
        .endpoint_with("/a", |settings| {
            let by_name = format!("http://localhost:{}/a", settings.url.url().port().expect("a port"));
            settings.url = EndpointUrl::parse(&by_name).expect("a URL");
            settings.max_concurrency = 1;
        })
        .await;
    let events = [walk.publish(1).await, walk.publish(2).await];
    for event in &events {
        walk.delivered(event, endpoint.id).await;
    }
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2, "a panic before the request is no duplicate");
}

#[tokio::test]
async fn a_newer_claim_waits_until_the_older_result_is_written() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Script::sequence([Answer::status(503), Answer::status(200)]));
    let gate = Gate::closed();
    walk.faults.next("flush", Fault::WaitAfter(gate.clone()));
    let event = walk.publish(1).await;
    gate.reached().await;
    // The retry is written and due, but nobody here knows that it is.
    let owned_again = async || {
        let record = walk.store.delivery(crate::walk::delivery_id(&event, endpoint.id), None).await;
        let record = record.expect("a delivery is read").expect("it exists");
        let is_claimed = record.status == DeliveryStatus::Sending && record.attempts == 1;
        if is_claimed { Ok(()) } else { Err(format!("{record:?}")) }
    };
    until(owned_again).await;
    assert_eq!(walk.receiver.hits().len(), 1);
    gate.open();
    walk.delivered(&event, endpoint.id).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2);
}

#[tokio::test]
async fn a_delivery_that_took_its_process_along_eight_times_is_dead() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    let (fatal, risky) = (walk.publish(1).await, walk.publish(2).await);
    for (event, rescues) in [(&fatal, 8), (&risky, 5)] {
        walk.delivery(event, endpoint.id, DeliveryStatus::Paused).await;
        let id = hex(event.id.0.as_bytes());
        assert_eq!(
            walk.execute(&format!("UPDATE pombo_delivery SET rescues = {rescues} WHERE event_id = x'{id}'")),
            1
        );
    }
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    let record = walk.delivery(&fatal, endpoint.id, DeliveryStatus::Dead).await;
    assert_eq!(record.last_class, Some(AttemptClass::Interrupted));
    walk.delivered(&risky, endpoint.id).await;
    assert_eq!(walk.receiver.hits().len(), 1, "what is dead was not sent");
}

#[tokio::test]
async fn a_body_that_is_nowhere_makes_a_dead_letter() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    let event = walk.publish(1).await;
    walk.delivery(&event, endpoint.id, DeliveryStatus::Paused).await;
    assert_eq!(
        walk.execute(&format!("DELETE FROM pombo_event WHERE id = x'{}'", hex(event.id.0.as_bytes()))),
        1
    );
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    let record = walk.delivery(&event, endpoint.id, DeliveryStatus::Dead).await;
    assert_eq!(record.last_class, Some(AttemptClass::BodyMissing));
    assert!(walk.receiver.hits().is_empty());
}

#[tokio::test]
async fn bodies_that_cannot_be_read_now_are_read_later() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.set_status(endpoint.id, StatusChange::Pause).await;
    let events = walk.publish_many(5).await;
    walk.faults.next("bodies", Fault::Unavailable);
    walk.faults.next("bodies", Fault::Unavailable);
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    for event in &events {
        walk.delivered(event, endpoint.id).await;
    }
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 5);
}

#[tokio::test]
async fn gone_disables_the_endpoint_and_its_other_deliveries_wait() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 1).await;
    walk.receiver.script("/a", Script::sequence([Answer::status(410), Answer::status(200)]));
    let first = walk.publish(1).await;
    walk.delivery(&first, endpoint.id, DeliveryStatus::Dead).await;
    let look = async || {
        let found = walk.store.endpoint(endpoint.id, None).await.expect("read").expect("exists");
        if found.status == EndpointStatus::Disabled { Ok(()) } else { Err(format!("{found:?}")) }
    };
    until(look).await;
    let later = walk.publish(2).await;
    walk.delivery(&later, endpoint.id, DeliveryStatus::Paused).await;
    walk.set_status(endpoint.id, StatusChange::Resume).await;
    walk.delivered(&later, endpoint.id).await;
    walk.is_sound().await;
}

#[tokio::test]
async fn slow_receivers_with_full_lanes_do_not_keep_others_waiting() {
    let config = pombo_engine::EngineConfig { slots: 64, ..config() };
    let walk = Walk::with(config, egress()).await;
    walk.receiver.script_others(Answer::never().into());
    walk.receiver.script("/fast", Answer::status(200).into());
    for n in 0..6 {
        walk.endpoint_with(&format!("/slow{n}"), |settings| settings.max_concurrency = 4).await;
    }
    let fast = walk.endpoint("/fast").await;
    walk.publish_many(60).await;
    walk.hits("/fast", 60).await;
    // A retry, which must be claimed although hundreds of jobs wait in memory for slow receivers.
    walk.receiver.script("/fast", Script::sequence([Answer::status(503), Answer::status(200)]));
    let event = walk.publish(99).await;
    walk.delivered(&event, fast.id).await;
    assert_eq!(walk.attempts(&event, fast.id).await.len(), 2);
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}
