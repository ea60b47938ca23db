//! Latencies in little memory: a histogram whose buckets grow with the value, true to 1.6 %.

use serde::{Deserialize, Serialize};

/// Buckets per doubling.
const STEPS_BITS: u32 = 6;
/// Values up to here, in microseconds, have a bucket of their own.
const EXACT_BELOW: u64 = 2 << STEPS_BITS;
/// Longest latency that is told apart: about 19 hours.
const LONGEST: u64 = (1 << 36) - 1;

/// Counts of latencies.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

/// What is told of a histogram.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// How many latencies.
    pub(super) count: u64,
    /// Half of them are below, in microseconds.
    pub(super) p50_micros: u64,
    /// All but one in a hundred are below, in microseconds.
    pub(super) p99_micros: u64,
}

impl Summary {
    /// In milliseconds; `None` where nothing was measured.
    pub(super) fn p50_ms(self) -> Option<f64> {
        (self.count > 0).then(|| self.p50_micros as f64 / 1000.0)
    }

    /// In milliseconds; `None` where nothing was measured.
    pub(super) fn p99_ms(self) -> Option<f64> {
        (self.count > 0).then(|| self.p99_micros as f64 / 1000.0)
    }
}

impl Histogram {
    /// Adds a latency, in microseconds.
    pub(super) fn add(&mut self, micros: u64) {
        let bucket = bucket_of(micros);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
    }

    /// Adds all of another.
    pub(super) fn merge(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
    }

    /// What is told of it.
    pub(super) fn summary(&self) -> Summary {
        Summary { count: self.count, p50_micros: self.quantile(50), p99_micros: self.quantile(99) }
    }

    fn quantile(&self, percent: u64) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        let mut below = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            below += count;
            if below >= rank && *count > 0 {
                return middle_of(bucket);
            }
        }
        0
    }
}

fn bucket_of(micros: u64) -> usize {
    let micros = micros.min(LONGEST);
    if micros < EXACT_BELOW {
        return micros as usize;
    }
    let shift = micros.ilog2() - STEPS_BITS;
    ((u64::from(shift) << STEPS_BITS) + (micros >> shift)) as usize
}

fn middle_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT_BELOW {
        return bucket;
    }
    let shift = (bucket >> STEPS_BITS) - 1;
    let low = ((bucket & ((1 << STEPS_BITS) - 1)) + (1 << STEPS_BITS)) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_true_to_a_fiftieth() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|micros| histogram.add(micros));
        let summary = histogram.summary();
        assert_eq!(summary.count, 100_000);
        assert!(summary.p50_micros.abs_diff(50_000) < 1000, "{summary:?}");
        assert!(summary.p99_micros.abs_diff(99_000) < 2000, "{summary:?}");
    }

    #[test]
    fn buckets_follow_one_another_without_gap() {
        let mut last = 0;
        for micros in 0..1_000_000 {
            let bucket = bucket_of(micros);
            assert!(bucket == last || bucket == last + 1, "{micros}");
            assert!(middle_of(bucket).abs_diff(micros) * 60 <= micros.max(60), "{micros}");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), bucket_of(LONGEST));
    }

    #[test]
    fn nothing_measured_is_no_zero() {
        assert_eq!(Histogram::default().summary().p50_ms(), None);
    }
}
