//! The timeouts of an endpoint, which override the settings `edge.timeouts`.

use std::time::Duration;

use culvert_base::{Refusal, code};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A duration, or nothing.
pub(crate) const PATTERN: &str = r"^$|^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Timeouts as durations such as `90s` or `1h30m`. Absent, `null` or empty values use the server
/// settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointTimeouts", extend("additionalProperties" = false))]
pub(crate) struct Timeouts {
    /// Timeout to connect to the upstream, including the TLS handshake: 100ms to 10m. Does not
    /// apply to agents.
    #[schemars(extend("pattern" = PATTERN))]
    connect: Option<String>,
    /// Timeout from the end of the request to the first byte of the response head: 100ms to 168h.
    /// Applies to gRPC calls to an HTTP/2 upstream only if set here.
    #[schemars(extend("pattern" = PATTERN))]
    first_byte: Option<String>,
    /// Timeout without a byte in either direction during a response, or on an upgraded, TCP or TLS
    /// connection: 1s to 168h.
    #[schemars(extend("pattern" = PATTERN))]
    idle: Option<String>,
    /// Longest time that a client may read nothing while data is pending: 1s to 168h. A client that
    /// stays below 256 bytes per second is disconnected earlier.
    #[schemars(extend("pattern" = PATTERN))]
    write: Option<String>,
    /// Timeout without a byte of the request body before the upstream starts to respond: 1s to
    /// 168h. Does not apply to gRPC calls to an HTTP/2 upstream.
    #[schemars(extend("pattern" = PATTERN))]
    request: Option<String>,
}

/// The timeouts that an agent requests for its endpoint, as durations; empty for the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestedTimeouts<'a> {
    /// To connect to the service.
    pub connect: &'a str,
    /// From the end of the request to the first byte of the response.
    pub first_byte: &'a str,
    /// Of silence in both directions.
    pub idle: &'a str,
    /// While the client reads nothing.
    pub write: &'a str,
    /// While the client sends nothing of a request.
    pub request: &'a str,
}

/// A field with its minimum and maximum.
type Row<'a> = (&'static str, &'a mut Option<String>, Duration, Duration);

impl Timeouts {
    /// Those that an agent requests; `None` if there are none.
    ///
    /// # Errors
    ///
    /// 359 for a duration that is out of bounds.
    pub(crate) fn of_agent(requested: RequestedTimeouts<'_>) -> Result<Option<Self>, Refusal> {
        let RequestedTimeouts {
            connect,
            first_byte,
            idle,
            write,
            request,
        } = requested;
        let given = |text: &str| Some(text.to_owned());
        let timeouts = Self {
            connect: given(connect),
            first_byte: given(first_byte),
            idle: given(idle),
            write: given(write),
            request: given(request),
        };
        let checked = timeouts.check();
        checked.map_err(|refusal| Refusal::new(code::ENDPOINT_OPTION_INVALID, refusal.message))
    }

    fn rows(&mut self) -> [Row<'_>; 5] {
        let (tick, second) = (Duration::from_millis(100), Duration::from_secs(1));
        let (minutes, week) = (Duration::from_secs(600), 7 * DAY);
        [
            ("connect", &mut self.connect, tick, minutes),
            ("first_byte", &mut self.first_byte, tick, week),
            ("idle", &mut self.idle, second, week),
            ("write", &mut self.write, second, week),
            ("request", &mut self.request, second, week),
        ]
    }

    /// Checks the timeouts; `None` if none is set.
    ///
    /// # Errors
    ///
    /// 18014, with the field and its bounds.
    pub(crate) fn check(mut self) -> Result<Option<Self>, Refusal> {
        for (name, text, least, most) in self.rows() {
            if text.as_ref().is_some_and(String::is_empty) {
                *text = None;
            }
            let Some(text) = text else { continue };
            let is_good = parse(text).is_some_and(|time| (least..=most).contains(&time));
            if !is_good {
                return Err(Refusal::new(
                    code::ENDPOINT_FIELD_INVALID,
                    format!(
                        "`timeouts.{name}` must be a duration such as `90s` or `1h30m`, from {least:?} to {}.",
                        shown(most)
                    ),
                ));
            }
        }
        Ok((self != Self::default()).then_some(self))
    }

    /// Compiles the timeouts for the edge.
    pub(crate) fn compile(&self) -> culvert_edge_config::Timeouts {
        let time = |text: &Option<String>| text.as_deref().and_then(parse);
        culvert_edge_config::Timeouts {
            connect: time(&self.connect),
            first_byte: time(&self.first_byte),
            idle: time(&self.idle),
            write: time(&self.write),
            request: time(&self.request),
        }
    }
}

/// A length of time.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let nanos = culvert_cel::Duration::parse(text)?.nanos();
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

/// Formats a bound for messages.
pub(crate) fn shown(time: Duration) -> String {
    match time.as_secs() {
        hours if hours >= 3600 => format!("{}h", hours / 3600),
        seconds => format!("{}m", seconds / 60),
    }
}
