//! The nodes that share a PostgreSQL database: their names, and their common time. Beside them, heartbeats and messages.
//!
//! A name is an advisory lock of the database, held by its own connection, so it is released as
//! soon as its process ends for any reason. The time is the database's. Between two readings it
//! advances by the monotonic clock, so a node with a wrong system clock does not take a lease
//! early. It does not follow a database's clock that jumps for a moment, as with a fail-over that
//! is undone.
//!
//! A SQLite file has one process, with its own name and clock.

pub(crate) mod broadcast;
pub(crate) mod heartbeat;

use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::{Clock, Fault, SteadyClock, Timestamp};
use tokio::sync::watch;

use crate::database::dialect::{Access, Arg, Connection, Site, While};
use crate::database::statements::{CLAIM, KEEP_ALIVE, NOW};
use crate::store::Store;

/// Names to try before giving up: the requested one, and the same with a number.
const NAMES_MAX: u32 = 1_000;
/// Interval of using the connection that holds the name, and of reading the time.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long another connection must have the name before it counts as that of another node. The
/// database notices within 30 seconds that a connection of this node is dead, which had the name.
const LOST_AFTER: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 60 });

/// This process's name among those that use the database, and the shared time.
#[derive(Debug)]
pub struct Node {
    /// The requested name, or the same with `-2`, `-3` and so on if a running process has it.
    pub name: String,
    /// The database's time.
    pub clock: Arc<dyn Clock>,
}

impl Store {
    /// Takes a name that no running process of the installation has, until the store closes.
    ///
    /// # Errors
    /// If the database is unreachable.
    pub async fn join_as(&self, wanted: &str, own: Arc<dyn Clock>) -> Result<Node, Fault> {
        let doing = "taking a name among the nodes";
        let site = &self.shared.database.site;
        if let Site::Sqlite(_) = site {
            return Ok(Node {
                name: wanted.to_owned(),
                clock: own,
            });
        }
        let mut connection = open(site).await.during(doing)?;
        let mut name = wanted.to_owned();
        let mut number = 1;
        while !claim(&mut connection, &name).await.during(doing)? {
            number += 1;
            if number > NAMES_MAX {
                return Err(Fault::bare(format!("{doing}: `{wanted}` is in use")));
            }
            name = format!("{wanted}-{number}");
        }
        if name != wanted {
            tracing::info!("another node has the name `{wanted}`; this node is `{name}`");
        }
        let (time, seen) = read_time(&mut connection).await.during(doing)?;
        let clock = Arc::new(SteadyClock::new(time.plus(seen.elapsed())));
        let keeper = Keeper {
            site: site.clone(),
            name: name.clone(),
            clock: Arc::clone(&clock),
            connection: Some(connection),
        };
        let closing = self.shared.database.closing();
        self.shared
            .database
            .start("store.node_name", keeper.run(closing));
        Ok(Node { name, clock })
    }
}

/// Holds the name and reads the time.
struct Keeper {
    site: Site,
    name: String,
    clock: Arc<SteadyClock>,
    connection: Option<Connection>,
}

impl Keeper {
    async fn run(mut self, mut closing: watch::Receiver<bool>) {
        let mut lost_at = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = closing.wait_for(|closing| *closing) => break,
            }
            let connection_kept = tokio::time::timeout(LOOK_EVERY, self.keep()).await;
            match connection_kept {
                Ok(Ok(true)) => lost_at = None,
                Ok(Ok(false)) => {
                    let lost_at = *lost_at.get_or_insert_with(Instant::now);
                    if lost_at.elapsed() >= LOST_AFTER {
                        tracing::error!(
                            node = self.name,
                            "another node took this node's name while the database was unavailable; this node stops, and gets another name at its next start"
                        );
                        // An end that is not expected stops the process.
                        return;
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "holding the name of this node"),
                Err(_) => tracing::debug!("holding the name of this node: no response"),
            }
        }
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }

    /// Whether this node still holds the name.
    async fn keep(&mut self) -> Result<bool, sqlx::Error> {
        let mut is_ours = true;
        // If this is cancelled or fails, the connection is dropped, and the next call opens
        // another.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut connection = open(&self.site).await?;
                is_ours = claim(&mut connection, &self.name).await?;
                connection
            }
        };
        let (time, seen) = read_time(&mut connection).await?;
        if let Some(notice) = self.clock.observe(time, seen).notice() {
            tracing::warn!(clock = "database", "{notice}");
        }
        if is_ours {
            self.connection = Some(connection);
        } else {
            connection.close().await;
        }
        Ok(is_ours)
    }
}

async fn open(site: &Site) -> Result<Connection, sqlx::Error> {
    let mut connection = site.connect(Access::Read).await?;
    connection.script(KEEP_ALIVE.to_owned()).await?;
    Ok(connection)
}

async fn claim(connection: &mut Connection, name: &str) -> Result<bool, sqlx::Error> {
    let sql = connection.spell(CLAIM);
    let row = connection.row(sql, &[Arg::Text(name)]).await?;
    row.map_or(Ok(0), |row| row.get::<i64>(0)).map(|n| n == 1)
}

/// Reads the time. It is assigned to the middle between request and response.
async fn read_time(connection: &mut Connection) -> Result<(Timestamp, Instant), sqlx::Error> {
    let asked_at = Instant::now();
    let sql = connection.spell(NOW);
    let row = connection.row(sql, &[]).await?;
    let micros: i64 = row.map_or(Ok(0), |row| row.get(0))?;
    let time = Timestamp::from_unix_nanos(micros.saturating_mul(1_000));
    Ok((time, asked_at + asked_at.elapsed() / 2))
}
