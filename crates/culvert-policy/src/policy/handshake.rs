//! The TLS handshake of a connection, as variables and the result of `terminate-tls` show it.

use culvert_cel::Value;
use culvert_tls::handshake::HandshakeInfo;
use culvert_tls::peer::Peer;

use crate::conn::ConnInfo;
use crate::policy::certificate;
use crate::policy::values::{map, texts};

/// The handshake; `None` without TLS, and until it is complete.
pub(crate) fn of(info: &ConnInfo) -> Option<&HandshakeInfo> {
    info.tls.get()?.handshake.get()
}

/// The certificate that the client presented, in DER.
pub(crate) fn client_certificate(info: &ConnInfo) -> Option<&[u8]> {
    of(info)?.client.as_deref().map(Peer::der)
}

/// The certificate that the edge presented, in DER.
pub(crate) fn server_certificate(info: &ConnInfo) -> Option<&[u8]> {
    let tls = info.tls.get()?;
    tls.certificate.key.cert.first().map(|leaf| leaf.as_ref())
}

/// The result of `terminate-tls` once the handshake is complete; `None` if no policy has that action.
pub(crate) fn result(info: &ConnInfo, error: (&'static str, Value)) -> Option<Value> {
    info.tls.get()?.tls_policy.as_ref()?;
    let handshake = of(info)?;
    let side = |der: &[u8], paths: &[&str]| {
        let fields = paths
            .iter()
            .filter_map(|path| Some((*path, certificate::field(der, path)?)));
        map(fields.collect())
    };
    const FIELDS: [&str; 6] = [
        "pem",
        "serial_number",
        "signature_algorithm",
        "issuer",
        "subject",
        "san",
    ];
    let mut fields = vec![
        ("version", Value::from(handshake.version())),
        ("cipher_suite", Value::from(handshake.cipher_suite())),
        ("sni", Value::from(info.sni())),
        ("session_resumed", Value::Bool(handshake.is_resumed)),
        ("warnings", texts([])),
        error,
    ];
    if let Some(der) = client_certificate(info) {
        fields.push(("client", side(der, &FIELDS)));
    }
    if let Some(der) = server_certificate(info) {
        fields.push(("server", side(der, FIELDS.get(1..).unwrap_or_default())));
    }
    Some(map(fields))
}
