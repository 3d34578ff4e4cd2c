//! The data directory, the master key, the databases and the clock.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_base::Clock;
use culvert_store::{Depth, Inspection, inspect};

use super::report::Report;
use culvert_installation::config::{Role, Settings};
use culvert_installation::edge_copy::EdgeCopy;
use culvert_installation::keys;
use culvert_installation::sqlite_files;
use culvert_installation::store_url;
use culvert_resources::access::grant::grants_of_upgrade;
use culvert_resources::stored::seal::Seal;

use crate::linked::Linked;

/// Free disk space below which writes may fail soon, and below which it is time to act.
const FREE_BYTES_MIN: u64 = 64 << 20;
const FREE_BYTES_LOW: u64 = 1 << 30;
/// Leases and sessions of nodes are measured in seconds.
const CLOCK_AHEAD_MS_MAX: u64 = 2_000;
/// Tolerance for the time of a file that was just written.
const AHEAD_MAX: Duration = Duration::from_secs(60);
/// Present while systemd runs its time client, and once that has set the clock.
const TIMESYNC: &str = "/run/systemd/timesync";

pub(super) async fn examine(
    settings: &Settings,
    clock: &dyn Clock,
    depth: Depth,
    report: &mut Report,
) {
    let can_read = examine_folder(&settings.data_dir, report);
    if can_read {
        examine_files(settings, depth, report).await;
    }
    let found = match can_read {
        true => examine_databases(settings, clock, report).await,
        false => None,
    };
    if can_read {
        let is_in_use = found
            .as_ref()
            .is_some_and(|found| found[0].format.is_some());
        examine_key(settings, is_in_use, report);
        examine_copy(settings, clock, report);
        let is_readable = found.as_ref().is_some_and(|found| {
            found[0].is_readable() && !found[0].is_migrated() && found[0].format.is_some()
        });
        if is_readable {
            examine_grants(settings, report).await;
            examine_policies(settings, clock, report).await;
        }
    }
    examine_clock(settings, clock, found.as_ref(), report);
}

/// Whether the files of an installation on SQLite are there, whole, and belong together.
async fn examine_files(settings: &Settings, depth: Depth, report: &mut Report) {
    let Some(files) = sqlite_files::files(settings) else {
        return;
    };
    if let Some(what) = sqlite_files::remains_without_state(settings) {
        return report.fail("store", what, sqlite_files::RESTORE);
    }
    if !sqlite_files::has_content(files.state()) {
        return;
    }
    if !sqlite_files::has_content(files.events()) {
        report.fail(
            "store",
            format!("`{}` is missing or empty", files.events().display()),
            format!(
                "{}; a start without it begins an empty one, and events that waited are lost",
                sqlite_files::RESTORE
            ),
        );
    }
    for file in files.set_aside() {
        report.warn(
            "store",
            format!("a start set the damaged file `{}` aside: events that waited in it are lost", file.display()),
            "replay the events that destinations need with `culvert events replay`, and remove the file",
        );
    }
    match files.defects(depth).await {
        Ok(defects) if defects.is_empty() => match depth {
            Depth::Quick => report.ok(
                "store",
                "a quick check of the database files finds no damage",
            ),
            Depth::Deep => report.ok("store", "the database files are intact"),
        },
        Ok(defects) => {
            for (file, defect) in defects {
                report.fail(
                    "store",
                    format!("`{}` is damaged: {defect}", file.display()),
                    sqlite_files::RESTORE,
                );
            }
            return;
        }
        Err(fault) => {
            let mend = "run this command as the user of the server";
            return report.fail("store", fault.chain(), mend);
        }
    }
    match files.ids().await {
        Ok([Some(state), Some(events)]) if state != events => report.fail(
            "store",
            format!(
                "`{}` belongs to another installation",
                files.events().display()
            ),
            sqlite_files::RESTORE,
        ),
        Ok(_) => {}
        Err(fault) => report.fail("store", fault.chain(), sqlite_files::RESTORE),
    }
}

/// Lists the grants that the upgrade made for references across owners.
async fn examine_grants(settings: &Settings, report: &mut Report) {
    match grants_of_upgrade(&store_url(settings)).await {
        Ok(grants) => {
            for (id, object_id, grantee) in grants {
                report.warn(
                    "grants",
                    format!("`{id}` lets `{grantee}` use `{object_id}`: the upgrade made it for a reference that existed"),
                    format!("delete it if it is not wanted, with `culvert api grants delete {id}`; to keep it, create a grant of your own first"),
                );
            }
        }
        Err(fault) => report.fail(
            "grants",
            fault.chain(),
            "run `culvert admin check` as the user of the server",
        ),
    }
}

/// Lists the traffic policies that may not use their secrets, or may echo them.
async fn examine_policies(settings: &Settings, clock: &dyn Clock, report: &mut Report) {
    // The key has its own findings.
    let Ok(Some(key)) = keys::load(&settings.key_file()) else {
        return;
    };
    let seal = Seal::new(&key.current).with_older(&key.older);
    let misuses = Linked::get().policy_misuses;
    match misuses(store_url(settings), seal, clock.now()).await {
        Ok(misuses) if misuses.is_empty() => {
            report.ok("policies", "no traffic policy misuses a secret");
        }
        Ok(misuses) => {
            for misuse in misuses {
                let (id, why) = (&misuse.endpoint_id, misuse.message.trim_end_matches('.'));
                let what = format!("the endpoint `{id}` ({}): {why}", misuse.url);
                match misuse.is_echo {
                    true => report.warn(
                        "policies",
                        what,
                        "use the secret in a field that takes secrets, or give the endpoint to the owner of the secret; 30 days after the upgrade the endpoint refuses all requests",
                    ),
                    false => report.fail(
                        "policies",
                        what,
                        "the endpoint refuses all requests: grant the use of the vault to its owner, or change the policy",
                    ),
                }
            }
        }
        Err(fault) => report.fail(
            "policies",
            fault.chain(),
            "run `culvert admin check` as the user of the server",
        ),
    }
}

/// Whether the directory can be examined further.
fn examine_folder(folder: &Path, report: &mut Report) -> bool {
    let shown = folder.display();
    let found = match std::fs::metadata(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = folder
                .ancestors()
                .find(|parent| parent.is_dir())
                .map_or_else(|| PathBuf::from("."), Path::to_path_buf);
            report.ok(
                "data",
                format!("`{shown}` does not exist; the first start creates it"),
            );
            examine_space(&parent, report);
            return true;
        }
        Err(error) => {
            report.fail(
                "data",
                format!("`{shown}` cannot be read: {error}"),
                "run this command as the user of the server",
            );
            return false;
        }
    };
    let user = rustix::process::geteuid();
    if !user.is_root() && user.as_raw() != found.uid() {
        report.fail(
            "data",
            format!("`{shown}` belongs to another user (uid {})", found.uid()),
            "run this command as the user of the server, or change the owner of the directory",
        );
        return false;
    }
    match found.mode() & 0o077 {
        0 => report.ok("data", format!("`{shown}` is for its owner alone")),
        _ => report.warn(
            "data",
            format!("other users can access `{shown}`"),
            format!("run `chmod 700 {shown}`"),
        ),
    }
    examine_space(folder, report);
    true
}

fn examine_space(folder: &Path, report: &mut Report) {
    let Ok(found) = rustix::fs::statvfs(folder) else {
        return;
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{} MiB of disk space are free", free >> 20);
    if free < FREE_BYTES_MIN {
        report.fail(
            "data",
            text,
            "free disk space: without it, writes are refused",
        );
    } else if free < FREE_BYTES_LOW {
        report.warn(
            "data",
            text,
            "free disk space, or lower `events.traffic_retention_bytes`",
        );
    } else {
        report.ok("data", text);
    }
}

fn examine_key(settings: &Settings, is_in_use: bool, report: &mut Report) {
    let path = settings.key_file();
    let shown = path.display();
    match keys::load(&path) {
        Ok(Some(key)) if key.each().count() > 1 => report.warn(
            "key",
            format!("a rotation of the master key `{shown}` was interrupted"),
            "stop all servers and run `culvert admin rotate-master-key`",
        ),
        Ok(Some(_)) => report.ok("key", format!("the master key `{shown}` can be read")),
        Ok(None) if is_in_use => report.fail(
            "key",
            format!("the master key `{shown}` is missing, and the stored secrets need it"),
            "restore the file from a backup, copy it from another node, or set `secrets.key_file`",
        ),
        Ok(None) => report.ok(
            "key",
            format!("there is no master key `{shown}`; the first start creates it"),
        ),
        Err(error) => report.fail(
            "key",
            format!("{error:#}"),
            "the file must contain 64 hex digits and be readable by the user of the server alone",
        ),
    }
}

/// The copy of the configuration that a start without the database serves from.
fn examine_copy(settings: &Settings, clock: &dyn Clock, report: &mut Report) {
    let Ok(Some(master)) = keys::load(&settings.key_file()) else {
        return;
    };
    let has_edge = settings.roles.contains(&Role::Edge);
    let Some(age_max) = settings.edge.copy_age_max().filter(|_| has_edge) else {
        return;
    };
    if settings.database_url.is_empty() {
        return;
    }
    let copy = EdgeCopy::of(settings, &master);
    let shown = copy.path().display();
    let refused = |why: anyhow::Error| {
        (
            format!("the copy of the configuration `{shown}` is refused: {why:#}"),
            "start the server while the database is there, and it writes another one; until then, a start without the database serves nothing",
        )
    };
    let facts = match copy.open() {
        Ok(Some(whole)) => whole.facts().clone(),
        Ok(None) => {
            let text = format!("there is no copy of the configuration `{shown}`");
            let mend = "start the server while the database is there: it writes one, for a start while the database is away";
            return report.warn("copy", text, mend);
        }
        Err(why) => {
            let (text, mend) = refused(why);
            return report.warn("copy", text, mend);
        }
    };
    let now = clock.now();
    match facts.check_age(now, age_max) {
        Ok(()) => report.ok(
            "copy",
            format!(
                "the copy of the configuration is {} s old, of revision {}",
                facts.age(now).as_secs(),
                facts.number
            ),
        ),
        Err(why) => {
            let (text, mend) = refused(why);
            report.warn("copy", text, mend);
        }
    }
}

async fn examine_databases(
    settings: &Settings,
    clock: &dyn Clock,
    report: &mut Report,
) -> Option<[Inspection; 2]> {
    let found = match inspect(&store_url(settings), clock).await {
        Ok(found) => found,
        Err(fault) => {
            let mend = match settings.database_url.is_empty() {
                true => "run this command as the user of the server",
                false => {
                    "check that PostgreSQL runs, that `database_url` names host, user and database, and that \
                     `pg_hba.conf` admits this machine"
                }
            };
            report.fail("store", fault.chain(), mend);
            return None;
        }
    };
    for database in &found {
        let name = &database.name;
        match database.format {
            None => report.ok(
                "store",
                format!("`{name}` is empty; the first start creates it"),
            ),
            Some(format) if !database.is_readable() => report.fail(
                "store",
                format!(
                    "`{name}` has format {format}, and this version reads up to {}",
                    database.newest
                ),
                "start the newer version, or restore the backup made before the upgrade",
            ),
            Some(format) if database.is_migrated() => report.warn(
                "store",
                format!("`{name}` has format {format}; the next start migrates it"),
                "`culvert upgrade --check` says what happens",
            ),
            Some(format) => report.ok("store", format!("`{name}` has format {format}")),
        }
    }
    Some(found)
}

fn examine_clock(
    settings: &Settings,
    clock: &dyn Clock,
    found: Option<&[Inspection; 2]>,
    report: &mut Report,
) {
    let before = report.0.len();
    if let Some(ahead) = found.and_then(|found| found[0].clock_ahead_ms) {
        let text = format!("the clock of the database is {ahead} ms ahead of this machine's");
        if ahead.unsigned_abs() > CLOCK_AHEAD_MS_MAX {
            report.warn("clock", text, "synchronize both clocks with NTP");
        }
    }
    // A file of the future was written before the clock was set back.
    let state = std::fs::metadata(settings.data_dir.join("state.db"));
    let now = std::time::UNIX_EPOCH + Duration::from_nanos(clock.now().unix_nanos().unsigned_abs());
    if let Ok(written) = state.and_then(|state| state.modified())
        && written
            .duration_since(now)
            .is_ok_and(|ahead| ahead > AHEAD_MAX)
    {
        report.fail(
            "clock",
            "the clock is behind the last change of the database",
            "set the clock; certificates and leases depend on it",
        );
    }
    let timesync = Path::new(TIMESYNC);
    if timesync.is_dir() && !timesync.join("synchronized").exists() {
        report.warn(
            "clock",
            "the time client of this machine has not synchronized the clock yet",
            "look at `timedatectl timesync-status`",
        );
    }
    if report.0.len() == before {
        report.ok("clock", format!("the time is {}", clock.now()));
    }
}
