//! culvert: one binary that puts services behind public addresses, records what passed and who
//! changed what, and sends that knowledge where it is needed.
//!
//! A library only so that the integration tests can start the real server in their own process.

pub mod agent;
mod among_nodes;
pub mod cli;
pub mod client;
mod clouds;
pub mod config;
pub mod data_dir_lock;
pub mod demo;
mod ingress;
pub mod issuer;
pub mod keys;
mod memory;
pub mod metrics;
mod rate_exchange;
pub mod reload;
pub mod server;
pub mod telemetry;
