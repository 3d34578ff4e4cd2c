//! `syslog`: events as messages of RFC 5424, over TLS with octet counting (RFC 5425).
//!
//! The protocol has no acknowledgement. After a batch of audit events the connection is closed for writing, and the receiver
//! closes it when it has read everything; if it closes or resets it before, the batch is sent again. Traffic
//! events share a connection: those that a receiver has not read when it breaks are lost. What a receiver reads and then
//! drops is not noticed at all.

use std::fmt::Write;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::sync::Mutex;

use culvert_base::batch::BatchClass;
use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_events::{EventSeverity, severity_of};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{Net, blame};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::kept::Kept;
use crate::client::tls_client::{Duplex, Peer, Scheme};
use crate::config::{invalid, parse, stored};
use crate::target::envelope::{event_time, event_type};
use crate::target::http_intake::given;

const NAME: &str = "syslog";
const TLS: Scheme = Scheme {
    name: "tls",
    port: 6514,
};
const PLAIN: Scheme = Scheme {
    name: "tcp",
    port: 601,
};
const APP_NAME: &str = "culvert";
/// The number for documentation (RFC 5612), for installations without one of their own.
const ENTERPRISE: u32 = 32_473;
/// Lengths of fields (RFC 5424, 6).
const HOSTNAME_MAX: usize = 255;
const APP_NAME_MAX: usize = 48;
const MSGID_MAX: usize = 32;
/// Facilities "log audit" and "local use 0" (RFC 5424, 6.2.1).
const AUDIT: u8 = 13;
const TRAFFIC: u8 = 16;
const FACILITY_MAX: u8 = 23;
const WRITE_DEADLINE: Duration = Duration::from_secs(15);
/// How long the receiver may take to close a connection whose end it has read.
const CLOSE_FOR: Duration = Duration::from_secs(5);

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to a syslog server as a message of RFC 5424 over TLS.",
    limits: BatchLimits::DEFAULT,
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |_, given| given,
    redact: Value::clone,
    open,
};

/// Configuration of the `syslog` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SyslogTarget")]
struct Config {
    /// Server: `tls://<host>:<port>`, with the default port 6514. The certificate is verified. `tcp://` requires a server that
    /// allows plain connections.
    url: String,
    /// Application name of the messages. Default: `culvert`.
    #[serde(default)]
    app_name: Option<String>,
    /// Facility of all messages, 0 to 23. Default: 13 (log audit) for audit events, 16 (local use 0) for traffic events.
    #[serde(default)]
    #[schemars(range(max = 23))]
    facility: Option<u8>,
    /// Private enterprise number in the name of the structured data, `culvert@<number>`. Default: 32473.
    #[serde(default)]
    enterprise_id: Option<u32>,
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    peer(&config.url, settings)?;
    let is_name =
        |name: &str| name.len() <= APP_NAME_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    if !given(&config.app_name).is_none_or(is_name) {
        return Err(invalid(
            NAME,
            "`app_name` must be at most 48 visible ASCII characters",
        ));
    }
    if config
        .facility
        .is_some_and(|facility| facility > FACILITY_MAX)
    {
        return Err(invalid(NAME, "`facility` must be between 0 and 23"));
    }
    Ok(stored(&config))
}

fn peer(url: &str, settings: &TargetSettings) -> Result<Peer, Refusal> {
    let is_tls = !url.starts_with("tcp://");
    let scheme = if is_tls { TLS } else { PLAIN };
    let peer = Peer::parse(url, &[scheme], is_tls, &settings.rules);
    let peer = peer.and_then(|peer| match peer.path.is_empty() {
        true => Ok(peer),
        false => Err("it must not have a path".to_owned()),
    });
    peer.map_err(|why| invalid(NAME, format_args!("`url` is invalid: {why}")))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    Ok(Arc::new(Syslog {
        peer: peer(&config.url, context.settings())?,
        hostname: word(&context.settings().node, HOSTNAME_MAX),
        app_name: word(given(&config.app_name).unwrap_or(APP_NAME), APP_NAME_MAX),
        facility: config.facility,
        enterprise: config.enterprise_id.unwrap_or(ENTERPRISE),
        idle: Mutex::new(None),
        net: context.net().clone(),
    }))
}

/// A word of a header: visible ASCII, `-` if empty.
fn word(text: &str, max: usize) -> String {
    let visible = text.chars().filter(char::is_ascii_graphic);
    let word: String = visible.take(max).collect();
    match word.is_empty() {
        true => "-".to_owned(),
        false => word,
    }
}

struct Syslog {
    peer: Peer,
    hostname: String,
    app_name: String,
    facility: Option<u8>,
    enterprise: u32,
    /// A connection for traffic events. Taken out while in use.
    idle: Mutex<Option<Kept<Box<dyn Duplex>>>>,
    net: Net,
}

impl std::fmt::Debug for Syslog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Syslog").finish_non_exhaustive()
    }
}

impl Target for Syslog {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let frames = self.frames(batch);
            let sent = match batch.class() {
                BatchClass::Audit => self.send_and_close(&frames).await,
                BatchClass::Traffic => self.send_and_keep(&frames).await,
            };
            sent.map_or_else(Verdict::Failed, |()| Verdict::Delivered)
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Syslog {
    /// The messages, each after its length.
    fn frames(&self, batch: &Batch) -> Vec<u8> {
        let mut frames = Vec::with_capacity(batch.lines().len() * 2);
        for delivery in batch.deliveries() {
            let head = self.head(batch.class(), delivery);
            let event = delivery.payload();
            let length = head.len() + event.len();
            frames.extend_from_slice(format!("{length} {head}").as_bytes());
            frames.extend_from_slice(event);
        }
        frames
    }

    /// Header and structured data of an event, with the space before the message.
    fn head(&self, class: BatchClass, delivery: Delivery<'_>) -> String {
        let kind = event_type(delivery.envelope).unwrap_or("event");
        let facility = self.facility.unwrap_or(match class {
            BatchClass::Audit => AUDIT,
            BatchClass::Traffic => TRAFFIC,
        });
        let at = event_time(delivery.envelope).unwrap_or_else(|| self.net.now());
        let mut head = format!(
            "<{}>1 {} {} {} - {} [culvert@{}",
            u16::from(facility) * 8 + u16::from(severity(kind)),
            at.to_millis_text(),
            self.hostname,
            self.app_name,
            word(kind, MSGID_MAX),
            self.enterprise,
        );
        for (name, value) in [
            ("event_id", delivery.event_id),
            ("event_type", kind),
            ("subscription_id", delivery.subscription),
        ] {
            // Three characters are escaped (RFC 5424, 6.3.3).
            let value = value.replace('\\', "\\\\");
            let value = value.replace('"', "\\\"").replace(']', "\\]");
            write!(head, " {name}=\"{value}\"").expect("a text takes every write");
        }
        head.push_str("] ");
        head
    }

    async fn send_and_keep(&self, frames: &[u8]) -> Result<(), Failure> {
        let mut idle = self.idle.lock().await;
        let kept = match idle.take().map(Kept::again) {
            Some(Ok(mut kept)) => is_open(&mut kept.connection).await.then_some(kept),
            Some(Err(mut old)) => {
                close(&mut old).await.ok();
                None
            }
            None => None,
        };
        let mut kept = match kept {
            Some(kept) => kept,
            None => Kept::opened(self.peer.connect(&self.net).await?),
        };
        write(&mut kept.connection, frames).await?;
        *idle = Some(kept);
        Ok(())
    }

    async fn send_and_close(&self, frames: &[u8]) -> Result<(), Failure> {
        let mut connection = self.peer.connect(&self.net).await?;
        write(&mut connection, frames).await?;
        close(&mut connection).await
    }
}

/// The severity of a kind (RFC 5424, 6.2.1).
fn severity(kind: &str) -> u8 {
    match severity_of(kind) {
        EventSeverity::High => 3,
        EventSeverity::Medium => 4,
        EventSeverity::Low => 5,
        EventSeverity::Informational => 6,
    }
}

async fn write(connection: &mut Box<dyn Duplex>, frames: &[u8]) -> Result<(), Failure> {
    let writing = async {
        connection.write_all(frames).await?;
        connection.flush().await
    };
    match tokio::time::timeout(WRITE_DEADLINE, writing).await {
        Ok(written) => written.map_err(|error| blame(&error, false)),
        Err(_) => {
            let text = "the server did not take the messages in time";
            Err(Failure::new(FailureClass::Unknown, "timeout", text))
        }
    }
}

/// Closes a connection for writing, and waits until the receiver has read its end. One that closes its side before, or does
/// not close it in time (RFC 5425, 4.4), may not have read the messages.
async fn close(connection: &mut Box<dyn Duplex>) -> Result<(), Failure> {
    if !is_open(connection).await {
        let text = "the server closed the connection before the end of the messages";
        return Err(Failure::new(FailureClass::Unknown, "closed", text));
    }
    let closing = async {
        connection.shutdown().await?;
        let mut rest = [0; 64];
        while connection.read(&mut rest).await? > 0 {}
        Ok(())
    };
    match tokio::time::timeout(CLOSE_FOR, closing).await {
        // rsyslog with GnuTLS closes without the closure alert of TLS.
        Ok(Err(error)) if std::io::Error::kind(&error) == std::io::ErrorKind::UnexpectedEof => {
            Ok(())
        }
        Ok(closed) => closed.map_err(|error| blame(&error, false)),
        Err(_) => {
            let text = "the server did not close the connection after the last message";
            Err(Failure::new(FailureClass::Unknown, "timeout", text))
        }
    }
}

/// Whether the receiver has neither closed nor broken a connection. It has nothing to say on one.
async fn is_open(connection: &mut Box<dyn Duplex>) -> bool {
    let mut byte = [0];
    poll_fn(|cx| {
        let mut byte = ReadBuf::new(&mut byte);
        let read = Pin::new(&mut *connection).poll_read(cx, &mut byte);
        Poll::Ready(read.is_pending())
    })
    .await
}

#[cfg(test)]
mod tests;
