//! `culvert tcp`: an agent with one tcp endpoint.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_tunnel::client::Protocol;

use super::{CommandType, Failure};
use crate::config::plan::{plan_of, with_endpoint, with_server};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "tcp",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command.about("Expose a local TCP service");
    with_server(with_endpoint(command, Protocol::Tcp))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move { crate::run(plan_of(&matches, Protocol::Tcp)?).await })
}
