//! A handful of connections for reading.
//!
//! Smaller than the driver's own pool and cheaper: a connection that has just worked is put back
//! without asking it again whether it works.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::Fault;
use tokio::sync::Semaphore;

use crate::dialect::{Access, Arg, Connection, Row, Site, While};
use crate::statements::Pair;

/// Reads with a limit in number and time.
#[derive(Debug)]
pub(crate) struct Pool {
    site: Site,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl Pool {
    pub(crate) fn new(site: Site, connections_max: usize) -> Self {
        Self {
            site,
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(connections_max),
        }
    }

    /// Its engine's spelling.
    pub(crate) fn spell(&self, pair: Pair) -> &'static str {
        self.site.spell(pair)
    }

    /// All rows of a reading statement.
    pub(crate) async fn rows(
        &self,
        doing: &str,
        sql: &'static str,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let read = async {
            let Ok(_permit) = self.permits.acquire().await else {
                return Err(Fault::bare(format!("{doing}: the store is closed")));
            };
            let as_is = self.site.read_as_is().await;
            if as_is.is_some() {
                let mut connection = self.site.connect(Access::Read).await.during(doing)?;
                let rows = connection.rows(sql, arguments).await.during(doing);
                connection.close().await;
                return rows;
            }
            if let Some(mut connection) = self.take() {
                match connection.rows(sql, arguments).await {
                    Ok(rows) => {
                        self.put(connection);
                        return Ok(rows);
                    }
                    // The server may have closed it while it lay idle. Reading again is harmless.
                    Err(error) => tracing::debug!(%error, doing, "retrying a read"),
                }
            }
            let mut connection = self.site.connect(Access::Read).await.during(doing)?;
            let rows = connection.rows(sql, arguments).await.during(doing)?;
            self.put(connection);
            Ok(rows)
        };
        tokio::time::timeout(READ_TIMEOUT, read)
            .await
            .unwrap_or_else(|_| {
                Err(Fault::bare(format!(
                    "{doing}: no response from the database within {} s",
                    READ_TIMEOUT.as_secs()
                )))
            })
    }

    /// The first row of a reading statement.
    pub(crate) async fn row(
        &self,
        doing: &str,
        sql: &'static str,
        arguments: &[Arg<'_>],
    ) -> Result<Option<Row>, Fault> {
        Ok(self.rows(doing, sql, arguments).await?.into_iter().next())
    }

    pub(crate) async fn close(&self) {
        self.permits.close();
        while let Some(connection) = self.take() {
            connection.close().await;
        }
    }

    fn take(&self) -> Option<Connection> {
        self.idle
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .pop()
    }

    fn put(&self, connection: Connection) {
        // After closing there is nobody left to close it but its own drop.
        if !self.permits.is_closed() {
            self.idle
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .push(connection);
        }
    }
}

const READ_TIMEOUT: Duration = Duration::from_secs(5);
