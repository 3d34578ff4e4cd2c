//! `culvert logout`: removes the saved API key.

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::BoxFuture;

use super::{CommandType, Failure, say};
use culvert_command::Profile;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "logout",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Remove the API key that `culvert login` saved; the key itself stays valid")
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .help("Also remove the saved authtoken and server of agents"),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let saved = Profile::load()?;
        let left = match matches.get_flag("all") {
            true => Profile::default(),
            false => Profile {
                server: saved.server.clone(),
                server_ca: saved.server_ca.clone(),
                authtoken: saved.authtoken.clone(),
                ..Profile::default()
            },
        };
        if left == saved {
            return say("no API key is saved");
        }
        left.save(&Profile::path()?)?;
        say("logged out")
    })
}
