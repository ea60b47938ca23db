//! What receivers answer.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use pombo_domain::clock::Timestamp;
use pombo_domain::limits;
use pombo_testkit::raw::{RawServer, Step};
use pombo_testkit::receiver::{Answer, Script};
use serde_json::{Value, json};

use crate::harness::calls::{
    self, SOON, create_endpoint, delivery_when, delivery_with_status, publish, single_attempt, text, timeline,
};
use crate::harness::database::Kind;
use crate::harness::on_both;
use crate::harness::stage::Stage;

on_both!(
    body_that_drips_for_ever_is_one_attempt_that_times_out_and_no_second_copy,
    huge_and_compressed_bodies_after_a_200_are_successes_within_bounded_memory,
    redirect_to_a_login_page_is_a_failure_and_is_not_followed,
    retry_after_on_the_first_try_holds_the_whole_endpoint_that_long,
    only_the_endpoint_that_failed_is_tried_again,
    response_with_odd_bytes_is_recorded_and_delivered,
);

fn event() -> Value {
    json!({"type": "order.paid", "data": {"orderId": "ord_45"}})
}

/// faults S2.
async fn body_that_drips_for_ever_is_one_attempt_that_times_out_and_no_second_copy(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let drip = Answer::status(200).filled(u64::MAX).dripping(Duration::from_millis(100));
    stage.receiver.script("/drip", Script::sequence([drip, Answer::status(200)]));
    let url = stage.receiver.url("/drip");
    create_endpoint(api, &json!({"url": url, "timeoutMs": 1000, "retry": single_attempt()})).await?;
    let id = publish(api, &event()).await?;
    let delivery = delivery_with_status(api, &id, "dead").await?;
    let [attempt] = timeline(&delivery) else { anyhow::bail!("not one attempt: {delivery:#}") };
    assert_eq!(attempt["class"], "timeout", "{attempt:#}");
    let took = attempt["durationMs"].as_u64().context("a duration")?;
    ensure!((1000..4000).contains(&took), "the deadline is a second, it took {took} ms");
    stage.receiver.wait_for_open(0, SOON).await.context("the socket is closed")?;
    assert_eq!(stage.receiver.hit_count(), 1, "no second copy");
    stage.check().await
}

/// faults S3.
async fn huge_and_compressed_bodies_after_a_200_are_successes_within_bounded_memory(
    kind: Kind,
) -> Result<()> {
    const GROWTH_MAX: u64 = 64 * 1024 * 1024;
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    stage.receiver.script("/huge", Answer::status(200).filled(2 << 30).into());
    // What is said to be compressed is kept as it came, whatever it would inflate to.
    let gzip = Answer::status(200).header("content-encoding", "gzip").body([0x1f, 0x8b].repeat(25_000));
    stage.receiver.script("/gzip", gzip.into());
    let before = process.peak_resident_bytes()?;
    for path in ["/huge", "/gzip"] {
        let endpoint = json!({"url": stage.receiver.url(path), "storeResponses": "all"});
        let endpoint = create_endpoint(api, &endpoint).await?;
        let id = publish(api, &json!({"type": "a.b", "data": 0, "endpoints": [endpoint.id]})).await?;
        let delivery = delivery_with_status(api, &id, "delivered").await?;
        let [attempt] = timeline(&delivery) else { anyhow::bail!("not one attempt: {delivery:#}") };
        assert_eq!((&attempt["status"], &attempt["class"]), (&json!(200), &json!("success")), "{path}");
        assert_eq!(attempt["responseTruncated"], true, "{path}");
        let kept = text(attempt, "responseBody")?;
        // Bytes that are no UTF-8 are kept as U+FFFD, which has three.
        ensure!(kept.chars().count() <= limits::RESPONSE_BYTES_MAX, "{path}: {} characters", kept.len());
    }
    let growth = process.peak_resident_bytes()? - before;
    ensure!(growth < GROWTH_MAX, "memory grew by {growth} bytes");
    Ok(())
}

/// faults S4.
async fn redirect_to_a_login_page_is_a_failure_and_is_not_followed(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let login = stage.receiver.url("/login?next=hooks");
    stage.receiver.script("/hooks", Answer::redirect(302, &login).into());
    create_endpoint(api, &json!({"url": stage.receiver.url("/hooks")})).await?;
    let id = publish(api, &event()).await?;
    let delivery = delivery_with_status(api, &id, "dead").await?;
    let [attempt] = timeline(&delivery) else { anyhow::bail!("not one attempt: {delivery:#}") };
    assert_eq!((&attempt["status"], &attempt["class"]), (&json!(302), &json!("redirect")));
    ensure!(text(attempt, "message")?.contains("/login"), "the Location is recorded: {attempt:#}");
    assert_eq!(stage.receiver.hits_at("/login").len(), 0, "not followed");
    assert_eq!(stage.receiver.hit_count(), 1);
    let dead = calls::list(api, "/v1/dead-letters?limit=10").await?;
    assert_eq!(dead.len(), 1, "{dead:#?}");
    Ok(())
}

/// faults S5.
async fn retry_after_on_the_first_try_holds_the_whole_endpoint_that_long(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    stage.receiver.script("/busy", Answer::status(429).header("retry-after", "3600").into());
    let busy = create_endpoint(api, &json!({"url": stage.receiver.url("/busy")})).await?;
    let other = create_endpoint(api, &json!({"url": stage.receiver.url("/other")})).await?;
    let before = SystemTime::now();
    let first = publish(api, &json!({"type": "a.b", "data": 1, "endpoints": [busy.id]})).await?;
    let delivery = delivery_with_status(api, &first, "retrying").await?;
    let next: Timestamp = serde_json::from_value(delivery["nextAttemptAt"].clone())?;
    let wait = next.as_micros() / 1_000_000
        - i64::try_from(before.duration_since(SystemTime::UNIX_EPOCH)?.as_secs())?;
    ensure!((3599..3700).contains(&wait), "tried again after {wait} s: {delivery:#}");
    assert_eq!(timeline(&delivery)[0]["class"], "rate_limited");

    let second = publish(api, &json!({"type": "a.b", "data": 2, "endpoints": [busy.id]})).await?;
    let third = publish(api, &json!({"type": "a.b", "data": 3, "endpoints": [other.id]})).await?;
    delivery_with_status(api, &third, "delivered").await?;
    let held = delivery_when(api, &second, |delivery| delivery["why"]["code"] == "retry_after").await?;
    assert_eq!(held["attempts"], 0, "{held:#}");
    assert_eq!(stage.receiver.hits_at("/busy").len(), 1, "the endpoint is left alone");
    Ok(())
}

/// faults S9.
async fn only_the_endpoint_that_failed_is_tried_again(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let paths = ["/1", "/2", "/3", "/4", "/5"];
    stage.receiver.script("/5", Script::sequence([Answer::status(500), Answer::status(200)]));
    for path in paths {
        let url = stage.receiver.url(path);
        create_endpoint(api, &json!({"url": url, "retry": calls::eager_retries()})).await?;
    }
    let id = publish(api, &event()).await?;
    let settled = || async {
        let found = calls::deliveries(api, &format!("event={id}&status=delivered")).await?;
        Ok(found.len() == paths.len())
    };
    calls::eventually(SOON, "five deliveries", settled).await?;
    let hits = paths.map(|path| stage.receiver.hits_at(path).len());
    assert_eq!(hits, [1, 1, 1, 1, 2]);
    stage.check().await
}

/// faults S21.
async fn response_with_odd_bytes_is_recorded_and_delivered(kind: Kind) -> Result<()> {
    let (_stage, process) = Stage::running(kind).await?;
    let api = process.api();
    let body = b"ol\xe1 \xff\xfe";
    let mut answer = b"HTTP/1.1 200 OK\r\nx-odd: \xff\xfe\xe9\r\ncontent-type: \xe9t\xff/\x80\r\n".to_vec();
    answer
        .extend_from_slice(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).as_bytes());
    answer.extend_from_slice(body);
    let receiver = RawServer::start([Step::ReadHead, Step::write(&answer), Step::HalfClose]).await?;
    let endpoint = json!({"url": receiver.url("/odd"), "storeResponses": "all"});
    create_endpoint(api, &endpoint).await?;
    let id = publish(api, &event()).await?;
    let delivery = delivery_with_status(api, &id, "delivered").await?;
    let [attempt] = timeline(&delivery) else { anyhow::bail!("not one attempt: {delivery:#}") };
    assert_eq!((&attempt["status"], &attempt["class"]), (&json!(200), &json!("success")));
    assert_eq!(text(attempt, "responseBody")?, String::from_utf8_lossy(body));
    Ok(())
}
