//! The type of commands.

use std::fmt;

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;

use crate::failure::Failure;

/// One command.
pub struct CommandType {
    /// Its name on the command line.
    pub name: &'static str,
    /// Adds arguments and help.
    pub arguments: fn(Command) -> Command,
    /// Runs it.
    pub run: fn(ArgMatches) -> BoxFuture<'static, Result<(), Failure>>,
}

impl fmt::Debug for CommandType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandType")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
