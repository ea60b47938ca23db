//! Endpoints and their secrets.

use std::time::Duration;

use pombo_egress::EgressConfig;
use pombo_engine::EngineConfig;
use pombo_testkit::receiver::{Answer, Script};
use serde_json::{Value, json};

use crate::harness::{Service, Setup};
use crate::shown::steady;

#[tokio::test]
async fn an_endpoint_is_made_shown_and_changed_field_by_field() {
    let service = Service::start().await;
    let new = json!({
        "tenant": "acme", "url": "HTTPS://Example.com:443/hooks?a=1", "description": "orders",
        "eventTypes": ["order.*", "user.made"], "headers": {"Authorization": "Bearer x", "x-team": "a"},
        "signature": "v1", "headerStyle": "both", "retry": {"schedule": ["0s", "30s"], "jitter": "none"},
        "timeoutMs": 5000, "maxConcurrency": 3, "retryClientErrors": true, "storeResponses": "all",
        "metadata": {"team": {"n": 1}},
    });
    let created = service.client.post("/v1/endpoints", new.to_string()).await.expect(201);
    insta::assert_json_snapshot!("endpoint_created", steady(&created));
    let path = format!("/v1/endpoints/{}", created["id"].as_str().expect("an id"));
    let shown = service.client.get(&path).await.expect(200);
    let mut expected = created.clone();
    expected.as_object_mut().expect("an object").remove("secret");
    assert_eq!(shown, expected);

    let change = json!({"description": null, "eventTypes": null, "retry": null, "timeoutMs": null, "maxConcurrency": 9});
    let changed = service.client.patch(&path, change.to_string()).await.expect(200);
    for gone in ["description", "eventTypes", "retry", "timeoutMs"] {
        assert_eq!(changed.get(gone), None, "{gone}");
    }
    assert_eq!(changed["maxConcurrency"], 9);
    assert_eq!(changed["url"], "https://example.com/hooks?a=1");
    assert_eq!(changed["headerStyle"], "both");
    assert_eq!(changed["metadata"], json!({"team": {"n": 1}}));
    assert_eq!(service.client.get(&path).await.expect(200), changed);
}

#[tokio::test]
async fn values_of_headers_are_hidden_and_can_be_given_back_hidden() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({"headers": {"authorization": "Bearer tok", "x-a": "1"}})).await;
    let path = format!("/v1/endpoints/{id}");
    let shown = service.client.get(&path).await.expect(200);
    assert_eq!(shown["headers"], json!({"authorization": "***", "x-a": "***"}));
    service.client.patch(&path, r#"{"headers":{"Authorization":"***","x-b":"2"}}"#).await.expect(200);
    let event = service.publish(json!({"type": "t", "data": 1})).await;
    service.delivery(&event, "delivered").await;
    let hit = &service.receiver.hits_at("/h")[0];
    assert_eq!(hit.header("authorization"), Some("Bearer tok"));
    assert_eq!((hit.header("x-a"), hit.header("x-b")), (None, Some("2")));
    for (headers, code) in [
        (json!({"x-new": "***"}), "invalid"),
        (json!({"Host": "x"}), "not_allowed"),
        (json!({"webhook-id": "x"}), "not_allowed"),
        (json!({"x-a": "1\r\nx: y"}), "invalid"),
    ] {
        let refused = service.client.patch(&path, json!({"headers": headers}).to_string()).await;
        assert_eq!(refused.status, 422, "{headers}");
        assert_eq!(refused.errors()[0].1, code, "{headers}");
    }
    let twice = service.client.patch(&path, r#"{"headers":{"x-a":"1","X-A":"2"}}"#).await;
    assert_eq!(twice.errors(), [("headers".to_owned(), "duplicate".to_owned())]);
}

#[tokio::test]
async fn everything_wrong_with_an_endpoint_is_named_at_once() {
    let setup = Setup { egress: EgressConfig::default(), ..Setup::default() };
    let service = Service::with(setup).await;
    let wrong = json!({
        "tenant": "a b", "url": "http://10.0.0.1/", "eventTypes": ["order*", 5, "ok"], "headers": [],
        "signature": "v1a", "headerStyle": "X", "retry": {"schedule": ["1w"]}, "timeoutMs": 50,
        "maxConcurrency": "8", "retryClientErrors": 1, "storeResponses": "some", "metadata": "x",
        "rateLimit": {"count": 1, "per": "1s"}, "ordered": true, "onDead": "x", "notify": {}, "externalId": "x",
        "secret": "whsec_x", "evenTypes": [],
    });
    let refused = service.client.post("/v1/endpoints", wrong.to_string()).await;
    insta::assert_json_snapshot!("endpoint_refused", steady(&refused.expect(422)));
    let refused = service.client.post("/v1/endpoints", "{}").await;
    assert_eq!(refused.errors(), [("url".to_owned(), "required".to_owned())]);
    for (url, code) in [
        ("https://127.0.0.1/", "not_allowed"),
        ("https://localhost/", "not_allowed"),
        ("https://[::ffff:169.254.169.254]/", "not_allowed"),
        ("https://user:pw@example.com/", "invalid"),
        ("ftp://example.com/", "invalid"),
        ("nonsense", "invalid"),
    ] {
        let refused = service.client.post("/v1/endpoints", json!({"url": url}).to_string()).await;
        assert_eq!(refused.errors(), [("url".to_owned(), code.to_owned())], "{url}");
    }
}

#[tokio::test]
async fn a_change_cannot_touch_what_other_calls_change() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({})).await;
    let path = format!("/v1/endpoints/{id}");
    let refused =
        service.client.patch(&path, r#"{"status":"paused","tenant":"b","url":null,"eventTypes":[]}"#).await;
    let expected =
        [("url", "required"), ("eventTypes", "invalid"), ("tenant", "read_only"), ("status", "read_only")];
    assert_eq!(refused.errors(), expected.map(|(field, code)| (field.to_owned(), code.to_owned())));
    assert_eq!(service.client.get(&path).await.expect(200)["status"], "active");
}

#[tokio::test]
async fn a_timeout_that_could_outlive_the_lease_is_refused_naming_both() {
    let engine = EngineConfig { lease_ttl: Duration::from_secs(20), ..EngineConfig::default() };
    let service = Service::with(Setup { engine, ..Setup::default() }).await;
    let refused =
        service.client.post("/v1/endpoints", r#"{"url":"http://127.0.0.1:8080/","timeoutMs":15000}"#).await;
    let message = refused.expect(422)["detail"].as_str().expect("a text").to_owned();
    assert!(message.starts_with("timeoutMs ") && message.contains("lease.ttl"), "{message}");
}

#[tokio::test]
async fn pausing_holds_deliveries_and_resuming_sends_them() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({})).await;
    let paused = service.client.post(&format!("/v1/endpoints/{id}/pause"), r#"{"reason":"moving"}"#).await;
    assert_eq!(paused.expect(200)["status"], "paused");
    let event = service.publish(json!({"type": "t", "data": 1})).await;
    let delivery = service.delivery(&event, "paused").await;
    assert_eq!(delivery["why"]["code"], "endpoint_paused");
    assert_eq!(delivery.get("nextAttemptAt"), None);
    let refused = service.client.post(&format!("/v1/endpoints/{id}/resume"), r#"{"test":true}"#).await;
    assert_eq!(refused.errors(), [("test".to_owned(), "unknown_field".to_owned())]);
    let resumed = service.client.post(&format!("/v1/endpoints/{id}/resume"), "").await.expect(200);
    assert_eq!(resumed["status"], "active");
    service.delivery(&event, "delivered").await;
    let paused = service.client.get("/v1/endpoints?status=paused").await.expect(200);
    assert_eq!(paused["data"], json!([]));
}

#[tokio::test]
async fn a_test_answers_with_the_attempt() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({"storeResponses": "all"})).await;
    service.receiver.script("/h", Script::always(Answer::status(500).body("no")));
    let attempt = service.client.post(&format!("/v1/endpoints/{id}/test"), "").await.expect(200);
    insta::assert_json_snapshot!("test_attempt", steady(&attempt));
    let hit = &service.receiver.hits_at("/h")[0];
    assert_eq!(hit.json().expect("JSON")["type"], "pombo.test");
}

#[tokio::test]
async fn a_secret_of_the_caller_s_own_is_kept() {
    let service = Service::start().await;
    let own = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let id = service.endpoint("/h", json!({ "secret": own })).await;
    let shown = service.client.get(&format!("/v1/endpoints/{id}/secret")).await.expect(200);
    assert_eq!(shown["secret"], own);
}

#[tokio::test]
async fn secrets_are_rotated_and_looking_at_them_is_audited() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({"tenant": "acme"})).await;
    let path = format!("/v1/endpoints/{id}");
    let first = service.client.get(&format!("{path}/secret")).await.expect(200);
    let rotated =
        service.client.post(&format!("{path}/rotate-secret"), r#"{"overlapSeconds":60}"#).await.expect(200);
    assert_eq!(rotated["overlapSeconds"], 60);
    assert_ne!(rotated["secret"], first["secret"]);
    let second = service.client.get(&format!("{path}/secret")).await.expect(200);
    assert_eq!(second["secret"], rotated["secret"]);
    assert_eq!(second["previous"][0]["secret"], first["secret"]);
    service.client.post(&format!("{path}/rotate-secret"), r#"{"overlapSeconds":0}"#).await.expect(200);
    let third = service.client.get(&format!("{path}/secret")).await.expect(200);
    assert_ne!(third["secret"], second["secret"]);
    let refused = service.client.post(&format!("{path}/rotate-secret"), r#"{"overlapSeconds":-1}"#).await;
    assert_eq!(refused.errors(), [("overlapSeconds".to_owned(), "range".to_owned())]);
    let audit = service.client.get("/v1/audit?tenant=acme").await.expect(200);
    insta::assert_json_snapshot!("audit", steady(&audit));
}

#[tokio::test]
async fn a_deleted_endpoint_is_unknown_and_its_deliveries_are_cancelled() {
    let service = Service::start().await;
    let id = service.endpoint("/h", json!({})).await;
    let path = format!("/v1/endpoints/{id}");
    service.client.post(&format!("{path}/pause"), "").await.expect(200);
    let event = service.publish(json!({"type": "t", "data": 1})).await;
    service.delivery(&event, "paused").await;
    let gone = service.client.delete(&format!("{path}?reason=moved")).await.expect(202);
    assert_eq!(gone, json!({"id": id, "status": "deleting"}));
    service.delivery(&event, "cancelled").await;
    assert_eq!(service.client.get(&path).await.status, 404);
    assert_eq!(service.client.delete(&path).await.status, 404);
    assert_eq!(service.client.patch(&path, "{}").await.status, 404);
    let audit = service.client.get("/v1/audit?limit=1").await.expect(200);
    let reason: &Value = &audit["data"][0]["reason"];
    assert_eq!((&audit["data"][0]["action"], reason), (&json!("endpoint.delete"), &json!("moved")));
}
