//! The heartbeat of a node instance: one statement, on a connection of its own.
//!
//! A heartbeat that waits behind commits stops when the store is busy, and then other nodes take a living
//! node for dead. So it goes past the writer, and it is no commit: it moves no revision and wakes no
//! watcher.

use std::time::Duration;

use culvert_base::{Fault, Timestamp};

use crate::dialect::{Access, Arg, Connection, Site, While};
use crate::statements::state;
use crate::store::Store;

/// A beat that takes longer has failed, and the next one opens another connection.
const BEAT_WITHIN: Duration = Duration::from_secs(4);

/// Sets the time of the last update of one document, again and again.
#[derive(Debug)]
pub struct Heartbeat {
    site: Site,
    kind: &'static str,
    id: String,
    connection: Option<Connection>,
}

impl Store {
    /// A heartbeat that keeps the document of this kind and id up to date.
    pub fn heartbeat(&self, kind: &'static str, id: &str) -> Heartbeat {
        Heartbeat {
            site: self.shared.database.site.clone(),
            kind,
            id: id.to_owned(),
            connection: None,
        }
    }
}

impl Heartbeat {
    /// Sets the time of the last update to `now`. `false` if the document does not exist.
    ///
    /// # Errors
    /// The database does not answer within four seconds.
    pub async fn beat(&mut self, now: Timestamp) -> Result<bool, Fault> {
        let doing = "writing the heartbeat";
        match tokio::time::timeout(BEAT_WITHIN, self.write(now)).await {
            Ok(written) => written.during(doing),
            Err(late) => Err(Fault::new(doing, late)),
        }
    }

    async fn write(&mut self, now: Timestamp) -> Result<bool, sqlx::Error> {
        // Failed or cut off, the connection is dropped, and the next beat opens another.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.site.connect(Access::Write).await?,
        };
        let arguments = [
            Arg::Text(self.kind),
            Arg::Text(&self.id),
            Arg::Int(now.unix_nanos()),
        ];
        let touched = connection.run(state::TOUCH, &arguments).await?;
        self.connection = Some(connection);
        Ok(touched > 0)
    }

    /// Closes its connection.
    pub async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }
}
