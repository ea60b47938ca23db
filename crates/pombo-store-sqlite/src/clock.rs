//! The database's clock is the host's, and never runs backwards within a process (Q1).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

use pombo_domain::clock::Timestamp;

/// The instant, at least one microsecond later than every one given before: two records made one after the
/// other are told apart by their times even where the host's clock is set back or stands still.
pub(crate) fn now() -> Timestamp {
    static LAST: AtomicI64 = AtomicI64::new(i64::MIN);
    let host =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |span| span.as_micros() as i64);
    let last = LAST
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(host.max(last.saturating_add(1))))
        .unwrap_or_else(|last| last);
    Timestamp::from_micros(host.max(last.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_only_moves_forward() {
        let first = now();
        let second = now();
        assert!(second > first);
        let host = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros();
        assert!(second.as_micros().abs_diff(host as i64) < 60_000_000);
    }
}
