//! A table of commands, with one file for each.
//!
//! Machine-readable output is JSON on standard output.
#![allow(
    clippy::print_stdout,
    reason = "the command line is the one place that prints"
)]

pub mod api;
pub mod apply;
pub mod audit;
pub mod diff;
pub mod doctor;
pub mod events;
pub mod health;
pub mod import;
pub mod login;
pub mod logout;
mod output;
pub mod policy;
mod prompt;
pub mod service;
pub mod settings;
pub mod setup;
pub mod status;
mod table;
pub mod upgrade;
pub mod version;
pub mod whoami;
pub mod witness;

use culvert_command::{CommandType, Failure, say, version};

use crate::linked::Linked;

/// The commands of a program with this control plane.
pub fn of(linked: Linked) -> &'static [&'static CommandType] {
    linked.announce();
    ALL
}

/// Every command, sorted by name.
pub static ALL: &[&CommandType] = &[
    &api::TYPE,
    &apply::TYPE,
    &audit::TYPE,
    &diff::TYPE,
    &doctor::TYPE,
    &events::TYPE,
    &health::TYPE,
    &import::TYPE,
    &login::TYPE,
    &logout::TYPE,
    &policy::TYPE,
    &service::TYPE,
    &settings::TYPE,
    &setup::TYPE,
    &status::TYPE,
    &upgrade::TYPE,
    &version::TYPE,
    &whoami::TYPE,
    &witness::TYPE,
];
