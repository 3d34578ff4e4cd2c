//! Counts of this node for each destination, for the statistics.

use culvert_statistics::{Field, Frame, Key, Point, SubjectKind};

use crate::health::DeliveryCounters;
use crate::plane::delivery::Delivery;

impl DeliveryCounters {
    /// Counts since the last call, and the events that wait now.
    fn point(&self) -> Point {
        let health = self.health();
        let failed = health.failures.iter().map(|(_, count)| count).sum();
        let mut totals = Point::default();
        totals.add(Field::Delivered, health.sent);
        totals.add(Field::BytesOut, health.bytes);
        totals.add(Field::Sends, health.batches);
        totals.add(Field::FailedSends, failed);
        totals.add(Field::Dropped, health.dropped);
        let mut point = self.count.read(totals);
        point.add(Field::Waiting, health.queued);
        point
    }
}

impl Delivery {
    /// Adds the counts of each destination since the last call to `frame`.
    pub fn read_statistics(&self, frame: &mut Frame) {
        let table = self.plane.table.load();
        for (id, counters) in self.plane.all_counters.each() {
            // A deleted destination whose events still wait has no account here.
            let Some(destination) = table.destination(&id) else {
                continue;
            };
            let key = Key::new(SubjectKind::Destination, &destination.account, &id);
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_reading_has_only_the_counts_since_the_last() {
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
        // Metrics read the latencies between two readings of the statistics.
        assert_eq!(counters.count.total().latency.count(), 2);
        let second = counters.point();
        assert_eq!(second.get(Field::Delivered), 1);
        assert_eq!(second.get(Field::Sends), 0);
        assert_eq!(second.get(Field::DeadLettered), 7);
        assert_eq!(second.latency.count(), 1);
        assert!(counters.point().is_empty());
    }
}
