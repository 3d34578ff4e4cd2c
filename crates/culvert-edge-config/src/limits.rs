//! The limits of connections: times, counts and sizes, with their defaults (reliability 4.1, 4.2).

use std::time::Duration;

/// The timeouts of an endpoint. `None` means the value of the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect to the upstream, including TLS. Agents are always connected.
    pub connect: Option<Duration>,
    /// From a complete request to the head of its response. For gRPC calls, whose servers may send the head with the
    /// first message, `idle` applies unless the endpoint sets this.
    pub first_byte: Option<Duration>,
    /// Without a byte in either direction during a response, or through a tunnel.
    pub idle: Option<Duration>,
    /// While the client reads nothing of waiting data.
    pub write: Option<Duration>,
    /// Without a byte of the request's body, until the response begins. For gRPC calls, whose clients may pause,
    /// `idle` applies.
    pub request: Option<Duration>,
}

impl Timeouts {
    /// These timeouts; those that are not set come from `others`.
    #[inline]
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            connect: self.connect.or(others.connect),
            first_byte: self.first_byte.or(others.first_byte),
            idle: self.idle.or(others.idle),
            write: self.write.or(others.write),
            request: self.request.or(others.request),
        }
    }
}

/// How many requests and connections of an endpoint may be in flight on a node, and how many more wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// How many may be in flight; `None` for any number.
    pub in_flight_max: Option<u32>,
    /// How many more wait, for the endpoint or one of its upstreams.
    pub queue_max: u32,
    /// How long one of them waits.
    pub wait_max: Duration,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self {
            in_flight_max: None,
            queue_max: 100,
            wait_max: Duration::from_secs(10),
        }
    }
}

/// Times and counts. Sizes of HTTP heads are fixed in the parser.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory of the process at 100 percent. At 70, 85 and 95 percent the edge sheds load.
    pub memory_bytes: u64,
    /// Scheduling delay of tasks at 100 percent. At 70, 85 and 95 percent the edge sheds load.
    pub run_queue: Duration,
    /// Time of a write to the store at 100 percent. At 70 and 85 percent the edge sheds load.
    pub store_write: Duration,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of those from one address, or from one /64 of IPv6.
    pub connections_per_source: usize,
    /// Maximum size of a request's body, in bytes.
    pub body_bytes: u64,
    /// Maximum number of bytes of buffered request bodies, over all requests.
    pub held_bytes: usize,
    /// Time from accept to the end of the TLS handshake.
    pub handshake: Duration,
    /// Time from accept to the first byte of a request.
    pub first_byte: Duration,
    /// Time from the first byte of a request's head to its last.
    pub head: Duration,
    /// Time between a response and the next request.
    pub idle: Duration,
    /// Time between a response and the release of the connection's buffers.
    pub rest: Duration,
    /// Time between requests on HTTP/2.
    pub http2_idle: Duration,
    /// Time without a byte of an incomplete request body.
    pub body_stall: Duration,
    /// The waiting time for a request's body over which its rate is measured. The minimum is 256 bytes per
    /// second.
    pub body_rate_over: Duration,
    /// The longest time that a client may leave waiting data unread. It is shorter for a client that has read
    /// little so far, and a client that stays below 256 bytes per second is disconnected earlier.
    pub write_stall: Duration,
    /// Time to connect to an upstream, including TLS.
    pub connect: Duration,
    /// Time from a complete request to the head of its response.
    pub answer: Duration,
    /// Time without a byte in either direction during a response, or through a tunnel: TCP, TLS passthrough,
    /// WebSocket.
    pub tunnel_idle: Duration,
    /// Maximum number of concurrent streams on an HTTP/2 connection.
    pub http2_streams: u32,
    /// Time from the end of accepting until idle connections close, for requests in transit.
    pub parting: Duration,
    /// Number of requests after which an HTTP/2 connection gets a GOAWAY.
    pub http2_requests: u64,
    /// Time from the end of accepting until open connections are cut.
    pub drain: Duration,
    /// How old the configuration may be that traffic is served with.
    pub copy_age_max: Option<Duration>,
    /// Refusals a second of a network (/24 or /64) that all have an event. Fixed when the edge starts.
    pub refused_whole: u64,
    /// Events a second of refused traffic, of all networks. Up to twice as many, a network still gets its first one.
    pub refused_events: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            memory_bytes: 512 << 20,
            run_queue: seconds(1),
            store_write: seconds(10),
            connections: 16_384,
            connections_per_source: 1_024,
            body_bytes: u64::MAX,
            held_bytes: 256 << 20,
            handshake: seconds(5),
            first_byte: seconds(5),
            head: seconds(10),
            idle: seconds(75),
            rest: seconds(1),
            http2_idle: seconds(120),
            body_stall: seconds(30),
            body_rate_over: seconds(10),
            write_stall: seconds(300),
            connect: seconds(5),
            answer: seconds(300),
            tunnel_idle: seconds(24 * 3600),
            http2_streams: 100,
            parting: seconds(1),
            http2_requests: 100_000,
            drain: seconds(30),
            copy_age_max: None,
            refused_whole: 100,
            refused_events: 1_000,
        }
    }
}
