//! Keys, scopes and tenants.

use http::Method;
use pombo_server::{ServerConfig, bootstrap};
use pombo_store::admin::Scopes;
use serde_json::json;

use crate::client::Client;
use crate::harness::{Service, Setup};
use crate::shown::steady;

const ONLY_READ: Scopes = Scopes { admin: false, publish: false, read: true };
const ONLY_PUBLISH: Scopes = Scopes { admin: false, publish: true, read: false };
const ADMIN: Scopes = Scopes { admin: true, publish: false, read: false };

fn with_key(scopes: Scopes, tenant: Option<&'static str>) -> Setup {
    Setup { key: Some((scopes, tenant)), ..Setup::default() }
}

#[tokio::test]
async fn without_a_known_key_nothing_is_answered_but_health() {
    let service = Service::start().await;
    let nobody = Client { key: None, ..service.client.clone() };
    let refused = nobody.get("/v1/events").await;
    assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"pombo\"");
    insta::assert_json_snapshot!("unauthorized", steady(&refused.expect(401)));
    let stranger = Client { key: Some(format!("pk_{}", "x".repeat(43))), ..service.client.clone() };
    assert_eq!(stranger.get("/v1/events").await.status, 401);
    assert_eq!(stranger.post("/v1/events", "not json").await.status, 401);
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(nobody.get(path).await.status, 200, "{path}");
    }
    let metrics = nobody.get("/metrics").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("pombo_"), "{metrics:?}");
}

#[tokio::test]
async fn the_bootstrap_key_is_made_once() {
    let service = Service::start().await;
    let key = service.client.key.clone().expect("a key");
    assert_eq!((key.len(), &key[..3]), (46, "pk_"));
    let again = bootstrap(&**service.engine.store(), service.engine.now(), &mut rand::rng()).await;
    assert!(again.expect("asked").is_none());
}

#[tokio::test]
async fn scopes_bound_what_a_key_may_do() {
    let reader = Service::with(with_key(ONLY_READ, None)).await;
    assert_eq!(reader.client.get("/v1/events").await.status, 200);
    assert_eq!(reader.client.get("/v1/audit").await.status, 403);
    let refused = reader.client.post("/v1/events", r#"{"type":"t","data":1}"#).await;
    insta::assert_json_snapshot!("forbidden", steady(&refused.expect(403)));
    let publisher = Service::with(with_key(ONLY_PUBLISH, None)).await;
    publisher.publish(json!({"type": "t", "data": 1})).await;
    assert_eq!(publisher.client.get("/v1/events").await.status, 403);
    assert_eq!(publisher.client.post("/v1/endpoints", r#"{"url":"http://127.0.0.1:9/"}"#).await.status, 403);
}

#[tokio::test]
async fn a_key_of_one_tenant_sees_and_changes_nothing_of_another() {
    let service = Service::with(with_key(ADMIN, Some("acme"))).await;
    let own = service.endpoint("/own", json!({"tenant": "acme"})).await;
    // The same service with a key for all, through `--dev`'s door: another router over the same engine.
    let state = pombo_server::AppState::new(
        service.engine.clone(),
        ServerConfig { dev: true, ..ServerConfig::default() },
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let all = Client { address: listener.local_addr().expect("an address"), key: None };
    let limits = pombo_server::ServeLimits::default();
    tokio::spawn(pombo_server::serve(listener, pombo_server::router(state), limits, std::future::pending()));
    let new = json!({"tenant": "other", "url": service.receiver.url("/other")});
    let foreign = all.post("/v1/endpoints", new.to_string()).await.expect(201)["id"].clone();
    let foreign = foreign.as_str().expect("an id");
    let event =
        all.post("/v1/events", r#"{"tenant":"other","type":"t","data":1}"#).await.expect(202)["id"].clone();
    let event = event.as_str().expect("an id");
    let page = all.get(&format!("/v1/deliveries?event={event}")).await.expect(200);
    let delivery = page["data"][0]["id"].as_str().expect("an id").to_owned();

    for path in [
        format!("/v1/endpoints/{foreign}"),
        format!("/v1/endpoints/{foreign}/secret"),
        format!("/v1/events/{event}"),
        format!("/v1/events/{event}/body"),
        format!("/v1/deliveries/{delivery}"),
    ] {
        assert_eq!(service.client.get(&path).await.status, 404, "{path}");
    }
    for path in [
        format!("/v1/endpoints/{foreign}/pause"),
        format!("/v1/endpoints/{foreign}/resume"),
        format!("/v1/endpoints/{foreign}/test"),
        format!("/v1/endpoints/{foreign}/rotate-secret"),
        format!("/v1/deliveries/{delivery}/retry"),
        format!("/v1/deliveries/{delivery}/cancel"),
    ] {
        assert_eq!(service.client.post(&path, "").await.status, 404, "{path}");
    }
    assert_eq!(service.client.patch(&format!("/v1/endpoints/{foreign}"), "{}").await.status, 404);
    assert_eq!(service.client.delete(&format!("/v1/endpoints/{foreign}")).await.status, 404);
    for list in ["events", "endpoints", "deliveries", "dead-letters", "audit"] {
        let page = service.client.get(&format!("/v1/{list}")).await.expect(200);
        assert!(!page.to_string().contains("other"), "{list}: {page}");
        let named = service.client.get(&format!("/v1/{list}?tenant=other")).await;
        assert_eq!(named.status, 403, "{list}");
    }
    let page = service.client.get(&format!("/v1/deliveries?event={event}")).await.expect(200);
    assert_eq!(page["data"], json!([]));
    let refused = service.client.post("/v1/events", r#"{"tenant":"other","type":"t","data":1}"#).await;
    insta::assert_json_snapshot!("other_tenant", steady(&refused.expect(403)));
    let named = json!({"tenant": "acme", "type": "t", "data": 1, "endpoints": [foreign]});
    let refused = service.client.post("/v1/events", named.to_string()).await;
    assert_eq!(refused.errors(), [("endpoints".to_owned(), "unknown".to_owned())]);
    assert_eq!(service.client.get(&format!("/v1/endpoints/{own}")).await.status, 200);
}

#[tokio::test]
async fn dev_needs_no_key_from_localhost_and_still_refuses_web_pages() {
    let server = ServerConfig { dev: true, ..ServerConfig::default() };
    let service = Service::with(Setup { server, ..Setup::default() }).await;
    let nobody = Client { key: None, ..service.client.clone() };
    nobody.post("/v1/events", r#"{"type":"t","data":1}"#).await.expect(202);
    let form = nobody.request(Method::POST, "/v1/events").header("content-type", "text/plain");
    assert_eq!(nobody.send(form, r#"{"type":"t","data":1}"#).await.status, 401);
    let rebound = http::Request::builder().uri("/v1/events").header("host", "evil.example");
    assert_eq!(nobody.send(rebound, "").await.status, 401);
    let wrong = Client { key: Some("pk_short".to_owned()), ..service.client.clone() };
    assert_eq!(wrong.get("/v1/events").await.status, 401);
}
