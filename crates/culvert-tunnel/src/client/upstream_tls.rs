//! The options of TLS to a service, as a user gives them by flags or in a file.

use std::fmt;

use culvert_io::upstream_tls::{
    ClientCertificate, PINS_MAX, Pin, UpstreamTls, Verification, server_name,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::connect;

/// The options of TLS to a service, before they are read.
#[derive(Clone, Default)]
pub struct RequestedTls {
    /// Whether its certificate is verified; `None` for yes.
    pub verify: Option<bool>,
    /// PEM certificates of the only authorities that are trusted.
    pub authorities: Option<Vec<u8>>,
    /// The name to ask for and to verify, instead of the host.
    pub server_name: Option<String>,
    /// SHA-256 of accepted certificates or of their public keys.
    pub pins: Vec<String>,
    /// PEM chain to present to the service.
    pub certificate: Option<Vec<u8>>,
    /// PEM private key of that chain.
    pub private_key: Option<Vec<u8>>,
}

impl fmt::Debug for RequestedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the private key.
        f.debug_struct("RequestedTls")
            .field("verify", &self.verify)
            .field("pins", &self.pins)
            .finish_non_exhaustive()
    }
}

impl RequestedTls {
    /// Reads the options.
    ///
    /// # Errors
    ///
    /// A sentence without a full stop.
    pub fn options(&self) -> Result<UpstreamTls, String> {
        if self.pins.len() > PINS_MAX {
            return Err(format!("at most {PINS_MAX} pins are allowed"));
        }
        let pins: Vec<Pin> = self
            .pins
            .iter()
            .map(|pin| Pin::parse(pin).map_err(|error| error.to_string()))
            .collect::<Result<_, _>>()?;
        let verification = match (self.verify, &self.authorities) {
            (Some(false), None) if pins.is_empty() => Verification::Off,
            (Some(false), _) => {
                let why = "without verification of the service, its authorities and pins have no effect; remove them or verify it";
                return Err(why.to_owned());
            }
            (_, Some(pem)) => {
                let authorities = connect::certificates_of(pem);
                let authorities = authorities.map_err(|error| error.to_string())?;
                Verification::Authorities(authorities, pins)
            }
            (_, None) if pins.is_empty() => Verification::System,
            (_, None) => Verification::Pins(pins),
        };
        let server_name = match &self.server_name {
            None => None,
            Some(text) => {
                let why = || format!("`{text}` is neither a host name nor an address");
                Some(server_name(text).ok_or_else(why)?)
            }
        };
        Ok(UpstreamTls {
            verification,
            server_name,
            client: self.client()?,
        })
    }

    fn client(&self) -> Result<Option<ClientCertificate>, String> {
        let (chain, key) = match (&self.certificate, &self.private_key) {
            (None, None) => return Ok(None),
            (Some(chain), Some(key)) => (chain, key),
            _ => return Err("a client certificate needs its chain and its private key".to_owned()),
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("the client certificate is not valid PEM: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            format!("the private key of the client certificate is not valid PEM: {error}")
        })?;
        let made = ClientCertificate::from_parts(chain, key);
        made.map(Some)
            .map_err(|error| format!("the client certificate cannot be used: {error}"))
    }
}
