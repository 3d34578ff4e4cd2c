//! Commands for agents.

use culvert_base::{Code, code};
use culvert_tunnel::server::Command;
use culvert_tunnel::wire::UpdateRequest;

/// The end reason of a session that an API call stopped.
pub(crate) const STOPPED: &str = "stopped by a call of the API";

/// A command for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCommand {
    Restart,
    Stop,
    Update,
}

impl SessionCommand {
    /// Codes for an agent that does not support the command, and for one that failed.
    pub(crate) const fn codes(self) -> (Code, Code) {
        match self {
            Self::Restart => (code::AGENT_RESTART_UNSUPPORTED, code::AGENT_RESTART_FAILED),
            Self::Stop => (code::AGENT_STOP_UNSUPPORTED, code::AGENT_STOP_FAILED),
            Self::Update => (code::AGENT_UPDATE_UNSUPPORTED, code::AGENT_UPDATE_FAILED),
        }
    }

    /// The end reason of a session whose agent ran the command.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Restart => "restarted by a call of the API",
            Self::Stop => STOPPED,
            Self::Update => "updated by a call of the API",
        }
    }

    /// Names in API paths and between nodes.
    pub(crate) const ALL: [(&'static str, Self); 3] = [
        ("restart", Self::Restart),
        ("stop", Self::Stop),
        ("update", Self::Update),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, other)| *other == self)
            .map_or("", |(name, _)| name)
    }

    pub(crate) fn command(self) -> Command {
        match self {
            Self::Restart => Command::Restart,
            Self::Stop => Command::Stop,
            Self::Update => Command::Update(UpdateRequest::default()),
        }
    }
}
