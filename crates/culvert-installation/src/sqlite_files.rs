//! The files of an installation on SQLite: whether all are there, whole, and of the same installation.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use culvert_base::{Clock, Entropy, Fault};
use culvert_command::with_causes;
use culvert_resources::stored::lost_events::LostEvents;
use culvert_store::{INSTALLATION, InstallationFiles, Queue, Store, StoreUrl};

use crate::config::Settings;
use crate::process_context::{Access, store_url};

/// How to get a file back.
pub const RESTORE: &str =
    "restore the data directory from a backup that `culvert admin backup` made";
/// Length of an ID.
const ID_CHARS: usize = 32;

/// The files, unless the installation is on PostgreSQL.
pub fn files(settings: &Settings) -> Option<InstallationFiles> {
    match store_url(settings) {
        StoreUrl::Sqlite(path) => Some(InstallationFiles::at(&path)),
        StoreUrl::Postgres(_) => None,
    }
}

/// Whether a file has content.
pub fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.len() > 0)
}

/// What remains of an installation whose state is missing, as a clause. `None` if there is a state, or if nothing
/// remains.
pub fn remains_without_state(settings: &Settings) -> Option<String> {
    let files = files(settings)?;
    if has_content(files.state()) {
        return None;
    }
    let folder = files.state().parent()?;
    // A key elsewhere may have been made for a new installation.
    let key = settings.key_file();
    let rest = match () {
        () if has_content(files.events()) => files.events(),
        () if key.parent() == Some(folder) && has_content(&key) => &key,
        () => return None,
    };
    Some(format!(
        "`{}` is missing or empty beside `{}`",
        files.state().display(),
        rest.display()
    ))
}

/// Fails if the state of an installation is missing, rather than begin another installation beside its other files.
pub fn refuse_without_state(settings: &Settings) -> Result<()> {
    match remains_without_state(settings) {
        Some(what) => bail!(
            "{what}; {RESTORE}, or move `{}` away to begin a new installation",
            settings.data_dir.display()
        ),
        None => Ok(()),
    }
}

/// If the events of an installation are missing, logs it and returns the name of their file. Opening the
/// state creates it, so this comes first: [`Unopened::new`](crate::process_context::Unopened::new).
pub(crate) fn missing_events(settings: &Settings) -> Option<String> {
    let files = files(settings)?;
    if !has_content(files.state()) || has_content(files.events()) {
        return None;
    }
    tracing::error!(file = %files.events().display(),
        "the file of the events is missing: events that waited in it are lost, and an empty file begins");
    Some(name_of(files.events()))
}

/// The loss with a missing file of events, of this start or an earlier one, that has no event yet.
pub(crate) async fn note_missing(
    store: &Store,
    file: Option<String>,
    clock: &dyn Clock,
) -> Result<Option<LostEvents>> {
    let noted = LostEvents::with_missing(store, file.as_deref(), clock.now()).await;
    match noted {
        // The log has it.
        Err(fault) if store.is_read_only() => {
            tracing::warn!(
                error = fault.chain(),
                "the loss of events cannot be recorded"
            );
            Ok(None)
        }
        noted => noted.map_err(with_causes),
    }
}

/// The losses with each damaged file that this start or an earlier one set aside.
pub(crate) async fn damaged_events(settings: &Settings) -> Vec<LostEvents> {
    let mut lost = Vec::new();
    let Some(files) = files(settings) else {
        return lost;
    };
    for file in files.set_aside() {
        let deliveries = files.waiting_in(&file).await;
        lost.push(LostEvents::with_damaged(name_of(&file), deliveries));
    }
    lost
}

fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Opens the queue. A damaged file of events does not keep the server down: it is set aside, and an empty one begins.
pub(crate) async fn open_queue(
    settings: &Settings,
    access: Access,
    clock: &Arc<dyn Clock>,
) -> Result<Queue> {
    let url = store_url(settings);
    let files = files(settings);
    let damage = match (Queue::open(&url, Arc::clone(clock)).await, &files) {
        (Ok(queue), _) => return Ok(queue),
        (Err(fault), Some(files)) if access != Access::Shared => {
            match files.set_aside_damaged_events(&**clock).await {
                Ok(Some(aside)) => aside,
                Ok(None) => return Err(of_file(fault)),
                Err(why) => return Err(of_file(why)),
            }
        }
        (Err(fault), _) => return Err(of_file(fault)),
    };
    let (file, defect) = damage;
    tracing::error!(file = %file.display(), defect,
        "the file of the events was damaged and is set aside: events that waited in it are lost, and an empty file begins");
    Queue::open(&url, Arc::clone(clock)).await.map_err(of_file)
}

/// A fault of a database file. If the file is damaged, a second line says the way out.
pub(crate) fn of_file(fault: Fault) -> anyhow::Error {
    /// SQLite's `SQLITE_CORRUPT` and `SQLITE_NOTADB`.
    const DAMAGED: [&str; 2] = ["(code 11)", "(code 26)"];
    let error = with_causes(fault);
    let text = error.to_string();
    match DAMAGED.iter().any(|code| text.contains(code)) {
        true => anyhow::anyhow!("{text}\nThe file is damaged: {RESTORE}."),
        false => error,
    }
}

/// Fails if the events belong to another installation than the state. A new installation, or one of an older version,
/// gets its ID.
pub(crate) async fn agree_on_id(
    settings: &Settings,
    store: &Store,
    queue: &Queue,
    entropy: &dyn Entropy,
) -> Result<()> {
    let Some(files) = files(settings) else {
        return Ok(());
    };
    // Through open connections: a disk that takes no writes needs special ones.
    let (state, events) = tokio::join!(store.meta_get(INSTALLATION), queue.installation());
    let ids = [state.map_err(with_causes)?, events.map_err(with_causes)?];
    let id = match ids {
        [Some(state), Some(events)] if state == events => return Ok(()),
        [Some(_), Some(_)] => bail!(
            "`{}` belongs to another installation than `{}`; {RESTORE}",
            files.events().display(),
            files.state().display()
        ),
        [Some(id), None] | [None, Some(id)] => id,
        [None, None] => entropy.text(b"0123456789abcdef", ID_CHARS),
    };
    match files.set_id(&id).await {
        Ok(()) => Ok(()),
        // A later start writes it.
        Err(fault) if store.is_read_only() => {
            tracing::warn!(
                error = fault.chain(),
                "the disk takes no writes: the installation has no ID yet"
            );
            Ok(())
        }
        Err(fault) => Err(with_causes(fault)),
    }
}
