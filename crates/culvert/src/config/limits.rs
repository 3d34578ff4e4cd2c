//! How much agents may take, in all and each.

use culvert_control::AgentLimits;
use culvert_tunnel::server::Room;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;

/// How much agents may take. What is beyond a limit is refused with a code, or waits.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions of agents at once on this node.
    pub sessions_max: u32,
    /// Sessions at once of one account on this node.
    pub sessions_per_account_max: u32,
    /// Sessions at once of one credential on this node.
    pub sessions_per_credential_max: u32,
    /// Endpoints at once that agents of one account serve on this node.
    pub endpoints_per_account_max: u32,
    /// Endpoints at once of one session.
    pub endpoints_per_session_max: u32,
    /// Connections at once of clients of SSH; further ones wait to be accepted.
    pub ssh_connections_max: u32,
    /// Connections at once, of agents and of clients of SSH each, that have not said who they are;
    /// for a further one the oldest of the address with most of them is closed.
    pub handshakes_max: u32,
    /// Of them, those of one address or one /64 of IPv6; for a further one the oldest of them is closed,
    /// or the new one where all came within 1.5 seconds. Many agents behind one address that come back
    /// together need more.
    pub handshakes_per_source_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_max: 10_000,
            sessions_per_account_max: 1_000,
            sessions_per_credential_max: 100,
            endpoints_per_account_max: 10_000,
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
            (
                "sessions_per_credential_max",
                self.sessions_per_credential_max,
            ),
            ("endpoints_per_account_max", self.endpoints_per_account_max),
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

    /// What the gate of agents holds them to.
    pub(crate) fn of_agents(&self) -> AgentLimits {
        AgentLimits {
            sessions: self.sessions_max as usize,
            sessions_per_account: self.sessions_per_account_max as usize,
            sessions_per_credential: self.sessions_per_credential_max as usize,
            endpoints_per_account: self.endpoints_per_account_max as usize,
        }
    }

    /// Of the listener of agents, whose sessions have up to `legs` connections each.
    pub(crate) fn agent_room(&self, legs: usize) -> Room {
        self.room(self.sessions_max as usize * legs.max(1) + self.handshakes_max as usize)
    }

    /// Of the listener of SSH.
    pub(crate) fn ssh_room(&self) -> Room {
        self.room(self.ssh_connections_max as usize)
    }

    fn room(&self, connections: usize) -> Room {
        Room {
            connections,
            strangers: self.handshakes_max as usize,
            strangers_per_source: self.handshakes_per_source_max as usize,
        }
    }
}
