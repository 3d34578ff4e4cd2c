//! What the edge serves: endpoints, and the addresses from which an account's endpoints are reached.

use std::sync::Arc;

use culvert_base::IpSet;
use culvert_base::net::HostName;
use culvert_policy::host::EndpointInfo;
use culvert_policy::policy::compiled::Policy;
use culvert_policy::scheme::Scheme;

use crate::rules::Timeouts;
use crate::upstream::url::Upstream;

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
