//! Responses: bodies, and the problems that errors become.

pub mod answer;
pub mod coding;
pub mod problem;
