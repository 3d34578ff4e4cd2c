//! `culvert admin move`: copies the SQLite data of a data directory to a PostgreSQL database.

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::SystemClock;
use culvert_store::{StoreUrl, Transfer, TransferError, undo_transfer};

use crate::operator;
use culvert_command::{Failure, say, with_causes};
use culvert_control::texts;
use culvert_installation::config::Settings;
use culvert_installation::data_dir_lock::DataDirLock;
use culvert_installation::keys;
use culvert_installation::{Access, MASTER_KEY_MARK, ProcessContext};
use culvert_installation::{storage_settings_of, with_settings};

pub(super) fn command() -> Command {
    with_settings(Command::new("move").about(
        "Migrate SQLite data to an empty PostgreSQL database; stop the server first, then start it with `database_url`",
    ))
    .arg(
        Arg::new("to")
            .long("to")
            .value_name("URL")
            .help("PostgreSQL URL of the database [default: `database_url`, which keeps the password off the command line]"),
    )
    .arg(
        Arg::new("again")
            .long("again")
            .action(ArgAction::SetTrue)
            .help("Migrate data again after an earlier target database was abandoned"),
    )
    .arg(
        Arg::new("undo")
            .long("undo")
            .action(ArgAction::SetTrue)
            .conflicts_with_all(["to", "again"])
            .help("Enable the SQLite data again, without later changes in PostgreSQL"),
    )
}

pub(super) async fn run(given: &ArgMatches) -> Result<(), Failure> {
    let settings = storage_settings_of(given)?;
    let state = settings.data_dir.join("state.db");
    // A running server would continue to write to the source.
    let _lock = match state.is_file() {
        true => {
            let lock = DataDirLock::acquire(&settings.data_dir, &settings.node());
            Some(lock.map_err(|error| Failure::Failed(format!("{error:#} (source_in_use)")))?)
        }
        false => None,
    };
    if given.get_flag("undo") {
        return match undo_transfer(&state).await.map_err(refused)? {
            Some(place) => {
                let settings = Settings {
                    database_url: String::new(),
                    ..settings
                };
                let context = ProcessContext::open(&settings, Access::Shared, texts()).await?;
                let recorded = record(&context).await;
                context.close().await;
                recorded?;
                say(format_args!(
                    "the SQLite data is enabled again; the data in {place} is unchanged"
                ))
            }
            None => say("the SQLite data was not migrated"),
        };
    }
    let to = match given.get_one::<String>("to") {
        Some(to) => to.clone(),
        None => settings.database_url.clone(),
    };
    if !matches!(to.parse(), Ok(StoreUrl::Postgres(_))) {
        let text = "set the target database with `--to postgres://…` or `database_url`";
        return Err(Failure::Usage(text.to_owned()));
    }
    let key_file = settings.key_file();
    let Some(master) = keys::load(&key_file)? else {
        return Err(Failure::Failed(format!(
            "no master key in `{}`; without it the migrated data cannot be decrypted (no_master_key)",
            key_file.display()
        )));
    };
    let mut transfer = Transfer::begin(&state, &to, given.get_flag("again"), &SystemClock)
        .await
        .map_err(refused)?;
    let mark = transfer
        .meta_get(MASTER_KEY_MARK)
        .await
        .map_err(with_causes)?;
    if mark.is_some_and(|mark| !master.is_marked(&mark)) {
        return Err(Failure::Failed(format!(
            "the master key in `{}` does not match the SQLite data (other_master_key)",
            key_file.display()
        )));
    }
    let moved = transfer.run().await.map_err(refused)?;
    let n_rows = |name: &str| {
        let found = moved.rows.iter().find(|(table, _)| table == name);
        found.map_or(0, |(_, rows)| *rows)
    };
    let was = if moved.was_there {
        "was already migrated"
    } else {
        "is migrated"
    };
    say(format_args!(
        "the data {was}: documents={} audit_events={} batches={} dead_letters={}",
        n_rows("document"),
        n_rows("outbox"),
        n_rows("batch"),
        n_rows("dead_letter")
    ))?;
    verify_copy(Settings {
        database_url: to,
        ..settings
    })
    .await?;
    say(format_args!(
        "start all servers with `database_url` set to {} and with this `master.key`; the SQLite files are unchanged and no longer used",
        moved.location
    ))
}

/// Writes the event of the command to the database that is used from now on. The copy of a migration gets none: it must
/// equal its source until a server uses it.
async fn record(context: &ProcessContext) -> anyhow::Result<()> {
    let command = operator::command("move");
    let recorded = super::server_log(context).commanded(&command).await;
    recorded.map(drop).map_err(with_causes)
}

/// Opens the copy as a server would, and verifies it.
async fn verify_copy(settings: Settings) -> Result<(), Failure> {
    let context = ProcessContext::open(&settings, Access::Shared, texts()).await?;
    let looked = async {
        context.store.check().await.map_err(with_causes)?;
        context.queue.check().await.map_err(with_causes)?;
        let log = context.store.audit_log();
        let extent = log.verify(None).await?;
        // A copy of a log that lacks events is a right copy.
        let beginning = log.verify_beginning().await;
        let summary = beginning.map(|it| extent.summary(it));
        Ok::<_, anyhow::Error>(summary.unwrap_or_else(|missing| missing.to_string()))
    };
    let summary = looked.await;
    context.close().await;
    say(summary?)
}

fn refused(error: TransferError) -> Failure {
    let code = error.code();
    match error {
        TransferError::Fault(fault) => Failure::Failed(fault.chain()),
        other => Failure::Failed(format!("{other} ({code})")),
    }
}
