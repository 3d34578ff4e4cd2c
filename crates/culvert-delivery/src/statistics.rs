//! What this node counts of each destination, for the statistics.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_statistics::{AtomicHistogram, Field, Frame, Key, Kind, Point};

use crate::delivery::Delivery;
use crate::health::{DeliveryCounters, Health};
use crate::meters::Counter;

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
    /// Latencies that were collected and not read.
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

    /// What was counted since the last call.
    fn read(&self, health: &Health) -> Point {
        let mut readings = lock(&self.read);
        self.collect(&mut readings);
        let mut point = std::mem::take(&mut readings.pending);
        let failed = health.failures.iter().map(|(_, count)| count).sum();
        let mut totals = Point::default();
        for (field, total) in [
            (Field::Delivered, health.sent),
            (Field::BytesOut, health.bytes),
            (Field::Sends, health.batches),
            (Field::FailedSends, failed),
            (Field::DeadLettered, self.dead_events.get()),
            (Field::Dropped, health.dropped),
        ] {
            totals.add(field, total);
            point.add(field, total.saturating_sub(readings.before.get(field)));
        }
        readings.before = totals;
        point.add(Field::Waiting, health.queued);
        point
    }

    /// Latencies since the start.
    fn total(&self) -> Point {
        let mut readings = lock(&self.read);
        self.collect(&mut readings);
        readings.total.clone()
    }
}

impl DeliveryCounters {
    fn point(&self) -> Point {
        self.count.read(&self.health())
    }
}

impl Delivery {
    /// Adds what was counted of each destination since the last call to `frame`.
    pub fn read_statistics(&self, frame: &mut Frame) {
        let table = self.plane.table.load();
        for (id, counters) in self.plane.all_counters.each() {
            // A deleted destination whose events still wait has no account here.
            let Some(destination) = table.destination(&id) else {
                continue;
            };
            let key = Key::new(Kind::Destination, &destination.account, &id);
            frame.add(key, &counters.point());
        }
    }

    /// Latencies of sends to each destination since the start, by id.
    pub fn latencies(&self) -> Vec<(String, Point)> {
        let each = self.plane.all_counters.each().into_iter();
        let total = |(id, counters): (std::sync::Arc<str>, std::sync::Arc<DeliveryCounters>)| {
            (id.to_string(), counters.count.total())
        };
        let mut latencies: Vec<_> = each.map(total).collect();
        latencies.retain(|(_, point)| !point.latency.is_empty());
        latencies.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reading_has_what_the_others_have_not() {
        let counters = DeliveryCounters::default();
        counters.sent.add(3);
        counters.batches.add(2);
        counters.count.sent(Duration::from_millis(5));
        let first = counters.point();
        assert_eq!(first.get(Field::Delivered), 3);
        assert_eq!(first.get(Field::Sends), 2);
        assert_eq!(first.latency.count(), 1);
        counters.sent.add(1);
        counters.count.dead_events.add(7);
        counters.count.sent(Duration::from_millis(5));
        // Metrics read the latencies in between.
        assert_eq!(counters.count.total().latency.count(), 2);
        let second = counters.point();
        assert_eq!(second.get(Field::Delivered), 1);
        assert_eq!(second.get(Field::Sends), 0);
        assert_eq!(second.get(Field::DeadLettered), 7);
        assert_eq!(second.latency.count(), 1);
        assert!(counters.point().is_empty());
    }
}
