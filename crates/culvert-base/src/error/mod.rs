//! Errors: internal ones, those for callers, and their codes.

pub mod code;
pub mod fault;
pub mod refusal;
