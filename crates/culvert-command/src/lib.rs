//! What all commands share, whichever program has them: their type, their failures with exit codes, how a program runs
//! one of them, the signals that stop it, the memory that it gives back, and the addresses and tokens that a user has saved.
//!
//! Not here: any command, and the settings of a server (`culvert-installation`).

mod command;
mod environment;
mod failure;
mod invalid;
pub mod memory;
mod profile;
mod program;
mod signals;
mod token_file;

pub use command::CommandType;
pub use environment::environment;
pub use failure::{BrokenDisk, Failure, may_pass, print, say, with_causes};
pub use invalid::Invalid;
pub use profile::Profile;
pub use program::{run, version};
pub use signals::StopSignals;
pub use token_file::{id_of, read_token};
