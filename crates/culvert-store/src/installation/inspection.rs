//! Inspects the databases of an installation without changing them: their formats, the effect of a start of this
//! program, and their clock.

use std::fs;

use culvert_base::{Clock, Fault, Timestamp};

use crate::database::dialect::{Access, Arg, Row, Site, While};
use crate::database::migrate::Step;
use crate::database::statements::{HAS_META, NOW, meta, state};
use crate::database::store_url::StoreUrl;
use crate::database::{DatabasePart, STATE};
use crate::database::{postgres, sqlite};
use crate::document::{Document, Head};
use crate::queue::EVENTS;

/// One of the two databases of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// File name or schema.
    pub name: String,
    /// The format of the data; `None` if the database is empty or does not exist.
    pub format: Option<i64>,
    /// The oldest format whose program can use the data.
    pub min_reader: i64,
    /// The newest format that this program reads; it is the format after a start of this program, unless the data
    /// has a newer one.
    pub newest: i64,
    /// The `min_reader` of the data after a start of this program.
    pub min_reader_after: i64,
    /// Size of the SQLite file in bytes; `None` for PostgreSQL.
    pub bytes: Option<u64>,
    /// How far the clock of the database server is ahead of the clock of this machine, in milliseconds; negative if
    /// it is behind. `None` for SQLite, which uses the clock of this machine, and without a database.
    pub clock_ahead_ms: Option<i64>,
}

impl Inspection {
    /// Whether this program can use the data.
    pub fn is_readable(&self) -> bool {
        self.format.is_none() || self.min_reader <= self.newest
    }

    /// Whether a start of this program migrates the data.
    pub fn is_migrated(&self) -> bool {
        self.is_readable() && self.format.is_some_and(|format| format < self.newest)
    }

    /// Whether programs of the current format can no longer use the data after a start of this program.
    pub fn excludes_older(&self) -> bool {
        self.is_migrated()
            && self
                .format
                .is_some_and(|format| format < self.min_reader_after)
    }
}

/// Reads the formats of the state and of the event queue. Writes nothing and creates nothing.
///
/// # Errors
/// If a database exists and cannot be read.
pub async fn inspect(url: &StoreUrl, clock: &dyn Clock) -> Result<[Inspection; 2], Fault> {
    Ok([
        inspect_part(url, STATE, clock).await?,
        inspect_part(url, EVENTS, clock).await?,
    ])
}

async fn inspect_part(
    url: &StoreUrl,
    part: DatabasePart,
    clock: &dyn Clock,
) -> Result<Inspection, Fault> {
    let doing = "inspecting the database";
    let (site, name, bytes) = match url {
        StoreUrl::Sqlite(path) => {
            let path = match part.file {
                Some(name) => path.with_file_name(name),
                None => path.clone(),
            };
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            match fs::metadata(&path) {
                Ok(found) if found.len() > 0 => {
                    let bytes = Some(found.len());
                    (Site::Sqlite(sqlite::File::at(&path)), name, bytes)
                }
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Fault::new(
                        format!("inspecting `{}`", path.display()),
                        error,
                    ));
                }
                _ => return Ok(judge(name, None, part.steps)),
            }
        }
        StoreUrl::Postgres(url) => {
            let schema = postgres::Schema::at(url, part.schema)?;
            (Site::Postgres(schema), part.schema.to_owned(), None)
        }
    };
    let mut connection = site.connect(Access::Read).await.during(doing)?;
    let mut clock_ahead_ms = None;
    if let Site::Postgres(_) = site {
        let asked_at = clock.now();
        let row = connection.row(site.spell(NOW), &[]).await.during(doing)?;
        let micros: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        clock_ahead_ms = Some(ahead_ms(micros, asked_at, clock.now()));
    }
    let row = connection
        .row(site.spell(HAS_META), &[])
        .await
        .during(doing)?;
    let n_tables: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
    let mut numbers = [None; 2];
    if n_tables > 0 {
        for (number, name) in numbers.iter_mut().zip(["format", "min_reader"]) {
            let row = connection.row(meta::GET, &[Arg::Text(name)]).await;
            let text: Option<String> = row
                .during(doing)?
                .map(|row| row.get(0))
                .transpose()
                .during(doing)?;
            *number = text.and_then(|text| text.parse::<i64>().ok());
        }
    }
    connection.close().await;
    let found = match numbers {
        [Some(format), Some(min_reader)] => Some((format, min_reader)),
        [None, None] => None,
        _ => {
            let why = format!("{doing}: `{name}` does not name its format");
            return Err(Fault::bare(why));
        }
    };
    Ok(Inspection {
        bytes,
        clock_ahead_ms,
        ..judge(name, found, part.steps)
    })
}

/// The IDs and bodies of the documents of a kind. Writes nothing and creates nothing; the database must exist in a format
/// that this program reads.
///
/// # Errors
/// If the database cannot be read.
pub async fn inspect_documents(url: &StoreUrl, kind: &str) -> Result<Vec<Document>, Fault> {
    let doing = "inspecting the database";
    let site = match url {
        StoreUrl::Sqlite(path) => Site::Sqlite(sqlite::File::at(path)),
        StoreUrl::Postgres(url) => Site::Postgres(postgres::Schema::at(url, STATE.schema)?),
    };
    let mut connection = site.connect(Access::Read).await.during(doing)?;
    let rows = connection.rows(state::BODIES, &[Arg::Text(kind)]).await;
    let rows = rows.during(doing)?;
    connection.close().await;
    let document = |row: &Row| {
        Ok(Document {
            head: Head {
                id: row.get(0)?,
                kind: kind.to_owned(),
                account: row.get(1)?,
                revision: 0,
                created_at: Timestamp::default(),
                updated_at: Timestamp::default(),
            },
            body: row.get(2)?,
            keys: Vec::new(),
            refs: Vec::new(),
            topics: Vec::new(),
        })
    };
    let documents = rows.iter().map(document);
    documents.collect::<Result<_, sqlx::Error>>().during(doing)
}

/// The time of the response is assigned to the middle between request and response.
fn ahead_ms(micros: i64, asked_at: Timestamp, received_at: Timestamp) -> i64 {
    let middle = asked_at.plus(received_at.since(asked_at) / 2);
    let theirs = Timestamp::from_unix_nanos(micros.saturating_mul(1_000));
    let millis = |span: std::time::Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    match theirs >= middle {
        true => millis(theirs.since(middle)),
        false => -millis(middle.since(theirs)),
    }
}

/// `found` is format and oldest reader of the data.
fn judge(name: String, found: Option<(i64, i64)>, steps: &[Step]) -> Inspection {
    let newest = steps.iter().map(|step| step.format).max().unwrap_or(0);
    let last = steps.iter().max_by_key(|step| step.format);
    let (format, min_reader) = found.unzip();
    let min_reader = min_reader.unwrap_or(0);
    let min_reader_after = match last {
        Some(last) if format.is_none_or(|format| format < last.format) => last.min_reader,
        _ => min_reader,
    };
    Inspection {
        name,
        format,
        min_reader,
        newest,
        min_reader_after,
        bytes: None,
        clock_ahead_ms: None,
    }
}
