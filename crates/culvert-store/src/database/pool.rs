//! A small pool of read connections.
//!
//! It is simpler and cheaper than the driver's pool: a connection that has just worked is returned
//! without a test. It has a limited life, and after an error that says that the server changed its
//! role, all are replaced.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::Fault;
use tokio::sync::Semaphore;

use crate::database::dialect::{Access, Arg, Connection, Row, Site, While};
use crate::database::statements::Pair;

/// A pool with limits on connections and waiting time.
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

    /// The statement for the pool's engine.
    pub(crate) fn spell(&self, pair: Pair) -> &'static str {
        self.site.spell(pair)
    }

    /// All rows of a read statement.
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
            if let Some(mut connection) = self.take_current().await {
                match connection.rows(sql, arguments).await {
                    Ok(rows) => {
                        self.put(connection);
                        return Ok(rows);
                    }
                    // The server may have closed the connection while it was idle. Repeating a read
                    // is harmless.
                    Err(error) => {
                        self.site.judge(&error);
                        tracing::debug!(%error, doing, "retrying a read");
                    }
                }
            }
            let mut connection = self.site.connect(Access::Read).await.during(doing)?;
            let rows = connection.rows(sql, arguments).await;
            let rows = rows.inspect_err(|error| self.site.judge(error));
            let rows = rows.during(doing)?;
            self.put(connection);
            Ok(rows)
        };
        tokio::time::timeout(READ_TIMEOUT, read)
            .await
            .unwrap_or_else(|_| {
                let why = format!(
                    "{doing}: no response from the database within {} s",
                    READ_TIMEOUT.as_secs()
                );
                Err(Fault::bare(why).passing())
            })
    }

    /// The first row of a read statement.
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

    /// An idle connection that may be used again. Closes the others.
    async fn take_current(&self) -> Option<Connection> {
        while let Some(connection) = self.take() {
            if self.site.is_current(&connection) {
                return Some(connection);
            }
            connection.close().await;
        }
        None
    }

    fn take(&self) -> Option<Connection> {
        self.idle
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .pop()
    }

    fn put(&self, connection: Connection) {
        // After the pool is closed, connections are closed by their drop.
        if !self.permits.is_closed() {
            self.idle
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .push(connection);
        }
    }
}

const READ_TIMEOUT: Duration = Duration::from_secs(5);
