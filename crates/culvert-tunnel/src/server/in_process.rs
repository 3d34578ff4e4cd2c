//! An agent that came by other means than the protocol of agents. It asks the same gate, serves the
//! same endpoints, and is ended by the same calls.
//!
//! What the server opens to it travels through a connection inside this process, so that to all
//! others it is an agent like any.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use culvert_base::Refusal;
use culvert_mux::{Limits, Side};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use super::authorizer::{AgentAuthRequest, Binding, EndReason, SessionEnd, SessionGrant, Wanted};
use super::bindings::SessionConnection;
use super::call::{self, ReadDeadline};
use super::command::Abilities;
use super::session::{Server, decided};
use crate::client::{header, relay};
use crate::driver::{self, Session, Stream};
use crate::wire::{self, AuthExtra, Outcome, ProxyHeader, StreamType};

/// Bytes on their way inside the process.
const PIPE_BYTES: usize = 128 << 10;
/// Connections of one guest at once: each may hold some hundred KiB on its way.
const STREAMS_MAX: usize = 128;

/// An agent that was let in.
#[derive(Debug)]
pub struct InProcessAgent {
    server: Arc<Server>,
    grant: Arc<SessionGrant>,
    leg: SessionConnection,
    /// The server's end.
    session: Session,
    /// The guest's end.
    own: Session,
    end_reason: Arc<OnceLock<EndReason>>,
    _drivers: JoinSet<()>,
}

/// What the server wants of a guest.
#[derive(Debug)]
pub enum Brought {
    /// A connection to one of its endpoints, for [`carry`].
    Connection(ProxyHeader, Stream),
    /// Its end.
    Stop,
}

impl Server {
    /// Asks the gate about somebody who has shown what it can show. A refusal is held back as long
    /// as its source has been refused too often.
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

    /// Takes in an agent that was admitted. What it cannot do at all is said in `restart` and
    /// `update`.
    pub fn welcome(
        self: &Arc<Self>,
        grant: SessionGrant,
        restart: &str,
        update: &str,
    ) -> InProcessAgent {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let limits = Limits {
            streams_max: STREAMS_MAX,
            ..Limits::for_ours()
        };
        let (session, driver) = driver::connect(ours, Side::Server, limits);
        let (own, own_driver) = driver::connect(theirs, Side::Client, Limits::for_ours());
        let mut drivers = JoinSet::new();
        drivers.spawn(async { drop(driver.run().await) });
        drivers.spawn(async { drop(own_driver.run().await) });
        let end_reason = Arc::new(OnceLock::new());
        let abilities = Abilities::of_guest(&AuthExtra {
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
    /// What it was granted.
    pub fn grant(&self) -> &SessionGrant {
        &self.grant
    }

    /// Asks for an endpoint. When this is done connections may come.
    pub async fn bind(&self, wanted: &Wanted) -> Result<Binding, Refusal> {
        let binding = decided(self.server.authorizer().bind(&self.grant, wanted)).await?;
        self.server.meters().bound.up();
        self.server
            .bindings()
            .bind(&binding.id, &self.leg, &self.session);
        Ok(binding)
    }

    /// The next thing that the server wants; `None` when somebody here has ended the session.
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
                // It was said before that the rest cannot be had.
                Some(_) | None => {}
            }
        }
    }

    /// Why somebody here ended the session, if that is so.
    pub fn end_reason(&self) -> Option<&EndReason> {
        self.end_reason.get()
    }

    /// Ends the session. If somebody here ended it before, that reason counts.
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

/// Carries a connection between its stream and wherever the guest has its other end, until both
/// directions have ended or one broke.
pub async fn carry<S>(stream: Stream, socket: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Who broke off knows it.
    relay(stream, Bytes::new(), socket, None, None).await.ok();
}

/// Ends a connection whose other end cannot be reached, without a byte: the server tells its client
/// what that means.
pub async fn decline(stream: Stream) {
    call::answer(stream, b"").await;
}
