//! Converts settings, and the files they name, into the configuration of each part.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_api::Window;
use culvert_base::net::HostName;
use culvert_base::{OsEntropy, Supervisor};
use culvert_control::{Pepper, PublicPorts};
use culvert_delivery::{JetStreamSettings, STREAM_LEASE};
use culvert_edge::{Edge, Inherited};
use culvert_events::HeaderRules;
use culvert_policy::{ErrorPages, IpDataFiles, IpDatabases};
use culvert_statistics::Traffic;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::cloud_destinations;
use culvert_installation::config::{Invalid, ProxiedListener, Settings, networks};
use culvert_installation::proxies;
use culvert_target::TargetSettings;
use culvert_target::guard::Rules;

/// The configuration of the edge.
pub(crate) fn edge_settings(settings: &Settings) -> Result<culvert_edge::Settings, Invalid> {
    let timeouts = &settings.edge.timeouts;
    let limits = culvert_edge::Limits {
        memory_bytes: settings.edge.memory_bytes,
        body_bytes: match settings.edge.body_bytes_max {
            0 => u64::MAX,
            most => most,
        },
        connections: settings.edge.connections_max as usize,
        connections_per_source: settings.edge.connections_per_source_max as usize,
        drain: settings.shutdown.drain.0,
        copy_age_max: settings.edge.copy_age_max(),
        connect: timeouts.connect.0,
        answer: timeouts.first_byte.0,
        tunnel_idle: timeouts.idle.0,
        write_stall: timeouts.write.0,
        body_stall: timeouts.request.0,
        ..culvert_edge::Limits::default()
    };
    let http_addr = address(&settings.edge.http_addr);
    let https_addr = address(&settings.edge.https_addr);
    let upstream_roots = match settings.edge.extra_ca_file.as_str() {
        "" => Vec::new(),
        path => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|e| Invalid(format!("`edge.extra_ca_file` cannot be read: {e}")))?,
    };
    let mut certificates = Vec::new();
    for path in &settings.edge.certificates {
        let unusable = |why: String| {
            Invalid(format!(
                "`edge.certificates` contains `{path}`, which cannot be used: {why}"
            ))
        };
        let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let certificate = culvert_tls::server_certificate::read_certificate(&pem)
            .map_err(|fault| unusable(fault.chain()))?;
        certificates.push(certificate);
    }
    let error_pages = match settings.edge.error_pages.as_str() {
        "" => ErrorPages::default(),
        directory => ErrorPages::read(Path::new(directory))
            .map_err(|error| Invalid(format!("`edge.error_pages` cannot be used: {error}")))?,
    };
    let proxied = |listener| settings.edge.proxy_protocol.contains(&listener);
    Ok(culvert_edge::Settings {
        http_addr,
        https_addr,
        kubernetes_addr: address(&settings.kubernetes.addr),
        kubernetes_host: String::new(),
        tcp_bind_ip: http_addr
            .or(https_addr)
            .map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip()),
        inherited: Inherited::default(),
        trusted_proxies: networks("edge.trusted_proxies", &settings.edge.trusted_proxies)?,
        proxy_protocol: culvert_edge::ProxyProtocol {
            from: networks(
                "edge.proxy_protocol_from",
                &settings.edge.proxy_protocol_from,
            )?,
            http: proxied(ProxiedListener::Http),
            https: proxied(ProxiedListener::Https),
            tcp: proxied(ProxiedListener::Tcp),
            kubernetes: proxied(ProxiedListener::Kubernetes),
        },
        allow_private_upstreams: settings.edge.allow_private_upstreams,
        allow_unix_upstreams: settings.edge.allowed_sockets()?,
        allow_file_upstreams: settings.edge.allowed_folders()?,
        allow_networks: networks(
            "destinations.allow_networks",
            &settings.destinations.allow_networks,
        )?,
        proxies: proxies(settings)?,
        upstream_roots,
        certificates,
        write_delay: None,
        agents: None,
        ip_data: IpDatabases::default(),
        counts: None,
        is_from_copy: false,
        region: settings.region.clone(),
        entropy: Arc::new(OsEntropy),
        on_expression_error: settings.policy.on_expression_error.into(),
        allows_public_calls: settings.policy.http_request_public,
        header_rules: HeaderRules::redacting(
            &settings.events.redact_headers,
            &settings.events.redact_query,
        ),
        underscore_headers: settings.edge.underscore_headers,
        redirect_http: settings.edge.redirect_http,
        tls12_without_ems: settings.edge.tls12_without_ems,
        default_server_name: HostName::parse(&settings.edge.default_server_name).ok(),
        error_pages: Arc::new(error_pages),
        threads: match settings.edge.threads {
            0 => std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1)),
            threads => threads as usize,
        },
        limits,
        traffic: Arc::new(Traffic::new(
            settings.statistics.endpoints_max as usize,
            settings.metrics.endpoints_max as usize,
        )),
        tracing: None,
        supervisor: Supervisor::default(),
    })
}

/// The files with address data.
pub(crate) fn ip_data_files(settings: &Settings) -> Result<IpDataFiles, Invalid> {
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let list = |text: &String| match text.split_once('=') {
        Some((name, file)) if !name.trim().is_empty() && !file.trim().is_empty() => {
            Ok((name.trim().to_owned(), PathBuf::from(file.trim())))
        }
        _ => Err(Invalid(format!(
            "`edge.ip_categories` contains `{text}`, which is not `name=file`"
        ))),
    };
    let lists = settings.edge.ip_categories.iter();
    Ok(IpDataFiles {
        geo: path(&settings.edge.geo_database),
        asn: path(&settings.edge.asn_database),
        categories: lists.map(list).collect::<Result<_, _>>()?,
    })
}

/// The ports in URLs of endpoints: those of the settings, otherwise the bound ones, or those that an edge with these
/// settings would bind.
pub(super) fn public_ports(settings: &Settings, edge: Option<&Edge>) -> PublicPorts {
    let port = |given: u16, bound: Option<SocketAddr>, wanted: &str, usual: u16| {
        let bound = bound.or_else(|| address(wanted)).map(|at| at.port());
        match (given, bound) {
            (0, None | Some(0)) => usual,
            (0, Some(bound)) => bound,
            (given, _) => given,
        }
    };
    let (edge_settings, usual) = (&settings.edge, PublicPorts::default());
    PublicPorts {
        http: port(
            edge_settings.public_http_port,
            edge.and_then(Edge::http_addr),
            &edge_settings.http_addr,
            usual.http,
        ),
        https: port(
            edge_settings.public_https_port,
            edge.and_then(Edge::https_addr),
            &edge_settings.https_addr,
            usual.https,
        ),
    }
}

/// The configuration of the event log in NATS, if it is used.
pub(super) fn event_log(
    settings: &Settings,
    pepper: &Pepper,
) -> Result<Option<JetStreamSettings>, Invalid> {
    let Some(servers) = settings.nats()? else {
        return Ok(None);
    };
    let stream = match settings.events.log_stream.as_str() {
        // A name that all nodes of this installation share, and that other installations do not use.
        "" => {
            let digest = pepper.digest("event log");
            let name = digest.split_once('.').map_or(&*digest, |(_, hex)| hex);
            format!("culvert_{}", name.get(..12).unwrap_or(name))
        }
        name => name.to_owned(),
    };
    Ok(Some(JetStreamSettings {
        servers,
        stream,
        replicas: settings.events.log_replicas,
        lease: STREAM_LEASE,
        held: Some(settings.data_dir.join("held")),
        stored: Some(settings.data_dir.join("stored")),
        is_shared: !settings.database_url.is_empty(),
    }))
}

fn ports(texts: &[String]) -> Result<Vec<u16>> {
    let ports = texts.iter().map(|text| {
        let port = text.trim().parse();
        port.map_err(|_| anyhow::anyhow!("`destinations.deny_ports`: `{text}` is not a port"))
    });
    ports.collect()
}

pub(super) fn target_settings(
    settings: &Settings,
    environment: &HashMap<String, String>,
) -> Result<TargetSettings> {
    let file_root = settings.file_root();
    Ok(TargetSettings {
        rules: Rules {
            allow_networks: networks(
                "destinations.allow_networks",
                &settings.destinations.allow_networks,
            )?,
            allow_plain_http: settings.destinations.allow_plain_http,
            deny_ports: ports(&settings.destinations.deny_ports)?,
        },
        extra_ca_file: Some(&settings.destinations.tls.extra_ca_file)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        proxies: proxies(settings)?,
        file_root: Some(file_root),
        public_base: settings.api.base_url.trim_end_matches('/').to_owned(),
        node: settings.node(),
        aws: cloud_destinations::settings(&settings.destinations.aws, environment)?,
        datadog_base: cloud_destinations::base(
            "destinations.datadog.base_url",
            &settings.destinations.datadog.base_url,
        )?,
        datadog_sites: settings.destinations.datadog.sites.clone(),
        azure_authority: cloud_destinations::base(
            "destinations.azure.authority_url",
            &settings.destinations.azure.authority_url,
        )?,
    })
}

pub(super) fn api_settings(settings: &Settings) -> Result<culvert_api::Settings> {
    let base_url = settings.api.base_url.trim_end_matches('/').to_owned();
    let per_minute = settings.api.rate_limit_per_minute;
    Ok(culvert_api::Settings {
        base_url: Some(base_url).filter(|base| !base.is_empty()),
        trusted_proxies: networks("api.trusted_proxies", &settings.api.trusted_proxies)?,
        limits: culvert_api::Limits {
            account_window: (per_minute > 0).then(|| Window {
                requests: per_minute as usize,
                length: Duration::from_secs(60),
            }),
            connections: settings.api.connections_max as usize,
            connections_per_source: settings.api.connections_per_source_max as usize,
            concurrent: settings.api.requests_max as usize,
            concurrent_per_owner: settings.api.requests_per_owner_max as usize,
            drain: settings.shutdown.drain.0,
            ..culvert_api::Limits::default()
        },
        is_health_alone: false,
        is_audit_log_public: settings.audit.public_log,
    })
}

/// Parses an address that was checked when the settings were loaded; empty means off.
fn address(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}
