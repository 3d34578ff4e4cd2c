//! Health checks of the upstreams of a list, as they are given.

use std::ops::RangeInclusive;
use std::time::Duration;

use culvert_base::Refusal;
use culvert_edge_config::{ActiveHealth, HttpProbe, Probe};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::endpoint::timeouts::{PATTERN, parse};
use crate::endpoint::upstreams::{invalid, time, unset};

const TYPES: [&str; 3] = ["http", "tcp", "grpc"];
const METHODS: [&str; 2] = ["GET", "HEAD"];
const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
const HEALTHY_THRESHOLD: u32 = 2;
const UNHEALTHY_THRESHOLD: u32 = 3;
const THRESHOLD_MAX: u32 = 100;
const PATH_BYTES_MAX: usize = 2_048;
const HOST_BYTES_MAX: usize = 253;
const BODY_BYTES_MAX: usize = 1_024;
const NAME_BYTES_MAX: usize = 127;
const RANGES_MAX: usize = 16;
const STATUSES: RangeInclusive<u16> = 200..=399;

/// Health checks of each upstream, by each node. Values that are absent, `null` or empty are the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointActiveHealth", extend("additionalProperties" = false))]
pub(crate) struct GivenActiveHealth {
    /// `http`: a request whose response must have one of `statuses`; the default for HTTP endpoints. `tcp`: a connection,
    /// with TLS if the upstream has it; the default for others. `grpc`: the health service `grpc.health.v1` of an upstream
    /// with `upstream_protocol` `http2`.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = TYPES))]
    probe: Option<String>,
    /// `http`: path with query, at most 2048 bytes; default `/`.
    #[schemars(extend("pattern" = r"^$|^/[!-~]*$"))]
    path: Option<String>,
    /// `http`: `GET`, the default, or `HEAD`.
    #[schemars(extend("enum" = METHODS))]
    method: Option<String>,
    /// `http`: the Host field, default the host and port of the upstream.
    #[schemars(length(max = 253))]
    host: Option<String>,
    /// `http`: the statuses that pass, such as `200-299,401`; default `200-399`.
    #[schemars(extend("pattern" = r"^$|^[1-5][0-9]{2}[0-9, -]*$"))]
    statuses: Option<String>,
    /// `http`: a text that the first 64 KiB of the body must have; at most 1024 bytes.
    #[schemars(length(max = 1024))]
    body_contains: Option<String>,
    /// `grpc`: the service to ask for; empty, the default, for the whole server.
    #[schemars(length(max = 127))]
    service: Option<String>,
    /// From one check to the next: 1s to 1h, default 10s.
    #[schemars(extend("pattern" = PATTERN))]
    interval: Option<String>,
    /// How long a check may take: 100ms to 1m and at most the interval, default 5s.
    #[schemars(extend("pattern" = PATTERN))]
    timeout: Option<String>,
    /// Checks in a row that must pass until an upstream that failed is used again: 1 to 100, default 2.
    #[schemars(range(min = 1, max = 100))]
    healthy_threshold: Option<u32>,
    /// Checks in a row that fail until an upstream is not used any more: 1 to 100, default 3.
    #[schemars(range(min = 1, max = 100))]
    unhealthy_threshold: Option<u32>,
}

fn field(name: &str) -> String {
    format!("upstream_health.active.{name}")
}

impl GivenActiveHealth {
    /// Checks it for an endpoint with this protocol of its upstreams.
    ///
    /// # Errors
    ///
    /// 18014 with the field and its bounds.
    pub(crate) fn check(&mut self, is_http: bool, protocol: &str) -> Result<(), Refusal> {
        let texts = [
            &mut self.probe,
            &mut self.path,
            &mut self.method,
            &mut self.host,
            &mut self.statuses,
            &mut self.body_contains,
            &mut self.service,
        ];
        texts.into_iter().for_each(unset);
        let kind = self.kind(is_http);
        if !TYPES.contains(&kind) {
            return Err(invalid(
                "`upstream_health.active.type` must be `http`, `tcp` or `grpc`.",
            ));
        }
        if kind != "tcp" && !is_http {
            return Err(invalid(
                "`upstream_health.active.type` must be `tcp` for a TCP or TLS endpoint.",
            ));
        }
        if kind == "grpc" && protocol != "http2" {
            return Err(invalid(
                "`upstream_health.active.type` `grpc` needs `upstream_protocol` `http2`.",
            ));
        }
        self.check_kind(kind)?;
        self.check_request()?;
        self.check_times()
    }

    fn kind(&self, is_http: bool) -> &str {
        let default = if is_http { "http" } else { "tcp" };
        self.probe.as_deref().unwrap_or(default)
    }

    /// A field that this type of check does not read is a mistake.
    fn check_kind(&self, kind: &str) -> Result<(), Refusal> {
        let of_types = [
            ("path", "http", self.path.is_some()),
            ("method", "http", self.method.is_some()),
            ("host", "http", self.host.is_some()),
            ("statuses", "http", self.statuses.is_some()),
            ("body_contains", "http", self.body_contains.is_some()),
            ("service", "grpc", self.service.is_some()),
        ];
        for (name, of, is_given) in of_types {
            if is_given && of != kind {
                let field = field(name);
                return Err(invalid(format!(
                    "`{field}` is only for checks of the type `{of}`."
                )));
            }
        }
        Ok(())
    }

    fn check_request(&self) -> Result<(), Refusal> {
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if let Some(path) = &self.path
            && (path.len() > PATH_BYTES_MAX || !HttpProbe::is_path(path))
        {
            return Err(invalid(
                "`upstream_health.active.path` must begin with `/`, with at most 2048 visible ASCII characters and no `#`.",
            ));
        }
        if let Some(host) = &self.host
            && (host.len() > HOST_BYTES_MAX || !HttpProbe::is_host(host))
        {
            return Err(invalid(
                "`upstream_health.active.host` must be a host with or without a port, of at most 253 bytes.",
            ));
        }
        let method = self.method.as_deref().unwrap_or("GET");
        if !METHODS.contains(&method) {
            return Err(invalid(
                "`upstream_health.active.method` must be `GET` or `HEAD`.",
            ));
        }
        if let Some(text) = &self.body_contains {
            if text.len() > BODY_BYTES_MAX {
                return Err(invalid(
                    "`upstream_health.active.body_contains` must have at most 1024 bytes.",
                ));
            }
            if method == "HEAD" {
                return Err(invalid(
                    "`upstream_health.active.body_contains` needs the method `GET`.",
                ));
            }
        }
        if let Some(statuses) = &self.statuses
            && (statuses.len() > NAME_BYTES_MAX || ranges(statuses).is_none())
        {
            return Err(invalid(
                "`upstream_health.active.statuses` must be statuses and ranges from 100 to 599, such as `200-299,401`; at most 16.",
            ));
        }
        if let Some(service) = &self.service
            && (service.len() > NAME_BYTES_MAX || !is_visible(service))
        {
            return Err(invalid(
                "`upstream_health.active.service` must have at most 127 visible ASCII characters.",
            ));
        }
        Ok(())
    }

    fn check_times(&mut self) -> Result<(), Refusal> {
        let (tick, second) = (Duration::from_millis(100), Duration::from_secs(1));
        let bounds = second..=3_600 * second;
        let interval = time(&field("interval"), &mut self.interval, bounds)?;
        let timeout = time(&field("timeout"), &mut self.timeout, tick..=60 * second)?;
        if timeout.is_some_and(|timeout| timeout > interval.unwrap_or(INTERVAL)) {
            return Err(invalid(
                "`upstream_health.active.timeout` must not be longer than `interval`.",
            ));
        }
        let thresholds = [
            ("healthy_threshold", self.healthy_threshold),
            ("unhealthy_threshold", self.unhealthy_threshold),
        ];
        for (name, threshold) in thresholds {
            if threshold.is_some_and(|threshold| !(1..=THRESHOLD_MAX).contains(&threshold)) {
                let field = field(name);
                return Err(invalid(format!(
                    "`{field}` must be from 1 to {THRESHOLD_MAX}."
                )));
            }
        }
        Ok(())
    }

    /// The checks for the edge.
    pub(crate) fn compile(&self, is_http: bool) -> ActiveHealth {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let probe = match self.kind(is_http) {
            "grpc" => Probe::Grpc(text(&self.service)),
            "http" => Probe::Http(HttpProbe {
                is_head: self.method.as_deref() == Some("HEAD"),
                path: self.path.clone().unwrap_or_else(|| "/".to_owned()),
                host: text(&self.host),
                statuses: self
                    .statuses
                    .as_deref()
                    .and_then(ranges)
                    .unwrap_or_else(|| vec![STATUSES]),
                body: text(&self.body_contains),
            }),
            _ => Probe::Tcp,
        };
        let time = |text: &Option<String>| text.as_deref().and_then(parse);
        let interval = time(&self.interval).unwrap_or(INTERVAL);
        ActiveHealth {
            probe,
            interval,
            timeout: time(&self.timeout).unwrap_or(TIMEOUT.min(interval)),
            healthy_threshold: self.healthy_threshold.unwrap_or(HEALTHY_THRESHOLD),
            unhealthy_threshold: self.unhealthy_threshold.unwrap_or(UNHEALTHY_THRESHOLD),
        }
    }
}

/// Statuses and ranges of them, separated by commas.
fn ranges(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let status = |text: &str| {
        let is_status = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        let status = text.parse().ok().filter(|_| is_status)?;
        (100..=599).contains(&status).then_some(status)
    };
    let range = |part: &str| {
        let part = part.trim();
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let range = status(from)?..=status(to)?;
        (!range.is_empty()).then_some(range)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    ranges.filter(|ranges| ranges.len() <= RANGES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_and_ranges() {
        assert_eq!(ranges("200-299, 401"), Some(vec![200..=299, 401..=401]));
        for wrong in [
            "",
            "99",
            "600",
            "2xx",
            "200-",
            "300-200",
            "200,,201",
            "+20",
            "0200",
            "200-299-300",
        ] {
            assert_eq!(ranges(wrong), None, "{wrong}");
        }
        assert!(ranges(&vec!["200"; 17].join(",")).is_none());
    }

    #[test]
    fn mistakes_are_refused_with_the_field() {
        for (given, is_http, protocol, part) in [
            (r#"{"type": "ftp"}"#, true, "", "`http`, `tcp` or `grpc`"),
            (r#"{"type": "http"}"#, false, "", "must be `tcp`"),
            (r#"{"type": "grpc"}"#, true, "http1", "`http2`"),
            (r#"{"path": "health"}"#, true, "", "must begin with `/`"),
            (r#"{"path": "/a b"}"#, true, "", "must begin with `/`"),
            (
                r#"{"path": "/"}"#,
                false,
                "",
                "only for checks of the type `http`",
            ),
            (
                r#"{"type": "tcp", "statuses": "200"}"#,
                true,
                "",
                "statuses` is only",
            ),
            (r#"{"service": "x"}"#, true, "http2", "service` is only"),
            (r#"{"method": "POST"}"#, true, "", "method` must be"),
            (r#"{"host": "a b"}"#, true, "", "host` must be"),
            (r#"{"host": "a\r\nb"}"#, true, "", "host` must be"),
            (r#"{"statuses": "1"}"#, true, "", "statuses` must be"),
            (
                r#"{"method": "HEAD", "body_contains": "x"}"#,
                true,
                "",
                "needs the method `GET`",
            ),
            (r#"{"interval": "500ms"}"#, true, "", "interval` must be"),
            (
                r#"{"interval": "2s", "timeout": "3s"}"#,
                true,
                "",
                "longer than `interval`",
            ),
            (
                r#"{"healthy_threshold": 0}"#,
                true,
                "",
                "healthy_threshold` must be",
            ),
            (
                r#"{"unhealthy_threshold": 101}"#,
                true,
                "",
                "unhealthy_threshold` must be",
            ),
        ] {
            let mut given: GivenActiveHealth = serde_json::from_str(given).unwrap();
            let refusal = given.check(is_http, protocol).unwrap_err();
            assert!(
                refusal.message.contains(part),
                "{given:?}: {}",
                refusal.message
            );
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_protocol() {
        let mut given: GivenActiveHealth =
            serde_json::from_str(r#"{"type": "", "path": "", "interval": "3s"}"#).unwrap();
        given.check(true, "").unwrap();
        let checks = given.compile(true);
        assert_eq!(checks.timeout, Duration::from_secs(3));
        let Probe::Http(http) = checks.probe else {
            panic!("{checks:?}");
        };
        assert_eq!((http.path.as_str(), http.statuses), ("/", vec![200..=399]));
        given.check(false, "").unwrap();
        assert_eq!(given.compile(false).probe, Probe::Tcp);
    }
}
