//! `culvert policy`: checks files with traffic policies, and serves editors. Needs no server.

mod check;
mod language_server;
mod messages;

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_policy::Scheme;
use culvert_policy_editor::check::Place;

use super::output::format;
use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "policy",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let scheme = || {
        Arg::new("scheme")
            .long("scheme")
            .value_name("SCHEME")
            .value_parser(Scheme::ALL.map(Scheme::name))
            .default_value("https")
            .help("Scheme of the endpoint that has the policy")
    };
    let no_upstream = || {
        Arg::new("no-upstream")
            .long("no-upstream")
            .action(ArgAction::SetTrue)
            .help("The endpoint has no upstream, so the policy must handle all requests")
    };
    command
        .about("Check traffic policies in files, or serve an editor that writes them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("check")
                .about("Print the problems of policies as `file:line:column: message`; fails if there is an error")
                .arg(
                    Arg::new("file")
                        .value_name("FILE")
                        .num_args(1..)
                        .required(true)
                        .help("Files with one policy each, in YAML or JSON; `-` is standard input"),
                )
                .arg(scheme())
                .arg(no_upstream())
                .arg(format(Some("text"), "Format of the problems")),
        )
        .subcommand(
            Command::new("lsp")
                .about("Serve an editor over standard input and output (language server protocol): problems, completion, hover")
                .arg(scheme())
                .arg(no_upstream()),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        match matches.subcommand() {
            Some(("check", given)) => check::run(given),
            Some((_, given)) => language_server::run(&place(given)),
            None => Ok(()),
        }
    })
}

/// The endpoint that the flags describe.
fn place(given: &ArgMatches) -> Place {
    let name = given.get_one::<String>("scheme").map(String::as_str);
    let scheme = Scheme::ALL
        .into_iter()
        .find(|scheme| Some(scheme.name()) == name);
    Place::offline(
        scheme.unwrap_or(Scheme::Https),
        !given.get_flag("no-upstream"),
    )
}
