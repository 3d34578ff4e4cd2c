//! Header fields of requests that every operation understands: `Host`, conditions, and the key of a request that may be
//! repeated.

pub mod host;
pub mod terms;

/// The rules of requests and responses for the reference, in Markdown.
pub const REQUEST_RULES: &str = include_str!("rules.md");
