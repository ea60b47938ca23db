//! An application that writes to the same file while the store works as fast as it can (Q1).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};

use pombo_store::accept::{AcceptBatch, Placement};
use pombo_store::conformance::scene::{Scene, begin, deliver_to, event_of, kind, tenant};
use pombo_store::flush::{FlushBatch, FlushResult};

use crate::scratch::Scratch;

/// How long the load lasts.
const LOAD: Duration = Duration::from_secs(4);
/// The rule says 100 ms. Tests share their machine, and without the rule it is over a second.
const P99_MAX: Duration = Duration::from_millis(250);

/// Orders and outbox rows, one transaction each, until told to stop. Returns how long each took.
fn take_orders(mut connection: Connection, stop: &AtomicBool) -> Vec<Duration> {
    let orders = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)";
    connection.execute(orders, ()).expect("the application has a table");
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let order = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
        order.execute("INSERT INTO orders (total) VALUES (4711)", ()).expect("writes an order");
        let outbox = "INSERT INTO pombo_outbox (tenant, type, data) VALUES ('acme', 'order.paid', '{}')";
        order.execute(outbox, ()).expect("writes its event");
        order.commit().expect("commits");
        took.push(began.elapsed());
        std::thread::sleep(Duration::from_millis(3));
    }
    took
}

/// Accepts and settles batches of 20 without pause. Returns how many.
async fn deliver_without_pause(scene: Arc<Scene>) -> usize {
    let endpoint = scene.endpoint("acme").await;
    let (end, mut delivered) = (Instant::now() + LOAD, 0);
    while Instant::now() < end {
        let config_version = scene.config_version().await;
        let now = scene.now().await;
        let (mut events, mut items) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let mut new = event_of(&tenant("acme"), &kind("order.paid"), now, &[b'1'; 300]);
            let id = deliver_to(&mut new, endpoint.id, Placement::BornClaimed);
            items.push(scene.success(&scene.born(&new, id)).await);
            events.push(new);
        }
        let batch = AcceptBatch { events, config_version, session: scene.session };
        scene.store.accept(&batch).await.expect("accepts");
        let results =
            scene.store.flush(&FlushBatch { items, ..FlushBatch::default() }).await.expect("flushes");
        delivered += results.iter().filter(|result| **result == FlushResult::Applied).count();
    }
    delivered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_is_never_refused_and_seldom_waits() {
    let scratch = Scratch::new();
    let scene = Arc::new(begin(&scratch).await);
    let stop = Arc::new(AtomicBool::new(false));
    let connection = scratch.application();
    let application = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || take_orders(connection, &stop))
    };
    let senders: Vec<_> = (0..4).map(|_| tokio::spawn(deliver_without_pause(Arc::clone(&scene)))).collect();
    let mut delivered = 0;
    for sender in senders {
        delivered += sender.await.expect("no sender fails");
    }
    stop.store(true, Ordering::Relaxed);
    let mut took = application.join().expect("the application is never refused");
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    assert!(took.len() > 50 && delivered > 500, "{} orders, {delivered} deliveries", took.len());
    assert!(p99 < P99_MAX, "p99 {p99:?} of {} orders, {delivered} deliveries", took.len());
}
