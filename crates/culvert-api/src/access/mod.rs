//! Access to the API: who calls, from which pages, and how often.

pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod limits;
