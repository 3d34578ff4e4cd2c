//! Destinations of events: one target for each remote system, and the clients that they share.
//!
//! The contract that targets fulfil is in `crates/culvert-target`, and so are the HTTP client behind the address guard,
//! batches and failures. Only the program depends on this crate: it hands [`TYPES`] to control when it makes it.
//!
//! # What targets share
//!
//! `crates/culvert-destinations/src/config/mod.rs` reads configurations.
//! `crates/culvert-destinations/src/client/http_failure.rs` classifies the failures that responses report.
//! `crates/culvert-destinations/src/client/tls_client.rs` checks servers that do not speak HTTP and gives their
//! libraries addresses only. `crates/culvert-destinations/src/client/aws.rs` sends requests to Amazon and knows its
//! errors. `crates/culvert-destinations/src/client/amqp.rs` and `crates/culvert-destinations/src/client/kafka.rs` speak
//! to brokers whose published clients connect to any address that a broker names.
//!
//! # Spans
//!
//! Spans of traced requests are no events: no account has them, and nothing stores them. [`spans`] exports them with
//! the same client and messages as the `otlp` target.
//!
//! # A new target
//!
//! A target is a file in [`target`] that exports a `static TYPE`, and two lines in its `mod.rs`.
//!
//! Not here: when a batch is sent, and what follows a failure (`crates/culvert-delivery`), and which destinations
//! exist (`crates/culvert-event-config`).

mod client;
mod config;
pub mod spans;
pub mod target;

pub use target::TYPES;

#[cfg(test)]
mod tests;
