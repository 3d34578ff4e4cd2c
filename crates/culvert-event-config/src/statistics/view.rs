//! Statistics as the API shows them.

use std::collections::BTreeMap;

use culvert_base::Timestamp;
use culvert_events::Reason;
use culvert_statistics::{Field, Point};
use schemars::JsonSchema;
use serde::Serialize;

/// What was counted. Parts that the subject does not have are null.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatisticsValues")]
pub(super) struct Values {
    /// Requests, connections and bytes; of accounts, endpoints and agents.
    traffic: Option<TrafficValues>,
    /// Delivery of events; of destinations.
    delivery: Option<DeliveryValues>,
    /// The server process; of nodes.
    node: Option<NodeValues>,
    /// Calls of the API; of API keys.
    calls: Option<CallValues>,
    /// Latency: of endpoints and accounts from the head of a request to the head of its response, of destinations from the
    /// start of a send to its outcome. Null without requests or sends.
    latency: Option<LatencyValues>,
}

/// Requests, connections and bytes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TrafficStatistics")]
struct TrafficValues {
    /// Requests: all responses by status, and those without a response.
    requests: u64,
    /// Upgrades to WebSocket.
    status_1xx: u64,
    status_2xx: u64,
    status_3xx: u64,
    status_4xx: u64,
    status_5xx: u64,
    /// Requests that ended without a response, most often because the client closed the connection.
    aborted: u64,
    /// Bytes received from clients: request bodies, WebSockets, and connections to TCP and TLS endpoints. Of agents: all
    /// bytes sent to the agent.
    bytes_in: u64,
    /// Bytes sent to clients: response bodies, WebSockets, and connections to TCP and TLS endpoints. Of agents: all bytes
    /// received from the agent.
    bytes_out: u64,
    /// Connections to TCP and TLS endpoints that were opened; of agents: streams.
    connections: u64,
    /// Requests and connections that the edge refused.
    refused: u64,
    /// These by reason; reasons without any are missing. `culvert.reason` of events has the same names.
    refused_by_reason: BTreeMap<&'static str, u64>,
}

/// Delivery of events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeliveryStatistics")]
struct DeliveryValues {
    /// Events that the destination accepted.
    delivered: u64,
    /// Bytes of these events.
    bytes: u64,
    /// Sends, including retries.
    sends: u64,
    failed_sends: u64,
    /// Events that were given up and kept as dead letters.
    dead_lettered: u64,
    /// Events that were lost.
    dropped: u64,
    /// Most events that waited at one time.
    waiting: u64,
}

/// The server process. Levels are the highest of the step; several nodes add up.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NodeStatistics")]
struct NodeValues {
    /// Processor time used.
    cpu_seconds: f64,
    /// Resident memory.
    memory_bytes: u64,
    /// Open connections of clients.
    open_connections: u64,
    /// Connected sessions of agents.
    agent_sessions: u64,
    /// 0 none, 1 busy, 2 tight, 3 full.
    overload_level: u64,
    /// Latency of a write to the store in milliseconds.
    store_write_ms: f64,
    /// Requests and connections that the edge refused and that named no endpoint.
    refused: u64,
    /// These by reason; reasons without any are missing.
    refused_by_reason: BTreeMap<&'static str, u64>,
}

/// Calls of the API.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CallStatistics")]
struct CallValues {
    /// Calls that the key authenticated, also those that were refused after that.
    calls: u64,
    /// These by operation, by their IDs in the OpenAPI document.
    by_operation: BTreeMap<String, u64>,
}

/// Durations in milliseconds. Percentiles are from histograms and off by at most an eighth.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LatencyStatistics")]
struct LatencyValues {
    count: u64,
    mean_ms: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
}

/// The parts that a subject has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Traffic,
    Delivery,
    Node,
    Calls,
}

/// Milliseconds with three digits.
fn millis(micros: f64) -> f64 {
    micros.round() / 1_000.0
}

/// The refused traffic of each reason that has any.
fn refused_by_reason(point: &Point) -> BTreeMap<&'static str, u64> {
    let counts = Field::REFUSED.iter().map(|field| point.get(*field));
    let counted = Reason::ALL
        .iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0);
    counted
        .map(|(reason, count)| (reason.name(), count))
        .collect()
}

impl Values {
    pub(super) fn of(shape: Shape, point: &Point) -> Self {
        let latency = &point.latency;
        let percentile = |share| millis(latency.percentile(share).unwrap_or_default());
        let count = latency.count();
        Self {
            traffic: (shape == Shape::Traffic).then(|| TrafficValues {
                requests: point.requests(),
                status_1xx: point.get(Field::Status1xx),
                status_2xx: point.get(Field::Status2xx),
                status_3xx: point.get(Field::Status3xx),
                status_4xx: point.get(Field::Status4xx),
                status_5xx: point.get(Field::Status5xx),
                aborted: point.get(Field::Aborted),
                bytes_in: point.get(Field::BytesIn),
                bytes_out: point.get(Field::BytesOut),
                connections: point.get(Field::Connections),
                refused: point.refused(),
                refused_by_reason: refused_by_reason(point),
            }),
            delivery: (shape == Shape::Delivery).then(|| DeliveryValues {
                delivered: point.get(Field::Delivered),
                bytes: point.get(Field::BytesOut),
                sends: point.get(Field::Sends),
                failed_sends: point.get(Field::FailedSends),
                dead_lettered: point.get(Field::DeadLettered),
                dropped: point.get(Field::Dropped),
                waiting: point.get(Field::Waiting),
            }),
            node: (shape == Shape::Node).then(|| NodeValues {
                cpu_seconds: point.get(Field::CpuMillis) as f64 / 1_000.0,
                memory_bytes: point.get(Field::MemoryBytes),
                open_connections: point.get(Field::OpenConnections),
                agent_sessions: point.get(Field::AgentSessions),
                overload_level: point.get(Field::OverloadLevel),
                store_write_ms: millis(point.get(Field::StoreWriteMicros) as f64),
                refused: point.refused(),
                refused_by_reason: refused_by_reason(point),
            }),
            calls: (shape == Shape::Calls).then(|| CallValues {
                calls: point.get(Field::Calls),
                by_operation: BTreeMap::new(),
            }),
            latency: (count > 0).then(|| LatencyValues {
                count,
                mean_ms: millis(point.get(Field::LatencyMicros) as f64 / count as f64),
                p50_ms: percentile(0.5),
                p95_ms: percentile(0.95),
                p99_ms: percentile(0.99),
            }),
        }
    }
}

impl Values {
    /// Those of calls of these operations.
    pub(super) fn of_calls(by_operation: BTreeMap<String, u64>) -> Self {
        let mut point = Point::default();
        point.add(Field::Calls, by_operation.values().sum());
        let mut values = Self::of(Shape::Calls, &point);
        if let Some(calls) = &mut values.calls {
            calls.by_operation = by_operation;
        }
        values
    }
}

/// What was counted in one step.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatisticsPoint")]
pub(super) struct PointView {
    /// Start of the step.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(super) at: Timestamp,
    #[serde(flatten)]
    pub(super) values: Values,
}

/// The course of one subject.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Statistics")]
pub(super) struct SeriesView<'a> {
    pub(super) uri: &'a str,
    /// `account`, `endpoint`, `destination`, `agent`, `node` or `key`.
    pub(super) subject: &'a str,
    /// ID of the subject, or name of the node; null for the account and for all nodes together.
    pub(super) id: Option<&'a str>,
    /// Start of the range, a multiple of the step.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(super) from: Timestamp,
    /// End of the range; what begins then is not in it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(super) to: Timestamp,
    /// Length of a step in seconds.
    pub(super) step: i64,
    /// The whole range.
    pub(super) total: Values,
    /// Steps in which something was counted, in order of time.
    pub(super) points: Vec<PointView>,
}

/// A subject with what was counted of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StatisticsRank")]
pub(super) struct RankView<'a> {
    /// ID of the subject, or name of the node. It may be deleted since.
    pub(super) id: &'a str,
    #[serde(flatten)]
    pub(super) values: Values,
}

/// The subjects with the most of something.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TopStatistics")]
pub(super) struct TopView<'a> {
    pub(super) uri: &'a str,
    /// `endpoint`, `destination`, `agent`, `node` or `key`.
    pub(super) subject: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(super) from: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(super) to: Timestamp,
    /// Number of subjects with anything counted in the range.
    pub(super) count: usize,
    /// The first of them, in the requested order.
    pub(super) top: Vec<RankView<'a>>,
}
