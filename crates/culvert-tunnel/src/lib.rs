//! Agents: programs beside a service that dial in and carry connections to it.
//!
//! [`driver`] runs the multiplexer over a socket and gives its streams to ordinary asynchronous
//! code. [`wire`] holds the messages that agents and servers exchange on those streams. [`server`]
//! is the end that agents dial, [`client`] an agent of our own, [`nodes`] the way to agents of another node.
//!
//! Not here: where traffic comes from and what happens to it, and whose agent it is.

pub mod client;
pub mod driver;
pub mod nodes;
pub mod server;
mod socket;
pub mod wire;
