//! Managed certificates: connects control's port for issuers to the ACME client, which sends its requests through the
//! edge's client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Clock, Secret};
use culvert_control::{Certificates, Issuer, Record};
use culvert_dns::{DnsError, DnsWriter};
use culvert_edge::Edge;
use culvert_tls::acme::{
    Acme, AcmeSettings, ChallengeKind, DnsHook, ExternalAccount, Failure, Order, RenewalWindow,
};

use culvert_installation::config::{self, Invalid, Settings};
use culvert_installation::dns_writer::{dns_writer, public_client};

/// How long a commit takes to reach all nodes. They read it within a second and then compile it.
const SPREAD: Duration = Duration::from_secs(3);

/// The certificate settings of a process with an edge.
pub(crate) fn certificates(
    settings: &Settings,
    edge: &Edge,
    clock: Arc<dyn Clock>,
) -> Result<Certificates> {
    let own = own_addresses(edge);
    let issuer = match settings.acme.directory_url.as_str() {
        "" => None,
        url => Some(Arc::new(issuer(settings, url, own, clock)?) as Arc<dyn Issuer>),
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
        own_names: settings.acme.own_names(&settings.edge.domain)?,
        node: settings.node(),
        challenges,
        spread: if is_shared { SPREAD } else { Duration::ZERO },
        retry_after: settings.acme.retry_after.0,
    })
}

/// Where the edge listens, so that no authority is there.
pub(crate) fn own_addresses(edge: &Edge) -> impl Iterator<Item = SocketAddr> + use<> {
    [edge.http_addr(), edge.https_addr()].into_iter().flatten()
}

/// Checks the settings of the certificate authority and of its challenges, without a connection.
pub(crate) fn check(settings: &Settings, clock: Arc<dyn Clock>) -> Result<()> {
    match settings.acme.directory_url.as_str() {
        "" => Ok(()),
        url => issuer(settings, url, std::iter::empty(), clock).map(drop),
    }
}

fn issuer(
    settings: &Settings,
    url: &str,
    own: impl Iterator<Item = SocketAddr>,
    clock: Arc<dyn Clock>,
) -> Result<Client> {
    let acme = &settings.acme;
    let client = Arc::new(public_client(settings, own)?);
    let records = match (
        dns_writer(settings, &client, clock.clone())?,
        dns_hook(acme)?,
    ) {
        (Some(writer), _) => Some(Records::Writer(Box::new(writer))),
        (None, hook) => hook.map(Records::Hook),
    };
    let contact = Some(acme.contact.as_str()).filter(|contact| !contact.is_empty());
    let settings = AcmeSettings {
        directory_url: url.to_owned(),
        contact: contact.map(|contact| match contact.contains(':') {
            true => contact.to_owned(),
            false => format!("mailto:{contact}"),
        }),
        external_account: acme
            .external_account()
            .map(|(key_id, hmac_key)| ExternalAccount { key_id, hmac_key }),
    };
    Ok(Client {
        acme: Acme::new(settings, client, clock),
        records,
    })
}

/// The operator's program that writes records, if the settings name one.
fn dns_hook(acme: &config::Acme) -> Result<Option<DnsHook>> {
    let path = acme.dns_hook.as_str();
    if path.is_empty() {
        return Ok(None);
    }
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
    Ok(Some(DnsHook {
        program,
        environment: others.collect(),
        limit: acme.dns_hook_timeout.0,
    }))
}

/// The ACME client as control's port.
#[derive(Debug)]
struct Client {
    acme: Acme,
    records: Option<Records>,
}

/// Writes TXT records.
#[derive(Debug)]
enum Records {
    Hook(DnsHook),
    Writer(Box<DnsWriter>),
}

impl Records {
    async fn change(&self, record: Record, name: &str, value: &str) -> Result<(), Failure> {
        let failed = |error: DnsError| {
            tracing::warn!("{error}");
            // Users see the failure; what the provider says is only for the operator.
            Failure {
                retry_after: error.retry_after(),
                ..Failure::passing(
                    "the DNS provider of this installation failed; see the server log",
                )
            }
        };
        match (self, record) {
            (Self::Hook(hook), Record::Add) => hook.run("add", name, value).await,
            (Self::Hook(hook), Record::Remove) => hook.run("remove", name, value).await,
            (Self::Writer(writer), Record::Add) => writer.add(name, value).await.map_err(failed),
            (Self::Writer(writer), Record::Remove) => {
                writer.remove(name, value).await.map_err(failed)
            }
        }
    }
}

impl Issuer for Client {
    fn directory(&self) -> &str {
        self.acme.directory()
    }

    fn writes_records(&self) -> bool {
        self.records.is_some()
    }

    fn external_account(&self) -> Option<&str> {
        self.acme.external_account()
    }

    fn new_account(&self) -> BoxFuture<'_, Result<Secret, Failure>> {
        Box::pin(self.acme.new_account())
    }

    fn order<'a>(
        &'a self,
        key: &'a Secret,
        names: &'a [HostName],
        replaces: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Order, Failure>> {
        Box::pin(self.acme.order(key, names, replaces))
    }

    fn renewal_window<'a>(
        &'a self,
        key: &'a Secret,
        chain_pem: &'a str,
    ) -> BoxFuture<'a, Result<Option<RenewalWindow>, Failure>> {
        Box::pin(self.acme.renewal_window(key, chain_pem))
    }

    fn order_state<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<Order, Failure>> {
        Box::pin(self.acme.order_state(key, url))
    }

    fn ready<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
        kind: ChallengeKind,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.acme.ready(key, url, kind))
    }

    fn finalize<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
        csr_der: &'a [u8],
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.acme.finalize(key, url, csr_der))
    }

    fn certificate<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<String, Failure>> {
        Box::pin(self.acme.certificate(key, url))
    }

    fn record<'a>(
        &'a self,
        record: Record,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Some(records) = &self.records else {
                return Err(Failure::passing("this installation writes no DNS records"));
            };
            records.change(record, name, value).await
        })
    }
}
