//! HTTP: one connection ([`server`] for HTTP/1, [`streams`] for HTTP/2), one request ([`pipeline`]), and its
//! steps.

mod balanced;
pub(crate) mod body_memory;
pub(crate) mod call;
pub(crate) mod encoded;
pub(crate) mod exchange;
pub(crate) mod fields;
pub(crate) mod forward;
pub(crate) mod forward_request;
mod grpc;
mod maintenance;
pub(crate) mod pipeline;
pub(crate) mod plain;
pub(crate) mod plain_head;
mod policy_chain;
pub(crate) mod replay;
pub(crate) mod request_body;
pub(crate) mod response;
pub(crate) mod response_body;
mod routing;
mod send_response;
pub(crate) mod server;
pub(crate) mod started_request;
mod sticky;
pub(crate) mod streams;
pub(crate) mod upgrade;
