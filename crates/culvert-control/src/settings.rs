//! The settings of the control plane.

use std::ops::RangeInclusive;

use culvert_base::Timestamp;
use culvert_base::net::HostName;
use culvert_delivery::TargetSettings;
use culvert_policy::IpDatabases;
use culvert_tunnel::wire::DeprecationWarning;

use crate::base::PublicPorts;

/// The settings of the control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Platform base domain; endpoints get names below it (`edge.domain`).
    pub edge_domain: HostName,
    /// Ports shown in the URLs of endpoints.
    pub public_ports: PublicPorts,
    /// Ports of TCP endpoints (`edge.tcp_ports`).
    pub tcp_ports: RangeInclusive<u16>,
    /// Whether upstreams may be at private addresses (`edge.allow_private_upstreams`).
    pub allow_private_upstreams: bool,
    /// Whether a proxy before the edge may terminate TLS, so that sign-ins work at http endpoints
    /// (`edge.trusted_proxies`).
    pub has_tls_before_edge: bool,
    /// Whether only its owner may serve endpoints on a reserved domain or address (`rights.domains`).
    pub domains_of_owner: bool,
    /// Whether policies of earlier versions that echo secrets are refused immediately (`rights.strict`).
    pub strict_rights: bool,
    /// Whether traffic policies may call public hosts (`policy.http_request_public`).
    pub allow_public_calls: bool,
    /// What follows if an expression of a traffic policy fails, for dry runs.
    pub on_expression_error: culvert_policy::OnExpressionError,
    /// The operator's databases about IP addresses (`edge.geo_database` and similar).
    pub ip_data: IpDatabases,
    /// Names below the platform domain that the installation itself serves, in addition to the fixed ones
    /// (`connect.`, `api.`, `tcp.`).
    pub own_names: Vec<String>,
    /// Address as `host:port` at which Kubernetes operators reach bound endpoints, unless they have their own
    /// (`kubernetes.ingress_endpoint`). Empty if the installation accepts none.
    pub kubernetes_ingress: String,
    /// The files and addresses that destinations may use (`destinations.*`).
    pub targets: TargetSettings,
    /// Public base of `uri` fields in events of the server itself, without a trailing slash.
    pub base_url: String,
    /// The announced minimum version of agents, if any (`agents.minimum_version`).
    pub agent_minimum: Option<AgentMinimum>,
}

/// An announced minimum version of agents. Events of sessions with an older one contain a notice
/// (`deprecated`), but agents are not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMinimum {
    /// Numbers separated by dots, such as `3.5.0`.
    pub version: String,
    /// When older versions will be refused.
    pub date: String,
    /// A message for the owner of the agent.
    pub message: String,
}

impl AgentMinimum {
    /// The notice for an agent of this version, if it is older. Published agents reject a notice without a valid
    /// date, so there is none without one.
    pub(crate) fn warning(&self, version: &str) -> Option<DeprecationWarning> {
        let date = [self.date.clone(), format!("{}T00:00:00Z", self.date)]
            .into_iter()
            .find(|date| Timestamp::parse(date).is_some())?;
        self.is_above(version).then(|| DeprecationWarning {
            next_min: self.version.clone(),
            next_date: date,
            message: self.message.clone(),
        })
    }

    /// Whether `version` is older. False for a version that does not start with a number.
    pub fn is_above(&self, version: &str) -> bool {
        let (minimum, given) = (numbers(&self.version), numbers(version));
        if given.is_empty() {
            return false;
        }
        let length = minimum.len().max(given.len());
        let at = |numbers: &[u64], index| numbers.get(index).copied().unwrap_or(0);
        (0..length)
            .map(|index| at(&given, index).cmp(&at(&minimum, index)))
            .find(|order| order.is_ne())
            .is_some_and(std::cmp::Ordering::is_lt)
    }
}

/// The leading numbers of a version: `v3.19.0-beta` has 3, 19 and 0.
pub(crate) fn numbers(version: &str) -> Vec<u64> {
    let version = version.trim().trim_start_matches('v');
    let end = version.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let numbers = version[..end.unwrap_or(version.len())].split('.');
    numbers.map_while(|number| number.parse().ok()).collect()
}
