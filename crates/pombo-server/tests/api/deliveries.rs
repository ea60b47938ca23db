//! Deliveries, their timelines, and what people do to them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use pombo_egress::{AddressPolicy, EgressConfig, Resolve, Resolving};
use pombo_testkit::receiver::{Answer, Script};
use serde_json::json;

use crate::harness::{Service, Setup};
use crate::shown::steady;

#[tokio::test]
async fn the_timeline_tells_every_attempt_and_why_it_waits() {
    let service = Service::start().await;
    let retry = json!({"schedule": ["0s", "1h"], "jitter": "none"});
    service.endpoint("/h", json!({"tenant": "acme", "retry": retry})).await;
    service.receiver.script("/h", Script::always(Answer::status(503).body("down")));
    let event = service.publish(json!({"tenant": "acme", "type": "order.paid", "data": 1})).await;
    let delivery = service.delivery(&event, "retrying").await;
    let path = format!("/v1/deliveries/{}", delivery["id"].as_str().expect("an id"));
    let shown = service.client.get(&path).await.expect(200);
    insta::assert_json_snapshot!("delivery_retrying", steady(&shown));

    service.receiver.script("/h", Script::always(Answer::status(200)));
    let retried = service.client.post(&format!("{path}/retry"), r#"{"reason":"fixed"}"#).await.expect(200);
    assert_eq!(retried["outcome"], "attempted");
    assert_eq!(retried["attempt"]["class"], "success");
    let delivered = service.until(&path, |shown| shown["status"] == "delivered").await;
    insta::assert_json_snapshot!("delivery_delivered", steady(&delivered));
}

#[tokio::test]
async fn a_dead_letter_is_listed_and_lives_again_with_the_same_id() {
    let service = Service::start().await;
    let endpoint = service.endpoint("/h", json!({})).await;
    service.receiver.script("/h", Script::always(Answer::status(404)));
    let event = service.publish(json!({"type": "order.paid", "data": 1})).await;
    let delivery = service.delivery(&event, "dead").await;
    let id = delivery["id"].as_str().expect("an id");
    let dead = service.client.get(&format!("/v1/dead-letters?endpoint={endpoint}")).await.expect(200);
    assert_eq!(dead["data"][0]["deliveryId"], id);
    insta::assert_json_snapshot!("dead_letters", steady(&dead));
    let nothing = service.client.get("/v1/dead-letters?type=other").await.expect(200);
    assert_eq!(nothing, json!({"data": [], "next": null}));

    service.receiver.script("/h", Script::always(Answer::status(204)));
    let retried = service.client.post(&format!("/v1/deliveries/{id}/retry"), "").await.expect(202);
    assert_eq!(retried["outcome"], "revived");
    assert_eq!(retried["delivery"]["id"], id);
    service.delivery(&event, "delivered").await;
    let dead = service.client.get("/v1/dead-letters").await.expect(200);
    assert_eq!(dead["data"], json!([]));
}

#[tokio::test]
async fn a_cancelled_delivery_is_not_sent_and_cannot_be_cancelled_twice() {
    let service = Service::start().await;
    let endpoint = service.endpoint("/h", json!({})).await;
    service.client.post(&format!("/v1/endpoints/{endpoint}/pause"), "").await.expect(200);
    let event = service.publish(json!({"type": "t", "data": 1})).await;
    let delivery = service.delivery(&event, "paused").await;
    let path = format!("/v1/deliveries/{}", delivery["id"].as_str().expect("an id"));
    let refused = service.client.post(&format!("{path}/retry"), "{}").await;
    insta::assert_json_snapshot!("retry_refused", steady(&refused.expect(409)));
    let cancelled = service.client.post(&format!("{path}/cancel"), r#"{"reason":"wrong order"}"#).await;
    assert_eq!(cancelled.expect(200)["status"], "cancelled");
    let again = service.client.post(&format!("{path}/cancel"), "").await;
    insta::assert_json_snapshot!("cancel_refused", steady(&again.expect(409)));
    let shown = service.client.get(&path).await.expect(200);
    assert_eq!(shown["timeline"][0]["settles"], "cancelled");
    assert_eq!(shown["timeline"][0]["message"], "wrong order");
    assert_eq!(shown["timeline"][0].get("class"), None);
    assert_eq!(service.receiver.hits().len(), 0);
}

#[tokio::test]
async fn lists_of_deliveries_are_narrowed() {
    let service = Service::start().await;
    let endpoint = service.endpoint("/a", json!({"tenant": "acme"})).await;
    service.endpoint("/b", json!({"tenant": "acme", "eventTypes": ["t.1"]})).await;
    let event = service.publish(json!({"tenant": "acme", "type": "t.1", "data": 1})).await;
    service.publish(json!({"tenant": "acme", "type": "t.2", "data": 1})).await;
    service
        .until("/v1/deliveries?status=delivered", |page| {
            page["data"].as_array().is_some_and(|all| all.len() == 3)
        })
        .await;
    for (query, count) in [
        (String::new(), 3),
        ("?tenant=acme".to_owned(), 3),
        ("?tenant=other".to_owned(), 0),
        (format!("?event={event}"), 2),
        (format!("?event={event}&endpoint={endpoint}"), 1),
        (format!("?endpoint={endpoint}"), 2),
        ("?type=t.2".to_owned(), 1),
        ("?status=dead".to_owned(), 0),
        ("?until=2020-01-01T00:00:00Z".to_owned(), 0),
        ("?event=evt_01h455vb4pex5vsknk084sn02q".to_owned(), 0),
    ] {
        let page = service.client.get(&format!("/v1/deliveries{query}")).await.expect(200);
        assert_eq!(page["data"].as_array().map(Vec::len), Some(count), "{query}");
    }
}

/// Every name is inside.
#[derive(Debug)]
struct Inside;

impl Resolve for Inside {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(async { Ok(vec![Ipv4Addr::new(10, 11, 12, 13).into()]) })
    }
}

#[tokio::test]
async fn a_target_that_is_not_allowed_is_told_without_its_address() {
    let policy = AddressPolicy::default();
    let egress = EgressConfig { policy, resolver: Arc::new(Inside), ..EgressConfig::default() };
    let service = Service::with(Setup { egress, ..Setup::default() }).await;
    service.endpoint("/unused", json!({"url": "https://hooks.example.com/"})).await;
    let event = service.publish(json!({"type": "t", "data": 1})).await;
    let delivery = service.delivery(&event, "dead").await;
    assert_eq!(delivery["lastError"]["class"], "blocked_address");
    let shown =
        service.client.get(&format!("/v1/deliveries/{}", delivery["id"].as_str().expect("an id"))).await;
    let shown = shown.expect(200);
    assert_eq!(shown["timeline"][0]["message"], "this target is not allowed");
    assert_eq!(shown["timeline"][0]["retryable"], false);
    assert!(!shown.to_string().contains("10.11"), "{shown}");
}
