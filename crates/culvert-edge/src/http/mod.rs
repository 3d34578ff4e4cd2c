//! HTTP: one connection ([`server`] for HTTP/1, [`streams`] for HTTP/2), one request ([`exchange`]), and
//! what passes between.

pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod encoded;
pub(crate) mod exchange;
pub(crate) mod fields;
pub(crate) mod forward;
mod policy_pipeline;
pub(crate) mod room;
pub(crate) mod server;
pub(crate) mod streams;
pub(crate) mod upgrade;
pub(crate) mod upload;
