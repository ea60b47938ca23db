//! What endpoints go through.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pombo_testkit::receiver::{Answer, Hit, Script};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::harness::calls::{SOON, create_endpoint, deliveries, eventually, publish, text};
use crate::harness::database::Kind;
use crate::harness::on_both;
use crate::harness::stage::Stage;

on_both!(
    pending_retries_of_a_paused_endpoint_all_resume,
    backlog_of_an_endpoint_disabled_by_a_410_all_resumes,
    rotated_secret_signs_the_next_attempt_beside_the_old_one,
    urls_are_normalised_or_refused_with_the_reason,
);

/// A second between the tries: long enough that a hundred of them wait at any time.
fn a_try_each_second() -> Value {
    let mut schedule = vec!["0s"];
    schedule.resize(50, "1s");
    json!({"schedule": schedule, "jitter": "none"})
}

/// faults S7.
async fn pending_retries_of_a_paused_endpoint_all_resume(kind: Kind) -> Result<()> {
    const EVENTS: usize = 100;
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    stage.receiver.script("/hooks", Answer::status(503).into());
    let url = stage.receiver.url("/hooks");
    let endpoint = create_endpoint(api, &json!({"url": url, "retry": a_try_each_second()})).await?;
    for n in 0..EVENTS {
        publish(api, &json!({"type": "order.paid", "data": n})).await?;
    }
    let tried = |hits: &[Hit]| distinct(hits) == EVENTS;
    stage.receiver.wait_for(SOON, tried).await?;
    api.post(&format!("/v1/endpoints/{}/pause", endpoint.id), &json!({})).await?.expect(200);
    let parked = || async { Ok(deliveries(api, "status=paused").await?.len() == EVENTS) };
    eventually(SOON, "a hundred deliveries are paused", parked).await?;
    let while_paused = stage.receiver.hit_count();
    stage.receiver.script("/hooks", Answer::status(200).into());
    // Longer than any of them had to wait: paused means that none is sent.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(stage.receiver.hit_count(), while_paused, "nothing is sent while it is paused");
    api.post(&format!("/v1/endpoints/{}/resume", endpoint.id), &json!({})).await?.expect(200);
    let delivered = || async { Ok(deliveries(api, "status=delivered").await?.len() == EVENTS) };
    eventually(SOON, "all hundred are delivered", delivered).await?;
    assert_eq!(stage.receiver.hit_count(), while_paused + EVENTS, "each once");
    stage.check().await
}

fn distinct(hits: &[Hit]) -> usize {
    hits.iter().filter_map(Hit::webhook_id).collect::<std::collections::BTreeSet<_>>().len()
}

/// faults S7, for the other way in which an endpoint stops.
async fn backlog_of_an_endpoint_disabled_by_a_410_all_resumes(kind: Kind) -> Result<()> {
    const EVENTS: usize = 20;
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    stage.receiver.script("/hooks", Answer::status(503).into());
    let url = stage.receiver.url("/hooks");
    let endpoint =
        create_endpoint(api, &json!({"url": url, "retry": a_try_each_second(), "maxConcurrency": 1})).await?;
    for n in 0..EVENTS {
        publish(api, &json!({"type": "order.paid", "data": n})).await?;
    }
    stage.receiver.wait_for(SOON, |hits| distinct(hits) == EVENTS).await?;
    stage.receiver.script("/hooks", Script::sequence([Answer::status(410), Answer::status(503)]));
    let parked = || async { Ok(deliveries(api, "status=paused").await?.len() == EVENTS - 1) };
    eventually(SOON, "all but the dead one are paused", parked).await?;
    let shown = api.get(&format!("/v1/endpoints/{}", endpoint.id)).await?.expect(200);
    assert_eq!(
        (&shown["status"], &shown["disabledReason"]),
        (&json!("disabled"), &json!("gone")),
        "{shown:#}"
    );
    stage.receiver.script("/hooks", Answer::status(200).into());
    api.post(&format!("/v1/endpoints/{}/resume", endpoint.id), &json!({})).await?.expect(200);
    let delivered = || async { Ok(deliveries(api, "status=delivered").await?.len() == EVENTS - 1) };
    eventually(SOON, "the backlog is delivered", delivered).await?;
    assert_eq!(deliveries(api, "status=dead").await?.len(), 1, "the one that was answered 410");
    stage.check().await
}

/// faults S11.
async fn rotated_secret_signs_the_next_attempt_beside_the_old_one(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let endpoint = create_endpoint(api, &json!({"url": stage.receiver.url("/hooks")})).await?;
    let (mut secrets, mut void) = (vec![endpoint.secret], Vec::<String>::new());
    for round in 0..4 {
        let id = publish(api, &json!({"type": "order.paid", "data": round})).await?;
        let arrived = |hits: &[Hit]| hits.iter().any(|hit| hit.webhook_id() == Some(&id));
        let hits = stage.receiver.wait_for(SOON, arrived).await?;
        let hit = hits.iter().find(|hit| hit.webhook_id() == Some(&id)).context("it arrived")?;
        for secret in &secrets {
            Webhook::new(secret)?
                .verify(&hit.body, &hit.headers)
                .with_context(|| format!("round {round}, one of {} secrets", secrets.len()))?;
        }
        for secret in &void {
            ensure!(
                Webhook::new(secret)?.verify(&hit.body, &hit.headers).is_err(),
                "signed with a void secret"
            );
        }
        let count = hit.header("webhook-signature").context("signed")?.split(' ').count();
        assert_eq!(count, secrets.len(), "one signature for each secret that is valid");
        let rotate = format!("/v1/endpoints/{}/rotate-secret", endpoint.id);
        // The last rotation leaves no overlap: every older secret is void at once.
        let last = round == 2;
        let overlap = if last { json!({"overlapSeconds": 0}) } else { json!({}) };
        let rotated = api.post(&rotate, &overlap).await?.expect(200);
        if last {
            void.append(&mut secrets);
        }
        secrets.push(text(&rotated, "secret")?);
    }
    assert_eq!(void.len(), 3, "the last event was signed with none of them");
    Ok(())
}

/// faults S27.
async fn urls_are_normalised_or_refused_with_the_reason(kind: Kind) -> Result<()> {
    let (_stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let normalised = [
        ("https://EXAMPLE.com/Hooks", "https://example.com/Hooks"),
        ("https://example.com:443", "https://example.com/"),
        ("https://b\u{fc}cher.example/x y", "https://xn--bcher-kva.example/x%20y"),
        ("https://example.com/a/../b", "https://example.com/b"),
    ];
    for (given, stored) in normalised {
        let made = api.post("/v1/endpoints", &json!({"url": given})).await?.expect(201);
        assert_eq!(made["url"], stored, "{given}");
    }
    let refused = [
        "https://user:secret@example.com/",
        "https://example.com/#fragment",
        "https://example.com:0/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "ftp://example.com/",
        "https://",
        "example.com",
        "",
        "https://exa mple.com/",
    ];
    for given in refused {
        let problem = api.post("/v1/endpoints", &json!({"url": given})).await?.expect(422);
        let error = &problem["errors"][0];
        assert_eq!(error["field"], "url", "{given}: {problem:#}");
        ensure!(!text(error, "message")?.is_empty(), "{given}");
        ensure!(!problem.to_string().contains("secret"), "a password is not shown again: {problem:#}");
    }
    Ok(())
}
