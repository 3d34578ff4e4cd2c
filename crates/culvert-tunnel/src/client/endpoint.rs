//! An endpoint of the agent and the service behind it.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tokio_rustls::TlsAcceptor;

use super::flags::RequestedEndpoint;
use super::meter::EndpointMeters;
use super::upstream::Upstream;
use crate::wire::BindRequest;

/// The protocol between clients and an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS, which the server terminates.
    Https,
    /// Raw TCP.
    Tcp,
    /// Raw TLS, routed by server name.
    Tls,
}

impl Protocol {
    /// The name of the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// Parses [`Protocol::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Http, Self::Https, Self::Tcp, Self::Tls]
            .into_iter()
            .find(|it| it.as_str() == text)
    }

    /// Whether it carries requests.
    pub const fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }

    /// The command that creates such endpoints.
    pub const fn command(self) -> &'static str {
        match self {
            Self::Http | Self::Https => "http",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }
}

/// TLS termination at the agent, for tls endpoints whose service does not use TLS.
#[derive(Clone)]
pub struct TlsEnd(TlsAcceptor);

impl fmt::Debug for TlsEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsEnd").finish_non_exhaustive()
    }
}

impl TlsEnd {
    /// Takes a certificate chain, leaf first, and its key, both PEM. With `authorities`, also PEM, clients
    /// must have a certificate of one of these CAs.
    ///
    /// # Errors
    ///
    /// The error is a sentence without a full stop.
    pub fn new(chain: &[u8], key: &[u8], authorities: Option<&[u8]>) -> Result<Self, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| format!("the certificate is not valid PEM: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| format!("the key is not valid PEM: {error}"))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(pem) => builder.with_client_cert_verifier(verifier(pem, provider)?),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| format!("the certificate and key are unusable: {error}"))?;
        if authorities.is_some() {
            // Sessions are not resumed, because a resumed session would not present the client's certificate
            // again, which may have expired.
            config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        }
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.0
    }
}

/// A verifier of client certificates by these PEM CAs.
fn verifier(
    pem: &[u8],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem) {
        let authority = authority.map_err(|error| format!("the CAs are not valid PEM: {error}"))?;
        roots
            .add(authority)
            .map_err(|error| format!("a CA is unusable: {error}"))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map(|verifier| verifier as _)
        .map_err(|error| format!("the CAs are unusable: {error}"))
}

/// An endpoint of the agent and the service behind it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The local name, for display.
    pub name: String,
    /// The protocol of its clients.
    pub protocol: Protocol,
    /// The destination of its traffic.
    pub upstream: Upstream,
    /// TLS termination at the agent, if any.
    pub tls_end: Option<TlsEnd>,
    pub(crate) http2: bool,
    /// Whether the server sends a PROXY protocol header before each connection.
    pub(crate) proxied: bool,
    pub(crate) request: BindRequest,
    /// Whether its requests are recorded.
    pub is_inspected: bool,
    /// Counts its connections and requests. Copies of the endpoint share it.
    pub meters: Arc<EndpointMeters>,
}

impl Endpoint {
    /// Creates an endpoint for `wanted`, from the command that `kind` names.
    ///
    /// # Errors
    ///
    /// The error is a sentence without a full stop.
    pub fn new(
        kind: Protocol,
        wanted: RequestedEndpoint,
        upstream: Upstream,
    ) -> Result<Self, String> {
        let http2 = wanted.http2;
        let name = wanted.name().to_owned();
        let (protocol, request) = wanted.bind(kind, upstream.as_str())?;
        let proxied = request.opts["ProxyProto"].as_i64().unwrap_or(0) != 0;
        Ok(Self {
            name,
            protocol,
            upstream,
            tls_end: None,
            http2,
            proxied,
            request,
            is_inspected: true,
            meters: Arc::default(),
        })
    }

    /// Sets the traffic policy, as `traffic-policy-file` does.
    pub fn set_policy(&mut self, policy: String) {
        if let Some(opts) = self.request.opts.as_object_mut() {
            opts.insert("TrafficPolicy".into(), policy.into());
        }
    }

    /// A copy for another session of the agent, which shares the URL. `url` is the URL that the first session
    /// received, for endpoints that request none.
    #[must_use]
    pub fn pooled(&self, url: Option<&str>) -> Self {
        let mut pooled = self.clone();
        pooled.request.extra.pooling_enabled = true;
        if let (Some(url), Some(opts)) = (url, pooled.request.opts.as_object_mut()) {
            let names = ["URL", "Domain", "Hostname", "Subdomain", "Addr"];
            let is_given = |name| opts.get(name).is_some_and(|it| it != "" && !it.is_null());
            if !names.into_iter().any(is_given) {
                // The port is that of the edge; only for TCP it is part of the name.
                let name = match (self.protocol, url.rsplit_once(':')) {
                    (Protocol::Tcp, _) | (_, None) => url,
                    (_, Some((_, port))) if port.starts_with('/') => url,
                    (_, Some((name, _))) => name,
                };
                opts.insert("URL".into(), name.into());
            }
        }
        pooled
    }
}

#[cfg(test)]
use culvert_io::upstream_tls::UpstreamTls;

#[cfg(test)]
impl Endpoint {
    /// An http endpoint in front of port 8080.
    pub(crate) fn for_tests() -> Self {
        let options = UpstreamTls::default();
        let upstream = Upstream::parse("8080", Protocol::Http, false, &options);
        let upstream = upstream.expect("it is a port");
        Self::new(Protocol::Http, RequestedEndpoint::default(), upstream).expect("it is valid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sessions_ask_for_the_name_that_the_first_one_got() {
        let pooled = |kind, domain: &str, url: &str| {
            let mut wanted = RequestedEndpoint::default();
            wanted.set_host(domain);
            let upstream = Upstream::parse("8080", kind, false, &UpstreamTls::default()).unwrap();
            let endpoint = Endpoint::new(kind, wanted, upstream).unwrap();
            let request = endpoint.pooled(Some(url)).request;
            assert!(request.extra.pooling_enabled);
            request.options().unwrap().requested().unwrap().to_owned()
        };
        for (kind, domain, url, asked) in [
            (Protocol::Http, "", "https://a.test", "https://a.test"),
            (Protocol::Http, "", "http://a.test:8080", "http://a.test"),
            (Protocol::Tls, "", "tls://a.test:4443", "tls://a.test"),
            (Protocol::Tcp, "", "tcp://a.test:7001", "tcp://a.test:7001"),
            (Protocol::Http, "b.test", "https://b.test:8443", "b.test"),
        ] {
            assert_eq!(pooled(kind, domain, url), asked, "{url}");
        }
    }
}
