//! The options of TLS to an upstream, with the configurations made from them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use culvert_io::upstream_tls::UpstreamTls;
use rustls::RootCertStore;
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

/// The options of TLS to an upstream. Equal if the options are: the configurations that are kept do not count.
pub struct TlsOptions {
    options: Result<UpstreamTls, TlsWithheld>,
    /// The connectors, and the authorities they were made with. They have the sessions that can be resumed, so options never
    /// share them. Locked only while a connection is opened.
    kept: Mutex<Kept>,
}

/// Why an upstream is not connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TlsWithheld {
    /// The client certificate does not exist, or its owner gives the endpoint no right to use it.
    #[error("the client certificate does not exist, or the owner of the endpoint may not use it")]
    Client,
    /// A certificate authority does not exist.
    #[error("a certificate authority of `upstream_tls` does not exist")]
    Authority,
    /// The objects that the options name were not read yet.
    #[error("the objects that `upstream_tls` names were not read yet")]
    Unread,
    /// The stored options cannot be read.
    #[error("the stored `upstream_tls` is invalid")]
    Invalid,
}

/// Why options make no connector.
pub(crate) enum Unusable {
    Withheld(TlsWithheld),
    Options(io::Error),
}

#[derive(Default)]
struct Kept {
    roots: Option<Arc<RootCertStore>>,
    /// By the protocol of ALPN, of which there are two.
    connectors: Vec<(&'static str, TlsConnector)>,
}

impl TlsOptions {
    /// The options, or why there is no connection.
    pub fn new(options: Result<UpstreamTls, TlsWithheld>) -> Self {
        Self {
            options,
            kept: Mutex::default(),
        }
    }

    /// The options, or why there is no connection.
    pub fn options(&self) -> Result<&UpstreamTls, TlsWithheld> {
        self.options.as_ref().map_err(|withheld| *withheld)
    }

    /// What connects to a host with this protocol of ALPN, and the name that its certificate must have. `roots` are the
    /// authorities of upstreams without others.
    pub(crate) fn connector(
        &self,
        roots: &Arc<RootCertStore>,
        host: &str,
        alpn: &'static str,
    ) -> Result<(TlsConnector, ServerName<'static>), Unusable> {
        let options = self.options().map_err(Unusable::Withheld)?;
        let name = options.name(host).ok_or_else(|| {
            Unusable::Options(io::Error::other("the host is no name for a certificate"))
        })?;
        let mut kept = lock(&self.kept);
        if !kept.roots.as_ref().is_some_and(|of| Arc::ptr_eq(of, roots)) {
            kept.roots = Some(Arc::clone(roots));
            kept.connectors.clear();
        }
        let mut known = kept.connectors.iter();
        if let Some((_, connector)) = known.find(|(of, _)| *of == alpn) {
            return Ok((connector.clone(), name));
        }
        if options.is_unverified() {
            tracing::warn!(
                host,
                "the certificate of an upstream is not verified, as its endpoint wants"
            );
        }
        let config = options.config(roots);
        let mut config = config.map_err(|error| Unusable::Options(io::Error::other(error)))?;
        config.alpn_protocols = vec![alpn.into()];
        let connector = TlsConnector::from(Arc::new(config));
        kept.connectors.push((alpn, connector.clone()));
        Ok((connector, name))
    }
}

impl PartialEq for TlsOptions {
    fn eq(&self, other: &Self) -> bool {
        self.options == other.options
    }
}

impl Eq for TlsOptions {}

impl Hash for TlsOptions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.options.hash(state);
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.options, f)
    }
}
