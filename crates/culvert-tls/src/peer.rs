//! Client certificates.

use culvert_base::text::hex;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// The certificate that a client presented.
#[derive(Debug)]
pub struct Peer {
    der: Vec<u8>,
    /// Lower-case hexadecimal.
    pub serial: String,
    /// The last common name of the subject; empty if there is none.
    pub common_name: String,
}

impl Peer {
    /// Parses a leaf certificate. If it does not parse, only its bytes are available.
    pub fn new(der: &[u8]) -> Self {
        let parsed = X509Certificate::from_der(der).ok();
        let parsed = parsed.as_ref().map(|(_, parsed)| parsed);
        Self {
            der: der.to_vec(),
            serial: parsed.map(serial).unwrap_or_default(),
            common_name: parsed
                .and_then(|parsed| common_name(parsed.subject()))
                .unwrap_or_default(),
        }
    }

    /// The certificate, DER-encoded.
    pub fn der(&self) -> &[u8] {
        &self.der
    }
}

/// The serial number in lower-case hexadecimal, as in [`Peer::serial`].
pub fn serial(certificate: &X509Certificate<'_>) -> String {
    let bytes = certificate.raw_serial();
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    hex(bytes)
}

/// The last common name of a distinguished name.
pub fn common_name(name: &X509Name<'_>) -> Option<String> {
    let last = name.iter_common_name().last()?;
    Some(last.as_str().map(str::to_owned).unwrap_or_default())
}

/// The last common name of a certificate, and its public key. `None` if it does not parse or has no name.
pub fn name_and_key(der: &[u8]) -> Option<(String, Vec<u8>)> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let name = common_name(parsed.subject())?;
    let key = parsed.public_key().subject_public_key.data.to_vec();
    Some((name, key))
}
