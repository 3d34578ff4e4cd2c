//! Copies a whole installation from its SQLite files into an empty PostgreSQL database.
//!
//! Both are locked during the transfer: the files by an exclusive lock against other processes, the
//! database by the lock that a starting server waits for. The copy is one PostgreSQL transaction,
//! so the database stays empty if it is interrupted. Before the commit, every table is read back in
//! the order of its key and compared byte by byte with the data from SQLite.
//!
//! After the commit the files are marked, and no server opens them any more. If the transfer is
//! interrupted before the mark is set, the next run finds its own copy in the database, verifies
//! it, and sets the mark.
//!
//! The list of tables is read from SQLite, so tables that are added later are copied too.

use std::path::Path;

use culvert_base::{Clock, Fault};
use futures_util::TryStreamExt;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr, TypeInfo, ValueRef};

use crate::database::MOVED_TO;
use crate::database::STATE;
use crate::database::dialect::{Access, Connection, Site, While};
use crate::database::migrate::{self, Step};
use crate::database::postgres::Schema;
use crate::database::sqlite;
use crate::database::sqlite::File;
use crate::database::statements::{HAS_META, meta};
use crate::queue;
use culvert_base::text::hex;

/// Name of the value that identifies the source of a database's data.
const MOVED_FROM: &str = "moved_from";
/// Bytes sent to PostgreSQL together.
const CHUNK: usize = 64 << 10;
/// How long to wait for the database's lock. The database may need this time to notice that a
/// killed command is gone.
const TAKEN_WITHIN_MS: u32 = 30_000;

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// One of the two files is missing.
    #[error("no SQLite installation in `{0}`; set its directory with `--data-dir`")]
    NoSource(String),
    /// A process has one of the files open.
    #[error("a server uses the SQLite data; stop it first")]
    SourceInUse,
    /// An earlier run has transferred the data to another database.
    #[error(
        "the SQLite data was already migrated to {0}; use that database, or `--again` if it was abandoned"
    )]
    AlreadyMoved(String),
    /// The database already has an installation.
    #[error(
        "the PostgreSQL database is not empty; use a database without the schemas `culvert` and `culvert_events`"
    )]
    TargetNotEmpty,
    /// Another version wrote the files or the database.
    #[error(
        "the {end} has format {found}, but this version writes {ours}; start this version on it once, or migrate with the version that wrote it"
    )]
    OtherVersion {
        /// `SQLite data` or `PostgreSQL database`.
        end: &'static str,
        /// The format found there.
        found: String,
        /// The format of this program.
        ours: i64,
    },
    /// The copy in PostgreSQL differs from the original.
    #[error("table `{0}` differs in PostgreSQL after the copy; nothing was migrated")]
    Differs(String),
    /// An internal failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl TransferError {
    /// An error code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoSource(_) => "no_source",
            Self::SourceInUse => "source_in_use",
            Self::AlreadyMoved(_) => "already_moved",
            Self::TargetNotEmpty => "target_not_empty",
            Self::OtherVersion { .. } => "other_version",
            Self::Differs(_) => "differs",
            Self::Fault(_) => "fault",
        }
    }
}

/// The result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Tables and their rows.
    pub rows: Vec<(String, u64)>,
    /// The target database, without user and password.
    pub location: String,
    /// Whether an earlier run had copied the data and this one only set the mark.
    pub was_there: bool,
}

/// A transfer that holds the locks of both databases.
#[derive(Debug)]
pub struct Transfer {
    parts: [SourceDatabase; 2],
    to: PgConnection,
    location: String,
    /// The data that an earlier run left in the database.
    there: Option<String>,
    /// Where an earlier run transferred the data, unless that is ignored.
    moved_to: Option<String>,
}

/// One of the two files, locked exclusively.
#[derive(Debug)]
struct SourceDatabase {
    connection: SqliteConnection,
    schema: &'static str,
    tables: Vec<Table>,
}

#[derive(Clone, Debug)]
struct Table {
    name: String,
    columns: String,
    /// Columns of the primary key.
    key: String,
}

/// Number and hash of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sum {
    rows: u64,
    hash: [u8; 32],
}

impl Transfer {
    /// Locks the files at `from` (the state file, with the queue's file beside it) and the database
    /// at `to`, and checks whether the data can be transferred. `again` ignores an earlier
    /// transfer.
    ///
    /// # Errors
    /// Everything that prevents the transfer, except for damaged data.
    pub async fn begin(
        from: &Path,
        to: &str,
        again: bool,
        clock: &dyn Clock,
    ) -> Result<Self, TransferError> {
        let parts = [(STATE, migrate::STATE), (queue::EVENTS, migrate::EVENTS)];
        let mut sources = Vec::new();
        for (part, steps) in parts {
            let path = part
                .file
                .map_or(from.to_owned(), |name| from.with_file_name(name));
            let mut connection = alone(&path).await?;
            check_format(
                "SQLite data",
                own_meta(&mut connection, "format").await?,
                steps,
            )?;
            let tables = tables(&mut connection).await?;
            sources.push(SourceDatabase {
                connection,
                schema: part.schema,
                tables,
            });
        }
        let Ok(mut parts_held) = <[SourceDatabase; 2]>::try_from(sources) else {
            return Err(Fault::bare("opening the SQLite data: it has two parts").into());
        };
        let moved_to = own_meta(&mut parts_held[0].connection, MOVED_TO).await?;

        for (part, steps) in parts {
            let schema = Schema::at(to, part.schema)?;
            let opened = schema.connect(Access::Write).await;
            let (connection, opened) = opened.during("opening the target")?;
            let mut connection = Connection::Postgres(connection, opened);
            Schema::check_durability(&mut connection).await?;
            let format = schema_meta(&mut connection, "format").await?;
            connection.close().await;
            if let Some(format) = format {
                check_format("PostgreSQL database", Some(format), steps)?;
            }
            migrate::migrate(&Site::Postgres(schema), steps, clock).await?;
        }
        let state = Schema::at(to, STATE.schema)?;
        let location = state.location();
        let opened = state.connect(Access::Write).await;
        let (mut to, _) = opened.during("opening the target")?;
        // Copying a table may take longer than any limit of a server's connections.
        let prepare = format!(
            "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; \
             SET lock_timeout = {TAKEN_WITHIN_MS}; SET bytea_output = hex; \
             SELECT pg_advisory_lock(hashtext('{}')); SELECT pg_advisory_lock(hashtext('{}'))",
            STATE.schema,
            queue::EVENTS.schema
        );
        run(&mut to, prepare).await.during("taking the target")?;
        let there: Option<(String,)> = sqlx::query_as(meta::GET)
            .bind(MOVED_FROM)
            .fetch_optional(&mut to)
            .await
            .during("inspecting the target")?;
        let there = there.map(|(there,)| there);
        if there.is_none() {
            if let Some(location) = moved_to.clone().filter(|_| !again) {
                return Err(TransferError::AlreadyMoved(location));
            }
            for source in &parts_held {
                for table in &source.tables {
                    if holds_something(&mut to, source.schema, table).await? {
                        return Err(TransferError::TargetNotEmpty);
                    }
                }
            }
        }
        Ok(Self {
            parts: parts_held,
            to,
            location,
            there,
            moved_to,
        })
    }

    /// A named value stored besides the documents of the files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub async fn meta_get(&mut self, name: &str) -> Result<Option<String>, Fault> {
        own_meta(&mut self.parts[0].connection, name).await
    }

    /// Copies all data and marks the files.
    ///
    /// # Errors
    /// Nothing was transferred, unless only the mark is missing. In that case another run reports
    /// it and sets the mark.
    pub async fn run(mut self) -> Result<Moved, TransferError> {
        let mut rows = Vec::new();
        let was_there = self.there.is_some();
        match self.there.take() {
            Some(there) => {
                let mut print = Print::default();
                for source in &mut self.parts {
                    for table in source.tables.clone() {
                        let sum = source.read(&table, None).await?;
                        rows.push((table.name.clone(), sum.rows));
                        print.add(source.schema, &table, &sum);
                    }
                }
                if print.finish() != there {
                    return Err(match self.moved_to {
                        Some(location) if location != self.location => {
                            TransferError::AlreadyMoved(location)
                        }
                        _ => TransferError::TargetNotEmpty,
                    });
                }
            }
            None => self.copy(&mut rows).await?,
        }
        let doing = "marking the SQLite data as migrated; run the command again";
        sqlx::query(meta::SET)
            .bind(MOVED_TO)
            .bind(&self.location)
            .execute(&mut self.parts[0].connection)
            .await
            .during(doing)?;
        for source in self.parts {
            sqlx::Connection::close(source.connection)
                .await
                .during(doing)?;
        }
        // The data is committed, so a failure to close does not matter.
        drop(sqlx::Connection::close(self.to).await);
        Ok(Moved {
            rows,
            location: self.location,
            was_there,
        })
    }

    async fn copy(&mut self, rows: &mut Vec<(String, u64)>) -> Result<(), TransferError> {
        run(&mut self.to, "BEGIN".to_owned())
            .await
            .during("starting the migration")?;
        let mut print = Print::default();
        for source in &mut self.parts {
            for table in source.tables.clone() {
                let doing = format!("moving table `{}`", table.name);
                if table.is_of_the_format() {
                    let clear = format!("DELETE FROM {}", table.within(source.schema));
                    run(&mut self.to, clear).await.during(&doing)?;
                }
                let sum = source.read(&table, Some(&mut self.to)).await?;
                if read_back(&mut self.to, source.schema, &table).await? != sum {
                    return Err(TransferError::Differs(table.name));
                }
                rows.push((table.name.clone(), sum.rows));
                print.add(source.schema, &table, &sum);
            }
            for (name, last) in numbered(&mut source.connection).await? {
                let advance = format!(
                    "SELECT setval(pg_get_serial_sequence('{}.{name}', 'id'), {last})",
                    source.schema
                );
                run(&mut self.to, advance)
                    .await
                    .during("moving the numbering")?;
            }
        }
        // The server that held the leases has ended, so they are released.
        let release = format!(
            "UPDATE {}.batch SET owner = NULL, lease_until = NULL, fence = fence + 1 \
             WHERE lease_until IS NOT NULL",
            queue::EVENTS.schema
        );
        let finish = "finishing the migration; run the command again to check the result";
        run(&mut self.to, release).await.during(finish)?;
        sqlx::query(meta::SET)
            .bind(MOVED_FROM)
            .bind(print.finish())
            .execute(&mut self.to)
            .await
            .during(finish)?;
        run(&mut self.to, "COMMIT".to_owned())
            .await
            .during(finish)?;
        Ok(())
    }
}

/// Removes the mark from a state file whose data was transferred, so that a server can use it
/// again. Returns where the data had been transferred, if it was.
///
/// # Errors
/// If files are missing or in use.
pub async fn undo_transfer(from: &Path) -> Result<Option<String>, TransferError> {
    let doing = "clearing the migration mark of the SQLite data";
    let mut connection = alone(from).await?;
    let location = own_meta(&mut connection, MOVED_TO).await?;
    sqlx::query(meta::REMOVE)
        .bind(MOVED_TO)
        .execute(&mut connection)
        .await
        .during(doing)?;
    sqlx::Connection::close(connection).await.during(doing)?;
    Ok(location)
}

impl SourceDatabase {
    /// Reads all rows in the order of the key, in the text format of PostgreSQL's `COPY`. Writes
    /// them into the table of the same name if `into` is given.
    async fn read(&mut self, table: &Table, into: Option<&mut PgConnection>) -> Result<Sum, Fault> {
        let doing = format!("moving table `{}`", table.name);
        let mut sink = match into {
            Some(to) => {
                let location = table.within(self.schema);
                let copy = format!("COPY {location} ({}) FROM STDIN", table.columns);
                Some(to.copy_in_raw(&copy).await.during(&doing)?)
            }
            None => None,
        };
        let select = format!(
            "SELECT {} FROM \"{}\" {}ORDER BY {}",
            table.columns,
            table.name,
            table.but_marks(),
            table.key
        );
        let mut hasher = Sha256::new();
        let mut rows = 0u64;
        let mut chunk = Vec::with_capacity(2 * CHUNK);
        {
            let mut found = sqlx::query(AssertSqlSafe(select)).fetch(&mut self.connection);
            while let Some(row) = found.try_next().await.during(&doing)? {
                write_row(&row, &mut chunk).during(&doing)?;
                rows += 1;
                if chunk.len() >= CHUNK {
                    hasher.update(&chunk);
                    if let Some(sink) = &mut sink {
                        sink.send(&chunk[..]).await.during(&doing)?;
                    }
                    chunk.clear();
                }
            }
        }
        hasher.update(&chunk);
        if let Some(mut sink) = sink {
            sink.send(&chunk[..]).await.during(&doing)?;
            sink.finish().await.during(&doing)?;
        }
        Ok(Sum {
            rows,
            hash: hasher.finalize().into(),
        })
    }
}

impl Table {
    fn within(&self, schema: &str) -> String {
        format!("{schema}.\"{}\"", self.name)
    }

    /// Whether every database has this table's rows, even without an installation.
    fn is_of_the_format(&self) -> bool {
        ["meta", "ledger", "audit_tree"].contains(&self.name.as_str())
    }

    /// Excludes the marks of this file, which are not copied.
    fn but_marks(&self) -> String {
        if self.name == "meta" {
            format!("WHERE name NOT IN ('{MOVED_TO}', '{MOVED_FROM}') ")
        } else {
            String::new()
        }
    }
}

/// A summary of an installation.
#[derive(Default)]
struct Print(Sha256);

impl Print {
    fn add(&mut self, schema: &str, table: &Table, sum: &Sum) {
        self.0
            .update(format!("{schema}.{} {} ", table.name, sum.rows));
        self.0.update(sum.hash);
    }

    fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Opens the file with an exclusive lock.
async fn alone(path: &Path) -> Result<SqliteConnection, TransferError> {
    if !path.is_file() {
        let folder = path.parent().unwrap_or(Path::new("."));
        return Err(TransferError::NoSource(folder.display().to_string()));
    }
    let in_use = |error: sqlx::Error| {
        if sqlite::is_busy(&error) {
            TransferError::SourceInUse
        } else {
            Fault::new("opening the SQLite data", error).into()
        }
    };
    let mut connection = File::prepare(path)?.connect_alone().await.map_err(in_use)?;
    for statement in ["BEGIN EXCLUSIVE", "COMMIT"] {
        sqlx::query(statement)
            .execute(&mut connection)
            .await
            .map_err(in_use)?;
    }
    Ok(connection)
}

async fn own_meta(connection: &mut SqliteConnection, name: &str) -> Result<Option<String>, Fault> {
    let found: Option<(String,)> = sqlx::query_as(meta::GET)
        .bind(name)
        .fetch_optional(connection)
        .await
        .during("reading the SQLite data")?;
    Ok(found.map(|(value,)| value))
}

/// Like [`own_meta`], for the schema of a PostgreSQL connection; also `None` if the schema is empty.
async fn schema_meta(connection: &mut Connection, name: &str) -> Result<Option<String>, Fault> {
    let doing = "inspecting the target";
    let row = connection.row(HAS_META.postgres, &[]).await.during(doing)?;
    let n_tables: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
    if n_tables == 0 {
        return Ok(None);
    }
    let name = [crate::database::dialect::Arg::Text(name)];
    let row = connection.row(meta::GET, &name).await.during(doing)?;
    row.map(|row| row.get(0)).transpose().during(doing)
}

fn check_format(
    end: &'static str,
    found: Option<String>,
    steps: &[Step],
) -> Result<(), TransferError> {
    let ours = steps.iter().map(|step| step.format).max().unwrap_or(0);
    if found.as_deref() == Some(&ours.to_string()) {
        return Ok(());
    }
    Err(TransferError::OtherVersion {
        end,
        found: found.unwrap_or_else(|| "none".to_owned()),
        ours,
    })
}

/// All tables, ordered so that referenced tables come first.
async fn tables(connection: &mut SqliteConnection) -> Result<Vec<Table>, Fault> {
    let doing = "listing the tables";
    let found = sqlx::query(
        "SELECT t.name, group_concat('\"' || c.name || '\"', ', '), \
           (SELECT group_concat('\"' || k.name || '\"', ', ') FROM \
             (SELECT name FROM pragma_table_info(t.name) WHERE pk > 0 ORDER BY pk) k), \
           EXISTS (SELECT 1 FROM pragma_foreign_key_list(t.name)) AS refers \
         FROM sqlite_schema t, pragma_table_info(t.name) c \
         WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
         GROUP BY t.name ORDER BY refers, t.name",
    )
    .fetch_all(connection)
    .await
    .during(doing)?;
    found
        .iter()
        .map(|row| {
            Ok(Table {
                name: row.try_get(0)?,
                columns: row.try_get(1)?,
                key: row.try_get(2)?,
            })
        })
        .collect::<Result<_, sqlx::Error>>()
        .during(doing)
}

/// Tables with automatic row numbers, and the last number assigned.
async fn numbered(connection: &mut SqliteConnection) -> Result<Vec<(String, i64)>, Fault> {
    let doing = "reading the numbering";
    let (n_tables,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_sequence'")
            .fetch_one(&mut *connection)
            .await
            .during(doing)?;
    if n_tables == 0 {
        return Ok(Vec::new());
    }
    sqlx::query_as("SELECT name, seq FROM sqlite_sequence WHERE seq > 0 ORDER BY name")
        .fetch_all(connection)
        .await
        .during(doing)
}

async fn holds_something(
    to: &mut PgConnection,
    schema: &str,
    table: &Table,
) -> Result<bool, Fault> {
    let location = table.within(schema);
    let look = match table.name.as_str() {
        "meta" => return Ok(false),
        "ledger" => format!("SELECT EXISTS (SELECT 1 FROM {location} WHERE revision > 0)"),
        "audit_tree" => format!("SELECT EXISTS (SELECT 1 FROM {location} WHERE size > 0)"),
        _ => format!("SELECT EXISTS (SELECT 1 FROM {location})"),
    };
    let (holds,): (bool,) = sqlx::query_as(AssertSqlSafe(look))
        .fetch_one(to)
        .await
        .during("checking whether the target is empty")?;
    Ok(holds)
}

async fn read_back(to: &mut PgConnection, schema: &str, table: &Table) -> Result<Sum, Fault> {
    let doing = format!("reading table `{}` back", table.name);
    let copy = format!(
        "COPY (SELECT {} FROM {} ORDER BY {}) TO STDOUT",
        table.columns,
        table.within(schema),
        table.key
    );
    let mut hasher = Sha256::new();
    let mut rows = 0;
    let mut found = to.copy_out_raw(&copy).await.during(&doing)?;
    // The server sends the rows one at a time.
    while let Some(row) = found.try_next().await.during(&doing)? {
        hasher.update(&row);
        rows += 1;
    }
    Ok(Sum {
        rows,
        hash: hasher.finalize().into(),
    })
}

async fn run(to: &mut PgConnection, statements: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements).into_sql_str())
        .execute(to)
        .await
        .map(drop)
}

/// A line in `COPY`'s text format, exactly as PostgreSQL writes it.
fn write_row(row: &SqliteRow, line: &mut Vec<u8>) -> Result<(), sqlx::Error> {
    for index in 0..row.len() {
        if index > 0 {
            line.push(b'\t');
        }
        let value = row.try_get_raw(index)?;
        if value.is_null() {
            line.extend_from_slice(b"\\N");
            continue;
        }
        let kind = value.type_info().name().to_owned();
        match kind.as_str() {
            "TEXT" => write_text(row.try_get(index)?, line),
            "BLOB" => {
                line.extend_from_slice(b"\\\\x");
                for byte in row.try_get::<&[u8], _>(index)? {
                    line.push(HEX[usize::from(byte >> 4)]);
                    line.push(HEX[usize::from(byte & 15)]);
                }
            }
            _ => {
                let number: i64 = row.try_get(index)?;
                line.extend_from_slice(number.to_string().as_bytes());
            }
        }
    }
    line.push(b'\n');
    Ok(())
}

fn write_text(text: &str, line: &mut Vec<u8>) {
    for byte in text.bytes() {
        let letter = match byte {
            b'\\' => b'\\',
            0x08 => b'b',
            0x09 => b't',
            0x0a => b'n',
            0x0b => b'v',
            0x0c => b'f',
            0x0d => b'r',
            other => {
                line.push(other);
                continue;
            }
        };
        line.extend_from_slice(&[b'\\', letter]);
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";
