//! What was counted of one subject in one step of time.

use std::time::Duration;

use crate::codec::{Malformed, put, take};
use crate::histogram::Histogram;

/// How values of several steps or nodes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// A count: values of steps and nodes add up.
    Sum,
    /// A level: the highest of the steps; values of nodes add up.
    Peak,
    /// A level that all nodes see alike: the highest of steps and nodes.
    PeakOfNodes,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $merge:ident;)*) => {
        /// A value of a point. Stored by its number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Field {
            $($(#[$doc])* $name = $number,)*
        }

        impl Field {
            /// All fields.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            fn of(number: u64) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// How values become one.
            pub const fn merge(self) -> Merge {
                match self {
                    $(Self::$name => Merge::$merge,)*
                }
            }
        }
    };
}

fields! {
    /// Responses with status 1xx: upgrades.
    Status1xx = 0, Sum;
    /// Responses with status 2xx.
    Status2xx = 1, Sum;
    /// Responses with status 3xx.
    Status3xx = 2, Sum;
    /// Responses with status 4xx.
    Status4xx = 3, Sum;
    /// Responses with status 5xx.
    Status5xx = 4, Sum;
    /// Requests that ended without a response.
    Aborted = 5, Sum;
    /// Bytes received: of request bodies and of connections without requests.
    BytesIn = 6, Sum;
    /// Bytes sent: of response bodies and of connections without requests.
    BytesOut = 7, Sum;
    /// Connections opened that carry no HTTP of the edge, and streams opened to an agent.
    Connections = 8, Sum;
    /// Sum of the durations in the histogram, in microseconds.
    LatencyMicros = 9, Sum;
    /// Requests that reached an upstream.
    Reached = 10, Sum;
    /// Requests and connections that needed an upstream and reached none.
    Unreached = 11, Sum;
    /// Calls of the API.
    Calls = 12, Sum;
    /// Events that a destination accepted.
    Delivered = 16, Sum;
    /// Sends to a destination, including retries.
    Sends = 17, Sum;
    /// Failed sends.
    FailedSends = 18, Sum;
    /// Events that were given up and kept as dead letters.
    DeadLettered = 19, Sum;
    /// Events lost for a destination.
    Dropped = 20, Sum;
    /// Events that wait for a destination.
    Waiting = 21, PeakOfNodes;
    /// Connections of clients that are open.
    OpenConnections = 32, Peak;
    /// Processor time used, in milliseconds.
    CpuMillis = 33, Sum;
    /// Resident memory, in bytes.
    MemoryBytes = 34, Peak;
    /// Overload level, 0 to 3.
    OverloadLevel = 35, PeakOfNodes;
    /// Sessions of agents that are connected.
    AgentSessions = 36, Peak;
    /// Latency of a write to the store, in microseconds.
    StoreWriteMicros = 37, PeakOfNodes;
    /// Refused because of malformed HTTP. This and the following are requests and connections that the edge refused.
    RefusedMalformed = 48, Sum;
    /// Refused because of a request line that is too long.
    RefusedTargetTooLong = 49, Sum;
    /// Refused because of header fields that are too large.
    RefusedHeadTooLarge = 50, Sum;
    /// Refused because of the method.
    RefusedMethod = 51, Sum;
    /// Refused because they did not arrive in time.
    RefusedTooSlow = 52, Sum;
    /// Refused because of the host.
    RefusedBadHost = 53, Sum;
    /// Refused because the connection was for another host.
    RefusedMisdirected = 54, Sum;
    /// Refused because no endpoint has the host.
    RefusedUnknownHost = 55, Sum;
    /// Refused because of an expectation.
    RefusedExpectation = 56, Sum;
    /// Refused because of a WebSocket handshake.
    RefusedUpgrade = 57, Sum;
    /// Refused for overload.
    RefusedOverloaded = 58, Sum;
    /// Refused because the configuration was too old.
    RefusedOutdated = 59, Sum;
    /// Connections whose TLS handshake failed.
    RefusedHandshakeFailed = 60, Sum;
    /// Connections whose TLS handshake took too long.
    RefusedHandshakeTimeout = 61, Sum;
    /// Connections to an endpoint without a certificate.
    RefusedNoCertificate = 62, Sum;
    /// Connections with an unknown TLS server name.
    RefusedUnknownName = 63, Sum;
    /// Connections to the TLS port that do not begin with TLS.
    RefusedNotTls = 64, Sum;
    /// Connections that violated HTTP/2.
    RefusedHttp2Error = 65, Sum;
    /// Connections that flooded HTTP/2.
    RefusedHttp2Flood = 66, Sum;
    /// Connections without a valid PROXY header.
    RefusedProxyHeader = 67, Sum;
    /// Connections beyond a limit.
    RefusedConnectionLimit = 68, Sum;
}

/// Number of reasons for which traffic is refused.
pub const REFUSED: usize = 21;

impl Field {
    /// The counts of refused traffic, in the order of its reasons.
    pub const REFUSED: [Self; REFUSED] = [
        Self::RefusedMalformed,
        Self::RefusedTargetTooLong,
        Self::RefusedHeadTooLarge,
        Self::RefusedMethod,
        Self::RefusedTooSlow,
        Self::RefusedBadHost,
        Self::RefusedMisdirected,
        Self::RefusedUnknownHost,
        Self::RefusedExpectation,
        Self::RefusedUpgrade,
        Self::RefusedOverloaded,
        Self::RefusedOutdated,
        Self::RefusedHandshakeFailed,
        Self::RefusedHandshakeTimeout,
        Self::RefusedNoCertificate,
        Self::RefusedUnknownName,
        Self::RefusedNotTls,
        Self::RefusedHttp2Error,
        Self::RefusedHttp2Flood,
        Self::RefusedProxyHeader,
        Self::RefusedConnectionLimit,
    ];
}

/// Values and latencies of one subject in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Values other than zero, ascending by field.
    values: Vec<(Field, u64)>,
    /// Latencies: of responses, sends or heartbeats.
    pub latency: Histogram,
}

impl Point {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.latency.is_empty()
    }

    /// The value of a field.
    pub fn get(&self, field: Field) -> u64 {
        let found = self
            .values
            .binary_search_by_key(&field, |(field, _)| *field);
        let value = found.ok().and_then(|at| self.values.get(at));
        value.map_or(0, |(_, value)| *value)
    }

    /// Changes the value of a field. Zero removes nothing that was there.
    fn update(&mut self, field: Field, value: u64, merge: fn(u64, u64) -> u64) {
        if value == 0 {
            return;
        }
        match self
            .values
            .binary_search_by_key(&field, |(field, _)| *field)
        {
            Ok(at) => {
                if let Some((_, there)) = self.values.get_mut(at) {
                    *there = merge(*there, value);
                }
            }
            Err(at) => self.values.insert(at, (field, value)),
        }
    }

    /// Adds to a field.
    pub fn add(&mut self, field: Field, value: u64) {
        self.update(field, value, u64::saturating_add);
    }

    /// Adds a latency.
    pub fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.add(Field::LatencyMicros, micros);
        self.latency.record(latency);
    }

    /// Requests: all responses, and those without one.
    pub fn requests(&self) -> u64 {
        let fields = [
            Field::Status1xx,
            Field::Status2xx,
            Field::Status3xx,
            Field::Status4xx,
            Field::Status5xx,
            Field::Aborted,
        ];
        fields
            .iter()
            .fold(0, |sum, field| sum.saturating_add(self.get(*field)))
    }

    /// Requests and connections that were refused, for all reasons.
    pub fn refused(&self) -> u64 {
        let fields = Field::REFUSED.iter();
        fields.fold(0, |sum, field| sum.saturating_add(self.get(*field)))
    }

    /// Adds a point of another step of the same node.
    pub fn merge_step(&mut self, other: &Self) {
        for (field, value) in &other.values {
            let merge = match field.merge() {
                Merge::Sum => u64::saturating_add,
                Merge::Peak | Merge::PeakOfNodes => u64::max,
            };
            self.update(*field, *value, merge);
        }
        self.latency.merge(&other.latency);
    }

    /// Adds a point of the same step of another node.
    pub fn merge_node(&mut self, other: &Self) {
        for (field, value) in &other.values {
            let merge = match field.merge() {
                Merge::Sum | Merge::Peak => u64::saturating_add,
                Merge::PeakOfNodes => u64::max,
            };
            self.update(*field, *value, merge);
        }
        self.latency.merge(&other.latency);
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put(out, self.values.len() as u64);
        for (field, value) in &self.values {
            put(out, *field as u64);
            put(out, *value);
        }
        self.latency.encode(out);
    }

    pub(crate) fn decode(input: &mut &[u8]) -> Result<Self, Malformed> {
        let mut point = Self::default();
        for _ in 0..take(input)? {
            let (number, value) = (take(input)?, take(input)?);
            // A field that a newer version stored is skipped.
            if let Some(field) = Field::of(number) {
                point.add(field, value);
            }
        }
        point.latency = Histogram::decode(input)?;
        Ok(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_nodes_merge_by_the_kind_of_the_field() {
        let mut one = Point::default();
        one.add(Field::Status2xx, 2);
        one.add(Field::OpenConnections, 5);
        one.add(Field::OverloadLevel, 1);
        let mut other = one.clone();
        other.add(Field::OpenConnections, 2);
        let (mut steps, mut nodes) = (one.clone(), one);
        steps.merge_step(&other);
        nodes.merge_node(&other);
        assert_eq!((steps.requests(), nodes.requests()), (4, 4));
        assert_eq!(steps.get(Field::OpenConnections), 7);
        assert_eq!(nodes.get(Field::OpenConnections), 12);
        assert_eq!(nodes.get(Field::OverloadLevel), 1);
    }

    #[test]
    fn a_point_is_read_back_and_unknown_fields_are_skipped() {
        let mut point = Point::default();
        for (nth, field) in Field::ALL.iter().enumerate() {
            point.add(*field, nth as u64 * 1000 + 1);
        }
        point.record(Duration::from_millis(20));
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        assert_eq!(Point::decode(&mut &*bytes), Ok(point));

        // One field, 99 with value 7, and no latencies.
        assert_eq!(Point::decode(&mut &[1, 99, 7, 0][..]), Ok(Point::default()));
        assert_eq!(Point::decode(&mut &[1, 99][..]), Err(Malformed));
    }
}
