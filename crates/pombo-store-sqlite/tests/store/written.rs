//! Rows of the outbox in every way that SQLite lets an application write them.

use pombo_domain::clock::Timestamp;
use pombo_store::conformance::Database;
use pombo_store::conformance::scene::{Scene, begin};
use pombo_store::outbox::{OutboxRow, Rejection, RelayPlan, RelayRequest, Relayed};
use pombo_store::sessions::LeaseName;

use crate::scratch::Scratch;

async fn relay(scene: &Scene, mut plan: impl FnMut(&[OutboxRow]) -> RelayPlan + Send) -> u32 {
    let lease = scene.store.hold_lease(LeaseName::OwnOutbox, scene.session).await.expect("answers");
    let request = RelayRequest {
        floor: 0,
        limit: 100,
        bytes_max: 1 << 20,
        session: scene.session,
        lease_epoch: lease.expect("the lease is free"),
        config_version: scene.config_version().await,
    };
    match scene.store.relay(request, &mut plan).await.expect("relays") {
        Relayed::Committed { taken, .. } => taken,
        other => panic!("{other:?}"),
    }
}

fn reject_all(rows: &[OutboxRow]) -> RelayPlan {
    let rejected =
        (0..rows.len()).map(|index| Rejection { index, reason: "type", detail: "seen".to_owned() }).collect();
    RelayPlan { events: Vec::new(), rejected }
}

/// What the planner sees of one row with these columns.
async fn seen(columns: &str, values: &str) -> OutboxRow {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let sql = format!("INSERT INTO pombo_outbox (type, data{columns}) VALUES ('a', '0'{values})");
    scratch.execute(&sql).await;
    let mut rows = Vec::new();
    relay(&scene, |given| {
        rows = given.to_vec();
        reject_all(given)
    })
    .await;
    rows.remove(0)
}

#[tokio::test]
async fn times_may_be_written_in_several_ways() {
    let expected = Some(Timestamp::from_millis(1_900_000_000_500));
    for written in [
        "1900000000500000",
        "'1900000000500000'",
        "'2030-03-17T17:46:40.500Z'",
        "'2030-03-17T14:46:40.5-03:00'",
        "'2030-03-17 17:46:40.500'",
    ] {
        let row = seen(", deliver_at, created_at", &format!(", {written}, {written}")).await;
        assert_eq!(row.deliver_at, expected, "{written}");
        assert_eq!(Some(row.created_at), expected, "{written}");
    }
    assert_eq!(seen("", "").await.deliver_at, None);
}

#[tokio::test]
async fn ids_may_be_text_or_bytes() {
    let id = uuid::Uuid::from_u128(0x0123_4567_89ab_4def_8123_4567_89ab_cdef);
    for written in [format!("'{id}'"), format!("x'{}'", id.simple()), format!("'{}'", id.simple())] {
        assert_eq!(seen(", id", &format!(", {written}")).await.id.0, id, "{written}");
    }
}

#[tokio::test]
async fn data_may_be_bytes() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let insert =
        "INSERT INTO pombo_outbox (type, data) VALUES ('a', x'00ff80'), ('a', CAST(x'7bff7d' AS TEXT))";
    scratch.execute(insert).await;
    let mut data = Vec::new();
    let taken = relay(&scene, |rows| {
        data = rows.iter().map(|row| row.data.to_vec()).collect();
        reject_all(rows)
    })
    .await;
    assert_eq!((taken, data), (2, vec![vec![0, 255, 128], vec![0x7b, 255, 0x7d]]));
    let kept = scratch.number(
        "SELECT count(*) FROM pombo_outbox_rejected WHERE CAST(data AS BLOB) IN (x'00ff80', x'7bff7d')",
    );
    assert_eq!(kept.await, 2, "set aside as they were written");
}

#[tokio::test]
async fn unreadable_rows_are_set_aside_and_the_rest_goes_on() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    for (columns, values) in [
        ("id", "'not-a-uuid'"),
        ("deliver_at", "'tomorrow'"),
        ("created_at", "'yesterday'"),
        ("resource_version", "'many'"),
        ("key", "'fine'"),
    ] {
        let sql = format!("INSERT INTO pombo_outbox (type, data, {columns}) VALUES ('a', '0', {values})");
        scratch.execute(&sql).await;
    }
    let mut readable = 0;
    let taken = relay(&scene, |rows| {
        readable = rows.len();
        reject_all(rows)
    })
    .await;
    assert_eq!((taken, readable), (5, 1));
    let mut reasons: Vec<_> =
        scene.store.rejected_rows(10).await.expect("lists").into_iter().map(|row| row.reason).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["deliver_at", "resource_version", "type", "unreadable", "unreadable"]);
}

/// The file is not locked while the planner works, so a row may change under it: then it stays for the next
/// relay, and neither form is lost or sent twice.
#[tokio::test]
async fn a_row_that_changes_while_it_is_planned_stays() {
    let scratch = Scratch::new();
    let scene = begin(&scratch).await;
    let insert = "INSERT INTO pombo_outbox (type, data) VALUES ('a', '1'), ('a', '2'), ('a', '3')";
    scratch.execute(insert).await;
    let application = scratch.application();
    let taken = relay(&scene, move |rows| {
        application.execute("UPDATE pombo_outbox SET data = '22' WHERE data = '2'", ()).expect("changes");
        application.execute("DELETE FROM pombo_outbox WHERE data = '3'", ()).expect("takes back");
        reject_all(rows)
    })
    .await;
    assert_eq!(taken, 1);
    assert_eq!(scratch.number("SELECT count(*) FROM pombo_outbox WHERE data = '22'").await, 1);
    assert_eq!(scratch.number("SELECT count(*) FROM pombo_outbox").await, 1);
    assert_eq!(scratch.number("SELECT count(*) FROM pombo_outbox_rejected").await, 1);
}

/// The application learns it in its own transaction; a row that no scan reaches would wait for ever.
#[tokio::test]
async fn number_that_no_scan_reaches_is_refused_to_the_application() {
    let scratch = Scratch::new();
    let _scene = begin(&scratch).await;
    let application = scratch.application();
    let insert = "INSERT INTO pombo_outbox (seq, type, data) VALUES (?1, 'a', '0')";
    for seq in [0, -5, i64::MIN, i64::MAX] {
        let error = application.execute(insert, [seq]).expect_err("refused");
        assert!(error.to_string().contains("CHECK"), "{seq}: {error}");
    }
    application
        .execute("INSERT INTO pombo_outbox (type, data) VALUES ('a', '0')", ())
        .expect("the next is taken");
}
