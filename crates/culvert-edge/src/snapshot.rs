//! The compiled, immutable input of the edge: which endpoints there are, and which certificates.
//!
//! A [`Snapshot`] is a plain value that anyone can build. [`Live`] is what the edge makes of it:
//! the same facts in tables that a request reads without a lock, tied to connection pools and TLS
//! settings that outlive one snapshot.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_base::IpSet;
use culvert_base::net::HostName;
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use crate::acme::{Answers, Challenge, Prepared};
use crate::edge::Shared;
use crate::login::Logins;
use crate::policy::Policy;
use crate::route::Hosts;
use crate::tls::Presented;
use crate::upstream::{Pool, Upstream};

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP in clear, found by host.
    Http,
    /// HTTP over TLS that ends here, found by host.
    Https,
    /// Raw TCP on a port of its own.
    Tcp,
    /// TLS that passes through, found by the name in its first bytes.
    Tls,
}

impl Scheme {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Http, Self::Https, Self::Tcp, Self::Tls];

    /// As it stands in front of `://`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// The port of an address without one.
    pub(crate) fn port(self) -> Option<u16> {
        match self {
            Self::Http => Some(80),
            Self::Https | Self::Tls => Some(443),
            Self::Tcp => None,
        }
    }

    /// Whether the edge speaks HTTP at such an endpoint.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

/// An address at which traffic arrives, and where it goes.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `ep_…`, for the log.
    pub id: String,
    /// `ac_…` of the account whose events its traffic makes.
    pub account: Arc<str>,
    /// How it is spoken to.
    pub scheme: Scheme,
    /// Whether it is reached through the policies of its account's endpoints only.
    pub is_internal: bool,
    /// Its host; a wildcard covers names of any depth below it.
    pub host: HostName,
    /// The public port of a TCP endpoint, or the port of an internal one; nominal for the others.
    pub port: u16,
    /// Where its traffic goes, as far as the policy lets it; `None` when the policy answers all.
    pub upstream: Option<Upstream>,
    /// What is done with its traffic on the way.
    pub policy: Option<Arc<Policy>>,
}

impl Endpoint {
    /// Its address as a URL.
    pub(crate) fn url(&self) -> String {
        let (name, host) = (self.scheme.name(), &*self.host);
        if self.scheme.port() == Some(self.port) || (self.port == 0 && !self.is_internal) {
            format!("{name}://{host}")
        } else {
            format!("{name}://{host}:{}", self.port)
        }
    }
}

/// The addresses from which the endpoints of an account are reached.
#[derive(Clone, Debug)]
pub struct Restriction {
    /// `ipx_…`, for the log.
    pub id: String,
    /// `ac_…` of the account whose endpoints it is about.
    pub account: Arc<str>,
    /// Whether others are refused, or only logged.
    pub enforced: bool,
    /// Who is admitted.
    pub admitted: Arc<IpSet>,
}

/// A certificate with its key, and the names it is presented for.
type Named = (Vec<HostName>, Arc<CertifiedKey>);

/// Endpoints, certificates and restrictions of one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    endpoints: Vec<Endpoint>,
    restrictions: Vec<Restriction>,
    certificates: Vec<Named>,
    fallback: Vec<Named>,
    challenges: Vec<Challenge>,
    logins: Option<Arc<Logins>>,
}

impl Snapshot {
    /// A snapshot without endpoints and certificates, to be filled.
    pub fn builder() -> SnapshotBuilder {
        SnapshotBuilder(Self::default())
    }

    /// How many endpoints it has.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Its restrictions.
    pub fn restrictions(&self) -> &[Restriction] {
        &self.restrictions
    }

    /// Its challenges.
    pub fn challenges(&self) -> &[Challenge] {
        &self.challenges
    }

    /// The names that certificates are presented for, but for those of last resort.
    pub fn certified(&self) -> impl Iterator<Item = &HostName> {
        self.certificates.iter().flat_map(|(names, _)| names)
    }

    /// Whether it has no endpoint.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the certificates, whose keys no log may see.
        f.debug_struct("Snapshot")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// Fills a [`Snapshot`].
#[derive(Debug)]
pub struct SnapshotBuilder(Snapshot);

impl SnapshotBuilder {
    /// Adds an endpoint. Several with the same scheme, host and port share the load in turn.
    #[must_use]
    pub fn endpoint(mut self, endpoint: Endpoint) -> Self {
        self.0.endpoints.push(endpoint);
        self
    }

    /// Adds a certificate with its key, presented for these names. For a name given twice the later
    /// one counts; a wildcard covers names of any depth.
    #[must_use]
    pub fn certificate(
        mut self,
        names: impl IntoIterator<Item = HostName>,
        key: Arc<CertifiedKey>,
    ) -> Self {
        self.0.certificates.push((names.into_iter().collect(), key));
        self
    }

    /// Adds a certificate that is presented where there is no other, neither of the snapshot nor in
    /// the operator's files.
    #[must_use]
    pub fn fallback_certificate(
        mut self,
        names: impl IntoIterator<Item = HostName>,
        key: Arc<CertifiedKey>,
    ) -> Self {
        self.0.fallback.push((names.into_iter().collect(), key));
        self
    }

    /// Adds the restriction of an account's endpoints; of two for one account the later one counts.
    #[must_use]
    pub fn restriction(mut self, restriction: Restriction) -> Self {
        self.0.restrictions.push(restriction);
        self
    }

    /// Adds a challenge that is to be answered for its host, whatever else is there.
    #[must_use]
    pub fn challenge(mut self, challenge: Challenge) -> Self {
        self.0.challenges.push(challenge);
        self
    }

    /// Says what log-ins share, for users who come back to the one address of all endpoints.
    #[must_use]
    pub fn logins(mut self, logins: Arc<Logins>) -> Self {
        self.0.logins = Some(logins);
        self
    }

    /// The snapshot.
    pub fn build(self) -> Snapshot {
        self.0
    }
}

/// Where an endpoint is found.
#[derive(PartialEq, Eq, Hash)]
enum Place {
    /// By its public port alone: TCP.
    Port(u16),
    Host(Scheme, HostName),
    Internal(Arc<str>, Scheme, HostName, u16),
}

impl Place {
    fn of(endpoint: &Endpoint) -> Self {
        let host = endpoint.host.clone();
        match endpoint.scheme {
            scheme if endpoint.is_internal => {
                Self::Internal(Arc::clone(&endpoint.account), scheme, host, endpoint.port)
            }
            Scheme::Tcp => Self::Port(endpoint.port),
            scheme => Self::Host(scheme, host),
        }
    }
}

/// A snapshot in use.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) http: Hosts<Arc<Group>>,
    pub(crate) https: Hosts<Arc<Group>>,
    pub(crate) tls: Hosts<Arc<Group>>,
    pub(crate) tcp: HashMap<u16, Arc<Group>>,
    /// Internal endpoints, which are names of their account.
    internal: HashMap<(Arc<str>, Scheme, u16), Hosts<Arc<Group>>>,
    pub(crate) certificates: Hosts<Arc<Presented>>,
    pub(crate) fallback: Hosts<Arc<Presented>>,
    pub(crate) answers: Answers,
    pub(crate) logins: Option<Arc<Logins>>,
}

impl Live {
    /// The internal endpoints of an account at an address.
    pub(crate) fn internal(
        &self,
        account: &Arc<str>,
        scheme: Scheme,
        host: &str,
        port: u16,
    ) -> Option<&Arc<Group>> {
        let hosts = self.internal.get(&(Arc::clone(account), scheme, port))?;
        hosts.find(host)
    }
}

/// The endpoints at one address.
#[derive(Debug)]
pub(crate) struct Group {
    first: Arc<Member>,
    others: Vec<Arc<Member>>,
    turn: AtomicUsize,
    restriction: Option<Arc<Restriction>>,
}

/// An endpoint with the connections to its upstream.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) pool: Option<Arc<Pool>>,
    /// Where its traffic goes when its agent is away or its upstream takes no connection: others of the
    /// same address, whose endpoints treat it the same.
    pub(crate) stand_ins: Vec<Arc<Pool>>,
}

/// Agents or upstreams that are tried in the place of one.
const STAND_INS_MAX: usize = 3;

impl Member {
    /// Whether there is nobody behind it now.
    fn is_away(&self, edge: &Shared) -> bool {
        let endpoint = self
            .pool
            .as_ref()
            .and_then(|pool| pool.upstream().agents_endpoint());
        match (endpoint, &edge.agents) {
            (None, _) => self.pool.as_ref().is_some_and(|pool| !pool.is_reachable()),
            (Some(_), None) => true,
            (Some(id), Some(agents)) => !agents.is_online(id),
        }
    }

    /// Whether `other` does with traffic what this one does.
    fn is_like(&self, other: &Self) -> bool {
        match (&self.endpoint.policy, &other.endpoint.policy) {
            (None, None) => true,
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Says who stands in for each of the endpoints at one address: agents for agents, and for the rest
    /// those that speak as they do.
    fn introduce(members: &mut [Self]) {
        for index in 0..members.len() {
            let (before, rest) = members.split_at_mut(index);
            let Some((member, behind)) = rest.split_first_mut() else {
                return;
            };
            let Some(own) = &member.pool else { continue };
            let kind = |pool: &Pool| {
                let upstream = pool.upstream();
                (upstream.agents_endpoint().is_some(), upstream.protocol())
            };
            let others = behind.iter().chain(&*before);
            member.stand_ins = others
                .filter(|other| member.is_like(other))
                .filter_map(|other| other.pool.as_ref())
                .filter(|other| !Arc::ptr_eq(other, own) && kind(other) == kind(own))
                .take(STAND_INS_MAX)
                .cloned()
                .collect();
        }
    }
}

impl Group {
    /// The account of its endpoints: one address belongs to one account.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.first.endpoint.account
    }

    /// Whether a policy says how handshakes with its endpoints are done.
    pub(crate) fn has_terms(&self) -> bool {
        let mut members = std::iter::once(&self.first).chain(&self.others);
        members.any(|member| {
            let policy = member.endpoint.policy.as_ref();
            policy.is_some_and(|policy| policy.terminates_tls())
        })
    }

    /// The host of its address.
    pub(crate) fn host(&self) -> &str {
        &self.first.endpoint.host
    }

    /// Whether a client at this address may reach its endpoints. A restriction that is not enforced
    /// is logged and lets it pass.
    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        let Some(restriction) = &self.restriction else {
            return true;
        };
        if restriction.admitted.contains(client) {
            return true;
        }
        let host = self.host();
        if restriction.enforced {
            tracing::debug!(restriction.id, %client, host, "an IP restriction refuses a client");
        } else {
            tracing::info!(
                restriction.id,
                %client,
                host,
                "an IP restriction that is not enforced would refuse this client"
            );
        }
        !restriction.enforced
    }

    /// One of its endpoints, for what happens before a turn is taken.
    pub(crate) fn first(&self) -> &Arc<Member> {
        &self.first
    }

    /// The endpoint whose turn it is. One whose agent is away, or whose upstream could not be reached a
    /// moment ago, is passed over.
    pub(crate) fn pick(&self, edge: &Shared) -> &Arc<Member> {
        if self.others.is_empty() {
            return &self.first;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.others.len() + 1;
        let at = |step: usize| match (turn.wrapping_add(step) % count).checked_sub(1) {
            Some(other) => self.others.get(other).unwrap_or(&self.first),
            None => &self.first,
        };
        (0..count)
            .map(at)
            .find(|member| !member.is_away(edge))
            .unwrap_or_else(|| at(0))
    }
}

/// What outlives a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pools: HashMap<(Arc<str>, Upstream), Arc<Pool>>,
    /// By certificate chain.
    presented: HashMap<Vec<CertificateDer<'static>>, Arc<Presented>>,
    prepared: Prepared,
}

impl Kept {
    /// Puts a snapshot into tables, reusing the pools and TLS settings of the one before, and
    /// forgetting those no longer named.
    pub(crate) fn compile(&mut self, snapshot: Snapshot) -> Result<Live, rustls::Error> {
        let mut live = Live::default();
        let mut presented: HashMap<Vec<CertificateDer<'static>>, Arc<Presented>> = HashMap::new();
        let tables = [
            (snapshot.certificates, &mut live.certificates),
            (snapshot.fallback, &mut live.fallback),
        ];
        for (certificates, table) in tables {
            for (names, key) in certificates {
                let known = presented
                    .get(&key.cert)
                    .or_else(|| self.presented.get(&key.cert));
                let one = match known {
                    Some(one) => Arc::clone(one),
                    None => Presented::plain(Arc::clone(&key))?,
                };
                for name in names {
                    table.insert(&name, Arc::clone(&one));
                }
                presented.insert(key.cert.clone(), one);
            }
        }
        self.presented = presented;
        live.logins = snapshot.logins;
        live.answers = Answers::of(snapshot.challenges, &mut self.prepared);

        let mut pools = HashMap::new();
        let mut groups: HashMap<Place, Vec<Member>> = HashMap::new();
        for endpoint in snapshot.endpoints {
            let pool = endpoint.upstream.clone().map(|upstream| {
                let key = (Arc::clone(&endpoint.account), upstream);
                let pool = match pools.get(&key).or_else(|| self.pools.get(&key)) {
                    Some(pool) => Arc::clone(pool),
                    None => Arc::new(Pool::new(key.1.clone())),
                };
                pools.insert(key, Arc::clone(&pool));
                pool
            });
            groups
                .entry(Place::of(&endpoint))
                .or_default()
                .push(Member {
                    endpoint,
                    pool,
                    stand_ins: Vec::new(),
                });
        }
        self.pools = pools;

        let restrictions: HashMap<Arc<str>, Arc<Restriction>> = snapshot
            .restrictions
            .into_iter()
            .map(|one| (Arc::clone(&one.account), Arc::new(one)))
            .collect();
        for (place, mut members) in groups {
            Member::introduce(&mut members);
            let mut members: Vec<_> = members.into_iter().map(Arc::new).collect();
            let Some(first) = members.pop() else { continue };
            let restriction = match place {
                // Whoever comes there was admitted before.
                Place::Internal(..) => None,
                _ => restrictions.get(&first.endpoint.account).cloned(),
            };
            let group = Arc::new(Group {
                restriction,
                first,
                others: members,
                turn: AtomicUsize::new(0),
            });
            match place {
                Place::Port(port) => {
                    live.tcp.insert(port, group);
                }
                Place::Host(Scheme::Http, host) => live.http.insert(&host, group),
                Place::Host(Scheme::Https, host) => live.https.insert(&host, group),
                Place::Host(_, host) => live.tls.insert(&host, group),
                Place::Internal(account, scheme, host, port) => {
                    let hosts = live.internal.entry((account, scheme, port)).or_default();
                    hosts.insert(&host, group);
                }
            }
        }
        Ok(live)
    }

    /// The pools in use, for upkeep.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools.values()
    }
}
