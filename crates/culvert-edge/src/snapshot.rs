//! The compiled, immutable input of the edge: which endpoints there are, and which certificates.
//!
//! A [`Snapshot`] is a plain value that anyone can build. [`Live`] is what the edge makes of it:
//! the same facts in tables that a request reads without a lock, tied to connection pools and TLS
//! settings that outlive one snapshot.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_base::IpSet;
use culvert_base::net::HostName;
use culvert_login::Logins;
use culvert_policy::Scheme;
use culvert_policy::host::EndpointInfo;
use culvert_policy::ipdata::IpFields;
use culvert_policy::policy::compiled::Policy;
use culvert_tls::acme::Challenge;
use culvert_tls::server_certificate::ServerCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use crate::challenges::{Answers, Prepared};
use crate::edge_context::EdgeContext;
use crate::route::Hosts;
use crate::rules::Timeouts;
use crate::table::Table;
use crate::upstream::{Pool, Upstream};

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
    /// Whether `//` in a request's path becomes `/`. Endpoints that share an address keep it only if all
    /// of them do.
    pub merge_slashes: bool,
    /// Times of its own. Those of an internal endpoint that are not set are as the endpoint has them
    /// whose policy forwards to it.
    pub timeouts: Timeouts,
}

impl Endpoint {
    /// What policies know of it.
    pub(crate) fn info(&self) -> EndpointInfo<'_> {
        EndpointInfo {
            id: &self.id,
            account: &self.account,
            scheme: self.scheme,
            is_internal: self.is_internal,
            host: &self.host,
            port: self.port,
            merge_slashes: self.merge_slashes,
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

/// What a snapshot has otherwise than the one before.
#[derive(Default)]
pub struct Change {
    put: Vec<Endpoint>,
    removed: Vec<String>,
    challenges: Option<Vec<Challenge>>,
    certificates: Option<(Vec<Named>, Vec<Named>)>,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the certificates, whose keys no log may see.
        f.debug_struct("Change")
            .field("put", &self.put)
            .field("removed", &self.removed)
            .finish_non_exhaustive()
    }
}

impl Change {
    /// Adds an endpoint, or puts it in the place of the one with its id.
    pub fn put(&mut self, endpoint: Endpoint) {
        self.put.push(endpoint);
    }

    /// Removes the endpoint with this id, if there is one.
    pub fn remove(&mut self, id: String) {
        self.removed.push(id);
    }

    /// Takes the challenges of a snapshot in the place of those before.
    pub fn challenges(&mut self, challenges: Vec<Challenge>) {
        self.challenges = Some(challenges);
    }

    /// Takes the certificates of a snapshot in the place of those before.
    pub fn certificates_of(&mut self, snapshot: Snapshot) {
        self.certificates = Some((snapshot.certificates, snapshot.fallback));
    }

    /// The ids of the endpoints it changes.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        let put = self.put.iter().map(|endpoint| &endpoint.id);
        put.chain(&self.removed)
    }

    /// How many endpoints it changes.
    pub fn len(&self) -> usize {
        self.put.len() + self.removed.len()
    }

    /// Whether it changes no endpoint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Snapshot {
    /// This snapshot with a change. Takes time with its size; an edge applies changes faster.
    #[must_use]
    pub fn changed(mut self, change: Change) -> Self {
        let put: Vec<&String> = change.put.iter().map(|endpoint| &endpoint.id).collect();
        let stays = |id: &String| !change.removed.contains(id) && !put.contains(&id);
        self.endpoints.retain(|endpoint| stays(&endpoint.id));
        self.endpoints.extend(change.put);
        self.challenges = change.challenges.unwrap_or(self.challenges);
        if let Some((certificates, fallback)) = change.certificates {
            (self.certificates, self.fallback) = (certificates, fallback);
        }
        self
    }
}

/// Where an endpoint is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
///
/// A clone is cheap and shares what it has in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) http: Hosts<Arc<Group>>,
    pub(crate) https: Hosts<Arc<Group>>,
    pub(crate) tls: Hosts<Arc<Group>>,
    pub(crate) tcp: Table<u16, Arc<Group>>,
    /// Internal endpoints, which are names of their account.
    internal: Table<(Arc<str>, Scheme, u16), Hosts<Arc<Group>>>,
    pub(crate) certificates: Hosts<Arc<ServerCertificate>>,
    pub(crate) fallback: Hosts<Arc<ServerCertificate>>,
    pub(crate) answers: Arc<Answers>,
    pub(crate) logins: Option<Arc<Logins>>,
    /// Endpoints whose policies read data of the operator, with that data.
    pub(crate) data_readers: Table<String, IpFields>,
}

impl Live {
    /// Puts a group at a place, or takes the one that is there away.
    fn set(&mut self, place: &Place, group: Option<Arc<Group>>) {
        let (hosts, host) = match place {
            Place::Port(port) => {
                match group {
                    Some(group) => self.tcp.insert(*port, group),
                    None => self.tcp.remove(port),
                }
                return;
            }
            Place::Internal(account, scheme, host, port) => {
                let key = (Arc::clone(account), *scheme, *port);
                let mut hosts = self.internal.get(&key).cloned().unwrap_or_default();
                match group {
                    Some(group) => hosts.insert(host, group),
                    None => hosts.remove(host),
                }
                if hosts.is_empty() {
                    self.internal.remove(&key);
                } else {
                    self.internal.insert(key, hosts);
                }
                return;
            }
            Place::Host(Scheme::Http, host) => (&mut self.http, host),
            Place::Host(Scheme::Https, host) => (&mut self.https, host),
            Place::Host(_, host) => (&mut self.tls, host),
        };
        match group {
            Some(group) => hosts.insert(host, group),
            None => hosts.remove(host),
        }
    }

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
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) pool: Option<Arc<Pool>>,
    /// Where its traffic goes when its agent is away or its upstream takes no connection: others of the
    /// same address, whose endpoints treat it the same.
    pub(crate) stand_ins: Vec<Arc<Pool>>,
}

/// Agents or upstreams that are tried in the place of one.
const STAND_INS_MAX: usize = 3;

/// How often a request that waits for an agent looks whether it is back.
const LOOK_FOR_AGENT_EVERY: Duration = Duration::from_millis(20);

impl Member {
    /// Waits while its agent, which just lost its connection, may come back, and no other stands in.
    pub(crate) async fn wait_for_agent(&self, edge: &EdgeContext) {
        let endpoint = self
            .pool
            .as_ref()
            .and_then(|pool| pool.upstream().agents_endpoint());
        let (Some(id), Some(agents)) = (endpoint, &edge.agents) else {
            return;
        };
        while self.stand_ins.is_empty() && agents.may_return(id) {
            tokio::time::sleep(LOOK_FOR_AGENT_EVERY).await;
        }
    }

    /// Whether there is nobody behind it now.
    fn is_away(&self, edge: &EdgeContext) -> bool {
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
    pub(crate) fn has_tls_policy(&self) -> bool {
        let mut members = std::iter::once(&self.first).chain(&self.others);
        members.any(|member| {
            let policy = member.endpoint.policy.as_ref();
            policy.is_some_and(|policy| policy.terminates_tls())
        })
    }

    /// Whether a policy has rules that depend on the name a connection was made for: any of its first phase,
    /// or one that reads `conn.tls.sni`.
    pub(crate) fn judges_connections(&self) -> bool {
        let mut members = std::iter::once(&self.first).chain(&self.others);
        members.any(|member| {
            let policy = member.endpoint.policy.as_ref();
            policy.is_some_and(|policy| policy.judges_connections())
        })
    }

    /// Whether empty segments are removed from the paths of its requests.
    pub(crate) fn merges_slashes(&self) -> bool {
        let mut members = std::iter::once(&self.first).chain(&self.others);
        members.any(|member| member.endpoint.merge_slashes)
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
            tracing::debug!(restriction.id, %client, host, "an IP restriction blocked a client");
        } else {
            tracing::info!(
                restriction.id,
                %client,
                host,
                "an IP restriction that is not enforced would block this client"
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
    pub(crate) fn pick(&self, edge: &EdgeContext) -> &Arc<Member> {
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

/// The data of the operator that an endpoint's policy reads, if it reads any.
fn read_data(endpoint: &Endpoint) -> Option<IpFields> {
    let fields = endpoint.policy.as_ref()?.ip_fields();
    (!fields.is_empty()).then_some(fields)
}

/// What outlives a snapshot.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// With how many endpoints forward to each.
    pools: HashMap<(Arc<str>, Upstream), (Arc<Pool>, usize)>,
    /// By certificate chain.
    presented: HashMap<Vec<CertificateDer<'static>>, Arc<ServerCertificate>>,
    prepared: Prepared,
    /// The endpoints at each place, in the order of their ids.
    places: HashMap<Place, Vec<Arc<Endpoint>>>,
    /// Where each endpoint is, by its id.
    by_id: HashMap<String, Place>,
    restrictions: HashMap<Arc<str>, Arc<Restriction>>,
}

impl Kept {
    /// Puts a snapshot into tables, reusing the pools and TLS settings of the one before, and
    /// forgetting those no longer named.
    pub(crate) fn compile(&mut self, snapshot: Snapshot) -> Result<Live, rustls::Error> {
        let mut live = Live::default();
        self.present(&mut live, snapshot.certificates, snapshot.fallback)?;
        live.logins = snapshot.logins;
        live.answers = Arc::new(Answers::of(snapshot.challenges, &mut self.prepared));

        let before = std::mem::take(&mut self.pools);
        self.places.clear();
        self.by_id.clear();
        for endpoint in snapshot.endpoints {
            let endpoint = Arc::new(endpoint);
            if let Some(key) = pool_key(&endpoint) {
                let known = before.get(&key).map(|(pool, _)| pool);
                self.acquire(key, known);
            }
            if let Some(fields) = read_data(&endpoint) {
                live.data_readers.insert(endpoint.id.clone(), fields);
            }
            let place = Place::of(&endpoint);
            self.by_id.insert(endpoint.id.clone(), place.clone());
            self.places.entry(place).or_default().push(endpoint);
        }
        self.restrictions = snapshot
            .restrictions
            .into_iter()
            .map(|one| (Arc::clone(&one.account), Arc::new(one)))
            .collect();
        for (place, endpoints) in &self.places {
            live.set(place, self.group(place, endpoints));
        }
        Ok(live)
    }

    /// The tables of `live` with a change. Takes time with the change and not with the tables.
    pub(crate) fn apply(&mut self, live: &Live, change: Change) -> Result<Live, rustls::Error> {
        let mut live = live.clone();
        if let Some((certificates, fallback)) = change.certificates {
            live.certificates = Hosts::default();
            live.fallback = Hosts::default();
            self.present(&mut live, certificates, fallback)?;
        }
        if let Some(challenges) = change.challenges {
            live.answers = Arc::new(Answers::of(challenges, &mut self.prepared));
        }
        let mut touched: HashSet<Place> = HashSet::new();
        let mut released = Vec::new();
        let put: Vec<Arc<Endpoint>> = change.put.into_iter().map(Arc::new).collect();
        // A pool that another endpoint takes over stays open.
        for endpoint in &put {
            if let Some(key) = pool_key(endpoint) {
                self.acquire(key, None);
            }
        }
        let ids = change.removed.iter().chain(put.iter().map(|one| &one.id));
        for id in ids {
            live.data_readers.remove(id);
            let Some(place) = self.by_id.remove(id) else {
                continue;
            };
            if let Some(there) = self.places.get_mut(&place) {
                let of_id = there.extract_if(.., |endpoint| endpoint.id == *id);
                released.extend(of_id.filter_map(|endpoint| pool_key(&endpoint)));
                if there.is_empty() {
                    self.places.remove(&place);
                }
            }
            touched.insert(place);
        }
        for endpoint in put {
            if let Some(fields) = read_data(&endpoint) {
                live.data_readers.insert(endpoint.id.clone(), fields);
            }
            let place = Place::of(&endpoint);
            self.by_id.insert(endpoint.id.clone(), place.clone());
            let there = self.places.entry(place.clone()).or_default();
            let at = there.partition_point(|other| other.id < endpoint.id);
            there.insert(at, endpoint);
            touched.insert(place);
        }
        for key in released {
            self.release(&key);
        }
        for place in touched {
            let endpoints = self.places.get(&place).map_or(&[][..], Vec::as_slice);
            live.set(&place, self.group(&place, endpoints));
        }
        Ok(live)
    }

    /// The ports of TCP endpoints among those with these ids.
    pub(crate) fn ports_of<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Vec<u16> {
        let places = ids.filter_map(|id| self.by_id.get(id));
        let port = |place: &Place| match place {
            Place::Port(port) => Some(*port),
            _ => None,
        };
        places.filter_map(port).collect()
    }

    fn present(
        &mut self,
        live: &mut Live,
        certificates: Vec<Named>,
        fallback: Vec<Named>,
    ) -> Result<(), rustls::Error> {
        let mut presented: HashMap<Vec<CertificateDer<'static>>, Arc<ServerCertificate>> =
            HashMap::new();
        let tables = [
            (certificates, &mut live.certificates),
            (fallback, &mut live.fallback),
        ];
        for (certificates, table) in tables {
            for (names, key) in certificates {
                let known = presented
                    .get(&key.cert)
                    .or_else(|| self.presented.get(&key.cert));
                let one = match known {
                    Some(one) => Arc::clone(one),
                    None => ServerCertificate::plain(Arc::clone(&key))?,
                };
                for name in names {
                    table.insert(&name, Arc::clone(&one));
                }
                presented.insert(key.cert.clone(), one);
            }
        }
        self.presented = presented;
        Ok(())
    }

    /// Counts one more endpoint that forwards to an upstream. `known` is its pool, if there was one.
    fn acquire(&mut self, key: (Arc<str>, Upstream), known: Option<&Arc<Pool>>) {
        let upstream = key.1.clone();
        let entry = self.pools.entry(key).or_insert_with(|| match known {
            Some(pool) => (Arc::clone(pool), 0),
            None => (Arc::new(Pool::new(upstream)), 0),
        });
        entry.1 += 1;
    }

    /// Counts one less, and forgets the pool after the last.
    fn release(&mut self, key: &(Arc<str>, Upstream)) {
        if let Some((_, count)) = self.pools.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.pools.remove(key);
            }
        }
    }

    /// The endpoints of a place as requests see them.
    fn group(&self, place: &Place, endpoints: &[Arc<Endpoint>]) -> Option<Arc<Group>> {
        let member = |endpoint: &Arc<Endpoint>| {
            let pool = pool_key(endpoint).and_then(|key| self.pools.get(&key));
            Member {
                endpoint: Arc::clone(endpoint),
                pool: pool.map(|(pool, _)| Arc::clone(pool)),
                stand_ins: Vec::new(),
            }
        };
        let mut members: Vec<Member> = endpoints.iter().map(member).collect();
        Member::introduce(&mut members);
        let mut members: Vec<_> = members.into_iter().map(Arc::new).collect();
        let first = members.pop()?;
        let restriction = match place {
            // A client that gets there was admitted before.
            Place::Internal(..) => None,
            _ => self.restrictions.get(&first.endpoint.account).cloned(),
        };
        Some(Arc::new(Group {
            restriction,
            first,
            others: members,
            turn: AtomicUsize::new(0),
        }))
    }

    /// The pools in use, for upkeep.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools.values().map(|(pool, _)| pool)
    }
}

/// By what the pool of an endpoint is found.
fn pool_key(endpoint: &Endpoint) -> Option<(Arc<str>, Upstream)> {
    let upstream = endpoint.upstream.clone()?;
    Some((Arc::clone(&endpoint.account), upstream))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// What is found at every place of `places`: ids of the endpoints, and the pools of their upstreams.
    fn found(
        live: &Live,
        places: &BTreeMap<String, Place>,
    ) -> BTreeMap<String, BTreeSet<(String, bool)>> {
        let group = |place: &Place| match place {
            Place::Port(port) => live.tcp.get(port),
            Place::Host(Scheme::Http, host) => live.http.find(host),
            Place::Host(Scheme::Https, host) => live.https.find(host),
            Place::Host(_, host) => live.tls.find(host),
            Place::Internal(account, scheme, host, port) => {
                live.internal(account, *scheme, host, *port)
            }
        };
        let found = places.iter().filter_map(|(name, place)| {
            let group = group(place)?;
            let members = std::iter::once(&group.first).chain(&group.others);
            let members = members.map(|member| (member.endpoint.id.clone(), member.pool.is_some()));
            Some((name.clone(), members.collect()))
        });
        found.collect()
    }

    /// An endpoint with this id, whose address and upstream come from `n`.
    fn endpoint(id: usize, n: usize) -> Endpoint {
        let scheme = Scheme::ALL[n % 4];
        let is_internal = n.is_multiple_of(3);
        let host = match n % 5 {
            0 => "*.a.example".to_owned(),
            _ => format!("h{}.a.example", n % 7),
        };
        Endpoint {
            merge_slashes: true,
            timeouts: Timeouts::default(),
            id: format!("ep_{id:02}"),
            account: format!("ac_{}", n % 2).into(),
            scheme,
            is_internal,
            host: HostName::parse(&host).unwrap(),
            port: u16::try_from(1_000 + n % 6).unwrap(),
            upstream: (!n.is_multiple_of(11)).then(|| {
                let url = format!("http://127.0.0.1:{}", 2_000 + n % 4);
                Upstream::parse(&url, "http1").unwrap()
            }),
            policy: None,
        }
    }

    #[test]
    fn changes_lead_where_a_whole_snapshot_does() {
        let mut kept = Kept::default();
        let mut live = kept.compile(Snapshot::default()).unwrap();
        let mut snapshot = Snapshot::default();
        let mut places = BTreeMap::new();
        let mut seed: usize = 7;
        let mut next = |below: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..600 {
            let mut change = Change::default();
            let mut again = Change::default();
            for id in BTreeSet::from([next(12), next(12)]) {
                if next(3) == 0 {
                    change.remove(format!("ep_{id:02}"));
                    again.remove(format!("ep_{id:02}"));
                } else {
                    let one = endpoint(id, next(1_000));
                    let place = Place::of(&one);
                    places.insert(format!("{place:?}"), place);
                    change.put(one.clone());
                    again.put(one);
                }
            }
            live = kept.apply(&live, change).unwrap();
            snapshot = snapshot.changed(again);
            let mut whole = Kept::default();
            let expected = whole.compile(snapshot.clone()).unwrap();
            assert_eq!(found(&live, &places), found(&expected, &places), "{round}");
            let pools = |kept: &Kept| -> BTreeMap<String, usize> {
                let pools = kept.pools.iter();
                pools
                    .map(|(key, (_, count))| (format!("{key:?}"), *count))
                    .collect()
            };
            assert_eq!(pools(&kept), pools(&whole), "{round}");
        }
        assert!(places.len() > 50, "{}", places.len());
    }

    #[test]
    fn a_pool_outlives_a_change_of_its_endpoint() {
        let mut kept = Kept::default();
        let live = kept
            .compile(Snapshot::builder().endpoint(endpoint(1, 1)).build())
            .unwrap();
        let pool = Arc::clone(kept.pools().next().unwrap());
        let mut change = Change::default();
        // Another address, the same account and upstream.
        change.put(endpoint(1, 1 + 4 * 7 * 15 * 11 * 4));
        let live = kept.apply(&live, change).unwrap();
        assert!(Arc::ptr_eq(&pool, kept.pools().next().unwrap()));
        let mut change = Change::default();
        change.remove("ep_01".to_owned());
        kept.apply(&live, change).unwrap();
        assert_eq!(kept.pools().count(), 0);
    }
}
