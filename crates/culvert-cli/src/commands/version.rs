//! `culvert version`: prints the version.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;

use super::{CommandType, Failure, say};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "version",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.about("Print the version, like --version")
}

fn run(_: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move { say(format_args!("culvert {}", super::version())) })
}
