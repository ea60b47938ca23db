//! What cannot be done is said in one sentence that tells what to do.

use super::Typed;

#[tokio::test]
async fn a_server_that_is_away_is_named_with_what_to_do() {
    let ended = Typed::new("events list --server http://127.0.0.1:1").run().await;
    ended.fails(
        1,
        "cannot reach the server at http://127.0.0.1:1 (Connection refused): start it with `pombo serve`",
    );
    let ended = Typed::new("events list").env("POMBO_SERVER", "http://127.0.0.1:1").run().await;
    ended.fails(1, "http://127.0.0.1:1");
}

#[tokio::test]
async fn what_is_no_address_is_wrong_usage() {
    for address in ["127.0.0.1:8080", "ftp://x", "http://user:pw@x"] {
        let ended = Typed::words(["events", "list", "--server", address]).run().await;
        ended.fails(2, "--server");
        assert!(!ended.stderr.contains("pw@x") || address != "http://user:pw@x", "{ended:?}");
    }
}

#[tokio::test]
async fn data_that_is_no_json_is_refused_before_anything_is_sent() {
    for data in ["hello", "{\"a\":}", ""] {
        let ended = Typed::words(["send", "order.paid", "--data", data, "--server", "http://127.0.0.1:1"])
            .run()
            .await;
        ended.fails(2, "--data must be one JSON value; it breaks at byte");
    }
    let ended = Typed::new("send order.paid --data @nowhere.json").run().await;
    ended.fails(1, "cannot read nowhere.json");
    let ended = Typed::new("send order.paid --data -").stdin(b"\xff\xfe").run().await;
    ended.fails(2, "--data must be one JSON value");
}

#[tokio::test]
async fn secrets_that_cannot_be_read_are_named_by_their_place_alone() {
    let ended = Typed::new("events list --api-key env:NO_SUCH_VARIABLE").run().await;
    ended.fails(1, "the environment variable NO_SUCH_VARIABLE holds no secret");
    let ended = Typed::new("events list --api-key @nowhere.txt").run().await;
    ended.fails(1, "cannot read the secret from nowhere.txt");
    let ended = Typed::words(["events", "list", "--api-key", "pk_s3cret\u{1}"]).run().await;
    ended.fails(2, "characters that no key has");
    assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
}

#[tokio::test]
async fn dev_listens_on_this_machine_alone() {
    let ended = Typed::new("serve --dev --listen 0.0.0.0:0").run().await;
    ended.fails(2, "0.0.0.0:0 is not a loopback address");
    let ended = Typed::new("serve --dev").env("POMBO_LISTEN", "[::]:0").run().await;
    ended.fails(2, "[::]:0 is not a loopback address");
}

#[tokio::test]
async fn what_is_no_database_is_refused() {
    for command in ["serve", "migrate", "check"] {
        let ended = Typed::new(&format!("{command} --database mysql://x/y")).run().await;
        ended.fails(2, "--database names a mysql database; Pombo knows sqlite:PATH and postgres://…");
        let ended = Typed::new(command).env("DATABASE_URL", "mysql://x/y").run().await;
        ended.fails(1, "DATABASE_URL names a mysql database");
        let ended = Typed::new(&format!("{command} --database sqlite::memory:")).run().await;
        ended.fails(2, "--database must name a file");
    }
}
