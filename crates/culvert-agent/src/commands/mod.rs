//! The commands of the agent: a table, with one file for each.

pub mod http;
pub mod start;
pub mod tcp;
pub mod tls;

use clap::Command;
use culvert_command::{CommandType, Failure, version};

/// Every command, sorted by name.
pub static ALL: &[&CommandType] = &[&http::TYPE, &start::TYPE, &tcp::TYPE, &tls::TYPE];

/// The command line of the program `culvert-agent`.
pub fn program() -> Command {
    let program = Command::new("culvert-agent")
        .version(version())
        .about("Publishes local services at the addresses of a culvert server")
        .subcommand_required(true)
        .arg_required_else_help(true);
    ALL.iter().fold(program, |program, command| {
        program.subcommand((command.arguments)(Command::new(command.name)))
    })
}
