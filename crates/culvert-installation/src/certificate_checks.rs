//! The checks of what certificates from an authority need: for `culvert doctor`, and for the server on demand.
//!
//! Names are looked up, and nothing connects to their addresses: the owner of a name could make the server connect
//! anywhere. Whether ports are reached from outside only an authority can say.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{BoxFuture, Clock};
use culvert_dns::{Addresses, DnsWriter, Lookup};
use culvert_tls::acme::Fetch;
use culvert_tls::acme::check::{Check, CheckedName, Checks, Finding, Level};
use culvert_upstream::{PublicClient, is_private};
use http::Request;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::Settings;
use crate::dns_writer::{dns_writer, lookup_settings, public_client};

/// Time limit of looking up one name.
const NAME_WITHIN: Duration = Duration::from_secs(5);
/// Time limit of the authority.
const AUTHORITY_WITHIN: Duration = Duration::from_secs(8);
/// Time limit of the DNS provider and the name servers of its zone.
const PROVIDER_WITHIN: Duration = Duration::from_secs(10);
/// How long findings about the authority and the provider are shown again: many names have the same ones, and both limit
/// how often they are asked.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Maximum size of an authority's directory.
const DIRECTORY_BYTES_MAX: usize = 64 << 10;
/// Maximum length of another party's message, in characters.
const CHARS_MAX: usize = 400;
/// Stands for the names that a wildcard covers.
const ANY_LABEL: &str = "culvert-check";

/// Checks what certificates need, with the settings of an installation.
#[derive(Debug)]
pub struct CertificateChecks {
    domain: String,
    directory_url: String,
    has_hook: bool,
    ports: (Option<u16>, Option<u16>),
    /// Each may be unusable for a reason that the findings say. A server without it still serves.
    client: Result<Arc<PublicClient>, String>,
    lookup: Result<Lookup, String>,
    writer: Result<Option<DnsWriter>, String>,
    /// What the authority and the provider were last found to be.
    shared: Mutex<Option<(Instant, Vec<Finding>)>>,
}

/// What a name should resolve to.
#[derive(Clone, Copy, Debug)]
enum Wanted<'a> {
    /// Addresses that lead to this machine, also from another one.
    ThisMachine,
    /// The addresses of this name.
    As(&'a str),
}

impl CertificateChecks {
    /// The checks for a process with these settings, which listens at the addresses `own`. Sends nothing yet. Settings that
    /// cannot be used are findings.
    pub fn new(
        settings: &Settings,
        own: impl Iterator<Item = SocketAddr>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let said = |error: anyhow::Error| format!("{error:#}");
        let client = public_client(settings, own).map(Arc::new).map_err(said);
        let lookup = client.clone().and_then(|client| {
            let looked_up = lookup_settings(settings, &client).map_err(said)?;
            Lookup::new(looked_up).map_err(|error| error.to_string())
        });
        let writer = client
            .clone()
            .and_then(|client| dns_writer(settings, &client, clock).map_err(said));
        let edge = &settings.edge;
        let public = |configured: u16, listener: &str| match configured {
            0 => listener.parse().ok().map(|at: SocketAddr| at.port()),
            port => Some(port),
        };
        Self {
            domain: edge.domain.clone(),
            directory_url: settings.acme.directory_url.clone(),
            has_hook: !settings.acme.dns_hook.is_empty(),
            ports: (
                public(edge.public_http_port, &edge.http_addr),
                public(edge.public_https_port, &edge.https_addr),
            ),
            client,
            lookup,
            writer,
            shared: Mutex::default(),
        }
    }

    /// Whether a name of the installation resolves. `record` is what its operator creates.
    pub async fn own_name(&self, name: &str, record: &str) -> Finding {
        self.resolve(name, record, Wanted::ThisMachine, true).await
    }

    /// Whether the public ports are those that authorities connect to; `None` without an authority.
    pub fn public_ports(&self) -> Option<Finding> {
        if self.directory_url.is_empty() {
            return None;
        }
        let evidence = [("HTTP", self.ports.0), ("HTTPS", self.ports.1)];
        let evidence = evidence.into_iter().filter_map(|(name, port)| {
            Some(format!(
                "the public port of the edge for {name} is {}",
                port?
            ))
        });
        Some(match self.ports {
            (Some(80), _) | (_, Some(443)) => Finding::ok(
                Check::Ports,
                "the CA reaches the challenges on port 80 or 443",
            ),
            _ => Finding::warn(
                Check::Ports,
                "the CA sends its challenges to port 80 and 443, and public ports of the edge are others",
                "forward these ports to the edge and set `edge.public_http_port = 80` and `edge.public_https_port = 443`, \
                 or use `acme.dns_hook`",
            ),
        }
        .with(evidence))
    }

    /// Whether the server reaches the authority; `None` without one.
    pub async fn authority(&self) -> Option<Finding> {
        let url = self.directory_url.as_str();
        if url.is_empty() {
            return None;
        }
        let mend = "check `acme.directory_url`, `acme.extra_ca_file` for a private CA, `destinations.allow_networks` for a \
                    private address, and that no firewall is between";
        let unreached = |why: &str| {
            let text = format!("the CA at `{url}` cannot be reached");
            Finding::fail(Check::Authority, text, mend).with([shortened(why)])
        };
        let request = Request::get(url).body(Bytes::new());
        let request =
            request.map_err(|error| format!("`acme.directory_url` is not a URL: {error}"));
        let (client, request) = match (&self.client, request) {
            (Ok(client), Ok(request)) => (client, request),
            (Err(why), _) => return Some(unreached(why)),
            (_, Err(why)) => return Some(unreached(&why)),
        };
        let asking = client.fetch(request, DIRECTORY_BYTES_MAX);
        Some(match tokio::time::timeout(AUTHORITY_WITHIN, asking).await {
            Ok(Ok(response)) => {
                let status = response.status();
                let body = response.body();
                let directory: Option<serde_json::Value> = serde_json::from_slice(body).ok();
                let is_directory = directory.is_some_and(|it| it["newOrder"].is_string());
                let evidence = [format!("HTTP status {status} from `{url}`")];
                if status.is_success() && is_directory {
                    Finding::ok(Check::Authority, "the server reaches the CA").with(evidence)
                } else {
                    let said = shortened(&String::from_utf8_lossy(body));
                    Finding::fail(
                        Check::Authority,
                        "the CA responds, but not with its directory",
                        "check `acme.directory_url`; if it is right, the CA has a failure, and the server repeats its attempts",
                    )
                    .with(evidence)
                    .with((!said.is_empty()).then_some(said))
                }
            }
            Ok(Err(cause)) => unreached(&cause.to_string()),
            Err(_) => unreached(&format!(
                "no response within {} s",
                AUTHORITY_WITHIN.as_secs()
            )),
        })
    }

    /// Whether the DNS provider accepts records for challenges; `None` without a provider.
    pub async fn provider(&self) -> Option<Finding> {
        let name = format!("_acme-challenge.{}", self.domain);
        let found = match &self.writer {
            Ok(Some(writer)) => {
                match tokio::time::timeout(PROVIDER_WITHIN, writer.check(&name)).await {
                    Ok(found) => found.map_err(|error| error.to_string()),
                    Err(_) => Err(format!(
                        "`acme.dns.provider` did not respond within {} s",
                        PROVIDER_WITHIN.as_secs()
                    )),
                }
            }
            Ok(None) => {
                let text = "`acme.dns_hook` writes the records; it runs for certificates only";
                return self.has_hook.then(|| Finding::ok(Check::DnsProvider, text));
            }
            Err(why) => Err(why.clone()),
        };
        Some(match found {
            Ok(found) => Finding::ok(Check::DnsProvider, format!("`acme.dns.provider`: {found}")),
            Err(why) => Finding::fail(
                Check::DnsProvider,
                why,
                "check the settings of `acme.dns`, the credentials, and that port 53 and the API of the provider can be reached from here",
            ),
        })
    }

    async fn shared(&self) -> Vec<Finding> {
        let mut shared = self.shared.lock().await;
        if let Some((at, found)) = &*shared
            && at.elapsed() < ASKED_AGAIN_AFTER
        {
            return found.clone();
        }
        let (authority, provider) = tokio::join!(self.authority(), self.provider());
        let found: Vec<Finding> = authority.into_iter().chain(provider).collect();
        *shared = Some((Instant::now(), found.clone()));
        found
    }

    async fn look_up(&self, name: &str) -> Result<Addresses, String> {
        let lookup = self.lookup.as_ref().map_err(Clone::clone)?;
        match tokio::time::timeout(NAME_WITHIN, lookup.addresses(name)).await {
            Ok(Ok(found)) if found.addresses.is_empty() => Err("no addresses".to_owned()),
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no response within {} s", NAME_WITHIN.as_secs())),
        }
    }

    async fn resolve(
        &self,
        name: &str,
        record: &str,
        wanted: Wanted<'_>,
        by_operator: bool,
    ) -> Finding {
        let (found, here) = match wanted {
            Wanted::ThisMachine => (self.look_up(name).await, Ok(Addresses::default())),
            Wanted::As(target) => tokio::join!(self.look_up(name), self.look_up(target)),
        };
        let found = match found {
            Ok(found) => found,
            Err(why) => return no_record(record, &why, wanted),
        };
        let shown = |address: &IpAddr| match by_operator || !is_private(*address) {
            true => address.to_string(),
            false => kind_of(*address).to_owned(),
        };
        let list = |addresses: &[IpAddr]| {
            let mut shown: Vec<String> = addresses.iter().map(shown).collect();
            shown.dedup();
            shown.join(", ")
        };
        let mut evidence = Vec::new();
        // The resolver of the server may know names that are not public.
        let is_public = !found.addresses.iter().any(|address| is_private(*address));
        if !found.aliases.is_empty() && (by_operator || is_public) {
            evidence.push(format!(
                "`{record}` is an alias of `{}`",
                found.aliases.join("`, `")
            ));
        }
        let addresses = list(&found.addresses);
        evidence.push(format!("`{record}` has the addresses {addresses}"));
        if let (Wanted::As(target), Ok(here)) = (wanted, &here) {
            evidence.push(format!(
                "`{target}` has the addresses {}",
                list(&here.addresses)
            ));
        }
        let reached = here.as_ref().map_or(&[][..], |here| &here.addresses);
        let leads_here = |address: &&IpAddr| is_own(**address) || reached.contains(address);
        let astray: Vec<IpAddr> = found
            .addresses
            .iter()
            .filter(|address| !leads_here(address))
            .copied()
            .collect();
        let unreachable = found.addresses.iter().find(|address| {
            self.client
                .as_ref()
                .is_ok_and(|it| !it.may_reach(**address))
        });
        let is_here = astray.len() < found.addresses.len();
        let resolves = format!("`{record}` resolves to {addresses}");
        let finding = match wanted {
            Wanted::ThisMachine => {
                let whose = match is_here {
                    true => "an address of this machine",
                    false => "which must forward to this machine",
                };
                Finding::ok(Check::Name, format!("{resolves}, {whose}"))
            }
            Wanted::As(_) if let Some(address) = unreachable => {
                let kind = kind_of(*address);
                let mend = "set a public address; a CA in the same network reaches private ones after the operator added its network to `destinations.allow_networks`";
                Finding::fail(
                    Check::Name,
                    format!("{resolves}, which is {kind}: no public CA reaches it"),
                    mend,
                )
            }
            Wanted::As(_) if astray.is_empty() => Finding::ok(
                Check::Name,
                format!("{resolves}, which leads to this installation"),
            ),
            Wanted::As(target) if is_here => Finding::warn(
                Check::Name,
                format!(
                    "{resolves}, and {} leads elsewhere: a CA may connect to any of them",
                    list(&astray)
                ),
                format!("remove the other addresses, or make `{record}` an alias of `{target}`"),
            ),
            Wanted::As(target) if here.is_err() => Finding::warn(
                Check::Name,
                format!(
                    "{resolves}; whether that leads here is not known, because `{target}` does not resolve"
                ),
                format!(
                    "the operator creates an A or AAAA record `*.{}` with the public address of the edge",
                    self.domain
                ),
            ),
            Wanted::As(target) => Finding::fail(
                Check::Name,
                format!("{resolves}, which is no address of this installation"),
                format!(
                    "make `{record}` an alias (CNAME) of `{target}`, and wait until the change is visible"
                ),
            ),
        };
        finding.with(evidence)
    }

    /// What a name with this target for challenges needs of DNS.
    async fn records(&self, name: &CheckedName<'_>, provider: Option<Finding>) -> Finding {
        let Some(wildcard) = name.name.strip_prefix("*.") else {
            return provider.unwrap_or_else(|| {
                let text = "no DNS provider is set; only wildcards need one";
                Finding::ok(Check::DnsProvider, text)
            });
        };
        let Some(provider) = provider else {
            return Finding::fail(
                Check::DnsProvider,
                "a wildcard needs a DNS record, and no DNS provider is set",
                "the operator sets `acme.dns.provider` or `acme.dns_hook`",
            );
        };
        let Some(target) = name
            .challenge_target
            .filter(|_| provider.level == Level::Ok)
        else {
            return provider;
        };
        let record = format!("_acme-challenge.{wildcard}");
        let following = async {
            let lookup = self.lookup.as_ref().map_err(Clone::clone)?;
            let end = lookup.follow(&record).await;
            end.map_err(|error| error.to_string())
        };
        let following = tokio::time::timeout(NAME_WITHIN, following).await;
        let mend = format!("create the record `{record}. CNAME {target}.`");
        match following {
            // The operator may make the target an alias in turn.
            Ok(Ok(end)) if end == target || end != record => {
                let seen = format!("`{record}` is an alias of `{end}`");
                provider.with([seen])
            }
            Ok(Ok(_)) => {
                let text = format!("`{record}` is no alias of `{target}`");
                Finding::fail(Check::DnsProvider, text, mend)
            }
            Ok(Err(why)) => {
                let text = format!("`{record}` cannot be looked up");
                Finding::fail(Check::DnsProvider, text, mend).with([why])
            }
            Err(_) => {
                let text = format!("`{record}` cannot be looked up in time");
                Finding::fail(Check::DnsProvider, text, mend)
            }
        }
    }
}

impl Checks for CertificateChecks {
    fn check<'a>(&'a self, name: CheckedName<'a>) -> BoxFuture<'a, Vec<Finding>> {
        Box::pin(async move {
            let asked = match name.name.strip_prefix("*.") {
                Some(base) => format!("{ANY_LABEL}.{base}"),
                None => name.name.to_owned(),
            };
            let wanted = match name.target {
                Some(target) => Wanted::As(target),
                None => Wanted::ThisMachine,
            };
            let resolving = self.resolve(&asked, name.name, wanted, name.by_operator);
            if !name.is_managed {
                return vec![resolving.await];
            }
            let (resolved, shared) = tokio::join!(resolving, self.shared());
            let of = |check| shared.iter().find(|one| one.check == check).cloned();
            let mut findings = vec![resolved];
            if !name.name.starts_with("*.") {
                findings.extend(self.public_ports());
            }
            let authority = of(Check::Authority);
            let authority = match name.by_operator {
                true => authority,
                false => authority.map(|found| match found.level {
                    Level::Ok => found,
                    Level::Warn | Level::Fail => Finding::fail(
                        Check::Authority,
                        "the server cannot use the CA of this installation",
                        "ask the operator: `culvert doctor` says why",
                    ),
                }),
            };
            findings.push(authority.unwrap_or_else(|| {
                Finding::fail(
                    Check::Authority,
                    "this installation has no CA: `acme.directory_url` is not set",
                    "the operator sets `acme.directory_url` and starts the server again; or upload a certificate of your own and choose it in this domain",
                )
            }));
            let provider = of(Check::DnsProvider);
            let provider = match name.by_operator {
                true => provider,
                false => provider.as_ref().map(without_words),
            };
            findings.push(self.records(&name, provider).await);
            findings
        })
    }
}

/// What users see of the DNS provider: what it says is only for the operator.
fn without_words(provider: &Finding) -> Finding {
    match provider.level {
        Level::Ok => {
            let text = "the DNS provider of this installation accepts records";
            Finding::ok(Check::DnsProvider, text)
        }
        Level::Warn | Level::Fail => Finding::fail(
            Check::DnsProvider,
            "the DNS provider of this installation failed",
            "ask the operator: `culvert doctor` says why",
        ),
    }
}

fn no_record(record: &str, why: &str, wanted: Wanted<'_>) -> Finding {
    let text = format!("`{record}` does not resolve: {why}");
    match wanted {
        Wanted::ThisMachine => Finding::warn(
            Check::Name,
            text,
            format!(
                "create an A or AAAA record `{record}` with the public address of this machine or its load balancer"
            ),
        ),
        Wanted::As(target) => Finding::fail(
            Check::Name,
            text,
            format!(
                "make `{record}` an alias (CNAME) of `{target}`, and wait until the record is visible"
            ),
        ),
    }
}

/// Whether an address belongs to this machine.
fn is_own(address: IpAddr) -> bool {
    // A socket can be bound to these too, although they are of no machine.
    !address.is_unspecified() && !address.is_multicast() && UdpSocket::bind((address, 0)).is_ok()
}

/// What an address that is not public is.
fn kind_of(address: IpAddr) -> &'static str {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match address {
        _ if address.is_loopback() => "a loopback address",
        _ if is_link_local => "a link-local address",
        _ => "a private address",
    }
}

/// The beginning of another party's message, in one line.
fn shortened(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(CHARS_MAX).collect::<String>().trim().to_owned()
}
