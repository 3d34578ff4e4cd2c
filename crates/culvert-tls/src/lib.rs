//! TLS termination for the edge: server certificates and their settings, handshakes that policies configure, client
//! certificates, parsing of the ClientHello, and an ACME client.
//!
//! The crate opens no connections. The caller runs the handshakes and gives the ACME client an implementation of
//! [`Fetch`](acme::Fetch).

pub mod acme;
pub mod fuzz;
pub mod handshake;
pub mod peek;
pub mod peer;
pub mod server_certificate;
pub mod tls_policy;
