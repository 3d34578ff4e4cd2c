//! Endpoints, and the client addresses that may reach an account's endpoints.

use std::fmt;
use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_base::{IpSet, Share};
use culvert_policy::host::EndpointInfo;
use culvert_policy::policy::compiled::Policy;
use culvert_policy::scheme::Scheme;
use culvert_upstream::{TlsOptions, Upstream};

use crate::limits::{InFlightLimits, Timeouts};
use crate::maintenance::Maintenance;
use crate::upstream_list::UpstreamList;

/// An address at which traffic arrives, and its upstream.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// `ep_…`, for the log.
    pub id: String,
    /// `ac_…` of the account whose events its traffic makes.
    pub account: Arc<str>,
    /// ID of its owner, who may read what its policy captures and whose rights decide where its policy forwards; empty
    /// if it has none.
    pub owner: Arc<str>,
    /// Its scheme.
    pub scheme: Scheme,
    /// Who may connect to it.
    pub binding: EndpointBinding,
    /// Its host; a wildcard covers names of any depth below it.
    pub host: HostName,
    /// The public port of a TCP endpoint, or the port of one that is not public; nominal for the others.
    pub port: u16,
    /// Where its traffic goes; `None` if the policy responds to all of it.
    pub upstream: Option<Upstream>,
    /// The upstreams that its traffic is divided among, if there are several. `upstream` is the first of them.
    pub upstreams: Option<Arc<UpstreamList>>,
    /// The policy of its traffic.
    pub policy: Option<Arc<Policy>>,
    /// Whether `//` in a request's path becomes `/`. Endpoints that share an address keep `//` only if all of them do.
    pub merge_slashes: bool,
    /// Its timeouts. An internal endpoint inherits those it does not set from the endpoint that forwards to it.
    pub timeouts: Timeouts,
    /// How much of its traffic may be in flight; `None` for any amount.
    pub in_flight: Option<InFlightLimits>,
    /// What it responds with as long as it is in maintenance. Only for HTTP.
    pub maintenance: Option<Arc<Maintenance>>,
}

/// Who may connect to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointBinding {
    /// Everyone, at its public address.
    Public,
    /// Policies of its account's endpoints.
    Internal,
    /// The Kubernetes operators of its account with these ids.
    Kubernetes(Arc<[String]>),
}

impl Endpoint {
    /// Where its traffic may go.
    pub fn all_upstreams(&self) -> impl Iterator<Item = &Upstream> {
        let listed = self.upstreams.iter().flat_map(|list| &list.upstreams);
        let alone = match &self.upstreams {
            Some(_) => None,
            None => self.upstream.as_ref(),
        };
        alone
            .into_iter()
            .chain(listed.map(|listed| &listed.upstream))
    }

    /// The same endpoint with these options of TLS to all its upstreams.
    #[must_use]
    pub fn with_upstream_tls(mut self, options: &Arc<TlsOptions>) -> Self {
        let with = |upstream: Upstream| upstream.with_tls(Arc::clone(options));
        self.upstream = self.upstream.map(with);
        if let Some(list) = &mut self.upstreams {
            for listed in &mut Arc::make_mut(list).upstreams {
                listed.upstream = with(listed.upstream.clone());
            }
        }
        self
    }

    /// Whether only policies of its account's endpoints reach it.
    #[inline]
    pub fn is_internal(&self) -> bool {
        self.binding == EndpointBinding::Internal
    }

    /// Whether a Kubernetes operator of its account may reach it.
    #[inline]
    pub fn is_bound_by(&self, operator_id: &str) -> bool {
        match &self.binding {
            EndpointBinding::Kubernetes(operators) => operators.iter().any(|id| id == operator_id),
            EndpointBinding::Public | EndpointBinding::Internal => false,
        }
    }

    /// The share of limited resources that its traffic uses.
    #[inline]
    pub fn share(&self) -> Share {
        Share::new(&self.owner, &self.id)
    }

    /// Its properties for policies.
    #[inline]
    pub fn info(&self) -> EndpointInfo<'_> {
        EndpointInfo {
            id: &self.id,
            account: &self.account,
            owner: &self.owner,
            scheme: self.scheme,
            is_internal: self.is_internal(),
            host: &self.host,
            port: self.port,
            merge_slashes: self.merge_slashes,
            forwards_to: self
                .policy
                .as_ref()
                .map_or(&[], |policy| policy.forwards_to()),
        }
    }
}

/// Decides which endpoints may forward to the internal endpoints of other owners.
pub trait ForwardRights: Send + Sync + fmt::Debug {
    /// Whether the policy of `from` may forward by this host to the internal endpoint `to` of another owner.
    fn may_forward(&self, from: EndpointInfo<'_>, host: &str, to: EndpointInfo<'_>) -> bool;
}

/// The client addresses that may reach the endpoints of an account.
#[derive(Clone, Debug)]
pub struct Restriction {
    /// `ipx_…`, for the log.
    pub id: String,
    /// `ac_…` of the account whose endpoints it restricts.
    pub account: Arc<str>,
    /// Whether other addresses are rejected, or only logged.
    pub enforced: bool,
    /// The allowed addresses.
    pub admitted: Arc<IpSet>,
}
