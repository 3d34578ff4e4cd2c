//! `culvert config check` and `culvert config show`.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;

use super::{CommandType, Failure, say, settings_of, with_settings};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "config",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Check or show the effective configuration")
        .subcommand_required(true)
        .subcommand(with_settings(
            Command::new("check").about("Validate the configuration"),
        ))
        .subcommand(with_settings(
            Command::new("show").about("Print the effective settings as JSON, without secrets"),
        ))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((name, matches)) = matches.subcommand() else {
            return Ok(());
        };
        let settings = settings_of(matches)?;
        if name == "show" {
            say(format_args!("{:#}", settings.shown()))
        } else {
            say("the configuration is valid")
        }
    })
}
