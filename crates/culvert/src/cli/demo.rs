//! `culvert demo`: a complete installation with sample traffic.

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::BoxFuture;

use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "demo",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Run a demo server on free ports with temporary data, and show a key, a request and its event")
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Exit after the first delivered traffic event; fail after 60 s without one"),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move { Ok(Box::pin(crate::demo::run(matches.get_flag("once"))).await?) })
}
