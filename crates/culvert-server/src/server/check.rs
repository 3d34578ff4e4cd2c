//! What a start opens because of its settings: files, proxies, addresses. For `culvert config check`, which changes nothing
//! and asks no other machine.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Result, bail};
use culvert_base::{Clock, SystemClock};
use culvert_command::with_causes;
use culvert_installation::audit_key::AuditKey;
use culvert_installation::config::{self, KeyPlace, Role, Settings};
use culvert_installation::{keys, sqlite_files, store_url};
use culvert_policy::IpData;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::plane_settings::{api_settings, edge_settings, ip_data_files, target_settings};
use super::planes::control;
use crate::certificates::{certificate_file, issuer};
use crate::telemetry;

/// Opens what a server with these settings would open at its start. Returns what such a server would log and go on with.
///
/// # Errors
/// If such a server would not start.
pub fn check(settings: &Settings) -> Result<Vec<String>> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut notes = Vec::new();
    telemetry::filter(&settings.log)?;
    data(settings)?;
    target_settings(settings, &config::environment())?;
    api_settings(settings)?;
    certificate_file::read(settings)?;
    control::console_sign_in(settings, clock.clone())?;
    control::leak_partner(settings, clock.clone())?;
    if settings.roles.contains(&Role::Edge) {
        edge_settings(settings)?;
        issuer::check(settings, clock)?;
    }
    let mut faults = Vec::new();
    IpData::read_some(&ip_data_files(settings)?, &mut faults);
    notes.extend(faults.iter().map(culvert_base::Fault::chain));
    let roots = settings.destinations.tls.extra_ca_file.as_str();
    if !roots.is_empty()
        && let Err(error) =
            CertificateDer::pem_file_iter(roots).and_then(Iterator::collect::<Result<Vec<_>, _>>)
    {
        notes.push(format!(
            "`destinations.tls.extra_ca_file` cannot be read, so no event destination is reached over TLS: {error}"
        ));
    }
    notes.extend(addresses(settings)?);
    Ok(notes)
}

/// The data directory, the keys and the database, as far as they exist.
fn data(settings: &Settings) -> Result<()> {
    keys::check_data_dir(&settings.data_dir)?;
    keys::load(&settings.key_file())?;
    if let KeyPlace::File(_) = settings.audit_key_place() {
        AuditKey::open(settings)?.load()?;
    }
    sqlite_files::refuse_without_state(settings)?;
    store_url(settings).check().map_err(with_causes)
}

/// Binds the addresses of the listeners. One that is in use may be that of the running server.
fn addresses(settings: &Settings) -> Result<Vec<String>> {
    let (mut bound, mut notes): (Vec<(&str, SocketAddr, TcpListener)>, _) =
        (Vec::new(), Vec::new());
    for (key, text) in listeners(settings) {
        let Ok(address) = text.parse::<SocketAddr>() else {
            continue;
        };
        let error = match TcpListener::bind(address) {
            Ok(listener) => {
                bound.push((key, address, listener));
                continue;
            }
            Err(error) => error,
        };
        let overlaps = |(_, other, _): &&(&str, SocketAddr, TcpListener)| {
            let is_any = other.ip().is_unspecified() || address.ip().is_unspecified();
            other.port() == address.port() && (is_any || other.ip() == address.ip())
        };
        match (error.kind(), bound.iter().find(overlaps)) {
            (ErrorKind::AddrInUse, Some((other, ..))) => {
                bail!("`{key}` and `{other}` have the same address, {address}");
            }
            (ErrorKind::AddrInUse, None) => {}
            (ErrorKind::PermissionDenied, _) => notes.push(format!(
                "this user may not listen on {address} (setting `{key}`), unless a supervisor passes the socket"
            )),
            _ => bail!("listening on {address} (setting `{key}`): {error}"),
        }
    }
    Ok(notes)
}

/// The addresses that a server with these roles listens on; empty for none.
fn listeners(settings: &Settings) -> impl Iterator<Item = (&'static str, &str)> {
    let is_shared = !settings.database_url.is_empty();
    let has = |role| settings.roles.contains(&role);
    let (api, edge, agents) = (has(Role::Api), has(Role::Edge), has(Role::Agents));
    [
        (api, "api.addr", &settings.api.addr),
        (api, "api.tls.addr", &settings.api.tls.addr),
        (edge, "edge.http_addr", &settings.edge.http_addr),
        (edge, "edge.https_addr", &settings.edge.https_addr),
        (edge, "kubernetes.addr", &settings.kubernetes.addr),
        (agents, "agents.addr", &settings.agents.addr),
        (agents, "agents.ssh_addr", &settings.agents.ssh_addr),
        (agents && is_shared, "nodes.addr", &settings.nodes.addr),
        (true, "metrics.addr", &settings.metrics.addr),
    ]
    .into_iter()
    .filter_map(|(is_used, key, text)| is_used.then_some((key, text.as_str())))
}
