//! PostgreSQL: a schema of a database that several nodes may share.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use culvert_base::Fault;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions, Connection as _, Row as _};
use tokio::time::Instant;

use crate::database::dialect::{Access, Connection, While};
use crate::database::trouble::Trouble;

/// A schema and how to reach it.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    options: Box<PgConnectOptions>,
    pub(crate) name: &'static str,
    /// Incremented when all open connections must be replaced.
    generation: Arc<AtomicU64>,
}

/// When a connection was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    generation: u64,
    at: Instant,
}

impl Schema {
    /// Reads the URL. TLS certificates are verified unless the server is on this machine or the URL
    /// has an `sslmode`.
    pub(crate) fn at(url: &str, name: &'static str) -> Result<Self, Fault> {
        let options = PgConnectOptions::from_str(url)
            // The driver's error may quote the URL with its password.
            .map_err(|_| Fault::bare("reading the database URL: it is not a postgres:// URL"))?;
        let host = options.get_host();
        let is_local = options.get_socket().is_some()
            || host.starts_with('/')
            || ["localhost", "127.0.0.1", "::1", "[::1]"].contains(&host);
        let names_mode = url.contains("sslmode=") || url.contains("ssl-mode=");
        let options = if is_local || names_mode {
            options
        } else {
            options.ssl_mode(PgSslMode::VerifyFull)
        };
        let options = options
            .application_name("culvert")
            .options([
                ("search_path", name),
                // Single statements and transactions that lock what they rely on need no more.
                ("default_transaction_isolation", "read committed"),
                ("lock_timeout", LOCK_TIMEOUT_MS),
                ("statement_timeout", STATEMENT_TIMEOUT_MS),
                (
                    "idle_in_transaction_session_timeout",
                    IDLE_IN_TRANSACTION_MS,
                ),
            ])
            .disable_statement_logging();
        Ok(Self {
            options: Box::new(options),
            name,
            generation: Arc::default(),
        })
    }

    /// `host:port`, or the path of a socket.
    pub(crate) fn address(&self) -> String {
        match self.options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", self.options.get_host(), self.options.get_port()),
        }
    }

    /// The options of a connection.
    pub(crate) fn options(&self) -> PgConnectOptions {
        (*self.options).clone()
    }

    /// Opens a connection to a primary. If the server's connection limit is reached, waits.
    pub(crate) async fn connect(
        &self,
        access: Access,
    ) -> Result<(PgConnection, Opened), sqlx::Error> {
        let mut refused = sqlx::Error::PoolTimedOut;
        let opened = Opened {
            generation: self.generation.load(Ordering::Relaxed),
            at: Instant::now(),
        };
        let connecting = async {
            loop {
                match PgConnection::connect_with(&self.options).await {
                    Err(error) if has_no_connection_left(&error) => refused = error,
                    Err(error) if refuses_settings(&error) => return Err(no_session()),
                    Ok(mut connection) => {
                        self.check_session(&mut connection, access).await?;
                        return Ok((connection, opened));
                    }
                    Err(error) => return Err(error),
                }
                tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
            }
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(refused),
        }
    }

    /// Refuses a connection without the settings of the schema, a standby, whose reads are behind, and for writes a server
    /// that is read only.
    async fn check_session(
        &self,
        connection: &mut PgConnection,
        access: Access,
    ) -> Result<(), sqlx::Error> {
        const SESSION: &str = "SELECT current_setting('search_path'), pg_is_in_recovery(), \
             current_setting('transaction_read_only') = 'on'";
        let row = sqlx::raw_sql(SESSION).fetch_one(connection).await?;
        let search_path: String = row.try_get(0)?;
        let (is_standby, is_read_only): (bool, bool) = (row.try_get(1)?, row.try_get(2)?);
        match access {
            _ if search_path != self.name => Err(no_session()),
            _ if is_standby => Err(Trouble::Standby.into_error()),
            Access::Write if is_read_only => Err(Trouble::ReadOnly.into_error()),
            Access::Write | Access::Read => Ok(()),
        }
    }

    /// Whether a connection may be used again. Its life is limited, because the address may lead to another server later.
    pub(crate) fn is_current(&self, opened: Opened) -> bool {
        opened.generation == self.generation.load(Ordering::Relaxed)
            && opened.at.elapsed() < CONNECTION_LIFE
    }

    /// Replaces all open connections when they are used next.
    pub(crate) fn replace_connections(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// The database's location for display, without user and password.
    pub(crate) fn location(&self) -> String {
        let options = &self.options;
        format!(
            "postgres://{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or_default()
        )
    }

    /// Refuses a server that acknowledges commits before they are on disk.
    pub(crate) async fn check_durability(connection: &mut Connection) -> Result<(), Fault> {
        let row = connection
            .row("SHOW synchronous_commit", &[])
            .await
            .during("checking whether PostgreSQL commits are durable")?;
        let setting: String = row
            .map_or(Ok(String::new()), |row| row.get(0))
            .during("checking whether PostgreSQL commits are durable")?;
        if setting == "off" {
            return Err(Fault::bare(
                "opening the database: PostgreSQL has `synchronous_commit = off` and may lose \
                 acknowledged writes; set it to `on`",
            ));
        }
        Ok(())
    }
}

/// A connection without the session that its statements rely on.
#[derive(Debug, thiserror::Error)]
#[error(
    "the connection does not have the session settings that were asked for, as behind PgBouncer; \
     connect to PostgreSQL directly"
)]
struct NoSession;

fn no_session() -> sqlx::Error {
    sqlx::Error::Configuration(Box::new(NoSession))
}

/// Whether something before the server rejects the settings of the session. A server knows them all.
fn refuses_settings(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.message().contains("startup parameter"))
}

fn has_no_connection_left(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == "53300")
}

/// How long a connection is used.
const CONNECTION_LIFE: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before another attempt if the server has no free connection.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Shorter than the time limit of a commit, so that the caller learns that nothing was written.
const LOCK_TIMEOUT_MS: &str = "4000";
const STATEMENT_TIMEOUT_MS: &str = "5000";
/// A node that stops in the middle of a commit holds the lock that the commits of all others wait for. Shorter than their
/// time limit, so that they wait and none is refused.
const IDLE_IN_TRANSACTION_MS: &str = "2500";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_connection_outlives_its_limit() {
        let schema = Schema::at("postgres://localhost/a", "culvert").unwrap();
        let open = || Opened {
            generation: schema.generation.load(Ordering::Relaxed),
            at: Instant::now(),
        };
        let opened = open();
        assert!(schema.is_current(opened));
        tokio::time::advance(CONNECTION_LIFE).await;
        assert!(!schema.is_current(opened));
        // Another handle to the schema, as of another pool.
        let opened = open();
        schema.clone().replace_connections();
        assert!(!schema.is_current(opened) && schema.is_current(open()));
    }
}
