//! Faults seen in public in some webhook system, as far as they come through the API.

use pombo_egress::EgressConfig;
use serde_json::json;

use crate::harness::{Service, Setup};

/// S12: the second was dropped.
#[tokio::test]
async fn two_tenants_that_publish_the_same_event_id_are_both_delivered() {
    let service = Service::start().await;
    for tenant in ["a", "b"] {
        service.endpoint(&format!("/{tenant}"), json!({"tenant": tenant})).await;
    }
    let mut ids = Vec::new();
    for tenant in ["a", "b"] {
        let event = json!({"tenant": tenant, "type": "t", "id": "order-1", "data": tenant});
        let id = service.publish(event).await;
        service.delivery(&id, "delivered").await;
        assert_eq!(service.receiver.hits_at(&format!("/{tenant}"))[0].webhook_id(), Some(id.as_str()));
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
    assert_eq!(service.receiver.hits().len(), 2);
}

/// S26: it vanished, or was a 4xx.
#[tokio::test]
async fn an_event_without_any_endpoint_is_kept_and_visible_as_unmatched() {
    let service = Service::start().await;
    let id = service.publish(json!({"tenant": "new", "type": "t", "data": 1})).await;
    let later = service.endpoint("/later", json!({"tenant": "new"})).await;
    let unmatched = service.client.get("/v1/events?unmatched=true&tenant=new").await.expect(200);
    assert_eq!(unmatched["data"][0]["id"], id.as_str());
    assert_eq!(unmatched["data"][0]["deliveryCount"], 0);
    let shown = service.client.get(&format!("/v1/events/{id}")).await.expect(200);
    assert_eq!(shown["deliveries"], json!([]));
    assert_eq!(shown["unmatched"][0]["endpointId"], later.as_str());
    assert_eq!(shown["unmatched"][0]["code"], "created_later");
}

/// S7: they were discarded, or nothing happened.
#[tokio::test]
async fn a_hundred_deliveries_that_wait_for_a_paused_endpoint_all_go_out_when_it_resumes() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({})).await;
    service.client.post(&format!("/v1/endpoints/{id}/pause"), "").await.expect(200);
    let events: Vec<_> = (0..100).map(|n| json!({"type": "t", "data": n})).collect();
    let batch =
        service.client.post("/v1/events/batch", json!({"events": events}).to_string()).await.expect(200);
    let waits = service.client.get("/v1/deliveries?status=paused&limit=250").await.expect(200);
    assert_eq!(waits["data"].as_array().map(Vec::len), Some(100));
    service.client.post(&format!("/v1/endpoints/{id}/resume"), "").await.expect(200);
    let all = |page: &serde_json::Value| page["data"].as_array().is_some_and(|items| items.len() == 100);
    service.until("/v1/deliveries?status=delivered&limit=250", all).await;
    let counts = service.receiver.counts();
    assert_eq!(counts.len(), 100);
    for item in batch["data"].as_array().expect("a list") {
        assert_eq!(counts.get(item["id"].as_str().expect("an id")), Some(&1));
    }
}

/// S14: everything was delivered.
#[tokio::test]
async fn an_invalid_filter_is_refused_and_the_endpoint_is_not_made() {
    let service = Service::start().await;
    for filter in [json!([]), json!(["order*"]), json!(["*.paid"]), json!("order.*"), json!([null])] {
        let new = json!({"url": service.receiver.url("/h"), "eventTypes": filter});
        let refused = service.client.post("/v1/endpoints", new.to_string()).await;
        assert_eq!(refused.status, 422, "{filter}");
        assert!(refused.errors()[0].0.starts_with("eventTypes"), "{filter}");
    }
    let all = service.client.get("/v1/endpoints").await.expect(200);
    assert_eq!(all["data"], json!([]));
}

/// S27: they were taken raw, or sent elsewhere.
#[tokio::test]
async fn odd_urls_are_normalised_or_refused_with_the_reason() {
    let service = Service::with(Setup { egress: EgressConfig::default(), ..Setup::default() }).await;
    for (given, kept) in [
        ("HTTPS://Example.COM:443/Hooks?a=1", "https://example.com/Hooks?a=1"),
        ("https://example.com.", "https://example.com/"),
        ("https://m\u{fc}nchen.example/", "https://xn--mnchen-3ya.example/"),
    ] {
        let made = service.client.post("/v1/endpoints", json!({"url": given}).to_string()).await.expect(201);
        assert_eq!(made["url"], kept, "{given}");
    }
    for (given, reason) in [
        ("https://user:pw@example.com/", "user name"),
        ("https://example.com/#x", "fragment"),
        ("https://example.com:0/", "port 0"),
        ("https://127.0.0.1../", "empty labels"),
        ("https://[fe80::1%25eth0]/", "absolute URL"),
        ("https://0x7f.1/", "this address"),
        ("https://[64:ff9b::a00:1]/", "this address"),
    ] {
        let refused = service.client.post("/v1/endpoints", json!({"url": given}).to_string()).await;
        assert_eq!(refused.errors()[0].0, "url", "{given}");
        let detail = refused.json()["detail"].as_str().expect("a text").to_owned();
        assert!(detail.contains(reason), "{given}: {detail}");
        assert!(!detail.contains("user:pw"), "{detail}");
    }
}
