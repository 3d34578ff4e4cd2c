//! Accepts connections of SSH clients, and forwards the connections of their endpoints to them.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Refusal, code};
use culvert_tunnel::driver::Stream;
use culvert_tunnel::server::{
    Brought, ConnectionLimits, EndReason, IN_PROCESS_STREAMS_MAX, InProcessAgent, Server,
    UnauthenticatedPermit, accept, carry, decline,
};
use culvert_tunnel::wire::{self, ProxyHeader};
use russh::keys::PrivateKey;
use russh::server::{Config, Handle, RunningSession};
use russh::{Disconnect, MethodSet, Preferred, SshId, cipher, compression, kex, mac};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cancellable::{CancellableSocket, ClientName};
use crate::connection::{
    ATTEMPTS_MAX, ConnectionCommand, ConnectionHandler, METHODS, WINDOW_BYTES,
};
use crate::held::{Buffered, ChannelBuffers};
use crate::{ClientKeyType, HostKey};

/// Time limit for authentication, in which the user may have to type a passphrase.
const AUTH_TIME: Duration = Duration::from_secs(60);
/// How long the server waits for the first byte before it sends its own identification.
const FIRST_BYTE_TIME: Duration = Duration::from_millis(200);
/// Time limit for the command and the forward request.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// Time limit for the client to disconnect after its command has ended.
const GOODBYE_TIME: Duration = Duration::from_secs(5);
/// Time limit for the client to connect to its local service.
const OPEN_TIME: Duration = Duration::from_secs(15);
/// Interval of keep-alive requests on an idle connection. After three without response it is closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of connections that wait for the forward request.
const EARLY_MAX: usize = 16;
/// Capacity of a channel's message queue.
const WAITING_MESSAGES: usize = 8;
/// The message to clients when the server stops. SSH clients do not reconnect on their own.
const STOPPING: &str = "server shutdown; connect again to reach the next one";
/// Expiry of a session without a limit.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The keys of a server, and those it accepts.
#[derive(Clone, Debug)]
pub struct SshKeys {
    /// In the order of preference, each of another type.
    pub host: Vec<HostKey>,
    /// The types that a client's key, or that of its certificate, may have.
    pub client: Vec<ClientKeyType>,
}

/// The listener for SSH clients.
#[derive(Debug)]
pub struct SshIngress {
    listener: TcpListener,
    config: Arc<Config>,
    client_keys: Arc<[ClientKeyType]>,
    server: Arc<Server>,
    limits: ConnectionLimits,
}

impl SshIngress {
    /// A server on `listener` with these keys.
    pub fn new(
        listener: TcpListener,
        keys: &SshKeys,
        server: Arc<Server>,
        limits: ConnectionLimits,
    ) -> Self {
        Self {
            listener,
            config: Arc::new(config(&keys.host)),
            client_keys: keys.client.as_slice().into(),
            server,
            limits,
        }
    }

    /// Serves clients until `stop` is cancelled. Then it closes connections and ends sessions. It closes the listener
    /// earlier, when the server is closing ([`Server::closing`]).
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            listener,
            config,
            client_keys,
            server,
            limits,
        } = self;
        let accepting = stop.child_token();
        let closing = async {
            tokio::select! {
                () = server.closing().cancelled() => accepting.cancel(),
                () = accepting.cancelled() => {}
            }
        };
        let serving = accept(
            &listener,
            limits,
            Some(server.meters()),
            &accepting,
            |socket, peer, permit| {
                let config = (Arc::clone(&config), Arc::clone(&client_keys));
                serve(
                    socket,
                    peer,
                    config,
                    Arc::clone(&server),
                    permit,
                    stop.clone(),
                )
            },
        );
        let (mut served, ()) = tokio::join!(serving, closing);
        drop(listener);
        while served.join_next().await.is_some() {}
    }
}

/// Algorithms without known weaknesses. Curve25519 alone does not resist quantum computers, but clients older than
/// OpenSSH 9.9 support nothing better. ChaCha20-Poly1305 is for clients such as Dropbear, which support neither
/// encrypt-then-MAC nor AES-GCM; strict key exchange mitigates its weakness (CVE-2023-48795).
fn config(keys: &[HostKey]) -> Config {
    let keys: Vec<_> = keys.iter().map(|key| key.private().clone()).collect();
    let algorithms = keys.iter().map(PrivateKey::algorithm).collect();
    Config {
        server_id: SshId::Standard(Cow::Borrowed("SSH-2.0-culvert")),
        methods: MethodSet::from(&METHODS[..]),
        auth_rejection_time: Duration::from_millis(100),
        auth_rejection_time_initial: Some(Duration::ZERO),
        preferred: Preferred {
            kex: Cow::Borrowed(&[
                kex::MLKEM768X25519_SHA256,
                kex::CURVE25519,
                kex::CURVE25519_PRE_RFC_8731,
                kex::EXTENSION_SUPPORT_AS_SERVER,
                kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
            ]),
            key: Cow::Owned(algorithms),
            cipher: Cow::Borrowed(&[
                cipher::AES_256_GCM,
                cipher::AES_128_GCM,
                cipher::CHACHA20_POLY1305,
                cipher::AES_256_CTR,
                cipher::AES_128_CTR,
            ]),
            mac: Cow::Borrowed(&[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM]),
            compression: Cow::Borrowed(&[compression::NONE]),
            ..Preferred::default()
        },
        keys,
        window_size: WINDOW_BYTES,
        channel_buffer_size: WAITING_MESSAGES,
        max_auth_attempts: ATTEMPTS_MAX,
        inactivity_timeout: Some(AUTH_TIME),
        keepalive_interval: Some(KEEPALIVE_INTERVAL),
        nodelay: true,
        ..Config::default()
    }
}

/// The forward of a client, to which the connections of its endpoint go.
#[derive(Clone)]
struct ForwardTarget {
    handle: Handle,
    address: String,
    port: u32,
    held: ChannelBuffers,
    /// One permit for each channel, and for each that the client may still open.
    channels: Arc<Semaphore>,
}

impl ForwardTarget {
    fn new(handle: Handle, address: String, port: u32, held: ChannelBuffers) -> Self {
        Self {
            handle,
            address,
            port,
            held,
            channels: Arc::new(Semaphore::new(IN_PROCESS_STREAMS_MAX)),
        }
    }
}

/// Serves one connection until it ends.
async fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    (config, client_keys): (Arc<Config>, Arc<[ClientKeyType]>),
    server: Arc<Server>,
    permit: UnauthenticatedPermit,
    stop: CancellationToken,
) {
    let Ok(local) = socket.local_addr() else {
        return;
    };
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let (name, cut) = (ClientName::default(), CancellationToken::new());
    // Returning from this function ends the protocol's task.
    let _cut = cut.clone().drop_guard();
    let (steps, mut heard) = mpsc::channel(4);
    let held = ChannelBuffers::default();
    let ends = (peer, local);
    let visit =
        ConnectionHandler::new(server, client_keys, ends, name.clone(), steps, held.clone());
    let began = Instant::now();
    let greeting = greet(socket, config, visit, (name, &cut), &permit, &stop);
    let Some(running) = greeting.await else {
        return;
    };
    let handle = running.handle();
    tokio::pin!(running);
    let mut permit = Some(permit);
    let mut agent: Option<Arc<InProcessAgent>> = None;
    let mut refused = None;
    let mut serving: Option<ForwardTarget> = None;
    let (mut deadline, mut is_over, mut has_ended) = (began + AUTH_TIME, false, false);
    let (bringing, mut brought) = mpsc::channel(EARLY_MAX);
    // Connections that arrived before the forward was known.
    let mut early = Vec::new();
    let mut carried = JoinSet::new();
    let reason = loop {
        tokio::select! {
            ended = &mut running => {
                has_ended = true;
                break how_it_ended(ended);
            }
            Some(step) = heard.recv() => match step {
                ConnectionCommand::Welcome(welcome) => {
                    drop(permit.take());
                    carried.spawn(bring(Arc::clone(&welcome), bringing.clone()));
                    agent = Some(welcome);
                    deadline = Instant::now() + COMMAND_TIME;
                }
                ConnectionCommand::Serving(address, port) => {
                    let target = ForwardTarget::new(handle.clone(), address, port, held.clone());
                    for (header, stream) in early.drain(..) {
                        carried.spawn(forward(target.clone(), header, stream));
                    }
                    serving = Some(target);
                    let duration = agent.as_ref().and_then(|agent| agent.grant().duration);
                    deadline = began + duration.unwrap_or(FOR_EVER);
                }
                ConnectionCommand::Refused(refusal) => {
                    refused = Some(refusal);
                    deadline = Instant::now() + COMMAND_TIME;
                }
                ConnectionCommand::Over => {
                    is_over = true;
                    deadline = Instant::now() + GOODBYE_TIME;
                }
            },
            Some(brought) = brought.recv() => match (brought, &serving) {
                (Some(Brought::Connection(header, stream)), Some(target)) => {
                    carried.spawn(forward(target.clone(), header, stream));
                }
                (Some(Brought::Connection(header, stream)), None) => {
                    if early.len() < EARLY_MAX {
                        early.push((header, stream));
                    }
                }
                (Some(Brought::Stop), _) => {
                    goodbye(&handle, "stopped through the API".into()).await;
                    break EndReason::Closed;
                }
                (None, _) => {
                    let end_reason = agent.as_ref().and_then(|agent| agent.end_reason().cloned());
                    let end_reason = end_reason.unwrap_or(EndReason::Closed);
                    goodbye(&handle, end_reason.to_string()).await;
                    break end_reason;
                }
            },
            Some(_) = carried.join_next() => {}
            () = displaced(permit.as_ref()) => {
                cut.cancel();
                break EndReason::Closed;
            }
            () = tokio::time::sleep_until(deadline) => {
                let refused = refused.filter(|_| !is_over);
                let is_known = agent.is_some() && !is_over;
                break out_of_time(&handle, refused, is_known, serving.is_some()).await;
            }
            () = stop.cancelled() => {
                goodbye(&handle, STOPPING.into()).await;
                break EndReason::shutdown();
            }
        }
    };
    // The protocol's task sends the last message, unless the client does not read it in time.
    if !has_ended
        && tokio::time::timeout(GOODBYE_TIME, &mut running)
            .await
            .is_err()
    {
        cut.cancel();
    }
    drop(carried);
    // The client may have been authenticated just now.
    if let Some(agent) = last_welcome(&mut heard).or(agent) {
        agent.leave(reason).await;
    }
}

/// Ends when another connection takes the place of one that is not authenticated; never without a permit.
async fn displaced(permit: Option<&UnauthenticatedPermit>) {
    match permit {
        Some(permit) => permit.displaced().await,
        None => std::future::pending().await,
    }
}

/// The agent of the last welcome among the steps that wait.
fn last_welcome(steps: &mut mpsc::Receiver<ConnectionCommand>) -> Option<Arc<InProcessAgent>> {
    let mut agent = None;
    while let Ok(step) = steps.try_recv() {
        if let ConnectionCommand::Welcome(welcome) = step {
            agent = Some(welcome);
        }
    }
    agent
}

/// Exchanges identifications with a client, and begins the protocol; `None` if the connection ends before.
async fn greet(
    socket: TcpStream,
    config: Arc<Config>,
    visit: ConnectionHandler,
    (name, cut): (ClientName, &CancellationToken),
    permit: &UnauthenticatedPermit,
    stop: &CancellationToken,
) -> Option<RunningSession<ConnectionHandler>> {
    // Some clients wait for the server's identification before they send their own.
    let beginning = tokio::time::timeout(FIRST_BYTE_TIME, permit.begins(&socket));
    tokio::select! {
        begun = beginning => drop(begun),
        () = permit.displaced() => return None,
        () = stop.cancelled() => return None,
    }
    let line = CancellableSocket::new(socket, name, cut.clone());
    let greeting = russh::server::run_stream(config, line, visit);
    tokio::select! {
        greeted = tokio::time::timeout(AUTH_TIME, greeting) => match greeted {
            Ok(Ok(running)) => Some(running),
            Ok(Err(_)) | Err(_) => None,
        },
        () = permit.displaced() => None,
        () = stop.cancelled() => None,
    }
}

/// Says why the time of a client is over, and returns it. `is_known` is false before its authentication and after its end.
async fn out_of_time(
    handle: &Handle,
    refused: Option<Refusal>,
    is_known: bool,
    is_serving: bool,
) -> EndReason {
    if let Some(refusal) = refused {
        goodbye(handle, one_line(&refusal)).await;
        return EndReason::Closed;
    }
    if !is_known {
        return EndReason::Closed;
    }
    if is_serving {
        goodbye(handle, EndReason::Expired.to_string()).await;
        return EndReason::Expired;
    }
    // The client sent no command.
    let refusal = Refusal::of(code::SSH_COMMAND_TIMED_OUT);
    goodbye(handle, one_line(&refusal)).await;
    EndReason::Stopped(refusal.message.into_owned())
}

/// Passes on the connections of the endpoint, and the end of the session. This is a separate task because cancelling
/// `accept` while it reads a connection's header would lose the connection.
async fn bring(agent: Arc<InProcessAgent>, bringing: mpsc::Sender<Option<Brought>>) {
    loop {
        let brought = agent.accept().await;
        let is_last = brought.is_none();
        if bringing.send(brought).await.is_err() || is_last {
            return;
        }
    }
}

async fn goodbye(handle: &Handle, why: String) {
    let said = handle.disconnect(Disconnect::ByApplication, why, String::new());
    // A closed connection needs no message.
    tokio::time::timeout(GOODBYE_TIME, said).await.ok();
}

fn one_line(refusal: &Refusal) -> String {
    wire::error_text(refusal).replace("\r\n", " ")
}

fn how_it_ended(ended: Result<(), russh::Error>) -> EndReason {
    match ended {
        Ok(()) | Err(russh::Error::HUP | russh::Error::Disconnect) => EndReason::Closed,
        Err(russh::Error::KeepaliveTimeout | russh::Error::InactivityTimeout) => EndReason::Silent,
        Err(russh::Error::IO(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            EndReason::Closed
        }
        Err(error) => EndReason::Lost(error.to_string()),
    }
}

/// Forwards one connection to the client, for as long as it has one of the channels that the client may have.
async fn forward(to: ForwardTarget, header: ProxyHeader, stream: Stream) {
    let until = Instant::now() + OPEN_TIME;
    let Ok(Ok(_channel)) = tokio::time::timeout_at(until, to.channels.acquire()).await else {
        return decline(stream).await;
    };
    let client = header.client_addr.parse::<SocketAddr>().ok();
    let (from, from_port) = match client {
        Some(client) => (client.ip().to_string(), u32::from(client.port())),
        None => ("0.0.0.0".to_owned(), 0),
    };
    // Before the channel opens: the client's answer may be behind data of a stalled channel, which is not alone then.
    let inbox = to.held.channel();
    let opening = to
        .handle
        .channel_open_forwarded_tcpip(to.address, to.port, from, from_port);
    tokio::pin!(opening);
    match tokio::time::timeout_at(until, &mut opening).await {
        Ok(Ok(channel)) => {
            let (reader, writer) = tokio::io::split(channel.into_stream());
            let (cut, filling) = (inbox.cut(), inbox.filling(reader));
            let carrying = carry(stream, Buffered { inbox, writer });
            let filling = async {
                filling.await;
                std::future::pending().await
            };
            tokio::select! {
                () = carrying => {}
                () = filling => {}
                () = cut.cancelled() => {}
            }
        }
        // The client cannot reach its local service.
        Ok(Err(_)) => decline(stream).await,
        Err(_) => {
            drop(inbox);
            decline(stream).await;
            // It may still reach it. Without a close, the channel and the connection to the service would stay.
            if let Ok(channel) = opening.await {
                channel.close().await.ok();
            }
        }
    }
}
