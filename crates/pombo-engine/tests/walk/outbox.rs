//! The outbox: what applications write in their own transactions.

use std::time::Duration;

use crate::faulty::Fault;
use crate::walk::{Walk, until};

fn write(walk: &Walk, columns: &str, values: &str) {
    assert_eq!(walk.execute(&format!("INSERT INTO pombo_outbox ({columns}) VALUES ({values})")), 1);
}

fn write_sound(walk: &Walk, n: u32) {
    write(walk, "tenant, type, data", &format!("'acme', 'order.paid', '{{\"n\": {n}}}'"));
}

async fn rejected(walk: &Walk, count: usize) -> Vec<String> {
    let look = async || {
        let rows = walk.store.rejected_rows(100).await.expect("rows are read");
        if rows.len() == count { Ok(rows) } else { Err(format!("{rows:?}")) }
    };
    let mut words: Vec<_> = until(look).await.into_iter().map(|row| row.reason).collect();
    words.sort_unstable();
    words
}

#[tokio::test]
async fn rows_that_cannot_become_events_are_set_aside_and_the_rest_flows() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    write_sound(&walk, 1);
    write(&walk, "tenant, type, data", "'acme', 'order.paid', '{'");
    write(&walk, "tenant, type, data", "'acme', 'order paid', '{}'");
    write(&walk, "tenant, type, data", "'a b', 'order.paid', '{}'");
    write(&walk, "tenant, type, data, endpoint_id", "'acme', 'order.paid', '{}', 'ep_x'");
    write(&walk, "tenant, type, data, resource_version", "'acme', 'order.paid', '{}', -5");
    write(&walk, "tenant, type, data", "'acme', 'order.paid', printf('\"%.*c\"', 1200000, 'x')");
    write_sound(&walk, 2);
    walk.hits("/a", 2).await;
    let words = rejected(&walk, 6).await;
    assert_eq!(words, ["data", "endpoint", "resource_version", "tenant", "too_large", "type"]);
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 2);
}

#[tokio::test]
async fn a_row_becomes_the_event_of_its_own_id() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    write(&walk, "id, tenant, type, data", &format!("'{id}', 'acme', 'order.paid', '{{ \"a\": 12.50 }}'"));
    let hit = walk.hits("/a", 1).await.remove(0);
    assert_eq!(hit.webhook_id(), Some("evt_01h455vb4pex5vsknk084sn02q"));
    let text = std::str::from_utf8(&hit.body).expect("JSON is text");
    assert!(text.contains("\"data\":{ \"a\": 12.50 }"), "{text}");
    // The same id once more is the same event, even while its first delivery is long done.
    write(&walk, "id, tenant, type, data", &format!("'{id}', 'acme', 'order.paid', '{{ \"a\": 12.50 }}'"));
    write_sound(&walk, 2);
    walk.hits("/a", 2).await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.counts().len(), 2);
    assert_eq!(walk.receiver.hits().len(), 2);
}

#[tokio::test]
async fn a_relay_whose_answer_is_lost_loses_and_doubles_nothing() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    for n in 0..5 {
        walk.faults.next("relay", if n % 2 == 0 { Fault::UnknownDone } else { Fault::UnknownNotDone });
    }
    (0..20).for_each(|n| write_sound(&walk, n));
    until(async || match walk.receiver.counts().len() {
        20 => Ok(()),
        count => Err(format!("{count} came")),
    })
    .await;
    walk.is_sound().await;
    assert_eq!(walk.receiver.hits().len(), 20);
}

#[tokio::test]
async fn a_row_that_the_database_refuses_is_found_and_set_aside() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    write_sound(&walk, 0);
    walk.hits("/a", 1).await;
    // Halved from 500 down to one row, which then is refused alone.
    for _ in 0..9 {
        walk.faults.next("relay", Fault::Rejected);
    }
    let (first, others) = (1, 2..30);
    write_sound(&walk, first);
    others.for_each(|n| write_sound(&walk, n));
    assert_eq!(rejected(&walk, 1).await, ["unreadable"]);
    walk.hits("/a", 29).await;
    walk.is_sound().await;
}

#[tokio::test]
async fn a_backlog_longer_than_a_batch_is_taken_whole() {
    let walk = Walk::start().await;
    walk.endpoint_with("/a", |settings| settings.max_concurrency = 64).await;
    walk.execute(
        "INSERT INTO pombo_outbox (tenant, type, data)
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)
         SELECT 'acme', 'order.paid', i FROM n",
    );
    walk.receiver.wait_for(Duration::from_secs(60), |hits| hits.len() >= 1200).await.expect("all come");
    walk.is_sound().await;
    assert_eq!(walk.receiver.counts().len(), 1200);
    assert_eq!(walk.receiver.hits().len(), 1200);
}

#[tokio::test]
async fn large_rows_cut_off_by_the_byte_limit_are_not_waited_for() {
    let walk = Walk::start().await;
    walk.endpoint("/a").await;
    for _ in 0..40 {
        write(&walk, "tenant, type, data", "'acme', 'order.paid', printf('\"%.*c\"', 900000, 'x')");
    }
    walk.hits("/a", 40).await;
    walk.is_sound().await;
}
