//! Durations in log-linear buckets: eight for each power of two of microseconds, from 64 µs to 134 s, so a percentile is
//! off by at most an eighth. The buckets are fixed, so histograms of nodes and steps add up, and their memory is fixed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::codec::{Malformed, put, take};

/// Bits of a duration that select its bucket within a power of two.
const SUB_BITS: u32 = 3;
/// Durations below two to this power, in microseconds, share the first bucket.
const FIRST_POWER: u32 = 6;
/// Durations from two to this power on share the last bucket.
const LAST_POWER: u32 = 27;

/// Number of buckets.
pub const BUCKETS: usize = 2 + ((LAST_POWER - FIRST_POWER) << SUB_BITS) as usize;

/// The bucket of a duration in microseconds.
fn bucket(micros: u64) -> usize {
    if micros >> FIRST_POWER == 0 {
        return 0;
    }
    let power = micros.ilog2();
    if power >= LAST_POWER {
        return BUCKETS - 1;
    }
    let sub = (micros >> (power - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    1 + (((power - FIRST_POWER) as usize) << SUB_BITS) + sub as usize
}

/// The lowest duration of a bucket, in microseconds.
fn lower_bound(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(1) else {
        return 0;
    };
    let power = FIRST_POWER + (above >> SUB_BITS) as u32;
    let sub = (above & ((1 << SUB_BITS) - 1)) as u64;
    ((1 << SUB_BITS) + sub) << (power - SUB_BITS)
}

/// The duration in microseconds that ends a bucket; `None` for the last one, which has no end.
pub fn upper_bound(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| lower_bound(bucket + 1))
}

/// Counts of durations by bucket. Only buckets with counts use memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Buckets with their counts, ascending.
    counts: Vec<(u8, u64)>,
}

impl Histogram {
    /// Adds a duration.
    pub fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.add(bucket(micros) as u8, 1);
    }

    fn add(&mut self, bucket: u8, count: u64) {
        match self.counts.binary_search_by_key(&bucket, |(at, _)| *at) {
            Ok(at) => {
                if let Some((_, sum)) = self.counts.get_mut(at) {
                    *sum = sum.saturating_add(count);
                }
            }
            Err(at) => self.counts.insert(at, (bucket, count)),
        }
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
            return;
        }
        for (bucket, count) in &other.counts {
            self.add(*bucket, *count);
        }
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        let counts = self.counts.iter();
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Buckets with their counts, ascending; without those that are empty.
    pub fn buckets(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts
            .iter()
            .map(|(bucket, count)| (usize::from(*bucket), *count))
    }

    /// The duration in microseconds below which this share of the durations lies, 0 to 1; `None` if there are none. Within
    /// a bucket, durations count as evenly spread.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = share.clamp(0.0, 1.0) * total as f64;
        let mut below = 0.0;
        let mut last = 0.0;
        for (bucket, count) in self.buckets() {
            let lower = lower_bound(bucket) as f64;
            let upper = upper_bound(bucket).map_or(lower, |upper| upper as f64);
            let count = count as f64;
            if below + count >= rank {
                return Some(lower + (upper - lower) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
            last = upper;
        }
        Some(last)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put(out, self.counts.len() as u64);
        let mut before = 0;
        for (bucket, count) in &self.counts {
            put(out, u64::from(bucket - before));
            put(out, *count);
            before = *bucket;
        }
    }

    pub(crate) fn decode(input: &mut &[u8]) -> Result<Self, Malformed> {
        let length = take(input)?;
        if length > BUCKETS as u64 {
            return Err(Malformed);
        }
        let mut counts = Vec::with_capacity(length as usize);
        let mut at = 0_u64;
        for nth in 0..length {
            let step = take(input)?;
            at = at.checked_add(step).ok_or(Malformed)?;
            if at >= BUCKETS as u64 || (nth > 0 && step == 0) {
                return Err(Malformed);
            }
            counts.push((at as u8, take(input)?));
        }
        Ok(Self { counts })
    }
}

/// A histogram that several threads write.
///
/// The counts are of 32 bits, which halves its memory: it is emptied every few seconds.
#[derive(Debug)]
pub struct AtomicHistogram {
    counts: [AtomicU32; BUCKETS],
    micros: AtomicU64,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; BUCKETS],
            micros: AtomicU64::new(0),
        }
    }
}

impl AtomicHistogram {
    /// Adds a duration.
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get(bucket(micros)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Moves everything into `histogram`. Returns the sum of the durations in microseconds.
    pub fn take_into(&self, histogram: &mut Histogram) -> u64 {
        for (bucket, count) in self.counts.iter().enumerate() {
            // A load first: most buckets are empty.
            if count.load(Ordering::Relaxed) != 0 {
                let count = count.swap(0, Ordering::Relaxed);
                histogram.add(bucket as u8, u64::from(count));
            }
        }
        self.micros.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_cover_all_durations_without_gaps() {
        assert_eq!(lower_bound(0), 0);
        assert_eq!(upper_bound(0), Some(1 << FIRST_POWER));
        assert_eq!(lower_bound(BUCKETS - 1), 1 << LAST_POWER);
        assert_eq!(upper_bound(BUCKETS - 1), None);
        for at in 0..BUCKETS {
            assert_eq!(bucket(lower_bound(at)), at);
            if let Some(end) = upper_bound(at) {
                assert_eq!(bucket(end - 1), at);
                assert_eq!(bucket(end), at + 1);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(BUCKETS <= usize::from(u8::MAX) + 1);
    }

    #[test]
    fn percentiles_of_nothing_of_one_and_of_many() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), None);
        histogram.record(Duration::from_millis(10));
        let median = histogram.percentile(0.5).unwrap();
        assert!((8_750.0..=11_250.0).contains(&median), "{median}");
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis));
        }
        for (share, expected) in [(0.5, 500_000.0), (0.95, 950_000.0), (0.99, 990_000.0)] {
            let found = histogram.percentile(share).unwrap();
            assert!((found / expected - 1.0).abs() < 0.08, "{share}: {found}");
        }
        assert!(histogram.percentile(1.0).unwrap() >= 1_000_000.0);
    }

    #[test]
    fn an_atomic_histogram_is_empty_after_it_is_taken() {
        let atomic = AtomicHistogram::default();
        atomic.record(Duration::from_millis(3));
        atomic.record(Duration::MAX);
        let mut taken = Histogram::default();
        assert!(atomic.take_into(&mut taken) > 0);
        assert_eq!(taken.count(), 2);
        assert_eq!(atomic.take_into(&mut taken), 0);
        assert_eq!(taken.count(), 2);
    }

    fn any_histogram() -> impl Strategy<Value = Histogram> {
        prop::collection::vec(0_u64..200_000_000, 0..60).prop_map(|micros| {
            let mut histogram = Histogram::default();
            for micros in micros {
                histogram.record(Duration::from_micros(micros));
            }
            histogram
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(histogram in any_histogram()) {
            let mut bytes = Vec::new();
            histogram.encode(&mut bytes);
            let mut input = &*bytes;
            prop_assert_eq!(Histogram::decode(&mut input), Ok(histogram));
            prop_assert!(input.is_empty());
        }

        #[test]
        fn merging_adds_counts(one in any_histogram(), other in any_histogram()) {
            let mut both = one.clone();
            both.merge(&other);
            prop_assert_eq!(both.count(), one.count() + other.count());
            let mut reversed = other;
            reversed.merge(&one);
            prop_assert_eq!(both, reversed);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            drop(Histogram::decode(&mut &*bytes));
        }
    }
}
