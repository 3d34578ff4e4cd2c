//! Events of traffic that the edge refuses and that names no endpoint (contract: audit 3).
//!
//! The edge counts it by network and reason. A task takes the counts once a second, and reports them as it does refused
//! calls: when they begin, and then once a minute, and after an hour once an hour.

use std::net::IpAddr;
use std::time::Duration;

use culvert_base::{Event, Fault, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId, RefusedSample, RefusedTraffic};
use culvert_resources::access::tenant::Account;
use culvert_resources::audit;
use culvert_resources::audit::repeated::{Repeated, Report, ReportLimits, Sample as Counts};
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::EventConfig;
use crate::event_kinds::TRAFFIC_REFUSED;

/// How often the task reads the counts of the edge.
const TAKE_EVERY: Duration = Duration::from_secs(1);
/// Time between two events about the same refusals.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Limits of the events: anyone can cause them, as long as they like.
const LIMITS: ReportLimits = ReportLimits {
    slow_after: Duration::from_secs(3_600),
    slow_period: Duration::from_secs(3_600),
    per_minute_max: 30,
};

/// Refused traffic that is counted, until it is reported.
#[derive(Debug)]
pub(crate) struct RefusedCounts(Repeated<Key, Counted>);

/// Refusals with this key are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    reason: &'static str,
    /// `None` for those of several networks, while too many are counted or reported one by one.
    network: Option<String>,
}

/// The latest refusal of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    sampled: u64,
    sample: Option<RefusedSample>,
}

impl Counts for Counted {
    fn add(&mut self, later: Self) {
        self.sampled = later.sampled;
        // Those that were only counted have none.
        if later.sample.is_some() {
            self.sample = later.sample;
        }
    }

    fn emptied(&self) -> Self {
        self.clone()
    }
}

impl Default for RefusedCounts {
    fn default() -> Self {
        let folded = |key: &Key| Key {
            network: None,
            ..key.clone()
        };
        Self(Repeated::new(REPORT_EVERY, folded).limited(LIMITS))
    }
}

/// The object of the event.
#[derive(Debug, Serialize, JsonSchema)]
struct Object<'a> {
    /// Why it was refused.
    reason: &'a str,
    /// The network of the clients (/24 or /64); null if there were too many networks to report each.
    network: Option<&'a str>,
    /// The node that refused it.
    node: &'a str,
    /// How many requests and connections were refused since the last event about it.
    count: u64,
    /// How many of them the sample stands for. Above 100 a second of a network, only some are examined.
    sampled: u64,
    /// When the first of them was refused.
    #[schemars(with = "String", extend("format" = "date-time"))]
    first_at: Timestamp,
    /// When the last of them was refused.
    #[schemars(with = "String", extend("format" = "date-time"))]
    last_at: Timestamp,
    /// The last one that was examined; null if they were only counted.
    sample: Option<Sample<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Sample<'a> {
    #[schemars(with = "String")]
    client_ip: IpAddr,
    client_port: u16,
    /// The port that the client connected to.
    server_port: u16,
    /// The host of the request, or else the TLS server name; empty if there is none. At most 253 bytes.
    host: &'a str,
    /// The method; empty if it is not known.
    method: &'a str,
    /// The `user-agent`; empty if there is none. At most 256 bytes.
    user_agent: &'a str,
}

/// The kind of event.
pub fn kinds() -> [AuditKind; 1] {
    let schema = audit::schema_of::<Object<'static>>();
    [AuditKind {
        name: TRAFFIC_REFUSED.to_owned(),
        doc: "The edge refused requests or connections that name no endpoint: for example malformed requests, unknown hosts \
              and failed TLS handshakes. One event for a network and reason when it begins, one a minute while it goes on, \
              and one an hour after the first hour; at most 30 a minute for all networks, and the others of a reason \
              together. Those that name an endpoint are `http_request_complete.v0` and `tcp_connection_closed.v0` of the endpoint."
            .to_owned(),
        schema,
    }]
}

impl EventConfig {
    /// Reports refused traffic until cancelled, and then the rest.
    pub async fn report_refused_traffic(&self, stop: CancellationToken) {
        loop {
            let is_over = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(TAKE_EVERY) => false,
            };
            self.count_refused_traffic();
            if let Err(fault) = self.report_due_refusals(is_over).await {
                tracing::warn!(cause = %fault.chain(), "reporting refused traffic failed; retrying");
            }
            if is_over {
                return;
            }
        }
    }

    /// Takes what the edge of this process has refused.
    pub fn count_refused_traffic(&self) {
        let Some(edge) = &self.edge else { return };
        for refused in edge.take_refused() {
            let key = Key {
                reason: refused.reason.name(),
                network: refused.network_text(),
            };
            let RefusedTraffic {
                count,
                sampled,
                sample,
                last_at,
                ..
            } = refused;
            let counted = Counted { sampled, sample };
            self.refused.0.note_many(key, counted, count, last_at);
        }
    }

    /// Commits the events that are due; with `all`, also those that are due later.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn report_due_refusals(&self, all: bool) -> Result<(), Fault> {
        let reports = self.refused.0.due(all);
        if reports.is_empty() {
            return Ok(());
        }
        let (key, value) = Account::FIRST;
        let store = &self.kernel.store;
        // Without an account there are no subscriptions yet.
        if let Some(first) = store.find(Account::KIND, key, value).await? {
            let mut changes = Changes::default();
            for report in &reports {
                changes = changes.and(Changes::event(self.event_of(&first.head.id, report)?));
            }
            let written = store.commit(changes).await;
            written.map_err(|error| Fault::new("recording refused traffic", error))?;
        }
        self.refused.0.reported(&reports);
        Ok(())
    }

    fn event_of(&self, account: &str, report: &Report<Key, Counted>) -> Result<Event, Fault> {
        let Counted { sampled, sample } = &report.sample;
        let object = Object {
            reason: report.key.reason,
            network: report.key.network.as_deref(),
            node: self.statistics.node(),
            count: report.count,
            sampled: *sampled,
            first_at: report.first_at,
            last_at: report.last_at,
            sample: sample.as_ref().map(|sample| Sample {
                client_ip: sample.client_ip,
                client_port: sample.client_port,
                server_port: sample.server_port,
                host: &sample.host,
                method: &sample.method,
                user_agent: &sample.user_agent,
            }),
        };
        let at = self.kernel.clock.now();
        let id = EventId::new(at, self.kernel.entropy.bytes());
        Audit::by_server(TRAFFIC_REFUSED, at, &id, account).about(&object)
    }
}
