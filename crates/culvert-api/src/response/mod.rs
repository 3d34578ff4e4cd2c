//! Responses: bodies, and the problems that errors become.

pub(crate) mod answer;
pub(crate) mod problem;
