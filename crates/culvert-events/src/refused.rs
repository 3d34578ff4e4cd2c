//! Refused traffic that names no endpoint, as the edge hands it over.

use std::net::IpAddr;

use culvert_base::Timestamp;

use crate::reason::Reason;

/// Refused traffic without an endpoint, of a network and for a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedTraffic {
    /// Why it was refused.
    pub reason: Reason,
    /// The first address of its /24 or /64; `None` for those of several networks, while too many are collected.
    pub network: Option<IpAddr>,
    /// How many requests and connections were refused.
    pub count: u64,
    /// How many of them the sample stands for.
    pub sampled: u64,
    /// When the first of them was refused.
    pub first_at: Timestamp,
    /// When the last of them was refused.
    pub last_at: Timestamp,
    /// The last one that was examined; `None` for those that were only counted.
    pub sample: Option<RefusedSample>,
}

/// One refused request or connection. It has no part that may be a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSample {
    /// The address of the client.
    pub client_ip: IpAddr,
    /// The port of the client.
    pub client_port: u16,
    /// The port that it connected to.
    pub server_port: u16,
    /// The host of the request, or else the TLS server name; empty if there is none. At most 253 bytes.
    pub host: String,
    /// The method; empty without a request. At most 32 bytes.
    pub method: String,
    /// The `user-agent`; empty if there is none. At most 256 bytes.
    pub user_agent: String,
}

impl RefusedTraffic {
    /// Its network with the length of the prefix.
    pub fn network_text(&self) -> Option<String> {
        let network = self.network?;
        let length = if network.is_ipv4() { 24 } else { 64 };
        Some(format!("{network}/{length}"))
    }
}
