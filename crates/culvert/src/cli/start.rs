//! `culvert start`: an agent with the endpoints of a file.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;

use super::{CommandType, Failure};
use crate::agent::file;
use crate::agent::plan::{Identity, read_text, with_server};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "start",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .about("Start the endpoints of a configuration file")
        .arg(
            Arg::new("config")
                .long("config")
                .required(true)
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("YAML or JSON file"),
        )
        .arg(
            Arg::new("names")
                .num_args(0..)
                .value_name("NAME")
                .help("Names of endpoints to start [default: all]"),
        );
    with_server(command)
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some(path) = matches.get_one::<PathBuf>("config") else {
            return Err(Failure::Usage("no file given".into()));
        };
        let names: Vec<&str> = matches
            .get_many::<String>("names")
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let file = file::read(&read_text(path)?, path, &names)?;
        let plan = Identity::of(&matches)?
            .or(file.identity)
            .plan(file.endpoints)?;
        crate::agent::run(plan).await
    })
}
