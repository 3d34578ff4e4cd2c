//! `culvert openapi`: the OpenAPI document of the management API.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_destinations::TYPES;

use super::{CommandType, Failure, say};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "openapi",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.about("Print the OpenAPI document of the management API")
}

fn run(_: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let document = culvert_api::openapi(culvert_control::operation_specs(), |generator| {
            TYPES.schema(generator)
        });
        say(format_args!("{document:#}"))
    })
}
