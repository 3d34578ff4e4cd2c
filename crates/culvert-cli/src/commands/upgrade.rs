//! `culvert upgrade --check`: what a start of this version would do to the databases of an installation.

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::{BoxFuture, SystemClock};
use culvert_store::{Inspection, inspect};
use serde_json::{Value, json};

use super::{CommandType, Failure, say};
use culvert_command::with_causes;
use culvert_installation::config::Settings;
use culvert_installation::store_url;
use culvert_installation::{settings_of, with_settings};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "upgrade",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    with_settings(
        command.about("Say what this version will do to the stored data, without doing it"),
    )
    .arg(
        Arg::new("check")
            .long("check")
            .required(true)
            .action(ArgAction::SetTrue)
            .help("Check only. The upgrade happens at the next start of `culvert serve`"),
    )
    .arg(
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print the result as JSON"),
    )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let settings = settings_of(&matches)?;
        let found = inspect(&store_url(&settings), &SystemClock)
            .await
            .map_err(with_causes)?;
        if matches.get_flag("json") {
            say(format_args!("{:#}", in_json(&found)))?;
        } else {
            for database in &found {
                say(sentence(database, &settings))?;
            }
            if let Some(advice) = advice(&found, &settings) {
                say(advice)?;
            }
        }
        match found.iter().find(|database| !database.is_readable()) {
            Some(database) => Err(Failure::Failed(format!(
                "this version cannot use `{}`; start a newer version",
                database.name
            ))),
            None => Ok(()),
        }
    })
}

fn sentence(database: &Inspection, settings: &Settings) -> String {
    let Inspection { name, newest, .. } = database;
    let Some(format) = database.format else {
        return format!("{name}: empty; the first start creates it in format {newest}");
    };
    if !database.is_readable() {
        let needed = database.min_reader;
        return format!(
            "{name}: format {format} requires a version that reads format {needed}; this version reads up to {newest}"
        );
    }
    if format > *newest {
        return format!(
            "{name}: format {format}, written by a newer version; this version can use it"
        );
    }
    if !database.is_migrated() {
        return format!("{name}: format {format}; no change");
    }
    let copy = match database.bytes {
        Some(bytes) => {
            let copy = settings.data_dir.join(format!("{name}.pre-{}", format + 1));
            format!(
                "the start first copies it to `{}` ({} MiB)",
                copy.display(),
                bytes.div_ceil(1 << 20)
            )
        }
        None => "back up the database first".to_owned(),
    };
    format!("{name}: format {format} becomes {newest}; {copy}")
}

/// How to upgrade, if there is something to migrate.
fn advice(found: &[Inspection], settings: &Settings) -> Option<&'static str> {
    let is_shared = !settings.database_url.is_empty();
    if found.iter().any(Inspection::excludes_older) {
        return Some(match is_shared {
            true => {
                "Stop all nodes before the start of this version: older versions cannot use the data after it."
            }
            false => "Older versions cannot use the data after the start of this version.",
        });
    }
    (is_shared && found.iter().any(Inspection::is_migrated)).then_some(
        "Upgrade one node after another: the version that runs now can use the data after the migration.",
    )
}

fn in_json(found: &[Inspection]) -> Value {
    let databases: Vec<Value> = found
        .iter()
        .map(|database| {
            json!({
                "name": database.name,
                "format": database.format,
                "format_after": database.format.map_or(database.newest, |format| format.max(database.newest)),
                "usable": database.is_readable(),
                "migrates": database.is_migrated(),
                "excludes_running_version": database.excludes_older(),
                "copied_bytes": database.is_migrated().then_some(database.bytes).flatten(),
            })
        })
        .collect();
    json!({"version": env!("CARGO_PKG_VERSION"), "databases": databases})
}
