//! Clients of the systems that events are sent to: TLS, brokers, Amazon and tokens.

pub(crate) mod amqp;
pub(crate) mod aws;
pub(crate) mod http_failure;
pub(crate) mod kafka;
pub(crate) mod kept;
pub(crate) mod oauth_tokens;
pub(crate) mod request_body;
pub(crate) mod tls_client;
