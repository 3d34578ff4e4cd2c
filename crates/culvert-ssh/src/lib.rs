//! Reverse tunnels for stock SSH clients: `ssh -R 443:localhost:80 v2@host http`.
//!
//! ```text
//! accept ─▶ key known? ─▶ forward and command ─▶ endpoint ─▶ its connections as channels
//! ```
//!
//! An SSH client is a kind of agent: the tunnel's authorizer checks its key and grants its endpoint, and its
//! session ends for the same reasons (agent protocol, section 9). russh implements the protocol. This crate defines the
//! operations that a connection may do, and their limits.
//!
//! Owners of keys and the routing of traffic are elsewhere.

mod cancellable;
mod certificate;
mod command;
mod connection;
pub mod fuzz;
mod held;
mod key;
mod listener;

pub use key::HostKey;
pub use listener::SshIngress;
