//! What a test did and what each endpoint took: the history of every endpoint of the load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pombo_testkit::history::{Findings, History};

/// The endpoints that get every event of the load, by path.
pub(crate) const PATHS: [&str; 2] = ["/steady", "/flaky"];

/// One history for each endpoint, because every event must arrive at each. An arrival is a request answered with
/// 2xx: a request that was answered otherwise, or not at all, was not taken and must come again.
#[derive(Debug, Default)]
pub(crate) struct Records {
    histories: [History; PATHS.len()],
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// `webhook-id`s that an endpoint took, with how often.
    taken: BTreeMap<(usize, String), u32>,
    /// Tries of each key at each endpoint, refused ones included.
    tries: BTreeMap<(usize, String), u32>,
    /// Keys that were written to the shop's database in some transaction, whatever became of it.
    by_shop: BTreeSet<String>,
    arrivals: usize,
    complaints: Vec<String>,
}

impl Records {
    pub(crate) fn attempt(&self, key: &str) {
        self.histories.iter().for_each(|history| history.attempt(key));
    }

    pub(crate) fn attempt_by_shop(&self, key: &str) {
        self.book().by_shop.insert(key.to_owned());
        self.attempt(key);
    }

    pub(crate) fn acknowledge(&self, key: &str) {
        self.histories.iter().for_each(|history| history.acknowledge(key));
    }

    pub(crate) fn refuse(&self, key: &str) {
        self.histories.iter().for_each(|history| history.refuse(key));
    }

    /// The shop's own table is the truth about its transactions, also where a commit was never answered.
    pub(crate) fn settle_by_shop(&self, orders: &BTreeSet<String>) {
        let written = self.book().by_shop.clone();
        for key in &written {
            if orders.contains(key) {
                self.acknowledge(key);
            } else {
                self.refuse(key);
            }
        }
    }

    /// Counts a try and returns its number, from 1.
    pub(crate) fn count_try(&self, endpoint: usize, key: &str) -> u32 {
        let mut book = self.book();
        let tries = book.tries.entry((endpoint, key.to_owned())).or_default();
        *tries += 1;
        *tries
    }

    pub(crate) fn arrive(&self, endpoint: usize, key: &str, webhook_id: &str) {
        self.histories[endpoint].receive(key);
        let mut book = self.book();
        *book.taken.entry((endpoint, webhook_id.to_owned())).or_default() += 1;
        book.arrivals += 1;
    }

    pub(crate) fn has_taken(&self, endpoint: usize, webhook_id: &str) -> bool {
        self.book().taken.contains_key(&(endpoint, webhook_id.to_owned()))
    }

    /// Arrivals at all endpoints, repeats included.
    pub(crate) fn arrivals(&self) -> usize {
        self.book().arrivals
    }

    /// Something that must not happen at all, such as an event refused for no reason.
    pub(crate) fn complain(&self, what: String) {
        self.book().complaints.push(what);
    }

    /// Acknowledged and not arrived, over all endpoints.
    pub(crate) fn outstanding(&self) -> usize {
        self.histories.iter().map(History::outstanding).sum()
    }

    /// What the comparison shows, endpoint by endpoint.
    pub(crate) fn describe(&self) -> String {
        let found = PATHS.iter().zip(&self.histories);
        let lines: Vec<String> =
            found.map(|(path, history)| format!("{path}: {}", history.check())).collect();
        lines.join("\n")
    }

    /// Nothing lost, nothing unexpected, no complaint; at most `duplicates_max` copies too many in all, and none
    /// of any one delivery beyond `each_max`.
    #[track_caller]
    pub(crate) fn assert_sound(&self, duplicates_max: usize, each_max: usize) {
        let complaints = self.book().complaints.clone();
        assert!(complaints.is_empty(), "{} complaints: {:?}", complaints.len(), complaints.first());
        let findings: Vec<Findings> = self.histories.iter().map(History::check).collect();
        for (path, findings) in PATHS.iter().zip(&findings) {
            let worst = findings.duplicates.values().max().copied().unwrap_or_default();
            assert!(worst <= each_max, "{path}: a delivery was taken {} times", worst + 1);
            findings.assert_sound(usize::MAX);
        }
        let duplicates: usize = findings.iter().map(Findings::duplicate_count).sum();
        assert!(
            duplicates <= duplicates_max,
            "{duplicates} duplicates, at most {duplicates_max} are explained"
        );
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
