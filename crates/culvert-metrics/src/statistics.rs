//! The numbers of the statistics as metrics: the same counters, read at the time of the scrape.

use culvert_control::{AlertMeters, Control};
use culvert_delivery::Delivery;
use culvert_edge::Edge;
use culvert_events::Reason;
use culvert_statistics::{Field, Point, upper_bound};

use crate::node_source::Usage;
use crate::samples::{counter, gauge};
use crate::{Sample, Value};

/// Powers of two of microseconds that bound the buckets of exported histograms: 0.5 ms to 134 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 9..=27;

/// Label of the endpoints beyond the limit.
const OTHER: &str = "other";

const OUTCOMES: [(&str, Field); 6] = [
    ("1xx", Field::Status1xx),
    ("2xx", Field::Status2xx),
    ("3xx", Field::Status3xx),
    ("4xx", Field::Status4xx),
    ("5xx", Field::Status5xx),
    ("none", Field::Aborted),
];

/// Traffic of endpoints.
pub fn endpoints(edge: &Edge) -> Vec<Sample> {
    let totals = edge.traffic().totals();
    let endpoints = totals.endpoints.iter().map(|(id, point)| (&**id, point));
    let all: Vec<(&str, &Point)> = endpoints.chain([(OTHER, &totals.others)]).collect();
    let mut samples = Vec::new();
    for (id, point) in &all {
        samples.extend(OUTCOMES.map(|(status, field)| Sample {
            name: "endpoint_requests",
            help: "Requests by endpoint and status class; `none` if there was no response",
            labels: vec![
                ("endpoint", (*id).to_owned()),
                ("status", status.to_owned()),
            ],
            value: Value::Counter(point.get(field)),
        }));
    }
    for (id, point) in &all {
        let directions = [("in", Field::BytesIn), ("out", Field::BytesOut)];
        samples.extend(directions.map(|(direction, field)| Sample {
            name: "endpoint_bytes",
            help: "Bytes of bodies and connections by endpoint: in from clients, out to clients",
            labels: vec![
                ("endpoint", (*id).to_owned()),
                ("direction", direction.to_owned()),
            ],
            value: Value::Counter(point.get(field)),
        }));
    }
    samples.extend(all.iter().map(|(id, point)| Sample {
        name: "endpoint_connections",
        help: "Connections to TCP and TLS endpoints",
        labels: vec![("endpoint", (*id).to_owned())],
        value: Value::Counter(point.get(Field::Connections)),
    }));
    // Most endpoints refuse for few reasons, and most for none.
    for (id, point) in &all {
        let reasons = Field::REFUSED.iter().zip(Reason::ALL);
        let counted = reasons.filter(|(field, _)| point.get(**field) > 0);
        samples.extend(counted.map(|(field, reason)| Sample {
            name: "endpoint_refused",
            help: "Requests and connections that the edge refused, by endpoint and reason",
            labels: vec![
                ("endpoint", (*id).to_owned()),
                ("reason", reason.name().to_owned()),
            ],
            value: Value::Counter(point.get(*field)),
        }));
    }
    samples.extend(all.iter().map(|(id, point)| Sample {
        name: "endpoint_latency_seconds",
        help: "Time from the head of a request to the head of its response",
        labels: vec![("endpoint", (*id).to_owned())],
        value: histogram(point),
    }));
    samples
}

/// Latencies of destinations.
pub fn destinations(delivery: &Delivery) -> Vec<Sample> {
    let latencies = delivery.latencies().into_iter();
    latencies
        .map(|(id, point)| Sample {
            name: "destination_latency_seconds",
            help: "Duration of sends to a destination",
            labels: vec![("destination", id)],
            value: histogram(&point),
        })
        .collect()
}

/// Alerts; only the node that evaluates the rules has open ones.
fn alerts(meters: &AlertMeters) -> Vec<Sample> {
    let open = meters.by_severity().map(|(severity, count)| Sample {
        name: "alerts_open",
        help: "Open alerts, on the node that evaluates the rules",
        labels: vec![("severity", severity.to_owned())],
        value: Value::Gauge(count),
    });
    let evaluations = [
        counter(
            "alert_evaluations",
            "Evaluations of all alert rules",
            meters.evaluations.get(),
        ),
        counter(
            "alert_evaluation_errors",
            "Evaluations of alert rules that failed and changed nothing",
            meters.errors.get(),
        ),
    ];
    open.chain(evaluations).collect()
}

/// The process, and the statistics themselves.
pub fn process(control: &Control) -> Vec<Sample> {
    let meters = control.events.statistics_meters();
    let mut samples = vec![
        counter(
            "statistics_written",
            "Steps of statistics written to the store",
            meters.written.get(),
        ),
        counter(
            "statistics_lost",
            "Steps of statistics lost because the store was unavailable",
            meters.lost.get(),
        ),
        gauge(
            "statistics_bytes",
            "Bytes of statistics in the store, without the last hours",
            meters.bytes.get(),
        ),
    ];
    samples.extend(alerts(&control.alerts));
    if let Some(usage) = Usage::now() {
        samples.push(Sample {
            name: "process_cpu_seconds",
            help: "Processor time used by the server",
            labels: Vec::new(),
            value: Value::Seconds(usage.cpu_millis as f64 / 1_000.0),
        });
        samples.push(gauge(
            "process_memory_bytes",
            "Resident memory of the server",
            usage.memory_bytes,
        ));
    }
    samples
}

/// The latencies of a point in few buckets.
fn histogram(point: &Point) -> Value {
    let mut counts = point.latency.buckets().peekable();
    let mut buckets = Vec::new();
    for power in BOUNDS {
        let bound = 1_u64 << power;
        let mut count = 0;
        while let Some((_, more)) =
            counts.next_if(|(bucket, _)| upper_bound(*bucket).is_some_and(|upper| upper <= bound))
        {
            count += more;
        }
        buckets.push((bound as f64 / 1e6, count));
    }
    buckets.push((f64::INFINITY, counts.map(|(_, count)| count).sum()));
    Value::Histogram {
        sum: point.get(Field::LatencyMicros) as f64 / 1e6,
        count: point.latency.count(),
        buckets,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_latency_is_counted_in_one_bucket() {
        let mut point = Point::default();
        let millis = [0, 1, 3, 100, 1_000, 500_000];
        for millis in millis {
            point.record(Duration::from_millis(millis));
        }
        let Value::Histogram {
            sum,
            count,
            buckets,
        } = histogram(&point)
        else {
            panic!("not a histogram");
        };
        assert_eq!((sum, count), (501.104, 6));
        assert_eq!(buckets.len(), 20);
        let filled = buckets.iter().filter(|(_, count)| *count > 0);
        let bounds: Vec<f64> = filled.map(|(bound, _)| *bound).collect();
        let expected = [
            0.000512,
            0.001024,
            0.004096,
            0.131072,
            1.048576,
            f64::INFINITY,
        ];
        assert_eq!(bounds, expected);
    }
}
