//! What is counted. Label sets are closed: no ids and no URLs.

use std::sync::Mutex;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use pombo_domain::attempt::{AttemptClass, Settlement};
use pombo_domain::event::Origin;
use pombo_store::admin::Sample;

type Labels = Vec<(&'static str, &'static str)>;

/// Bounds of attempt durations, in seconds.
const ATTEMPT_BUCKETS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bounds of the time from acceptance to delivery, in seconds.
const DELIVERY_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0, 21_600.0, 86_400.0];
/// Bounds of attempts per delivery.
const ATTEMPTS_BUCKETS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0];

/// The numbers of one engine.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    events_accepted: Family<Labels, Counter>,
    deliveries_settled: Family<Labels, Counter>,
    attempts: Family<Labels, Counter>,
    attempt_duration: Histogram,
    time_to_delivery: Histogram,
    attempts_per_delivery: Histogram,
    outbox_rejected: Family<Labels, Counter>,
    late_results: Family<Labels, Counter>,
    manual_actions: Family<Labels, Counter>,
    pub(crate) leases_expired: Counter,
    pub(crate) sessions_lost: Counter,
    stage_failures: Counter,
    in_flight: Gauge,
    unflushed: Gauge,
    live: Family<Labels, Gauge>,
    oldest_due: Gauge<f64, std::sync::atomic::AtomicU64>,
    outbox_rows: Gauge,
    outbox_oldest: Gauge<f64, std::sync::atomic::AtomicU64>,
    endpoints: Family<Labels, Gauge>,
    dead_letters: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("pombo")),
            events_accepted: Family::default(),
            deliveries_settled: Family::default(),
            attempts: Family::default(),
            attempt_duration: Histogram::new(ATTEMPT_BUCKETS),
            time_to_delivery: Histogram::new(DELIVERY_BUCKETS),
            attempts_per_delivery: Histogram::new(ATTEMPTS_BUCKETS),
            outbox_rejected: Family::default(),
            late_results: Family::default(),
            manual_actions: Family::default(),
            leases_expired: Counter::default(),
            sessions_lost: Counter::default(),
            stage_failures: Counter::default(),
            in_flight: Gauge::default(),
            unflushed: Gauge::default(),
            live: Family::default(),
            oldest_due: Gauge::default(),
            outbox_rows: Gauge::default(),
            outbox_oldest: Gauge::default(),
            endpoints: Family::default(),
            dead_letters: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&self) {
        let mut registry = self.registry.lock().expect("nobody panics with the registry");
        let r = &mut *registry;
        r.register("events_accepted", "Events accepted, by door", self.events_accepted.clone());
        r.register("deliveries_settled", "Deliveries settled, by outcome", self.deliveries_settled.clone());
        r.register("attempts", "Attempts, by class and status", self.attempts.clone());
        r.register("attempt_duration_seconds", "Length of attempts", self.attempt_duration.clone());
        r.register("time_to_delivery_seconds", "From acceptance to delivery", self.time_to_delivery.clone());
        r.register(
            "attempts_per_delivery",
            "Attempts a settled delivery took",
            self.attempts_per_delivery.clone(),
        );
        r.register("outbox_rejected", "Outbox rows set aside, by reason", self.outbox_rejected.clone());
        r.register(
            "late_results",
            "Results that came after the delivery had moved on",
            self.late_results.clone(),
        );
        r.register("manual_actions", "Acts of people on deliveries", self.manual_actions.clone());
        r.register("leases_expired", "Sessions of others declared dead here", self.leases_expired.clone());
        r.register("sessions_lost", "Sessions this process lost", self.sessions_lost.clone());
        r.register("stage_failures", "Stages of the engine that failed", self.stage_failures.clone());
        r.register("in_flight", "Attempts under way", self.in_flight.clone());
        r.register("unflushed", "Results not yet written", self.unflushed.clone());
        r.register("live_deliveries", "Live deliveries, sampled", self.live.clone());
        r.register(
            "oldest_due_seconds",
            "Age of the oldest due delivery nobody owns",
            self.oldest_due.clone(),
        );
        r.register("outbox_rows", "Rows waiting in the outbox, sampled", self.outbox_rows.clone());
        r.register(
            "outbox_oldest_seconds",
            "Age of the oldest row in the outbox",
            self.outbox_oldest.clone(),
        );
        r.register("endpoints", "Endpoints, by status", self.endpoints.clone());
        r.register("dead_letters", "Dead letters kept", self.dead_letters.clone());
    }

    pub(crate) fn stage_failed(&self) {
        self.stage_failures.inc();
    }

    pub(crate) fn event_accepted(&self, origin: Origin) {
        self.events_accepted.get_or_create(&vec![("origin", origin.as_str())]).inc();
    }

    pub(crate) fn outbox_rejected(&self, reason: &'static str) {
        self.outbox_rejected.get_or_create(&vec![("reason", reason)]).inc();
    }

    pub(crate) fn attempt(&self, class: AttemptClass, status: Option<u16>, duration: Duration) {
        let status = match status {
            None => "none",
            Some(200..=299) => "2xx",
            Some(300..=399) => "3xx",
            Some(400..=499) => "4xx",
            Some(500..=599) => "5xx",
            Some(_) => "other",
        };
        self.attempts.get_or_create(&vec![("class", class.as_str()), ("status", status)]).inc();
        self.attempt_duration.observe(duration.as_secs_f64());
    }

    pub(crate) fn settled(&self, how: Settlement, attempts: u16, since_accepted: Duration) {
        self.deliveries_settled.get_or_create(&vec![("outcome", how.as_str())]).inc();
        self.attempts_per_delivery.observe(f64::from(attempts));
        if how == Settlement::Delivered {
            self.time_to_delivery.observe(since_accepted.as_secs_f64());
        }
    }

    pub(crate) fn late(&self, settled: bool) {
        let kind = if settled { "settled" } else { "recorded" };
        self.late_results.get_or_create(&vec![("kind", kind)]).inc();
    }

    pub(crate) fn manual(&self, action: &'static str) {
        self.manual_actions.get_or_create(&vec![("action", action)]).inc();
    }

    pub(crate) fn take_sample(&self, sample: &Sample) {
        let states = [("owned", sample.owned), ("waiting", sample.waiting), ("parked", sample.parked)];
        for (state, count) in states {
            self.live.get_or_create(&vec![("state", state)]).set(count);
        }
        for (state, count) in ["active", "paused", "disabled"].into_iter().zip(sample.endpoints) {
            self.endpoints.get_or_create(&vec![("state", state)]).set(count);
        }
        self.oldest_due.set(seconds(sample.oldest_due_micros));
        self.outbox_rows.set(sample.outbox_rows);
        self.outbox_oldest.set(seconds(sample.outbox_oldest_micros));
        self.dead_letters.set(sample.dead_letters);
    }

    /// The Prometheus text format, with the gauges of this process brought up to date.
    pub(crate) fn encode(&self, in_flight: usize, unflushed: usize) -> String {
        self.in_flight.set(in_flight as i64);
        self.unflushed.set(unflushed as i64);
        let mut text = String::new();
        let registry = self.registry.lock().expect("nobody panics with the registry");
        encode(&mut text, &registry).expect("writing into a String cannot fail");
        text
    }
}

fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}
