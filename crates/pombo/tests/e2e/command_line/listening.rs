//! `pombo listen`: shows, verifies, answers as told, and cleans up.

use std::process::Stdio;
use std::time::Duration;

use pombo_testkit::receiver::{Answer, Receiver, Script};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::time::timeout;

use super::{LIMIT, Typed};

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const BODY: &str = r#"{"id":"evt_1"}"#;

struct Listening {
    child: Child,
    address: String,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
    _directory: tempfile::TempDir,
}

impl Listening {
    async fn start(line: &str) -> Self {
        let mut typed = Typed::new(line);
        typed.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = typed.command.spawn().expect("the program can be started");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let first = next(&mut stderr).await;
        let address =
            first.strip_prefix("listening on http://").expect("the first line says where").to_owned();
        Self { child, address, stdout, stderr, _directory: typed.directory }
    }

    /// Sends a signed request and returns the status of its answer.
    async fn post(&self, headers: &[String], body: &str) -> u16 {
        let head = format!("POST /hook?x=1 HTTP/1.1\r\nhost: {}\r\nconnection: close", self.address);
        let length = format!("content-length: {}", body.len());
        let lines = std::iter::once(head).chain(headers.iter().cloned()).chain([length, String::new()]);
        let request = lines.collect::<Vec<_>>().join("\r\n") + "\r\n" + body;
        let mut answer = String::new();
        let exchange = async {
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.write_all(request.as_bytes()).await?;
            stream.read_to_string(&mut answer).await
        };
        timeout(LIMIT, exchange).await.expect("an answer in time").expect("an answer");
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line")
    }

    async fn shown(&mut self) -> Value {
        serde_json::from_str(&next(&mut self.stdout).await).expect("a line of JSON")
    }

    async fn stop(mut self) -> i32 {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        kill_process(pid, Signal::TERM).expect("it can be signalled");
        let status = timeout(LIMIT, self.child.wait()).await.expect("it ends in time").expect("it ends");
        status.code().expect("it ends by itself")
    }
}

async fn next<R: tokio::io::AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> String {
    let line = timeout(LIMIT, lines.next_line()).await.expect("a line in time").expect("readable output");
    line.expect("another line")
}

async fn signed(provider: &str, extra: &[&str]) -> Vec<String> {
    let words = ["sign", "--provider", provider, "--secret", SECRET, "--body", BODY];
    let ended = Typed::words(words.into_iter().chain(extra.iter().copied())).run().await;
    ended.succeeds().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn both_signature_styles_are_verified_and_told_apart() {
    let mut listening = Listening::start(&format!("listen --secret {SECRET} --json")).await;
    let mut headers = signed("standard-webhooks", &["--header", "webhook-id: evt_1"]).await;
    headers.extend(signed("x-webhook", &[]).await);
    assert_eq!(listening.post(&headers, BODY).await, 200);
    let shown = listening.shown().await;
    assert_eq!(
        shown["signatures"],
        json!([{"style": "standard", "ok": true}, {"style": "x-webhook", "ok": true}])
    );
    assert_eq!((&shown["path"], &shown["body"], &shown["n"]), (&"/hook?x=1".into(), &BODY.into(), &1.into()));

    assert_eq!(listening.post(&headers, "{}").await, 200);
    let shown = listening.shown().await;
    assert_eq!(shown["signatures"][0]["ok"], false);
    assert_eq!(shown["signatures"][1]["ok"], false);

    assert_eq!(listening.post(&[], BODY).await, 200);
    assert_eq!(listening.shown().await["signatures"], json!([]));
    assert_eq!(listening.stop().await, 0);
}

#[tokio::test]
async fn it_answers_as_told() {
    let mut listening = Listening::start("listen --fail-first 2 --status 202 --delay 10 --json").await;
    for (status, number) in [(500, 1), (500, 2), (202, 3)] {
        assert_eq!(listening.post(&[], "x").await, status);
        let shown = listening.shown().await;
        assert_eq!((&shown["n"], &shown["answered"]), (&number.into(), &status.into()));
    }
}

#[tokio::test]
async fn people_see_each_request() {
    let mut listening = Listening::start("listen").await;
    listening.post(&[], "a\u{1b}[2J hello").await;
    let head = next(&mut listening.stdout).await;
    assert!(head.starts_with("#1 ") && head.ends_with("POST /hook?x=1 -> 200"), "{head}");
    assert_eq!(next(&mut listening.stdout).await, "  signature: none");
    let mut rest = String::new();
    while !rest.contains("hello") {
        rest.push_str(&next(&mut listening.stdout).await);
    }
    assert!(!rest.contains('\u{1b}'), "{rest:?}");
}

#[tokio::test]
async fn requests_are_handed_on_and_answered_as_the_target_does() {
    let target = Receiver::start().await.expect("a port is free");
    target.script("/in", Script::always(Answer::status(418)));
    let mut listening = Listening::start(&format!("listen --json --forward-to {}", target.url("/in"))).await;
    assert_eq!(listening.post(&["x-webhook-id: evt_1".to_owned()], BODY).await, 418);
    assert_eq!(listening.shown().await["answered"], 418);
    let hits = target.hits();
    assert_eq!(hits[0].body, BODY);
    assert_eq!(hits[0].header("x-webhook-id"), Some("evt_1"));
    assert_eq!(hits[0].header("host"), Some(target.address().to_string().as_str()));
    target.stop().await;
    assert_eq!(listening.post(&[], BODY).await, 502);
}

#[tokio::test]
async fn an_endpoint_is_made_for_it_and_deleted_at_the_end() {
    let api = Receiver::start().await.expect("a port is free");
    let made = json!({"id": "ep_1", "secret": SECRET});
    api.script("/v1/endpoints", Script::always(Answer::status(201).body(made.to_string())));
    let line = format!(
        "listen --register --tenant acme --types order.*,x --json --print-secret --server {}",
        api.url("")
    );
    let mut listening = Listening::start(&line).await;
    assert!(next(&mut listening.stderr).await.starts_with("registered as ep_1 at http://127.0.0.1:"));
    assert_eq!(listening.shown().await, json!({"secret": SECRET}));
    assert_eq!(
        api.hits()[0].json().expect("JSON"),
        json!({
            "url": format!("http://{}/", listening.address), "tenant": "acme", "eventTypes": ["order.*", "x"],
            "description": "pombo listen", "headerStyle": "both",
        })
    );
    // The secret that the server made is the one that it verifies with.
    let headers = signed("x-webhook", &[]).await;
    listening.post(&headers, BODY).await;
    assert_eq!(listening.shown().await["signatures"], json!([{"style": "x-webhook", "ok": true}]));

    assert_eq!(listening.stop().await, 0);
    let hits = api.wait_for(Duration::from_secs(5), |hits| hits.len() == 2).await.expect("a second call");
    assert_eq!((hits[1].method.as_str(), hits[1].path.as_str()), ("DELETE", "/v1/endpoints/ep_1"));
}

#[tokio::test]
async fn a_port_that_is_taken_is_a_sentence() {
    let other = Receiver::start().await.expect("a port is free");
    let ended = Typed::new(&format!("listen --port {}", other.address().port())).run().await;
    ended.fails(1, "(Address already in use): name another port with --port");
}
