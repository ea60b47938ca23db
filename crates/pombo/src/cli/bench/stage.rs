//! One course of load: sent by one process, received by another, counted until all has come.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::ProgressBar;

use super::messages::{AskLoad, AskReceiver, Layout, Received, Sent, Until};
use super::process;
use super::report::Cpu;
use super::server::Server;
use super::worker::Worker;
use crate::output::{Output, note};

/// Longest answer of the receiver, which only looks at its counters.
const ASK_MAX: Duration = Duration::from_secs(30);
/// What a load may take beyond its own time.
const LOAD_EXTRA: Duration = Duration::from_secs(90);
/// Longest load that is told by a number of events.
const EVENTS_LOAD_MAX: Duration = Duration::from_secs(900);
/// When nothing has come for so long, what is missing counts as lost: longer than the first delays of a retry.
const STALL_MAX: Duration = Duration::from_secs(60);
/// Between two looks at the receiver.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After the last receipt: time for copies that should not come.
const AFTERMATH: Duration = Duration::from_millis(500);
/// Longest wait until the server has written all results.
const SETTLE_MAX: Duration = Duration::from_secs(15);

/// The processes beside the server.
#[derive(Debug)]
pub(super) struct Stage {
    receiver: Worker,
    load: Worker,
    address: SocketAddr,
    run: u64,
    output: Output,
}

/// What a course of load came to.
#[derive(Debug)]
pub(super) struct Course {
    /// What was sent; `None` where the load was there before.
    pub(super) sent: Option<Sent>,
    /// What was received.
    pub(super) received: Received,
    /// From the first publish, or receipt, to the last receipt.
    pub(super) seconds: f64,
    /// Processor time in all.
    cpu: Option<Cpu>,
}

impl Course {
    /// The rate.
    pub(super) fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.received.deliveries as f64 / self.seconds } else { 0.0 }
    }

    /// Copies beyond the first, of this course or an earlier one.
    pub(super) fn duplicates(&self) -> u64 {
        self.received.duplicates + self.received.strays
    }

    /// Processor time per delivery.
    pub(super) fn cpu_per_delivery(&self) -> Option<Cpu> {
        let count = self.received.deliveries as f64;
        let each = |cpu: Cpu| Cpu {
            server: cpu.server / count,
            receiver: cpu.receiver / count,
            load: cpu.load / count,
        };
        self.cpu.filter(|_| count > 0.0).map(each)
    }
}

impl Stage {
    /// Starts the processes.
    pub(super) async fn set(output: Output) -> Result<Self> {
        let (mut receiver, load) = (Worker::start("bench-receiver")?, Worker::start("bench-load")?);
        let received: Received = receiver.ask(&AskReceiver::Status, ASK_MAX).await?;
        Ok(Self { receiver, load, address: received.address, run: 0, output })
    }

    /// Where the receiver listens.
    pub(super) fn receiver(&self) -> SocketAddr {
        self.address
    }

    /// Makes the receiver ready for a new run, and gives its number.
    pub(super) async fn begin(&mut self, layout: Layout) -> Result<u64> {
        self.run += 1;
        let begin = AskReceiver::Begin { run: self.run, layout };
        self.receiver.ask::<Received>(&begin, ASK_MAX).await?;
        Ok(self.run)
    }

    /// The load generator straight to the receiver, in requests per second.
    pub(super) async fn raw(&mut self, load: &AskLoad) -> Result<f64> {
        let sent: Sent = self.load.ask(load, longest(load)).await?;
        Ok(sent.accepted() as f64 / seconds_between(sent.started_at, sent.ended_at))
    }

    /// Sends, waits until all has come, counts.
    pub(super) async fn run(
        &mut self,
        what: &'static str,
        layout: Layout,
        ask: &AskLoad,
        servers: &[&Server],
    ) -> Result<Course> {
        let before = self.cpu(servers);
        let bar = bar_for(self.output, what, layout, ask);
        let sent = self.send(ask, &bar).await?;
        bar.finish_and_clear();
        if let Some(why) = &sent.refusal {
            note(&format!(
                "{} of {} events were not accepted: {why}",
                sent.not_accepted.len(),
                sent.numbered
            ));
        }
        let expected = sent.accepted() * layout.endpoints_each;
        let received = self.drain(what, expected).await?;
        let cpu = self.cpu_since(servers, before);
        let received = self.audit(sent.numbered, &sent.not_accepted, received).await?;
        settle(servers).await?;
        let seconds = received.last_at.map_or(0.0, |last_at| seconds_between(sent.started_at, last_at));
        Ok(Course { sent: Some(sent), received, seconds, cpu })
    }

    /// The load is there already: waits until all has come, counts. Processor time includes the server's start.
    pub(super) async fn relay(
        &mut self,
        what: &'static str,
        layout: Layout,
        events: u64,
        server: &Server,
    ) -> Result<Course> {
        let before = self.cpu(&[]);
        let received = self.drain(what, events * layout.endpoints_each).await?;
        let cpu = self.cpu_since(&[server], before);
        let received = self.audit(events, &[], received).await?;
        settle(&[server]).await?;
        let (first_at, last_at) = (received.first_at.unwrap_or(0), received.last_at.unwrap_or(0));
        Ok(Course { sent: None, received, seconds: seconds_between(first_at, last_at), cpu })
    }

    async fn send(&mut self, ask: &AskLoad, bar: &ProgressBar) -> Result<Sent> {
        let Self { receiver, load, .. } = self;
        let by_time = until(ask).is_some_and(|until| matches!(until, Until::Seconds(_)));
        let begin = Instant::now();
        let sending = load.ask(ask, longest(ask));
        tokio::pin!(sending);
        loop {
            tokio::select! {
                sent = &mut sending => return sent,
                () = tokio::time::sleep(LOOK_EVERY * 4) => {}
            }
            if by_time {
                bar.set_position(begin.elapsed().as_secs());
            } else {
                let received: Received = receiver.ask(&AskReceiver::Status, ASK_MAX).await?;
                bar.set_position(received.deliveries);
            }
        }
    }

    /// Waits until so many deliveries have come, or none comes any more.
    async fn drain(&mut self, what: &'static str, expected: u64) -> Result<Received> {
        let bar = self.output.bar(what, expected);
        let mut news = (0, Instant::now());
        let received = loop {
            let received: Received = self.receiver.ask(&AskReceiver::Status, ASK_MAX).await?;
            bar.set_position(received.deliveries);
            if received.deliveries != news.0 {
                news = (received.deliveries, Instant::now());
            }
            if received.deliveries >= expected || news.1.elapsed() > STALL_MAX {
                break received;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        bar.finish_and_clear();
        Ok(received)
    }

    /// Counts what is missing and what is too much. Figures that go with time stay those of the drain.
    async fn audit(&mut self, events: u64, not_accepted: &[u64], drained: Received) -> Result<Received> {
        tokio::time::sleep(AFTERMATH).await;
        let audit = AskReceiver::Audit { events, not_accepted: not_accepted.to_vec() };
        let audited: Received = self.receiver.ask(&audit, ASK_MAX).await?;
        Ok(Received { lost: audited.lost, duplicates: audited.duplicates, strays: audited.strays, ..drained })
    }

    fn cpu(&self, servers: &[&Server]) -> Option<Cpu> {
        let of = |pid: Option<u32>| pid.and_then(process::cpu_micros).map(|micros| micros as f64);
        let server: Option<f64> = servers.iter().map(|server| of(server.pid())).sum();
        Some(Cpu { server: server?, receiver: of(self.receiver.pid())?, load: of(self.load.pid())? })
    }

    fn cpu_since(&self, servers: &[&Server], before: Option<Cpu>) -> Option<Cpu> {
        let (now, before) = (self.cpu(servers)?, before?);
        Some(Cpu {
            server: now.server - before.server,
            receiver: now.receiver - before.receiver,
            load: now.load - before.load,
        })
    }
}

/// Waits until the servers have written every result: a delivery that stays live would be sent again.
async fn settle(servers: &[&Server]) -> Result<()> {
    let begin = Instant::now();
    for server in servers {
        while server.has_live_deliveries().await? {
            if begin.elapsed() > SETTLE_MAX {
                note("some deliveries are still live although all were received");
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}

fn until(ask: &AskLoad) -> Option<Until> {
    match ask {
        AskLoad::Post(load) => Some(load.until),
        AskLoad::Outbox(_) => None,
    }
}

fn longest(ask: &AskLoad) -> Duration {
    match ask {
        AskLoad::Post(load) => match load.until {
            Until::Seconds(seconds) => Duration::from_secs_f64(seconds) + LOAD_EXTRA,
            Until::Events(_) => EVENTS_LOAD_MAX,
        },
        AskLoad::Outbox(load) => Duration::from_secs_f64(load.rows as f64 / load.rate) + LOAD_EXTRA,
    }
}

fn bar_for(output: Output, what: &'static str, layout: Layout, ask: &AskLoad) -> ProgressBar {
    let length = match ask {
        AskLoad::Post(load) => match load.until {
            Until::Seconds(seconds) => seconds as u64,
            Until::Events(events) => events * layout.endpoints_each,
        },
        AskLoad::Outbox(load) => load.rows * layout.endpoints_each,
    };
    output.bar(what, length)
}

fn seconds_between(start: i64, end: i64) -> f64 {
    (end - start).max(0) as f64 / 1_000_000.0
}
