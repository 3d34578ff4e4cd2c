//! Access to the API: who calls.

pub(crate) mod auth;
