//! culvert: one binary that publishes services at public addresses, records traffic and changes, and delivers these
//! records as events.
//!
//! It is a library only so that integration tests can run the server in their process.

pub mod agent;
pub mod apply;
mod certificate_file;
pub mod cli;
pub mod client;
mod cloud_destinations;
mod cluster;
pub mod config;
pub mod data_dir_lock;
pub mod demo;
mod failure;
pub mod import;
mod ingress;
mod installation;
pub mod issuer;
pub mod keys;
mod memory;
pub mod metrics;
mod profile;
mod rate_exchange;
pub mod reload;
pub mod server;
mod signals;
mod statistics;
mod system_clock;
pub mod telemetry;
mod to_agents;
