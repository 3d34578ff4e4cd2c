//! The protocol handler of one client. A client authenticates with a key, requests one forward, and sends one
//! command.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_base::{Code, Refusal, code};
use culvert_tunnel::server::{
    About, AgentAuthRequest, EndpointRequest, InProcessAgent, Proof, Server, Transport,
};
use culvert_tunnel::wire::{self, BindRequest};
use russh::keys::{Certificate, HashAlg};
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet, Pty};
use tokio::sync::mpsc;

use crate::ClientKeyType;
use crate::cancellable::ClientName;
use crate::certificate;
use crate::command::{self, Forward, ParsedCommand};
use crate::held::ChannelBuffers;

/// The port in the reply to a client that requested any port, if no TCP endpoint can be created. The value does not
/// matter for the protocol: the client identifies its forward by this number.
const ANY_PORT: u16 = 443;
/// Codes for an unknown key; the client may offer another one.
const UNKNOWN_KEY: [u16; 2] = [107, 1102];
/// Maximum number of keys that a client may offer.
const KEYS_MAX: usize = 8;
/// Public keys, and keyboard-interactive to tell a client why none of its keys is accepted.
pub(crate) const METHODS: [MethodKind; 2] =
    [MethodKind::PublicKey, MethodKind::KeyboardInteractive];
/// Number of authentication attempts after which the library disconnects: two for each key, because certificates come
/// with their keys, and some more.
pub(crate) const ATTEMPTS_MAX: usize = 2 * KEYS_MAX + 4;
/// Window of a channel.
pub(crate) const WINDOW_BYTES: u32 = 512 << 10;
/// Ctrl+C in a terminal.
const INTERRUPT: u8 = 3;
/// The exit status that shells report for a command that Ctrl+C ended.
const INTERRUPTED: u32 = 130;

/// A message to the task of the connection.
#[derive(Debug)]
pub(crate) enum ConnectionCommand {
    /// The client is authenticated.
    Welcome(Arc<InProcessAgent>),
    /// Connections to its endpoint go to the forward with this host and port.
    Serving(String, u32),
    /// The client is admitted only to receive an error.
    Refused(Refusal),
    /// The command has ended.
    Over,
}

/// The handler of one client.
pub(crate) struct ConnectionHandler {
    pub(crate) server: Arc<Server>,
    /// The types of keys that are accepted.
    pub(crate) client_keys: Arc<[ClientKeyType]>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) name: ClientName,
    pub(crate) steps: mpsc::Sender<ConnectionCommand>,
    pub(crate) held: ChannelBuffers,
    pub(crate) user: String,
    pub(crate) agent: Option<Arc<InProcessAgent>>,
    /// The error that the client receives on its channel.
    pub(crate) refused: Option<Refusal>,
    /// Number of keys that the client has offered.
    pub(crate) n_keys: usize,
    /// An error about one of the keys that is more specific than an unknown key.
    pub(crate) remark: Option<Refusal>,
    /// The command of a certificate, which replaces the client's.
    pub(crate) forced: Option<String>,
    pub(crate) forward: Option<Forward>,
    /// The port in the reply to a client that requested any port.
    pub(crate) announced_port: Option<u16>,
    pub(crate) has_too_many_forwards: bool,
    pub(crate) channel: Option<ChannelId>,
    /// The channel of a second command on this connection. It receives an error.
    pub(crate) other: Option<ChannelId>,
    pub(crate) has_terminal: bool,
    pub(crate) has_asked: bool,
}

impl ConnectionHandler {
    /// The handler of a client at `peer` that has connected to `local`.
    pub(crate) fn new(
        server: Arc<Server>,
        client_keys: Arc<[ClientKeyType]>,
        (peer, local): (SocketAddr, SocketAddr),
        name: ClientName,
        steps: mpsc::Sender<ConnectionCommand>,
        held: ChannelBuffers,
    ) -> Self {
        Self {
            server,
            client_keys,
            peer,
            local,
            name,
            steps,
            held,
            user: String::new(),
            agent: None,
            refused: None,
            n_keys: 0,
            remark: None,
            forced: None,
            forward: None,
            announced_port: None,
            has_too_many_forwards: false,
            channel: None,
            other: None,
            has_terminal: false,
            has_asked: false,
        }
    }

    /// Sends a message to the connection's task.
    async fn step(&self, step: ConnectionCommand) {
        self.steps.send(step).await.ok();
    }

    async fn run(
        &mut self,
        channel: ChannelId,
        text: &str,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        if Some(channel) == self.other {
            session.channel_success(channel)?;
            // A later second command gets the same error.
            self.other = None;
            let refusal = Refusal::of(code::SSH_SECOND_SESSION);
            return say_no(channel, &refusal, session);
        }
        if Some(channel) != self.channel || std::mem::replace(&mut self.has_asked, true) {
            return session.channel_failure(channel);
        }
        session.channel_success(channel)?;
        let forced = self.forced.take();
        match self.serve(forced.as_deref().unwrap_or(text)).await {
            Ok(Said::Endpoint(text)) => session.data(channel, text.into_bytes()),
            Ok(Said::Help(text)) => {
                session.data(channel, lines(&text).into_bytes())?;
                self.end(channel, 0, session).await
            }
            Err(refusal) => {
                say_no(channel, &refusal, session)?;
                self.step(ConnectionCommand::Over).await;
                Ok(())
            }
        }
    }

    async fn end(
        &self,
        channel: ChannelId,
        status: u32,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        close(channel, status, session)?;
        self.step(ConnectionCommand::Over).await;
        Ok(())
    }

    /// Authorizes a client that has proved possession of its key.
    async fn introduce(&mut self, proof: Proof) -> Auth {
        let hello = AgentAuthRequest {
            proof,
            transport: Transport::Ssh,
            former: None,
            about: About {
                user_agent: self.name.get(),
                ..About::default()
            },
            peer: self.peer,
            local: self.local,
            server_name: None,
        };
        match self.server.authorize(hello).await {
            Ok(grant) => {
                let text = |code: Code| wire::error_text(&Refusal::of(code));
                let restart = text(code::SSH_RESTART_UNSUPPORTED);
                let update = text(code::SSH_UPDATE_UNSUPPORTED);
                let agent = Arc::new(self.server.welcome(grant, &restart, &update));
                self.agent = Some(Arc::clone(&agent));
                self.step(ConnectionCommand::Welcome(agent)).await;
                Auth::Accept
            }
            Err(refusal) => match refusal.code {
                Some(code) if !UNKNOWN_KEY.contains(&code.number()) => self.let_in(refusal).await,
                _ => self.reject(refusal),
            },
        }
    }

    /// Admits a client only to show it an error: SSH cannot explain a failed authentication.
    async fn let_in(&mut self, refusal: Refusal) -> Auth {
        self.refused = Some(refusal.clone());
        self.step(ConnectionCommand::Refused(refusal)).await;
        Auth::Accept
    }

    /// Rejects a key. The client may offer another one until it reaches the limit.
    fn reject(&mut self, why: Refusal) -> Auth {
        if why.message != Refusal::of(code::SSH_KEY_NOT_REGISTERED).message {
            self.remark = Some(why);
        }
        let methods = if self.n_keys <= KEYS_MAX {
            &METHODS[..]
        } else {
            &METHODS[1..]
        };
        Auth::Reject {
            proceed_with_methods: Some(MethodSet::from(methods)),
            partial_success: false,
        }
    }

    /// Creates the endpoint that the command requests.
    async fn serve(&self, text: &str) -> Result<Said, Refusal> {
        if let Some(refusal) = &self.refused {
            return Err(refusal.clone());
        }
        if self.has_too_many_forwards {
            return Err(Refusal::of(code::SSH_FORWARD_REPEATED));
        }
        let none = Forward {
            host: String::new(),
            port: 0,
        };
        let asked = command::read(&self.user, self.forward.as_ref().unwrap_or(&none), text)?;
        let request = match asked {
            ParsedCommand::Help(text) => return Ok(Said::Help(text)),
            ParsedCommand::Endpoint(request) => *request,
        };
        let (Some(forward), Some(agent)) = (&self.forward, &self.agent) else {
            return Err(Refusal::of(code::SSH_FORWARD_MISSING));
        };
        let announced = self.announced_port.map_or(forward.port, u32::from);
        self.step(ConnectionCommand::Serving(forward.host.clone(), announced))
            .await;
        let mut wanted = endpoint_request(request)?;
        wanted.tcp_port = self.announced_port;
        let binding = agent.bind(&wanted).await?;
        let grant = agent.grant();
        let plan = match &grant.plan_name[..] {
            "" => String::new(),
            plan => format!(" (Plan: {plan})"),
        };
        // The reply was sent before the command was known, and another endpoint may have taken its port meanwhile.
        let port = match forward.port {
            0 => command::port_of(&binding.url).to_owned(),
            _ => String::new(),
        };
        let mut text = String::from("\nculvert (via SSH) (Ctrl+C to quit)\n\n");
        for (what, value) in [
            ("Account", format!("{}{plan}", grant.account_name)),
            ("Region", self.server.region().to_owned()),
            ("Forwarding", binding.url),
            ("Port", port),
        ] {
            if !value.is_empty() {
                text.push_str(&format!("{what:<12}{value}\n"));
            }
        }
        Ok(Said::Endpoint(lines(&text)))
    }
}

/// Writes an error to the channel of a command and ends it.
fn say_no(
    channel: ChannelId,
    refusal: &Refusal,
    session: &mut Session,
) -> Result<(), russh::Error> {
    let text = lines(&wire::error_text(refusal).replace("\r\n", "\n"));
    session.extended_data(channel, 1, text.into_bytes())?;
    close(channel, 1, session)
}

fn close(channel: ChannelId, status: u32, session: &mut Session) -> Result<(), russh::Error> {
    session.exit_status_request(channel, status)?;
    session.eof(channel)?;
    session.close(channel)
}

/// The text for the client.
enum Said {
    Endpoint(String),
    Help(String),
}

/// Converts line ends, because the terminals of clients are in raw mode.
fn lines(text: &str) -> String {
    text.replace('\n', "\r\n")
}

fn endpoint_request(request: BindRequest) -> Result<EndpointRequest, Refusal> {
    let options = request
        .options()
        .map_err(|_| Refusal::of(code::BIND_MALFORMED))?;
    Ok(EndpointRequest {
        proto: request.proto,
        forwards_to: request.forwards_to,
        options,
        metadata: request.extra.metadata,
        bindings: request.extra.bindings,
        pooling_enabled: request.extra.pooling_enabled,
        name: request.extra.name,
        description: request.extra.description,
        ..EndpointRequest::default()
    })
}

impl Handler for ConnectionHandler {
    type Error = russh::Error;

    /// Applies to the next message of any channel that uses up its window.
    fn adjust_window(&mut self, _: ChannelId, _: u32) -> u32 {
        self.held.window(WINDOW_BYTES)
    }

    async fn auth_publickey_offered(
        &mut self,
        _: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, russh::Error> {
        self.n_keys += 1;
        if self.n_keys > KEYS_MAX {
            return Ok(self.reject(Refusal::of(code::SSH_TOO_MANY_KEYS_OFFERED)));
        }
        if offer.algorithm.clone().is_rsa() {
            // RSA signatures cannot be verified here.
            let why = "RSA keys are not supported; register an Ed25519 or ECDSA key.";
            return Ok(self.reject(Refusal::new(code::SSH_KEY_NOT_REGISTERED, why)));
        }
        let kind = ClientKeyType::of(offer.algorithm);
        if !kind.is_some_and(|kind| self.client_keys.contains(&kind)) {
            let why = format!(
                "Keys of type `{}` are not accepted here; register a key of another type.",
                offer.algorithm.as_str()
            );
            return Ok(self.reject(Refusal::new(code::SSH_KEY_NOT_REGISTERED, why)));
        }
        Ok(Auth::Accept)
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, russh::Error> {
        self.user = user.to_owned();
        let fingerprint = key.public_key.fingerprint(HashAlg::Sha256).to_string();
        Ok(self.introduce(Proof::PublicKey(fingerprint)).await)
    }

    async fn auth_openssh_certificate(
        &mut self,
        user: &str,
        certificate: &Certificate,
    ) -> Result<Auth, russh::Error> {
        self.user = user.to_owned();
        match certificate::read(certificate, user, self.peer.ip()) {
            Ok(shown) => {
                let auth = self.introduce(shown.proof).await;
                self.forced = shown.command.filter(|_| self.agent.is_some());
                Ok(auth)
            }
            Err(refusal) => Ok(self.reject(refusal)),
        }
    }

    /// Clients try this method when they have no further key.
    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        user: &str,
        _: &str,
        _: Option<Response<'a>>,
    ) -> Result<Auth, russh::Error> {
        self.user = user.to_owned();
        let remark = self.remark.take();
        let refusal = match self.n_keys {
            0 => Refusal::of(code::SSH_NO_KEY_OFFERED),
            n if n > KEYS_MAX => Refusal::of(code::SSH_TOO_MANY_KEYS_OFFERED),
            _ => remark.unwrap_or_else(|| Refusal::of(code::SSH_KEY_NOT_REGISTERED)),
        };
        Ok(self.let_in(refusal).await)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        // One session runs the command. At most one more may be open at a time, to receive an error.
        let place = match (self.channel, self.other) {
            (None, _) => &mut self.channel,
            (Some(_), None) => &mut self.other,
            (Some(_), Some(_)) => {
                reply
                    .reject(ChannelOpenFailure::AdministrativelyProhibited)
                    .await;
                return Ok(());
            }
        };
        *place = Some(channel.id());
        reply.accept().await;
        Ok(())
    }

    async fn channel_close(
        &mut self,
        channel: ChannelId,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        if Some(channel) == self.other {
            self.other = None;
        }
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
            // The library replies before it reads the command, which decides the kind of endpoint, unless a certificate
            // has the command. Only TCP endpoints have ports that the server chooses.
            let forced = self.forced.as_deref();
            let fixed = forced.and_then(|forced| command::fixed_port(&self.user, forced));
            let announced = match (fixed, &self.agent) {
                (Some(fixed), _) => Some(fixed),
                (None, Some(agent)) => agent.next_tcp_port().await,
                (None, None) => None,
            };
            let announced = announced.unwrap_or(ANY_PORT);
            self.announced_port = Some(announced);
            *port = announced.into();
        }
        Ok(true)
    }
}
