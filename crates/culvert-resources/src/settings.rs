//! The settings of the control plane.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::{AllowedPaths, HostName};

use crate::access::token;
use crate::cx::base::PublicPorts;
use crate::targets::TargetCheck;

/// The settings of the control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Platform base domain; endpoints get names below it (`edge.domain`).
    pub edge_domain: HostName,
    /// Names directly below the platform domain that belong to the installation, in addition to `acme-challenge` and `tcp`
    /// (`edge.reserved_names`).
    pub reserved_names: Vec<String>,
    /// Ports shown in the URLs of endpoints.
    pub public_ports: PublicPorts,
    /// Ports of TCP endpoints (`edge.tcp_ports`).
    pub tcp_ports: RangeInclusive<u16>,
    /// Whether upstreams may be at private addresses (`edge.allow_private_upstreams`).
    pub allow_private_upstreams: bool,
    /// Unix sockets that upstreams may be at (`edge.allow_unix_upstreams`).
    pub allow_unix_upstreams: AllowedPaths,
    /// Folders whose files upstreams may serve (`edge.allow_file_upstreams`).
    pub allow_file_upstreams: AllowedPaths,
    /// Whether a proxy before the edge may terminate TLS, so that sign-ins work at http endpoints
    /// (`edge.trusted_proxies`).
    pub has_tls_before_edge: bool,
    /// Whether only its owner may serve endpoints on a reserved domain or address (`rights.domains`).
    pub domains_of_owner: bool,
    /// Whether policies of earlier versions that echo secrets are refused immediately (`rights.strict`).
    pub strict_rights: bool,
    /// Whether traffic policies may call public hosts (`policy.http_request_public`).
    pub allow_public_calls: bool,
    /// Names below the platform domain that the installation itself serves, in addition to the fixed ones
    /// (`connect.`, `api.`, `tcp.`).
    pub own_names: Vec<String>,
    /// Address as `host:port` at which Kubernetes operators reach bound endpoints, unless they have their own
    /// (`kubernetes.ingress_endpoint`). Empty if the installation accepts none.
    pub kubernetes_ingress: String,
    /// Checks what destinations may be (`destinations.*`).
    pub targets: Arc<dyn TargetCheck>,
    /// The form of new tokens (`keys.token_form`).
    pub token_form: token::Form,
    /// What happens to a token that was reported as leaked (`keys.leaked`).
    pub leaked: Leaked,
    /// Public base of `uri` fields in events of the server itself, without a trailing slash.
    pub base_url: String,
    /// The announced minimum version of agents, if any (`agents.minimum_version`).
    pub agent_minimum: Option<AgentMinimum>,
}

/// What happens to a token that was reported as leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaked {
    /// It stops working.
    #[default]
    Revoked,
    /// Its owner decides.
    Flagged,
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

/// Limits of the agents of this process (`limits.*`).
#[derive(Clone, Copy, Debug)]
pub struct AgentLimits {
    /// Total sessions.
    pub sessions: usize,
    /// Sessions of one account.
    pub sessions_per_account: usize,
    /// Sessions of one owner, whose credentials are not limited in number.
    pub sessions_per_owner: usize,
    /// Sessions of one credential.
    pub sessions_per_credential: usize,
    /// Endpoints that sessions of one account serve.
    pub endpoints_per_account: usize,
    /// Endpoints that sessions of one owner serve.
    pub endpoints_per_owner: usize,
}

/// Retention and size limit of statistics.
#[derive(Clone, Debug)]
pub struct StatisticsSettings {
    /// Retention of the resolution of ten seconds.
    pub detail_retention: Duration,
    /// Retention of the resolution of five minutes.
    pub retention: Duration,
    /// Maximum bytes in the store.
    pub bytes_max: u64,
}

impl Default for StatisticsSettings {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            detail_retention: day,
            retention: 30 * day,
            bytes_max: 512 << 20,
        }
    }
}

/// The leading numbers of a version: `v3.19.0-beta` has 3, 19 and 0.
pub(crate) fn numbers(version: &str) -> Vec<u64> {
    let version = version.trim().trim_start_matches('v');
    let end = version.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let numbers = version[..end.unwrap_or(version.len())].split('.');
    numbers.map_while(|number| number.parse().ok()).collect()
}
