//! The certificate files that settings name.

use std::time::Duration;

use culvert_base::{Clock, Timestamp};
use culvert_tls::server_certificate::{expires_at, read_certificate};
use rustls_pki_types::CertificateDer;

use super::Report;
use crate::config::Settings;

/// The remaining validity below which a certificate needs attention.
const RENEW_WITHIN: Duration = Duration::from_secs(14 * 24 * 60 * 60);

pub(super) fn examine(settings: &Settings, clock: &dyn Clock, report: &mut Report) {
    let now = clock.now();
    for path in &settings.edge.certificates {
        let pem = read(path, report);
        examine_pair("edge.certificates", path, pem, now, report);
    }
    if !settings.agents.cert_file.is_empty() {
        let (chain, key) = (&settings.agents.cert_file, &settings.agents.key_file);
        let pem = read(chain, report).and_then(|mut pem| {
            pem.push(b'\n');
            pem.extend(read(key, report)?);
            Some(pem)
        });
        examine_pair("agents.cert_file", chain, pem, now, report);
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
