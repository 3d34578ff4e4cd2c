//! Results of handshakes, and whether a resumed session is still valid.

use std::sync::Arc;

use culvert_base::Timestamp;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CipherSuite, HandshakeKind, ProtocolVersion, ServerConnection};
use rustls_pki_types::UnixTime;

use crate::peer::Peer;

/// The fatal alert `unrecognized_name`, as a complete TLS record.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// The result of a handshake, for events and expressions.
#[derive(Debug)]
pub struct HandshakeInfo {
    /// The negotiated cipher suite; `None` before the handshake has one.
    pub suite: Option<CipherSuite>,
    /// Whether the version is TLS 1.3. Otherwise it is 1.2.
    pub is_13: bool,
    /// Whether the handshake resumed an earlier session.
    pub is_resumed: bool,
    /// The certificate of the client.
    pub client: Option<Box<Peer>>,
}

impl HandshakeInfo {
    /// The IANA name of the cipher suite.
    pub fn cipher_suite(&self) -> &'static str {
        self.suite.and_then(iana_name).unwrap_or("")
    }

    /// The version as in events.
    pub fn version(&self) -> &'static str {
        if self.is_13 { "1.3" } else { "1.2" }
    }
}

/// The result of a complete handshake.
pub fn info(connection: &ServerConnection) -> HandshakeInfo {
    let client = connection
        .peer_certificates()
        .and_then(|chain| chain.first());
    HandshakeInfo {
        suite: connection
            .negotiated_cipher_suite()
            .map(|suite| suite.suite()),
        is_13: connection.protocol_version() != Some(ProtocolVersion::TLSv1_2),
        is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        client: client.map(|leaf| Box::new(Peer::new(leaf))),
    }
}

/// Whether the client certificate of a resumed session is still valid. True for full handshakes, which have just
/// verified it.
pub fn is_still_trusted(
    session: &ServerConnection,
    clients: &Arc<dyn ClientCertVerifier>,
    now: Timestamp,
) -> bool {
    if session.handshake_kind() != Some(HandshakeKind::Resumed) {
        return true;
    }
    match session.peer_certificates() {
        Some([leaf, others @ ..]) => {
            let now = UnixTime::since_unix_epoch(now.since(Timestamp::from_unix_nanos(0)));
            clients.verify_client_cert(leaf, others, now).is_ok()
        }
        _ => !clients.client_auth_mandatory(),
    }
}

/// The IANA name of each cipher suite that the edge offers.
pub fn iana_name(suite: CipherSuite) -> Option<&'static str> {
    use CipherSuite as Suite;
    Some(match suite {
        Suite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        Suite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        Suite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
        }
        Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs;

    use super::*;

    #[test]
    fn every_offered_suite_has_its_name() {
        for suite in aws_lc_rs::DEFAULT_CIPHER_SUITES {
            assert!(iana_name(suite.suite()).is_some(), "{suite:?}");
        }
    }
}
