//! Traffic policies: rules that match a connection, a request or a response, and act on it.
//!
//! A policy is text that a user wrote. [`Source::read`](source::Source::read) parses it and
//! [`Source::compile`](source::Source::compile) makes it ready to run. Control calls both before it stores a policy, so
//! that each stored policy runs. A compiled [`Policy`](compiled::Policy) is immutable, except for the counts of its
//! actions, and all exchanges of its endpoint share it.
//!
//! Not here: what the actions do (`crates/culvert-actions`).

pub(crate) mod certificate;
pub mod compiled;
pub mod conn_state;
pub mod context;
pub(crate) mod cookies;
pub mod dry_run;
pub mod edits;
pub mod environments;
pub mod exchange;
pub mod expression;
pub mod functions;
pub(crate) mod handshake;
pub(crate) mod long_work;
pub mod phase;
pub mod problems;
pub(crate) mod redacted;
pub mod reference;
pub mod replace;
pub mod run;
pub mod secret;
pub(crate) mod secrets;
pub mod single_condition;
pub(crate) mod source;
pub(crate) mod taint;
pub mod template;
pub(crate) mod traced;
pub mod values;
pub mod variables;
