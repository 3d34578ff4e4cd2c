//! `culvert start`: an agent with the endpoints of a file.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
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
                .required_unless_present("none")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("YAML or JSON file"),
        )
        .arg(
            Arg::new("names")
                .num_args(0..)
                .value_name("NAME")
                .help("Names of endpoints to start [default: all]"),
        )
        .arg(
            Arg::new("none")
                .long("none")
                .action(ArgAction::SetTrue)
                .conflicts_with("names")
                .help("Start no endpoint; programs add them with the API of the inspection page"),
        );
    with_server(command)
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let names: Vec<&str> = matches
            .get_many::<String>("names")
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let names = (!matches.get_flag("none")).then_some(&names[..]);
        let given = Identity::of(&matches)?;
        let plan = match matches.get_one::<PathBuf>("config") {
            Some(path) => {
                let file = file::read(&read_text(path)?, path, names)?;
                given.or(file.identity).plan(file.endpoints)?
            }
            None => given.plan(Vec::new())?,
        };
        crate::agent::run(plan).await
    })
}
