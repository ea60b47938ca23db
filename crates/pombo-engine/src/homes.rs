//! Which process a shard is at home in (docs/protocol.md C3). Homes steer work; safety never rests on them.

use pombo_domain::id::SessionId;
use pombo_domain::limits;

/// The shards at home in one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Homes {
    mine: Vec<i16>,
    is_mine: [bool; limits::SHARDS as usize],
}

impl Homes {
    /// Nothing is at home here.
    pub(crate) fn none() -> Self {
        Self { mine: Vec::new(), is_mine: [false; limits::SHARDS as usize] }
    }

    /// Rendezvous hashing: each shard goes to the deliverer with the highest weight, so a session that comes or
    /// goes moves only its own share.
    pub(crate) fn of(me: SessionId, deliverers: &[SessionId]) -> Self {
        let mut homes = Self::none();
        for shard in 0..limits::SHARDS {
            let home = deliverers.iter().max_by_key(|session| (weight(**session, shard), **session));
            if home == Some(&me) {
                homes.mine.push(shard as i16);
                homes.is_mine[usize::from(shard)] = true;
            }
        }
        homes
    }

    /// The shards at home here.
    pub(crate) fn shards(&self) -> &[i16] {
        &self.mine
    }

    /// Whether this shard is at home here.
    pub(crate) fn holds(&self, shard: i16) -> bool {
        usize::try_from(shard).ok().and_then(|shard| self.is_mine.get(shard)).copied().unwrap_or(false)
    }
}

/// A mixing function (SplitMix64): the same in every process and version, well spread.
fn weight(session: SessionId, shard: u16) -> u64 {
    let mut z = (u64::from(session.0 as u32) << 16 | u64::from(shard)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_exactly_one_home() {
        let sessions: Vec<_> = (1..=3).map(SessionId).collect();
        let homes: Vec<_> = sessions.iter().map(|me| Homes::of(*me, &sessions)).collect();
        for shard in 0..256 {
            assert_eq!(homes.iter().filter(|home| home.holds(shard)).count(), 1, "shard {shard}");
        }
        for home in &homes {
            assert!((50..=120).contains(&home.shards().len()), "{}", home.shards().len());
        }
    }

    #[test]
    fn a_session_that_leaves_moves_only_its_own_shards() {
        let (two, three) = ([SessionId(1), SessionId(2)], [SessionId(1), SessionId(2), SessionId(3)]);
        let before = Homes::of(SessionId(1), &three);
        let after = Homes::of(SessionId(1), &two);
        assert!(before.shards().iter().all(|shard| after.holds(*shard)));
    }
}
