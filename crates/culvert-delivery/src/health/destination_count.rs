//! Counts of one destination: changes since the last reading, and latencies.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_statistics::{AtomicHistogram, Field, Point};

use crate::plane::meters::Counter;

/// Fields that are totals since the start.
const TOTALS: [Field; 6] = [
    Field::Delivered,
    Field::BytesOut,
    Field::Sends,
    Field::FailedSends,
    Field::DeadLettered,
    Field::Dropped,
];

/// Counts of a destination besides its health.
#[derive(Debug, Default)]
pub(crate) struct DestinationCount {
    /// Events that became dead letters.
    pub(crate) dead_events: Counter,
    latency: AtomicHistogram,
    read: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    /// Totals of counters at the last reading.
    before: Point,
    /// Latencies since the last reading.
    pending: Point,
    /// Latencies since the start.
    total: Point,
}

impl DestinationCount {
    /// Counts a send that took this long, whatever its outcome.
    pub(crate) fn sent(&self, latency: Duration) {
        self.latency.record(latency);
    }

    fn collect(&self, readings: &mut Readings) {
        let mut new = Point::default();
        let micros = self.latency.take_into(&mut new.latency);
        new.add(Field::LatencyMicros, micros);
        readings.pending.merge_step(&new);
        readings.total.merge_step(&new);
    }

    /// Counts since the last call. `totals` are the counters of the destination since the start.
    pub(crate) fn read(&self, mut totals: Point) -> Point {
        let mut readings = lock(&self.read);
        self.collect(&mut readings);
        let mut point = std::mem::take(&mut readings.pending);
        totals.add(Field::DeadLettered, self.dead_events.get());
        for field in TOTALS {
            let total = totals.get(field);
            point.add(field, total.saturating_sub(readings.before.get(field)));
        }
        readings.before = totals;
        point
    }

    /// Latencies since the start.
    pub(crate) fn total(&self) -> Point {
        let mut readings = lock(&self.read);
        self.collect(&mut readings);
        readings.total.clone()
    }
}
