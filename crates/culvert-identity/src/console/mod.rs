//! Sign-in to the console, and its sessions.

pub mod link;
pub mod provider;
pub mod session;
pub mod sign_in;
mod sign_in_by_link;
