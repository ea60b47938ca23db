//! What is published.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use pombo_testkit::receiver::Hit;
use serde_json::json;
use standardwebhooks::Webhook;
use tokio::task::JoinSet;

use crate::harness::calls::{SOON, create_endpoint, publish, publish_bytes, text};
use crate::harness::database::Kind;
use crate::harness::on_both;
use crate::harness::stage::{Stage, with_short_lease};

on_both!(
    repeated_id_after_a_kill_answers_the_same_event_and_all_are_delivered,
    two_tenants_may_use_the_same_event_id,
    bytes_on_the_wire_are_the_bytes_that_were_given_and_signed,
    event_of_a_tenant_without_endpoints_is_kept_and_shown_as_unmatched,
);

/// faults S1. Sixteen clients publish; the process is killed when some have their answer and the others may or may
/// not be committed. All repeat their ids.
async fn repeated_id_after_a_kill_answers_the_same_event_and_all_are_delivered(kind: Kind) -> Result<()> {
    const CLIENTS: usize = 16;
    let stage = Stage::new(kind).await?.launched(with_short_lease);
    let mut process = stage.launch.start().await?;
    create_endpoint(process.api(), &json!({"url": stage.receiver.url("/hooks"), "timeoutMs": 1000})).await?;
    let mut all = BTreeMap::new();
    for round in 0..3 {
        let answered = std::sync::Arc::new(AtomicUsize::new(0));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (api, answered) = (process.api().clone(), std::sync::Arc::clone(&answered));
            clients.spawn(async move {
                let key = format!("order {round}.{client}");
                let event = json!({"type": "order.paid", "id": key, "data": {"key": key}});
                let answer = api.post("/v1/events", &event).await.ok();
                answered.fetch_add(1, Ordering::Relaxed);
                (event, answer.filter(|answer| answer.status == 202))
            });
        }
        let enough = round * 5;
        while answered.load(Ordering::Relaxed) < enough {
            tokio::task::yield_now().await;
        }
        process.kill().await?;
        process = stage.launch.start().await?;
        for (event, first) in clients.join_all().await {
            let again = process.api().post("/v1/events", &event).await?;
            if let Some(first) = first {
                assert_eq!(again.status, 200, "{}", again.text());
                assert_eq!(again.json(), first.json(), "the first answer, once more");
            } else {
                ensure!(matches!(again.status, 200 | 202), "{} {}", again.status, again.text());
            }
            all.insert(text(&again.json(), "id")?, text(&event, "id")?);
        }
    }
    assert_eq!(all.len(), 3 * CLIENTS, "an event for each id");
    let arrived = |hits: &[Hit]| all.keys().all(|id| hits.iter().any(|hit| hit.webhook_id() == Some(id)));
    let hits = stage.receiver.wait_for(SOON * 2, arrived).await?;
    for hit in &hits {
        let id = hit.webhook_id().context("a webhook-id")?;
        assert_eq!(
            all.get(id).map(String::as_str),
            hit.json()?["data"]["key"].as_str(),
            "nothing unexpected"
        );
    }
    stage.check().await
}

/// faults S12.
async fn two_tenants_may_use_the_same_event_id(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let mut expected = BTreeMap::new();
    for tenant in ["acme", "globex"] {
        let path = format!("/{tenant}");
        create_endpoint(api, &json!({"tenant": tenant, "url": stage.receiver.url(&path)})).await?;
        let event = json!({"tenant": tenant, "type": "order.paid", "id": "order-1", "data": {"of": tenant}});
        expected.insert(path, publish(api, &event).await?);
    }
    let hits = stage.receiver.wait_for(SOON, |hits| hits.len() >= 2).await?;
    let arrived: BTreeMap<String, String> =
        hits.iter().filter_map(|hit| Some((hit.path.clone(), hit.webhook_id()?.to_owned()))).collect();
    assert_eq!(arrived, expected);
    assert_eq!(arrived.values().collect::<std::collections::BTreeSet<_>>().len(), 2, "two events");
    Ok(())
}

/// faults S13, and every JSON value that some database or library is known to change.
async fn bytes_on_the_wire_are_the_bytes_that_were_given_and_signed(kind: Kind) -> Result<()> {
    const DATA: [&str; 9] = [
        "{ \"a\": 12.50,\t\"n\": 9007199254740993 ,\r\n\"b\":1e400, \"a\": 2}",
        "0",
        "null",
        "\"\"",
        "-0.0",
        "[ ]",
        "\"\\u0000\"",
        "\"\\ud800 and \\/ and \\u00e9\"",
        "\"João 🐦 \u{2028}\"",
    ];
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let endpoint = create_endpoint(api, &json!({"url": stage.receiver.url("/hooks")})).await?;
    let mut given = BTreeMap::new();
    for data in DATA {
        let request = format!(r#"{{"type":"order.paid","data":{data}}}"#);
        given.insert(publish_bytes(api, request).await?, data);
    }
    let hits = stage.receiver.wait_for(SOON, |hits| hits.len() >= DATA.len()).await?;
    let verifier = Webhook::new(&endpoint.secret)?;
    for hit in &hits {
        let id = hit.webhook_id().context("a webhook-id")?;
        let data = given.get(id).context("an event that was published")?;
        let body = std::str::from_utf8(&hit.body)?;
        ensure!(body.ends_with(&format!(r#","data":{data}}}"#)), "{data:?} became {body:?}");
        ensure!(body.starts_with(&format!(r#"{{"id":"{id}","type":"order.paid","createdAt":""#)), "{body:?}");
        verifier.verify(&hit.body, &hit.headers)?;
        let kept = api.get(&format!("/v1/events/{id}/body")).await?;
        assert_eq!((kept.status, &kept.body), (200, &hit.body));
    }
    Ok(())
}

/// faults S26.
async fn event_of_a_tenant_without_endpoints_is_kept_and_shown_as_unmatched(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let event = json!({"tenant": "newcomer", "type": "order.paid", "id": "first", "data": {"n": 1}});
    let answer = api.post("/v1/events", &event).await?.expect(202);
    assert_eq!(answer["deliveries"], 0);
    let id = text(&answer, "id")?;
    let url = stage.receiver.url("/hooks");
    let later = create_endpoint(api, &json!({"tenant": "newcomer", "url": url})).await?;
    let shown = api.get(&format!("/v1/events/{id}")).await?.expect(200);
    assert_eq!((&shown["tenant"], &shown["deliveryCount"]), (&json!("newcomer"), &json!(0)), "{shown:#}");
    let unmatched = shown["unmatched"].as_array().context("unmatched endpoints")?;
    assert_eq!(unmatched.len(), 1, "{shown:#}");
    assert_eq!(unmatched[0]["endpointId"], later.id.as_str());
    assert_eq!(unmatched[0]["code"], "created_later");
    let body = api.get(&format!("/v1/events/{id}/body")).await?.text();
    ensure!(body.ends_with(r#","data":{"n":1}}"#), "the body is kept: {body}");
    let next = publish(api, &json!({"tenant": "newcomer", "type": "order.paid", "data": {"n": 2}})).await?;
    let hits = stage.receiver.wait_for(SOON, |hits| !hits.is_empty()).await?;
    assert_eq!(hits[0].webhook_id(), Some(next.as_str()), "the next one goes to the new endpoint");
    stage.check().await
}
