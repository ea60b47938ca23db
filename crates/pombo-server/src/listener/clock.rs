//! What a connection is doing, and since when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::ServeLimits;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing: between two requests.
    Idle = 0,
    /// A head has begun and is not whole.
    Head = 1,
    /// A request is being read, worked on or answered.
    Busy = 2,
}

const PHASE_BITS: u32 = 2;

/// Shared by the three places that see a connection's progress: its stream (first byte of a head), its service
/// (head is whole) and the answer's body (answer is written). All of them run within the connection's one task,
/// so the atomics only carry values, no order.
///
/// Timers are not moved with every phase: the task looks at the clock when the shortest limit may have run
/// out, and no request pays for the timer wheel.
#[derive(Debug)]
pub(crate) struct Clock {
    base: Instant,
    /// Milliseconds since `base`, and the phase in the lowest bits.
    word: AtomicU64,
    unread: AtomicBool,
}

impl Clock {
    /// A new connection: its first head is awaited.
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            word: AtomicU64::new(Phase::Head as u64),
            unread: AtomicBool::new(false),
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let millis = self.base.elapsed().as_millis() as u64;
        self.word.store((millis << PHASE_BITS) | phase as u64, Ordering::Relaxed);
    }

    /// A head is whole: its request begins.
    pub(crate) fn begin_request(&self) {
        self.unread.store(false, Ordering::Relaxed);
        self.enter(Phase::Busy);
    }

    /// The first byte after a pause begins a head.
    pub(crate) fn saw_bytes(&self) {
        if self.phase() == Phase::Idle {
            self.enter(Phase::Head);
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.word.load(Ordering::Relaxed) & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Idle,
            1 => Phase::Head,
            _ => Phase::Busy,
        }
    }

    /// When the present phase has taken too long.
    pub(crate) fn deadline(&self, limits: &ServeLimits) -> Instant {
        let since = Duration::from_millis(self.word.load(Ordering::Relaxed) >> PHASE_BITS);
        let limit = match self.phase() {
            Phase::Idle => limits.idle,
            Phase::Head => limits.head,
            Phase::Busy => limits.request,
        };
        self.base + since + limit
    }

    /// When to look again: at the deadline, or earlier, because the phase may change to a shorter one.
    pub(crate) fn next_look(&self, limits: &ServeLimits, now: Instant) -> Instant {
        let shortest = limits.head.min(limits.idle).min(limits.request);
        self.deadline(limits).min(now + shortest)
    }

    /// A body was left unread: the peer may still be sending when the connection closes.
    pub(crate) fn left_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_own_deadline() {
        let limits = ServeLimits::default();
        let clock = Clock::new();
        let start = Instant::now();
        assert_eq!(clock.deadline(&limits), start + limits.head);
        tokio::time::advance(Duration::from_secs(3)).await;
        clock.enter(Phase::Busy);
        assert_eq!(clock.deadline(&limits), start + Duration::from_secs(3) + limits.request);
        clock.saw_bytes();
        assert_eq!(clock.phase(), Phase::Busy);
        clock.enter(Phase::Idle);
        assert_eq!(clock.next_look(&limits, Instant::now()), Instant::now() + limits.head);
        tokio::time::advance(Duration::from_secs(5)).await;
        clock.saw_bytes();
        assert_eq!(clock.phase(), Phase::Head);
        assert_eq!(clock.deadline(&limits), start + Duration::from_secs(8) + limits.head);
    }
}
