//! Reverse tunnels of stock SSH clients: `ssh -R 443:localhost:80 v2@host http`.
//!
//! ```text
//! accept ─▶ key known? ─▶ forward and command ─▶ endpoint ─▶ its connections as channels
//! ```
//!
//! A client is a guest of the tunnel: the same gate admits its key and grants its endpoint, and its
//! session ends for the same reasons (agent protocol, section 9). The protocol itself is russh's;
//! here is what a connection may do and how much of it.
//!
//! Not here: whose key it is, and what happens to traffic.

mod cancellable;
mod certificate;
mod command;
mod connection;
mod held;
mod key;
mod listener;

pub use key::HostKey;
pub use listener::SshIngress;
