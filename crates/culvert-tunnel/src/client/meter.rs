//! Counts, rates and durations of the connections and requests of an endpoint.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use culvert_base::sync::lock;

/// The interval of [`RateMeter::tick`].
pub(crate) const TICK: Duration = Duration::from_secs(5);
/// The periods of the average rates.
const PERIODS: [Duration; 3] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(15 * 60),
];
/// Number of ticks after which durations move to the older generation: 150 seconds. Percentiles are those of the last
/// two and a half to five minutes.
const GENERATION_TICKS: u32 = 30;
/// Buckets of durations for each power of two. A percentile is at most an eighth too high.
const STEPS: usize = 8;
/// Buckets: microseconds up to 2^38, which is three days.
const BUCKETS: usize = 36 * STEPS;

/// The meters of an endpoint.
#[derive(Debug, Default)]
pub struct EndpointMeters {
    /// Connections of clients, as streams of the session.
    pub connections: Arc<RateMeter>,
    /// HTTP requests. Counted only while the agent watches requests.
    pub requests: Arc<RateMeter>,
}

impl EndpointMeters {
    pub(crate) fn tick(&self) {
        self.connections.tick();
        self.requests.tick();
    }
}

/// Counts events that begin and end, without a lock.
pub struct RateMeter {
    count: AtomicU64,
    open: AtomicU64,
    /// Events since the last tick.
    recent: AtomicU64,
    averages: Mutex<Averages>,
    /// The current generation of durations, and the one before.
    durations: [Durations; 2],
}

#[derive(Debug, Default)]
struct Averages {
    per_second: [f64; 3],
    ticks: u32,
}

struct Durations([AtomicU32; BUCKETS]);

/// The values of a meter at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Events since the start.
    pub count: u64,
    /// Events that have not ended.
    pub open: u64,
    /// Events per second, averaged over about one, five and fifteen minutes.
    pub rates: [f64; 3],
    /// The 50th, 90th, 95th and 99th percentile of durations in the last minutes.
    pub percentiles: [Duration; 4],
}

impl Reading {
    /// The current values of several meters together.
    pub fn of(meters: &[&RateMeter]) -> Self {
        let (mut all, mut durations) = (Self::default(), [0_u64; BUCKETS]);
        for meter in meters {
            all.count += meter.count.load(Ordering::Relaxed);
            all.open += meter.open.load(Ordering::Relaxed);
            let averages = lock(&meter.averages);
            for (rate, average) in all.rates.iter_mut().zip(averages.per_second) {
                *rate += average;
            }
            for generation in &meter.durations {
                for (count, bucket) in durations.iter_mut().zip(&generation.0) {
                    *count += u64::from(bucket.load(Ordering::Relaxed));
                }
            }
        }
        all.percentiles = [50, 90, 95, 99].map(|percent| percentile(&durations, percent));
        all
    }
}

/// An event that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct MeteredEvent {
    meter: Arc<RateMeter>,
    began: Instant,
}

impl Drop for MeteredEvent {
    fn drop(&mut self) {
        self.meter.end(self.began.elapsed());
    }
}

impl fmt::Debug for RateMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateMeter")
            .field("count", &self.count)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl Default for RateMeter {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            open: AtomicU64::new(0),
            recent: AtomicU64::new(0),
            averages: Mutex::default(),
            durations: std::array::from_fn(|_| {
                Durations(std::array::from_fn(|_| AtomicU32::new(0)))
            }),
        }
    }
}

impl RateMeter {
    /// Counts an event from now until the result is dropped.
    pub(crate) fn count(self: &Arc<Self>) -> MeteredEvent {
        self.begin();
        MeteredEvent {
            meter: Arc::clone(self),
            began: Instant::now(),
        }
    }

    pub(crate) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.recent.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, took: Duration) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.durations[0].0[bucket(took)].fetch_add(1, Ordering::Relaxed);
    }

    /// Updates the averages. Called every [`TICK`].
    pub(crate) fn tick(&self) {
        let recent = self.recent.swap(0, Ordering::Relaxed) as f64 / TICK.as_secs_f64();
        let mut averages = lock(&self.averages);
        for (average, period) in averages.per_second.iter_mut().zip(PERIODS) {
            let weight = 1.0 - (-TICK.as_secs_f64() / period.as_secs_f64()).exp();
            *average += weight * (recent - *average);
        }
        averages.ticks += 1;
        if averages.ticks == GENERATION_TICKS {
            averages.ticks = 0;
            let [current, older] = &self.durations;
            for (from, to) in current.0.iter().zip(&older.0) {
                to.store(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// The current values.
    pub fn read(&self) -> Reading {
        Reading::of(&[self])
    }
}

/// The bucket of a duration: the position of its highest bit, and the three bits below it.
fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if micros < STEPS as u64 {
        return micros as usize;
    }
    let power = micros.ilog2() as usize;
    let step = (micros >> (power - 3)) as usize & (STEPS - 1);
    ((power - 2) * STEPS + step).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn upper(bucket: usize) -> Duration {
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    let micros = match power {
        0 => step as u64,
        _ => ((STEPS + step + 1) as u64) << (power - 1),
    };
    Duration::from_micros(micros)
}

fn percentile(counts: &[u64; BUCKETS], percent: u64) -> Duration {
    let total: u64 = counts.iter().sum();
    let wanted = (total * percent).div_ceil(100);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if *count > 0 && seen >= wanted {
            return upper(bucket);
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_an_eighth_too_high_at_most() {
        for micros in [0, 1, 7, 8, 9, 15, 16, 100, 999, 12_345, 60_000_000, 1 << 37] {
            let took = Duration::from_micros(micros);
            let shown = upper(bucket(took));
            assert!(shown >= took, "{took:?} {shown:?}");
            assert!(
                shown <= took + took / 8 + Duration::from_micros(1),
                "{took:?} {shown:?}"
            );
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_and_rates_of_events() {
        let meter = Arc::new(RateMeter::default());
        assert_eq!(meter.read(), Reading::default());
        for millis in 1..=100 {
            meter.begin();
            meter.end(Duration::from_millis(millis));
        }
        let open = meter.count();
        let reading = meter.read();
        assert_eq!((reading.count, reading.open), (101, 1));
        for (percentile, millis) in reading.percentiles.into_iter().zip([50, 90, 95, 99]) {
            let real = Duration::from_millis(millis);
            assert!(percentile >= real && percentile < real * 9 / 8 + Duration::from_millis(1));
        }
        drop(open);
        assert_eq!(meter.read().open, 0);
        // A steady rate, seen over a quarter of an hour and more.
        for _ in 0..1_000 {
            for _ in 0..10 {
                meter.begin();
            }
            meter.tick();
        }
        for rate in meter.read().rates {
            assert!((1.9..=2.1).contains(&rate), "{rate}");
        }
        // Old durations are forgotten.
        assert_eq!(meter.read().percentiles[0], Duration::ZERO);
    }
}
