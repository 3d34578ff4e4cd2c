//! `culvert completions <shell>`.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use culvert_base::BoxFuture;

use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "completions",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.about("Print a completion script for a shell").arg(
        Arg::new("shell")
            .required(true)
            .value_parser(value_parser!(Shell)),
    )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        if let Some(shell) = matches.get_one::<Shell>("shell") {
            clap_complete::generate(
                *shell,
                &mut super::command(),
                "culvert",
                &mut std::io::stdout(),
            );
        }
        Ok(())
    })
}
