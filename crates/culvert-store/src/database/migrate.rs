//! Migrates a database to this program's format. There are no downgrades.
//!
//! Each step is one transaction, so the next start continues an interrupted migration. A lock lets
//! one node migrate while the others wait. SQLite files are copied before the first step. A
//! database that requires a newer program is refused.

use std::time::Duration;

use culvert_base::{Clock, Fault};

use crate::database::dialect::{Access, Arg, Connection, Site, While};
use crate::database::statements::{HAS_META, MIGRATION_LOCK_HOLDER, meta, transaction};

/// A wait for the lock is logged each time that it lasts for so long.
const LOGGED_AFTER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// A migration: one numbered SQL file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The resulting format.
    pub(crate) format: i64,
    /// The oldest format whose program can still use the result.
    pub(crate) min_reader: i64,
    pub(crate) sql: &'static str,
}

impl Step {
    /// A migration whose result programs of every older format can still use.
    const fn readable_by_all(format: i64, sql: &'static str) -> Self {
        Self {
            format,
            min_reader: 1,
            sql,
        }
    }
}

/// The state: documents and outbox.
pub(crate) const STATE: &[Step] = &[
    Step::readable_by_all(1, include_str!("sql/state/0001_start.sql")),
    Step::readable_by_all(2, include_str!("sql/state/0002_chain.sql")),
    Step::readable_by_all(3, include_str!("sql/state/0003_pages.sql")),
    Step::readable_by_all(4, include_str!("sql/state/0004_texts.sql")),
    Step::readable_by_all(5, include_str!("sql/state/0005_event_index.sql")),
    Step::readable_by_all(6, include_str!("sql/state/0006_writers.sql")),
    Step::readable_by_all(7, include_str!("sql/state/0007_audit_tree.sql")),
    Step::readable_by_all(8, include_str!("sql/state/0008_cosigned_head.sql")),
    Step::readable_by_all(9, include_str!("sql/state/0009_answers.sql")),
];

/// The queue.
pub(crate) const EVENTS: &[Step] = &[
    Step::readable_by_all(1, include_str!("sql/events/0001_start.sql")),
    Step::readable_by_all(2, include_str!("sql/events/0002_traffic.sql")),
    Step {
        format: 3,
        min_reader: 3,
        sql: include_str!("sql/events/0003_bodies.sql"),
    },
    // A program of format 3 does not count the dead letters that it stores. The next pruning counts
    // them.
    Step {
        format: 4,
        min_reader: 3,
        sql: include_str!("sql/events/0004_lines_and_nodes.sql"),
    },
    Step {
        format: 5,
        min_reader: 3,
        sql: include_str!("sql/events/0005_event_index.sql"),
    },
    Step {
        format: 6,
        min_reader: 3,
        sql: include_str!("sql/events/0006_traffic_bodies.sql"),
    },
    Step {
        format: 7,
        min_reader: 3,
        sql: include_str!("sql/events/0007_statistics.sql"),
    },
    Step {
        format: 8,
        min_reader: 3,
        sql: include_str!("sql/events/0008_writers.sql"),
    },
    Step {
        format: 9,
        min_reader: 3,
        sql: include_str!("sql/events/0009_traffic_hashes.sql"),
    },
    Step {
        format: 10,
        min_reader: 3,
        sql: include_str!("sql/events/0010_traffic_summaries.sql"),
    },
];

/// Applies the missing `steps`, which are numbered from 1 without gaps.
pub(crate) async fn migrate(site: &Site, steps: &[Step], clock: &dyn Clock) -> Result<(), Fault> {
    let mut connection = site.connect(Access::Write).await.during(&site.opening())?;
    let migrated = Migration { site, steps, clock }.run(&mut connection).await;
    // Closing releases the lock and rolls back uncommitted work.
    connection.close().await;
    migrated
}

/// Fails for a database that [`migrate`] would change. Writes nothing.
pub(crate) async fn check(site: &Site, steps: &[Step], clock: &dyn Clock) -> Result<(), Fault> {
    let mut connection = site.connect(Access::Read).await.during(&site.opening())?;
    let migration = Migration { site, steps, clock };
    let found = migration.found(&mut connection).await;
    connection.close().await;
    let found = found?;
    migration.admit(found)?;
    let ours = steps.iter().map(|step| step.format).max().unwrap_or(0);
    match found {
        Some(found) if found.format >= ours => Ok(()),
        _ => Err(Fault::bare(format!(
            "{}: it requires a migration and the disk takes no writes; free space or make the file \
             system writable, and restart",
            site.opening()
        ))),
    }
}

/// Takes the lock of migrations, and creates the schema if it is missing. A second node waits here until the first has
/// finished. Every role of the database can take such a lock, so a long wait is logged with its cause.
async fn lock_schema(connection: &mut Connection, schema: &str) -> Result<(), Fault> {
    let doing = "preparing the database schema";
    let wait = format!(
        "SET statement_timeout = 0; SET lock_timeout = {}; SET client_min_messages = warning",
        LOGGED_AFTER.as_millis()
    );
    connection.script(wait).await.during(doing)?;
    let lock = format!("SELECT pg_advisory_lock(hashtext('{schema}'))");
    loop {
        match connection.script(lock.clone()).await {
            Ok(()) => break,
            Err(error) if is_lock_timeout(&error) => {
                let row = connection
                    .row(MIGRATION_LOCK_HOLDER, &[Arg::Text(schema)])
                    .await;
                let holder = row.and_then(|row| row.map(|row| row.get(0)).transpose());
                let holder: Option<String> = holder.during(doing)?;
                tracing::warn!(
                    schema,
                    holder,
                    "the start waits for the migration lock of the database: another node migrates it, or another process holds the lock"
                );
            }
            failed => return failed.during(doing),
        }
    }
    let create = format!("SET lock_timeout = 0; CREATE SCHEMA IF NOT EXISTS {schema}");
    connection.script(create).await.during(doing)
}

fn is_lock_timeout(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("55P03")
}

struct Migration<'a> {
    site: &'a Site,
    steps: &'a [Step],
    clock: &'a dyn Clock,
}

impl Migration<'_> {
    async fn run(&self, connection: &mut Connection) -> Result<(), Fault> {
        if let Site::Postgres(schema) = self.site {
            lock_schema(connection, schema.name).await?;
        }
        let mut is_saved = false;
        loop {
            connection.begin().await.during("beginning a migration")?;
            let found = self.found(connection).await?;
            self.admit(found)?;
            let format = found.map_or(0, |found| found.format);
            let Some(step) = self.steps.iter().find(|step| step.format > format) else {
                return connection
                    .run(transaction::ROLLBACK, &[])
                    .await
                    .map(drop)
                    .during("ending a migration");
            };
            if found.is_some() && !is_saved {
                self.save(step.format).await?;
            }
            // A database that was empty needs no copy.
            is_saved = true;
            self.apply(connection, step, found.is_none()).await?;
        }
    }

    /// Reads the database's format; `None` if the database is empty.
    async fn found(&self, connection: &mut Connection) -> Result<Option<Found>, Fault> {
        let doing = "reading the database's format";
        let row = connection
            .row(self.site.spell(HAS_META), &[])
            .await
            .during(doing)?;
        let n_tables: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        if n_tables == 0 {
            return Ok(None);
        }
        Ok(Some(Found {
            format: self.number(connection, "format").await?,
            min_reader: self.number(connection, "min_reader").await?,
        }))
    }

    async fn number(&self, connection: &mut Connection, name: &str) -> Result<i64, Fault> {
        let doing = "reading the database's format";
        let row = connection
            .row(meta::GET, &[Arg::Text(name)])
            .await
            .during(doing)?
            .ok_or_else(|| Fault::bare(format!("{doing}: it does not name its {name}")))?;
        let text: String = row.get(0).during(doing)?;
        text.parse().map_err(|error| Fault::new(doing, error))
    }

    fn admit(&self, found: Option<Found>) -> Result<(), Fault> {
        let ours = self.steps.iter().map(|step| step.format).max().unwrap_or(0);
        match found {
            Some(found) if found.min_reader > ours => Err(Fault::bare(format!(
                "opening the database: it has format {}, which requires a version that reads \
                 format {}, and this version reads up to {ours}; start the newer version, or \
                 restore the backup made before the upgrade",
                found.format, found.min_reader
            ))),
            _ => Ok(()),
        }
    }

    async fn save(&self, format: i64) -> Result<(), Fault> {
        match self.site {
            Site::Sqlite(file) => file.backup_before(format).await,
            Site::Postgres(schema) => {
                tracing::warn!(
                    schema = schema.name,
                    format,
                    "migrating the database; keep your own backup"
                );
                Ok(())
            }
        }
    }

    async fn apply(
        &self,
        connection: &mut Connection,
        step: &Step,
        is_first: bool,
    ) -> Result<(), Fault> {
        let doing = format!(
            "{} and migrating it to format {}",
            self.site.opening(),
            step.format
        );
        if is_first {
            connection
                .script(self.site.define(include_str!("sql/meta.sql")))
                .await
                .during(&doing)?;
        }
        connection
            .script(self.site.define(step.sql))
            .await
            .during(&doing)?;
        for (name, value) in [
            ("format", step.format.to_string()),
            ("min_reader", step.min_reader.to_string()),
            ("migrated_at", self.clock.now().to_string()),
        ] {
            connection
                .run(meta::SET, &[Arg::Text(name), Arg::Text(&value)])
                .await
                .during(&doing)?;
        }
        connection
            .run(transaction::COMMIT, &[])
            .await
            .during(&doing)?;
        tracing::info!(format = step.format, "database migrated to a new format");
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Found {
    format: i64,
    min_reader: i64,
}
