//! Managed certificates: connects control's port for issuers to the ACME client, which sends its requests through the
//! edge's client.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Fault, Secret};
use culvert_control::{Certificates, Issuer, Record};
use culvert_edge::{Edge, PublicClient};
use culvert_tls::acme::{Acme, AcmeSettings, ChallengeKind, DnsHook, Failure, Order};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::config::{self, Invalid, Settings};
use crate::server::{edge_settings, with_causes};

/// Time limit for connecting to a certificate authority, including TLS.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a commit takes to reach all nodes. They read it within a second and then compile it.
const SPREAD: Duration = Duration::from_secs(3);

/// The certificate settings of a process with an edge.
pub fn certificates(settings: &Settings, edge: &Edge) -> Result<Certificates> {
    let issuer = match settings.acme.directory_url.as_str() {
        "" => None,
        url => Some(Arc::new(Client(client(settings, url, edge)?)) as Arc<dyn Issuer>),
    };
    let is_listening = |kind: &ChallengeKind| match kind {
        ChallengeKind::Http01 => !settings.edge.http_addr.is_empty(),
        ChallengeKind::TlsAlpn01 => !settings.edge.https_addr.is_empty(),
        ChallengeKind::Dns01 => false,
    };
    let mut challenges = settings.acme.challenges()?;
    challenges.retain(is_listening);
    // With SQLite there is only one edge, so there is no wait for others.
    let is_shared = !settings.database_url.is_empty();
    Ok(Certificates {
        issuer,
        node: settings.node(),
        challenges,
        spread: if is_shared { SPREAD } else { Duration::ZERO },
        retry_after: settings.acme.retry_after.0,
    })
}

fn client(settings: &Settings, url: &str, edge: &Edge) -> Result<Acme> {
    let acme = &settings.acme;
    let roots = match acme.extra_ca_file.as_str() {
        "" => Vec::new(),
        path => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|e| Invalid(format!("`acme.extra_ca_file` cannot be read: {e}")))?,
    };
    let dns_hook = match acme.dns_hook.as_str() {
        "" => None,
        path => {
            // Without a directory, the path would be searched in `PATH`.
            let program = std::path::absolute(path)?;
            if !program.is_file() {
                return Err(Invalid(format!("`acme.dns_hook` is not a file: `{path}`")).into());
            }
            // The hook must not receive the secrets in culvert's own settings.
            let environment = config::environment();
            let others = environment
                .into_iter()
                .filter(|(name, _)| !name.starts_with("CULVERT_"));
            Some(DnsHook {
                program,
                environment: others.collect(),
                limit: acme.dns_hook_timeout.0,
            })
        }
    };
    let contact = Some(acme.contact.as_str()).filter(|contact| !contact.is_empty());
    let networks = edge_settings(settings)?.allow_networks;
    let own = [edge.http_addr(), edge.https_addr()].into_iter().flatten();
    let client = PublicClient::new(&roots, CONNECT_WITHIN, &networks, own).map_err(with_causes)?;
    let settings = AcmeSettings {
        directory_url: url.to_owned(),
        contact: contact.map(|contact| match contact.contains(':') {
            true => contact.to_owned(),
            false => format!("mailto:{contact}"),
        }),
        dns_hook,
    };
    Ok(Acme::new(settings, Arc::new(client)))
}

/// The ACME client as control's port.
#[derive(Debug)]
struct Client(Acme);

impl Issuer for Client {
    fn directory(&self) -> &str {
        self.0.directory()
    }

    fn writes_records(&self) -> bool {
        self.0.dns_hook().is_some()
    }

    fn new_account_key(&self) -> Result<Secret, Fault> {
        Acme::new_account_key()
    }

    fn place<'a>(
        &'a self,
        key: &'a Secret,
        name: &'a HostName,
    ) -> BoxFuture<'a, Result<Order, Failure>> {
        Box::pin(self.0.place(key, name))
    }

    fn look<'a>(&'a self, key: &'a Secret, url: &'a str) -> BoxFuture<'a, Result<Order, Failure>> {
        Box::pin(self.0.look(key, url))
    }

    fn ready<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
        kind: ChallengeKind,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.0.ready(key, url, kind))
    }

    fn finalize<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
        csr_der: &'a [u8],
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.0.finalize(key, url, csr_der))
    }

    fn certificate<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(self.0.certificate(key, url))
    }

    fn record<'a>(
        &'a self,
        record: Record,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Some(hook) = self.0.dns_hook() else {
                return Err(Failure::passing("this installation has no DNS hook"));
            };
            let action = match record {
                Record::Add => "add",
                Record::Remove => "remove",
            };
            hook.run(action, name, value).await
        })
    }
}
