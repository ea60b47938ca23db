//! Clocks. The only place of the engine that reads one.
//!
//! Stored times come from the database's clock (docs/protocol.md C2); this process follows it by an offset
//! to its own boot-time clock, which goes on while a machine sleeps (S2).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use pombo_domain::clock::Timestamp;

/// A moment by CLOCK_BOOTTIME, in microseconds: monotonic, and counting while the machine is suspended, so
/// that a lease cannot outlive a closed lid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(i64);

impl BootTime {
    /// Now.
    pub(crate) fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        Self(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
    }

    /// This moment and `span` more.
    pub(crate) fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.as_micros() as i64))
    }

    /// This moment and `span` less.
    pub(crate) fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.as_micros() as i64))
    }

    /// Time since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// As a number, for an atomic.
    pub(crate) fn as_micros(self) -> i64 {
        self.0
    }
}

/// How far back the clock follows the database at once. Smaller corrections are noise of the measurement: the
/// clock then waits until it is caught up.
const BACK_AT_ONCE: i64 = 1_000_000;

/// The database's clock as this process knows it.
#[derive(Debug, Default)]
pub(crate) struct DatabaseClock {
    offset_micros: AtomicI64,
    /// The last instant given.
    last_micros: AtomicI64,
}

impl DatabaseClock {
    /// Now, by the database's clock. Every call gives another instant, and small corrections never turn it back:
    /// (delivery, started_at) names an attempt (K7).
    pub(crate) fn now(&self) -> Timestamp {
        let read = BootTime::now().0 + self.offset_micros.load(Ordering::Relaxed);
        let next = |last: i64| if last - read > BACK_AT_ONCE { read } else { read.max(last + 1) };
        let last =
            self.last_micros.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        Timestamp::from_micros(last.map_or(read, next))
    }

    /// Learns from an answer that carried the database's time: it was read somewhere between `sent` and now;
    /// the middle is off by half the round trip at most.
    pub(crate) fn learn(&self, sent: BootTime, database_now: Timestamp) {
        let middle = i64::midpoint(sent.0, BootTime::now().0);
        self.offset_micros.store(database_now.as_micros() - middle, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_database_however_wrong_the_host_is() {
        let clock = DatabaseClock::default();
        let database = Timestamp::from_secs(4_000_000_000);
        clock.learn(BootTime::now(), database);
        let read = clock.now();
        assert!(read >= database && read.since(database) < Duration::from_secs(5), "{read}");
    }

    #[test]
    fn corrections_never_give_an_instant_twice() {
        let clock = DatabaseClock::default();
        let database = Timestamp::from_secs(4_000_000_000);
        clock.learn(BootTime::now(), database);
        let first = clock.now();
        clock.learn(BootTime::now(), database.minus(Duration::from_millis(500)));
        let second = clock.now();
        assert!(second > first);
        clock.learn(BootTime::now(), database.minus(Duration::from_secs(3600)));
        assert!(clock.now() < database.minus(Duration::from_secs(3000)), "a clock that was set is followed");
    }
}
