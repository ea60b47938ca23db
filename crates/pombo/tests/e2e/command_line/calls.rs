//! Commands on data, against a scripted server: what is sent is what the API takes, and its answers read well.

use std::time::Duration;

use pombo_testkit::receiver::{Answer, Receiver, Script};
use serde_json::{Value, json};

use super::{Ended, Typed};

async fn server() -> Receiver {
    Receiver::start().await.expect("a port is free")
}

fn answers(status: u16, body: &Value) -> Script {
    Script::always(Answer::status(status).header("content-type", "application/json").body(body.to_string()))
}

async fn run(server: &Receiver, words: &[&str]) -> Ended {
    let address = server.url("");
    Typed::words(words.iter().copied().chain(["--server", address.as_str(), "--api-key", "pk_x"])).run().await
}

#[tokio::test]
async fn data_is_sent_byte_for_byte() {
    let server = server().await;
    let accepted = json!({"id": "evt_1", "type": "order.paid", "tenant": "acme", "deliveries": 2});
    server.script("/v1/events", answers(202, &accepted));
    let data = r#"{ "a": 12.50, "a":1, "n": 9007199254740993, "s":"\ud800" }"#;
    let words = [
        "send",
        "order.paid",
        "--tenant",
        "acme",
        "--data",
        data,
        "--ordering-key",
        "k",
        "--id",
        "i",
        "--json",
    ];
    let ended = run(&server, &words).await;
    assert_eq!(ended.succeeds(), format!("{accepted}\n"));
    let hits = server.hits();
    let body = String::from_utf8(hits[0].body.to_vec()).expect("text");
    assert_eq!(
        body,
        format!(r#"{{"type":"order.paid","tenant":"acme","data":{data},"id":"i","orderingKey":"k"}}"#)
    );
    assert_eq!(hits[0].header("authorization"), Some("Bearer pk_x"));
    assert_eq!(hits[0].header("content-type"), Some("application/json"));
}

fn deliveries(statuses: &[&str]) -> Value {
    let items: Vec<Value> =
        statuses.iter().map(|status| json!({"id": format!("dlv_{status}"), "status": status})).collect();
    json!({ "data": items, "next": null })
}

async fn send_and_wait(pages: &[Value], limit: &str) -> Ended {
    let server = server().await;
    let count = pages[0]["data"].as_array().map_or(0, Vec::len);
    let accepted = json!({"id": "evt_1", "type": "t", "tenant": "default", "deliveries": count});
    server.script("/v1/events", answers(202, &accepted));
    let pages = pages.iter().map(|page| Answer::status(200).body(page.to_string()));
    server.script("/v1/deliveries", Script::sequence(pages));
    run(&server, &["send", "t", "--wait", limit]).await
}

#[tokio::test]
async fn wait_ends_when_every_delivery_is_settled() {
    let pages = [
        deliveries(&["pending", "sending"]),
        deliveries(&["delivered", "retrying"]),
        deliveries(&["delivered", "delivered"]),
    ];
    let ended = send_and_wait(&pages, "20s").await;
    assert!(ended.succeeds().contains("evt_1  t  tenant default  2 deliveries"), "{ended:?}");
}

#[tokio::test]
async fn wait_fails_where_not_everything_was_delivered() {
    let ended = send_and_wait(&[deliveries(&["delivered", "dead"])], "20s").await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("1 of 2 delivered, 1 dead, 0 cancelled"), "{ended:?}");
    let ended = send_and_wait(&[deliveries(&["retrying"])], "100ms").await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("0 of 1 delivered within 100ms; the rest goes on"), "{ended:?}");
    let ended = send_and_wait(&[deliveries(&[])], "20s").await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("no endpoint of this tenant takes this type"), "{ended:?}");
}

#[tokio::test]
async fn lists_are_tables_for_people_and_the_api_s_own_json_for_scripts() {
    let server = server().await;
    let page = json!({"data": [{"id": "ep_1", "status": "active", "tenant": "acme", "url": "https://a.example/\u{1b}[2J"}], "next": "c1"});
    server.script("/v1/endpoints", answers(200, &page));
    let ended = run(&server, &["endpoints", "list", "--tenant", "acme", "--limit", "1"]).await;
    assert_eq!(
        ended.succeeds(),
        "ID    STATUS  TENANT  TYPES  URL                          CREATED\n\
         ep_1  active  acme    -      https://a.example/\\u{1b}[2J  -\n"
    );
    assert_eq!(ended.stderr, "more: --after c1\n");
    assert_eq!(server.hits()[0].query.as_deref(), Some("limit=1&tenant=acme"));
    let ended = run(&server, &["endpoints", "list", "--json"]).await;
    assert_eq!(ended.succeeds(), format!("{page}\n"));
}

#[tokio::test]
async fn endpoints_are_made_from_flags() {
    let server = server().await;
    server.script("/v1/endpoints", answers(201, &json!({"id": "ep_1", "secret": "whsec_x"})));
    let words = [
        "endpoints",
        "create",
        "https://a.example/h",
        "--tenant",
        "acme",
        "--types",
        "order.*,x",
        "--timeout",
        "5s",
        "--header",
        "X-Key: k",
        "--retry",
        r#"{"schedule":["0s","1m"]}"#,
        "--header-style",
        "both",
    ];
    let ended = run(&server, &words).await;
    assert_eq!(ended.succeeds(), "id      ep_1\nsecret  whsec_x\n");
    assert_eq!(
        server.hits()[0].json().expect("JSON"),
        json!({
            "url": "https://a.example/h", "tenant": "acme", "eventTypes": ["order.*", "x"], "timeoutMs": 5000,
            "headers": {"X-Key": "k"}, "retry": {"schedule": ["0s", "1m"]}, "headerStyle": "both",
        })
    );
}

#[tokio::test]
async fn a_failed_test_of_an_endpoint_fails() {
    let server = server().await;
    let attempt = json!({"n": 1, "class": "connect", "message": "connection refused"});
    server.script("/v1/endpoints/ep_1/test", answers(200, &attempt));
    let ended = run(&server, &["endpoints", "test", "ep_1"]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stdout.contains("connection refused"), "{ended:?}");
}

#[tokio::test]
async fn all_dead_letters_of_a_filter_come_back_over_several_pages() {
    let server = server().await;
    let pages = [
        json!({"data": [{"deliveryId": "dlv_1"}, {"deliveryId": "dlv_2"}], "next": "c"}),
        json!({"data": [{"deliveryId": "dlv_3"}], "next": null}),
    ];
    let pages = pages.map(|page| Answer::status(200).body(page.to_string()));
    server.script("/v1/dead-letters", Script::sequence(pages));
    server.script_others(answers(200, &json!({"outcome": "revived"})));
    let ended = run(&server, &["dead", "retry", "--all", "--endpoint", "ep_1", "--reason", "fixed"]).await;
    assert_eq!(ended.succeeds(), "dlv_1\ndlv_2\ndlv_3\n");
    let hits = server.wait_for(Duration::from_secs(5), |hits| hits.len() == 5).await.expect("five calls");
    assert_eq!(hits[1].query.as_deref(), Some("endpoint=ep_1&limit=250&after=c"));
    assert_eq!(hits[4].path, "/v1/deliveries/dlv_3/retry");
    assert_eq!(hits[4].json().expect("JSON"), json!({"reason": "fixed"}));
}

#[tokio::test]
async fn problems_are_sentences_that_name_the_field() {
    let server = server().await;
    let problem = json!({
        "type": "/errors/invalid", "title": "Invalid", "status": 422, "detail": "One field is wrong.",
        "errors": [{"field": "url", "code": "url", "message": "must begin with https://"}],
    });
    server.script_others(answers(422, &problem));
    run(&server, &["endpoints", "create", "ftp://x"]).await.fails(1, "`url` must begin with https:// [422]");
    let problem = json!({"title": "Unauthorized", "status": 401, "detail": "there is no such API key"});
    server.script_others(answers(401, &problem));
    run(&server, &["events", "list"]).await.fails(1, "there is no such API key [401]");
    server.script_others(Script::always(Answer::redirect(302, "https://login.example/")));
    run(&server, &["events", "list"]).await.fails(1, "redirects to https://login.example/");
    server.script_others(Script::always(Answer::status(200).body("<html>")));
    run(&server, &["events", "list"]).await.fails(1, "is not what this command expects");
    server.script_others(Script::always(Answer::closed()));
    run(&server, &["events", "list"]).await.fails(1, "whether the call was carried out is unknown");
}
