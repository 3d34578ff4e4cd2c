//! `/metrics`: the metrics of all parts in Prometheus text format.
//!
//! The parts count in plain structs. Only this file knows the export format.
//!
//! Not here: which parts a server has, and the metrics of its API and of witnesses
//! (`crates/culvert-server/src/server/parts/metrics.rs`).

mod node_source;
pub mod samples;
pub mod statistics;

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use culvert_base::net::{is_safe_on_loopback, plain_address};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use node_source::NodeSource;

/// Maximum number of concurrent connections; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

/// A metric with its value.
#[derive(Debug)]
pub struct Sample {
    /// The name without the prefix `culvert_` and, for counters, without the suffix `_total`.
    pub name: &'static str,
    /// The description.
    pub help: &'static str,
    /// Labels with their values.
    pub labels: Vec<(&'static str, String)>,
    /// The current value, which says what kind of metric it is.
    pub value: Value,
}

/// The value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number that only increases.
    Counter(u64),
    /// Seconds that only increase.
    Seconds(f64),
    /// A number that changes.
    Gauge(u64),
    /// Durations in seconds.
    Histogram {
        /// Their sum.
        sum: f64,
        /// Their number.
        count: u64,
        /// Upper bounds with the number of durations below each and above the one before; the last bound is infinite.
        buckets: Vec<(f64, u64)>,
    },
}

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) | Self::Seconds(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram { .. } => MetricType::Histogram,
        }
    }
}

/// Reads all metrics.
pub type Read = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;

/// Panics in the process, counted by the hook that [`count_panics`] installs.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Installs a hook that counts panics in addition to printing them, unless it is installed.
pub fn count_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            before(panic);
        }));
    });
}

/// Number of panics so far.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Serves `/metrics` until `stop`. On loopback, only under `localhost` and IP addresses, so that web pages cannot read it
/// (DNS rebinding).
pub async fn serve(listener: TcpListener, read: Read, stop: CancellationToken) {
    let mut registry = Registry::with_prefix("culvert");
    registry.register_collector(Box::new(Samples(read)));
    let registry = Arc::new(registry);
    let is_loopback = listener
        .local_addr()
        .is_ok_and(|address| plain_address(address.ip()).is_loopback());
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            () = stop.cancelled() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if room => {
                let Ok((stream, _)) = accepted else {
                    // Files or memory are exhausted; an immediate retry would spin.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let registry = registry.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| answer(request, registry.clone(), is_loopback));
                    let served = hyper::server::conn::http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(Duration::from_secs(5))
                        .keep_alive(false)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                    if let Err(error) = served {
                        tracing::debug!(%error, "metrics connection ended");
                    }
                });
            }
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    registry: Arc<Registry>,
    is_loopback: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    let host = request.headers().get(header::HOST);
    let is_safe = |host: &header::HeaderValue| host.to_str().is_ok_and(is_safe_on_loopback);
    if is_loopback && !host.is_none_or(is_safe) {
        *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
        *response.body_mut() = Full::new(
            "On a loopback address, metrics are served only under localhost or an IP address.\n"
                .into(),
        );
    } else if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if request.method() != Method::GET {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        let allowed = header::HeaderValue::from_static("GET");
        response.headers_mut().insert(header::ALLOW, allowed);
    } else {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &registry) {
            Ok(()) => {
                let kind = if accepts_openmetrics(request.headers()) {
                    OPENMETRICS
                } else {
                    text = classic(&text);
                    CLASSIC
                };
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                *response.body_mut() = Full::new(text.into());
            }
            Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
    Ok(response)
}

/// The format that Prometheus asks for.
const OPENMETRICS: header::HeaderValue =
    header::HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
/// The format of all other clients.
const CLASSIC: header::HeaderValue =
    header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

fn accepts_openmetrics(headers: &header::HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("application/openmetrics-text"))
}

/// OpenMetrics as Prometheus' older text format, which describes a counter by the name of its samples and has no end.
fn classic(openmetrics: &str) -> String {
    let described = |line: &str| -> Option<(String, bool)> {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind == "counter"))
    };
    let counters: HashSet<String> = openmetrics
        .lines()
        .filter_map(described)
        .filter_map(|(name, is_counter)| is_counter.then_some(name))
        .collect();
    let mut text = String::with_capacity(openmetrics.len() + 6 * 2 * counters.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(word), Some(name), Some(rest)) if counters.contains(name) => {
                text.extend(["# ", word, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

struct Samples(Read);

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Samples")
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let samples = (self.0)();
        // Samples of one name are adjacent, so each name is described once.
        for group in samples.chunk_by(|a, b| a.name == b.name) {
            let Some(first) = group.first() else { continue };
            let mut described =
                encoder.encode_descriptor(first.name, first.help, None, first.value.kind())?;
            for sample in group {
                if sample.labels.is_empty() {
                    encode(&sample.value, &mut described)?;
                } else {
                    let labels: Vec<(&str, &str)> = sample
                        .labels
                        .iter()
                        .map(|(name, value)| (*name, value.as_str()))
                        .collect();
                    encode(&sample.value, &mut described.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(value: &Value, encoder: &mut MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    match value {
        Value::Counter(value) => encoder.encode_counter::<NoLabelSet, u64, u64>(value, None),
        Value::Seconds(value) => encoder.encode_counter::<NoLabelSet, f64, u64>(value, None),
        Value::Gauge(value) => encoder.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX)),
        Value::Histogram {
            sum,
            count,
            buckets,
        } => encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_readers_get_counters_by_the_names_of_their_samples() {
        let text = "# HELP a_b What it counts\n# TYPE a_b counter\na_b_total{x=\"# TYPE c counter\"} 1\n\
                    # HELP c Now\n# TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total What it counts\n# TYPE a_b_total counter\n\
                        a_b_total{x=\"# TYPE c counter\"} 1\n# HELP c Now\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(text), expected);
    }
}
