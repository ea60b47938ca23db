//! kill -9 while it writes: what was acknowledged is there, and the whole is sound.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pombo_domain::id::EventId;
use pombo_store::accept::Placement;
use pombo_store::admin::Admin;
use pombo_store::conformance::scene::{LONG, Scene, open_session};
use pombo_store::reading::Reading;
use pombo_store_sqlite::SqliteStore;

use crate::scratch::{Scratch, config_of};

/// Set for the process that is to be killed: the database's path.
const VICTIM: &str = "POMBO_TEST_VICTIM";
const ACKNOWLEDGED: &str = "acknowledged";

/// Accepts and settles without end; the id of each accepted event goes to a file once it is acknowledged.
async fn write_for_ever(path: &Path) {
    let store = SqliteStore::open(config_of(path)).expect("opens");
    store.migrate().await.expect("migrates");
    let session = open_session(&*store, LONG).await;
    let scene = Scene { store, session };
    let endpoint = scene.endpoint("acme").await;
    let list = path.with_file_name(ACKNOWLEDGED);
    let mut list = std::fs::File::options().create(true).append(true).open(list).expect("opens");
    loop {
        let sent = scene.send(&endpoint, Placement::BornClaimed).await;
        writeln!(list, "{}", sent.event.id).expect("writes");
        let item = scene.success(&sent).await;
        scene.flush(item).await;
    }
}

/// Not a test of its own: the process that [`nothing_acknowledged_is_lost_by_a_kill`] starts and kills.
#[tokio::test]
async fn victim() {
    if let Some(path) = std::env::var_os(VICTIM) {
        write_for_ever(Path::new(&path)).await;
    }
}

fn acknowledged(scratch: &Scratch) -> Vec<EventId> {
    let text = std::fs::read_to_string(scratch.path().with_file_name(ACKNOWLEDGED)).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| line.parse().expect("an id")).collect()
}

fn kill_while_writing(scratch: &Scratch, more_than: usize) {
    let mut victim = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "crash::victim"])
        .env(VICTIM, scratch.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the victim starts");
    let end = Instant::now() + Duration::from_secs(60);
    while acknowledged(scratch).len() < more_than {
        assert!(Instant::now() < end, "the victim writes");
        assert!(victim.try_wait().expect("waits").is_none(), "the victim lives");
        std::thread::yield_now();
    }
    victim.kill().expect("SIGKILL");
    victim.wait().expect("it is gone");
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_a_kill() {
    let scratch = Scratch::new();
    for round in 1..=3 {
        kill_while_writing(&scratch, round * 40);
        let store = scratch.store().await;
        for id in acknowledged(&scratch) {
            assert!(store.event(id, None).await.expect("reads").is_some(), "{id} is lost");
        }
        let report = store.check().await.expect("checks");
        assert_eq!(report.findings, []);
        assert_eq!(report.live + report.settled, report.events);
    }
}
