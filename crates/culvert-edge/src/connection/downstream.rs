//! One accepted connection, with its access to endpoints, policies and upstreams.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_edge_config::Endpoint;
use culvert_events::Reason;
use culvert_overload::{CensusEntry, CensusLimit};
use culvert_policy::conn::source;
use culvert_policy::host::ConnContext;
use culvert_upstream::{Dial, LookupFor, Upstream};

use crate::connection::conn_state::ConnState;
use crate::edge::edge_context::EdgeContext;
use crate::pools::{Connector, Lease, Pool};
use crate::recording::ConnEnd;
use crate::recording::refusals::RefusedFacts;
use crate::snapshot::group::{Group, Member};
use crate::snapshot::live_snapshot::LiveSnapshot;

/// Maximum number of upstreams to which a connection has its own connections.
const OWN_POOLS_MAX: usize = 8;

/// A connection accepted by the edge.
#[derive(Debug)]
pub(crate) struct Downstream {
    /// A weak reference to itself, for tasks that need an owned handle.
    pub(crate) this: Weak<Self>,
    pub(crate) edge: Arc<EdgeContext>,
    pub(crate) conn: Arc<ConnState>,
    /// The endpoints of the server name for which TLS was terminated, if any.
    pub(crate) tls_group: OnceLock<Arc<Group>>,
    /// What it is bound to, if a Kubernetes operator brings it.
    pub(crate) bound: OnceLock<Bound>,
    /// Connections to upstreams that requests of other clients must not use.
    own_pools: Mutex<Vec<OwnPool>>,
    /// Whether one of them is authenticated.
    has_identity: AtomicBool,
}

/// The connections of one client to an upstream.
#[derive(Debug)]
struct OwnPool {
    /// The endpoint whose requests use it, if its connections are authenticated. Otherwise it leads to an agent, which knows
    /// the client of each stream.
    endpoint: Option<Arc<str>>,
    pool: Arc<Pool>,
}

/// The address that a connection of a Kubernetes operator is for.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) operator_id: String,
    /// The public key of the operator's certificate on this connection.
    pub(crate) key: Vec<u8>,
    pub(crate) account: Arc<str>,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Bound {
    /// The endpoints at the address now, and the next of them, or the one that handles a request to this path in place
    /// of the service. `None` if the operator is gone, has another key, or binds none.
    pub(crate) fn find<'l>(
        &self,
        live: &'l LiveSnapshot,
        agents: Option<&dyn Dial>,
        path: &str,
    ) -> Option<(&'l Arc<Group>, &'l Arc<Member>)> {
        let group = self.group(live)?;
        let is_bound = |member: &Member| member.endpoint.is_bound_by(&self.operator_id);
        let for_edge = group.edge_path_member_among(path, is_bound);
        let member = for_edge.or_else(|| group.pick_bound_by(&self.operator_id, agents))?;
        Some((group, member))
    }

    /// The endpoints at the address now, if the operator is the same.
    pub(crate) fn group<'l>(&self, live: &'l LiveSnapshot) -> Option<&'l Arc<Group>> {
        let operator = live.operators.get(&self.operator_id)?;
        if operator.account != self.account || operator.key != self.key {
            return None;
        }
        live.kubernetes(&self.account, &self.host, self.port)
    }
}

impl Downstream {
    /// Refuses a connection before a request or an upstream is reached. If its TLS server name or its port names
    /// endpoints, its event is theirs. With a configuration that is too old they name none, because they may have
    /// another owner since.
    pub(crate) fn refuse(&self, group: Option<&Arc<Group>>, reason: Reason) {
        let Some(group) = group.filter(|_| !self.edge.freshness.is_outdated()) else {
            return self.refuse_unnamed(reason);
        };
        let sampled = self.refused_at(group.first(), reason);
        let conn = &self.conn;
        conn.attribute(group.account(), &group.first().id, conn.info.sni());
        conn.end(ConnEnd {
            reason,
            sampled: sampled.unwrap_or(0),
            is_refused: true,
        });
    }

    /// Counts a refusal at an endpoint. Returns how many its event stands for; `None` if it has no event.
    pub(crate) fn refused_at(&self, member: &Arc<Member>, reason: Reason) -> Option<u64> {
        let (client, edge) = (self.conn.info.client.ip(), &self.conn.edge);
        let at = (&member.endpoint.account, &**member.counters(edge));
        edge.refuse_at(reason, client, at)
    }

    /// Counts a connection that names no endpoint, and collects it.
    pub(crate) fn refuse_unnamed(&self, reason: Reason) {
        let info = &self.conn.info;
        let facts = RefusedFacts {
            host: info.sni(),
            ..RefusedFacts::default()
        };
        let ends = (info.client, info.server);
        self.conn.edge.refuse(reason, ends, info.now(), facts);
    }

    /// Cuts a connection whose requests may have been served, so it has an event in any case.
    pub(crate) fn cut_for(&self, reason: Reason) {
        let Some(group) = self.tls_group.get() else {
            return self.refuse_unnamed(reason);
        };
        self.conn.end_for(reason);
        if let Some(position) = self.conn.edge.count_refusal(reason) {
            let counters = group.first().counters(&self.conn.edge);
            counters.refused(position);
        }
    }

    /// Whether the operator that brings the connection has lost the endpoints at its address.
    pub(crate) fn is_unbound(&self) -> bool {
        let Some(bound) = self.bound.get() else {
            return false;
        };
        let live = self.edge.live.load();
        let group = bound.group(&live);
        !group.is_some_and(|group| group.is_bound_by(&bound.operator_id))
    }

    /// Accepts a connection, unless a limit is reached.
    pub(crate) fn accept(
        edge: &Arc<EdgeContext>,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<Arc<Self>> {
        let source = source(plain_address(client.ip()));
        let meters = &edge.state.meters;
        let entry = {
            let rules = edge.rules.load();
            let limits = &rules.limits;
            let census = &edge.census;
            census.enter(source, limits.connections, limits.connections_per_source)
        };
        match entry {
            Ok(entry) => {
                meters.connections.up();
                Some(Self::new(Arc::clone(edge), client, server, Some(entry)))
            }
            Err(CensusLimit::All) => {
                meters.refused_full.up();
                None
            }
            Err(CensusLimit::Source) => {
                meters.refused_source.up();
                None
            }
        }
    }

    /// Creates the state of a new connection. Without an `entry` it is not in the census.
    pub(crate) fn new(
        edge: Arc<EdgeContext>,
        client: SocketAddr,
        server: SocketAddr,
        entry: Option<CensusEntry<ConnState>>,
    ) -> Arc<Self> {
        let conn = ConnState::new(
            Arc::clone(&edge.state),
            edge.rules.load_full(),
            entry,
            (client, server),
            edge.clock.now(),
        );
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            edge,
            conn,
            tls_group: OnceLock::new(),
            bound: OnceLock::new(),
            own_pools: Mutex::default(),
            has_identity: AtomicBool::new(false),
        })
    }

    /// The connection as policies see it.
    pub(crate) fn context(&self) -> ConnContext<'_> {
        ConnContext {
            info: &self.conn.info,
            counters: &self.conn.counters,
            state: &self.conn.policy,
            error_pages: &self.conn.rules.error_pages,
            services: &self.edge.policy,
            host: self,
            on_expression_error: self.conn.rules.on_expression_error,
            allows_public_calls: self.conn.rules.allows_public_calls,
        }
    }

    /// Opens connections to the upstreams of an endpoint on behalf of this one.
    pub(crate) fn connector(&self, endpoint: &Endpoint) -> Connector<'_> {
        Connector {
            owner: &self.edge.state,
            network: &self.edge.network,
            agents: self.edge.agents(),
            client: self.conn.info.client,
            server: self.conn.info.server,
            share: endpoint.share(),
            lookup_for: LookupFor::Traffic,
            is_tls_terminated: self.conn.info.tls.get().is_some(),
        }
    }

    /// The pool for this client's requests to an endpoint: the connection's own if the client is authenticated there, or if the
    /// agent gets the address of each client. Otherwise the shared one. `None` for requests that are not the client's.
    pub(crate) fn pool(&self, shared: &Arc<Pool>, endpoint: Option<&str>) -> Arc<Pool> {
        let is_apart = shared.upstream().keeps_clients_apart();
        if !is_apart && !self.has_identity.load(Ordering::Relaxed) {
            return Arc::clone(shared);
        }
        let mut pools = lock(&self.own_pools);
        if is_apart {
            return own_pool(&mut pools, shared.upstream(), None);
        }
        let own = pools.iter().find(|own| {
            endpoint.is_some()
                && own.endpoint.as_deref() == endpoint
                && own.pool.upstream() == shared.upstream()
        });
        Arc::clone(own.map_or(shared, |own| &own.pool))
    }

    /// The upstream of an endpoint where the client is authenticated, if there is one.
    pub(crate) fn known_upstream<T>(
        &self,
        endpoint: &str,
        find: impl Fn(&Upstream) -> Option<T>,
    ) -> Option<T> {
        if !self.has_identity.load(Ordering::Relaxed) {
            return None;
        }
        let pools = lock(&self.own_pools);
        let mut of_endpoint = pools
            .iter()
            .filter(|own| own.endpoint.as_deref() == Some(endpoint));
        of_endpoint.find_map(|own| find(own.pool.upstream()))
    }

    /// Gives a connection, which is or may become authenticated, to this client's requests to an endpoint.
    pub(crate) fn keep_for_client(&self, lease: &mut Lease, endpoint: &Arc<str>) {
        if lease.upstream().keeps_clients_apart() {
            // Only this client's requests use its pool.
            return;
        }
        self.has_identity.store(true, Ordering::Relaxed);
        let mut pools = lock(&self.own_pools);
        lease.move_to(|upstream| own_pool(&mut pools, upstream, Some(endpoint)));
    }

    /// The next endpoint of a group for a request: the one where the client is authenticated, if there is one.
    pub(crate) fn pick<'g>(&self, group: &'g Group) -> &'g Arc<Member> {
        if self.has_identity.load(Ordering::Relaxed) {
            let pools = lock(&self.own_pools);
            let is_known = |member: &&Arc<Member>| {
                let mut pools = pools.iter();
                pools.any(|own| own.endpoint.as_deref() == Some(&*member.id))
            };
            if let Some(member) = group.members().find(is_known) {
                return member;
            }
        }
        group.pick(self.edge.agents())
    }
}

/// One of these pools. If there is none, creates it, instead of the oldest if there are too many.
fn own_pool(
    pools: &mut Vec<OwnPool>,
    upstream: &Upstream,
    endpoint: Option<&Arc<str>>,
) -> Arc<Pool> {
    let is_it =
        |own: &&OwnPool| own.pool.upstream() == upstream && own.endpoint.as_ref() == endpoint;
    if let Some(own) = pools.iter().find(is_it) {
        return Arc::clone(&own.pool);
    }
    if pools.len() >= OWN_POOLS_MAX {
        pools.remove(0);
    }
    let pool = Arc::new(Pool::new(upstream.clone()));
    pools.push(OwnPool {
        endpoint: endpoint.cloned(),
        pool: Arc::clone(&pool),
    });
    pool
}
