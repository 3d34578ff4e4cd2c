//! The listeners: whether the server is reachable on them, and otherwise whether it could open them.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use culvert_tls::server_certificate::{expires_at, names_issuer, read_certificate};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::report::Report;
use crate::commands::health::{get, local, problems};
use culvert_installation::config::{Role, Settings};

const PATIENCE: Duration = Duration::from_secs(5);

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Api,
    Metrics,
    Http,
    /// TLS, with a certificate for `edge.domain`.
    Tls,
    /// TLS with the operator's certificate for agents, whose names may be any.
    OtherTls,
    /// TLS with the operator's certificate for the API.
    OtherApiTls,
    Ssh,
    /// TLS with client certificates of nodes only.
    Nodes,
}

/// The state of a listener.
#[derive(Debug)]
enum State {
    /// The server responds; the text says how.
    Responds(String),
    /// The server responds, but not as it should.
    Unwell { text: String, mend: String },
    /// Nothing listens, and the server could.
    Free,
    /// Another program listens, or the server may not.
    Blocked { text: String, mend: String },
}

pub(super) async fn examine(settings: &Settings, report: &mut Report) {
    let mut found = Vec::new();
    for (key, text, speaks) in listeners(settings) {
        let Some(address) = local(text) else { continue };
        let state = match tokio::time::timeout(PATIENCE, ask(settings, address, speaks)).await {
            Ok(state) => state,
            Err(_) => State::Blocked {
                text: format!(
                    "no response on {address} within {} s",
                    PATIENCE.as_secs()
                ),
                mend: "look at the log of the server, or find the program that listens there with `ss -ltnp`".into(),
            },
        };
        found.push((key, text, state));
    }
    let is_running = found
        .iter()
        .any(|(_, _, state)| matches!(state, State::Responds(_) | State::Unwell { .. }));
    for (key, listener, state) in found {
        match state {
            State::Responds(text) => report.ok("listeners", format!("`{key}` {listener}: {text}")),
            State::Unwell { text, mend } | State::Blocked { text, mend } => {
                report.fail("listeners", format!("`{key}` {listener}: {text}"), mend);
            }
            State::Free if is_running => report.fail(
                "listeners",
                format!("`{key}` {listener}: nothing listens, although the server runs"),
                "restart the server if the setting changed after its start, and look at its log",
            ),
            State::Free => report.ok(
                "listeners",
                format!("`{key}` {listener}: the port is free; the server does not run"),
            ),
        }
    }
}

/// The listeners of the roles of this process: setting, address, protocol.
fn listeners(settings: &Settings) -> Vec<(&'static str, &str, Speaks)> {
    let has = |role| settings.roles.contains(&role);
    let mut all = Vec::new();
    if has(Role::Api) {
        all.push(("api.addr", settings.api.addr.as_str(), Speaks::Api));
    }
    if has(Role::Api) {
        let speaks = match settings.api.tls.cert_file.is_empty() {
            true => Speaks::Tls,
            false => Speaks::OtherApiTls,
        };
        all.push(("api.tls.addr", &settings.api.tls.addr, speaks));
    }
    if has(Role::Edge) {
        all.push(("edge.http_addr", &settings.edge.http_addr, Speaks::Http));
        all.push(("edge.https_addr", &settings.edge.https_addr, Speaks::Tls));
        // Without a client certificate it says nothing.
        let kubernetes = &settings.kubernetes.addr;
        all.push(("kubernetes.addr", kubernetes, Speaks::Nodes));
    }
    if has(Role::Agents) {
        let speaks = match settings.agents.cert_file.is_empty() {
            true => Speaks::Tls,
            false => Speaks::OtherTls,
        };
        all.push(("agents.addr", &settings.agents.addr, speaks));
        all.push(("agents.ssh_addr", &settings.agents.ssh_addr, Speaks::Ssh));
        if !settings.database_url.is_empty() {
            all.push(("nodes.addr", &settings.nodes.addr, Speaks::Nodes));
        }
    }
    all.push(("metrics.addr", &settings.metrics.addr, Speaks::Metrics));
    all.retain(|(_, text, _)| !text.is_empty());
    all
}

async fn ask(settings: &Settings, address: SocketAddr, speaks: Speaks) -> State {
    let mut stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(_) => return could_listen(address),
    };
    let stranger = |what: String| State::Blocked {
        text: format!("{what}, so another program listens there"),
        mend: format!(
            "stop that program (`ss -ltnp 'sport = :{}'` shows it), or change the setting",
            address.port()
        ),
    };
    match speaks {
        Speaks::Nodes => State::Responds("accepts connections".into()),
        Speaks::Ssh => {
            let mut banner = [0; 4];
            match stream.read_exact(&mut banner).await {
                Ok(_) if &banner == b"SSH-" => State::Responds("responds".into()),
                _ => stranger("there is no SSH server".into()),
            }
        }
        Speaks::Http => match get(address, "/").await {
            Ok(_) => State::Responds("responds".into()),
            Err(why) => stranger(why),
        },
        Speaks::Metrics => match get(address, "/metrics").await {
            Ok((200, _)) => State::Responds("responds".into()),
            Ok((status, _)) => stranger(format!("`/metrics` responds with status {status}")),
            Err(why) => stranger(why),
        },
        Speaks::Api => match get(address, "/readyz").await {
            Ok((200, _)) => State::Responds("the server is ready".into()),
            Ok((503, body)) => State::Unwell {
                text: format!("the server is not ready: {}", problems(&body)),
                mend: "look at the log of the server".into(),
            },
            Ok((status, _)) => stranger(format!("`/readyz` responds with status {status}")),
            Err(why) => stranger(why),
        },
        Speaks::Tls | Speaks::OtherTls | Speaks::OtherApiTls => {
            shake_hands(settings, stream, speaks).await
        }
    }
}

/// Whether the server could open a listener on which nothing responds.
fn could_listen(address: SocketAddr) -> State {
    let mend = match TcpListener::bind(address) {
        Ok(_) => return State::Free,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => (
            error,
            "use a port from 1024, give the server `CAP_NET_BIND_SERVICE`, or add the port to its socket unit",
        ),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => (
            error,
            "use an address of this machine (`ip address`), or `0.0.0.0`",
        ),
        Err(error) => (error, "find the program that uses the port with `ss -ltnp`"),
    };
    let (error, mend) = mend;
    State::Blocked {
        text: format!("the server cannot listen: {error}"),
        mend: mend.into(),
    }
}

/// A TLS handshake that verifies the certificate, with the certificate authorities of the system and the
/// installation's own.
async fn shake_hands(settings: &Settings, stream: TcpStream, speaks: Speaks) -> State {
    let name = match speaks {
        Speaks::OtherTls => operator_name(&settings.agents.cert_file, &settings.agents.key_file),
        Speaks::OtherApiTls => {
            operator_name(&settings.api.tls.cert_file, &settings.api.tls.key_file)
        }
        // A subdomain, because the certificate must have the wildcard.
        _ if settings.acme.domain_certificate => Some(format!("doctor.{}", settings.edge.domain)),
        _ => None,
    };
    let name = name.unwrap_or_else(|| settings.edge.domain.clone());
    let (roots, own) = (roots(settings), own_authority(settings));
    let Ok(server) = ServerName::try_from(name.clone()) else {
        return State::Responds("accepts connections".into());
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|config| config.with_root_certificates(roots).with_no_client_auth());
    let Ok(config) = config else {
        return State::Responds("accepts connections".into());
    };
    match TlsConnector::from(Arc::new(config)).connect(server, stream).await {
        Ok(stream) => {
            let (_, session) = stream.get_ref();
            let presented = session.peer_certificates().and_then(|chain| chain.first());
            let is_own = presented.is_some_and(|leaf| own.iter().any(|ca| names_issuer(leaf, ca)));
            if is_own && speaks == Speaks::Tls && settings.acme.domain_certificate {
                return State::Unwell {
                    text: format!("the certificate for `{name}` is of the installation's own CA"),
                    mend: "wait until the public certificate is issued; if that fails, the log of the server says why"
                        .into(),
                };
            }
            let end = presented.and_then(expires_at);
            let end = end.map_or_else(String::new, |end| format!(", until {end}"));
            State::Responds(format!("presents a valid certificate for `{name}`{end}"))
        }
        Err(error) => State::Unwell {
            text: format!("the TLS handshake for `{name}` failed: {error}"),
            mend: "if the certificate is the problem, reserve the domain with a certificate, set `edge.certificates`, \
                   or give clients `ca.pem` of the data directory; otherwise look for another program on the port"
                .into(),
        },
    }
}

/// The certificate authority of the installation, if this machine has its data.
fn own_authority(settings: &Settings) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(settings.data_dir.join("ca.pem"))
        .map(|pem| pem.flatten().collect())
        .unwrap_or_default()
}

/// The certificate authorities of the system and the installation's own.
pub(super) fn roots(settings: &Settings) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots.add_parsable_certificates(own_authority(settings));
    if let Ok(private) = CertificateDer::pem_file_iter(&settings.acme.extra_ca_file) {
        roots.add_parsable_certificates(private.flatten());
    }
    roots
}

/// The first host name of an operator's certificate.
fn operator_name(certificate: &str, key: &str) -> Option<String> {
    let mut pem = std::fs::read(certificate).ok()?;
    if !key.is_empty() {
        pem.push(b'\n');
        pem.extend(std::fs::read(key).ok()?);
    }
    let (names, _) = read_certificate(&pem).ok()?;
    // A wildcard covers any label.
    Some(names.first()?.to_string().replace('*', "doctor"))
}
