//! A count of what is not done yet, for whose end one can wait.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    count: AtomicUsize,
    zero: Notify,
}

impl Tally {
    /// More is under way.
    pub(crate) fn add(&self, more: usize) {
        self.count.fetch_add(more, Ordering::AcqRel);
    }

    /// So much of it is done.
    pub(crate) fn done(&self, done: usize) {
        if self.count.fetch_sub(done, Ordering::AcqRel) == done {
            self.zero.notify_waiters();
        }
    }

    /// How much is under way.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Resolves when nothing is under way.
    pub(crate) async fn ended(&self) {
        loop {
            let mut zero = pin!(self.zero.notified());
            // Listen first, look second: an end between the two is not missed.
            zero.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            zero.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_end_is_never_missed() {
        for _ in 0..2000 {
            let tally = Arc::new(Tally::default());
            tally.add(2);
            let other = Arc::clone(&tally);
            let work = tokio::spawn(async move {
                other.done(1);
                other.done(1);
            });
            tokio::time::timeout(Duration::from_secs(10), tally.ended()).await.expect("the end is seen");
            work.await.expect("the task ends");
        }
    }
}
