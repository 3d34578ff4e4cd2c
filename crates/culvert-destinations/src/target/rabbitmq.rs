//! `rabbitmq`: events as persistent messages of a RabbitMQ exchange.
//!
//! Each message waits for the broker's confirm. A message for which no queue is bound is returned,
//! and is not lost. Its id is the idempotency key. Audit events are sent one at a time, in order.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

use culvert_base::batch::BatchClass;
use culvert_base::{BoxFuture, Entropy, Refusal, Secret};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass, scrub};
use culvert_target::net::Net;
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::amqp::{Broken, Confirmed, Login, Message, Publisher};
use crate::client::kept::Kept;
use crate::client::tls_client::{Peer, Scheme};
use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::envelope::{event_time, event_type};
use crate::target::verdict::{is_stuck, verdict_of_line};

const NAME: &str = "rabbitmq";
const EXCHANGE: &str = "amq.topic";
const PREFIX: &str = "culvert.events";
const VIRTUAL_HOST: &str = "/";
const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "amqps",
        port: 5671,
    },
    Scheme {
        name: "amqp",
        port: 5672,
    },
];
/// The length of the protocol's short strings is one byte.
const SHORT_BYTES_MAX: usize = 255;
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
const CONFIRM_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of traffic messages that wait for their confirm.
const PIPELINE: usize = 256;

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Publishes each event to a RabbitMQ exchange and waits for the confirmation.",
    limits: BatchLimits {
        events_max: 1024,
        bytes_max: 1 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "password");
        given
    },
    redact: |stored| hide(stored, "/password", Value::Null),
    open,
};

/// Configuration of the `rabbitmq` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RabbitmqTarget")]
struct Config {
    /// Nodes of one cluster, `amqps://<host>:<port>`, tried in this order; at most 16.
    urls: Vec<String>,
    /// Whether connections use TLS with certificate verification. Default: `true`. `false` requires
    /// a server that allows plain connections, and `amqp://`.
    #[serde(default)]
    tls: Option<bool>,
    /// The virtual host, `/` by default.
    #[serde(default)]
    virtual_host: Option<String>,
    /// The user.
    user: String,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Name of an existing exchange. Default: `amq.topic`. Empty for the default exchange, which
    /// uses the routing key as the queue name.
    #[serde(default)]
    exchange: Option<String>,
    /// Routing key of all events. Default: `culvert.events.<account id>.<event type>`.
    #[serde(default)]
    routing_key: Option<String>,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    peers(&config, settings)?;
    config.tls.get_or_insert(true);
    config
        .virtual_host
        .get_or_insert_with(|| VIRTUAL_HOST.to_owned());
    config.exchange.get_or_insert_with(|| EXCHANGE.to_owned());
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let fields = [
        ("virtual_host", text(&config.virtual_host), true),
        ("user", config.user.clone(), true),
        ("password", text(&config.password), false),
        ("exchange", text(&config.exchange), false),
        ("routing_key", text(&config.routing_key), false),
    ];
    for (name, text, is_needed) in fields {
        if text.len() > SHORT_BYTES_MAX || text.contains('\0') || (is_needed && text.is_empty()) {
            return Err(invalid(
                NAME,
                format_args!("`{name}` must be at most {SHORT_BYTES_MAX} bytes"),
            ));
        }
    }
    let has_key = config
        .routing_key
        .as_ref()
        .is_some_and(|key| !key.is_empty());
    if config.exchange.as_deref() == Some("") && !has_key {
        return Err(invalid(
            NAME,
            "`routing_key` must name a queue when `exchange` is empty",
        ));
    }
    Ok(stored(&config))
}

fn peers(config: &Config, settings: &TargetSettings) -> Result<Vec<Peer>, Refusal> {
    let is_tls = config.tls.unwrap_or(true);
    let scheme = if is_tls { &SCHEMES[..1] } else { &SCHEMES[1..] };
    Peer::several(NAME, "urls", &config.urls, scheme, is_tls, &settings.rules)
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    Ok(Arc::new(Rabbitmq {
        peers: peers(&config, context.settings())?,
        virtual_host: config
            .virtual_host
            .unwrap_or_else(|| VIRTUAL_HOST.to_owned()),
        user: config.user,
        password: Secret::new(config.password.unwrap_or_default()),
        exchange: config.exchange.unwrap_or_else(|| EXCHANGE.to_owned()),
        routing_key: config.routing_key.filter(|key| !key.is_empty()),
        account: ids.account.to_owned(),
        idle: Mutex::new(None),
        net: context.net().clone(),
    }))
}

struct Rabbitmq {
    peers: Vec<Peer>,
    virtual_host: String,
    user: String,
    password: Secret,
    exchange: String,
    routing_key: Option<String>,
    account: String,
    /// An idle connection whose last publish succeeded. Taken out while in use.
    idle: Mutex<Option<Kept<Publisher>>>,
    net: Net,
}

impl std::fmt::Debug for Rabbitmq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rabbitmq")
            .field("exchange", &self.exchange)
            .finish_non_exhaustive()
    }
}

impl Target for Rabbitmq {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let mut idle = self.idle.lock().await;
            let kept = match idle.take().map(Kept::again) {
                Some(Ok(kept)) => Some(kept),
                Some(Err(old)) => {
                    old.close().await;
                    None
                }
                None => None,
            };
            let mut publisher = match kept {
                Some(publisher) => publisher,
                None => match self.connect().await {
                    Ok(publisher) => Kept::opened(publisher),
                    Err(failure) => return Verdict::Failed(failure),
                },
            };
            let (verdict, is_whole) = self.publish(&mut publisher.connection, batch).await;
            if is_whole {
                *idle = Some(publisher);
            }
            verdict
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Rabbitmq {
    /// Returns the verdict, and whether the connection can be used again.
    async fn publish(&self, publisher: &mut Publisher, batch: &Batch) -> (Verdict, bool) {
        let at_once = match batch.class() {
            BatchClass::Audit => 1,
            BatchClass::Traffic => PIPELINE,
        };
        let deliveries: Vec<Delivery<'_>> = batch.deliveries().collect();
        let mut outcomes = Vec::with_capacity(deliveries.len());
        let mut is_whole = true;
        for window in deliveries.chunks(at_once) {
            let texts: Vec<_> = window
                .iter()
                .map(|delivery| {
                    let kind = event_type(delivery.envelope).unwrap_or("event");
                    let key = match &self.routing_key {
                        Some(key) => key.clone(),
                        None => format!("{PREFIX}.{}.{kind}", self.account),
                    };
                    (kind, key, delivery.idempotency_key())
                })
                .collect();
            let messages: Vec<Message<'_>> = window
                .iter()
                .zip(&texts)
                .map(|(delivery, (kind, routing_key, id))| Message {
                    exchange: &self.exchange,
                    routing_key,
                    id,
                    kind,
                    at: event_time(delivery.envelope)
                        .and_then(|at| u64::try_from(at.unix_millis() / 1000).ok())
                        .unwrap_or(0),
                    body: delivery.payload(),
                })
                .collect();
            let (confirmed, broken) = publisher.publish(&messages, CONFIRM_DEADLINE).await;
            let broken = broken.map(|broken| self.blame(&broken, FailureClass::Unknown));
            is_whole &= broken.is_none();
            // The broker closed the channel because of one message, but does not say which.
            if let Some(failure) = &broken
                && failure.class == FailureClass::Permanent
                && batch.len() > 1
            {
                return (Verdict::Failed(failure.clone()), false);
            }
            outcomes.extend(
                confirmed
                    .into_iter()
                    .map(|confirmed| match (confirmed, &broken) {
                        (Some(Confirmed::Taken), _) => Outcome::Delivered,
                        (Some(Confirmed::Refused), _) => Outcome::Failed(Failure::new(
                            FailureClass::Retryable,
                            "nack",
                            "the broker rejected the message",
                        )),
                        (Some(Confirmed::Returned(code, text)), _) => {
                            Outcome::Failed(Failure::new(
                                FailureClass::Config,
                                code.to_string(),
                                format!("no queue is bound for the message: {text}"),
                            ))
                        }
                        (None, Some(failure)) => Outcome::Failed(failure.clone()),
                        (None, None) => Outcome::NotTried,
                    }),
            );
            if outcomes.iter().any(is_stuck) {
                break;
            }
        }
        outcomes.resize(deliveries.len(), Outcome::NotTried);
        (verdict_of_line(outcomes), is_whole)
    }

    /// Connects to the first node that accepts the credentials and has the exchange.
    async fn connect(&self) -> Result<Publisher, Failure> {
        let mut last = Failure::new(
            FailureClass::Config,
            "urls",
            "no server address is available",
        );
        for peer in &self.peers {
            let opening = async {
                let stream = peer.connect(&self.net).await?;
                let login = Login {
                    virtual_host: &self.virtual_host,
                    user: &self.user,
                    password: self.password.reveal(),
                };
                let mut publisher = Publisher::open(stream, login)
                    .await
                    .map_err(|broken| self.blame(&broken, FailureClass::Retryable))?;
                // The default exchange always exists and must not be declared.
                if !self.exchange.is_empty() {
                    publisher
                        .look_for_exchange(&self.exchange)
                        .await
                        .map_err(|broken| self.blame(&broken, FailureClass::Retryable))?;
                }
                Ok(publisher)
            };
            let opened = tokio::time::timeout(OPEN_DEADLINE, opening).await;
            match opened {
                Ok(Ok(publisher)) => return Ok(publisher),
                Ok(Err(failure)) => last = failure,
                Err(_) => {
                    let text = "authentication with the broker took longer than 10 s";
                    last = Failure::new(FailureClass::Retryable, "timeout", text);
                }
            }
        }
        Err(last)
    }

    /// The failure for a connection that ended. `otherwise` is its class if the cause says nothing
    /// about messages in flight.
    fn blame(&self, broken: &Broken, otherwise: FailureClass) -> Failure {
        let (class, code, text) = match broken {
            Broken::Reported(code, text) => (class_of(*code, otherwise), code.to_string(), &**text),
            Broken::Nonsense(what) => (FailureClass::Config, "protocol".to_owned(), *what),
            Broken::Socket => (
                otherwise,
                "connection".to_owned(),
                "the connection to the broker failed",
            ),
            Broken::Late { is_blocked: true } => (
                FailureClass::Unknown,
                "blocked".to_owned(),
                "the broker blocks publishers because it is short of memory or disk space",
            ),
            Broken::Late { is_blocked: false } => (
                FailureClass::Unknown,
                "timeout".to_owned(),
                "the broker did not confirm in time",
            ),
        };
        Failure::new(class, code, scrub(text, &[self.password.reveal()]))
    }
}

/// The failure class of a reply code (specification, 1.1, and RabbitMQ's use of it).
fn class_of(code: u16, otherwise: FailureClass) -> FailureClass {
    match code {
        // The content is too large, or not acceptable for the exchange.
        311 | 406 => FailureClass::Permanent,
        403 => FailureClass::Auth,
        // No such exchange, queue or virtual host.
        404 | 402 | 530 => FailureClass::Config,
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests;
