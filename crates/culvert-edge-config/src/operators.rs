//! The Kubernetes operators that may connect.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;

/// The Kubernetes operators that may connect.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    /// The authority of their client certificates. Without one, no operator may connect.
    pub authority: Option<CertificateDer<'static>>,
    /// The operators.
    pub operators: Vec<Operator>,
}

/// A Kubernetes operator that may connect to the endpoints it selects.
#[derive(Clone, Debug)]
pub struct Operator {
    /// `k8sop_…`, the common name of its certificates.
    pub id: String,
    /// `ac_…` of the account whose endpoints it binds.
    pub account: Arc<str>,
    /// The public key of its certificates, as they have it.
    pub key: Vec<u8>,
}
