//! Accepting: keys, lost answers, targets.

use std::sync::Arc;

use pombo_domain::event::Draft;
use pombo_domain::id::EndpointId;
use pombo_engine::PublishError;
use pombo_signature::{SigningSecret, standard};
use pombo_testkit::receiver::Answer;
use uuid::Uuid;

use crate::faulty::{Fault, Gate};
use crate::walk::{SECRET, Walk, draft};

fn keyed(key: &str, n: u32) -> Draft {
    Draft { client_key: Some(key.parse().expect("a key")), ..draft(n) }
}

#[tokio::test]
async fn a_published_event_is_delivered_signed_byte_for_byte() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    let event = walk.publish(12).await;
    assert_eq!((event.deliveries, event.repeated), (1, false));
    let hit = walk.hits("/a", 1).await.remove(0);
    assert_eq!(hit.webhook_id(), Some(event.id.to_string().as_str()));
    let text = std::str::from_utf8(&hit.body).expect("JSON is text");
    assert!(text.contains("\"data\":{ \"n\": 12 }"), "{text}");
    assert_eq!(hit.header("content-type"), Some("application/json"));
    let secret = SigningSecret::parse(SECRET).expect("a secret");
    let signers = [&pombo_signature::Signer::new(&secret)];
    let at = hit.header("webhook-timestamp").expect("a timestamp").parse().expect("seconds");
    let signed = standard::headers(&signers, &event.id.to_string(), at, &hit.body);
    let expected = signed.into_iter().find(|(name, _)| *name == "webhook-signature").expect("a signature").1;
    assert_eq!(hit.header("webhook-signature"), Some(expected.as_str()));
    walk.delivered(&event, endpoint.id).await;
    walk.is_sound().await;
}

#[tokio::test]
async fn the_same_key_again_is_the_same_event_and_other_content_a_conflict() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    let first = walk.engine.publish(keyed("k", 1)).await.expect("accepted");
    let again = walk.engine.publish(keyed("k", 1)).await.expect("accepted");
    assert_eq!((again.id, again.repeated, again.deliveries), (first.id, true, 1));
    let other = walk.engine.publish(keyed("k", 2)).await.expect_err("another content");
    assert!(matches!(other, PublishError::KeyConflict { earlier } if earlier == first.id), "{other:?}");
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_by_the_audit_and_delivered() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    walk.publish(0).await;
    walk.hits("/a", 1).await;
    walk.faults.next("accept", Fault::UnknownDone);
    let lost = walk.engine.publish(keyed("k", 1)).await.expect_err("the answer is lost");
    assert!(matches!(lost, PublishError::OutcomeUnknown), "{lost:?}");
    walk.hits("/a", 2).await;
    let again = walk.engine.publish(keyed("k", 1)).await.expect("accepted");
    assert!(again.repeated);
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2, "sent once");
}

#[tokio::test]
async fn an_accept_whose_commit_hangs_is_not_taken_for_forgotten() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    walk.publish(0).await;
    walk.hits("/a", 1).await;
    // Committed, and the answer hangs while an audit looks.
    let gate = Gate::closed();
    walk.faults.next("accept", Fault::WaitAfter(gate.clone()));
    let engine = walk.engine.clone();
    let publishing = tokio::spawn(async move { engine.publish(draft(1)).await });
    gate.reached().await;
    let before = walk.faults.calls("owned");
    walk.faults.next("claim_due", Fault::UnknownNotDone);
    crate::walk::until(async || match walk.faults.calls("owned") {
        calls if calls > before => Ok(()),
        calls => Err(format!("{calls} audits")),
    })
    .await;
    gate.open();
    publishing.await.expect("no panic").expect("accepted");
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2);
    assert_eq!(walk.faults.calls("release"), 0, "nothing was released under a living accept");
}

#[tokio::test]
async fn one_refused_event_harms_no_other() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    // The batch, its halves, the quarter with the culprit … each refused once.
    for _ in 0..3 {
        walk.faults.next("accept", Fault::Rejected);
    }
    let answers = walk.engine.publish_all((0..4).map(draft).collect()).await;
    let refused = answers.iter().filter(|answer| matches!(answer, Err(PublishError::Rejected))).count();
    assert!(refused <= 2, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count() + refused, 4);
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 4 - refused);
}

#[tokio::test]
async fn an_unknown_target_is_refused_only_after_the_database_was_asked() {
    let walk = Walk::start().await;
    let named = |id| Draft { targets: Some(vec![id]), ..draft(1) };
    let nobody = EndpointId(Uuid::from_u128(u128::MAX));
    let answer = walk.engine.publish(named(nobody)).await.expect_err("unknown");
    assert!(matches!(answer, PublishError::UnknownTarget(id) if id == nobody), "{answer:?}");
    let endpoint = walk.endpoint("/a").await;
    walk.engine.publish(named(endpoint.id)).await.expect("made a moment ago");
    walk.hits("/a", 1).await;
    walk.faults.set_away(true);
    let answer = walk.engine.publish(named(nobody)).await.expect_err("away");
    assert!(matches!(answer, PublishError::Unavailable), "not knowing is not absence: {answer:?}");
    walk.faults.set_away(false);
}

#[tokio::test]
async fn targets_that_are_known_cost_no_question() {
    let walk = Walk::start().await;
    let endpoint = walk.endpoint("/a").await;
    let named = |n| Draft { targets: Some(vec![endpoint.id]), ..draft(n) };
    walk.engine.publish(named(0)).await.expect("accepted");
    let before = walk.faults.calls("catalog_changes");
    for n in 1..20 {
        walk.engine.publish(named(n)).await.expect("accepted");
    }
    assert_eq!(walk.faults.calls("catalog_changes"), before);
}

#[tokio::test]
async fn two_tenants_may_use_the_same_key() {
    let walk = Walk::start().await;
    let first = walk.engine.publish(keyed("k", 1)).await.expect("accepted");
    let other = Draft { tenant: "other".parse().expect("a tenant"), ..keyed("k", 2) };
    let second = walk.engine.publish(other).await.expect("accepted");
    assert!(!second.repeated && first.id != second.id);
}

#[tokio::test]
async fn an_event_of_the_moment_before_an_endpoint_changed_is_matched_again() {
    let walk = Walk::start().await;
    let gate = Gate::closed();
    walk.faults.next("accept", Fault::WaitBefore(gate.clone()));
    let engine = walk.engine.clone();
    let publishing = tokio::spawn(async move { engine.publish(draft(1)).await });
    gate.reached().await;
    // Matched against no endpoint; then one is made, then the commit comes.
    walk.endpoint("/a").await;
    gate.open();
    let event = publishing.await.expect("no panic").expect("accepted");
    assert_eq!(event.deliveries, 1);
    walk.hits("/a", 1).await;
}

#[tokio::test]
async fn many_at_once_are_committed_together_and_each_delivered_once() {
    let walk = Arc::new(Walk::start().await);
    walk.endpoint_with("/a", |settings| settings.max_concurrency = 64).await;
    walk.receiver.script("/a", Answer::status(204).into());
    let events = walk.publish_many(600).await;
    walk.is_sound().await;
    let counts = walk.receiver.counts();
    assert_eq!(counts.len(), 600);
    assert!(events.iter().all(|event| counts.get(&event.id.to_string()) == Some(&1)));
    assert!(walk.faults.calls("accept") < 60, "{} commits", walk.faults.calls("accept"));
}
