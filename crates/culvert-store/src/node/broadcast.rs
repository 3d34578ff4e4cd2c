//! Short messages between all processes on a PostgreSQL database.
//!
//! They are notifications of the database. Nothing is stored, so a process that is not connected
//! when a message is sent never gets it. A SQLite file has one process, so there is no channel.
//!
//! Any role that may connect to the database can send notifications. So the names of channels are
//! secrets, which are readable only for roles that can read the documents.

use std::fmt;
use std::time::Duration;

use culvert_base::Fault;
use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::database::dialect::{Arg, Site, While};
use crate::database::pool::Pool;
use crate::database::statements::{KEEP_ALIVE, TELL, meta};
use crate::store::Store;

/// Maximum size of a message in bytes. The database's limit is 8000.
pub(crate) const BYTES_MAX: usize = 7_900;
/// Time limit of a send. After it, the message and the connection are lost.
const TELL_WITHIN: Duration = Duration::from_secs(5);

/// A channel between all processes on a database, with its own connection.
pub struct Broadcast {
    listener: PgListener,
    channel: String,
}

impl fmt::Debug for Broadcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broadcast")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}

/// The channel of an installation for a topic such as `commit`, whose name is a secret; `None` on SQLite, which has
/// one process.
pub(crate) async fn channel(
    site: &Site,
    pool: &Pool,
    topic: &str,
) -> Result<Option<String>, Fault> {
    let doing = "naming a channel for notifications";
    let Site::Postgres(_) = site else {
        return Ok(None);
    };
    let name = format!("{topic}_channel");
    let row = pool
        .row(doing, meta::MAKE_RANDOM, &[Arg::Text(&name)])
        .await?
        .ok_or_else(|| Fault::bare(format!("{doing}: the database returned no name")))?;
    let secret: String = row.get(0).during(doing)?;
    Ok(Some(format!("culvert_{topic}s_{secret}")))
}

impl Store {
    /// Opens the channel of this installation for a topic, in `snake_case`; `None` on SQLite. Only roles that can read
    /// the documents know its name.
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
    pub(crate) async fn open(site: &Site, channel: &str) -> Result<Option<Self>, Fault> {
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
            listener.listen(channel).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        let opened = tokio::time::timeout(TELL_WITHIN, Box::pin(open)).await;
        let listener = opened
            .map_err(|late| Fault::new(doing, late))?
            .during(doing)?;
        let channel = channel.to_owned();
        Ok(Some(Self { listener, channel }))
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
        let query = sqlx::query(TELL).bind(&self.channel).bind(messages);
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
        match self.listener.try_recv().await.during(doing)? {
            Some(message) => Ok(message.payload().to_owned()),
            None => Err(Fault::bare(format!("{doing}: the connection was lost"))),
        }
    }
}
