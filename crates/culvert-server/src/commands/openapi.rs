//! `culvert openapi`: the OpenAPI document of the management API.

use clap::{Arg, ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_destinations::TYPES;

use super::{CommandType, Failure, say};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "openapi",
    arguments,
    run,
};

const OLD: &str = "3.0";

fn arguments(command: Command) -> Command {
    command
        .about("Print the OpenAPI document of the management API")
        .arg(
            Arg::new("oas")
                .long("oas")
                .value_name("VERSION")
                .value_parser(["3.1", OLD])
                .default_value("3.1")
                .help("Version of OpenAPI: 3.1, or 3.0 for client generators that do not read 3.1"),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let document = culvert_api::openapi(culvert_control::operation_specs(), |generator| {
            TYPES.schema(generator)
        });
        let version = matches.get_one::<String>("oas").map(String::as_str);
        say(match version {
            Some(OLD) => format!("{:#}", culvert_api::openapi_3_0(document)),
            _ => format!("{document:#}"),
        })
    })
}
