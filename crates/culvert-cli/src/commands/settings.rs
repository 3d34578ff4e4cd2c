//! `culvert config`: checks and shows configurations, and saves the tokens and addresses of this user.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, value_parser};
use culvert_base::{BoxFuture, Secret};

use super::login::absolute;
use super::prompt::ask_secret;
use super::{CommandType, Failure, say};
use crate::linked::Linked;
use culvert_agent::config::file::{self, Selection};
use culvert_command::Profile;
use culvert_installation::{settings_of, with_settings};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "config",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let token = || {
        Arg::new("token")
            .value_name("TOKEN")
            .help("The token; without it, the command asks for it or reads standard input, and no other user can see it")
    };
    command
        .about("Check or show a configuration, or save tokens and addresses for the commands of this user")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(with_settings(Command::new("check").about(
            "Validate the configuration of the server with the files and addresses that it names, or that of an agent if --config is a YAML or JSON file",
        )))
        .subcommand(with_settings(
            Command::new("show").about("Print the effective settings as JSON, without secrets"),
        ))
        .subcommand(
            Command::new("add-authtoken")
                .about("Save the authtoken of agents")
                .arg(token())
                .arg(
                    Arg::new("server")
                        .long("server")
                        .value_name("HOST:PORT")
                        .help("Address of the agent ingress; the token is sent to no other server"),
                )
                .arg(
                    Arg::new("ca")
                        .long("ca")
                        .value_name("FILE")
                        .requires("server")
                        .value_parser(value_parser!(PathBuf))
                        .help("PEM file of CAs to verify the server"),
                ),
        )
        .subcommand(
            Command::new("add-api-key")
                .about("Save an API key, without the check of `culvert login`")
                .arg(token()),
        )
        .subcommand(
            Command::new("add-connect-url")
                .visible_alias("add-server-addr")
                .about("Save the address of the agent ingress")
                .arg(
                    Arg::new("server")
                        .required(true)
                        .value_name("HOST:PORT")
                        .help("Address; several with commas between them"),
                ),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        match matches.subcommand() {
            Some(("show", given)) => say(format_args!("{:#}", settings_of(given)?.shown())),
            Some(("check", given)) => match given.get_one::<PathBuf>("config") {
                Some(path) if is_of_agent(path) => check_agent(path),
                _ => {
                    let settings = settings_of(given)?;
                    for note in (Linked::get().check_settings)(&settings)? {
                        eprintln!("culvert: warning: {note}");
                    }
                    say("the configuration is valid")
                }
            },
            Some((name, given)) => {
                let mut profile = Profile::load()?;
                let server = || given.get_one::<String>("server").cloned();
                match name {
                    "add-authtoken" => {
                        profile.authtoken = Some(token(given, "authtoken")?);
                        if let Some(server) = server() {
                            profile.server = Some(server);
                            let ca = given.get_one::<PathBuf>("ca");
                            profile.server_ca = ca.map(|path| absolute(path)).transpose()?;
                        }
                    }
                    "add-api-key" => profile.api_key = Some(token(given, "API key")?),
                    _ => {
                        let server = server();
                        if profile.server != server && profile.server.is_some() {
                            // A token goes only to the server that it was saved for.
                            profile.authtoken = None;
                            profile.server_ca = None;
                        }
                        profile.server = server;
                    }
                }
                let path = Profile::path()?;
                profile.save(&path)?;
                say(format_args!("saved in {}", path.display()))
            }
            None => Ok(()),
        }
    })
}

/// Whether a configuration file is one of an agent: those of the server are TOML.
pub(super) fn is_of_agent(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yml" | "yaml" | "json"))
}

fn check_agent(path: &Path) -> Result<(), Failure> {
    let read = file::read(&[path.to_owned()], Selection::Check)?;
    for notice in &read.identity.notices {
        say(notice)?;
    }
    say("the configuration is valid")
}

fn token(given: &ArgMatches, name: &str) -> Result<Secret, Failure> {
    match given.get_one::<String>("token").map(String::as_str) {
        None | Some("-") => ask_secret(name),
        Some(token) => {
            eprintln!(
                "culvert: warning: other users can see the command line; without the token in it, the command asks for it"
            );
            Ok(Secret::new(token.to_owned()))
        }
    }
}
