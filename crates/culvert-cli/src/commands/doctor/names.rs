//! Names in DNS, and services that settings name.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

use super::Report;
use culvert_installation::config::{Role, Settings};

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(settings: &Settings, report: &mut Report) {
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
            examine_name(
                &format!("culvert-doctor.{domain}"),
                &format!("*.{domain}"),
                report,
            )
            .await;
            examine_name(
                &format!("connect.{domain}"),
                &format!("connect.{domain}"),
                report,
            )
            .await;
        }
        examine_challenges(settings, report);
    }
    for (key, text, usual) in [
        ("api.base_url", &settings.api.base_url, 443),
        ("acme.directory_url", &settings.acme.directory_url, 443),
    ] {
        let Some((host, port)) = host_of(text, usual) else {
            continue;
        };
        examine_service(key, &host, port, report).await;
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

async fn examine_name(name: &str, record: &str, report: &mut Report) {
    match resolve(name, 443).await {
        Ok(found) if !found.is_empty() => {
            let mut addresses: Vec<IpAddr> = found.iter().map(SocketAddr::ip).collect();
            addresses.dedup();
            let is_here = addresses.iter().any(|address| is_own(*address));
            let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let whose = match is_here {
                true => "an address of this machine",
                false => "which must forward to this machine",
            };
            report.ok(
                "dns",
                format!("`{record}` resolves to {}, {whose}", list.join(", ")),
            );
        }
        Ok(_) => no_record(record, "no addresses", report),
        Err(why) => no_record(record, &why, report),
    }
}

fn no_record(record: &str, why: &str, report: &mut Report) {
    report.warn(
        "dns",
        format!("`{record}` does not resolve: {why}"),
        format!("create an A or AAAA record `{record}` with the public address of this machine or its load balancer"),
    );
}

/// Whether an address belongs to this machine.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
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

/// The challenges of the CA arrive at fixed public ports.
fn examine_challenges(settings: &Settings, report: &mut Report) {
    if settings.acme.directory_url.is_empty() {
        return;
    }
    let public = |configured: u16, listener: &str| match configured {
        0 => listener
            .parse()
            .ok()
            .map(|address: SocketAddr| address.port()),
        port => Some(port),
    };
    let edge = &settings.edge;
    let http = public(edge.public_http_port, &edge.http_addr);
    let https = public(edge.public_https_port, &edge.https_addr);
    match (http, https) {
        (Some(80), _) | (_, Some(443)) => report.ok(
            "certificates",
            "the CA reaches the challenges on port 80 or 443",
        ),
        _ => report.warn(
            "certificates",
            "the CA sends its challenges to port 80 and 443, and public ports of the edge are others",
            "forward these ports to the edge and set `edge.public_http_port = 80` and `edge.public_https_port = 443`, \
             or use `acme.dns_hook`",
        ),
    }
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
