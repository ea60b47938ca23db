//! Group commit: what waits shares one fsync, and one failure harms nobody else.

use std::sync::Arc;

use futures_util::future::join_all;

use pombo_store::StoreError;
use pombo_store::accept::{AcceptBatch, AcceptResult, Accepted, Placement};
use pombo_store::conformance::scene::{Scene, begin, deliver_to, event_of, kind, tenant};
use pombo_store::reading::Reading;

use crate::scratch::Scratch;

async fn batch(scene: &Scene, config_version: i64) -> AcceptBatch {
    let new = event_of(&tenant("acme"), &kind("order.paid"), scene.now().await, b"{}");
    AcceptBatch { events: vec![new], config_version, session: scene.session }
}

#[tokio::test]
async fn one_bad_item_harms_no_other_of_its_group() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let endpoint = scene.endpoint("acme").await;
    let config_version = scene.config_version().await;
    let mut batches = Vec::new();
    for n in 0..60 {
        let mut batch = batch(&scene, config_version).await;
        deliver_to(&mut batch.events[0], endpoint.id, Placement::Due);
        if n % 7 == 0 {
            deliver_to(&mut batch.events[0], endpoint.id, Placement::Due);
        }
        batches.push(batch);
    }
    let answers = join_all(batches.iter().map(|batch| scene.store.accept(batch))).await;
    for (n, (batch, answer)) in batches.iter().zip(answers).enumerate() {
        let stored = scene.store.event(batch.events[0].event.id, None).await.expect("reads");
        if n % 7 == 0 {
            assert!(matches!(answer, Err(StoreError::Rejected(_))), "{n}: {answer:?}");
            assert_eq!(stored, None);
        } else {
            assert_eq!(answer.expect("accepts"), Accepted::Committed(vec![AcceptResult::Created]));
            assert!(stored.is_some());
        }
    }
    assert_eq!(scene.store.check().await.expect("checks").findings, []);
}

/// Dropping the last handle waits for what was handed over, and only then gives the file free.
#[tokio::test]
async fn what_was_handed_over_is_committed_before_the_file_is_free() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let config_version = scene.config_version().await;
    let batch = batch(&scene, config_version).await;
    let id = batch.events[0].event.id;
    let store = Arc::clone(&scene.store);
    {
        // Polled once, so that the work is with the writer; then its caller goes away.
        let mut accept = Box::pin(async move { store.accept(&batch).await });
        assert!(futures_util::poll!(&mut accept).is_pending());
    }
    drop(scene);
    let reopened = scratch.store().await;
    assert!(reopened.event(id, None).await.expect("reads").is_some());
}
