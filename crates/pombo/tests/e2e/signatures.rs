//! Other people's libraries verify what Pombo sends, as receivers will: over requests that really arrived.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pombo_testkit::process::Process;
use pombo_testkit::receiver::Hit;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::harness::calls::{SOON, create_endpoint, publish, publish_bytes, text};
use crate::harness::database::Kind;
use crate::harness::stage::Stage;

const RECEIVERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/receivers");

/// Requests before a rotation and during its overlap.
struct Received {
    before: Vec<Hit>,
    during: Vec<Hit>,
    old: String,
    new: String,
}

async fn receive() -> Result<(Stage, Process, Received)> {
    let (stage, process) = Stage::running(Kind::Sqlite).await?;
    let api = process.api();
    let endpoint = json!({"url": stage.receiver.url("/hooks"), "headerStyle": "both"});
    let endpoint = create_endpoint(api, &endpoint).await?;
    let mut phases = Vec::new();
    let mut new = String::new();
    for phase in 0..2 {
        stage.receiver.forget();
        publish(api, &json!({"type": "order.paid", "data": {"phase": phase}})).await?;
        publish_bytes(
            api,
            r#"{"type":"order.paid","data":{ "nome": "João 🐦", "n":9007199254740993, "x":1.50 }}"#,
        )
        .await?;
        let raw =
            json!({"type": "raw.text", "payload": "no JSON\nat all \u{e9}", "contentType": "text/plain"});
        publish(api, &raw).await?;
        phases.push(stage.receiver.wait_for(SOON, |hits| hits.len() >= 3).await?);
        if phase == 0 {
            let rotate = format!("/v1/endpoints/{}/rotate-secret", endpoint.id);
            new = text(&api.post(&rotate, &json!({})).await?.expect(200), "secret")?;
        }
    }
    let [before, during] = <[_; 2]>::try_from(phases).ok().context("two phases")?;
    Ok((stage, process, Received { before, during, old: endpoint.secret, new }))
}

/// What a verifier is asked: these requests, this secret, and whether it must fit.
fn question(hits: &[Hit], secret: &str, genuine: bool) -> Vec<Value> {
    let ask = |hit: &Hit, body: &[u8], genuine: bool| {
        let headers: serde_json::Map<String, Value> = hit
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
            .collect();
        json!({"headers": headers, "body": STANDARD.encode(body), "secret": secret, "genuine": genuine})
    };
    let mut questions = Vec::new();
    for hit in hits {
        questions.push(ask(hit, &hit.body, genuine));
        let mut forged = hit.body.to_vec();
        forged.push(b' ');
        questions.push(ask(hit, &forged, false));
    }
    questions
}

fn questions(received: &Received) -> Vec<Value> {
    let stranger = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
    [
        question(&received.before, &received.old, true),
        question(&received.before, &received.new, false),
        question(&received.during, &received.old, true),
        question(&received.during, &received.new, true),
        question(&received.during, stranger, false),
    ]
    .concat()
}

/// Runs a receiver's script, which reads questions and says for how many its library's verdict is as it must be.
async fn ask(variable: &str, script: &str, questions: &[Value]) -> Result<()> {
    let Some(interpreter) = std::env::var_os(variable) else {
        panic!("{variable} is not set, so nothing can run {script}: run `cargo xtask test`");
    };
    let mut child = Command::new(interpreter)
        .arg(Path::new(RECEIVERS).join(script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut input = child.stdin.take().context("the input was piped")?;
    input.write_all(serde_json::to_string(questions)?.as_bytes()).await?;
    drop(input);
    let output = tokio::time::timeout(SOON, child.wait_with_output()).await??;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{script}: {said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), questions.len().to_string(), "each question has the right answer");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_rust_library_verifies_what_arrives() -> Result<()> {
    let (_stage, _process, received) = receive().await?;
    for (hits, secret, genuine) in [
        (&received.before, &received.old, true),
        (&received.before, &received.new, false),
        (&received.during, &received.old, true),
        (&received.during, &received.new, true),
    ] {
        let verifier = Webhook::new(secret)?;
        for hit in hits {
            assert_eq!(verifier.verify(&hit.body, &hit.headers).is_ok(), genuine, "{hit:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_python_library_verifies_what_arrives() -> Result<()> {
    let (_stage, _process, received) = receive().await?;
    ask("POMBO_TEST_PYTHON", "standard_webhooks.py", &questions(&received)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_receiver_verifies_the_x_webhook_style() -> Result<()> {
    let (_stage, _process, received) = receive().await?;
    ask("POMBO_TEST_NODE", "x_webhook.mjs", &questions(&received)).await
}

/// A receiver that reads only the first `v1=` and still has the old secret goes on working during a rotation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn naive_node_receiver_keeps_its_old_secret_through_a_rotation() -> Result<()> {
    let (_stage, _process, received) = receive().await?;
    let questions =
        [question(&received.before, &received.old, true), question(&received.during, &received.old, true)]
            .concat();
    ask("POMBO_TEST_NODE", "x_webhook_naive.mjs", &questions).await
}
