//! Limits of agent sessions, endpoints and connections.

use culvert_resources::settings::AgentLimits;
use culvert_tunnel::server::ConnectionLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;

/// Limits for agents. Excess requests are rejected with a code or wait.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of concurrent agent sessions on this node.
    pub sessions_max: u32,
    /// Maximum number of concurrent sessions per account on this node.
    pub sessions_per_account_max: u32,
    /// Maximum number of concurrent sessions per owner of credentials on this node: a user or a bot user.
    pub sessions_per_owner_max: u32,
    /// Maximum number of concurrent sessions per credential on this node.
    pub sessions_per_credential_max: u32,
    /// Maximum number of online agent endpoints per account on this node.
    pub endpoints_per_account_max: u32,
    /// Maximum number of online agent endpoints per owner of credentials on this node.
    pub endpoints_per_owner_max: u32,
    /// Maximum number of endpoints per session.
    pub endpoints_per_session_max: u32,
    /// Maximum number of concurrent SSH connections; more wait to be accepted.
    pub ssh_connections_max: u32,
    /// Maximum number of unauthenticated connections, for agents and for SSH clients each. At the limit, a
    /// new connection closes the oldest one of the address that has the most.
    pub handshakes_max: u32,
    /// Maximum number of unauthenticated connections per address or IPv6 /64. At the limit, a new connection
    /// closes the oldest one of its source, or is closed itself if all are younger than 1.5 s. Increase it
    /// if many agents behind one address reconnect together.
    pub handshakes_per_source_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 10_000,
            sessions_per_account_max: 1_000,
            sessions_per_owner_max: 500,
            sessions_per_credential_max: 100,
            endpoints_per_account_max: 10_000,
            endpoints_per_owner_max: 5_000,
            endpoints_per_session_max: 100,
            ssh_connections_max: 4_000,
            handshakes_max: 256,
            handshakes_per_source_max: 16,
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        for (key, limit) in [
            ("sessions_max", self.sessions_max),
            ("sessions_per_account_max", self.sessions_per_account_max),
            ("sessions_per_owner_max", self.sessions_per_owner_max),
            (
                "sessions_per_credential_max",
                self.sessions_per_credential_max,
            ),
            ("endpoints_per_account_max", self.endpoints_per_account_max),
            ("endpoints_per_owner_max", self.endpoints_per_owner_max),
            ("endpoints_per_session_max", self.endpoints_per_session_max),
            ("ssh_connections_max", self.ssh_connections_max),
            ("handshakes_max", self.handshakes_max),
            ("handshakes_per_source_max", self.handshakes_per_source_max),
        ] {
            if !(1..=1_000_000).contains(&limit) {
                return Err(Invalid(format!(
                    "`limits.{key}` must be from 1 to 1000000, not {limit}"
                )));
            }
        }
        Ok(())
    }

    /// The limits that authorization of agents enforces.
    pub fn of_agents(&self) -> AgentLimits {
        AgentLimits {
            sessions: self.sessions_max as usize,
            sessions_per_account: self.sessions_per_account_max as usize,
            sessions_per_owner: self.sessions_per_owner_max as usize,
            sessions_per_credential: self.sessions_per_credential_max as usize,
            endpoints_per_account: self.endpoints_per_account_max as usize,
            endpoints_per_owner: self.endpoints_per_owner_max as usize,
        }
    }

    /// The connection limits of the agent listener, for sessions with up to `per_session` connections each.
    pub fn agent_connections(&self, per_session: usize) -> ConnectionLimits {
        self.connection_limits(
            self.sessions_max as usize * per_session.max(1) + self.handshakes_max as usize,
        )
    }

    /// The connection limits of the SSH listener.
    pub fn ssh_connections(&self) -> ConnectionLimits {
        self.connection_limits(self.ssh_connections_max as usize)
    }

    fn connection_limits(&self, connections: usize) -> ConnectionLimits {
        ConnectionLimits {
            connections,
            unauthenticated: self.handshakes_max as usize,
            unauthenticated_per_source: self.handshakes_per_source_max as usize,
        }
    }
}
