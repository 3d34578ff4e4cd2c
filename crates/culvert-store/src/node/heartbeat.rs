//! The heartbeat of a node instance: one statement on its own connection.
//!
//! If heartbeats waited behind commits, they would stop while the store is busy, and other nodes
//! would take a running node for failed. So they bypass the writer. They are not commits: the
//! revision does not change, and watchers are not woken.

use std::time::Duration;

use culvert_base::{Fault, Timestamp};

use crate::database::dialect::{Access, Arg, Connection, Site, While};
use crate::database::statements::state;
use crate::store::Store;

/// Time limit of a heartbeat. After it, the heartbeat has failed, and the next one opens another
/// connection.
const BEAT_WITHIN: Duration = Duration::from_secs(4);

/// Updates the modification time of one document repeatedly.
#[derive(Debug)]
pub struct Heartbeat {
    site: Site,
    kind: &'static str,
    id: String,
    connection: Option<Connection>,
}

impl Store {
    /// A heartbeat for the document with this kind and id.
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
    /// Sets the modification time to `now`. Returns `false` if the document does not exist.
    ///
    /// # Errors
    /// If the database does not respond within four seconds.
    pub async fn beat(&mut self, now: Timestamp) -> Result<bool, Fault> {
        let doing = "writing the heartbeat";
        match tokio::time::timeout(BEAT_WITHIN, self.write(now)).await {
            Ok(written) => written.during(doing),
            Err(late) => Err(Fault::new(doing, late)),
        }
    }

    async fn write(&mut self, now: Timestamp) -> Result<bool, sqlx::Error> {
        // If this fails or is cancelled, the connection is dropped, and the next heartbeat opens
        // another.
        let kept = self.connection.take();
        let mut connection = match kept.filter(|kept| self.site.is_current(kept)) {
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

    /// Closes the connection.
    pub async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
    }
}
