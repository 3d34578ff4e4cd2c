//! Connections to servers that users name and that do not use HTTP: brokers and databases.
//!
//! A client library that opens its own connections gets addresses that were resolved and checked here, and
//! a TLS configuration that verifies the resolved name.

use std::time::Duration;

use culvert_base::Refusal;
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::guard::Rules;
use culvert_target::net::{Net, blame};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use url::Url;

use crate::config::invalid;

/// Maximum number of servers of one cluster that a user may name.
const PEERS_MAX: usize = 16;
/// Time limit of a TLS handshake.
const TLS_DEADLINE: Duration = Duration::from_secs(5);

/// A server, as parsed from its URL.
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
    /// The default port.
    pub(crate) port: u16,
}

impl Peer {
    /// Checks a URL without resolving its host. The error completes a sentence about the URL.
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
        // All rules of URLs apply; only the scheme and its default port differ.
        let checked = rules
            .url_on_any_port(&format!("https://{rest}"))
            .map_err(|denied| denied.to_string())?;
        if checked.url.query().is_some() {
            return Err("it must not have a query".to_owned());
        }
        let given = Url::parse(&format!("peer://{rest}"))
            .ok()
            .and_then(|url| url.port());
        let port = given.unwrap_or(scheme.port);
        rules.port(port).map_err(|denied| denied.to_string())?;
        let host = checked.url.host_str().unwrap_or_default();
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            is_tls,
            path: checked.url.path().trim_start_matches('/').to_owned(),
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

    /// Connects to the server, with TLS if configured. Its address is resolved and checked like any other.
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

    /// The name that its certificate must have.
    pub(crate) fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.host.clone()).ok()
    }
}

/// A connection with or without TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

#[cfg(test)]
mod tests;
