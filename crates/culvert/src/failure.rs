//! Why a command failed, and how it prints.

use std::fmt;
use std::io::{ErrorKind, Write};

use crate::config;
use crate::server::BrokenDisk;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1.
    Failed(String),
    /// Exit code 2.
    Usage(String),
    /// The files and the server differ, as printed. Exit code 3.
    Differs,
    /// Exit code 78.
    Configuration(config::Invalid),
    /// Exit code 70.
    Broken(String),
    /// The reader of standard output closed it, as `| head` does. Exit code 0, and nothing is printed.
    ReaderLeft,
}

/// Prints one line on standard output.
pub(crate) fn say(line: impl fmt::Display) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::ReaderLeft,
        _ => Failure::Failed(format!("cannot write the output: {error}")),
    })
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<config::Invalid>() {
            Ok(invalid) => Self::Configuration(invalid),
            Err(error) if error.is::<BrokenDisk>() => Self::Broken(error.to_string()),
            Err(error) => Self::Failed(culvert_base::chain(error.as_ref())),
        }
    }
}

impl From<config::Invalid> for Failure {
    fn from(invalid: config::Invalid) -> Self {
        Self::Configuration(invalid)
    }
}
