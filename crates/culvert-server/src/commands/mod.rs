//! The commands of the server: a table, with one file for each.

pub mod openapi;
pub mod serve;

use culvert_command::{CommandType, Failure, say};

/// Every command, sorted by name.
pub static ALL: &[&CommandType] = &[&openapi::TYPE, &serve::TYPE];
