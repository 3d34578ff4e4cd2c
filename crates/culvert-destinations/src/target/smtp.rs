//! `smtp`: events as mail, over SMTP (RFC 5321) with TLS or STARTTLS (RFC 8314, RFC 3207).
//!
//! A mail has the events of a batch: a sentence for each, and the events as an attached file with a line of JSON for each.
//! An alert has its own mail. The commands and the message are those of the library `lettre`. It gets connections that
//! were made here, and never opens one.
//!
//! If a server refuses one recipient, no mail is sent: the recipients are settings, so the destination waits for its
//! owner, and no event is lost. The `Message-ID` is that of the events, so a mail that is sent again can be recognised.

mod connection;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, Message as Mail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::{Host, Url};

use culvert_base::sync::lock;
use culvert_base::{BoxFuture, Entropy, Refusal, Secret, Timestamp};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::Net;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::tls_client::{Peer, Scheme};
use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::http_intake::{check_text, given};
use crate::target::message::Message;
use crate::target::message_pieces::{SendsPieces, send_pieces};
use crate::target::smtp::connection::{Connector, Sending};
use crate::target::troubles::{NotAccepted, Troubles};

const NAME: &str = "smtp";
const RECIPIENTS_MAX: usize = 20;
/// Maximum bytes of an address (RFC 5321, 4.5.3.1.3, without the brackets).
const ADDRESS_BYTES_MAX: usize = 254;
/// Time limit of the mails of a batch, which is that of a delivery less the time to note it. Servers look into a mail before
/// they accept it, and one that is given up then may be delivered twice: RFC 5321, 4.5.3.2.6 wants ten minutes.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(28);
const SUBJECT_BYTES_MAX: usize = 100;
const SECRET_BYTES_MAX: usize = 512;
const SUBJECT: &str = "culvert";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends events as mail through an SMTP server, alerts each with its own subject.",
    limits: BatchLimits {
        events_max: 100,
        bytes_max: 512 << 10,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        // A password belongs to a user.
        if given.get("username") == stored.get("username") {
            keep_secret(stored, &mut given, "", "password");
        }
        given
    },
    redact: |stored| hide(stored, "/password", Value::Null),
    open,
};

/// Configuration of the `smtp` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SmtpTarget")]
struct Config {
    /// Host name or address of the server, whose certificate is verified.
    host: String,
    /// Port. Default: 465 with `tls`, 587 with `starttls`, 25 with `none`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    port: Option<u16>,
    /// `tls` (default), `starttls`, which is required of the server, or `none`, which needs a server that allows plain
    /// connections and excludes a password.
    #[serde(default)]
    security: Option<Security>,
    /// User for authentication.
    #[serde(default)]
    username: Option<String>,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Address of the sender, such as `culvert@example.com`.
    from: String,
    /// Addresses of 1 to 20 recipients. If the server refuses one of them, no mail is sent.
    #[schemars(length(min = 1, max = 20))]
    to: Vec<String>,
    /// First words of the subject. Default: `culvert`.
    #[serde(default)]
    subject: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "SmtpTargetSecurity")]
enum Security {
    #[default]
    Tls,
    Starttls,
    None,
}

impl Security {
    /// The usual ports (RFC 8314, 7.3 and 3.3; RFC 5321, 4.5.4.2).
    const fn port(self) -> u16 {
        match self {
            Self::Tls => 465,
            Self::Starttls => 587,
            Self::None => 25,
        }
    }
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, value)?;
    config.security.get_or_insert_default();
    peer(&config, settings)?;
    address("from", &config.from)?;
    if !(1..=RECIPIENTS_MAX).contains(&config.to.len()) {
        return Err(invalid(NAME, "`to` must have 1 to 20 addresses"));
    }
    for to in &config.to {
        address("to", to)?;
    }
    check_text(NAME, "subject", given(&config.subject), SUBJECT_BYTES_MAX)?;
    for (field, text) in [
        ("username", &config.username),
        ("password", &config.password),
    ] {
        check_text(NAME, field, given(text), SECRET_BYTES_MAX)?;
    }
    match (given(&config.username), given(&config.password)) {
        (None, None) => {}
        (Some(_), Some(_)) if config.security == Some(Security::None) => {
            let why = "a password requires `security` to be `tls` or `starttls`";
            return Err(invalid(NAME, why));
        }
        (Some(_), Some(_)) => {}
        _ => {
            let why = "`username` and `password` require each other";
            return Err(invalid(NAME, why));
        }
    }
    Ok(stored(&config))
}

fn peer(config: &Config, settings: &TargetSettings) -> Result<Peer, Refusal> {
    let wrong =
        |why: &dyn std::fmt::Display| invalid(NAME, format_args!("the server is invalid: {why}"));
    let security = config.security.unwrap_or_default();
    let port = config.port.unwrap_or(security.port());
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let host = config.host.as_str();
    let host = match host.parse() {
        Ok(std::net::IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    };
    let is_named = host.bytes().all(is_host) && (!host.contains(':') || host.starts_with('['));
    if !is_named {
        return Err(wrong(&"`host` must be a host name or an address"));
    }
    let is_tls = security != Security::None;
    if !is_tls && !settings.rules.allow_plain_http {
        return Err(wrong(
            &"`security` must not be `none` unless `destinations.allow_plain_http` is set",
        ));
    }
    let scheme = Scheme { name: "smtp", port };
    let url = format!("smtp://{host}:{port}");
    Peer::parse(&url, &[scheme], is_tls, &settings.rules).map_err(|why| wrong(&why))
}

/// Checks an address: ASCII, without quotes, comments or spaces, so no part of it can be a header or a command.
fn address(field: &str, text: &str) -> Result<Address, Refusal> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"(),:;<>\\".contains(&byte);
    let is_plain = text.len() <= ADDRESS_BYTES_MAX && text.bytes().all(is_plain);
    let parsed = is_plain.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| {
        let why = format_args!("`{field}` must be a mail address such as `name@example.com`");
        invalid(NAME, why)
    })
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    Ok(Arc::new(smtp(stored, context)?))
}

fn smtp(stored: &Value, context: &TargetContext) -> Result<Smtp, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let security = config.security.unwrap_or_default();
    let (user, password) = (
        config.username.clone().unwrap_or_default(),
        config.password.clone().unwrap_or_default(),
    );
    // The forms in which a server could quote it.
    let forms = [
        password.clone(),
        STANDARD.encode(&password),
        STANDARD.encode(format!("\0{user}\0{password}")),
    ];
    let has_password = !password.is_empty();
    let recipients = config.to.iter().map(|to| address("to", to));
    Ok(Smtp {
        connector: Connector {
            peer: peer(&config, context.settings())?,
            is_starttls: security == Security::Starttls,
            hello: hello(&context.settings().public_base),
            credentials: has_password.then(|| Credentials::new(user, password)),
            secrets: forms
                .into_iter()
                .filter(|form| !form.is_empty())
                .map(Secret::new)
                .collect(),
            net: context.net().clone(),
        },
        from: address("from", &config.from)?,
        to: recipients.collect::<Result<_, _>>()?,
        subject: given(&config.subject).unwrap_or(SUBJECT).to_owned(),
        public_base: context.settings().public_base.clone(),
        net: context.net().clone(),
        troubles: std::sync::Mutex::default(),
    })
}

/// The name of this server in greetings: that of the API.
fn hello(public_base: &str) -> ClientId {
    let url = Url::parse(public_base).ok();
    match url.as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => ClientId::Domain(name.to_owned()),
        Some(Host::Ipv4(address)) => ClientId::Ipv4(address),
        Some(Host::Ipv6(address)) => ClientId::Ipv6(address),
        None => ClientId::default(),
    }
}

struct Smtp {
    connector: Connector,
    from: Address,
    to: Vec<Address>,
    subject: String,
    public_base: String,
    net: Net,
    troubles: std::sync::Mutex<Troubles>,
}

impl std::fmt::Debug for Smtp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Smtp").finish_non_exhaustive()
    }
}

impl Target for Smtp {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let letters: Vec<_> = batch
                .deliveries()
                .map(|delivery| Letter {
                    delivery,
                    message: Message::of(delivery, &self.public_base),
                })
                .collect();
            // Alerts first, each in its own mail.
            let is_alert = |at: &usize| letters.get(*at).is_some_and(Letter::is_alert);
            let (alerts, others): (Vec<_>, Vec<_>) = (0..letters.len()).partition(is_alert);
            let mut pieces: Vec<_> = alerts.into_iter().map(|at| vec![at]).collect();
            if !others.is_empty() {
                pieces.push(others);
            }
            let post = Post {
                smtp: self,
                letters: &letters,
                until: Instant::now() + ACCEPTED_WITHIN,
                connection: Mutex::new(None),
            };
            let sent = send_pieces(&post, letters.len(), pieces).await;
            if let Some(connection) = post.connection.into_inner() {
                self.connector.close(connection).await;
            }
            sent
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

/// An event and its message.
struct Letter<'a> {
    delivery: Delivery<'a>,
    message: Message,
}

impl Letter<'_> {
    fn is_alert(&self) -> bool {
        self.message.alert.is_some()
    }
}

/// The mails of one batch, over one connection.
struct Post<'a> {
    smtp: &'a Smtp,
    letters: &'a [Letter<'a>],
    until: Instant,
    connection: Mutex<Option<AsyncSmtpConnection>>,
}

impl SendsPieces for Post<'_> {
    fn key(&self, at: usize) -> String {
        let letter = self.letters.get(at);
        letter.map_or_else(String::new, |one| one.delivery.idempotency_key())
    }

    fn send_piece<'a>(&'a self, events: &'a [usize]) -> BoxFuture<'a, Result<(), NotAccepted>> {
        Box::pin(async move {
            let letters: Vec<_> = events
                .iter()
                .filter_map(|at| self.letters.get(*at))
                .collect();
            let id = self.smtp.message_id(&letters);
            let mail = self.smtp.mail(&id, &letters)?;
            let mut kept = self.connection.lock().await;
            let connector = &self.smtp.connector;
            let is_begun = AtomicBool::new(false);
            let mail = Sending {
                from: &self.smtp.from,
                to: &self.smtp.to,
                mail: &mail,
                until: self.until,
                is_begun: &is_begun,
            };
            let (connection, sent) = connector.send(kept.take(), mail).await;
            *kept = connection;
            let keys = letters.iter().map(|one| one.delivery.idempotency_key());
            let keys: Vec<String> = keys.collect();
            let mut troubles = lock(&self.smtp.troubles);
            match sent {
                Ok(()) => {
                    troubles.settle(&keys);
                    Ok(())
                }
                Err(failure) if failure.class == FailureClass::Unknown => {
                    Err(troubles.unconfirmed(&keys, failure))
                }
                Err(failure) if is_begun.into_inner() && is_put_off(&failure) => {
                    Err(troubles.put_off(&keys, failure, self.smtp.net.now()))
                }
                Err(failure) => Err(failure.into()),
            }
        })
    }
}

impl Smtp {
    /// The Message-ID of the mail about some events, the same in each repetition.
    fn message_id(&self, letters: &[&Letter<'_>]) -> String {
        let mut hash = Sha256::new();
        for letter in letters {
            hash.update(letter.delivery.idempotency_key());
            hash.update(b"\n");
        }
        let id = hex(&hash.finalize()[..16]);
        format!("<{id}@{}>", self.from.domain())
    }

    /// The mail about some events.
    fn mail(&self, id: &str, letters: &[&Letter<'_>]) -> Result<Vec<u8>, Failure> {
        let unfit = |_| {
            let text = "the events cannot be written as a mail";
            Failure::new(FailureClass::Permanent, "mail", text)
        };
        let mut text = String::new();
        let mut lines = Vec::new();
        for letter in letters {
            text.push_str(&paragraph(&letter.message));
            lines.extend_from_slice(letter.delivery.payload());
            lines.push(b'\n');
        }
        let subject = match letters {
            [only] => format!("{}: {}", self.subject, only.message.title),
            _ => format!("{}: {} events", self.subject, letters.len()),
        };
        let mut mail = Mail::builder()
            .from(Mailbox::new(None, self.from.clone()))
            .subject(subject)
            .message_id(Some(id.to_owned()))
            .date(system_time(self.net.now()));
        for to in &self.to {
            mail = mail.to(Mailbox::new(None, to.clone()));
        }
        let of_lines = ContentType::parse("application/x-ndjson")
            .map_err(|_| ())
            .map_err(unfit)?;
        let attached = Attachment::new("events.ndjson".to_owned()).body(lines, of_lines);
        let parts = MultiPart::mixed()
            .singlepart(SinglePart::plain(text))
            .singlepart(attached);
        let mut mail = mail.multipart(parts).map_err(|_| ()).map_err(unfit)?;
        // So that no absence note responds to it (RFC 3834, section 5).
        mail.headers_mut().insert_raw(HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        ));
        Ok(mail.formatted())
    }
}

/// Whether the server puts off the mail, and not all mails: it shuts down (421), or its disk is full (452 without the code of
/// a full mailbox; RFC 5321, 4.2.3, and RFC 3463, 3.3).
fn is_put_off(failure: &Failure) -> bool {
    let is_about_server = match &*failure.code {
        "421" => true,
        "452" => !failure.text.contains("4.2.2"),
        _ => false,
    };
    failure.class == FailureClass::Retryable && !is_about_server
}

/// The part of the text about one event.
fn paragraph(message: &Message) -> String {
    let mut text = match &message.alert {
        Some(_) => format!("{}\r\n", message.title),
        None => format!("{}\r\n", message.text),
    };
    for (name, value) in &message.fields {
        text.push_str(&format!("  {name}: {value}\r\n"));
    }
    if let Some(link) = &message.link {
        text.push_str(&format!("  {link}\r\n"));
    }
    text.push_str("\r\n");
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn system_time(at: Timestamp) -> SystemTime {
    let millis = u64::try_from(at.unix_millis()).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(millis)
}

#[cfg(test)]
mod tests;
