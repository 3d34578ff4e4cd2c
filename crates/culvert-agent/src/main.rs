//! The command `culvert-agent`: the agent alone, for machines that run no server.

use std::process::ExitCode;

use culvert_agent::commands;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    culvert_command::run(commands::program(), commands::ALL, std::env::args_os())
}
