//! culvert: one binary that publishes services at public addresses, records traffic and changes, and delivers these
//! records as events.
//!
//! It links the commands of all crates. It is a library only so that integration tests can run the server in their
//! process.

pub mod cli;
pub mod demo;

// The integration tests name these here.
pub use culvert_cli::client;
pub use culvert_installation::{config, keys};
pub use culvert_metrics as metrics;
pub use culvert_server::{server, telemetry};
