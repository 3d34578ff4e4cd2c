//! The actions of traffic policies, except for sign-ins: what a rule does with a connection, a request or a response.
//!
//! Not here: how policies are read, compiled and run, and the ports that actions use (`crates/culvert-policy`), the
//! sign-in actions (`crates/culvert-login`), and the table of all actions that control and the edge compile with
//! (`crates/culvert-edge-config/src/actions.rs`).

mod action;
mod fields;
mod find_replace;
mod rewrite;
#[cfg(test)]
mod tests;

pub use action::ALL;
