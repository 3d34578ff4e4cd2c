//! An agent that does not use the agent protocol, such as an SSH client. It uses the same authorizer,
//! endpoints and calls that end sessions.
//!
//! The server opens streams to it through a connection inside this process, so the rest of the server treats
//! it as any other agent.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use culvert_base::Refusal;
use culvert_mux::{Limits, Side};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use super::authorizer::{
    AgentAuthRequest, Binding, EndReason, EndpointRequest, SessionEnd, SessionGrant,
};
use super::bindings::SessionConnection;
use super::call::{self, ReadDeadline};
use super::command::Abilities;
use super::session::{Server, decided};
use crate::client::{header, relay};
use crate::driver::{self, Session, Stream};
use crate::wire::{self, AuthExtra, Outcome, ProxyHeader, StreamType};

/// Size of the pipe inside the process, in bytes.
const PIPE_BYTES: usize = 128 << 10;
/// Maximum number of concurrent connections of one in-process agent; each may hold some hundred KiB in
/// transit.
pub const IN_PROCESS_STREAMS_MAX: usize = 128;

/// A connected in-process agent.
#[derive(Debug)]
pub struct InProcessAgent {
    server: Arc<Server>,
    grant: Arc<SessionGrant>,
    leg: SessionConnection,
    /// The server's side.
    session: Session,
    /// The agent's side.
    own: Session,
    end_reason: Arc<OnceLock<EndReason>>,
    _drivers: JoinSet<()>,
}

/// A request of the server to an in-process agent.
#[derive(Debug)]
pub enum Brought {
    /// Forwards a connection of one of its endpoints; see [`carry`].
    Connection(ProxyHeader, Stream),
    /// Stop.
    Stop,
}

impl Server {
    /// Asks the authorizer about an agent with these credentials. If its source was refused too often, the
    /// refusal is delayed.
    pub async fn authorize(&self, hello: AgentAuthRequest) -> Result<SessionGrant, Refusal> {
        let source = hello.peer.ip();
        match decided(self.authorizer().authorize(hello)).await {
            Ok(grant) => {
                self.meters().admitted.up();
                Ok(grant)
            }
            Err(refusal) => {
                self.meters().refused.up();
                let wait = self.pace().wait(source, std::time::Instant::now());
                tokio::time::sleep(wait).await;
                Err(refusal)
            }
        }
    }

    /// Connects an authenticated agent. `restart` and `update` give the reasons why it does not support these
    /// commands.
    pub fn welcome(
        self: &Arc<Self>,
        grant: SessionGrant,
        restart: &str,
        update: &str,
    ) -> InProcessAgent {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let limits = Limits {
            streams_max: IN_PROCESS_STREAMS_MAX,
            ..Limits::for_ours()
        };
        let (session, driver) = driver::connect(ours, Side::Server, limits);
        let (own, own_driver) = driver::connect(theirs, Side::Client, Limits::for_ours());
        let mut drivers = JoinSet::new();
        drivers.spawn(async { drop(driver.run().await) });
        drivers.spawn(async { drop(own_driver.run().await) });
        let end_reason = Arc::new(OnceLock::new());
        let abilities = Abilities::of_in_process(&AuthExtra {
            stop_unsupported: Some(String::new()),
            restart_unsupported: Some(restart.to_owned()),
            update_unsupported: Some(update.to_owned()),
            ..AuthExtra::default()
        });
        let leg = self.bindings().enter(
            &grant.session_id,
            0,
            session.clone(),
            Arc::clone(&end_reason),
            abilities,
        );
        InProcessAgent {
            server: Arc::clone(self),
            grant: Arc::new(grant),
            leg,
            session,
            own,
            end_reason,
            _drivers: drivers,
        }
    }
}

impl InProcessAgent {
    /// The session's grant.
    pub fn grant(&self) -> &SessionGrant {
        &self.grant
    }

    /// The port that its next TCP endpoint will probably get.
    pub async fn next_tcp_port(&self) -> Option<u16> {
        self.server.authorizer().next_tcp_port(&self.grant).await
    }

    /// Requests an endpoint. Connections may arrive as soon as this returns.
    pub async fn bind(&self, wanted: &EndpointRequest) -> Result<Binding, Refusal> {
        let binding = decided(self.server.authorizer().bind(&self.grant, wanted)).await?;
        self.server.meters().bound.up();
        self.server
            .bindings()
            .bind(&binding.id, &self.leg, &self.session);
        Ok(binding)
    }

    /// The server's next request; `None` once the server has ended the session.
    pub async fn accept(&self) -> Option<Brought> {
        loop {
            let mut stream = self.own.accept().await?;
            match call::kind(&mut stream).await {
                Some(StreamType::PROXY) => {
                    if let Some(header) = header(&mut stream).await {
                        return Some(Brought::Connection(header, stream));
                    }
                }
                Some(StreamType::STOP) => {
                    let asked: Result<Value, _> =
                        call::request(&mut stream, ReadDeadline::AGENT).await;
                    if asked.is_ok() {
                        call::answer(stream, &wire::reply(&Outcome::default())).await;
                        return Some(Brought::Stop);
                    }
                }
                // The agent reported at sign-in that it does not support other commands.
                Some(_) | None => {}
            }
        }
    }

    /// Why the server ended the session, if it has.
    pub fn end_reason(&self) -> Option<&EndReason> {
        self.end_reason.get()
    }

    /// Ends the session. If the server ended it before, that reason is kept.
    pub async fn leave(&self, reason: EndReason) {
        self.session.hang_up();
        if self.server.bindings().leave(&self.leg) {
            let reason = self.end_reason.get().cloned().unwrap_or(reason);
            let grant = Arc::clone(&self.grant);
            let end = SessionEnd {
                grant,
                reason,
                may_return: false,
            };
            self.server.authorizer().ended(end).await;
        }
    }
}

/// Copies bytes between a stream and `socket` until both directions have ended or one fails.
pub async fn carry<S>(stream: Stream, socket: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Ignores errors: the side that aborted knows.
    relay(stream, Bytes::new(), socket, None, None).await.ok();
}

/// Closes a stream whose target is unreachable, without sending a byte: the server then responds to its
/// client.
pub async fn decline(stream: Stream) {
    call::answer(stream, b"").await;
}
