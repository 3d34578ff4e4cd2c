//! Sends commands of management API callers to agents (contract: management API 2.17).

use std::time::{Duration, Instant};

use culvert_base::{BoxFuture, Refusal, code};
use culvert_resources::Error;
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use culvert_tunnel::nodes::{PeerCall, PeerService, RunState};
use culvert_tunnel::server::CommandError;

use crate::heartbeat;
use crate::session::command::{STOPPED, SessionCommand};
use crate::session::model::TunnelSession;
use crate::state::Agents;
use crate::subject::{AgentControl, answered};

/// The end reason of a session whose credential was deleted.
pub(crate) const CREDENTIAL_DELETED: &str = "credential deleted";
pub(crate) const OWNER_INACTIVE: &str = "owner inactive";
/// Time in which the end of a connection counts as the result of a command.
const DONE_WITHIN: Duration = Duration::from_secs(60);
/// Time that an agent has to stop after a stop command.
const STOP_TIME: Duration = Duration::from_secs(2);

impl AgentControl {
    /// Sends a command to the agent of a session and waits for its response.
    pub(crate) async fn send_command(
        &self,
        id: &str,
        session: &TunnelSession,
        request: SessionCommand,
    ) -> Result<(), Error> {
        match &self.agents {
            Some(agents) if agents.run == session.run => {
                self.ask_here(agents, id, session, request).await
            }
            _ => self.ask_elsewhere(id, session, request).await,
        }
    }

    /// Sends a command to an agent that is connected to another node.
    async fn ask_elsewhere(
        &self,
        id: &str,
        session: &TunnelSession,
        request: SessionCommand,
    ) -> Result<(), Error> {
        let run = self.kernel.store.get(heartbeat::KIND, &session.run).await?;
        let address = run.as_ref().map(heartbeat::address).transpose()?.flatten();
        let (Some(address), Some(nodes)) = (address, &self.nodes) else {
            let why = "The agent is connected to a node that other nodes cannot reach.";
            return Err(Refusal::new(code::AGENT_DISCONNECTED, why).into());
        };
        let peer_call = PeerCall {
            session_id: id.to_owned(),
            request: request.name().to_owned(),
        };
        Ok(nodes.ask(&address, &peer_call).await?)
    }

    async fn ask_here(
        &self,
        agents: &Agents,
        id: &str,
        session: &TunnelSession,
        request: SessionCommand,
    ) -> Result<(), Error> {
        if session.transport == "ssh" {
            return match request {
                SessionCommand::Update => Err(Refusal::of(code::SSH_UPDATE_UNSUPPORTED).into()),
                SessionCommand::Restart => Err(Refusal::of(code::SSH_RESTART_UNSUPPORTED).into()),
                SessionCommand::Stop if agents.bindings.hang_up(id, STOPPED) => Ok(()),
                SessionCommand::Stop => Err(Refusal::of(code::AGENT_DISCONNECTED).into()),
            };
        }
        let (cannot, failed) = request.codes();
        let refuse = |code, why: CommandError| Refusal::new(code, sentence(&why.to_string()));
        // Some agents disconnect before their response is read.
        agents.ask(id, Some((Instant::now() + DONE_WITHIN, request.reason())));
        let done = agents.bindings.command(id, &request.command()).await;
        if done.is_err() {
            agents.ask(id, None);
        }
        match done {
            Ok(()) => {}
            Err(why @ CommandError::Unsupported(_)) => return Err(refuse(cannot, why).into()),
            Err(why @ CommandError::Failed(_)) => return Err(refuse(failed, why).into()),
            Err(CommandError::Unknown | CommandError::Away) => {
                return Err(Refusal::of(code::AGENT_DISCONNECTED).into());
            }
        }
        if request == SessionCommand::Stop {
            // Some agents end their session themselves; others leave this to the application.
            if let Some(live) = agents.lock().get_mut(id) {
                live.cut = Some((Instant::now() + STOP_TIME, STOPPED));
            }
            agents.woken.notify_one();
        }
        Ok(())
    }
}

impl PeerService for AgentControl {
    fn run(&self, peer_call: PeerCall) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { answered(self.run_peer_call(&peer_call).await) })
    }

    fn beat_for(&self, run: String) -> BoxFuture<'_, Option<RunState>> {
        Box::pin(async move { self.beat_for(&run).await })
    }
}

impl AgentControl {
    /// Runs a command from another node, which has checked the caller's permission.
    async fn run_peer_call(&self, peer_call: &PeerCall) -> Result<(), Error> {
        let id = &peer_call.session_id;
        let document = self.kernel.store.get(TunnelSession::KIND, id).await?;
        let session: Option<TunnelSession> = document.as_ref().map(stored::read).transpose()?;
        let known = SessionCommand::ALL
            .iter()
            .find(|(name, _)| *name == peer_call.request);
        match (&self.agents, session, known) {
            (Some(agents), Some(session), Some((_, request))) if agents.run == session.run => {
                self.ask_here(agents, id, &session, *request).await
            }
            // The session has ended or moved to another node.
            _ => Err(Refusal::of(code::AGENT_DISCONNECTED).into()),
        }
    }
}

impl Agents {
    fn ask(&self, id: &str, asked: Option<(Instant, &'static str)>) {
        if let Some(live) = self.lock().get_mut(id) {
            live.asked = asked;
        }
    }
}

/// The first 500 characters, with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.trim().chars();
    let first: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .collect();
    let rest: String = letters.take(500).collect();
    let stop = if rest.ends_with('.') { "" } else { "." };
    format!("{first}{rest}{stop}")
}
