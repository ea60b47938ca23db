//! Was anything lost? A checker over what a test did and what the receivers got.
//!
//! Each event a test tries to enqueue ends in one of three ways, and the checker needs to know which:
//! - **acknowledged**: the API answered 202, or the application's commit returned. It must arrive.
//! - **refused**: it surely did not happen (a 4xx, a rolled-back transaction). It must not arrive.
//! - **indeterminate**: the connection died before the answer. It may arrive or not.
//!
//! An attempt whose end is never recorded counts as indeterminate: a test that was killed between the two cannot
//! know better. Duplicates are allowed by at-least-once, so they are counted against a bound and never ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a test did and what arrived; many tasks may write to it at once.
#[derive(Debug, Default)]
pub struct History(Mutex<Record>);

#[derive(Debug, Default, Clone)]
struct Record {
    attempted: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
    refused: BTreeSet<String>,
    received: BTreeMap<String, usize>,
}

impl History {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// The test is about to enqueue this event. To be called before it is sent: what arrives without having been
    /// attempted is an error.
    pub fn attempt(&self, id: &str) {
        self.record().attempted.insert(id.to_owned());
    }

    /// It was accepted.
    pub fn acknowledge(&self, id: &str) {
        self.record().acknowledged.insert(id.to_owned());
    }

    /// It surely was not accepted. An acknowledgement (of another try with the same id) outweighs this.
    pub fn refuse(&self, id: &str) {
        self.record().refused.insert(id.to_owned());
    }

    /// It arrived at a receiver, once more.
    pub fn receive(&self, id: &str) {
        *self.record().received.entry(id.to_owned()).or_default() += 1;
    }

    /// Takes over what a receiver counted.
    pub fn receive_all(&self, counts: impl IntoIterator<Item = (String, usize)>) {
        let mut record = self.record();
        for (id, count) in counts {
            *record.received.entry(id).or_default() += count;
        }
    }

    /// How many acknowledged events have not arrived yet; 0 ends the wait before [`History::check`].
    pub fn outstanding(&self) -> usize {
        let record = self.record();
        record.acknowledged.iter().filter(|id| !record.received.contains_key(*id)).count()
    }

    /// Compares both sides.
    pub fn check(&self) -> Findings {
        let record = self.record();
        let arrived = |id: &&String| record.received.contains_key(*id);
        let possible = |id: &String| {
            record.acknowledged.contains(id)
                || (record.attempted.contains(id) && !record.refused.contains(id))
        };
        let indeterminate: BTreeSet<&String> = record
            .attempted
            .iter()
            .filter(|id| !record.acknowledged.contains(*id) && !record.refused.contains(*id))
            .collect();
        Findings {
            attempted: record.attempted.len(),
            acknowledged: record.acknowledged.len(),
            received: record.received.values().sum(),
            indeterminate: indeterminate.len(),
            indeterminate_received: indeterminate.into_iter().filter(arrived).count(),
            lost: record
                .acknowledged
                .iter()
                .filter(|id| !record.received.contains_key(*id))
                .cloned()
                .collect(),
            unexpected: record.received.keys().filter(|id| !possible(id)).cloned().collect(),
            duplicates: record
                .received
                .iter()
                .filter(|&(_, &count)| count > 1)
                .map(|(id, count)| (id.clone(), count - 1))
                .collect(),
        }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the comparison shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Events the test tried to enqueue.
    pub attempted: usize,
    /// Events that were acknowledged.
    pub acknowledged: usize,
    /// Requests that arrived, repeats included.
    pub received: usize,
    /// Events of which nobody knows whether they were accepted.
    pub indeterminate: usize,
    /// Those of them that arrived, so were accepted.
    pub indeterminate_received: usize,
    /// Acknowledged, but never arrived.
    pub lost: BTreeSet<String>,
    /// Arrived, but never attempted or surely refused.
    pub unexpected: BTreeSet<String>,
    /// How often each event arrived beyond the first time.
    pub duplicates: BTreeMap<String, usize>,
}

impl Findings {
    /// All arrivals beyond the first of each event.
    pub fn duplicate_count(&self) -> usize {
        self.duplicates.values().sum()
    }

    /// Nothing lost, nothing unexpected, and at most `duplicates_max` duplicates.
    pub fn is_sound(&self, duplicates_max: usize) -> bool {
        self.lost.is_empty() && self.unexpected.is_empty() && self.duplicate_count() <= duplicates_max
    }

    /// The same as a test's last word. A history in which nothing was acknowledged proves nothing and fails too.
    ///
    /// # Panics
    /// The history is not sound, or empty.
    #[track_caller]
    pub fn assert_sound(&self, duplicates_max: usize) {
        assert!(self.acknowledged > 0, "no event was acknowledged, so nothing could be lost: {self}");
        assert!(
            self.is_sound(duplicates_max),
            "at most {duplicates_max} duplicates may be, nothing lost: {self}"
        );
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} attempted, {} acknowledged, {} requests received, {} indeterminate ({} of them received); \
             {} lost {:?}, {} unexpected {:?}, {} duplicates of {} events {:?}",
            self.attempted,
            self.acknowledged,
            self.received,
            self.indeterminate,
            self.indeterminate_received,
            self.lost.len(),
            first(&self.lost),
            self.unexpected.len(),
            first(&self.unexpected),
            self.duplicate_count(),
            self.duplicates.len(),
            first(self.duplicates.keys()),
        )
    }
}

fn first<'a>(ids: impl IntoIterator<Item = &'a String>) -> Vec<&'a String> {
    ids.into_iter().take(10).collect()
}

/// The first two ids whose first arrivals stand in the wrong order: `(early, late)` where `late` was accepted
/// after `early` but arrived before it. For one ordering key; repeats and ids that are not in `accepted` do not count.
pub fn first_out_of_order<'a>(accepted: &'a [String], received: &[String]) -> Option<(&'a str, &'a str)> {
    let mut first_arrival: BTreeMap<&str, usize> = BTreeMap::new();
    for (position, id) in received.iter().enumerate() {
        first_arrival.entry(id).or_insert(position);
    }
    let arrivals: Vec<(&str, usize)> = accepted
        .iter()
        .filter_map(|id| first_arrival.get(id.as_str()).map(|at| (id.as_str(), *at)))
        .collect();
    arrivals.windows(2).find(|pair| pair[0].1 > pair[1].1).map(|pair| (pair[0].0, pair[1].0))
}

#[cfg(test)]
mod tests {
    use super::{Findings, History, first_out_of_order};

    fn history(acknowledged: &[&str], refused: &[&str], unknown: &[&str], received: &[&str]) -> Findings {
        let history = History::new();
        for id in [acknowledged, refused, unknown].concat() {
            history.attempt(id);
        }
        for id in acknowledged {
            history.acknowledge(id);
        }
        for id in refused {
            history.refuse(id);
        }
        for id in received {
            history.receive(id);
        }
        history.check()
    }

    #[test]
    fn all_acknowledged_and_some_indeterminate_arrivals_are_sound() {
        let findings = history(&["a", "b"], &["r"], &["u", "v"], &["b", "a", "u"]);
        findings.assert_sound(0);
        assert_eq!((findings.indeterminate, findings.indeterminate_received), (2, 1));
    }

    #[test]
    fn acknowledged_that_never_arrives_is_lost() {
        let findings = history(&["a", "b"], &[], &[], &["a"]);
        assert_eq!(findings.lost, ["b".to_owned()].into());
        assert!(!findings.is_sound(usize::MAX));
    }

    #[test]
    fn refused_or_never_attempted_that_arrives_is_unexpected() {
        let findings = history(&["a"], &["r"], &[], &["a", "r", "ghost"]);
        assert_eq!(findings.unexpected, ["ghost".to_owned(), "r".to_owned()].into());
        assert!(!findings.is_sound(usize::MAX));
    }

    #[test]
    fn acknowledgement_outweighs_a_refused_try_with_the_same_id() {
        history(&["a"], &["a"], &[], &["a"]).assert_sound(0);
    }

    #[test]
    fn duplicates_count_against_the_bound() {
        let findings = history(&["a", "b"], &[], &[], &["a", "b", "a", "a"]);
        assert_eq!(findings.duplicate_count(), 2);
        assert!(findings.is_sound(2) && !findings.is_sound(1));
    }

    #[test]
    fn outstanding_falls_to_zero_when_everything_has_arrived() {
        let history = History::new();
        for id in ["a", "b"] {
            history.attempt(id);
            history.acknowledge(id);
        }
        assert_eq!(history.outstanding(), 2);
        history.receive_all([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(history.outstanding(), 0);
        assert_eq!(history.check().received, 3);
    }

    #[test]
    #[should_panic(expected = "no event was acknowledged")]
    fn empty_history_proves_nothing() {
        History::new().check().assert_sound(0);
    }

    #[test]
    fn order_is_that_of_first_arrivals() {
        let ids = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(first_out_of_order(&ids("a b c"), &ids("a b a c")), None);
        assert_eq!(first_out_of_order(&ids("a b c"), &ids("a c")), None);
        assert_eq!(first_out_of_order(&ids("a b c"), &ids("x a c b")), Some(("b", "c")));
    }
}
