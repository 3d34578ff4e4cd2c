//! Names in DNS, and services that settings name.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

use super::report::Report;
use culvert_installation::certificate_checks::CertificateChecks;
use culvert_installation::config::{Role, Settings};

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(settings: &Settings, checks: &CertificateChecks, report: &mut Report) {
    let domain = &settings.edge.domain;
    if settings.roles.contains(&Role::Edge) {
        if domain == "localhost" || domain.ends_with(".localhost") {
            report.ok(
                "dns",
                format!(
                    "`{domain}` is for this machine alone; set `edge.domain` for other clients"
                ),
            );
        } else {
            // Any name below the domain stands for the names of endpoints.
            let (any, connect) = (
                format!("culvert-doctor.{domain}"),
                format!("connect.{domain}"),
            );
            for (name, record) in [(&any, &format!("*.{domain}")), (&connect, &connect)] {
                report.found("dns", checks.own_name(name, record).await);
            }
        }
    }
    if let Some((host, port)) = host_of(&settings.api.base_url, 443) {
        examine_service("api.base_url", &host, port, report).await;
    }
    if let Ok(Some(servers)) = settings.nats() {
        for server in servers.shown().split(',') {
            if let Some((host, port)) = host_of(server, 4222) {
                examine_service("event_log", &host, port, report).await;
            }
        }
    }
    let advertised = &settings.nodes.advertised_addr;
    if !settings.database_url.is_empty()
        && let Some((host, port)) = advertised.rsplit_once(':')
        && let Ok(port) = port.parse()
    {
        let host = host.trim_matches(['[', ']']);
        examine_service("nodes.advertised_addr", host, port, report).await;
    }
}

/// Host and port of a URL; `None` if it is empty.
fn host_of(url: &str, usual: u16) -> Option<(String, u16)> {
    let url = url::Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    let port = match url.scheme() {
        "http" => url.port().unwrap_or(80),
        _ => url.port().unwrap_or(usual),
    };
    Some((host, port))
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    match tokio::time::timeout(PATIENCE, lookup_host((host, port))).await {
        Ok(Ok(found)) => Ok(found.collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no response within {} s", PATIENCE.as_secs())),
    }
}

async fn examine_service(key: &str, host: &str, port: u16, report: &mut Report) {
    let found = match resolve(host, port).await {
        Ok(found) => found,
        Err(why) => {
            report.fail(
                "services",
                format!("`{key}`: `{host}` does not resolve: {why}"),
                "check the name and the DNS servers in `/etc/resolv.conf`",
            );
            return;
        }
    };
    let mut last = "it has no addresses".to_owned();
    for address in found {
        match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(_)) => {
                report.ok(
                    "services",
                    format!("`{key}`: {host}:{port} accepts connections"),
                );
                return;
            }
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = format!("no response within {} s", PATIENCE.as_secs()),
        }
    }
    report.warn(
        "services",
        format!("`{key}`: no connection to {host}:{port}: {last}"),
        "check that the service runs and that no firewall is between",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_read_from_a_url() {
        let host = |text: &str| host_of(text, 443);
        assert_eq!(
            host("https://ca.example/dir"),
            Some(("ca.example".into(), 443))
        );
        assert_eq!(
            host("http://api.example:81"),
            Some(("api.example".into(), 81))
        );
        assert_eq!(host("https://[::1]/"), Some(("::1".into(), 443)));
        assert_eq!(host(""), None);
    }
}
