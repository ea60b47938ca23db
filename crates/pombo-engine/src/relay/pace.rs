//! How far the relay runs ahead of the sending.
//!
//! A row that stays in the outbox a moment longer costs nothing. A delivery that finds its lane full is parked:
//! it is written twice and read once more before it is sent, and whatever comes after it is parked behind it. So
//! the relay takes what the lanes can hold, and waits for lanes that empty within moments. It does not wait for
//! slow receivers: the rows of others stand behind theirs.

use std::time::Duration;

use pombo_domain::limits;

use crate::clock::BootTime;
use crate::lanes::QuickLanes;
use crate::spine::Spine;

/// Rows of a transaction however full the lanes are.
const ROWS_MIN: u32 = 64;
/// Rows of the first transaction, when nothing is known yet of who they are for.
const ROWS_FIRST: u32 = 128;
/// Longest wait for lanes: a receiver that is quick, but limited by its cap, must not keep the rows of others.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Rows of the next transaction: twice as many after one whose deliveries all found a place, half as many after
/// one where some did not.
#[derive(Debug)]
pub(super) struct Pace {
    rows: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rows: ROWS_FIRST }
    }
}

impl Pace {
    /// Rows of the next transaction. Rows are rarely dealt out evenly, so a quarter of the free places is left.
    pub(super) fn rows(&self, lanes: QuickLanes) -> u32 {
        let room = lanes.free.map_or(limits::RELAY_ROWS_MAX, |free| (free - free / 4) as u32);
        self.rows.min(room).max(ROWS_MIN)
    }

    /// So many deliveries of the last transaction found the lane of a quick receiver full.
    pub(super) fn found(&mut self, crowded_out: usize) {
        self.rows = match crowded_out {
            0 => (self.rows * 2).min(limits::RELAY_ROWS_MAX),
            _ => (self.rows / 2).max(ROWS_MIN),
        };
    }
}

/// Waits a bounded moment for lanes of quick receivers that are full.
pub(super) async fn wait_for_room(spine: &Spine) {
    let end = BootTime::now().plus(WAIT_MAX);
    while spine.lanes.quick_lanes().is_crowded && BootTime::now() < end {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(places: usize) -> QuickLanes {
        QuickLanes { is_crowded: false, free: Some(places) }
    }

    #[test]
    fn no_more_is_taken_than_lanes_can_hold() {
        let mut pace = Pace::default();
        assert_eq!(pace.rows(QuickLanes::default()), ROWS_FIRST);
        (0..5).for_each(|_| pace.found(0));
        assert_eq!(pace.rows(QuickLanes::default()), limits::RELAY_ROWS_MAX);
        assert_eq!(pace.rows(free(256)), 192);
        assert_eq!(pace.rows(free(0)), ROWS_MIN, "a full lane stops nobody");
    }

    #[test]
    fn pace_is_halved_when_lanes_were_full_and_comes_back() {
        let mut pace = Pace::default();
        (0..10).for_each(|_| pace.found(1));
        assert_eq!(pace.rows(free(1000)), ROWS_MIN);
        pace.found(0);
        assert_eq!(pace.rows(free(1000)), 2 * ROWS_MIN);
    }
}
