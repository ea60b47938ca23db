//! What has come, counted exactly: one bit for each delivery.

use std::net::SocketAddr;

use super::event::Mark;
use super::latency::Histogram;
use super::messages::{Layout, Received};

/// Most deliveries of a run (32 MiB of bits).
const DELIVERIES_MAX: u64 = 1 << 28;

/// The deliveries of one run.
#[derive(Debug)]
pub(super) struct Ledger {
    run: u64,
    layout: Layout,
    came: Vec<u64>,
    deliveries: u64,
    duplicates: u64,
    strays: u64,
    first_at: Option<i64>,
    last_at: Option<i64>,
    latency: Histogram,
}

impl Ledger {
    /// For a run; strays of before are kept in mind, for each is a copy nobody asked for.
    pub(super) fn new(run: u64, layout: Layout) -> Self {
        Self {
            run,
            layout,
            came: Vec::new(),
            deliveries: 0,
            duplicates: 0,
            strays: 0,
            first_at: None,
            last_at: None,
            latency: Histogram::default(),
        }
    }

    /// A request came to an endpoint.
    pub(super) fn record(&mut self, endpoint: u64, mark: Mark, now: i64) {
        let Layout { tenants, endpoints_each } = self.layout;
        let place = mark.number.saturating_mul(endpoints_each) + endpoint % endpoints_each;
        let is_owner = endpoint / endpoints_each == mark.number % tenants;
        if mark.run != self.run || !is_owner || place >= DELIVERIES_MAX {
            self.strays += 1;
            return;
        }
        if self.set(place) {
            self.duplicates += 1;
            return;
        }
        self.deliveries += 1;
        self.first_at.get_or_insert(now);
        self.last_at = Some(now);
        if mark.sent_at > 0 {
            self.latency.add((now - mark.sent_at).max(0) as u64);
        }
    }

    /// A request that carries no mark came.
    pub(super) fn record_unreadable(&mut self) {
        self.strays += 1;
    }

    /// What was counted.
    pub(super) fn status(&self, address: SocketAddr) -> Received {
        Received {
            address,
            deliveries: self.deliveries,
            duplicates: self.duplicates,
            strays: self.strays,
            lost: 0,
            first_at: self.first_at,
            last_at: self.last_at,
            latency: self.latency.summary(),
        }
    }

    /// Deliveries of accepted events that never came.
    pub(super) fn lost(&self, events: u64, not_accepted: &[u64]) -> u64 {
        let not_accepted: std::collections::HashSet<u64> = not_accepted.iter().copied().collect();
        let each = self.layout.endpoints_each;
        (0..events)
            .filter(|number| !not_accepted.contains(number))
            .flat_map(|number| number * each..(number + 1) * each)
            .filter(|place| !self.has(*place))
            .count() as u64
    }

    /// Sets a bit; `true` if it was set before.
    fn set(&mut self, place: u64) -> bool {
        let (word, bit) = ((place / 64) as usize, 1 << (place % 64));
        if word >= self.came.len() {
            self.came.resize(word + 1, 0);
        }
        let was_set = self.came[word] & bit != 0;
        self.came[word] |= bit;
        was_set
    }

    fn has(&self, place: u64) -> bool {
        self.came.get((place / 64) as usize).is_some_and(|word| word & (1 << (place % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u64) -> Mark {
        Mark { run: 2, number, sent_at: 10 }
    }

    fn status(ledger: &Ledger) -> Received {
        ledger.status(SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    #[test]
    fn copies_and_gaps_are_counted_apart() {
        let mut ledger = Ledger::new(2, Layout { tenants: 2, endpoints_each: 2 });
        for (endpoint, number) in [(0, 0), (1, 0), (2, 1), (2, 1), (0, 2)] {
            ledger.record(endpoint, mark(number), 30);
        }
        let received = status(&ledger);
        assert_eq!((received.deliveries, received.duplicates, received.strays), (4, 1, 0));
        assert_eq!(received.latency.p50_micros, 20);
        assert_eq!(ledger.lost(3, &[]), 2, "1 at its second endpoint, 2 at its second");
        assert_eq!(ledger.lost(3, &[1]), 1, "what was not accepted cannot be lost");
        assert_eq!(ledger.lost(4, &[]), 4);
    }

    #[test]
    fn strays_do_not_count_as_deliveries() {
        let mut ledger = Ledger::new(2, Layout { tenants: 2, endpoints_each: 2 });
        ledger.record(0, mark(1), 1);
        ledger.record(0, Mark { run: 1, ..mark(0) }, 1);
        ledger.record(0, mark(u64::MAX), 1);
        ledger.record_unreadable();
        assert_eq!((status(&ledger).deliveries, status(&ledger).strays), (0, 4));
    }
}
