//! What an agent can be asked for.

use culvert_base::{Code, code};
use culvert_tunnel::server::Command;
use culvert_tunnel::wire::UpdateRequest;

/// Why a session ended that a caller stopped.
pub(crate) const STOPPED: &str = "stopped by a call of the API";

/// What an agent can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCommand {
    Restart,
    Stop,
    Update,
}

impl SessionCommand {
    /// Codes for an agent that cannot, and for one that failed.
    pub(crate) const fn codes(self) -> (Code, Code) {
        match self {
            Self::Restart => (code::AGENT_RESTART_UNSUPPORTED, code::AGENT_RESTART_FAILED),
            Self::Stop => (code::AGENT_STOP_UNSUPPORTED, code::AGENT_STOP_FAILED),
            Self::Update => (code::AGENT_UPDATE_UNSUPPORTED, code::AGENT_UPDATE_FAILED),
        }
    }

    /// Why a session ended whose agent did so.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Restart => "restarted by a call of the API",
            Self::Stop => STOPPED,
            Self::Update => "updated by a call of the API",
        }
    }

    /// As it is in the paths of the API and between nodes.
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
