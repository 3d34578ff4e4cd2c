//! An empty database that is deleted with the test.

use std::io::Write;
use std::sync::Arc;

use culvert_base::{Entropy, ManualClock, OsEntropy, Timestamp};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::database::store_url::StoreUrl;
use crate::store::Store;
use crate::{Queue, TextField, Texts};

/// The texts by which the tests find documents.
pub(super) fn texts() -> Texts {
    [("item", "name"), ("item", "note"), ("user", "name")]
        .map(|(kind, name)| (kind, TextField { name, within: None }))
        .into_iter()
        .collect()
}

pub(super) struct TestDatabase {
    pub(super) url: StoreUrl,
    pub(super) clock: Arc<ManualClock>,
    /// Directory for files of the test.
    pub(super) folder: tempfile::TempDir,
    database: Option<Temporary>,
}

impl TestDatabase {
    pub(super) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            url: StoreUrl::Sqlite(folder.path().join("data/state.db")),
            clock: Arc::new(ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000))),
            folder,
            database: None,
        }
    }

    /// `None`, reported as ignored, if there is no server.
    pub(super) async fn postgres() -> Option<Self> {
        let server = server();
        let entropy: &dyn Entropy = &OsEntropy;
        let name = format!(
            "culvert_test_{}",
            entropy.text(b"abcdefghijklmnopqrstuvwxyz0123456789", 16)
        );
        if let Err(error) = run(&server, format!("CREATE DATABASE {name}")).await {
            culvert_testing::ignore(format_args!(
                "PostgreSQL half of a conformance test: no server: {error}"
            ));
            return None;
        }
        let url = {
            let (base, _) = server.rsplit_once('/').unwrap();
            format!("{base}/{name}")
        };
        Some(Self {
            url: StoreUrl::Postgres(url),
            database: Some(Temporary { server, name }),
            ..Self::sqlite()
        })
    }

    pub(super) fn is_sqlite(&self) -> bool {
        self.database.is_none()
    }

    /// Ends all connections, as a restart of the server does. SQLite has none.
    pub(super) async fn end_connections(&self) {
        if let Some(Temporary { server, name }) = &self.database {
            let ended = format!(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
            );
            run(server, ended).await.unwrap();
        }
    }

    pub(super) async fn store(&self) -> Store {
        Store::open(&self.url, self.clock.clone(), texts())
            .await
            .unwrap()
    }

    pub(super) async fn queue(&self) -> Queue {
        Queue::open(&self.url, self.clock.clone()).await.unwrap()
    }
}

struct Temporary {
    server: String,
    name: String,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // On its own thread and runtime, because drop cannot block inside the test's runtime.
        let dropped = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(run(&server, format!("DROP DATABASE {name} WITH (FORCE)")))
        })
        .join();
        if !matches!(dropped, Ok(Ok(()))) {
            writeln!(
                std::io::stderr(),
                "a test database stays behind: {}",
                self.name
            )
            .unwrap();
        }
    }
}

pub(super) async fn run(server: &str, sql: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server).await?;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await?;
    connection.close().await
}

#[allow(
    clippy::disallowed_methods,
    reason = "the environment names the PostgreSQL server of the tests"
)]
fn server() -> String {
    std::env::var("CULVERT_TEST_POSTGRES_URL")
        .unwrap_or_else(|_| "postgres://postgres@127.0.0.1:5432/test".to_owned())
}
