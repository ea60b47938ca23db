//! The lower bound of a relay's scan (docs/protocol.md R2).
//!
//! Rows commit out of order, so a bound may only rise to a number below which nothing can appear any more. It
//! takes four steps: note the highest number given (`seq_high`); a second later note the first transaction
//! that has not begun (`xmax`): whoever has taken a number up to `seq_high` has a transaction id below it by
//! then; see every transaction below it ended (`xmin`); and scan once more, coming back short of every
//! limit. What that scan has not taken is not there.

use std::time::Duration;

use pombo_store::outbox::RelayMark;

use crate::clock::BootTime;

/// How long after taking its number a row's transaction surely has its id. Both happen in one statement.
const ID_FOLLOWS_WITHIN: Duration = Duration::from_secs(1);
/// How often the next transaction scans from zero whatever the floor.
const FULL_SCAN_EVERY: Duration = Duration::from_secs(60);

/// The next scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scan {
    /// Only rows above this number.
    pub(super) above: i64,
    /// Whether it is one of the scans that look at everything.
    pub(super) is_full: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Step {
    #[default]
    None,
    Noted {
        high: i64,
        at: BootTime,
    },
    Ending {
        high: i64,
        xmax: i64,
    },
    Ended {
        high: i64,
    },
}

/// The bound, and how far the next one is.
#[derive(Debug, Default)]
pub(super) struct Floor {
    value: i64,
    step: Step,
    /// The highest number seen given.
    high: i64,
    full_scan_at: Option<BootTime>,
}

impl Floor {
    /// Where the next scan begins; once a minute at zero.
    pub(super) fn next(&mut self, now: BootTime) -> Scan {
        let is_full = self.full_scan_at.is_none_or(|last| now.since(last) >= FULL_SCAN_EVERY);
        if is_full {
            self.full_scan_at = Some(now);
        }
        Scan { above: if is_full { 0 } else { self.value }, is_full }
    }

    /// After any abort, unknown answer, take-over or new epoch everything is scanned again.
    pub(super) fn void(&mut self) {
        *self = Self::default();
    }

    /// Whether there is nothing to be gained by scanning an outbox without rows.
    pub(super) fn is_settled(&self) -> bool {
        self.value >= self.high
    }

    /// A transaction was answered. `is_short`: its scan took every row it saw.
    pub(super) fn seen(&mut self, mark: RelayMark, is_short: bool, now: BootTime) {
        self.high = self.high.max(mark.seq_high);
        self.step = match self.step {
            Step::None => Step::Noted { high: mark.seq_high, at: now },
            Step::Noted { high, at } if now.since(at) >= ID_FOLLOWS_WITHIN => {
                Step::Ending { high, xmax: mark.xmax }
            }
            Step::Ending { high, xmax } if mark.xmin >= xmax => Step::Ended { high },
            Step::Ended { high } if is_short => {
                self.value = self.value.max(high);
                Step::None
            }
            step => step,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A database of one table: rows by number, committed or in an open transaction.
    struct Outbox {
        now: BootTime,
        seq: i64,
        xid: i64,
        open: Vec<(i64, i64)>,
        rows: Vec<i64>,
        floor: Floor,
        relayed: Vec<i64>,
    }

    impl Outbox {
        fn new() -> Self {
            let mut floor = Floor::default();
            let now = BootTime::now();
            assert_eq!(floor.next(now), Scan { above: 0, is_full: true });
            Self { now, seq: 0, xid: 100, open: Vec::new(), rows: Vec::new(), floor, relayed: Vec::new() }
        }

        fn begin(&mut self) -> i64 {
            self.seq += 1;
            self.open.push((self.seq, self.xid));
            self.xid += 1;
            self.seq
        }

        fn commit(&mut self, seq: i64) {
            self.open.retain(|(open, _)| *open != seq);
            self.rows.push(seq);
            self.rows.sort_unstable();
        }

        fn insert(&mut self) {
            let seq = self.begin();
            self.commit(seq);
        }

        fn relay(&mut self, limit: usize) {
            self.now = self.now.plus(Duration::from_millis(300));
            let scan = self.floor.next(self.now);
            let seen: Vec<_> =
                self.rows.iter().copied().filter(|seq| *seq > scan.above).take(limit).collect();
            self.rows.retain(|seq| !seen.contains(seq));
            let xmin = self.open.iter().map(|(_, xid)| *xid).min().unwrap_or(self.xid);
            let mark = RelayMark { seq_high: self.seq, xmin, xmax: self.xid };
            self.floor.seen(mark, seen.len() < limit, self.now);
            self.relayed.extend(seen);
        }
    }

    #[test]
    fn a_row_that_commits_late_is_never_skipped() {
        let mut outbox = Outbox::new();
        let late = outbox.begin();
        for _ in 0..40 {
            outbox.insert();
            outbox.relay(10);
            assert_eq!(outbox.floor.value, 0, "the floor waits for the open transaction");
        }
        outbox.commit(late);
        outbox.relay(10);
        assert_eq!(outbox.relayed.last(), Some(&late));
        (0..20).for_each(|_| outbox.relay(10));
        assert_eq!(outbox.floor.value, 41);
        assert!(outbox.floor.is_settled());
    }

    #[test]
    fn a_number_taken_before_its_transaction_has_an_id_holds_the_floor() {
        let mut outbox = Outbox::new();
        outbox.seq += 1;
        outbox.relay(10);
        // The id comes only after the number was noted.
        outbox.open.push((outbox.seq, outbox.xid));
        outbox.xid += 1;
        (0..30).for_each(|_| outbox.relay(10));
        assert_eq!(outbox.floor.value, 0);
        outbox.commit(1);
        outbox.relay(10);
        assert_eq!(outbox.relayed, [1]);
    }

    #[test]
    fn a_backlog_longer_than_a_batch_holds_the_floor() {
        let mut outbox = Outbox::new();
        (0..100).for_each(|_| outbox.insert());
        while !outbox.rows.is_empty() {
            outbox.relay(5);
            assert!(outbox.floor.value <= outbox.relayed.last().copied().unwrap_or(0));
        }
        assert_eq!(outbox.relayed.len(), 100);
    }

    #[test]
    fn voiding_scans_everything_again_and_so_does_every_minute() {
        let mut outbox = Outbox::new();
        outbox.insert();
        (0..20).for_each(|_| outbox.relay(10));
        assert_eq!(outbox.floor.next(outbox.now), Scan { above: 1, is_full: false });
        let later = outbox.now.plus(FULL_SCAN_EVERY);
        assert_eq!(outbox.floor.next(later), Scan { above: 0, is_full: true });
        assert_eq!(outbox.floor.next(later), Scan { above: 1, is_full: false });
        outbox.floor.void();
        assert_eq!(outbox.floor.next(later), Scan { above: 0, is_full: true });
        assert_eq!(outbox.floor.next(later), Scan { above: 0, is_full: false });
    }
}
