//! The settings of traces.

use std::sync::Arc;

use culvert_base::Secret;
use culvert_policy::{Policy, single_condition};
use http::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::Invalid;

/// Traces of requests, exported by OTLP.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Base URL of an OTLP receiver, such as `http://127.0.0.1:4318`; `/v1/traces` is appended. Spans
    /// are sent by HTTP, in protobuf. Empty to trace no requests: then `traceparent` and `tracestate`
    /// pass like other headers.
    pub otlp_endpoint: String,
    /// Additional headers of requests to the receiver, as `name=value`, separated by commas. Secret:
    /// set it by environment variable.
    pub headers: String,
    /// Which requests are recorded: a share from `0` to `1`, or an expression over the request in the
    /// language of traffic policies, such as `req.url.path.startsWith('/api/')`.
    pub sample: String,
    /// Whether the caller decides, if a request has a valid `traceparent`: it is recorded if its
    /// caller recorded it.
    pub parent_based: bool,
    /// Maximum number of requests per second that are recorded because their callers ask for it. Only
    /// requests from `edge.trusted_proxies` do not count.
    pub parents_per_second: u32,
    /// Maximum number of spans that wait to be sent. Further ones are dropped and counted.
    pub queue_spans: u32,
    /// Maximum size of spans that wait to be sent, in bytes.
    pub queue_bytes: u64,
}

impl Default for Tracing {
    fn default() -> Self {
        Self {
            otlp_endpoint: String::new(),
            headers: String::new(),
            sample: "0.1".to_owned(),
            parent_based: true,
            parents_per_second: 100,
            queue_spans: 20_000,
            queue_bytes: 16 << 20,
        }
    }
}

/// Which requests are recorded.
#[derive(Clone, Debug)]
pub enum TraceSample {
    /// A share of them.
    Share(f64),
    /// Those for which this holds.
    Condition(Arc<Policy>),
}

/// Headers of requests to the receiver.
pub type TraceHeaders = Vec<(HeaderName, Secret)>;

/// The smallest queue.
const QUEUE_SPANS_MIN: u32 = 100;
const QUEUE_BYTES_MIN: u64 = 1 << 20;

impl Tracing {
    /// Checks what types do not express.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        self.receiver()?;
        self.headers()?;
        self.sample()?;
        if self.queue_spans < QUEUE_SPANS_MIN {
            let why = "`tracing.queue_spans` must be at least 100";
            return Err(Invalid(why.to_owned()));
        }
        if self.queue_bytes < QUEUE_BYTES_MIN {
            let why = "`tracing.queue_bytes` must be at least 1048576";
            return Err(Invalid(why.to_owned()));
        }
        Ok(())
    }

    /// The receiver, if requests are traced.
    pub fn receiver(&self) -> Result<Option<Url>, Invalid> {
        if self.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let url = Url::parse(&self.otlp_endpoint).ok().filter(|url| {
            let is_plain = url.query().is_none() && url.fragment().is_none();
            let is_open = url.username().is_empty() && url.password().is_none();
            ["http", "https"].contains(&url.scheme()) && url.has_host() && is_plain && is_open
        });
        url.map(Some).ok_or_else(|| {
            let why = "`tracing.otlp_endpoint` must be a URL such as `http://127.0.0.1:4318`, without \
                       credentials, query and fragment";
            Invalid(why.to_owned())
        })
    }

    /// The headers. Errors do not quote values.
    pub fn headers(&self) -> Result<TraceHeaders, Invalid> {
        let pairs = self.headers.split(',').map(str::trim);
        let read = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            let value = value.trim();
            HeaderValue::from_str(value).ok()?;
            Some((name, Secret::new(value.to_owned())))
        };
        let headers: Option<TraceHeaders> =
            pairs.filter(|pair| !pair.is_empty()).map(read).collect();
        headers.ok_or_else(|| {
            let why = "`tracing.headers` must be a list such as `name=value,name=value`";
            Invalid(why.to_owned())
        })
    }

    /// Which requests are recorded.
    pub fn sample(&self) -> Result<TraceSample, Invalid> {
        if let Ok(share) = self.sample.trim().parse::<f64>() {
            return match (0.0..=1.0).contains(&share) {
                true => Ok(TraceSample::Share(share)),
                false => Err(Invalid("`tracing.sample` must be from 0 to 1".to_owned())),
            };
        }
        let policy = single_condition(&self.sample).map_err(|why| {
            Invalid(format!(
                "`tracing.sample` must be a share from 0 to 1 or an expression over requests: {why}"
            ))
        })?;
        Ok(TraceSample::Condition(Arc::new(policy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Tracing)) -> Result<(), String> {
        let mut tracing = Tracing::default();
        change(&mut tracing);
        tracing.check().map_err(|invalid| invalid.0)
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(with(|_| {}), Ok(()));
        for endpoint in ["http://127.0.0.1:4318", "https://otlp.example/base"] {
            assert_eq!(with(|it| it.otlp_endpoint = endpoint.into()), Ok(()));
        }
        for endpoint in [
            "127.0.0.1:4318",
            "http://u:s3cr3t@a",
            "http://a?b",
            "ftp://a",
        ] {
            let refused = with(|it| it.otlp_endpoint = endpoint.into()).unwrap_err();
            assert!(refused.starts_with("`tracing.otlp_endpoint`"), "{refused}");
            assert!(!refused.contains("s3cr3t"));
        }
        for sample in ["0", "1", " 0.25 ", "req.method == 'POST'"] {
            assert_eq!(with(|it| it.sample = sample.into()), Ok(()), "{sample}");
        }
        for sample in [
            "",
            "-1",
            "1.5",
            "NaN",
            "req.metod == ''",
            "res.status_code == 200",
        ] {
            let refused = with(|it| it.sample = sample.into()).unwrap_err();
            assert!(refused.starts_with("`tracing.sample`"), "{refused}");
        }
        for headers in ["a", "a b=c", "a=b\nc"] {
            let refused = with(|it| it.headers = headers.into()).unwrap_err();
            assert!(refused.starts_with("`tracing.headers`"), "{refused}");
        }
        let tracing = Tracing {
            headers: "x-a = b=c, x-d=".to_owned(),
            ..Tracing::default()
        };
        let headers = tracing.headers().unwrap();
        let shown: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.reveal()))
            .collect();
        assert_eq!(shown, [("x-a", "b=c"), ("x-d", "")]);
        let settings = crate::config::Settings {
            tracing,
            ..crate::config::Settings::default()
        };
        assert_eq!(settings.shown()["tracing"]["headers"], "[secret]");
        assert!(with(|it| it.queue_spans = 1).is_err());
        assert!(with(|it| it.queue_bytes = 1).is_err());
    }
}
