//! The certificate files that settings name.

use std::time::Duration;

use culvert_base::{Clock, Timestamp};
use culvert_tls::server_certificate::{expires_at, read_certificate};
use rustls_pki_types::CertificateDer;

use super::report::Report;
use culvert_installation::certificate_checks::CertificateChecks;
use culvert_installation::config::Settings;

/// The remaining validity below which a certificate needs attention.
const RENEW_WITHIN: Duration = Duration::from_secs(14 * 24 * 60 * 60);

pub(super) fn examine(settings: &Settings, clock: &dyn Clock, report: &mut Report) {
    let now = clock.now();
    for path in &settings.edge.certificates {
        let pem = read(path, report);
        examine_pair("edge.certificates", path, pem, now, report);
    }
    let (agents, api) = (&settings.agents, &settings.api.tls);
    for (setting, chain, key) in [
        ("agents.cert_file", &agents.cert_file, &agents.key_file),
        ("api.tls.cert_file", &api.cert_file, &api.key_file),
    ] {
        if chain.is_empty() {
            continue;
        }
        let pem = read(chain, report).and_then(|mut pem| {
            if !key.is_empty() {
                pem.push(b'\n');
                pem.extend(read(key, report)?);
            }
            Some(pem)
        });
        examine_pair(setting, chain, pem, now, report);
    }
}

/// What certificates of a CA need beside DNS: the CA, its way to the edge, and the provider that writes records.
pub(super) async fn examine_authority(
    checks: &CertificateChecks,
    has_edge: bool,
    report: &mut Report,
) {
    let (authority, provider) = tokio::join!(checks.authority(), checks.provider());
    let ports = checks.public_ports().filter(|_| has_edge);
    for finding in ports.into_iter().chain(authority).chain(provider) {
        report.found("certificates", finding);
    }
}

fn read(path: &str, report: &mut Report) -> Option<Vec<u8>> {
    match std::fs::read(path) {
        Ok(pem) => Some(pem),
        Err(error) => {
            report.fail(
                "certificates",
                format!("`{path}` cannot be read: {error}"),
                "check the path, and that the user of the server can read the file",
            );
            None
        }
    }
}

/// `pem` is a chain and its key; `None` if that was reported already.
fn examine_pair(key: &str, path: &str, pem: Option<Vec<u8>>, now: Timestamp, report: &mut Report) {
    let Some(pem) = pem else { return };
    let (names, certified) = match read_certificate(&pem) {
        Ok(read) => read,
        Err(fault) => {
            report.fail(
                "certificates",
                format!("`{path}` (setting `{key}`): {}", fault.chain()),
                "the file must contain a certificate chain, the certificate of the server first, and its private key",
            );
            return;
        }
    };
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    let Some(end) = certified.cert.first().and_then(end_of) else {
        return;
    };
    let text = format!("the certificate `{path}` for {names} is valid until {end}");
    if end <= now {
        report.fail(
            "certificates",
            format!("the certificate `{path}` for {names} expired on {end}"),
            "renew it, then run `systemctl reload culvert` or send SIGHUP to the server",
        );
    } else if end.since(now) < RENEW_WITHIN {
        report.warn(
            "certificates",
            text,
            "renew it, then send SIGHUP to the server",
        );
    } else {
        report.ok("certificates", text);
    }
}

fn end_of(certificate: &CertificateDer<'static>) -> Option<Timestamp> {
    expires_at(certificate)
}
