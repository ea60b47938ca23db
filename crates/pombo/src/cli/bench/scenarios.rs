//! What is measured, one function each. Every scenario has a database and server processes of its own.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::counters::Counters;
use super::messages::{AskLoad, Layout, OutboxLoad, PostLoad, Until, What};
use super::process;
use super::report::Scenario;
use super::scratch::{Named, Scratch};
use super::server::Server;
use super::stage::{Course, Stage};
use crate::output::Output;

/// Tenants, with one endpoint each.
const MANY: Layout = Layout { tenants: 8, endpoints_each: 1 };
/// One tenant whose events go to twenty endpoints.
const FANOUT: Layout = Layout { tenants: 1, endpoints_each: 20 };
/// Connections of the raw loop.
const RAW_CLIENTS: usize = 64;
/// Connections of a paced load.
const PACED_CLIENTS: usize = 16;
/// Deliveries per second of a paced load.
const PACED_RATE: f64 = 100.0;
/// Longest raw run; one between any two scenarios.
const RAW_SECONDS_MAX: f64 = 2.0;
/// Rows of the pre-filled outbox.
const OUTBOX_ROWS: u64 = 120_000;
/// Events of `fanout`, each delivered twenty times.
const FANOUT_EVENTS: u64 = 5_000;
/// After its start, before a server counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(3);
/// How long it is watched.
const IDLE_FOR: Duration = Duration::from_secs(5);
/// PostgreSQL's counters of transactions reach us so much later.
const COUNTERS_LATE: Duration = Duration::from_millis(1500);

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Name {
    /// Events by the API, one delivery each
    Api,
    /// Events from an outbox that was full before Pombo started
    Outbox,
    /// Events by the API, twenty deliveries each
    Fanout,
    /// Nothing to do
    Idle,
    /// As `api`, with two server processes (PostgreSQL)
    Two,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Length of each course of load.
    pub(super) seconds: f64,
    /// Instead: events of each course of full load.
    pub(super) events: Option<u64>,
    /// Clients of the API under full load.
    pub(super) clients: usize,
}

/// The bench, set up.
pub(super) struct Bench {
    pub(super) stage: Stage,
    pub(super) named: Named,
    pub(super) size: Size,
    pub(super) output: Output,
}

impl Bench {
    /// Measures one scenario.
    pub(super) async fn measure(&mut self, name: Name) -> Result<Scenario> {
        match name {
            Name::Api => self.by_api("api", MANY, 1).await,
            Name::Two => self.by_api("two", MANY, 2).await,
            Name::Fanout => self.by_api("fanout", FANOUT, 1).await,
            Name::Outbox => self.by_outbox().await,
            Name::Idle => self.at_rest().await,
        }
    }

    /// The raw POST loop, in requests per second.
    pub(super) async fn raw(&mut self) -> Result<f64> {
        let run = self.stage.begin(Layout { tenants: 1, endpoints_each: 1 }).await?;
        let load = AskLoad::Post(PostLoad {
            run,
            targets: vec![self.stage.receiver()],
            what: What::Raw,
            clients: RAW_CLIENTS,
            tenants: 1,
            until: Until::Seconds(self.size.seconds.min(RAW_SECONDS_MAX)),
            rate: None,
        });
        self.stage.raw(&load).await
    }

    async fn by_api(&mut self, name: &'static str, layout: Layout, processes: usize) -> Result<Scenario> {
        let scratch = Scratch::make(&self.named).await?;
        let mut servers = Vec::new();
        for _ in 0..processes {
            servers.push(Server::start(&scratch).await?);
        }
        servers[0].make_endpoints(layout, self.stage.receiver()).await?;
        let servers: Vec<&Server> = servers.iter().collect();
        let result = self.load_api(name, layout, &servers, &scratch).await;
        explained(result, &servers)
    }

    async fn load_api(
        &mut self,
        name: &'static str,
        layout: Layout,
        servers: &[&Server],
        scratch: &Scratch,
    ) -> Result<Scenario> {
        let rate = PACED_RATE / layout.endpoints_each as f64;
        let paced = self.post(layout, servers, Until::Seconds(self.size.seconds), Some(rate)).await?;
        let paced = self.stage.run("at 100/s", layout, &paced, servers).await?;
        let until = match (self.size.events, name) {
            (Some(events), _) => Until::Events(events),
            (None, "fanout") => Until::Events(FANOUT_EVENTS),
            (None, _) => Until::Seconds(self.size.seconds),
        };
        let before = counters(scratch).await?;
        let loaded = self.post(layout, servers, until, None).await?;
        let loaded = self.stage.run("full load", layout, &loaded, servers).await?;
        let after = counters(scratch).await?;
        let mut scenario = scenario(name, &paced, &loaded);
        count(&mut scenario, before, after);
        scenario.rss_mb = peak(servers);
        Ok(scenario)
    }

    async fn post(
        &mut self,
        layout: Layout,
        servers: &[&Server],
        until: Until,
        rate: Option<f64>,
    ) -> Result<AskLoad> {
        Ok(AskLoad::Post(PostLoad {
            run: self.stage.begin(layout).await?,
            targets: servers.iter().map(|server| server.address()).collect(),
            what: What::Event,
            clients: if rate.is_some() { PACED_CLIENTS } else { self.size.clients },
            tenants: layout.tenants,
            until,
            rate,
        }))
    }

    async fn by_outbox(&mut self) -> Result<Scenario> {
        let scratch = Scratch::make(&self.named).await?;
        let server = Server::start(&scratch).await?;
        server.make_endpoints(MANY, self.stage.receiver()).await?;
        server.stop().await?;
        let rows = self.size.events.unwrap_or(OUTBOX_ROWS);
        let run = self.stage.begin(MANY).await?;
        let bar = self.output.bar("filling the outbox", rows);
        scratch.fill(run, MANY.tenants, rows, |filled| bar.set_position(filled)).await?;
        bar.finish_and_clear();
        let before = counters(&scratch).await?;
        let server = Server::start(&scratch).await?;
        let result = self.load_outbox(&server, &scratch, rows, before).await;
        explained(result, &[&server])
    }

    async fn load_outbox(
        &mut self,
        server: &Server,
        scratch: &Scratch,
        rows: u64,
        before: Option<Counters>,
    ) -> Result<Scenario> {
        let loaded = self.stage.relay("full outbox", MANY, rows, server).await?;
        let after = counters(scratch).await?;
        let rows = (self.size.seconds * PACED_RATE) as u64;
        let ask = AskLoad::Outbox(OutboxLoad {
            run: self.stage.begin(MANY).await?,
            database: scratch.place(),
            tenants: MANY.tenants,
            rows,
            rate: PACED_RATE,
        });
        let paced = self.stage.run("rows at 100/s", MANY, &ask, &[server]).await?;
        let mut scenario = scenario("outbox", &paced, &loaded);
        count(&mut scenario, before, after);
        scenario.rss_mb = peak(&[server]);
        Ok(scenario)
    }

    async fn at_rest(&mut self) -> Result<Scenario> {
        let scratch = Scratch::make(&self.named).await?;
        let server = Server::start(&scratch).await?;
        server.make_endpoints(MANY, self.stage.receiver()).await?;
        let seconds = IDLE_FOR.as_secs_f64();
        tokio::time::sleep(IDLE_AFTER).await;
        let before = counters(&scratch).await?;
        let cpu = || server.pid().and_then(process::cpu_micros);
        let cpu_before = cpu();
        let bar = self.output.bar("at rest", IDLE_FOR.as_secs());
        for _ in 0..IDLE_FOR.as_secs() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            bar.inc(1);
        }
        bar.finish_and_clear();
        let cpu_after = cpu();
        let counted = counters(&scratch).await?.zip(before).map(|(after, before)| after.since(before));
        let whole = seconds + COUNTERS_LATE.as_secs_f64();
        let used = cpu_after.zip(cpu_before).map(|(after, before)| (after - before) as f64);
        let per_second = |count: i64| count as f64 / whole;
        Ok(Scenario {
            name: "idle",
            rss_mb: server.pid().and_then(process::resident_mb),
            idle_cpu_percent: used.map(|micros| micros / seconds / 10_000.0),
            idle_statements_per_second: counted.and_then(|counted| counted.statements).map(per_second),
            idle_transactions_per_second: counted.map(|counted| per_second(counted.transactions)),
            ..Scenario::default()
        })
    }
}

/// A failure says more with the servers' last words.
fn explained(result: Result<Scenario>, servers: &[&Server]) -> Result<Scenario> {
    result.map_err(|error| {
        let tails: Vec<String> = servers.iter().map(|server| server.log_tail()).collect();
        error.context(tails.join("\n"))
    })
}

fn scenario(name: &'static str, paced: &Course, loaded: &Course) -> Scenario {
    let accepted = loaded.sent.as_ref().map(|sent| sent.latency).unwrap_or_default();
    Scenario {
        name,
        deliveries_per_second: loaded.per_second(),
        p50_ms: paced.received.latency.p50_ms(),
        p99_ms: paced.received.latency.p99_ms(),
        lost: paced.received.lost + loaded.received.lost,
        duplicates: paced.duplicates() + loaded.duplicates(),
        deliveries: loaded.received.deliveries,
        seconds: loaded.seconds,
        loaded_p50_ms: loaded.received.latency.p50_ms(),
        loaded_p99_ms: loaded.received.latency.p99_ms(),
        accept_p50_ms: accepted.p50_ms(),
        accept_p99_ms: accepted.p99_ms(),
        cpu_micros_per_delivery: loaded.cpu_per_delivery(),
        ..Scenario::default()
    }
}

/// What PostgreSQL has counted up to now.
async fn counters(scratch: &Scratch) -> Result<Option<Counters>> {
    if matches!(scratch.place(), super::messages::Where::Postgres(_)) {
        tokio::time::sleep(COUNTERS_LATE).await;
    }
    Counters::read(scratch).await
}

fn count(scenario: &mut Scenario, before: Option<Counters>, after: Option<Counters>) {
    let Some((after, before)) = after.zip(before).filter(|_| scenario.deliveries > 0) else { return };
    let counted = after.since(before);
    let each = |count: i64| count as f64 / scenario.deliveries as f64;
    scenario.wal_bytes_per_delivery = Some(each(counted.wal_bytes));
    scenario.transactions_per_delivery = Some(each(counted.transactions));
    scenario.statements_per_delivery = counted.statements.map(each);
}

fn peak(servers: &[&Server]) -> Option<f64> {
    servers.iter().filter_map(|server| process::resident_peak_mb(server.pid()?)).reduce(f64::max)
}
