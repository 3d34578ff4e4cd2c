//! What the nodes that share a PostgreSQL database agree on: who has which name, and what time it is.
//!
//! A name is a lock of the database, held by a connection of its own: it is free again the moment its
//! process is gone, however it went. The time is the database's, followed between two looks by a clock
//! that nobody sets, so that a node whose own clock is wrong takes no lease before its time.
//!
//! A SQLite file has one process, whose name and clock are its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use culvert_base::{Clock, Fault, Timestamp};
use tokio::sync::watch;

use crate::dialect::{Access, Arg, Connection, Site, While};
use crate::statements::{CLAIM, KEEP_ALIVE, NOW};
use crate::store::Store;

/// Names tried before giving up: the wanted one, and the same with a number.
const NAMES_MAX: u32 = 1_000;
/// How often the connection that holds the name is used, and the time looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What this process is called among all that use the database, and the time they share.
#[derive(Debug)]
pub struct Node {
    /// The name that was wanted, or the same with `-2`, `-3` and so on where a running process has it.
    pub name: String,
    /// The database's time.
    pub clock: Arc<dyn Clock>,
}

impl Store {
    /// Takes a name that no running process of the installation has, for as long as the store is open.
    ///
    /// # Errors
    /// A database that cannot be reached.
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
        let clock = Arc::new(SharedClock {
            at: Mutex::new(look(&mut connection).await.during(doing)?),
        });
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

/// The database's time, as it was at some moment of this process.
#[derive(Debug)]
struct SharedClock {
    at: Mutex<(Timestamp, Instant)>,
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        let (time, seen) = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        time.plus(seen.elapsed())
    }
}

/// Holds the name and looks at the time.
struct Keeper {
    site: Site,
    name: String,
    clock: Arc<SharedClock>,
    connection: Option<Connection>,
}

impl Keeper {
    async fn run(mut self, mut closing: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = closing.wait_for(|closing| *closing) => break,
            }
            let connection_kept = tokio::time::timeout(LOOK_EVERY, self.keep()).await;
            match connection_kept {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => tracing::error!(
                    node = self.name,
                    "another node took this node's name while the database was unavailable; restart this node"
                ),
                Ok(Err(error)) => tracing::debug!(%error, "holding the name of this node"),
                Err(_) => tracing::debug!("holding the name of this node: no response"),
            }
        }
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }

    /// Whether the name is still this node's.
    async fn keep(&mut self) -> Result<bool, sqlx::Error> {
        let mut is_ours = true;
        // Cancelled or failed, the connection is let go of, and the next look makes another.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let mut connection = open(&self.site).await?;
                is_ours = claim(&mut connection, &self.name).await?;
                connection
            }
        };
        let at = look(&mut connection).await?;
        *self.clock.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
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

/// The time, taken for that of the moment halfway between question and answer.
async fn look(connection: &mut Connection) -> Result<(Timestamp, Instant), sqlx::Error> {
    let asked_at = Instant::now();
    let sql = connection.spell(NOW);
    let row = connection.row(sql, &[]).await?;
    let micros: i64 = row.map_or(Ok(0), |row| row.get(0))?;
    let time = Timestamp::from_unix_nanos(micros.saturating_mul(1_000));
    Ok((time, asked_at + asked_at.elapsed() / 2))
}
