//! What editors of traffic policies need: all problems of a text with their positions, completion and hover, and
//! templates. It reads YAML and JSON texts, also while they are typed, and the tables that policies are compiled and
//! the reference is drawn from.
//!
//! - [`check`]: the problems, by the code that compiles policies.
//! - [`complete`]: what may stand at a position.
//! - [`hover`]: what stands at a position.
//! - [`templates`]: whole policies for common tasks, those of the guide.
//! - [`LineIndex`]: positions as lines and columns, as people and editors count them.
//!
//! Everything is a function of the text, and its cost has a limit: texts longer than a policy may be are refused, and
//! the number of results is limited. No input causes a panic.
//!
//! Not here: what an account has. Completion names no objects, and [`check::Place::offline`] accepts every object that
//! a policy names. The API checks those as it does for a write.

pub mod check;
pub mod complete;
mod cursor;
pub mod hover;
mod position;
mod schema;
pub mod templates;
#[cfg(test)]
mod tests;
mod words;

pub use position::{LineIndex, Position, Unit};
