//! The database loses answers, goes away, restarts, takes the lease.

use std::time::Duration;

use pombo_domain::delivery::DeliveryStatus;
use pombo_engine::Readiness;
use pombo_testkit::receiver::{Answer, Script};

use crate::faulty::{Fault, Gate};
use crate::walk::{LIMIT, Walk, until};

/// Makes the engine look at its session now: a lost connection does.
fn lose_a_connection(walk: &Walk) {
    walk.faults.next("claim_due", Fault::Unavailable);
}

#[tokio::test]
async fn a_flush_whose_answer_is_lost_is_repeated_and_doubles_nothing() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.faults.next("flush", Fault::UnknownDone);
    walk.faults.next("flush", Fault::UnknownNotDone);
    walk.faults.next("flush", Fault::Unavailable);
    let event = walk.publish(1).await;
    walk.delivered(&event, endpoint.id).await;
    until(async || match walk.faults.calls("flush") {
        calls if calls >= 4 => Ok(()),
        calls => Err(format!("{calls} flushes")),
    })
    .await;
    walk.is_sound().await;
    let attempts = walk.attempts(&event, endpoint.id).await;
    assert_eq!(attempts.len(), 1, "{attempts:?}");
    assert!(!attempts[0].late);
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_batch_the_database_refuses_is_written_result_by_result() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    walk.faults.next("flush", Fault::Rejected);
    walk.publish_many(20).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.counts().len(), 20);
}

#[tokio::test]
async fn claims_whose_answers_are_lost_are_found_by_the_audit() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Script::sequence([Answer::status(503), Answer::status(200)]));
    let event = walk.publish(1).await;
    walk.hits("/a", 1).await;
    for _ in 0..10 {
        walk.faults.next("claim_due", Fault::UnknownDone);
    }
    walk.delivered(&event, endpoint.id).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2);
}

#[tokio::test]
async fn what_follows_a_claim_may_fail_without_losing_what_was_claimed() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.receiver.script("/a", Script::sequence([Answer::status(503), Answer::status(200)]));
    let event = walk.publish(1).await;
    walk.hits("/a", 1).await;
    // The claim of the retry tells of a new configuration, which then cannot be loaded.
    for _ in 0..5 {
        walk.faults.next("catalog_changes", Fault::Unavailable);
    }
    let paused = walk.endpoint("/b").await;
    walk.delivered(&event, endpoint.id).await;
    let second = walk.publish(2).await;
    walk.delivered(&second, paused.id).await;
    walk.is_sound().await;
}

#[tokio::test]
async fn a_restart_of_the_database_ends_the_session_and_repeats_what_was_just_written() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    let before = walk.publish(1).await;
    walk.delivered(&before, endpoint.id).await;
    let flushes = walk.faults.calls("flush");
    assert_eq!(walk.faults.calls("open_session"), 1);
    walk.faults.set_epoch("another life");
    lose_a_connection(&walk);
    until(async || match (walk.faults.calls("open_session"), walk.engine.readiness()) {
        (2, Readiness::Ready) => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;
    assert!(walk.faults.calls("flush") > flushes, "written once more");
    let after = walk.publish(2).await;
    walk.delivered(&after, endpoint.id).await;
    assert_eq!(walk.attempts(&before, endpoint.id).await.len(), 1);
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2);
}

#[tokio::test]
async fn a_lost_lease_closes_the_socket_and_records_nothing_under_the_new_session() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 1).await;
    walk.receiver.script("/a", Script::sequence([Answer::never(), Answer::status(200)]));
    // One in flight, the others queued.
    let events = walk.publish_many(5).await;
    walk.hits("/a", 1).await;
    assert_eq!(walk.execute("UPDATE pombo_session SET state = 'dead', died_at = 1 WHERE state = 'live'"), 1);
    lose_a_connection(&walk);
    let mut sessions = Vec::new();
    for event in &events {
        walk.delivered(event, endpoint.id).await;
        let attempts = walk.attempts(event, endpoint.id).await;
        assert_eq!(attempts.len(), 1, "the attempt that was broken off left no record: {attempts:?}");
        sessions.push(attempts[0].session.0);
    }
    assert!(sessions.iter().all(|session| *session == 2), "{sessions:?}");
    let hits = walk.receiver.hits();
    assert_eq!(hits.len(), 6, "one was broken off");
    assert_ne!(hits[0].connection, hits[1].connection);
    walk.is_sound().await;
}

#[tokio::test]
async fn results_of_a_session_that_is_over_are_written_under_their_old_token() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    let gate = Gate::closed();
    walk.faults.next("flush", Fault::WaitBefore(gate.clone()));
    // Nobody may release the row before its late result is written.
    walk.faults.always("release_dead", Fault::Unavailable);
    let event = walk.publish(1).await;
    gate.reached().await;
    walk.execute("UPDATE pombo_session SET state = 'dead', died_at = 1 WHERE state = 'live'");
    lose_a_connection(&walk);
    until(async || match walk.faults.calls("open_session") {
        2 => Ok(()),
        calls => Err(format!("{calls} sessions")),
    })
    .await;
    gate.open();
    walk.delivered(&event, endpoint.id).await;
    walk.faults.heal("release_dead");
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_database_that_is_away_stops_the_sending_within_a_second_and_it_resumes_alone() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 2).await;
    walk.receiver.script("/a", Answer::status(200).after(Duration::from_millis(60)).into());
    let events = walk.publish_many(120).await;
    walk.hits("/a", 5).await;
    walk.faults.set_away(true);
    // Nothing to wait for: the time itself is the claim.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let stopped = walk.receiver.hits().len();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(walk.receiver.hits().len(), stopped);
    assert!(stopped < 60, "{stopped} were sent");
    assert_eq!(walk.engine.readiness(), Readiness::DatabaseAway);
    walk.faults.set_away(false);
    for event in &events {
        walk.delivered(event, endpoint.id).await;
    }
    walk.is_sound().await;
    assert!(walk.receiver.counts().values().all(|count| *count == 1), "the lease outlived the outage");
}

#[tokio::test]
async fn unwritten_results_stop_the_sending_even_while_the_lease_holds() {
    let walk = Walk::start().await;
    walk.endpoint_with("/a", |settings| settings.max_concurrency = 2).await;
    walk.receiver.script("/a", Answer::status(200).after(Duration::from_millis(60)).into());
    let gate = Gate::closed();
    walk.faults.next("flush", Fault::WaitBefore(gate.clone()));
    walk.publish_many(120).await;
    gate.reached().await;
    tokio::time::sleep(Duration::from_millis(1300)).await;
    let stopped = walk.receiver.hits().len();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(walk.receiver.hits().len(), stopped);
    gate.open();
    walk.is_sound().await;
    assert_eq!(walk.receiver.counts().len(), 120);
}

#[tokio::test]
async fn returns_that_cannot_be_written_are_released_by_the_audit() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint_with("/a", |settings| settings.max_concurrency = 1).await;
    walk.receiver.script("/a", Answer::status(200).after(Duration::from_millis(300)).into());
    let events = walk.publish_many(10).await;
    walk.hits("/a", 1).await;
    walk.faults.next("unclaim", Fault::UnknownNotDone);
    walk.set_status(endpoint.id, pombo_store::endpoints::StatusChange::Pause).await;
    for event in &events {
        // Except what was on its way.
        let parked = walk.delivery(event, endpoint.id, DeliveryStatus::Paused);
        let done = walk.delivered(event, endpoint.id);
        tokio::select! { _ = parked => {}, _ = done => {} }
    }
    assert!(walk.receiver.hits().len() < 5);
    walk.receiver.script("/a", Answer::status(200).into());
    walk.set_status(endpoint.id, pombo_store::endpoints::StatusChange::Resume).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.counts().len(), 10);
}

#[tokio::test]
async fn a_renewal_that_hangs_is_given_up_and_repeated() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    walk.publish(1).await;
    walk.hits("/a", 1).await;
    let gate = Gate::closed();
    walk.faults.next("renew_session", Fault::WaitBefore(gate.clone()));
    lose_a_connection(&walk);
    tokio::time::timeout(LIMIT, gate.reached()).await.expect("a renewal hangs");
    assert_eq!(walk.engine.readiness(), Readiness::DatabaseAway);
    until(async || match walk.engine.readiness() {
        Readiness::Ready => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;
    let event = walk.publish(2).await;
    walk.delivered(&event, endpoint.id).await;
    assert_eq!(walk.faults.calls("open_session"), 1, "the lease held all the time");
}
