//! What one client may do on its connection: show a key, ask for one forward, and give one command.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_base::{Code, Refusal};
use culvert_tunnel::server::{About, Guest, Hello, Proof, Server, Transport, Wanted};
use culvert_tunnel::wire::{self, BindRequest};
use russh::keys::HashAlg;
use russh::server::{Auth, ChannelOpenHandle, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty};
use tokio::sync::mpsc;

use crate::command::{self, Asked, Forward};
use crate::line::ClientName;

/// The port that a client is told when it asked for any. Which it is does not matter: the URL says
/// where the endpoint is, and the client knows its forward by this number.
const ANY_PORT: u32 = 443;
/// Refusals that mean that the key is not known; the client may have another.
const UNKNOWN_KEY: [u16; 2] = [107, 1102];
/// What Ctrl+C is on a terminal.
const INTERRUPT: u8 = 3;
/// What a shell says of a command that Ctrl+C ended.
const INTERRUPTED: u32 = 130;

/// What the connection's task has to know.
#[derive(Debug)]
pub(crate) enum Step {
    /// The client was let in.
    Welcome(Arc<Guest>),
    /// Connections to its endpoint go to the forward that it knows by this address and port.
    Serving(String, u32),
    /// The command is over.
    Over,
}

/// One client.
pub(crate) struct Visit {
    pub(crate) server: Arc<Server>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) name: ClientName,
    pub(crate) steps: mpsc::Sender<Step>,
    pub(crate) user: String,
    pub(crate) guest: Option<Arc<Guest>>,
    /// Why the client was not let in although its key is known; it hears that on its channel.
    pub(crate) refused: Option<Refusal>,
    pub(crate) forward: Option<Forward>,
    pub(crate) has_too_many_forwards: bool,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) has_terminal: bool,
    pub(crate) has_asked: bool,
}

impl Visit {
    /// Tells the connection's task, which is never more than a few steps behind.
    async fn step(&self, step: Step) {
        self.steps.send(step).await.ok();
    }

    async fn run(
        &mut self,
        channel: ChannelId,
        text: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        if Some(channel) != self.channel || std::mem::replace(&mut self.has_asked, true) {
            return session.channel_failure(channel);
        }
        session.channel_success(channel)?;
        match self.serve(text).await {
            Ok(Said::Endpoint(text)) => session.data(channel, text.into_bytes()),
            Ok(Said::Help(text)) => {
                session.data(channel, lines(&text).into_bytes())?;
                self.end(channel, 0, session).await
            }
            Err(refusal) => {
                let text = lines(&wire::error_text(&refusal).replace("\r\n", "\n"));
                session.extended_data(channel, 1, text.into_bytes())?;
                self.end(channel, 1, session).await
            }
        }
    }

    async fn end(
        &self,
        channel: ChannelId,
        status: u32,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        session.exit_status_request(channel, status)?;
        session.eof(channel)?;
        session.close(channel)?;
        self.step(Step::Over).await;
        Ok(())
    }

    /// Brings the endpoint about that the command asks for.
    async fn serve(&self, text: &str) -> Result<Said, Refusal> {
        if let Some(refusal) = &self.refused {
            return Err(refusal.clone());
        }
        if self.has_too_many_forwards {
            return Err(Refusal::of(const { Code::new(1105) }));
        }
        let none = Forward {
            host: String::new(),
            port: 0,
        };
        let asked = command::read(&self.user, self.forward.as_ref().unwrap_or(&none), text)?;
        let request = match asked {
            Asked::Help(text) => return Ok(Said::Help(text)),
            Asked::Endpoint(request) => *request,
        };
        let (Some(forward), Some(guest)) = (&self.forward, &self.guest) else {
            return Err(Refusal::of(const { Code::new(1112) }));
        };
        let port = if forward.port == 0 {
            ANY_PORT
        } else {
            forward.port
        };
        self.step(Step::Serving(forward.host.clone(), port)).await;
        let binding = guest.bind(&wanted(request)?).await?;
        let grant = guest.grant();
        Ok(Said::Endpoint(lines(&format!(
            "\nculvert (via SSH) (Ctrl+C to quit)\n\nAccount     {} (Plan: {})\nRegion      {}\nForwarding  {}\n",
            grant.account_name,
            grant.plan_name,
            self.server.region(),
            binding.url
        ))))
    }
}

/// What the client is told.
enum Said {
    Endpoint(String),
    Help(String),
}

/// Terminals of clients are raw.
fn lines(text: &str) -> String {
    text.replace('\n', "\r\n")
}

fn wanted(request: BindRequest) -> Result<Wanted, Refusal> {
    let options = request
        .options()
        .map_err(|_| Refusal::of(const { Code::new(301) }))?;
    Ok(Wanted {
        proto: request.proto,
        forwards_to: request.forwards_to,
        options,
        metadata: request.extra.metadata,
        bindings: request.extra.bindings,
        pooling_enabled: request.extra.pooling_enabled,
        name: request.extra.name,
        description: request.extra.description,
        ..Wanted::default()
    })
}

impl Handler for Visit {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        self.user = user.to_owned();
        let fingerprint = key.public_key.fingerprint(HashAlg::Sha256).to_string();
        let name = self.name.get();
        let hello = Hello {
            proof: Proof::PublicKey(fingerprint),
            transport: Transport::Ssh,
            former: None,
            about: About {
                user_agent: name,
                ..About::default()
            },
            peer: self.peer,
            local: self.local,
            server_name: None,
        };
        match self.server.admit(hello).await {
            Ok(grant) => {
                let text = |code: Code| wire::error_text(&Refusal::of(code));
                let restart = text(const { Code::new(1122) });
                let update = text(const { Code::new(1121) });
                let guest = Arc::new(self.server.welcome(grant, &restart, &update));
                self.guest = Some(Arc::clone(&guest));
                self.step(Step::Welcome(guest)).await;
                Ok(Auth::Accept)
            }
            Err(refusal) => match refusal.code {
                Some(code) if !UNKNOWN_KEY.contains(&code.number()) => {
                    self.refused = Some(refusal);
                    Ok(Auth::Accept)
                }
                _ => Ok(Auth::reject()),
            },
        }
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        if self.channel.is_some() {
            reply
                .reject(ChannelOpenFailure::AdministrativelyProhibited)
                .await;
            return Ok(());
        }
        self.channel = Some(channel.id());
        reply.accept().await;
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _: &str,
        _: u32,
        _: u32,
        _: u32,
        _: u32,
        _: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.has_terminal = true;
        session.channel_success(channel)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        let text = String::from_utf8_lossy(data).into_owned();
        self.run(channel, &text, session).await
    }

    async fn shell_request(
        &mut self,
        channel: ChannelId,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        self.run(channel, "", session).await
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        if Some(channel) == self.channel && self.has_terminal && data.contains(&INTERRUPT) {
            self.end(channel, INTERRUPTED, session).await?;
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        port: &mut u32,
        _: &mut Session,
    ) -> Result<bool, russh::Error> {
        if self.forward.is_some() {
            self.has_too_many_forwards = true;
            return Ok(false);
        }
        self.forward = Some(Forward {
            host: address.to_owned(),
            port: *port,
        });
        if *port == 0 {
            *port = ANY_PORT;
        }
        Ok(true)
    }
}
