//! Several upstreams of an endpoint: which of them serves a request, which are ejected, and which requests are sent again.

use std::fmt;
use std::time::Duration;

use culvert_base::DigestKey;
use culvert_upstream::{Probe, Upstream};

/// The upstreams among which an endpoint divides its traffic. All of them have one protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamList {
    /// At least one and at most [`Self::LENGTH_MAX`], each at most once. At least one has a weight above 0.
    pub upstreams: Vec<ListedUpstream>,
    /// How one of them is chosen.
    pub balancing: Balancing,
    /// How clients name the one that served them before; `None` if that does not count.
    pub sticky: Option<Sticky>,
    /// When one of them is ejected.
    pub health: PassiveHealth,
    /// How long the share of one that returns, or is new in the list, grows; zero for not at all.
    pub slow_start: Duration,
    /// How they are checked; `None` if they are not.
    pub checks: Option<ActiveHealth>,
    /// Which requests are sent again.
    pub retries: Retries,
}

/// An upstream of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUpstream {
    /// Where it is.
    pub upstream: Upstream,
    /// Its share of the traffic, in proportion to the others of its priority; 0 for none.
    pub weight: u16,
    /// Those with a higher number serve only what those with lower ones cannot.
    pub priority: u8,
    /// How many requests and connections may be in flight to it; `None` for any number.
    pub in_flight_max: Option<u32>,
}

/// How one of several upstreams is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balancing {
    /// In turn, each as often as its weight says.
    #[default]
    RoundRobin,
    /// Of two candidates, the one with fewer open requests in proportion to its weight.
    LeastRequests,
    /// The same one for the same key, as long as it is there and serves. Requests without a key take turns.
    Hash(HashKey),
}

/// The cookie that keeps a client at an upstream. Its value is a token that only this installation can make and that says
/// nothing about the upstream.
#[derive(Clone, PartialEq, Eq)]
pub struct Sticky {
    /// Its name without a prefix, which depends on the endpoint: several may have such cookies at one host.
    pub cookie: String,
    /// The token of each upstream, in the order of the list.
    pub tokens: Box<[String]>,
}

/// What the choice of an upstream depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The address of the client.
    ClientAddress,
    /// The values of a header field, whose name is in lower case.
    Header(String),
    /// The value of a cookie.
    Cookie(String),
}

/// When an upstream is ejected because of its failures: connections that fail or time out, and those that close without a
/// response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassiveHealth {
    /// The number of failures in a row after which it is ejected; 0 for never.
    pub consecutive_failures: u32,
    /// For how long, the first time. The time doubles each time that it fails again soon after.
    pub ejection_time: Duration,
    /// The longest time.
    pub ejection_time_max: Duration,
    /// The share of the upstreams that may be ejected, in percent. One may always be, unless this is 0.
    pub ejected_percent_max: u8,
    /// If fewer of the upstreams than this share, in percent, are left, all are used again.
    pub panic_below_percent: u8,
}

/// How upstreams are checked. One that does not pass gets no traffic, like one that is ejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveHealth {
    /// What a check does.
    pub probe: Probe,
    /// Time from one check to the next, with up to a tenth more or less.
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// Checks in a row that pass until an upstream that did not is used again. At least 1.
    pub healthy_threshold: u32,
    /// Checks in a row that do not pass until an upstream is not used any more. At least 1.
    pub unhealthy_threshold: u32,
}

/// Which requests are sent to another upstream, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Those whose upstream cannot be connected to. It has received nothing, so they need not be repeatable.
    pub connect_failure: bool,
    /// Those that can be repeated, and whose upstream closed the connection or did not respond within the time of a try.
    pub reset: bool,
    /// Those that can be repeated, and whose response has one of these statuses: 502, 503, 504.
    pub statuses: RetriedStatuses,
    /// How many upstreams get a request at most, including the first.
    pub attempts: u32,
    /// How long one of them may take to send the head of its response, if the request can be repeated.
    pub per_try_timeout: Option<Duration>,
    /// The share of requests, in percent, that may be sent again after an upstream received them. A reserve of
    /// [`Self::RESERVE`] more is for sudden failures.
    pub budget_percent: u8,
}

/// The statuses that count as failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetriedStatuses {
    /// 502 (Bad Gateway).
    pub bad_gateway: bool,
    /// 503 (Service Unavailable).
    pub unavailable: bool,
    /// 504 (Gateway Timeout).
    pub gateway_timeout: bool,
}

impl Sticky {
    const TOKEN_BYTES: usize = 16;

    /// The cookie of an endpoint with these upstreams. Nodes with the same key make the same one.
    pub fn of<'u>(
        key: &DigestKey,
        endpoint_id: &str,
        upstreams: impl Iterator<Item = &'u Upstream>,
    ) -> Self {
        let short = |text: &str| {
            let digest = key.digest(text).to_bytes();
            culvert_base::text::hex(digest.get(..Self::TOKEN_BYTES).unwrap_or(&digest))
        };
        Self {
            cookie: format!("upstream.{}", short(endpoint_id)),
            // An ID has no blank, so no two pairs make the same text.
            tokens: upstreams
                .map(|upstream| short(&format!("{endpoint_id} {upstream}")))
                .collect(),
        }
    }

    /// The position of the upstream with a token.
    pub fn position(&self, token: &str) -> Option<usize> {
        self.tokens.iter().position(|known| known == token)
    }
}

impl fmt::Debug for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The tokens choose an upstream.
        f.debug_struct("Sticky").finish_non_exhaustive()
    }
}

impl HashKey {
    /// Whether a text is the name of a field or a cookie: a token (RFC 9110 5.6.2, RFC 6265 4.1.1).
    pub fn is_name(text: &str) -> bool {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(is_token)
    }
}

impl UpstreamList {
    /// Most upstreams of a list.
    pub const LENGTH_MAX: usize = 64;
}

impl Default for PassiveHealth {
    fn default() -> Self {
        Self {
            consecutive_failures: 3,
            ejection_time: Duration::from_secs(10),
            ejection_time_max: Duration::from_secs(300),
            ejected_percent_max: 100,
            panic_below_percent: 50,
        }
    }
}

impl Retries {
    /// Requests that may be sent again beyond the share of the budget. They come back as requests arrive.
    pub const RESERVE: u32 = 100;
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            connect_failure: true,
            reset: true,
            statuses: RetriedStatuses::default(),
            attempts: 3,
            per_try_timeout: None,
            budget_percent: 20,
        }
    }
}

impl RetriedStatuses {
    /// Whether this status is one of them.
    #[inline]
    pub fn has(self, status: u16) -> bool {
        match status {
            502 => self.bad_gateway,
            503 => self.unavailable,
            504 => self.gateway_timeout,
            _ => false,
        }
    }
}
