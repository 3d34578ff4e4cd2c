//! Why a command failed, and how it prints.

use std::fmt;
use std::io::{ErrorKind, Write};

use culvert_base::Fault;

use crate::invalid::Invalid;

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
    Configuration(Invalid),
    /// Exit code 70.
    Broken(String),
    /// Stopped by Ctrl+C; says how far it came. Exit code 130, as of other programs that SIGINT ends.
    Stopped(String),
    /// The reader of standard output closed it, as `| head` does. Exit code 0, and nothing is printed.
    ReaderLeft,
}

/// Prints one line on standard output.
///
/// # Errors
/// If the reader has closed it, or it cannot be written.
pub fn say(line: impl fmt::Display) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::ReaderLeft,
        _ => Failure::Failed(format!("cannot write the output: {error}")),
    })
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Invalid>() {
            Ok(invalid) => Self::Configuration(invalid),
            Err(error) if error.is::<BrokenDisk>() => Self::Broken(error.to_string()),
            Err(error) => Self::Failed(culvert_base::chain(error.as_ref())),
        }
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::Configuration(invalid)
    }
}

/// The disk failed a write that must be durable. Exit code 70.
#[derive(Debug)]
pub struct BrokenDisk;

impl fmt::Display for BrokenDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk failed a durable write; later writes were not acknowledged")
    }
}

impl std::error::Error for BrokenDisk {}

/// A fault that may pass, with its causes as text.
#[derive(Debug)]
struct Passing(String);

impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Passing {}

/// Converts a fault, with its causes, for the command line.
pub fn with_causes(fault: Fault) -> anyhow::Error {
    match fault.is_passing() {
        true => anyhow::Error::new(Passing(fault.chain())),
        false => anyhow::Error::msg(fault.chain()),
    }
}

/// Whether the cause of an error may pass without a change of the configuration: the database is away, or read only.
pub fn may_pass(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Passing>() || cause.downcast_ref::<Fault>().is_some_and(Fault::is_passing)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_error_that_may_pass_is_recognised_below_its_context() {
        let passing = || Fault::bare("read only").passing();
        for error in [with_causes(passing()), anyhow::Error::new(passing())] {
            assert!(may_pass(&error));
            let above = Err::<(), _>(error).context("starting").unwrap_err();
            assert!(may_pass(&above));
            assert_eq!(format!("{above:#}"), "starting: read only");
        }
        assert!(!may_pass(&with_causes(Fault::bare("a wrong key"))));
    }
}
