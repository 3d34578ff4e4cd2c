//! What one node has another ask of an agent that is connected there, as it travels between them.

use std::io;
use std::time::Duration;

use culvert_base::{BoxFuture, Code, Refusal, code};
use serde::{Deserialize, Serialize};

use super::Nodes;
use crate::driver::{Session, Stream};
use crate::server::call::{self, ReadDeadline};
use crate::wire::{self, StreamType};

/// For everything: to connect, and for the agent to do it.
const DONE_WITHIN: Duration = Duration::from_secs(15);

/// Something to be asked of the agent of a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PeerCall {
    /// The session.
    pub session_id: String,
    /// What is asked for, by its name in the API.
    pub request: String,
}

/// Does what other nodes ask for.
pub trait PeerService: Send + Sync {
    /// Asks an agent of this node, and of no other.
    fn run(&self, peer_call: PeerCall) -> BoxFuture<'_, Result<(), Refusal>>;
}

/// What came of it.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Done {
    /// Nothing for success.
    refused: Option<PeerRefusal>,
}

/// A refusal.
#[derive(Debug, Deserialize, Serialize)]
struct PeerRefusal {
    code: Option<u16>,
    message: String,
}

impl Nodes {
    /// Has the node at an address ask one of its agents for something. The connection is one for this
    /// alone: nobody asks often, and the node may have no endpoint that others keep connections for.
    ///
    /// # Errors
    ///
    /// What the node says, or 810 if it cannot be reached.
    pub async fn ask(&self, address: &str, peer_call: &PeerCall) -> Result<(), Refusal> {
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
        let done = tokio::time::timeout(DONE_WITHIN, asking).await;
        match done.map_err(io::Error::from).and_then(|done| done) {
            Ok(Done { refused: None }) => Ok(()),
            Ok(Done {
                refused: Some(told),
            }) => {
                let code = told
                    .code
                    .and_then(Code::find)
                    .unwrap_or(code::AGENT_DISCONNECTED);
                Err(Refusal::new(code, told.message))
            }
            Err(error) => {
                tracing::warn!(node = address, %error, "a node failed to forward a command to its agent");
                let why = "The node that the agent is connected to is unreachable.";
                Err(Refusal::new(code::AGENT_DISCONNECTED, why))
            }
        }
    }
}

async fn converse(session: &Session, peer_call: &PeerCall) -> io::Result<Done> {
    let first = wire::call(StreamType::ERRAND, peer_call);
    let mut stream = session.open(first).map_err(io::Error::other)?;
    let reply = call::request(&mut stream, ReadDeadline::AGENT).await;
    Ok(serde_json::from_value(reply.map_err(io::Error::other)?)?)
}

/// Does what another node asks for, and says what came of it.
pub(super) async fn run(mut stream: Stream, peer_service: &dyn PeerService) {
    let peer_call = call::request(&mut stream, ReadDeadline::AGENT).await;
    let peer_call = peer_call
        .ok()
        .and_then(|peer_call| serde_json::from_value(peer_call).ok());
    let Some(peer_call) = peer_call else { return };
    let refused = peer_service
        .run(peer_call)
        .await
        .err()
        .map(|refusal| PeerRefusal {
            code: refusal.code.map(Code::number),
            message: refusal.message.into_owned(),
        });
    call::answer(stream, &wire::reply(&Done { refused })).await;
}
