//! The load generator: a process of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use http::Uri;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::event::{self, Mark};
use super::latency::Histogram;
use super::messages::{AskLoad, PostLoad, Sent, Until, What};
use super::speech::{self, Parent};
use crate::failure::Outcome;

mod outbox;

/// Events that may be refused before the load is given up.
const REFUSALS_MAX: usize = 10_000;
/// Pause after a refusal, so that a server in trouble is not hammered.
const PAUSE: Duration = Duration::from_millis(20);
/// A paced request that starts later than this counts from the moment it was due: whoever is kept waiting by the
/// answers before must not look fast.
const LATE: Duration = Duration::from_millis(5);

/// Sends what the parent asks for, until it is gone.
pub(crate) async fn run() -> Outcome {
    let mut parent = Parent::new();
    while let Some(question) = parent.question().await? {
        let sent = match question {
            AskLoad::Post(load) => post(load).await,
            AskLoad::Outbox(load) => outbox::insert(load).await,
        };
        speech::answer(sent)?;
    }
    Ok(())
}

/// What the clients of one load share.
struct Course {
    load: PostLoad,
    path: Uri,
    next: AtomicU64,
    begin: Instant,
    end: Option<Instant>,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    numbers: Vec<u64>,
    why: Option<String>,
}

async fn post(load: PostLoad) -> Result<Sent> {
    ensure!(!load.targets.is_empty() && load.tenants > 0, "there is nobody to send to");
    let mut connections = Vec::with_capacity(load.clients);
    for client in 0..load.clients {
        connections.push(Connection::open(load.targets[client % load.targets.len()]).await?);
    }
    let begin = Instant::now();
    let end = match load.until {
        Until::Seconds(seconds) => Some(begin + Duration::from_secs_f64(seconds)),
        Until::Events(_) => None,
    };
    let path = match load.what {
        What::Event => Uri::from_static("/v1/events"),
        What::Raw => Uri::from_static("/e/0"),
    };
    let started_at = event::now();
    let course =
        Arc::new(Course { load, path, next: AtomicU64::new(0), begin, end, refusals: Mutex::default() });
    let mut clients = JoinSet::new();
    for connection in connections {
        clients.spawn(client(Arc::clone(&course), connection));
    }
    let mut latency = Histogram::default();
    while let Some(ended) = clients.join_next().await {
        latency.merge(&ended??);
    }
    let refusals = std::mem::take(&mut *course.refusals.lock().expect("nobody panics with the list"));
    Ok(Sent {
        numbered: course.numbered(),
        not_accepted: refusals.numbers,
        refusal: refusals.why,
        started_at,
        ended_at: event::now(),
        latency: latency.summary(),
    })
}

async fn client(course: Arc<Course>, mut connection: Connection) -> Result<Histogram> {
    let mut latency = Histogram::default();
    while let Some((number, due)) = course.take() {
        let late = match due {
            Some(due) => {
                tokio::time::sleep_until(due.into()).await;
                due.elapsed()
            }
            None => Duration::ZERO,
        };
        let late_micros = if late > LATE { late.as_micros() as i64 } else { 0 };
        let mark = Mark { run: course.load.run, number, sent_at: event::now() - late_micros };
        let body = match course.load.what {
            What::Event => event::request(mark, course.load.tenants),
            What::Raw => event::delivered(mark),
        };
        match connection.post(&course.path, body).await {
            Ok((status, _)) if status.is_success() => {
                latency.add((event::now() - mark.sent_at).max(0) as u64);
            }
            Ok((status, answer)) => {
                course.refuse(number, format!("{status}: {}", String::from_utf8_lossy(&answer)))?;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                course.refuse(number, format!("{error:#}"))?;
                tokio::time::sleep(PAUSE).await;
                connection.reopen().await?;
            }
        }
    }
    Ok(latency)
}

impl Course {
    /// The next number, and when it is due; `None` at the end.
    fn take(&self) -> Option<(u64, Option<Instant>)> {
        if self.load.rate.is_none() && self.end.is_some_and(|end| Instant::now() >= end) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.length() {
            return None;
        }
        let due = self.load.rate.map(|rate| self.begin + Duration::from_secs_f64(number as f64 / rate));
        Some((number, due))
    }

    /// How many there are at most.
    fn length(&self) -> u64 {
        match (self.load.until, self.load.rate) {
            (Until::Events(events), _) => events,
            (Until::Seconds(seconds), Some(rate)) => (seconds * rate) as u64,
            (Until::Seconds(_), None) => u64::MAX,
        }
    }

    fn numbered(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.length())
    }

    fn refuse(&self, number: u64, why: String) -> Result<()> {
        let mut refusals = self.refusals.lock().expect("nobody panics with the list");
        refusals.numbers.push(number);
        if refusals.numbers.len() > REFUSALS_MAX {
            bail!("more than {REFUSALS_MAX} requests failed, the last with {why}");
        }
        refusals.why.get_or_insert(why);
        Ok(())
    }
}
