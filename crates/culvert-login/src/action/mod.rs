//! The sign-in actions `oauth` and `openid-connect`, and the steps that they share.

pub(crate) mod config;
pub(crate) mod oauth;
pub(crate) mod openid_connect;
pub(crate) mod session_middleware;
