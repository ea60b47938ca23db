//! What keeps a server from starting is one sentence that says what to do, and exit code 1.

use pombo_testkit::database::TempPostgres;
use pombo_testkit::receiver::Receiver;
use rusqlite::Connection;
use sqlx::Executor as _;

use super::serving::Serving;
use super::{Ended, Typed};

/// A master key; nothing is sealed with it.
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

async fn serve(arguments: &str) -> Ended {
    Typed::new(&format!("serve --listen 127.0.0.1:0 {arguments}")).run().await
}

#[tokio::test]
async fn a_second_server_on_one_sqlite_file_is_refused() {
    let first = Serving::start("--dev").await;
    let file = first.directory().join("pombo.db").display().to_string();
    serve(&format!("--database sqlite:{file}")).await.fails(1, "is in use by process");
    // Looking is allowed.
    Typed::new(&format!("migrate --check --database sqlite:{file}")).run().await.succeeds();
    assert_eq!(first.stop().await.0, Some(0));
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let other = Receiver::start().await.expect("a port is free");
    let ended = Typed::new(&format!("serve --listen {}", other.address())).run().await;
    ended.fails(1, "(Address already in use): name another address with --listen");
}

#[tokio::test]
async fn a_lease_shorter_than_the_timeout_is_refused_naming_both() {
    let ended = Typed::new("serve").env("POMBO_LEASE__TTL", "12s").run().await;
    ended.fails(1, "lease.ttl (12s) is too short for delivery.timeout (10s)");
}

#[tokio::test]
async fn places_that_cannot_hold_a_database_are_refused() {
    serve("--database sqlite:/no/such/place/pombo.db")
        .await
        .fails(1, "the directory /no/such/place does not exist");
    // Nobody may make files there, root neither.
    serve("--database sqlite:/proc/pombo.db").await.fails(1, "/proc/pombo.db");
    let ended = Typed::new("serve").file("pombo.db", b"this is a text, and no database at all").run().await;
    ended.fails(1, "is not a SQLite database");
    Typed::new("check --database nowhere.db").run().await.fails(1, "nowhere.db does not exist");
}

#[tokio::test]
async fn a_schema_of_another_version_is_refused_with_what_to_do() {
    let server = Serving::start("--dev").await;
    let (_, _, directory) = server.stop().await;
    let file = directory.path().join("pombo.db");
    let change = |statement: &str| {
        let connection = Connection::open(&file).expect("the file can be opened");
        connection.execute_batch(statement).expect("the statement is good");
    };
    let database = format!("--database sqlite:{}", file.display());
    change(
        "INSERT INTO pombo_schema_version (version, applied_at) VALUES (1000, 0);
         UPDATE pombo_config SET min_binary = 1000",
    );
    serve(&database).await.fails(1, "schema version 1000");
    for command in ["check", "migrate --check", "migrate"] {
        Typed::new(&format!("{command} {database}")).run().await.fails(1, "schema version 1000");
    }

    // A file of an application, without Pombo's tables.
    let empty = Typed::new("check --database app.db");
    Connection::open(empty.directory.path().join("app.db"))
        .and_then(|connection| connection.execute_batch("CREATE TABLE orders (id INTEGER)"))
        .expect("a table can be made");
    empty.run().await.fails(1, "holds no tables of Pombo yet: run `pombo migrate` or `pombo serve`");
}

#[tokio::test]
async fn a_lost_or_wrong_master_key_is_no_fresh_start() {
    let server = Serving::start("--dev").await;
    server.run(&["endpoints", "create", "http://127.0.0.1:9000/"]).await.succeeds();
    let (_, _, directory) = server.stop().await;
    let file = directory.path().join("pombo.db");
    let database = format!("sqlite:{}", file.display());
    let start = || Typed::words(["serve", "--listen", "127.0.0.1:0", "--database", &database]);
    start().env("POMBO_MASTER_KEY", KEY).run().await.fails(1, "sealed with another master key");
    let check = Typed::words(["check", "--database", &database]).env("POMBO_MASTER_KEY", KEY);
    let ended = check.run().await;
    assert!(ended.code == 1 && ended.stdout.contains("WRONG sealed (1)"), "{ended:?}");
    start().env("POMBO_MASTER_KEY", "short").run().await.fails(1, "POMBO_MASTER_KEY is not 32 random bytes");
    std::fs::remove_file(directory.path().join("pombo.db.key")).expect("the key file is there");
    start().run().await.fails(1, "pombo.db.key is missing: put the file back");
    let ended = Typed::words(["check", "--database", &database]).run().await;
    assert!(ended.succeeds().contains("sound"), "{ended:?}");
    assert!(ended.stderr.contains("sealed secrets were not looked at"), "{ended:?}");
}

#[tokio::test]
async fn postgres_that_cannot_be_used_is_a_sentence_without_the_password() {
    let serve = |url: &str| Typed::words(["serve", "--listen", "127.0.0.1:0", "--database", url]);
    let nowhere = "postgres://shop:s3cret@127.0.0.1:1/pombo";
    serve(nowhere).run().await.fails(1, "PostgreSQL needs a master key");
    let ended = serve(nowhere).env("POMBO_MASTER_KEY", KEY).run().await;
    ended.fails(1, "cannot reach postgres://shop@127.0.0.1:1/pombo");
    assert!(!ended.stderr.contains("s3cret"), "{ended:?}");

    let postgres = TempPostgres::create().await;
    let mut url: url::Url = postgres.url().parse().expect("a URL");
    url.set_path("no_such_database");
    let ended = serve(url.as_str()).env("POMBO_MASTER_KEY", KEY).run().await;
    ended.fails(1, "no_such_database");
    let ended = Typed::words(["check", "--database", &postgres.url()]).run().await;
    ended.fails(1, "holds no tables of Pombo yet");

    // A role that exists, with a password that is not its own (or that does not exist, where all are trusted).
    let mut connection = postgres.connect().await.expect("the server answers");
    connection.execute("SELECT 1").await.expect("it works");
    let mut url: url::Url = postgres.url().parse().expect("a URL");
    url.set_username("pombo_no_such_role").expect("a URL with a host");
    url.set_password(Some("s3cret")).expect("a URL with a host");
    let ended = serve(url.as_str()).env("POMBO_MASTER_KEY", KEY).run().await;
    ended.fails(1, "refuses access");
    assert!(!ended.stderr.contains("s3cret"), "{ended:?}");
}

#[tokio::test]
async fn postgres_is_migrated_and_checked() {
    let postgres = TempPostgres::create().await;
    let url = postgres.url();
    let run = |words: &[&str]| Typed::words(words.iter().copied().chain(["--database", url.as_str()])).run();
    let ended = run(&["migrate", "--check"]).await;
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(run(&["migrate"]).await.succeeds().contains("current"));
    run(&["migrate"]).await.succeeds();
    run(&["migrate", "--check"]).await.succeeds();
    assert!(run(&["check"]).await.succeeds().contains("sound"));
    let server =
        Serving::of(Typed::words(["serve", "--dev", "--listen", "127.0.0.1:0", "--database", url.as_str()]))
            .await;
    server.run(&["send", "order.paid"]).await.succeeds();
    assert_eq!(server.stop().await.0, Some(0));
    assert!(run(&["check"]).await.succeeds().contains("1 events"));
}
