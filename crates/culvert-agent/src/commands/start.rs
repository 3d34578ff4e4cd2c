//! `culvert start`: an agent with the endpoints of a file.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;

use super::{CommandType, Failure};
use crate::config::file::{self, Selection};
use crate::config::identity::Identity;
use crate::config::plan::with_server;

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
                .action(ArgAction::Append)
                .value_parser(value_parser!(PathBuf))
                .help("YAML or JSON file: ngrok's agent configuration, version 2 or 3. Of several files, later ones take precedence"),
        )
        .arg(
            Arg::new("names")
                .num_args(0..)
                .value_name("NAME")
                .help("Names of endpoints to start [default: all]"),
        )
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["names", "none"])
                .help("Start all endpoints, which is the default"),
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
        let selection = match &names[..] {
            _ if matches.get_flag("none") => Selection::None,
            [] => Selection::All,
            names => Selection::Named(names),
        };
        let given = Identity::of(&matches)?;
        let plan = match matches.get_many::<PathBuf>("config") {
            Some(paths) => {
                let paths: Vec<PathBuf> = paths.cloned().collect();
                let file = file::read(&paths, selection)?;
                given
                    .or(file.identity)
                    .plan(file.endpoints, file.policies)?
            }
            None => given.plan(Vec::new(), Vec::new())?,
        };
        crate::run(plan).await
    })
}
