//! `postgres`: events as rows of a PostgreSQL table.
//!
//! A batch is one statement, so it is stored as a whole or not at all. A row that already exists
//! for the same event and subscription is unchanged. Rows:
//!
//! ```sql
//! event_id text, subscription_id text, event_type text, event_timestamp timestamptz,
//! account_id text, principal jsonb, object jsonb, PRIMARY KEY (event_id, subscription_id)
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Statement};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass, scrub, vendor_code};
use culvert_target::net::Net;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::kept::{CLOSE_DEADLINE, Kept};
use crate::client::tls_client::{Peer, Scheme};
use crate::config::{hide, invalid, keep_secret, parse, stored};

const NAME: &str = "postgres";
const TABLE: &str = "culvert_events";
const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "postgres",
        port: 5432,
    },
    Scheme {
        name: "postgresql",
        port: 5432,
    },
];
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Inserts each event as a row into a PostgreSQL table.",
    limits: BatchLimits {
        events_max: 1000,
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

/// Configuration of the `postgres` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PostgresTarget")]
struct Config {
    /// Database URL without user and password: `postgres://<host>:<port>/<database>`.
    url: String,
    /// Whether the connection uses TLS with certificate verification. Default: `true`. `false`
    /// requires a server that allows plain connections.
    #[serde(default)]
    tls: Option<bool>,
    /// The user.
    user: String,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Table name with an optional schema. Default: `culvert_events`.
    #[serde(default)]
    table: Option<String>,
    /// Whether to create a missing table. Default: `true`.
    #[serde(default)]
    create_table: Option<bool>,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    peer(&config, settings)?;
    let password = config.password.as_deref().unwrap_or_default();
    for (name, text) in [("user", config.user.as_str()), ("password", password)] {
        if text.len() > 512 || text.contains('\0') || (name == "user" && text.is_empty()) {
            return Err(invalid(
                NAME,
                format_args!("`{name}` must be at most 512 bytes"),
            ));
        }
    }
    quoted(config.table.get_or_insert_with(|| TABLE.to_owned())).ok_or_else(|| {
        invalid(
            NAME,
            "`table` must be a name of letters, digits and `_`, with an optional schema",
        )
    })?;
    config.tls.get_or_insert(true);
    config.create_table.get_or_insert(true);
    Ok(stored(&config))
}

fn peer(config: &Config, settings: &TargetSettings) -> Result<Peer, Refusal> {
    let refused = |why: &str| invalid(NAME, format_args!("`url` is invalid: {why}"));
    let peer = Peer::parse(
        &config.url,
        SCHEMES,
        config.tls.unwrap_or(true),
        &settings.rules,
    )
    .map_err(|why| refused(&why))?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if peer.path.is_empty() || peer.path.len() > 63 || !peer.path.chars().all(is_name) {
        return Err(refused("its path must be the database name"));
    }
    Ok(peer)
}

/// A table name, quoted for SQL.
fn quoted(table: &str) -> Option<String> {
    let parts: Vec<&str> = table.split('.').collect();
    let is_name = |part: &&str| {
        (1..=63).contains(&part.len())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !part.starts_with(|c: char| c.is_ascii_digit())
    };
    let quoted: Vec<String> = parts.iter().map(|part| format!("\"{part}\"")).collect();
    (parts.len() <= 2 && parts.iter().all(is_name)).then(|| quoted.join("."))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let table = quoted(config.table.as_deref().unwrap_or(TABLE))
        .ok_or_else(|| invalid(NAME, "`table` is not a valid name"))?;
    Ok(Arc::new(Postgres {
        peer: peer(&config, context.settings())?,
        user: config.user,
        password: Secret::new(config.password.unwrap_or_default()),
        table,
        creates: config.create_table.unwrap_or(true),
        idle: Mutex::new(None),
        net: context.net().clone(),
    }))
}

struct Postgres {
    peer: Peer,
    user: String,
    password: Secret,
    table: String,
    creates: bool,
    /// An idle connection whose last insert succeeded. Taken out while in use.
    idle: Mutex<Option<Kept<OpenConnection>>>,
    net: Net,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

struct OpenConnection {
    client: Client,
    insert: Statement,
    /// The task that drives the connection. It ends when this is dropped.
    driver: JoinSet<()>,
}

impl OpenConnection {
    /// Ends the session as the protocol says, so that the database logs no lost connection.
    async fn close(self) {
        let Self {
            client, mut driver, ..
        } = self;
        drop(client);
        drop(tokio::time::timeout(CLOSE_DEADLINE, driver.join_next()).await);
    }
}

impl Target for Postgres {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.insert(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Postgres {
    async fn insert(&self, batch: &Batch) -> Result<(), Failure> {
        let mut idle = self.idle.lock().await;
        let is_open = |kept: &Kept<OpenConnection>| !kept.connection.client.is_closed();
        let kept = match idle.take().filter(is_open).map(Kept::again) {
            Some(Ok(kept)) => Some(kept),
            Some(Err(old)) => {
                old.close().await;
                None
            }
            None => None,
        };
        let kept = match kept {
            Some(kept) => kept,
            None => tokio::time::timeout(CONNECT_DEADLINE, self.connect())
                .await
                .map_err(|_| {
                    let text = "authentication with the database took longer than 10 s";
                    Failure::new(FailureClass::Retryable, "timeout", text)
                })?
                .map(Kept::opened)?,
        };
        let lines: Vec<&str> = batch
            .deliveries()
            .map(|delivery| std::str::from_utf8(delivery.envelope))
            .collect::<Result<_, _>>()
            .map_err(|_| {
                Failure::new(
                    FailureClass::Permanent,
                    "text",
                    "an event is not valid UTF-8",
                )
            })?;
        let formatted: Vec<Option<&str>> = batch
            .deliveries()
            .map(|delivery| std::str::from_utf8(delivery.formatted?).ok())
            .collect();
        let subscriptions: Vec<&str> = batch
            .deliveries()
            .map(|delivery| &**delivery.subscription)
            .collect();
        let live = &kept.connection;
        let inserted = live
            .client
            .execute(&live.insert, &[&lines, &subscriptions, &formatted])
            .await;
        match inserted {
            Ok(_) => {
                *idle = Some(kept);
                Ok(())
            }
            Err(error) => Err(self.blame(&error, true)),
        }
    }

    async fn connect(&self) -> Result<OpenConnection, Failure> {
        let stream = self.net.dial(&self.peer.host, self.peer.port).await?;
        let mut config = tokio_postgres::Config::new();
        config
            .user(&self.user)
            .dbname(&self.peer.path)
            .application_name("culvert")
            // Statements end before the send times out.
            .options("-c statement_timeout=25000");
        if !self.password.is_empty() {
            config.password(self.password.reveal());
        }
        config.ssl_mode(match self.peer.is_tls {
            true => SslMode::Require,
            false => SslMode::Disable,
        });
        let tls = match (self.peer.is_tls, self.peer.server_name()) {
            (true, Some(name)) => Some((self.net.tls_without_alpn().await?, name)),
            _ => None,
        };
        let (client, connection) = config
            .connect_raw(stream, Tls(tls))
            .await
            .map_err(|error| self.blame(&error, false))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The next statement reports how the connection ended.
            drop(connection.await);
        });
        let table = &self.table;
        if self.creates {
            let create = format!(
                "CREATE TABLE IF NOT EXISTS {table} (event_id text NOT NULL, subscription_id text NOT NULL, \
                 event_type text NOT NULL, event_timestamp timestamptz NOT NULL, account_id text NOT NULL, \
                 principal jsonb, object jsonb NOT NULL, PRIMARY KEY (event_id, subscription_id))"
            );
            match client.batch_execute(&create).await {
                Ok(()) => {}
                // Two connections created the table at the same time; this one gets the error.
                Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
                Err(error) => return Err(self.blame(&error, false)),
            }
        }
        let insert = format!(
            "INSERT INTO {table} (event_id, subscription_id, event_type, event_timestamp, account_id, principal, object) \
             SELECT line->>'event_id', subscription, line->>'event_type', (line->>'event_timestamp')::timestamptz, \
             line->>'account_id', nullif(line->'principal', 'null'), coalesce(formatted, line->'object') \
             FROM (SELECT l::jsonb AS line, s AS subscription, f::jsonb AS formatted \
             FROM unnest($1::text[], $2::text[], $3::text[]) AS u(l, s, f)) AS given \
             ON CONFLICT DO NOTHING"
        );
        let insert = client
            .prepare(&insert)
            .await
            .map_err(|error| self.blame(&error, false))?;
        Ok(OpenConnection {
            client,
            insert,
            driver,
        })
    }

    fn blame(&self, error: &tokio_postgres::Error, was_sent: bool) -> Failure {
        let Some(said) = error.as_db_error() else {
            // Inserting the same rows again changes nothing, so a repeated insert is harmless.
            let class = match was_sent {
                true => FailureClass::Unknown,
                false => FailureClass::Retryable,
            };
            return Failure::new(class, "connection", "the connection to the database failed");
        };
        let text = scrub(said.message(), &[self.password.reveal()]);
        let code = vendor_code(said.code().code(), &[self.password.reveal()]);
        let code = code.unwrap_or_else(|| "database".to_owned());
        Failure::new(class_of(said.code()), code, text)
    }
}

/// The failure class of an error code, by its SQLSTATE class (PostgreSQL, appendix A).
fn class_of(code: &SqlState) -> FailureClass {
    let code = code.code();
    match code.get(..2).unwrap_or_default() {
        "28" => FailureClass::Auth,
        // A row that violates a constraint of the table, or a text that PostgreSQL rejects as JSON.
        "22" | "23" => FailureClass::Permanent,
        _ if code == "42501" => FailureClass::Auth,
        "3D" | "3F" | "42" => FailureClass::Config,
        _ => FailureClass::Retryable,
    }
}

/// Encrypts a connection with our TLS configuration; `None` leaves it in plain text.
struct Tls(
    Option<(
        Arc<rustls::ClientConfig>,
        rustls::pki_types::ServerName<'static>,
    )>,
);

impl TlsConnect<TcpStream> for Tls {
    type Stream = Secured;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Secured>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let (config, name) = self
                .0
                .ok_or_else(|| io::Error::other("TLS is disabled for this connection"))?;
            let secured = TlsConnector::from(config).connect(name, stream).await?;
            Ok(Secured(secured))
        })
    }
}

struct Secured(client::TlsStream<TcpStream>);

impl TlsStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
