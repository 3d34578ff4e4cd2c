//! What control needs to know of the configuration.

use std::ops::RangeInclusive;

use culvert_base::net::HostName;
use culvert_delivery::TargetSettings;
use culvert_policy::IpDatabases;

use crate::base::PublicPorts;

/// What control needs to know of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Platform base domain; endpoints get names below it (`edge.domain`).
    pub edge_domain: HostName,
    /// Ports that URLs of endpoints show.
    pub public_ports: PublicPorts,
    /// Ports of TCP endpoints (`edge.tcp_ports`).
    pub tcp_ports: RangeInclusive<u16>,
    /// Whether upstreams may be at private addresses (`edge.allow_private_upstreams`).
    pub allow_private_upstreams: bool,
    /// Whether traffic policies may call public hosts (`policy.http_request_public`).
    pub allow_public_calls: bool,
    /// What files of the operator say of addresses (`edge.geo_database` and its like).
    pub ip_data: IpDatabases,
    /// Names below the platform domain that the installation itself serves, beside those that are
    /// always its own (`connect.`, `api.`, `tcp.`).
    pub own_names: Vec<String>,
    /// What destinations may use and reach (`destinations.*`).
    pub targets: TargetSettings,
    /// Public base of `uri` fields in events of the server itself, without a trailing slash.
    pub base_url: String,
    /// The version that agents will have to have, if that was announced (`agents.minimum_version`).
    pub agent_minimum: Option<AgentMinimum>,
}

/// An announced minimum version of agents. Events of sessions with an older one say so (`deprecated`);
/// nothing is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMinimum {
    /// Numbers with points between them, such as `3.5.0`.
    pub version: String,
    /// When older ones will not be let in any more.
    pub date: String,
    /// A sentence for the owner of the agent.
    pub message: String,
}

impl AgentMinimum {
    /// Whether `version` is older. One that does not begin with a number is not judged.
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

/// The numbers a version begins with: `v3.19.0-beta` has 3, 19 and 0.
pub(crate) fn numbers(version: &str) -> Vec<u64> {
    let version = version.trim().trim_start_matches('v');
    let end = version.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let numbers = version[..end.unwrap_or(version.len())].split('.');
    numbers.map_while(|number| number.parse().ok()).collect()
}
