//! Visitors who signed in at an endpoint, and their sessions.

pub mod login;
pub mod session;
pub(crate) mod session_model;
pub mod user;
pub(crate) mod user_model;
