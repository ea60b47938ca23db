//! Bad input, and what is said about it.

use http::Method;
use serde_json::json;

use crate::harness::Service;
use crate::shown::steady;

#[tokio::test]
async fn a_body_that_is_not_json_is_told_the_byte() {
    let service = Service::start().await;
    let refused = service.client.post("/v1/events", r#"{"type":"t","data":{"a":}}"#).await;
    assert_eq!(refused.header("content-type"), "application/problem+json");
    insta::assert_json_snapshot!("not_json", steady(&refused.expect(400)));
}

#[tokio::test]
async fn everything_wrong_with_an_event_is_named_at_once() {
    let service = Service::start().await;
    let wrong = json!({
        "tenant": "a b", "typ": "x", "payload": "x", "data": 1, "id": "a\nb", "orderingKey": "",
        "resourceVersion": -1, "deliverAt": "tomorrow", "endpoints": "all",
    });
    let refused = service.client.post("/v1/events", wrong.to_string()).await;
    insta::assert_json_snapshot!("event_refused", steady(&refused.expect(422)));
}

#[tokio::test]
async fn each_bad_value_names_its_field() {
    let service = Service::start().await;
    for (body, field, code) in [
        (r#"{"data":1}"#, "type", "required"),
        (r#"{"type":"t"}"#, "data", "required"),
        (r#"{"type":"t","payload":null}"#, "data", "required"),
        (r#"{"type":"t t","data":1}"#, "type", "invalid"),
        (r#"{"type":"pombo.test","data":1}"#, "type", "invalid"),
        (r#"{"type":7,"data":1}"#, "type", "type"),
        (r#"{"type":"t","type":"t","data":1}"#, "type", "duplicate"),
        (r#"{"type":"t","data":1,"contentType":"text/plain"}"#, "contentType", "not_allowed"),
        (r#"{"type":"t","payload":"x"}"#, "contentType", "required"),
        (r#"{"type":"t","payload":"x","contentType":"nonsense"}"#, "contentType", "invalid"),
        (r#"{"type":"t","payload":"\ud800","contentType":"text/plain"}"#, "payload", "invalid"),
        (r#"{"type":"t","payloadBase64":"-_","contentType":"a/b"}"#, "payloadBase64", "invalid"),
        (r#"{"type":"t","data":1,"resourceVersion":9007199254740992}"#, "resourceVersion", "range"),
        (r#"{"type":"t","data":1,"resourceVersion":1.5}"#, "resourceVersion", "range"),
        (r#"{"type":"t","data":1,"resourceVersion":"1"}"#, "resourceVersion", "type"),
        (r#"{"type":"t","data":1,"id":"a\u0000"}"#, "id", "invalid"),
        (r#"{"type":"t","data":1,"rateLimit":1}"#, "rateLimit", "unknown_field"),
        ("[]", "", "type"),
        ("", "type", "required"),
    ] {
        let refused = service.client.post("/v1/events", body).await;
        assert_eq!(refused.status, 422, "{body}");
        assert_eq!(refused.errors()[0], (field.to_owned(), code.to_owned()), "{body}");
    }
    let long = json!({"type": "t", "data": 1, "id": "é".repeat(128)});
    let refused = service.client.post("/v1/events", long.to_string()).await;
    assert_eq!(refused.errors(), [("id".to_owned(), "invalid".to_owned())]);
}

#[tokio::test]
async fn bad_ids_cursors_and_parameters_are_named() {
    let service = Service::start().await;
    let page = service.client.get("/v1/events?limit=1").await.expect(200);
    assert_eq!(page["next"], json!(null));
    for (path, field, code) in [
        ("/v1/events/nonsense", "id", "invalid"),
        ("/v1/events/ep_01h455vb4pex5vsknk084sn02q", "id", "invalid"),
        ("/v1/deliveries/evt_01h455vb4pex5vsknk084sn02q", "id", "invalid"),
        ("/v1/endpoints/%ff", "id", "invalid"),
        ("/v1/events?after=abc", "after", "invalid"),
        ("/v1/events?limit=251", "limit", "range"),
        ("/v1/events?limit=1&limit=2", "limit", "duplicate"),
        ("/v1/events?tenat=x", "tenat", "unknown_field"),
        ("/v1/events?since=yesterday", "since", "invalid"),
        ("/v1/events?type=a%20b", "type", "invalid"),
        ("/v1/deliveries?status=lost", "status", "invalid"),
        ("/v1/deliveries?event=ep_01h455vb4pex5vsknk084sn02q", "event", "invalid"),
        ("/v1/endpoints?status=open", "status", "invalid"),
        ("/v1/events/evt_01h455vb4pex5vsknk084sn02q?x=1", "x", "unknown_field"),
    ] {
        let refused = service.client.get(path).await;
        assert_eq!(refused.status, 422, "{path}");
        assert_eq!(refused.errors(), [(field.to_owned(), code.to_owned())], "{path}");
    }
    // A bare uuid is an id as well.
    let unknown = service.client.get("/v1/events/01890a5d-ac96-774b-bcce-b302099a8057").await;
    insta::assert_json_snapshot!("unknown_id", steady(&unknown.expect(404)));
}

#[tokio::test]
async fn routes_methods_and_media_types_that_do_not_fit_are_problems_too() {
    let service = Service::start().await;
    let unknown = service.client.get("/v1/replays").await;
    assert_eq!(unknown.header("content-type"), "application/problem+json");
    insta::assert_json_snapshot!("unknown_route", steady(&unknown.expect(404)));
    let method = service.client.send(service.client.request(Method::PUT, "/v1/events"), "").await;
    let mut allowed: Vec<&str> = method.header("allow").split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
    insta::assert_json_snapshot!("wrong_method", steady(&method.expect(405)));
    let form = service.client.request(Method::POST, "/v1/events").header("content-type", "text/plain");
    insta::assert_json_snapshot!("media_type", steady(&service.client.send(form, "{}").await.expect(415)));
    let none = service.client.send(service.client.request(Method::POST, "/v1/events"), "{}").await;
    assert_eq!(none.status, 415);
    let packed =
        service.client.request(Method::POST, "/v1/events").header("content-type", "application/json");
    let packed = service.client.send(packed.header("content-encoding", "gzip"), "{}").await;
    assert_eq!(packed.status, 415);
}

#[tokio::test]
async fn data_over_its_limit_is_413_and_names_the_field() {
    let service = Service::start().await;
    let event = json!({"type": "t", "data": "x".repeat(1024 * 1024)});
    let refused = service.client.post("/v1/events", event.to_string()).await;
    assert_eq!(refused.status, 413);
    assert_eq!(refused.errors(), [("data".to_owned(), "too_large".to_owned())]);
    let event = json!({"type": "t", "data": "x".repeat(1024 * 1024 - 2)});
    assert_eq!(service.client.post("/v1/events", event.to_string()).await.status, 202);
    let batch = json!({"events": [{"type": "t", "data": "x".repeat(1024 * 1024)}]});
    let answer = service.client.post("/v1/events/batch", batch.to_string()).await.expect(200);
    assert_eq!(answer["data"][0]["status"], 413);
}

#[tokio::test]
async fn every_answer_carries_the_headers_that_keep_browsers_in_check() {
    let service = Service::start().await;
    let (first, second) = (service.client.get("/v1/events").await, service.client.get("/nowhere").await);
    for answer in [&first, &second] {
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!(answer.header("x-request-id").starts_with("req_"));
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
    let preflight =
        service.client.request(Method::OPTIONS, "/v1/events").header("origin", "https://evil.example");
    let preflight = service.client.send(preflight, "").await;
    assert_eq!(preflight.status, 405);
    assert_eq!(preflight.header("access-control-allow-origin"), "");
}
