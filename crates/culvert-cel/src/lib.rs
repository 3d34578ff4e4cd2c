//! The expression language of filters and policies: CEL, checked before it runs and metered while it does.
//!
//! An [`Env`] says which variables exist and what they hold. It turns text into a [`Predicate`] (a condition)
//! or a [`Program`] (any value), or refuses it with an [`Error`] that carries kind, line and column. What was
//! compiled is immutable and shared between threads; it reads variables through a [`Resolver`], by slot number
//! and borrowed, and plain comparisons on them allocate nothing.
//!
//! Promised: no input panics, overflows the stack or runs beyond its [`Limits`]; regular expressions are RE2's
//! dialect on a linear-time engine; the language is the one of its public conformance data, without protobuf
//! messages.
//!
//! Not here: what the variables mean, which of them an event kind has, error codes (the callers), clocks, I/O.

mod ast;
mod calls;
mod check;
mod condition;
mod cost;
mod env;
mod error;
mod eval;
mod extension;
mod functions;
mod lex;
mod limits;
mod node;
mod parse;
mod pattern;
mod probe;
mod time;
mod types;
mod value;

pub use calls::{has_computed_calls, literal_calls};
pub use cost::Meter;
pub use env::{Env, Resolver, Slot, Zones};
pub use error::{Error, ErrorKind, EvalError, EvalErrorKind, Position};
pub use eval::{Predicate, Program};
pub use extension::Extension;
pub use limits::Limits;
pub use pattern::{Pattern, PatternError};
pub use probe::compile_and_run_any;
pub use time::{Duration, Timestamp};
pub use types::Type;
pub use value::{Key, Kind, Map, RepeatedKey, Value, ValueRef};

#[cfg(test)]
mod tests;
