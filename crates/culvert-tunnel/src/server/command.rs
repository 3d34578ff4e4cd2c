//! Commands of the server to agents: stop, restart, update, and stop an endpoint.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use culvert_base::Refusal;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Bindings;
use super::call::{self, ReadDeadline};
use crate::wire::{self, AuthExtra, Outcome, StopEndpointRequest, StreamType, UpdateRequest};

/// Deadline for an agent's reply. Some agents never reply if their application did not register a handler.
const ANSWER: ReadDeadline = ReadDeadline {
    bytes: 64 << 10,
    time: Duration::from_secs(5),
};

/// How long to wait for agents to receive that an endpoint was stopped.
const HEARD_WITHIN: Duration = Duration::from_millis(300);

/// Maximum number of agents that are asked concurrently.
const ASKED_AT_ONCE: usize = 256;

/// How often to check whether agents have disconnected.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The last part of the time that agents have to move, in which the remaining connections are ended.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);

/// The result of asking the agents of a stopping node to move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Agents that were asked to reconnect, and agreed.
    pub asked: usize,
    /// Agents among them that were still connected at the deadline.
    pub left: usize,
    /// Connections that the server ended so that their agents reconnect.
    pub ended: usize,
    /// Connections among them that still carried streams.
    pub cut: usize,
}

/// A command to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Stop.
    Stop,
    /// Restart.
    Restart,
    /// Update to another version.
    Update(UpdateRequest),
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The session has no connection.
    Unknown,
    /// The agent reported at sign-in that it does not support the command, perhaps with a reason.
    Unsupported(String),
    /// The agent tried and returned this error.
    Failed(String),
    /// The agent did not reply.
    Away,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the session is not connected"),
            Self::Unsupported(why) if why.is_empty() => {
                f.write_str("the agent version does not support it")
            }
            Self::Unsupported(why) => write!(f, "the agent rejected it: {why}"),
            Self::Failed(why) => write!(f, "the agent failed: {why}"),
            Self::Away => f.write_str("the agent did not respond"),
        }
    }
}

impl std::error::Error for CommandError {}

/// Which commands an agent supports, as it reported at sign-in: absent if the agent predates the command;
/// empty if it supports it; otherwise the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abilities {
    /// Whether the agent cannot reconnect when its connection ends.
    is_in_process: bool,
    stop: Option<String>,
    restart: Option<String>,
    update: Option<String>,
}

impl Abilities {
    pub(crate) fn of(agent: &AuthExtra) -> Self {
        Self {
            is_in_process: false,
            stop: agent.stop_unsupported.clone(),
            restart: agent.restart_unsupported.clone(),
            update: agent.update_unsupported.clone(),
        }
    }

    pub(crate) fn of_in_process(agent: &AuthExtra) -> Self {
        Self {
            is_in_process: true,
            ..Self::of(agent)
        }
    }

    /// Whether the agent does not reconnect when its connection ends.
    pub(crate) fn is_in_process(&self) -> bool {
        self.is_in_process
    }

    fn refuse(&self, command: &Command) -> Option<String> {
        let said = match command {
            Command::Stop => &self.stop,
            Command::Restart => &self.restart,
            Command::Update(_) => &self.update,
        };
        match said {
            None => Some(String::new()),
            Some(why) if why.is_empty() => None,
            Some(why) => Some(why.clone()),
        }
    }
}

impl Bindings {
    /// Sends a command to the agent of a session and waits for its reply. The agent decides whether it ends
    /// its connection afterwards.
    pub async fn command(&self, session_id: &str, command: &Command) -> Result<(), CommandError> {
        let (session, abilities) = self.agent(session_id).ok_or(CommandError::Unknown)?;
        if let Some(why) = abilities.refuse(command) {
            return Err(CommandError::Unsupported(why));
        }
        let nothing = Value::Object(serde_json::Map::new());
        let first = match command {
            Command::Stop => wire::call(StreamType::STOP, &nothing),
            Command::Restart => wire::call(StreamType::RESTART, &nothing),
            Command::Update(to) => wire::call(StreamType::UPDATE, to),
        };
        let mut stream = session.open(first).map_err(|_| CommandError::Away)?;
        let reply = call::request(&mut stream, ANSWER).await;
        let outcome: Outcome = reply
            .ok()
            .and_then(|reply| wire::parse(reply).ok())
            .ok_or(CommandError::Away)?;
        // Some agents wait for the server to end the stream.
        stream.shutdown().await.ok();
        if outcome.error.is_empty() {
            Ok(())
        } else {
            Err(CommandError::Failed(outcome.error))
        }
    }

    /// Asks every agent to reconnect, and waits up to `timeout` until those that agreed have disconnected.
    /// They connect to another node if this one accepts no new connections. Agents that do not support the
    /// command, such as those of published libraries, are disconnected in order and reconnect immediately.
    /// SSH clients do not reconnect, so they stay connected to the end.
    pub async fn ask_to_move(&self, timeout: Duration) -> Moved {
        let deadline = Instant::now() + timeout;
        let mut agreed = Vec::new();
        let asking = async {
            let ids = stream::iter(self.session_ids());
            let mut answers = ids
                .map(|id| async {
                    let answer = self.command(&id, &Command::Restart).await;
                    answer.is_ok().then_some(id)
                })
                .buffer_unordered(ASKED_AT_ONCE);
            while let Some(answer) = answers.next().await {
                agreed.extend(answer);
            }
        };
        // Agents that did not reply in time are not waited for.
        drop(tokio::time::timeout_at(deadline, asking).await);
        let asked = agreed.len();
        let mut stays: BTreeSet<String> = agreed.iter().cloned().collect();
        stays.extend(self.in_process_sessions());
        let gently = deadline
            .checked_sub(LET_GO_WITHIN)
            .unwrap_or(deadline)
            .into_std();
        let leaving = async {
            loop {
                agreed.retain(|id| self.is_connected(id));
                if agreed.is_empty() || Instant::now() >= deadline {
                    return agreed.len();
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let (left, (ended, cut)) = tokio::join!(leaving, self.let_go(&stays, gently));
        Moved {
            asked,
            left,
            ended,
            cut,
        }
    }

    /// Stops an endpoint at every agent that serves it, immediately, and then sends them the reason. Open
    /// streams run to their end. Agents do not reply, so this only waits a short time until they have
    /// received the message.
    pub async fn stop_endpoint(&self, id: &str, why: &Refusal) {
        self.stop_endpoints([id.to_owned()], why).await;
    }

    /// Ends every connection of a session, as [`Self::hang_up`], after telling its agent for each endpoint
    /// why it was stopped: an agent whose connection merely ends would reconnect. `false` if the session has
    /// no connection.
    pub async fn dismiss(&self, session_id: &str, why: &str, refusal: &Refusal) -> bool {
        if !self.is_connected(session_id) {
            return false;
        }
        self.stop_endpoints(self.endpoints_of(session_id), refusal)
            .await;
        self.hang_up(session_id, why)
    }

    async fn stop_endpoints(&self, ids: impl IntoIterator<Item = String>, why: &Refusal) {
        let mut telling = JoinSet::new();
        for id in ids {
            let sessions = self.forget_endpoint(&id);
            let request = StopEndpointRequest {
                id,
                message: why.message.clone().into_owned(),
                error_code: why.code.map(|code| code.to_string()).unwrap_or_default(),
            };
            for session in sessions {
                let first = wire::call(StreamType::STOP_ENDPOINT, &request);
                if let Ok(stream) = session.open(first) {
                    telling.spawn(call::answer(stream, b""));
                }
            }
        }
        // Some agents never end such a stream.
        let outcome = tokio::time::timeout(HEARD_WITHIN, telling.join_all()).await;
        drop(outcome);
    }
}
