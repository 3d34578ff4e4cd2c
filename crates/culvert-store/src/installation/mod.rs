//! Installations: whether the two SQLite files of one are whole and belong together. Each has the ID of the installation.
//! Beside it, the inspection of an installation, and its transfer to PostgreSQL.

pub(crate) mod inspection;
mod temporary;
pub(crate) mod transfer;

use std::path::{Path, PathBuf};

use culvert_base::{Clock, Fault};

use crate::database::dialect::{Access, Arg, Connection, Site, While};
use crate::database::sqlite;
use crate::database::statements::{HAS_META, events, meta};
use crate::queue::EVENTS;
use crate::store::Store;

pub use self::temporary::TemporaryStore;

/// Name of the value with the ID.
pub const INSTALLATION: &str = "installation";
/// SQLite's codes for a damaged file, and for one that is no database.
const CORRUPT: i32 = 11;
const NOT_A_DATABASE: i32 = 26;

/// How thoroughly a file is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As at each start.
    Quick,
    /// Also that indexes match their tables, and that references have targets.
    Deep,
}

/// The two files of an installation.
#[derive(Clone, Debug)]
pub struct InstallationFiles {
    state: PathBuf,
    events: PathBuf,
}

impl InstallationFiles {
    /// The files of the installation whose state is at `state`.
    pub fn at(state: &Path) -> Self {
        let events = EVENTS.file.unwrap_or_default();
        Self {
            state: state.to_owned(),
            events: state.with_file_name(events),
        }
    }

    /// The file of the state.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The file of the events.
    pub fn events(&self) -> &Path {
        &self.events
    }

    /// Whether the disk takes writes.
    pub fn takes_writes(&self) -> bool {
        sqlite::File::at(&self.state).probe().is_ok()
    }

    /// The IDs in the state and in the events. `None` for a file that is missing, empty, or of an older version.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub async fn ids(&self) -> Result<[Option<String>; 2], Fault> {
        Ok([id_of(&self.state).await?, id_of(&self.events).await?])
    }

    /// Writes the ID into both files.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub async fn set_id(&self, id: &str) -> Result<(), Fault> {
        let doing = "writing the ID of the installation";
        for path in [&self.state, &self.events] {
            let site = Site::Sqlite(sqlite::File::at(path));
            let mut connection = site.connect(Access::Write).await.during(doing)?;
            let values = [Arg::Text(INSTALLATION), Arg::Text(id)];
            let written = connection.run(meta::SET, &values).await;
            connection.close().await;
            written.during(doing)?;
        }
        Ok(())
    }

    /// The defects of each file that exists, with the file's path. Writes nothing.
    ///
    /// # Errors
    /// If a file cannot be read for another reason than its damage.
    pub async fn defects(&self, depth: Depth) -> Result<Vec<(PathBuf, String)>, Fault> {
        let mut defects = Vec::new();
        for path in [&self.state, &self.events] {
            if let Some(defect) = defect_of(path, depth).await? {
                defects.push((path.clone(), defect));
            }
        }
        Ok(defects)
    }

    /// If the file of the events is damaged, renames it, so that the next start begins an empty one. Returns its new
    /// name and the damage. No process may have it open.
    ///
    /// # Errors
    /// If the file cannot be read for another reason, or not renamed.
    pub async fn set_aside_damaged_events(
        &self,
        clock: &dyn Clock,
    ) -> Result<Option<(PathBuf, String)>, Fault> {
        let Some(defect) = defect_of(&self.events, Depth::Quick).await? else {
            return Ok(None);
        };
        let seconds = clock.now().unix_nanos() / 1_000_000_000;
        let to = sqlite::beside(&self.events, &format!("{SET_ASIDE}{seconds}"));
        for part in ["-wal", "-shm", ""] {
            let from = sqlite::beside(&self.events, part);
            match std::fs::rename(&from, sqlite::beside(&to, part)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let doing = format!("setting the damaged file `{}` aside", from.display());
                    return Err(Fault::new(doing, error));
                }
                _ => {}
            }
        }
        Ok(Some((to, defect)))
    }

    /// How many deliveries waited in a file of events that no process uses. `None` if that cannot be read.
    pub async fn waiting_in(&self, file: &Path) -> Option<u64> {
        let site = Site::Sqlite(sqlite::File::at(file));
        let mut connection = site.connect(Access::Read).await.ok()?;
        let row = connection.row(events::WAITING, &[]).await;
        connection.close().await;
        let number: i64 = row.ok()??.get(0).ok()?;
        u64::try_from(number).ok()
    }

    /// The damaged files of events that were set aside and are still there, the oldest first.
    pub fn set_aside(&self) -> Vec<PathBuf> {
        set_aside_beside(&self.events)
    }
}

/// The files that were set aside because this one was damaged, the oldest first.
pub(crate) fn set_aside_beside(events: &Path) -> Vec<PathBuf> {
    let folder = events.parent().unwrap_or(Path::new("."));
    let prefix = sqlite::beside(events, SET_ASIDE);
    let prefix = prefix.to_string_lossy().into_owned();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| {
            let path = path.to_string_lossy();
            let rest = path.strip_prefix(&*prefix);
            rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .collect();
    found.sort();
    found
}

impl Store {
    /// The random ID of the database on PostgreSQL, which all nodes share; `None` on SQLite, and if it has none yet.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn database_id(&self) -> Result<Option<String>, Fault> {
        match self.shared.database.site {
            Site::Sqlite(_) => Ok(None),
            Site::Postgres(_) => self.meta_get(INSTALLATION).await,
        }
    }

    /// Gives a PostgreSQL database its ID, unless it has one.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub async fn make_database_id(&self) -> Result<(), Fault> {
        let doing = "writing the ID of the database";
        if let Site::Postgres(_) = self.shared.database.site
            && self.meta_get(INSTALLATION).await?.is_none()
        {
            // Of nodes that do this at the same time, one writes.
            let name = [Arg::Text(INSTALLATION)];
            self.pool().row(doing, meta::MAKE_RANDOM, &name).await?;
        }
        Ok(())
    }
}

/// What the name of a file that was set aside has after its former name, before the time.
const SET_ASIDE: &str = ".damaged-";

fn is_missing_or_empty(path: &Path) -> bool {
    std::fs::metadata(path).map_or_else(
        |error| error.kind() == std::io::ErrorKind::NotFound,
        |found| found.len() == 0,
    )
}

async fn id_of(path: &Path) -> Result<Option<String>, Fault> {
    if is_missing_or_empty(path) {
        return Ok(None);
    }
    let doing = "reading the ID of the installation";
    let site = Site::Sqlite(sqlite::File::at(path));
    let mut connection = site.connect(Access::Read).await.during(doing)?;
    let id = read_id(&mut connection, &site).await;
    connection.close().await;
    id.during(doing)
}

async fn read_id(connection: &mut Connection, site: &Site) -> Result<Option<String>, sqlx::Error> {
    let tables = connection.row(site.spell(HAS_META), &[]).await?;
    let n_tables: i64 = tables.map_or(Ok(0), |row| row.get(0))?;
    if n_tables == 0 {
        return Ok(None);
    }
    let row = connection
        .row(meta::GET, &[Arg::Text(INSTALLATION)])
        .await?;
    row.map(|row| row.get(0)).transpose()
}

async fn defect_of(path: &Path, depth: Depth) -> Result<Option<String>, Fault> {
    if is_missing_or_empty(path) {
        return Ok(None);
    }
    let checking = async {
        let mut connection = sqlite::File::at(path)
            .connect(Access::Read)
            .await
            .map(Connection::Sqlite)?;
        let check = match depth {
            Depth::Quick => sqlite::Check::Quick,
            Depth::Deep => sqlite::Check::Whole,
        };
        let problems = sqlite::problems(&mut connection, check).await;
        connection.close().await;
        problems
    };
    match checking.await {
        Ok(problems) if problems.is_empty() => Ok(None),
        Ok(problems) => Ok(Some(problems.join("; "))),
        Err(error) if is_damage(&error) => Ok(Some(error.to_string())),
        Err(error) => Err(Fault::new(
            format!("checking the database `{}`", path.display()),
            error,
        )),
    }
}

/// Whether SQLite says that the file is damaged.
fn is_damage(error: &sqlx::Error) -> bool {
    let code = sqlite::code_of(error).map(|code| code & 0xFF);
    matches!(code, Some(CORRUPT | NOT_A_DATABASE))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::sync::Arc;

    use culvert_base::SystemClock;

    use super::*;
    use crate::{Queue, StoreUrl};

    #[tokio::test]
    async fn damage_is_found_and_only_damaged_events_are_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let files = InstallationFiles::at(&folder.path().join("state.db"));
        let url = StoreUrl::Sqlite(files.state().to_owned());
        assert_eq!(files.ids().await.unwrap(), [None, None]);
        let queue = Queue::open(&url, Arc::new(SystemClock)).await.unwrap();
        queue.close().await;
        assert_eq!(files.defects(Depth::Deep).await.unwrap(), []);
        let aside = files.set_aside_damaged_events(&SystemClock).await.unwrap();
        assert_eq!(aside, None);

        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .open(files.events())
            .unwrap();
        let length = file.metadata().unwrap().len();
        for page in (1..length / 4096).step_by(2) {
            file.seek(SeekFrom::Start(page * 4096)).unwrap();
            file.write_all(&[0xA5; 4096]).unwrap();
        }
        drop(file);
        let defects = files.defects(Depth::Quick).await.unwrap();
        assert_eq!(defects[0].0, files.events());
        let aside = files.set_aside_damaged_events(&SystemClock).await.unwrap();
        let (aside, _) = aside.unwrap();
        // The pages of its tables are garbage.
        assert_eq!(files.waiting_in(&aside).await, None);
        assert_eq!(files.set_aside(), [aside]);
        let queue = Queue::open(&url, Arc::new(SystemClock)).await.unwrap();
        queue.close().await;
        assert_eq!(files.defects(Depth::Quick).await.unwrap(), []);

        std::fs::write(files.events(), [7; 8192]).unwrap();
        assert_eq!(files.defects(Depth::Quick).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn both_files_get_the_same_id() {
        let folder = tempfile::tempdir().unwrap();
        let files = InstallationFiles::at(&folder.path().join("state.db"));
        let url = StoreUrl::Sqlite(files.state().to_owned());
        let store = Store::open(&url, Arc::new(SystemClock), crate::Texts::default()).await;
        store.unwrap().close().await;
        let queue = Queue::open(&url, Arc::new(SystemClock)).await.unwrap();
        assert_eq!(files.ids().await.unwrap(), [None, None]);
        files.set_id("one").await.unwrap();
        queue.close().await;
        let one = || Some("one".to_owned());
        assert_eq!(files.ids().await.unwrap(), [one(), one()]);
    }
}
