//! Servers that users name and that do not speak HTTP: brokers and databases.
//!
//! A client library that connects by itself is given addresses that were resolved and judged here, and
//! a TLS configuration that verifies the name it was resolved from.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::Refusal;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use url::Url;

use crate::guard::Rules;
use crate::net::{Net, blame};
use crate::retry::FailureClass;
use crate::target::{Failure, invalid};

/// Servers of one cluster that a user may name.
const PEERS_MAX: usize = 16;
/// Securing a connection takes no longer.
const TLS_DEADLINE: Duration = Duration::from_secs(5);

/// A server, as its URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    /// The path of the URL, without the first slash.
    pub(crate) path: String,
}

/// A scheme of such URLs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    /// Where there is none in the URL.
    pub(crate) port: u16,
}

impl Peer {
    /// Judges a URL without resolving its host. The error is the rest of a sentence about it.
    pub(crate) fn parse(
        text: &str,
        schemes: &[Scheme],
        is_tls: bool,
        rules: &Rules,
    ) -> Result<Self, String> {
        if !is_tls && !rules.allow_plain_http {
            return Err(
                "`tls` must be on unless `destinations.allow_plain_http` is set".to_owned(),
            );
        }
        let (name, rest) = text.split_once("://").unwrap_or(("", text));
        let Some(scheme) = schemes.iter().find(|scheme| scheme.name == name) else {
            let names: Vec<_> = schemes
                .iter()
                .map(|scheme| format!("`{}://`", scheme.name))
                .collect();
            return Err(format!("it must start with {}", names.join(" or ")));
        };
        // The rules are those of every URL; only the scheme and its port are others.
        let place = rules
            .url(&format!("https://{rest}"))
            .map_err(|denied| denied.to_string())?;
        if place.url.query().is_some() {
            return Err("it must not have a query".to_owned());
        }
        let given = Url::parse(&format!("peer://{rest}"))
            .ok()
            .and_then(|url| url.port());
        let port = given.unwrap_or(scheme.port);
        rules.port(port).map_err(|denied| denied.to_string())?;
        let host = place.url.host_str().unwrap_or_default();
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            is_tls,
            path: place.url.path().trim_start_matches('/').to_owned(),
        })
    }

    /// Servers of one cluster, in `field` of `target`.
    pub(crate) fn several(
        target: &str,
        field: &str,
        urls: &[String],
        schemes: &[Scheme],
        is_tls: bool,
        rules: &Rules,
    ) -> Result<Vec<Self>, Refusal> {
        if urls.is_empty() || urls.len() > PEERS_MAX {
            return Err(invalid(
                target,
                format_args!("`{field}` must have 1 to {PEERS_MAX} entries"),
            ));
        }
        let parse = |url: &String| {
            Self::parse(url, schemes, is_tls, rules)
                .and_then(|peer| match peer.path.is_empty() {
                    true => Ok(peer),
                    false => Err("it must not have a path".to_owned()),
                })
                .map_err(|why| {
                    invalid(
                        target,
                        format_args!("an entry of `{field}` is invalid: {why}"),
                    )
                })
        };
        urls.iter().map(parse).collect()
    }

    /// A connection to it, resolved and judged like every other, under TLS if it is to be.
    pub(crate) async fn connect(&self, net: &Net) -> Result<Box<dyn Duplex>, Failure> {
        let stream = net.dial(&self.host, self.port).await?;
        if !self.is_tls {
            return Ok(Box::new(stream));
        }
        let Some(name) = self.server_name() else {
            let text = "the host is not a valid name for a certificate";
            return Err(Failure::new(FailureClass::Config, "tls", text));
        };
        let connector = TlsConnector::from(net.tls_without_alpn().await?);
        match tokio::time::timeout(TLS_DEADLINE, connector.connect(name, stream)).await {
            Ok(Ok(secured)) => Ok(Box::new(secured)),
            Ok(Err(error)) => Err(blame(&error, true)),
            Err(_) => {
                let text = "the TLS handshake timed out";
                Err(Failure::new(FailureClass::Retryable, "timeout", text))
            }
        }
    }

    /// Its name, as certificates have it.
    pub(crate) fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.host.clone()).ok()
    }
}

/// A connection, plain or secured.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A TLS configuration for a library that connects to an address: certificates are verified for
/// `name`, whatever the library says that it connects to.
pub(crate) fn verified_for(
    name: ServerName<'static>,
    config: &ClientConfig,
    roots: Arc<rustls::RootCertStore>,
) -> Option<ClientConfig> {
    let provider = config.crypto_provider().clone();
    let inner = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .ok()?;
    let mut config = config.clone();
    config.alpn_protocols.clear();
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(Fixed { name, inner }));
    Some(config)
}

/// Verifies certificates for one name.
#[derive(Debug)]
struct Fixed {
    name: ServerName<'static>,
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Fixed {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner
            .verify_server_cert(end_entity, intermediates, &self.name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
