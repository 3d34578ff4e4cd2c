//! What all commands share: their type and settings.

use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;

use crate::config::{self, Settings};
use crate::failure::Failure;

/// One command.
pub struct CommandType {
    /// Its name on the command line.
    pub name: &'static str,
    /// Adds arguments and help.
    pub arguments: fn(Command) -> Command,
    /// Runs it.
    pub run: fn(ArgMatches) -> BoxFuture<'static, Result<(), Failure>>,
}

impl fmt::Debug for CommandType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandType")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

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
