//! Clients of the systems that events are sent to: HTTP behind the address guard, TLS, brokers and Amazon.

pub(crate) mod amqp;
pub mod aws;
pub(crate) mod certificate_verifier;
pub mod guard;
pub(crate) mod kafka;
pub(crate) mod kept;
pub(crate) mod nats_servers;
pub mod net;
pub(crate) mod oauth_tokens;
pub(crate) mod request_body;
pub(crate) mod tls_client;
