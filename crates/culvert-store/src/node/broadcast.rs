//! Short messages between all processes on a PostgreSQL database.
//!
//! They are notifications of the database. Nothing is stored, so a process that is not connected
//! when a message is sent never gets it. A SQLite file has one process, so there is no channel.
//!
//! Any role that may connect to the database can send notifications, and one that monitors it sees the names of channels. So
//! each message has a code that authenticates it (HMAC-SHA-256, RFC 2104), with a key in the database. Others are ignored. A role
//! that reads the documents reads the key too, and a message that was seen can be sent again: receivers must bear that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use culvert_base::Fault;
use culvert_base::text::hex;
use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::database::dialect::{Arg, Site, While};
use crate::database::pool::Pool;
use crate::database::statements::{KEEP_ALIVE, TELL, meta};
use crate::store::Store;

/// Maximum size of a message in bytes, without its code. The database's limit is 8000.
pub(crate) const BYTES_MAX: usize = 7_900;
/// Characters of the code of a message: half of the hash, in hexadecimal.
const CODE_CHARS: usize = 32;
/// Time limit of a send. After it, the message and the connection are lost.
const TELL_WITHIN: Duration = Duration::from_secs(5);

/// A channel between all processes on a database, with its own connection.
pub struct Broadcast {
    listener: PgListener,
    channel: Channel,
    /// Whether a message was ignored.
    has_ignored: bool,
}

impl fmt::Debug for Broadcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broadcast")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// The channel of an installation for a topic.
#[derive(Clone)]
pub(crate) struct Channel {
    name: String,
    key: Arc<hmac::Key>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn new(name: String, key: &str) -> Self {
        let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()));
        Self { name, key }
    }

    /// Its name in the database.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A message with its code.
    pub(crate) fn sealed(&self, message: &str) -> String {
        let mut sealed = self.code(message);
        sealed.push_str(message);
        sealed
    }

    /// The message, if its code is right.
    pub(crate) fn opened<'m>(&self, sealed: &'m str) -> Option<&'m str> {
        let (code, message) = sealed.split_at_checked(CODE_CHARS)?;
        let is_right = verify_slices_are_equal(code.as_bytes(), self.code(message).as_bytes());
        is_right.is_ok().then_some(message)
    }

    fn code(&self, message: &str) -> String {
        let tag = hmac::sign(&self.key, message.as_bytes());
        let mut code = hex(tag.as_ref());
        code.truncate(CODE_CHARS);
        code
    }
}

/// The channel of an installation for a topic such as `commit`; `None` on SQLite, which has one process.
pub(crate) async fn channel(
    site: &Site,
    pool: &Pool,
    topic: &str,
) -> Result<Option<Channel>, Fault> {
    let doing = "naming a channel for notifications";
    let Site::Postgres(_) = site else {
        return Ok(None);
    };
    let random = async |name: &str| -> Result<String, Fault> {
        let row = pool
            .row(doing, meta::MAKE_RANDOM, &[Arg::Text(name)])
            .await?
            .ok_or_else(|| Fault::bare(format!("{doing}: the database returned no value")))?;
        row.get(0).during(doing)
    };
    // Installations of one database have channels of their own.
    let id = random(&format!("{topic}_channel")).await?;
    let key = random(&format!("{topic}_key")).await?;
    // Nodes of versions without codes have another one.
    let name = format!("culvert_{topic}_messages_{id}");
    Ok(Some(Channel::new(name, &key)))
}

impl Store {
    /// Opens the channel of this installation for a topic, in `snake_case`; `None` on SQLite.
    ///
    /// # Errors
    /// If the database is unreachable.
    pub async fn broadcast(&self, topic: &'static str) -> Result<Option<Broadcast>, Fault> {
        let database = &self.shared.database;
        // Time limit: a database that does not respond must not hold up the caller.
        let named = channel(&database.site, &database.pool, topic);
        let doing = "opening a channel to other nodes";
        let named = tokio::time::timeout(TELL_WITHIN, Box::pin(named)).await;
        match named.map_err(|late| Fault::new(doing, late))?? {
            Some(channel) => Broadcast::open(&database.site, &channel).await,
            None => Ok(None),
        }
    }
}

impl Broadcast {
    pub(crate) async fn open(site: &Site, channel: &Channel) -> Result<Option<Self>, Fault> {
        let doing = "listening for messages of other nodes";
        let Site::Postgres(schema) = site else {
            return Ok(None);
        };
        // Boxed, because connecting is rare and its futures are large.
        let open = async {
            // This pool is used for nothing else.
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .test_before_acquire(false)
                .connect_with(schema.options())
                .await?;
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.ignore_pool_close_event(true);
            // Messages may be missed while the connection is down, so its loss is an error here.
            listener.eager_reconnect(false);
            sqlx::raw_sql(KEEP_ALIVE).execute(&mut listener).await?;
            listener.listen(channel.name()).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        let opened = tokio::time::timeout(TELL_WITHIN, Box::pin(open)).await;
        let listener = opened
            .map_err(|late| Fault::new(doing, late))?
            .during(doing)?;
        Ok(Some(Self {
            listener,
            channel: channel.clone(),
            has_ignored: false,
        }))
    }

    /// Sends messages to all processes, including this one.
    ///
    /// # Errors
    /// If the database does not respond, or a message is too long.
    pub async fn send(&mut self, messages: &[String]) -> Result<(), Fault> {
        let doing = "sending messages to other nodes";
        if messages.iter().any(|message| message.len() > BYTES_MAX) {
            return Err(Fault::bare(format!("{doing}: a message is too long")));
        }
        let sealed: Vec<String> = messages
            .iter()
            .map(|message| self.channel.sealed(message))
            .collect();
        let query = sqlx::query(TELL).bind(self.channel.name()).bind(sealed);
        match tokio::time::timeout(TELL_WITHIN, query.execute(&mut self.listener)).await {
            Ok(emitted) => emitted.map(drop).during(doing),
            Err(late) => Err(Fault::new(doing, late)),
        }
    }

    /// Receives the next message. Cancel safe.
    ///
    /// # Errors
    /// If the connection is lost. Messages sent since then are lost.
    pub async fn receive(&mut self) -> Result<String, Fault> {
        let doing = "receiving messages of other nodes";
        loop {
            let received = self.listener.try_recv().await.during(doing)?;
            let received =
                received.ok_or_else(|| Fault::bare(format!("{doing}: the connection was lost")))?;
            if let Some(message) = self.channel.opened(received.payload()) {
                return Ok(message.to_owned());
            }
            if !std::mem::replace(&mut self.has_ignored, true) {
                tracing::warn!(
                    "another role of the database sent messages on a channel between nodes; they are ignored"
                );
            }
        }
    }
}
