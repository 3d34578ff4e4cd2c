//! The check of the client certificates of Kubernetes operators.

use std::collections::HashMap;
use std::sync::Arc;

use culvert_edge_config::{Operator, Operators};
use culvert_tls::peer;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};

/// The operators of a snapshot in use. As a verifier it accepts certificates of the authority whose name and key are
/// those of an operator.
#[derive(Debug, Default)]
pub(crate) struct OperatorTable {
    authority: Option<Arc<dyn ClientCertVerifier>>,
    by_id: HashMap<String, Operator>,
}

impl OperatorTable {
    pub(super) fn compile(given: Operators) -> Result<Arc<Self>, Error> {
        let verifier = |root: CertificateDer<'static>| {
            let mut roots = RootCertStore::empty();
            roots.add(root)?;
            let provider = Arc::new(aws_lc_rs::default_provider());
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| Error::General(error.to_string()))
        };
        let operators = given.operators.into_iter();
        Ok(Arc::new(Self {
            authority: given.authority.map(verifier).transpose()?,
            by_id: operators.map(|one| (one.id.clone(), one)).collect(),
        }))
    }

    /// The operator with this id.
    pub(crate) fn get(&self, id: &str) -> Option<&Operator> {
        self.by_id.get(id)
    }

    /// Whether certificates can be verified.
    pub(crate) fn has_authority(&self) -> bool {
        self.authority.is_some()
    }

    /// The operator that a verified certificate is for.
    pub(crate) fn of(&self, leaf: &CertificateDer<'_>) -> Option<&Operator> {
        let (name, key) = peer::name_and_key(leaf)?;
        let operator = self.by_id.get(&name)?;
        (operator.key == key).then_some(operator)
    }

    fn verifier(&self) -> Result<&Arc<dyn ClientCertVerifier>, Error> {
        let unknown = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        self.authority.as_ref().ok_or_else(unknown)
    }
}

impl ClientCertVerifier for OperatorTable {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &self.authority {
            Some(authority) => authority.root_hint_subjects(),
            None => &[],
        }
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // The authority signs each certificate itself, so no others are needed.
        let verified = self.verifier()?.verify_client_cert(leaf, &[], now)?;
        match self.of(leaf) {
            Some(_) => Ok(verified),
            None => Err(CertificateError::Revoked.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let schemes = |verifier: &Arc<dyn ClientCertVerifier>| verifier.supported_verify_schemes();
        self.authority.as_ref().map(schemes).unwrap_or_default()
    }
}
