//! The writer of records for DNS challenges, and the client of certificate authorities and DNS providers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_base::Clock;
use culvert_command::with_causes;
use culvert_dns::{DnsWriter, LookupSettings};
use culvert_upstream::PublicClient;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::config::{Invalid, Settings, networks};
use crate::proxies::proxies;

/// Time limit for connecting to a certificate authority, including TLS.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The client for certificate authorities and DNS providers. It connects to none of the addresses `own`.
///
/// # Errors
/// If the settings name files or networks that cannot be used.
pub fn public_client(
    settings: &Settings,
    own: impl Iterator<Item = SocketAddr>,
) -> Result<PublicClient> {
    let roots = match settings.acme.extra_ca_file.as_str() {
        "" => Vec::new(),
        path => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|e| Invalid(format!("`acme.extra_ca_file` cannot be read: {e}")))?,
    };
    let networks = networks(
        "destinations.allow_networks",
        &settings.destinations.allow_networks,
    )?;
    let client = PublicClient::new(&roots, CONNECT_WITHIN, &networks, own).map_err(with_causes)?;
    Ok(client.through(proxies(settings)?))
}

/// Writes records at the DNS provider of the settings, if they name one.
///
/// # Errors
/// If the settings of the provider are invalid.
pub fn dns_writer(
    settings: &Settings,
    client: &Arc<PublicClient>,
    clock: Arc<dyn Clock>,
) -> Result<Option<DnsWriter>> {
    let Some(provider) = settings.acme.dns.provider()? else {
        return Ok(None);
    };
    let lookup = lookup_settings(settings, client)?;
    let fetch = client.clone();
    Ok(Some(DnsWriter::new(provider, lookup, fetch, clock)?))
}

/// How names are looked up for certificates.
///
/// # Errors
/// If the settings of `acme.dns` are invalid.
pub(crate) fn lookup_settings(
    settings: &Settings,
    client: &Arc<PublicClient>,
) -> Result<LookupSettings> {
    let guard = client.clone();
    Ok(LookupSettings {
        resolvers: settings.acme.dns.resolvers()?,
        nameservers: settings.acme.dns.nameservers()?,
        propagation_timeout: settings.acme.dns.propagation_timeout.0,
        may_ask: Arc::new(move |address| guard.may_reach(address)),
    })
}
