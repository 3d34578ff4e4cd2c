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
//!
//! # An SSH client
//!
//! An SSH client (`crates/culvert-ssh`) is an in-process agent (`crates/culvert-tunnel/src/server/in_process.rs`):
//! its key is authorized like a credential, and streams that the edge opens to it go over a connection inside the
//! process, so all other code sees an agent. Its socket can be closed from outside, whatever the protocol above is
//! busy with. The library delivers the bytes of all channels of a client in sequence, so each is read immediately
//! into shared memory (`crates/culvert-ssh/src/held.rs`), and a stalled one is closed when that is full.

mod cancellable;
mod certificate;
mod command;
mod connection;
pub mod fuzz;
mod held;
mod key;
mod listener;

pub use key::{ClientKeyType, HostKey, HostKeyType};
pub use listener::{SshIngress, SshKeys};
