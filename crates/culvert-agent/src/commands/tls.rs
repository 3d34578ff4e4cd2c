//! `culvert tls`: an agent with one tls endpoint.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_tunnel::client::Protocol;

use super::{CommandType, Failure};
use crate::config::plan::{plan_of, with_endpoint, with_server};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "tls",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command.about("Expose a local TLS service with end-to-end encryption");
    with_server(with_endpoint(command, Protocol::Tls))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move { crate::run(plan_of(&matches, Protocol::Tls)?).await })
}
