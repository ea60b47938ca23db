//! Events that applications write in their own transactions.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pombo_testkit::receiver::Hit;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::harness::calls::{SOON, create_endpoint, eventually};
use crate::harness::database::{Database, Kind};
use crate::harness::on_both;
use crate::harness::shop::{self, End};
use crate::harness::stage::Stage;

on_both!(
    rolled_back_order_sends_nothing_and_committed_one_arrives,
    rows_that_cannot_become_events_are_set_aside_and_the_rest_flows,
);

/// The keys that have arrived, in order.
fn keys(hits: &[Hit]) -> Vec<String> {
    hits.iter()
        .map(|hit| hit.json().unwrap_or_default()["data"]["key"].as_str().unwrap_or("?").to_owned())
        .collect()
}

async fn order(database: &Database, key: &str, end: End) -> Result<()> {
    match database {
        Database::Sqlite(file) => {
            let (path, key) = (file.path(), key.to_owned());
            let ordered = tokio::task::spawn_blocking(move || -> Result<()> {
                shop::order_in_sqlite(&mut shop::connect(&path)?, &key, end)?;
                Ok(())
            });
            ordered.await?
        }
        Database::Postgres { .. } => {
            Ok(shop::order_in_postgres(&mut database.connect().await?, key, end).await?)
        }
    }
}

async fn rolled_back_order_sends_nothing_and_committed_one_arrives(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    create_endpoint(process.api(), &json!({"url": stage.receiver.url("/hooks")})).await?;
    shop::open(&stage.database).await?;
    for n in 0..10 {
        order(&stage.database, &format!("rolled back {n}"), End::RollBack).await?;
        order(&stage.database, &format!("committed {n}"), End::Commit).await?;
    }
    let hits = stage.receiver.wait_for(SOON, |hits| hits.len() >= 10).await?;
    let committed: BTreeSet<String> = (0..10).map(|n| format!("committed {n}")).collect();
    assert_eq!(keys(&hits).into_iter().collect::<BTreeSet<_>>(), committed);
    assert_eq!(shop::orders(&stage.database).await?, committed, "the orders tell the same");
    assert_eq!(stage.database.outbox_len().await?, 0);
    stage.check().await
}

/// faults S24. A transaction that began first and commits last has a low `seq`: the relay has long read past it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbox_rows_that_commit_out_of_order_are_all_delivered() -> Result<()> {
    let (stage, process) = Stage::running(Kind::Postgres).await?;
    create_endpoint(process.api(), &json!({"url": stage.receiver.url("/hooks")})).await?;
    let mut slow: Vec<PgConnection> = Vec::new();
    for n in 0..3 {
        let mut connection = stage.database.connect().await?;
        connection.execute("BEGIN").await?;
        publish(&mut connection, &format!("slow {n}")).await?;
        slow.push(connection);
    }
    let mut quick = stage.database.connect().await?;
    let mut expected = BTreeSet::new();
    for (round, mut connection) in slow.into_iter().rev().enumerate() {
        // Quick rows come and go, for longer than the second in which the relay may move its floor.
        for n in 0..8 {
            let key = format!("quick {round}.{n}");
            publish(&mut quick, &key).await?;
            expected.insert(key);
            let arrived = |hits: &[Hit]| hits.len() >= expected.len();
            stage.receiver.wait_for(SOON, arrived).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        connection.execute("COMMIT").await?;
        expected.insert(format!("slow {}", 2 - round));
        stage.receiver.wait_for(SOON, |hits| hits.len() >= expected.len()).await?;
        connection.close().await?;
    }
    let arrived = keys(&stage.receiver.hits());
    assert_eq!(arrived.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(arrived.len(), expected.len(), "each once");
    stage.check().await
}

async fn publish(connection: &mut PgConnection, key: &str) -> Result<()> {
    sqlx::query("SELECT pombo.publish('order.paid', $1::text)")
        .bind(shop::data(key))
        .execute(connection)
        .await?;
    Ok(())
}

/// faults S23.
async fn rows_that_cannot_become_events_are_set_aside_and_the_rest_flows(kind: Kind) -> Result<()> {
    let (stage, process) = Stage::running(kind).await?;
    create_endpoint(process.api(), &json!({"url": stage.receiver.url("/hooks")})).await?;
    let large = format!("\"{}\"", "x".repeat(5 * 1024 * 1024));
    let poison = [
        ("not.json", "default", "{\"key\": oops}", "data"),
        ("empty.data", "default", "", "data"),
        ("too.large", "default", large.as_str(), "too_large"),
        ("bad type", "default", "{}", "type"),
        ("bad.tenant", "a tenant", "{}", "tenant"),
    ];
    let mut expected = BTreeSet::new();
    for (n, (kind, tenant, data, reason)) in poison.into_iter().enumerate() {
        insert(&stage.database, tenant, kind, data).await?;
        insert(&stage.database, "default", "order.paid", &shop::data(&format!("good {n}"))).await?;
        expected.insert((kind.to_owned(), reason.to_owned()));
    }
    let hits = stage.receiver.wait_for(SOON, |hits| hits.len() >= poison.len()).await?;
    let good: BTreeSet<String> = (0..poison.len()).map(|n| format!("good {n}")).collect();
    assert_eq!(keys(&hits).into_iter().collect::<BTreeSet<_>>(), good);
    let emptied = || async { Ok(stage.database.outbox_len().await? == 0) };
    eventually(SOON, "the outbox is empty", emptied).await?;
    assert_eq!(stage.database.rejected().await?, expected);
    let metrics = process.api().get("/metrics").await?.text();
    let counted = metrics
        .lines()
        .filter(|line| line.starts_with("pombo_outbox_rejected_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>();
    ensure!((counted - 5.0).abs() < 0.5, "{counted} rejected rows are counted\n{metrics}");
    stage.check().await
}

async fn insert(database: &Database, tenant: &str, kind: &str, data: &str) -> Result<()> {
    match database {
        Database::Sqlite(file) => {
            const SQL: &str = "INSERT INTO pombo_outbox (tenant, type, data) VALUES (?1, ?2, ?3)";
            let path = file.path();
            let row = [tenant.to_owned(), kind.to_owned(), data.to_owned()];
            let inserted = tokio::task::spawn_blocking(move || shop::connect(&path)?.execute(SQL, row));
            inserted.await?.context("the shop's insert")?;
        }
        Database::Postgres { .. } => {
            const SQL: &str = "INSERT INTO pombo.outbox (tenant, type, data) VALUES ($1, $2, $3)";
            let mut connection = database.connect().await?;
            sqlx::query(SQL).bind(tenant).bind(kind).bind(data).execute(&mut connection).await?;
        }
    }
    Ok(())
}
