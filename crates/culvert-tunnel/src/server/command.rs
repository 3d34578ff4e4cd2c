//! What a server asks of an agent: to end, to start anew, to replace itself, to let an endpoint go.

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

/// For an agent to answer. Some never do when their application did not ask to be told.
const ANSWER: ReadDeadline = ReadDeadline {
    bytes: 64 << 10,
    time: Duration::from_secs(5),
};

/// For an agent to hear that an endpoint of its is gone.
const HEARD_WITHIN: Duration = Duration::from_millis(300);

/// How many agents are asked at once.
const ASKED_AT_ONCE: usize = 256;

/// How often to look whether agents have left.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Of the time that agents have to move, what is left when the last connections are ended.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);

/// What became of the agents of a node that stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Those that were asked to connect elsewhere, and agreed.
    pub asked: usize,
    /// Of them, those that were still connected in the end.
    pub left: usize,
    /// Connections that were ended so that their agents dial again.
    pub ended: usize,
    /// Of them, those that carried something still.
    pub cut: usize,
}

/// Something an agent can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// To end.
    Stop,
    /// To end and begin again.
    Restart,
    /// To replace itself by another version.
    Update(UpdateRequest),
}

/// Why it did not do so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The session has no connection.
    Unknown,
    /// It said from the beginning that it cannot, and perhaps why.
    Unsupported(String),
    /// It tried, and says what came of it.
    Failed(String),
    /// It gave no answer.
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

/// What an agent said of each command when it came: nothing, if it is too old to know; an empty text
/// if it can; else why not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abilities {
    /// Whether it cannot come back when its connection ends.
    is_guest: bool,
    stop: Option<String>,
    restart: Option<String>,
    update: Option<String>,
}

impl Abilities {
    pub(crate) fn of(agent: &AuthExtra) -> Self {
        Self {
            is_guest: false,
            stop: agent.stop_unsupported.clone(),
            restart: agent.restart_unsupported.clone(),
            update: agent.update_unsupported.clone(),
        }
    }

    pub(crate) fn of_guest(guest: &AuthExtra) -> Self {
        Self {
            is_guest: true,
            ..Self::of(guest)
        }
    }

    /// Whether its connection is all it has: it does not dial again.
    pub(crate) fn is_guest(&self) -> bool {
        self.is_guest
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
    /// Asks the agent of a session for something and waits for its answer. Whether its connection
    /// ends then is up to the agent.
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
        // Some agents leave it to the server to end the stream.
        stream.shutdown().await.ok();
        if outcome.error.is_empty() {
            Ok(())
        } else {
            Err(CommandError::Failed(outcome.error))
        }
    }

    /// Asks every agent to connect again, and waits until those that agreed have left, for `timeout` at
    /// most. They find another node if this one takes no new connections. The connections of agents
    /// that cannot be asked, such as those of published libraries, are ended as gently as can be: they
    /// dial again at once. Clients of SSH do not, and stay to the end.
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
        // Those that have not answered in time are not waited for.
        drop(tokio::time::timeout_at(deadline, asking).await);
        let asked = agreed.len();
        let mut stays: BTreeSet<String> = agreed.iter().cloned().collect();
        stays.extend(self.guests());
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

    /// Takes an endpoint from every agent that serves it, at once, and then tells them why. Streams
    /// that are open run to their end. Nobody answers; what is waited for, a moment at most, is that
    /// they have heard.
    pub async fn stop_endpoint(&self, id: &str, why: &Refusal) {
        self.stop_endpoints([id.to_owned()], why).await;
    }

    /// Ends every connection of a session, as [`Self::hang_up`], after its agent was told of each of
    /// its endpoints why it is gone: an agent comes back to a connection that only ends. `false` if
    /// the session has none.
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
