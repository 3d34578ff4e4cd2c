//! The expression language of filters and policies: CEL, type-checked when it is compiled and metered when it runs.
//!
//! An [`Env`] declares variables and their types. It compiles text to a [`Predicate`] (a condition) or a [`Program`]
//! (any value), or returns an [`Error`] with kind, line and column. Compiled expressions are immutable and shared
//! between threads. They read variables through a [`Resolver`] by slot number, without copying; plain comparisons of
//! variables allocate nothing.
//!
//! Guarantees: no input causes a panic, a stack overflow or an evaluation beyond its [`Limits`]. Regular expressions
//! are in RE2's dialect and run on a linear-time engine. The language is the one of CEL's public conformance
//! tests, without protobuf messages.
//!
//! Filters of lists use the syntax only: they read the tree of [`parse_lenient`], and give it a meaning of their own.
//!
//! The crate contains no clocks and no I/O. The callers define the meaning of variables, the variables of each event
//! kind, and error codes.

mod check;
mod env;
mod error;
mod eval;
mod functions;
mod limits;
mod pattern;
mod probe;
mod resolver;
mod syntax;
mod types;
mod value;

pub use env::Env;
pub use error::{Error, ErrorKind, EvalError, EvalErrorKind, Position};
pub use eval::cost::Meter;
pub use eval::{Predicate, Program};
pub use functions::extension::Extension;
pub use functions::standard::{STANDARD, Standard};
pub use limits::Limits;
pub use pattern::{NotBuilt, Pattern, PatternBudget, PatternError};
pub use probe::compile_and_run_any;
pub use resolver::{Resolver, Slot, Zones};
pub use syntax::ast;
pub use syntax::calls::{has_computed_calls, literal_calls, selections};
pub use syntax::parse::parse_lenient;
pub use types::Type;
pub use value::time::{Duration, Timestamp};
pub use value::{Key, Map, RepeatedKey, Value, ValueRef, ValueType};

#[cfg(test)]
mod tests;
