//! Access to the API: from which pages, and how often.

pub mod cors;
pub mod limits;
