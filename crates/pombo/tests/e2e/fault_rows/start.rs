//! What is refused before anything is sent.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pombo_testkit::process::Launch;
use serde_json::json;

use crate::harness::database::Kind;
use crate::harness::on_both;
use crate::harness::stage::{BINARY, Stage, with_short_lease};

const LIMIT: Duration = Duration::from_secs(30);

on_both!(lease_shorter_than_the_request_timeout_is_refused_naming_both_settings);

/// faults S19.
async fn lease_shorter_than_the_request_timeout_is_refused_naming_both_settings(kind: Kind) -> Result<()> {
    let stage = Stage::new(kind).await?;
    let launch = stage.second_launch()?.env("POMBO_LEASE__TTL", "15s").env("POMBO_DELIVERY__TIMEOUT", "10s");
    let ended = launch.run(LIMIT).await?;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    for setting in ["lease.ttl", "delivery.timeout"] {
        ensure!(ended.stderr.contains(setting), "{setting} is not named:\n{}", ended.stderr);
    }
    // The same for one endpoint: its own timeout is what the lease cannot bear.
    let process = with_short_lease(stage.second_launch()?).start().await?;
    let endpoint = json!({"url": "https://example.com/", "timeoutMs": 30_000});
    let problem = process.api().post("/v1/endpoints", &endpoint).await?.expect(422);
    assert_eq!(problem["errors"][0]["field"], "timeoutMs", "{problem:#}");
    ensure!(problem.to_string().contains("lease.ttl"), "{problem:#}");
    Ok(())
}

/// faults S16, as far as a URL alone shows it; what only a resolved name shows is proved in `pombo-egress`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn internal_targets_are_refused_without_dev() -> Result<()> {
    let stage = Stage::new(Kind::Sqlite).await?;
    let launch = Launch::command(BINARY, &["serve", "--database", &stage.database.url(), "--listen"])?;
    let listen = launch.address().to_string();
    let process = launch.arg(&listen).start().await?;
    let log = process.log();
    let key = log.split("bootstrap admin key: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let key = key.with_context(|| format!("no bootstrap key in the log:\n{log}"))?;
    let unauthorised = process.api().post("/v1/endpoints", &json!({"url": "https://example.com/"})).await?;
    unauthorised.expect(401);
    let api = process.api().with_key(key);
    api.post("/v1/endpoints", &json!({"url": "https://example.com/"})).await?.expect(201);
    for host in [
        "127.0.0.1",
        "0x7f.1",
        "2130706433",
        "10.0.0.1",
        "169.254.169.254",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
        "[fd00::1]",
        "localhost",
        "db.internal",
        "printer.local",
    ] {
        let url = format!("https://{host}/hooks");
        let problem = api.post("/v1/endpoints", &json!({"url": url})).await?.expect(422);
        assert_eq!(problem["errors"][0]["field"], "url", "{url}: {problem:#}");
    }
    let plain = api.post("/v1/endpoints", &json!({"url": "http://example.com/"})).await?.expect(422);
    assert_eq!(plain["errors"][0]["field"], "url", "{plain:#}");
    Ok(())
}
