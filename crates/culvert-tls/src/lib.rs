//! TLS as the edge terminates it: server certificates with their settings, the handshakes that
//! policies ask for, client certificates, the ClientHello, and the client of a certificate authority
//! that speaks ACME.
//!
//! It opens no sockets to clients and no connections to authorities: its owner runs the handshakes and
//! hands the ACME client something that [fetches](acme::Fetch).

pub mod acme;
pub mod fuzz;
pub mod handshake;
pub mod peek;
pub mod peer;
pub mod server_certificate;
pub mod tls_policy;
