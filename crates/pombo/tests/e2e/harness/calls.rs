//! Calls of the API that many tests make.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Method;
use pombo_testkit::api::Api;
use serde_json::{Value, json};

/// How long something may take that happens at once on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(25);

/// An endpoint as its creator sees it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// Makes an endpoint.
pub(crate) async fn create_endpoint(api: &Api, endpoint: &Value) -> Result<Endpoint> {
    let made = api.post("/v1/endpoints", endpoint).await?.expect(201);
    Ok(Endpoint { id: text(&made, "id")?, secret: text(&made, "secret")? })
}

/// Publishes an event that must be accepted as new, and returns its id.
pub(crate) async fn publish(api: &Api, event: &Value) -> Result<String> {
    text(&api.post("/v1/events", event).await?.expect(202), "id")
}

/// Publishes an event given as the exact bytes of the request.
pub(crate) async fn publish_bytes(api: &Api, event: impl Into<Bytes>) -> Result<String> {
    text(&api.call(Method::POST, "/v1/events", event.into()).await?.expect(202), "id")
}

/// Every delivery that the query of the list chooses, newest first.
pub(crate) async fn deliveries(api: &Api, query: &str) -> Result<Vec<Value>> {
    list(api, &format!("/v1/deliveries?limit=250&{query}")).await
}

/// All pages of a list.
pub(crate) async fn list(api: &Api, path: &str) -> Result<Vec<Value>> {
    let mut items = Vec::new();
    let mut page = api.get(path).await?.expect(200);
    // Each page but the last is full, so this ends.
    loop {
        items.extend(page["data"].as_array().context("a list has data")?.iter().cloned());
        let Some(next) = page["next"].as_str() else { return Ok(items) };
        page = api.get(&format!("{path}&after={next}")).await?.expect(200);
    }
}

/// The one delivery of an event, with its timeline, as soon as it is as wanted.
pub(crate) async fn delivery_when(api: &Api, event: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let since = Instant::now();
    loop {
        let found = deliveries(api, &format!("event={event}")).await?;
        let [delivery] = found.as_slice() else { bail!("{event} has {} deliveries", found.len()) };
        let detail = api.get(&format!("/v1/deliveries/{}", text(delivery, "id")?)).await?.expect(200);
        if wanted(&detail) {
            return Ok(detail);
        }
        if since.elapsed() > SOON {
            bail!("not as wanted after {SOON:?}: {detail:#}");
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The one delivery of an event as soon as it has this status.
pub(crate) async fn delivery_with_status(api: &Api, event: &str, status: &str) -> Result<Value> {
    delivery_when(api, event, |delivery| delivery["status"] == status).await
}

/// The attempts of a delivery.
pub(crate) fn timeline(delivery: &Value) -> &[Value] {
    delivery["timeline"].as_array().map_or(&[], Vec::as_slice)
}

/// Waits for a condition that has to be asked for.
pub(crate) async fn eventually<F>(limit: Duration, what: &str, mut condition: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let since = Instant::now();
    while !condition().await? {
        if since.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
    Ok(())
}

/// A retry policy that tries often and soon: failures of receivers must not slow a test down, nor end a delivery.
pub(crate) fn eager_retries() -> Value {
    let mut schedule = vec!["0s"];
    schedule.resize(50, "100ms");
    json!({"schedule": schedule, "jitter": "none"})
}

/// A policy of one attempt.
pub(crate) fn single_attempt() -> Value {
    json!({"schedule": ["0s"], "jitter": "none"})
}

/// A text field.
pub(crate) fn text(value: &Value, field: &str) -> Result<String> {
    Ok(value[field].as_str().with_context(|| format!("no {field} in {value}"))?.to_owned())
}
