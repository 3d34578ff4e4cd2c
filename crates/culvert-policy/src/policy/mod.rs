//! Traffic policies: rules that see a connection, a request or a response, and act on it.
//!
//! A policy is text that a user wrote. [`Source::read`] takes it apart and [`Source::compile`] makes
//! it ready to run; whoever stores policies calls both before, so that what is stored runs. A
//! compiled [`Policy`] is immutable, but for what its actions count, and shared by all exchanges of
//! its endpoint.
//!
//! Not here: what the actions do ([`action`](crate::action)).

pub(crate) mod certificate;
pub mod compiled;
pub mod conn_state;
pub mod context;
pub(crate) mod cookies;
pub mod edits;
pub mod environments;
pub(crate) mod functions;
pub mod phase;
pub(crate) mod reference;
pub mod replace;
pub(crate) mod rewrite;
pub mod run;
pub mod secret;
pub(crate) mod secrets;
pub(crate) mod source;
pub mod template;
pub mod values;
pub mod variables;

#[cfg(test)]
mod tests;
