//! Settings as flags of a command.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_command::Failure;
use sha2::{Digest, Sha256};

use crate::config::{self, Settings};

/// Adds `--config` and a flag for each setting.
pub fn with_settings(command: Command) -> Command {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Configuration file [default: ./culvert.toml, otherwise /etc/culvert/culvert.toml]");
    let mut command = command.arg(file);
    for key in config::keys() {
        command = command.arg(
            Arg::new(&*key.name)
                .long(key.flag())
                .value_name("VALUE")
                .action(ArgAction::Set)
                .help(&*key.doc)
                .hide_short_help(true)
                .help_heading("Settings"),
        );
    }
    command
}

/// The settings of a command built with [`with_settings`].
///
/// # Errors
/// If they are invalid, or the command line has a secret.
pub fn settings_of(matches: &ArgMatches) -> Result<Settings, Failure> {
    let flags: Vec<(String, String)> = config::keys()
        .iter()
        // Secrets have no flags, because every user of the machine can read command lines.
        .filter_map(|key| {
            Some((
                key.name.clone(),
                matches.get_one::<String>(&key.name)?.clone(),
            ))
        })
        .collect();
    if flags.iter().any(|(name, _)| name == "bootstrap.api_key") {
        let text = "other users can see a token on the command line; set CULVERT_BOOTSTRAP__API_KEY instead";
        return Err(Failure::Usage(text.into()));
    }
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    Ok(config::load(file, &config::environment(), &flags)?)
}

/// SHA-256 of the settings file of the command line, in hexadecimal; `None` without a file.
pub fn file_digest(matches: &ArgMatches) -> Option<String> {
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let bytes = std::fs::read(config::file_used(file)?).ok()?;
    Some(culvert_base::text::hex(&Sha256::digest(bytes)))
}
