//! Publishing and looking at events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::json;

use crate::harness::Service;
use crate::shown::steady;

#[tokio::test]
async fn an_accepted_event_is_answered_202_and_reaches_its_endpoint() {
    let service = Service::start().await;
    let endpoint = service.endpoint("/hook", json!({"tenant": "acme", "eventTypes": ["order.*"]})).await;
    let other = service.endpoint("/other", json!({"tenant": "acme", "eventTypes": ["user.*"]})).await;
    let answer = service
        .client
        .post(
            "/v1/events",
            r#"{"tenant":"acme","type":"order.paid.v1","id":"ord_45","orderingKey":"ord_45","resourceVersion":7,"data":{"amount":12990}}"#,
        )
        .await
        .expect(202);
    insta::assert_json_snapshot!("published", steady(&answer));
    let id = answer["id"].as_str().expect("an id");
    service.delivery(id, "delivered").await;
    let hits = service.receiver.hits_at("/hook");
    assert_eq!(hits.len(), 1);
    assert_eq!(hits[0].webhook_id(), Some(id));

    let shown = service.client.get(&format!("/v1/events/{id}")).await.expect(200);
    insta::assert_json_snapshot!("event_shown", steady(&shown));
    assert_eq!(shown["deliveries"][0]["endpointId"], endpoint.as_str());
    assert_eq!(shown["unmatched"][0]["endpointId"], other.as_str());
    let body = service.client.get(&format!("/v1/events/{id}/body")).await;
    assert_eq!(body.body, hits[0].body);
    assert_eq!(body.header("content-type"), "application/json");
}

#[tokio::test]
async fn data_is_kept_byte_for_byte_or_refused_with_a_reason() {
    let service = Service::start().await;
    for data in [
        "0",
        "null",
        "\"\"",
        "-0.0e+9",
        r#"{ "a": 12.50, "n": 9007199254740993 , "a":2}"#,
        r#""\ud800""#,
        r#""\u0000""#,
        "[\n\t1 ,2]",
        "\"é\u{2028}\"",
        "1e999",
    ] {
        let request = format!(r#"{{"type":"t","data":  {data}  }}"#);
        let id = service.client.post("/v1/events", request).await.expect(202);
        let id = id["id"].as_str().expect("an id");
        let body = service.client.get(&format!("/v1/events/{id}/body")).await.body;
        let expected = format!("\"data\":{data}}}");
        assert!(body.ends_with(expected.as_bytes()), "{data}: {}", String::from_utf8_lossy(&body));
    }
    let nested =
        |depth: usize| format!(r#"{{"type":"t","data":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    service.client.post("/v1/events", nested(128)).await.expect(202);
    let refused = service.client.post("/v1/events", nested(129)).await;
    assert_eq!(refused.status, 422);
    assert_eq!(refused.json()["detail"], "data must be nested at most 128 deep");
    let broken = service.client.post("/v1/events", &b"{\"type\":\"t\",\"data\":\"\xff\"}"[..]).await;
    assert_eq!(broken.status, 400);
}

#[tokio::test]
async fn raw_payloads_are_sent_exactly_as_given() {
    let service = Service::start().await;
    service.endpoint("/raw", json!({})).await;
    let bytes = [0_u8, 159, 146, 150, 10];
    for (event, sent, content_type) in [
        (
            json!({"type": "t", "payload": "a\u{0}b <&>", "contentType": "text/plain; charset=utf-8"}),
            "a\u{0}b <&>".as_bytes(),
            "text/plain; charset=utf-8",
        ),
        (
            json!({"type": "t", "payloadBase64": STANDARD.encode(bytes), "contentType": "text/html"}),
            bytes.as_slice(),
            "text/html",
        ),
    ] {
        let id = service.publish(event).await;
        service.delivery(&id, "delivered").await;
        let hits = service.receiver.hits_at("/raw");
        let hit = hits.iter().find(|hit| hit.webhook_id() == Some(&id)).expect("sent");
        assert_eq!(hit.body, sent);
        assert_eq!(hit.header("content-type"), Some(content_type));
        let body = service.client.get(&format!("/v1/events/{id}/body")).await;
        assert_eq!(body.body, sent);
        assert_eq!(body.header("content-type"), content_type);
        assert_eq!(body.header("content-disposition"), "attachment");
        assert_eq!(body.header("content-security-policy"), "default-src 'none'; sandbox");
    }
}

#[tokio::test]
async fn the_same_id_answers_as_before_and_other_content_is_a_conflict() {
    let service = Service::start().await;
    let event = r#"{"type":"order.paid","id":"k1","data":{"a":1}}"#;
    let first = service.client.post("/v1/events", event).await.expect(202);
    let again = service.client.post("/v1/events", event).await.expect(200);
    assert_eq!(first, again);
    // The header is the same field by another name.
    let request =
        service.client.request(Method::POST, "/v1/events").header("content-type", "application/json");
    let request = request.header("idempotency-key", "k1");
    let by_header = service.client.send(request, r#"{"type":"order.paid","data":{"a":1}}"#).await.expect(200);
    assert_eq!(first, by_header);
    let other = service.client.post("/v1/events", event.replace("1}", "2}")).await;
    insta::assert_json_snapshot!("id_conflict", steady(&other.expect(409)));
    // Another tenant's ids are its own.
    service.client.post("/v1/events", event.replace("{\"type", "{\"tenant\":\"b\",\"type")).await.expect(202);
    let request =
        service.client.request(Method::POST, "/v1/events").header("content-type", "application/json");
    let both = service.client.send(request.header("idempotency-key", "k2"), event).await;
    assert_eq!(both.status, 422);
    assert_eq!(both.errors(), [("id".to_owned(), "not_allowed".to_owned())]);
}

#[tokio::test]
async fn one_bad_event_of_a_batch_harms_no_other() {
    let service = Service::start().await;
    let batch = json!({"events": [
        {"type": "order.paid", "data": 1, "id": "a"},
        {"type": "pombo.secret", "data": 1, "evil": true},
        {"type": "order.paid", "data": 1, "id": "a"},
        {"type": "order.paid", "data": 2, "id": "a"},
        7,
        {"type": "order.paid", "payload": "x", "contentType": "text/plain"},
    ]});
    let answer = service.client.post("/v1/events/batch", batch.to_string()).await.expect(200);
    let statuses: Vec<_> =
        answer["data"].as_array().expect("a list").iter().map(|item| item["status"].clone()).collect();
    assert_eq!(statuses, [202, 422, 200, 409, 422, 202].map(|status| json!(status)));
    assert_eq!(answer["data"][0]["id"], answer["data"][2]["id"]);
    insta::assert_json_snapshot!("batch", steady(&answer));
    for (batch, code) in [
        (json!({}), "required"),
        (json!({"events": []}), "range"),
        (json!({"events": vec![1; 1001]}), "too_large"),
        (json!({"events": {}}), "type"),
    ] {
        let refused = service.client.post("/v1/events/batch", batch.to_string()).await;
        assert_eq!(refused.status, 422);
        assert_eq!(refused.errors(), [("events".to_owned(), code.to_owned())]);
    }
}

#[tokio::test]
async fn deliver_at_is_kept_and_bounded() {
    let service = Service::start().await;
    service.endpoint("/later", json!({})).await;
    let later = service.engine.now().plus(std::time::Duration::from_secs(3600));
    let id = service.publish(json!({"type": "t", "data": 1, "deliverAt": later.to_string()})).await;
    let delivery = service.delivery(&id, "pending").await;
    assert_eq!(delivery["why"]["code"], "deliver_at");
    assert_eq!(delivery["nextAttemptAt"], later.to_string());
    let far = service.engine.now().plus(std::time::Duration::from_secs(31 * 24 * 3600));
    let event = json!({"type": "t", "data": 1, "deliverAt": far.to_string()});
    let refused = service.client.post("/v1/events", event.to_string()).await;
    assert_eq!(refused.errors(), [("deliverAt".to_owned(), "range".to_owned())]);
}

#[tokio::test]
async fn named_endpoints_get_it_and_unknown_ones_are_refused() {
    let service = Service::start().await;
    let named = service.endpoint("/named", json!({"eventTypes": ["nothing.*"]})).await;
    let other = service.endpoint("/unnamed", json!({})).await;
    let id = service.publish(json!({"type": "t", "data": 1, "endpoints": [named, named]})).await;
    let shown = service.client.get(&format!("/v1/events/{id}")).await.expect(200);
    assert_eq!(shown["deliveries"].as_array().map(Vec::len), Some(1));
    assert_eq!(shown["unmatched"][0]["endpointId"], other.as_str());
    assert_eq!(shown["unmatched"][0]["code"], "not_targeted");
    for (endpoints, error) in [
        (json!(["ep_01h455vb4pex5vsknk084sn02q"]), ("endpoints", "unknown")),
        (json!([]), ("endpoints", "range")),
        (json!([named, "evt_01h455vb4pex5vsknk084sn02q"]), ("endpoints[1]", "invalid")),
        (json!([5]), ("endpoints[0]", "type")),
    ] {
        let event = json!({"type": "t", "data": 1, "endpoints": endpoints});
        let refused = service.client.post("/v1/events", event.to_string()).await;
        assert_eq!(refused.status, 422);
        assert_eq!(refused.errors(), [(error.0.to_owned(), error.1.to_owned())]);
    }
}

#[tokio::test]
async fn lists_of_events_are_narrowed_and_walked_page_by_page() {
    let service = Service::start().await;
    service.endpoint("/hook", json!({"tenant": "acme"})).await;
    for n in 0..5 {
        let tenant = if n == 4 { "nobody" } else { "acme" };
        service.publish(json!({"tenant": tenant, "type": format!("t.{}", n % 2), "data": n})).await;
    }
    let ids = |page: &serde_json::Value| -> Vec<String> {
        let items = page["data"].as_array().expect("a list");
        items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
    };
    let all = ids(&service.client.get("/v1/events").await.expect(200));
    assert_eq!(all.len(), 5);
    let mut walked = Vec::new();
    let mut path = "/v1/events?limit=2".to_owned();
    loop {
        let page = service.client.get(&path).await.expect(200);
        walked.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/events?limit=2&after={next}");
    }
    assert_eq!(walked, all);
    let count = |query: &'static str| {
        let client = service.client.clone();
        async move { ids(&client.get(&format!("/v1/events?{query}")).await.expect(200)).len() }
    };
    assert_eq!(count("tenant=acme").await, 4);
    assert_eq!(count("tenant=acme&type=t.1").await, 2);
    assert_eq!(count("unmatched=true").await, 1);
    assert_eq!(count("since=2100-01-01T00:00:00Z").await, 0);
    assert_eq!(count("until=2100-01-01T00:00:00Z").await, 5);
    assert_eq!(count("tenant=unknown").await, 0);
}
