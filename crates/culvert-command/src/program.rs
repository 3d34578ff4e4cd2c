//! How a program runs one of its commands.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error, 3 differences found, 70 disk failure, 78 invalid configuration. Errors are one
//! sentence on standard error.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Command;

use crate::command::CommandType;
use crate::failure::Failure;
use crate::memory;

/// Parses the arguments of a program and runs the command that they name.
pub fn run(
    program: Command,
    commands: &[&CommandType],
    arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    let program_name = program.get_name().to_owned();
    let matches = match program.try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            // Help and version are successes; all other cases are usage errors.
            let code = if error.use_stderr() { 2 } else { 0 };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::from(code),
                Err(_) => ExitCode::FAILURE,
            };
        }
    };
    let Some((name, matches)) = matches.subcommand() else {
        return ExitCode::from(2);
    };
    let Some(command) = commands.iter().find(|command| command.name == name) else {
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .on_thread_park(memory::collect)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{program_name}: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on((command.run)(matches.clone()));
    // The command has waited for its work. A blocked thread must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(()) | Err(Failure::ReaderLeft) => ExitCode::SUCCESS,
        Err(Failure::Differs) => ExitCode::from(3),
        Err(Failure::Failed(message)) => {
            eprintln!("{program_name}: {message}");
            ExitCode::FAILURE
        }
        Err(Failure::Usage(message)) => {
            eprintln!("{program_name}: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Stopped(how_far)) => {
            eprintln!("{program_name}: stopped: {how_far}");
            ExitCode::from(130)
        }
        Err(Failure::Broken(message)) => {
            eprintln!("{program_name}: {message}");
            ExitCode::from(70)
        }
        Err(Failure::Configuration(invalid)) => {
            eprintln!("{program_name}: {invalid}");
            ExitCode::from(78)
        }
    }
}

/// The version, with the commit if the build names one, and the platform: `0.2.0 (1a2b3c4d5e6f, x86_64-linux-musl)`.
pub fn version() -> String {
    let libc = if cfg!(target_env = "musl") {
        "musl"
    } else {
        "gnu"
    };
    let platform = format!("{}-{}-{libc}", std::env::consts::ARCH, std::env::consts::OS);
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("CULVERT_COMMIT") {
        Some(commit) if !commit.is_empty() => format!("{version} ({commit}, {platform})"),
        _ => format!("{version} ({platform})"),
    }
}
