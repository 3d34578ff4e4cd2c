//! The commands of operators and users, but for those that run or maintain a server or run an agent: they call the
//! management API, compare it with files, and examine an installation.
//!
//! Not here: the control plane, which the program links ([`linked`]), what the importers read (`culvert-import`), and how
//! settings and data are opened (`culvert-installation`).

pub mod apply;
pub mod client;
pub mod commands;
pub mod linked;
