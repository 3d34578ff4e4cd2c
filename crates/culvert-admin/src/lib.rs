//! `culvert admin`: offline maintenance of the data directory or the database.

mod audit_key;
mod audit_tree;
mod operator;
mod restored_log;
mod transfer;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use culvert_base::{BoxFuture, OsEntropy, SystemClock};

use culvert_command::{CommandType, Failure, say, with_causes};
use culvert_control::{AdminCommand, Bootstrap, ServerLog, texts, token};
use culvert_installation::audit_key::AuditKey;
use culvert_installation::config::Settings;
use culvert_installation::sqlite_files;
use culvert_installation::{Access, ProcessContext};
use culvert_installation::{storage_settings_of, with_settings};

/// The command.
pub static TYPE: CommandType = CommandType {
    name: "admin",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Maintain an installation directly on its data directory or database")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(with_settings(
            Command::new("create-key")
                .about("Create another admin API key and print its token"),
        ))
        .subcommand(
            Command::new("generate-token")
                .about("Generate a token for `bootstrap.api_key` of a new installation"),
        )
        .subcommand(with_settings(Command::new("lift-api-restriction").about(
            "Disable the IP restriction of the management API, in case it blocks you",
        )))
        .subcommand(with_settings(Command::new("rotate-master-key").about(
            "Re-encrypt all secrets with a new master key; stop all servers first, then copy the key file to every node",
        )))
        .subcommand(with_settings(Command::new("rotate-audit-key").about(
            "Replace the key that signs the heads of the audit log; prints the last head with the signatures of both keys",
        )))
        .subcommand(with_settings(Command::new("rebuild-audit-tree").about(
            "Compute the tree over the audit log again and replace its damaged parts, while servers run or not",
        )))
        .subcommand(with_settings(Command::new("acknowledge-restore").about(
            "Sign the audit log again after a restored database ended it, with the next number in its origin (`+1`)",
        )))
        .subcommand(
            with_settings(
                Command::new("backup")
                    .about("Back up a SQLite installation, running or stopped"),
            )
            .arg(
                Arg::new("folder")
                    .required(true)
                    .value_parser(value_parser!(PathBuf))
                    .help("Directory to create; it must not exist"),
            )
            .arg(
                Arg::new("master-key-to")
                    .long("master-key-to")
                    .value_name("FILE")
                    .value_parser(value_parser!(PathBuf))
                    .help("Also copy the master key to this file, which must be outside the directory and must not exist"),
            ),
        )
        .subcommand(transfer::command())
        .subcommand(with_settings(
            Command::new("check").about("Check the integrity of the database"),
        ))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((name, given)) = matches.subcommand() else {
            return Ok(());
        };
        if name == "generate-token" {
            say(token::Form::Prefixed
                .generate(&SystemClock, &OsEntropy)
                .reveal())?;
            return Ok(());
        }
        if name == "move" {
            return Box::pin(transfer::run(given)).await;
        }
        let settings = storage_settings_of(given)?;
        // On PostgreSQL, nodes may run on other machines. They notice a rotation and stop on their own.
        let needs_all_stopped = name == "rotate-master-key" && settings.database_url.is_empty();
        let access = match needs_all_stopped {
            true => Access::Exclusive,
            false => Access::Shared,
        };
        // A descriptor is read before others are opened, and only for the commands that need the key.
        let needs_key = matches!(name, "rotate-audit-key" | "acknowledge-restore");
        let key = needs_key.then(|| AuditKey::open(&settings)).transpose()?;
        let context = existing(&settings, access).await?;
        let command = operator::command(name);
        let outcome = match (name, &key) {
            ("create-key", _) => create_key(&context, &command).await,
            ("lift-api-restriction", _) => lift_api_restriction(&context, &command).await,
            ("check", _) => check(&context).await,
            ("rotate-audit-key", Some(key)) => {
                // A descriptor is refused before the event, which is written before anything is changed.
                key.file()?;
                let written = server_log(&context).commanded(&command).await;
                written.map_err(with_causes)?;
                audit_key::rotate(&context, key).await
            }
            ("rebuild-audit-tree", _) => audit_tree::rebuild(&context, &command).await,
            ("acknowledge-restore", Some(key)) => {
                restored_log::acknowledge(&context, (&settings, key), &command).await
            }
            ("rotate-master-key", _) => rotate_master_key(&context, &settings, &command).await,
            _ => {
                let folder = given
                    .get_one::<PathBuf>("folder")
                    .cloned()
                    .unwrap_or_default();
                let key_file = given.get_one::<PathBuf>("master-key-to");
                backup(&context, &settings, (&folder, key_file), &command).await
            }
        };
        context.close().await;
        Ok(outcome?)
    })
}

/// Opens the installation of the settings. Unlike a server, it does not create one.
async fn existing(settings: &Settings, access: Access) -> Result<ProcessContext, Failure> {
    sqlite_files::refuse_without_state(settings)?;
    let files = sqlite_files::files(settings);
    let lacks = |path: &Path| !sqlite_files::has_content(path);
    if let Some(files) = &files
        && lacks(files.state())
    {
        let text = format!(
            "no installation in `{}`; set its directory with `--data-dir`",
            settings.data_dir.display()
        );
        return Err(Failure::Failed(text));
    }
    if let Some(files) = &files
        && lacks(files.events())
    {
        let text = format!(
            "`{}` is missing or empty; {}",
            files.events().display(),
            sqlite_files::RESTORE
        );
        return Err(Failure::Failed(text));
    }
    Ok(ProcessContext::open(settings, access, texts()).await?)
}

/// Writes the events of commands.
fn server_log(context: &ProcessContext) -> ServerLog {
    ServerLog::new(
        context.store.clone(),
        context.clock.clone(),
        context.entropy.clone(),
    )
}

/// Makes administrators and their keys.
fn bootstrap(context: &ProcessContext) -> Bootstrap<'_> {
    Bootstrap {
        ids: &context.ids,
        store: &context.store,
        clock: &*context.clock,
        entropy: &*context.entropy,
        pepper: &context.pepper,
        base: &context.base_url,
        domain: &context.domain,
        token_form: context.token_form,
    }
}

async fn create_key(context: &ProcessContext, command: &AdminCommand) -> anyhow::Result<()> {
    let bootstrap = bootstrap(context);
    let token = bootstrap.admin_key(command).await.map_err(with_causes)?;
    say(token.reveal())?;
    Ok(())
}

async fn lift_api_restriction(
    context: &ProcessContext,
    command: &AdminCommand,
) -> anyhow::Result<()> {
    let bootstrap = bootstrap(context);
    match bootstrap
        .lift_api_restriction(command)
        .await
        .map_err(with_causes)?
    {
        0 => say("no IP restriction of the management API is enforced")?,
        _ => say("the IP restriction of the management API is no longer enforced")?,
    }
    Ok(())
}

async fn rotate_master_key(
    context: &ProcessContext,
    settings: &Settings,
    command: &AdminCommand,
) -> anyhow::Result<()> {
    // The first event is written before anything is changed.
    let log = server_log(context);
    let cause = log.commanded(command).await.map_err(with_causes)?;
    let reencrypted = context.rotate_master_key(settings).await?;
    log.master_key_rotated(command, cause.as_deref(), reencrypted)
        .await
        .map_err(with_causes)?;
    say(format_args!(
        "created a new master key in `{}`; re-encrypted objects: {}",
        settings.key_file().display(),
        reencrypted.documents
    ))?;
    if reencrypted.strange > 0 {
        eprintln!(
            "culvert: {} values look like encrypted secrets but are not; they are unchanged",
            reencrypted.strange
        );
    }
    Ok(())
}

async fn check(context: &ProcessContext) -> anyhow::Result<()> {
    context.store.check().await.map_err(with_causes)?;
    context.queue.check().await.map_err(with_causes)?;
    say("the state and the event queue are intact")?;
    let log = context.store.audit_log();
    let extent = log.verify(None).await?;
    say(extent.summary(log.verify_beginning().await?))?;
    Ok(())
}

/// The copy does not contain the master key, so its holder cannot decrypt its secrets.
async fn backup(
    context: &ProcessContext,
    settings: &Settings,
    (folder, key_file): (&PathBuf, Option<&PathBuf>),
    command: &AdminCommand,
) -> anyhow::Result<()> {
    for path in key_file.into_iter().chain([folder]) {
        if path.exists() {
            anyhow::bail!("`{}` exists already", path.display());
        }
    }
    if let Some(file) = key_file
        && std::path::absolute(file)?.starts_with(std::path::absolute(folder)?)
    {
        anyhow::bail!("the master key decrypts the backup and must be stored outside it");
    }
    // Another backup to the same directory may run at the same time: of both, one makes it.
    make_new_folder(folder)?;
    let copied = copy_all(context, settings, (folder, key_file), command).await;
    if copied.is_err() {
        // Removes an incomplete backup, which would block the next one.
        drop(std::fs::remove_dir_all(folder));
    }
    copied?;
    say(format_args!("copied to `{}`", folder.display()))?;
    match key_file {
        Some(file) => say(format_args!(
            "copied the master key to `{}`; store it apart from the backup",
            file.display()
        ))?,
        None => say(format_args!(
            "the backup does not contain the master key; a restore requires `{}`",
            settings.key_file().display()
        ))?,
    }
    Ok(())
}

/// Makes a directory that did not exist, so that nothing in it is of others.
fn make_new_folder(folder: &Path) -> anyhow::Result<()> {
    make_parent(folder)?;
    let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
    made.with_context(|| format!("creating the directory `{}`", folder.display()))
}

fn make_parent(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent();
    match parent.filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => culvert_installation::keys::make_data_dir(parent),
        None => Ok(()),
    }
}

async fn copy_all(
    context: &ProcessContext,
    settings: &Settings,
    (folder, key_file): (&PathBuf, Option<&PathBuf>),
    command: &AdminCommand,
) -> anyhow::Result<()> {
    // The key file comes first, because it can fail when the copy succeeds.
    if let Some(file) = key_file {
        let key = std::fs::read_to_string(settings.key_file()).context("reading the master key")?;
        make_parent(file)?;
        culvert_installation::keys::write_private(file, &key)?;
    }
    let copied = copy_to(context, folder, command, key_file.is_some()).await;
    if copied.is_err() {
        drop(key_file.map(std::fs::remove_file));
    }
    copied
}

async fn copy_to(
    context: &ProcessContext,
    folder: &Path,
    command: &AdminCommand,
    has_key: bool,
) -> anyhow::Result<()> {
    // Before the copy, which has the event too: a copy without one must not exist.
    let absolute = std::path::absolute(folder)?;
    server_log(context)
        .backup_made(command, &absolute.to_string_lossy(), has_key)
        .await
        .map_err(with_causes)?;
    let (queue, store) = (folder.join("events.db"), folder.join("state.db"));
    let log = server_log(context);
    let copied = log.back_up(&context.queue, (&queue, &store)).await;
    if !copied.map_err(with_causes)? {
        eprintln!(
            "the copy took so long that a record of the traffic log was made meanwhile; `culvert audit verify --traffic` of the backup fails"
        );
    }
    Ok(())
}
