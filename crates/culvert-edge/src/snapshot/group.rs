//! The endpoints at one address: which of them is next, and which stand in for it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_edge_config::{Endpoint, Restriction, UpstreamList};
use culvert_policy::policy::run::EDGE_PATHS;
use culvert_statistics::{EndpointCounters, Slot};
use culvert_upstream::{Dial, Protocol};

use crate::balance::gate::{InFlight, Places, Terms};
use crate::balance::target_set::Tried;
use crate::edge::edge_state::EdgeState;
use crate::edge::meters::Meters;
use crate::pools::{Pool, TargetSet};
use crate::snapshot::removal::Removal;

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
    /// The endpoint's id, as its events have it.
    pub(crate) id: Arc<str>,
    pub(crate) endpoint: Arc<Endpoint>,
    /// The connections to its upstream; to the first of several.
    pub(crate) pool: Option<Arc<Pool>>,
    /// Its upstreams, if it has several.
    pub(crate) targets: Option<Arc<TargetSet>>,
    /// Those of its requests and connections in flight, if they are limited.
    pub(crate) places: Option<Arc<Places>>,
    /// Where its traffic goes if its agent is disconnected or its upstream unreachable: other endpoints of the same
    /// address with the same policy.
    pub(crate) stand_ins: Vec<StandIn>,
    /// Empty until its first traffic.
    pub(crate) counted: Slot,
    /// Ends its open relays.
    pub(crate) removal: Arc<Removal>,
}

/// Another endpoint to which an endpoint's traffic may go.
#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    pool: Arc<Pool>,
    targets: Option<Arc<TargetSet>>,
    places: Option<Arc<Places>>,
    removal: Arc<Removal>,
}

impl StandIn {
    /// The connections to its upstream; to the next of several.
    pub(crate) fn pool(&self, meters: &Meters) -> &Arc<Pool> {
        let targets = self.targets.as_ref();
        let next = targets.and_then(|targets| {
            let next = targets.choose(None, Tried::default(), meters)?;
            targets.pool(next)
        });
        next.unwrap_or(&self.pool)
    }

    /// As [`Self::pool`], with the places of a request or connection there. It [has room](Self::has_room).
    pub(crate) fn enter(&self, meters: &Meters) -> (&Arc<Pool>, Vec<InFlight>) {
        let own = self.places.as_ref().map(Places::enter);
        let targets = self.targets.as_ref();
        let next = targets.and_then(|targets| {
            let (next, place) = targets.enter_now(None, Tried::default(), meters)?;
            Some((targets.pool(next)?, place))
        });
        match next {
            Some((pool, place)) => (pool, own.into_iter().chain([place]).collect()),
            None => (&self.pool, own.into_iter().collect()),
        }
    }

    /// Whether the limits of its endpoint allow one more request or connection.
    pub(crate) fn has_room(&self) -> bool {
        !is_full(self.places.as_ref(), self.targets.as_ref())
    }

    /// What ends a relay that it serves; `None` if the session of its agent does.
    pub(crate) fn removal(&self) -> Option<&Arc<Removal>> {
        let is_agents = self.pool.upstream().agents_endpoint().is_some();
        (!is_agents).then_some(&self.removal)
    }
}

/// Whether an endpoint, or each of its upstreams, has as many requests and connections in flight as its limit allows.
fn is_full(own: Option<&Arc<Places>>, targets: Option<&Arc<TargetSet>>) -> bool {
    own.is_some_and(|own| !own.has_room()) || targets.is_some_and(|targets| targets.is_full())
}

/// Most stand-ins of an endpoint.
const STAND_INS_MAX: usize = 3;

/// How often a waiting request checks whether the agent has reconnected.
const LOOK_FOR_AGENT_EVERY: Duration = Duration::from_millis(20);

impl Member {
    /// The counters of its traffic.
    pub(crate) fn counters(&self, edge: &EdgeState) -> &Arc<EndpointCounters> {
        self.counted
            .counters(&edge.traffic, &self.endpoint.account, &self.id)
    }

    /// How its requests and connections wait for places.
    pub(crate) fn terms<'x>(&self, state: &'x EdgeState) -> Terms<'x> {
        Terms {
            limits: self.endpoint.in_flight.unwrap_or_default(),
            share: self.endpoint.share(),
            state,
        }
    }

    fn is_full(&self) -> bool {
        is_full(self.places.as_ref(), self.targets.as_ref())
    }

    /// Whether its upstream is behind an agent.
    pub(crate) fn is_agents(&self) -> bool {
        let pool = self.pool.as_ref();
        pool.is_some_and(|pool| pool.upstream().agents_endpoint().is_some())
    }

    /// Waits while its agent, which has just lost its connection, may reconnect and no other stands in.
    pub(crate) async fn wait_for_agent(&self, agents: Option<&dyn Dial>) {
        let endpoint = self
            .pool
            .as_ref()
            .and_then(|pool| pool.upstream().agents_endpoint());
        let (Some(id), Some(agents)) = (endpoint, agents) else {
            return;
        };
        while self.stand_ins.is_empty() && agents.may_return(id) {
            tokio::time::sleep(LOOK_FOR_AGENT_EVERY).await;
        }
    }

    /// Whether its agent is disconnected or its upstream unreachable.
    fn is_away(&self, agents: Option<&dyn Dial>) -> bool {
        let endpoint = self
            .pool
            .as_ref()
            .and_then(|pool| pool.upstream().agents_endpoint());
        match (endpoint, agents) {
            (None, _) => match (&self.targets, &self.pool) {
                (Some(targets), _) => !targets.is_reachable(),
                (None, Some(pool)) => !pool.is_reachable(),
                (None, None) => false,
            },
            (Some(_), None) => true,
            (Some(id), Some(agents)) => !agents.is_online(id),
        }
    }

    /// Whether `other` has the same policy and is reached by the same clients.
    fn is_like(&self, other: &Self) -> bool {
        if self.endpoint.binding != other.endpoint.binding {
            return false;
        }
        match (&self.endpoint.policy, &other.endpoint.policy) {
            (None, None) => true,
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// Sets the stand-ins of the endpoints at one address: agents for agents, and upstreams of the same protocol for
    /// upstreams.
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
                .filter_map(|other| {
                    let pool = other.pool.as_ref()?;
                    let is_other = !Arc::ptr_eq(pool, own) || other.targets.is_some();
                    let is_usable = is_other && kind(pool) == kind(own);
                    is_usable.then(|| StandIn {
                        pool: Arc::clone(pool),
                        targets: other.targets.clone(),
                        places: other.places.clone(),
                        removal: Arc::clone(&other.removal),
                    })
                })
                .take(STAND_INS_MAX)
                .collect();
        }
    }
}

impl Group {
    /// The endpoints at one address; `None` if there are none.
    pub(super) fn new(
        mut members: Vec<Member>,
        restriction: impl FnOnce(&Member) -> Option<Arc<Restriction>>,
    ) -> Option<Self> {
        Member::introduce(&mut members);
        let first = members.pop()?;
        Some(Self {
            restriction: restriction(&first),
            first: Arc::new(first),
            others: members.into_iter().map(Arc::new).collect(),
            turn: AtomicUsize::new(0),
        })
    }

    /// All of them.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The account of its endpoints: one address belongs to one account.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.first.endpoint.account
    }

    /// The ID of an endpoint at the address, for events before one of them is selected.
    pub(crate) fn endpoint_id(&self) -> &Arc<str> {
        &self.first.id
    }

    /// Whether a policy configures the TLS handshake.
    pub(crate) fn has_tls_policy(&self) -> bool {
        self.members().any(|member| {
            let policy = member.endpoint.policy.as_ref();
            policy.is_some_and(|policy| policy.terminates_tls())
        })
    }

    /// Whether a policy has rules that depend on the name of a connection: rules of the connection phase, or one that
    /// reads `conn.tls.sni`.
    pub(crate) fn judges_connections(&self) -> bool {
        self.members().any(|member| {
            let policy = member.endpoint.policy.as_ref();
            policy.is_some_and(|policy| policy.judges_connections())
        })
    }

    /// Whether empty segments are removed from the paths of its requests.
    pub(crate) fn merges_slashes(&self) -> bool {
        self.members().any(|member| member.endpoint.merge_slashes)
    }

    /// The endpoint that handles a request to this normalised path in place of the service; `None` if none does.
    pub(crate) fn edge_path_member(&self, path: &str) -> Option<&Arc<Member>> {
        self.edge_path_member_among(path, |_| true)
    }

    /// As [`Self::edge_path_member`], among the endpoints that meet a condition.
    pub(crate) fn edge_path_member_among(
        &self,
        path: &str,
        is_one: impl Fn(&Member) -> bool,
    ) -> Option<&Arc<Member>> {
        if !path.starts_with(EDGE_PATHS) {
            return None;
        }
        self.members().find(|member| {
            let policy = member.endpoint.policy.as_ref();
            policy.is_some_and(|policy| policy.owns_path(path)) && is_one(member)
        })
    }

    /// Whether its requests need nothing but to be forwarded over HTTP/1: its endpoints have no policy, and clients no
    /// restriction.
    pub(crate) fn is_plain(&self) -> bool {
        let is_plain = |member: &Arc<Member>| {
            let pool = member.pool.as_ref();
            let is_sticky = |list: &UpstreamList| list.sticky.is_some();
            member.endpoint.policy.is_none()
                && member.endpoint.maintenance.is_none()
                // Its responses may have a cookie of the edge.
                && !member.endpoint.upstreams.as_deref().is_some_and(is_sticky)
                && pool.is_some_and(|pool| pool.upstream().protocol() == Protocol::Http1)
        };
        self.restriction.is_none() && self.members().all(is_plain)
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

    /// One of its endpoints, for decisions before one is picked.
    pub(crate) fn first(&self) -> &Arc<Member> {
        &self.first
    }

    /// Whether a Kubernetes operator binds one of its endpoints.
    pub(crate) fn is_bound_by(&self, operator_id: &str) -> bool {
        let mut members = self.members();
        members.any(|member| member.endpoint.is_bound_by(operator_id))
    }

    /// The next endpoint in turn of those that a Kubernetes operator binds, as [`Self::pick`] selects it.
    pub(crate) fn pick_bound_by(
        &self,
        operator_id: &str,
        agents: Option<&dyn Dial>,
    ) -> Option<&Arc<Member>> {
        self.pick_among(agents, |member| member.endpoint.is_bound_by(operator_id))
    }

    /// As [`Self::pick`], among the endpoints that meet a condition.
    pub(crate) fn pick_among(
        &self,
        agents: Option<&dyn Dial>,
        is_one: impl Fn(&Member) -> bool,
    ) -> Option<&Arc<Member>> {
        let among: Vec<&Arc<Member>> = self.members().filter(|member| is_one(member)).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let at = |step: usize| {
            among
                .get(turn.wrapping_add(step) % among.len().max(1))
                .copied()
        };
        let mut served = (0..among.len())
            .filter_map(at)
            .filter(|member| !member.is_away(agents));
        let first = served.next().or_else(|| at(0))?;
        match first.is_full() {
            true => served.find(|member| !member.is_full()).or(Some(first)),
            false => Some(first),
        }
    }

    /// The next endpoint in turn. Those with a disconnected agent or an upstream that was recently unreachable are
    /// skipped, and those that have reached their limit if another has not.
    pub(crate) fn pick(&self, agents: Option<&dyn Dial>) -> &Arc<Member> {
        if self.others.is_empty() {
            return &self.first;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.others.len() + 1;
        let at = |step: usize| match (turn.wrapping_add(step) % count).checked_sub(1) {
            Some(other) => self.others.get(other).unwrap_or(&self.first),
            None => &self.first,
        };
        let mut served = (0..count).map(at).filter(|member| !member.is_away(agents));
        let first = served.next().unwrap_or_else(|| at(0));
        match first.is_full() {
            true => served.find(|member| !member.is_full()).unwrap_or(first),
            false => first,
        }
    }
}
