//! `nats`: events as messages of a NATS JetStream stream (contract: destinations 8.1).
//!
//! Each message waits for the stream's acknowledgement and has the idempotency key as its id, so a
//! repetition within the stream's deduplication window is stored once. Audit events are sent one at
//! a time, in order.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, HeaderMap};
use bytes::Bytes;
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

use crate::client::kept::Kept;
use crate::client::tls_client::{Peer, Scheme};
use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::envelope::event_type;
use crate::target::verdict::{is_stuck, verdict_of_line};

const NAME: &str = "nats";
const PREFIX: &str = "culvert.events";
const ACK_DEADLINE: Duration = Duration::from_secs(5);
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum number of traffic messages that wait for their acknowledgement.
const PIPELINE: usize = 256;
const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "nats",
        port: 4222,
    },
    Scheme {
        name: "tls",
        port: 4222,
    },
];
/// Secrets of `credentials`, by the name of their field.
const SECRETS: [&str; 4] = ["token", "password", "nkey_seed", "creds"];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Publishes each event to a NATS JetStream stream and waits until it is stored.",
    limits: BatchLimits {
        events_max: 1024,
        bytes_max: 1 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge,
    redact: |stored| {
        let mut shown = stored.clone();
        for field in SECRETS {
            let pointer = format!("/credentials/{field}");
            if shown
                .pointer(&pointer)
                .is_some_and(|secret| !secret.is_null())
            {
                shown = hide(&shown, &pointer, "".into());
            }
        }
        shown
    },
    open,
};

/// Configuration of the `nats` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NatsTarget")]
struct Config {
    /// Servers of one cluster, `nats://<host>:<port>`, tried in this order; at most 16.
    urls: Vec<String>,
    /// Whether connections use TLS with certificate verification. Default: `true`. `false` requires
    /// a server that allows plain connections.
    #[serde(default)]
    tls: Option<bool>,
    /// Stream that must accept the messages; empty for any stream with these subjects.
    #[serde(default)]
    stream: Option<String>,
    /// Subject prefix: `<prefix>.<account id>.<event type>`. Default: `culvert.events`.
    #[serde(default)]
    subject_prefix: Option<String>,
    /// Authentication, if the server requires it.
    #[serde(default)]
    credentials: Option<Credentials>,
}

/// An authentication method. Secrets are returned as empty strings; an empty secret in a request is
/// unchanged.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NatsCredentials")]
struct Credentials {
    /// A token.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    token: Option<String>,
    /// User name; requires `password`.
    #[serde(default)]
    user: Option<String>,
    /// The user's password.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Seed of a user's nkey, `SU…`.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    nkey_seed: Option<String>,
    /// Text of a credentials file: a user's JWT and seed.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    creds: Option<String>,
}

/// Complete credentials of one authentication method.
enum Login<'a> {
    None,
    Token(&'a str),
    User(&'a str, &'a str),
    Nkey(&'a str),
    Creds(&'a str),
}

impl Credentials {
    fn login(&self) -> Option<Login<'_>> {
        let text =
            |field: &'_ Option<String>| field.as_deref().is_some_and(|text| !text.is_empty());
        let mut ways = Vec::new();
        if text(&self.token) {
            ways.push(Login::Token(self.token.as_deref()?));
        }
        if text(&self.user) || text(&self.password) {
            ways.push(Login::User(
                self.user.as_deref()?,
                self.password.as_deref()?,
            ));
        }
        if text(&self.nkey_seed) {
            ways.push(Login::Nkey(self.nkey_seed.as_deref()?));
        }
        if text(&self.creds) {
            ways.push(Login::Creds(self.creds.as_deref()?));
        }
        match ways.len() {
            0 => Some(Login::None),
            1 => ways.pop(),
            _ => None,
        }
    }
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    peers(&config, settings)?;
    let stream = config.stream.as_deref().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if stream.len() > 255 || !stream.chars().all(is_name) {
        return Err(invalid(
            NAME,
            "`stream` must be letters, digits, `-` and `_`",
        ));
    }
    let prefix = config
        .subject_prefix
        .get_or_insert_with(|| PREFIX.to_owned());
    let is_subject = (1..=128).contains(&prefix.len())
        && prefix
            .split('.')
            .all(|token| !token.is_empty() && token.chars().all(is_name));
    if !is_subject {
        return Err(invalid(
            NAME,
            "`subject_prefix` must be dot-separated names of letters, digits, `-` and `_`",
        ));
    }
    let credentials = config.credentials.get_or_insert_default();
    let options = credentials.login().map(options_of);
    if !matches!(options, Some(Some(_))) {
        return Err(invalid(
            NAME,
            "`credentials` must be one of `token`, `user` with `password`, `nkey_seed` and `creds`",
        ));
    }
    config.tls.get_or_insert(true);
    Ok(stored(&config))
}

fn peers(config: &Config, settings: &TargetSettings) -> Result<Vec<Peer>, Refusal> {
    let is_tls = config.tls.unwrap_or(true);
    Peer::several(NAME, "urls", &config.urls, SCHEMES, is_tls, &settings.rules)
}

/// Secrets that the request omits are unchanged; so is `credentials` as a whole.
fn merge(stored: &Value, mut given: Value) -> Value {
    if let (Some(fields), Some(credentials)) = (given.as_object_mut(), stored.get("credentials")) {
        fields
            .entry("credentials")
            .or_insert_with(|| credentials.clone());
    }
    for field in SECRETS {
        let holder = given.get("credentials");
        let is_named = |name: &str| {
            let value = holder.and_then(|holder| holder.get(name));
            value.is_some_and(|value| !value.is_null())
        };
        // A request for another authentication method does not restore the secrets of the old one.
        if is_named(field) || (field == "password" && is_named("user")) {
            keep_secret(stored, &mut given, "/credentials", field);
        }
    }
    given
}

/// Connection options with the credentials; `None` if the text of a credentials file cannot be
/// read.
fn options_of(login: Login<'_>) -> Option<ConnectOptions> {
    let options = ConnectOptions::new();
    Some(match login {
        Login::None => options,
        Login::Token(token) => options.token(token.to_owned()),
        Login::User(user, password) => {
            options.user_and_password(user.to_owned(), password.to_owned())
        }
        Login::Nkey(seed) => {
            let seed = seed.trim();
            // The library validates a seed only when it uses it.
            let is_seed = seed.starts_with("SU")
                && seed.len() == 58
                && seed
                    .bytes()
                    .all(|byte| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte));
            is_seed.then(|| options.nkey(seed.to_owned()))?
        }
        Login::Creds(creds) => {
            (creds.len() <= 16 << 10).then(|| options.credentials(creds).ok())??
        }
    })
}

fn open(
    stored: &Value,
    context: &TargetContext,
    ids: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let prefix = config.subject_prefix.as_deref().unwrap_or(PREFIX);
    let credentials = config.credentials.clone().unwrap_or_default();
    let secrets = [
        &credentials.token,
        &credentials.password,
        &credentials.nkey_seed,
        &credentials.creds,
    ];
    Ok(Arc::new(Nats {
        peers: peers(&config, context.settings())?,
        subject: format!("{prefix}.{}", ids.account),
        stream: config.stream.filter(|stream| !stream.is_empty()),
        secrets: secrets
            .into_iter()
            .flatten()
            .cloned()
            .map(Secret::new)
            .collect(),
        credentials,
        idle: Mutex::new(None),
        net: context.net().clone(),
    }))
}

struct Nats {
    peers: Vec<Peer>,
    /// Prefix of the subjects, up to the event type.
    subject: String,
    stream: Option<String>,
    credentials: Credentials,
    secrets: Vec<Secret>,
    /// An idle connection whose last publish succeeded. Taken out while in use.
    idle: Mutex<Option<Kept<Client>>>,
    net: Net,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl Target for Nats {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let mut idle = self.idle.lock().await;
            let is_connected = |kept: &Kept<Client>| {
                kept.connection.connection_state() == async_nats::connection::State::Connected
            };
            let kept = idle.take().filter(is_connected).map(Kept::again);
            let client = match kept.and_then(Result::ok) {
                Some(client) => client,
                None => match self.connect().await {
                    Ok(client) => Kept::opened(client),
                    Err(failure) => return Verdict::Failed(failure),
                },
            };
            let outcomes = self.publish(&client.connection, batch).await;
            if !outcomes
                .iter()
                .any(|outcome| matches!(outcome, Outcome::Failed(_)))
            {
                *idle = Some(client);
            }
            verdict_of_line(outcomes)
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Nats {
    async fn publish(&self, client: &Client, batch: &Batch) -> Vec<Outcome> {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ACK_DEADLINE);
        let at_once = match batch.class() {
            BatchClass::Audit => 1,
            BatchClass::Traffic => PIPELINE,
        };
        let deliveries: Vec<Delivery<'_>> = batch.deliveries().collect();
        let mut outcomes = Vec::with_capacity(deliveries.len());
        for window in deliveries.chunks(at_once) {
            let mut waiting = Vec::with_capacity(window.len());
            for delivery in window {
                waiting.push(self.start(client, &context, *delivery).await);
            }
            for started in waiting {
                let acknowledged = match started {
                    Ok(acknowledgement) => match acknowledgement.await {
                        Ok(_) => Ok(()),
                        Err(error) => Err(self.blame(&error)),
                    },
                    Err(failure) => Err(failure),
                };
                outcomes.push(match acknowledged {
                    Ok(()) => Outcome::Delivered,
                    Err(failure) => Outcome::Failed(failure),
                });
            }
            if outcomes.iter().any(is_stuck) {
                break;
            }
        }
        outcomes.resize(deliveries.len(), Outcome::NotTried);
        outcomes
    }

    async fn start(
        &self,
        client: &Client,
        context: &jetstream::Context,
        delivery: Delivery<'_>,
    ) -> Result<jetstream::context::PublishAckFuture, Failure> {
        let unfit = |code: &str, text: &str| Failure::new(FailureClass::Permanent, code, text);
        let kind = event_type(delivery.envelope)
            .ok_or_else(|| unfit("type", "the event type cannot be used in a subject"))?;
        let subject = format!("{}.{kind}", self.subject);
        // The limit includes headers, which take a few hundred bytes.
        if delivery.payload().len() + 1024 > client.max_payload() {
            return Err(unfit(
                "max_payload",
                "the event exceeds the server's maximum payload",
            ));
        }
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", delivery.idempotency_key().as_str());
        headers.insert("content-type", "application/json");
        if let Some(stream) = &self.stream {
            headers.insert("Nats-Expected-Stream", stream.as_str());
        }
        let payload = Bytes::copy_from_slice(delivery.payload());
        let publishing = context.publish_with_headers(subject, headers, payload);
        publishing.await.map_err(|error| self.blame(&error))
    }

    /// Connects to the first server that accepts the credentials. Addresses are resolved and
    /// checked here; other servers that the cluster announces are ignored.
    async fn connect(&self) -> Result<Client, Failure> {
        let mut last = Failure::new(
            FailureClass::Config,
            "urls",
            "no server address is available",
        );
        for peer in &self.peers {
            let addresses = match self.net.addresses(&peer.host, peer.port).await {
                Ok(addresses) => addresses,
                Err(failure) => {
                    last = failure;
                    continue;
                }
            };
            for address in addresses {
                let login = self.credentials.login().unwrap_or(Login::None);
                let Some(mut options) = options_of(login) else {
                    return Err(Failure::new(
                        FailureClass::Auth,
                        "credentials",
                        "the stored credentials are invalid",
                    ));
                };
                options = options
                    .name("culvert")
                    .connection_timeout(CONNECT_DEADLINE)
                    .ignore_discovered_servers()
                    .max_reconnects(1);
                if let (true, Some(name)) = (peer.is_tls, peer.server_name()) {
                    options = options
                        .require_tls(true)
                        .tls_client_config(self.net.tls_verified_for(name).await?);
                }
                match options.connect(format!("nats://{address}")).await {
                    Ok(client) => return Ok(client),
                    Err(error) => {
                        let class = match error.kind() {
                            ConnectErrorKind::Authentication
                            | ConnectErrorKind::AuthorizationViolation => FailureClass::Auth,
                            ConnectErrorKind::Tls => FailureClass::Config,
                            _ => FailureClass::Retryable,
                        };
                        last = Failure::new(class, "connection", error.kind().to_string());
                    }
                }
            }
        }
        Err(last)
    }

    fn blame(&self, error: &PublishError) -> Failure {
        let said = error
            .source()
            .and_then(|cause| cause.downcast_ref::<jetstream::Error>());
        let (class, code) = match (error.kind(), said) {
            (_, Some(said)) => {
                let code = said.error_code();
                let class = match code {
                    ErrorCode::STREAM_NOT_MATCH => FailureClass::Config,
                    ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM
                    | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => FailureClass::Permanent,
                    _ => FailureClass::Retryable,
                };
                (class, code.0.to_string())
            }
            (PublishErrorKind::StreamNotFound, _) => (FailureClass::Config, "503".to_owned()),
            (PublishErrorKind::MaxPayloadExceeded, _) => {
                (FailureClass::Permanent, "max_payload".to_owned())
            }
            // The message id makes a repetition harmless.
            (PublishErrorKind::TimedOut, _) => (FailureClass::Unknown, "timeout".to_owned()),
            _ => (FailureClass::Retryable, "publish".to_owned()),
        };
        let secrets: Vec<&str> = self.secrets.iter().map(Secret::reveal).collect();
        Failure::new(class, code, scrub(&error.to_string(), &secrets))
    }
}

#[cfg(test)]
mod tests;
