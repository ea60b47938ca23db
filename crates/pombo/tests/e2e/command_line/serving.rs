//! `pombo serve` and the commands against it, on a SQLite file.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use pombo_testkit::receiver::{Answer, Receiver, Script};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};
use tokio::time::timeout;

use super::{Ended, LIMIT, Typed};

/// A server in a directory of its own.
pub(super) struct Serving {
    child: Child,
    address: String,
    /// What it said on stderr until it was ready.
    said: Vec<String>,
    stderr: Lines<BufReader<ChildStderr>>,
    directory: TempDir,
}

impl Serving {
    pub(super) async fn start(arguments: &str) -> Self {
        Self::of(Typed::new(&format!("serve --listen 127.0.0.1:0 {arguments}"))).await
    }

    pub(super) async fn of(mut typed: Typed) -> Self {
        typed.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = typed.command.spawn().expect("the program can be started");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let mut said = Vec::new();
        let address = loop {
            let line = timeout(LIMIT, stderr.next_line()).await.expect("a line in time").expect("readable");
            let line = line.unwrap_or_else(|| panic!("it ended before it was ready: {said:?}"));
            let address = line.split_once("listening on http://").map(|(_, address)| address.to_owned());
            said.push(line);
            if let Some(address) = address {
                break address;
            }
        };
        Self { child, address, said, stderr, directory: typed.directory }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A command on data against it.
    pub(super) fn typed(&self, words: &[&str]) -> Typed {
        Typed::words(words.iter().copied()).env("POMBO_SERVER", &self.url())
    }

    pub(super) async fn run(&self, words: &[&str]) -> Ended {
        self.typed(words).run().await
    }

    /// The answer of a command as JSON.
    async fn json(&self, words: &[&str]) -> Value {
        let ended = self.run(&[words, &["--json"]].concat()).await;
        serde_json::from_str(ended.succeeds()).expect("JSON on stdout")
    }

    /// A command that opens the same database.
    async fn beside(&self, words: &[&str]) -> Ended {
        let database = format!("sqlite:{}", self.directory().join("pombo.db").display());
        Typed::words(words.iter().copied().chain(["--database", &database])).run().await
    }

    fn terminate(&self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
        kill_process(pid, Signal::TERM).expect("it can be signalled");
    }

    /// SIGTERM, and everything that it still said.
    pub(super) async fn stop(self) -> (Option<i32>, Vec<String>, TempDir) {
        self.terminate();
        self.ended().await
    }

    async fn ended(mut self) -> (Option<i32>, Vec<String>, TempDir) {
        let mut rest = Vec::new();
        while let Some(line) =
            timeout(LIMIT, self.stderr.next_line()).await.expect("in time").expect("readable")
        {
            rest.push(line);
        }
        let status = timeout(LIMIT, self.child.wait()).await.expect("it ends in time").expect("it ends");
        (status.code(), rest, self.directory)
    }
}

#[tokio::test]
async fn an_event_is_sent_seen_and_accounted_for() {
    let receiver = Receiver::start().await.expect("a port is free");
    receiver.script("/a", Script::sequence([Answer::status(500), Answer::status(200)]));
    let server = Serving::start("--dev").await;
    let endpoint = server
        .json(&[
            "endpoints",
            "create",
            &receiver.url("/a"),
            "--types",
            "order.*",
            "--retry",
            r#"{"schedule":["0s","0s"]}"#,
        ])
        .await;
    let id = endpoint["id"].as_str().expect("an id").to_owned();

    let sent = server.run(&["send", "order.paid", "--data", "{\"a\" : 1}", "--wait", "20s"]).await;
    assert!(sent.succeeds().contains("delivered"), "{sent:?}");
    assert!(receiver.hits()[1].body.ends_with(b"\"data\":{\"a\" : 1}}"), "data is kept byte for byte");

    let deliveries = server.json(&["deliveries", "list", "--endpoint", &id, "--status", "delivered"]).await;
    let delivery = deliveries["data"][0]["id"].as_str().expect("one delivery").to_owned();
    let shown = server.json(&["deliveries", "show", &delivery]).await;
    assert_eq!(shown["timeline"].as_array().map(Vec::len), Some(2), "{shown}");
    let shown = server.run(&["deliveries", "show", &delivery]).await;
    assert!(shown.succeeds().contains("server_error"), "{shown:?}");

    let event = deliveries["data"][0]["eventId"].as_str().expect("an event").to_owned();
    let body = server.run(&["events", "show", &event, "--body"]).await;
    assert_eq!(body.succeeds().as_bytes(), receiver.hits()[1].body);
    assert!(server.run(&["events", "show", &event]).await.succeeds().contains(&delivery));

    let checked = server.beside(&["check"]).await;
    assert!(checked.succeeds().contains("sound: every event is accounted for"), "{checked:?}");
    let (code, rest, _) = server.stop().await;
    assert_eq!(code, Some(0), "{rest:?}");
    assert!(rest.last().is_some_and(|line| line.ends_with("Stopped")), "{rest:?}");
}

#[tokio::test]
async fn endpoints_go_through_their_life() {
    let receiver = Receiver::start().await.expect("a port is free");
    let server = Serving::start("--dev").await;
    let made = server.json(&["endpoints", "create", &receiver.url("/a"), "--tenant", "acme"]).await;
    let id = made["id"].as_str().expect("an id");
    let secret = made["secret"].as_str().expect("a secret");
    assert!(secret.starts_with("whsec_"));
    assert_eq!(server.json(&["endpoints", "secret", id]).await["secret"], secret);

    assert_eq!(server.json(&["endpoints", "pause", id, "--reason", "noon"]).await["status"], "paused");
    let waiting = server.run(&["send", "x", "--tenant", "acme", "--wait", "200ms"]).await;
    assert_eq!(waiting.code, 1, "{waiting:?}");
    assert_eq!(server.json(&["endpoints", "resume", id]).await["status"], "active");
    receiver.wait_for(LIMIT, |hits| hits.len() == 1).await.expect("the backlog is sent");

    assert_eq!(server.json(&["endpoints", "test", id]).await["class"], "success");
    let updated = server.json(&["endpoints", "update", id, "--timeout", "5s", "--description", "d"]).await;
    assert_eq!((&updated["timeoutMs"], &updated["description"]), (&5000.into(), &"d".into()));
    let rotated = server.json(&["endpoints", "rotate-secret", id, "--overlap", "1h"]).await;
    assert_ne!(rotated["secret"], secret);

    server.run(&["endpoints", "delete", id]).await.succeeds();
    server.run(&["endpoints", "show", id]).await.fails(1, "[404]");
    server.run(&["endpoints", "create", "ftp://example.com/"]).await.fails(1, "`url` ");
    let (code, rest, _) = server.stop().await;
    assert_eq!(code, Some(0), "{rest:?}");
}

#[tokio::test]
async fn dead_letters_come_back() {
    let receiver = Receiver::start().await.expect("a port is free");
    receiver.script("/a", Script::sequence([Answer::status(400), Answer::status(200)]));
    let server = Serving::start("--dev").await;
    server.run(&["endpoints", "create", &receiver.url("/a")]).await.succeeds();
    let sent = server.run(&["send", "x", "--wait", "20s"]).await;
    assert_eq!(sent.code, 1, "{sent:?}");
    let dead = server.json(&["dead", "list"]).await;
    let id = dead["data"][0]["deliveryId"].as_str().expect("one dead letter");
    assert_eq!(server.run(&["dead", "retry", "--all"]).await.succeeds(), format!("{id}\n"));
    receiver.wait_for(LIMIT, |hits| hits.len() == 2).await.expect("it is sent again");
    assert_eq!(server.stop().await.0, Some(0));
}

#[tokio::test]
async fn the_admin_key_is_shown_once_and_needed() {
    let server = Serving::start("").await;
    let keys: Vec<&str> =
        server.said.iter().filter_map(|line| line.strip_prefix("bootstrap admin key: ")).collect();
    let [key] = keys[..] else { panic!("one key is shown: {:?}", server.said) };
    assert!(key.starts_with("pk_") && key.len() == 46, "{key}");
    server.run(&["events", "list"]).await.fails(1, "give the key by --api-key or POMBO_API_KEY) [401]");
    server.typed(&["events", "list"]).env("POMBO_API_KEY", key).run().await.succeeds();
    let (code, _, directory) = server.stop().await;
    assert_eq!(code, Some(0));

    let database = format!("--database sqlite:{}", directory.path().join("pombo.db").display());
    let again = Serving::start(&database).await;
    assert!(!again.said.iter().any(|line| line.contains("pk_")), "{:?}", again.said);
    assert_eq!(again.stop().await.0, Some(0));
}

#[tokio::test]
async fn the_first_line_says_which_database_and_why() {
    let typed = Typed::new("serve --dev --listen 127.0.0.1:0").env("DATABASE_URL", "sqlite:shop.db");
    let server = Serving::of(typed).await;
    assert!(
        server.said[0].ends_with("Using database sqlite:shop.db (from DATABASE_URL)"),
        "{:?}",
        server.said
    );
    assert!(server.directory().join("shop.db.key").exists());
    assert_eq!(server.stop().await.0, Some(0));
}

#[tokio::test]
async fn logs_are_json_where_that_is_set() {
    let mut typed = Typed::new("serve --dev --listen 127.0.0.1:0").env("POMBO_LOG__FORMAT", "json");
    typed.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = typed.command.spawn().expect("the program can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    loop {
        let line =
            timeout(LIMIT, lines.next_line()).await.expect("in time").expect("readable").expect("a line");
        let record: Value = serde_json::from_str(&line).expect("every line is JSON");
        let message = record["message"].as_str().expect("every line has a message");
        assert!(record["level"].is_string() && record["timestamp"].is_string(), "{record}");
        if message.contains("listening on http://") {
            return;
        }
    }
}

#[tokio::test]
async fn a_process_without_role_api_answers_only_about_its_health() {
    let server = Serving::start("--dev --roles relay,deliver").await;
    server.run(&["events", "list"]).await.fails(1, "there is no route /v1/events");
    assert_eq!(server.stop().await.0, Some(0));
}

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight_and_writes_it_down() {
    let receiver = Receiver::start().await.expect("a port is free");
    receiver.script("/a", Script::always(Answer::status(200).after(Duration::from_secs(1))));
    let server = Serving::start("--dev").await;
    server.run(&["endpoints", "create", &receiver.url("/a")]).await.succeeds();
    server.run(&["send", "x"]).await.succeeds();
    receiver.wait_for(LIMIT, |hits| hits.len() == 1).await.expect("the attempt is in flight");
    let (code, rest, directory) = server.stop().await;
    assert_eq!(code, Some(0), "{rest:?}");
    let file = directory.path().join("pombo.db");
    let ended = Typed::words(["check", "--database", &format!("sqlite:{}", file.display())]).run().await;
    assert!(ended.succeeds().starts_with("1 events, 0 live deliveries, 1 settled"), "{ended:?}");
    assert_eq!(receiver.hits().len(), 1);
}

#[tokio::test]
async fn a_second_signal_stops_at_once() {
    let receiver = Receiver::start().await.expect("a port is free");
    receiver.script("/a", Script::always(Answer::never()));
    let mut server = Serving::start("--dev").await;
    server.run(&["endpoints", "create", &receiver.url("/a")]).await.succeeds();
    server.run(&["send", "x"]).await.succeeds();
    receiver.wait_for(LIMIT, |hits| hits.len() == 1).await.expect("the attempt is in flight");
    server.terminate();
    loop {
        let line = timeout(LIMIT, server.stderr.next_line()).await.expect("in time").expect("readable");
        if line.expect("it goes on").contains("SIGTERM: stopping") {
            break;
        }
    }
    let started = Instant::now();
    server.terminate();
    let (code, rest, _) = server.ended().await;
    assert_eq!(code, Some(1), "{rest:?}");
    // The attempt had most of its 10 s left.
    assert!(started.elapsed() < Duration::from_secs(5), "{rest:?}");
}

#[tokio::test]
async fn listen_registers_with_a_secret_of_its_own() {
    let server = Serving::start("--dev").await;
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let words = ["listen", "--register", "--types", "order.*", "--secret", secret, "--json"];
    let mut typed = server.typed(&words);
    typed.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut listening = typed.command.spawn().expect("the program can be started");
    let mut stderr = BufReader::new(listening.stderr.take().expect("stderr is piped")).lines();
    let mut stdout = BufReader::new(listening.stdout.take().expect("stdout is piped")).lines();
    loop {
        let line = timeout(LIMIT, stderr.next_line()).await.expect("in time").expect("readable");
        if line.expect("it goes on").starts_with("registered as ep_") {
            break;
        }
    }
    server.run(&["send", "order.paid", "--wait", "20s"]).await.succeeds();
    let shown =
        timeout(LIMIT, stdout.next_line()).await.expect("in time").expect("readable").expect("a request");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        shown["signatures"],
        json!([{"style": "standard", "ok": true}, {"style": "x-webhook", "ok": true}])
    );
    let pid = listening.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
    kill_process(pid, Signal::TERM).expect("it can be signalled");
    let ended = timeout(LIMIT, listening.wait()).await.expect("in time").expect("it ends");
    assert!(ended.success());
    let left = server.json(&["endpoints", "list"]).await;
    assert_eq!(left["data"], json!([]), "the endpoint goes with the receiver");
    assert_eq!(server.stop().await.0, Some(0));
}
