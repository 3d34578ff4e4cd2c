//! Destinations of events: one target for each remote system, and the clients that they share.
//!
//! ```text
//! a stored configuration ─check─▶ open ─▶ target
//!                    a batch of envelopes ─send─▶ target ─▶ verdict
//! ```
//!
//! A [`Target`] sends one [`batch`] and returns a [`Verdict`](target::Verdict), whose [`failure`]s have a class and a
//! text without secrets. It connects through [`Net`], which refuses addresses that the [`guard`] denies. A target knows
//! nothing of the queue that a batch came from, so this crate needs no store.
//!
//! # What targets share
//!
//! `crates/culvert-destinations/src/client/net.rs` is the HTTP client behind the address guard and knows no target and
//! no vendor. `crates/culvert-destinations/src/failure/mod.rs` classifies failures,
//! `crates/culvert-destinations/src/config/mod.rs` reads configurations.
//! `crates/culvert-destinations/src/client/tls_client.rs` checks servers that do not speak HTTP and gives their
//! libraries addresses only. `crates/culvert-destinations/src/client/aws.rs` sends requests to Amazon and knows its
//! errors. `crates/culvert-destinations/src/client/amqp.rs` and `crates/culvert-destinations/src/client/kafka.rs` speak
//! to brokers whose published clients connect to any address that a broker names.
//!
//! # A new target
//!
//! A target is a file in [`target`] that exports a `static TYPE`, and two lines in its `mod.rs`.
//!
//! Not here: when a batch is sent, and what follows a failure (`crates/culvert-delivery`), and which destinations
//! exist (`crates/culvert-event-config`).

pub mod batch;
mod client;
mod config;
pub mod failure;
pub mod target;

pub use client::nats_servers::{NatsLogin, NatsServers};
pub use client::net::Net;
pub use client::{aws, guard, net};
pub use target::{DestinationIds, Target, TargetContext, TargetSettings, TargetType};

#[cfg(test)]
mod tests;
