//! Calls between nodes about an agent that is connected to the other node.

use std::io;
use std::time::Duration;

use culvert_base::{BoxFuture, Code, Refusal, code};
use serde::{Deserialize, Serialize};

use super::Nodes;
use crate::driver::{Session, Stream};
use crate::server::call::{self, ReadDeadline};
use crate::wire::{self, StreamType};

/// Timeout of a call, including the connection and the agent's reply.
const DONE_WITHIN: Duration = Duration::from_secs(15);
/// The same for a heartbeat, which is repeated every few seconds.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(4);
/// The request for a heartbeat. It names a run of a server in place of a session.
const HEARTBEAT: &str = "heartbeat";

/// A request to the agent of a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PeerCall {
    /// The session.
    pub session_id: String,
    /// The request, by its name in the API.
    pub request: String,
}

/// Executes calls from other nodes.
pub trait PeerService: Send + Sync {
    /// Sends the request to an agent of this node; never forwards it.
    fn run(&self, peer_call: PeerCall) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Writes the heartbeat of another node's run, because that node cannot reach the database.
    fn beat_for(&self, run: String) -> BoxFuture<'_, Option<RunState>>;
}

/// What a node knows about the run of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is registered, and its heartbeat was written.
    Registered,
    /// It was removed.
    Removed,
    /// The node cannot reach the database either.
    NoDatabase,
}

/// The result of a call.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Done {
    /// `None` for success.
    refused: Option<PeerRefusal>,
    /// The result of a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<RunState>,
}

/// A refusal.
#[derive(Debug, Deserialize, Serialize)]
struct PeerRefusal {
    code: Option<u16>,
    message: String,
}

impl Nodes {
    /// Calls the node at an address about one of its agents. Uses a new connection, because calls are rare
    /// and the node may have no endpoints, so that no other connections to it exist.
    ///
    /// # Errors
    ///
    /// The refusal of the node, or 810 if it is unreachable.
    pub async fn ask(&self, address: &str, peer_call: &PeerCall) -> Result<(), Refusal> {
        match self.call(address, peer_call, DONE_WITHIN).await {
            Ok(Done { refused: None, .. }) => Ok(()),
            Ok(Done {
                refused: Some(refusal),
                ..
            }) => {
                let code = refusal
                    .code
                    .and_then(Code::find)
                    .unwrap_or(code::AGENT_DISCONNECTED);
                Err(Refusal::new(code, refusal.message))
            }
            Err(error) => {
                tracing::warn!(node = address, %error, "a node failed to forward a command to its agent");
                let why = "The node that the agent is connected to is unreachable.";
                Err(Refusal::new(code::AGENT_DISCONNECTED, why))
            }
        }
    }
}

impl Nodes {
    /// Asks the node at an address to write the heartbeat of a run of this node. `None` if it does not respond, or is of
    /// a version that cannot.
    pub async fn ask_heartbeat(&self, address: &str, run: &str) -> Option<RunState> {
        let peer_call = PeerCall {
            session_id: run.to_owned(),
            request: HEARTBEAT.to_owned(),
        };
        let done = self.call(address, &peer_call, HEARTBEAT_WITHIN).await;
        done.inspect_err(|error| {
            tracing::debug!(node = address, %error, "a node did not respond to a heartbeat");
        })
        .ok()?
        .run
    }

    async fn call(
        &self,
        address: &str,
        peer_call: &PeerCall,
        within: Duration,
    ) -> io::Result<Done> {
        let asking = async {
            let (session, driver) = self.connect(address).await?;
            let conversation = async {
                let done = converse(&session, peer_call).await;
                session.hang_up();
                done
            };
            let (done, _) = tokio::join!(conversation, driver.run());
            done
        };
        let done = tokio::time::timeout(within, asking).await;
        done.map_err(io::Error::from).and_then(|done| done)
    }
}

async fn converse(session: &Session, peer_call: &PeerCall) -> io::Result<Done> {
    let first = wire::call(StreamType::PEER_RPC, peer_call);
    let mut stream = session.open(first).map_err(io::Error::other)?;
    let reply = call::request(&mut stream, ReadDeadline::AGENT).await;
    Ok(serde_json::from_value(reply.map_err(io::Error::other)?)?)
}

/// Executes a call from another node and sends the result.
pub(super) async fn run(mut stream: Stream, peer_service: &dyn PeerService) {
    let peer_call = call::request(&mut stream, ReadDeadline::AGENT).await;
    let peer_call = peer_call
        .ok()
        .and_then(|peer_call| serde_json::from_value(peer_call).ok());
    let Some(peer_call): Option<PeerCall> = peer_call else {
        return;
    };
    if peer_call.request == HEARTBEAT {
        let run = peer_service.beat_for(peer_call.session_id).await;
        let done = Done { refused: None, run };
        return call::answer(stream, &wire::reply(&done)).await;
    }
    let refused = peer_service
        .run(peer_call)
        .await
        .err()
        .map(|refusal| PeerRefusal {
            code: refusal.code.map(Code::number),
            message: refusal.message.into_owned(),
        });
    let done = Done { refused, run: None };
    call::answer(stream, &wire::reply(&done)).await;
}
