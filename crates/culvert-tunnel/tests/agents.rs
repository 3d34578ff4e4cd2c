//! The server against an unmodified published agent, and against a peer that sends exactly what a test needs.
//! TLS and sockets are real; the authorizer is a small one for these tests.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{BoxFuture, Refusal, code};
use culvert_mux::{Limits, Side};
use culvert_tunnel::driver::{self, Session, Stream};
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, Bindings, Command, CommandError, ConnectionLimits,
    DialError, EndReason, EndpointRequest, Ingress, Proof, Server, SessionEnd, SessionGrant,
};
use culvert_tunnel::wire::{
    self, AuthExtra, AuthReply, AuthRequest, BindReply, BindRequest, LabelledRequest, Outcome,
    PatchRequest, ProxyHeader, ServerInfoReply, StopEndpointRequest, StreamType, UnbindRequest,
    UpdateRequest,
};
use ngrok::prelude::*;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

#[path = "agents/hostile.rs"]
mod hostile;
#[path = "agents/own.rs"]
mod own;

/// Fails instead of hanging.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("it comes to an end")
}

/// Authenticates agents with the token, grants every request, and records it.
#[derive(Debug)]
struct TestGate {
    seen: watch::Sender<Seen>,
    /// Agents with the token `in a while` wait for this.
    decides: Arc<Semaphore>,
    /// Whether it takes no agent for now.
    is_full: bool,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    deciding: bool,
    hellos: Vec<(String, Option<String>, SocketAddr)>,
    binds: Vec<(String, String)>,
    unbinds: Vec<String>,
    patches: usize,
    ends: Vec<EndReason>,
    /// The granted names of earlier sessions, by id.
    names: BTreeMap<String, String>,
}

impl TestGate {
    /// Changes what was seen in one step, so that two requests never get the same number.
    fn note<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let mut noted = None;
        self.seen.send_modify(|seen| noted = Some(change(seen)));
        noted.unwrap()
    }
}

impl AgentAuthorizer for TestGate {
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>> {
        Box::pin(async move {
            let Proof::Token(token) = &hello.proof else {
                panic!("agents show tokens");
            };
            if token.reveal() == "in a while" {
                self.note(|seen| seen.deciding = true);
                drop(self.decides.acquire().await.unwrap());
            } else if self.is_full || token.reveal() == "not now" {
                return Err(Refusal::new(code::AGENT_SESSION_LIMIT_REACHED, "not now"));
            } else if token.reveal() != "right" {
                return Err(Refusal::new(
                    code::AGENT_AUTH_MALFORMED,
                    "nobody has this token",
                ));
            }
            let session_id = self.note(|seen| {
                let session_id = match hello.former {
                    None => format!("ts_{}", seen.hellos.len()),
                    Some(former) => former.session_id,
                };
                let met = (session_id.clone(), hello.server_name, hello.peer);
                seen.hellos.push(met);
                session_id
            });
            Ok(SessionGrant {
                cookie: format!("cookie of {session_id}"),
                session_id,
                ..SessionGrant::default()
            })
        })
    }

    fn next_tcp_port<'a>(&'a self, _: &'a SessionGrant) -> BoxFuture<'a, Option<u16>> {
        Box::pin(async { None })
    }

    fn bind<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>> {
        Box::pin(async move {
            let (id, name) = self.note(|seen| {
                let id = match &want.id {
                    none if none.is_empty() => format!("ep_{}", seen.binds.len()),
                    former => former.clone(),
                };
                let name = want
                    .options
                    .requested()
                    .and_then(|name| name.rsplit("://").next())
                    .map_or_else(|| format!("{id}.example.test"), String::from);
                seen.binds.push((grant.session_id.clone(), id.clone()));
                seen.names.insert(id.clone(), name.clone());
                (id, name)
            });
            Ok(Binding {
                url: format!("{}://{name}", want.proto),
                token: format!("token of {id}"),
                id,
                name,
            })
        })
    }

    fn bind_labels<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async { Ok("labelled".into()) })
    }

    fn patch<'a>(
        &'a self,
        _: &'a SessionGrant,
        _: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async {
            self.note(|seen| seen.patches += 1);
            Ok(())
        })
    }

    fn unbind<'a>(&'a self, _: &'a SessionGrant, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async { self.note(|seen| seen.unbinds.push(id.to_owned())) })
    }

    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()> {
        Box::pin(async { self.note(|seen| seen.ends.push(end.reason)) })
    }
}

/// A running ingress.
struct Running {
    address: SocketAddr,
    authority: String,
    bindings: Arc<Bindings>,
    seen: watch::Receiver<Seen>,
    /// Lets the authorizer decide about agents that it delays.
    decides: Arc<Semaphore>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

/// Addresses for the agents' connections.
const LEGS: [&str; 2] = ["one.test:4443", "two.test:4443"];

async fn start() -> Running {
    start_moving_on(|| None).await
}

/// Takes no agent for now.
async fn start_full() -> Running {
    start_with(|| None, true).await
}

/// Moves the bytes of agents on the runtimes that `next` returns.
async fn start_moving_on(next: impl Fn() -> Option<Handle> + Send + Sync + 'static) -> Running {
    start_with(next, false).await
}

/// A certificate for `localhost`, in PEM, and the configuration of a server with it.
fn server_tls() -> (String, rustls::ServerConfig) {
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        )
        .unwrap();
    (made.cert.pem(), tls)
}

async fn start_with(
    next: impl Fn() -> Option<Handle> + Send + Sync + 'static,
    is_full: bool,
) -> Running {
    let (authority, tls) = server_tls();
    let (seen, receiver) = watch::channel(Seen::default());
    let bindings = Arc::new(Bindings::default());
    let decides = Arc::new(Semaphore::new(0));
    let authorizer = Arc::new(TestGate {
        seen,
        decides: Arc::clone(&decides),
        is_full,
    });
    let server = Server::new(authorizer, Arc::clone(&bindings), "test".into())
        .with_connect_addresses(LEGS.map(String::from).to_vec());
    let server = Arc::new(server);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let room = ConnectionLimits {
        connections: 1_000,
        unauthenticated: 64,
        unauthenticated_per_source: 16,
    };
    let ingress = Ingress::new(listener, Arc::new(tls), server, room).with_runtimes(next);
    tasks.spawn(ingress.run(stop.clone()));
    Running {
        address,
        authority,
        bindings,
        seen: receiver,
        decides,
        tasks,
        stop,
    }
}

impl Running {
    /// Waits until the recorded calls suffice.
    async fn until(&mut self, enough: impl FnMut(&Seen) -> bool) -> Seen {
        soon(self.seen.wait_for(enough)).await.unwrap().clone()
    }

    /// A published agent, authenticated.
    async fn published(&self, token: &str) -> Result<ngrok::Session, ngrok::session::ConnectError> {
        // Its library wants one provider of cryptography for the whole process.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let mut builder = ngrok::Session::builder();
        builder
            .server_addr(format!("localhost:{}", self.address.port()))
            .unwrap()
            .ca_cert(Bytes::from(self.authority.clone()))
            .authtoken(token)
            .metadata("of the test");
        soon(builder.connect()).await
    }

    /// A connection after its TLS handshake, without further data.
    async fn connected(&self) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        let root = rustls::pki_types::CertificateDer::from_pem_slice(self.authority.as_bytes());
        roots.add(root.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let socket = TcpStream::connect(self.address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket);
        soon(connecting).await.unwrap()
    }

    /// A session that has not authenticated yet.
    async fn dialled(&mut self) -> Session {
        let socket = self.connected().await;
        let (session, driver) = driver::connect(socket, Side::Client, Limits::default());
        self.tasks.spawn(async { drop(driver.run().await) });
        session
    }

    async fn admitted(&mut self, former: &str) -> (Session, AuthReply) {
        let session = self.dialled().await;
        let reply: AuthReply = ask(&session, StreamType::AUTH, &auth(former, 30)).await;
        assert_eq!(reply.error, "");
        (session, reply)
    }

    fn dial_at_once(&self, id: &str) -> Result<Stream, DialError> {
        self.dial_from(id, "192.0.2.7:1234")
    }

    fn dial_from(&self, id: &str, client: &str) -> Result<Stream, DialError> {
        self.bindings.dial(&ProxyHeader {
            id: id.into(),
            client_addr: client.into(),
            proto: "tcp".into(),
            edge_type: "1".into(),
            passthrough_tls: false,
        })
    }

    async fn dial(&self, id: &str) -> Stream {
        soon(async {
            loop {
                match self.dial_at_once(id) {
                    Ok(stream) => return stream,
                    Err(DialError::Away | DialError::Busy | DialError::Silent) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
        })
        .await
    }
}

fn auth(former: &str, silence_seconds: i64) -> AuthRequest {
    AuthRequest {
        versions: vec!["3".into(), "2".into()],
        client_id: former.into(),
        extra: AuthExtra {
            token: "right".into(),
            heartbeat_tolerance: silence_seconds * 1_000_000_000,
            ..AuthExtra::default()
        },
    }
}

/// Makes a call.
async fn ask<T: DeserializeOwned>(session: &Session, kind: StreamType, of: &impl Serialize) -> T {
    let mut stream = session.open(wire::call(kind, of)).unwrap();
    let mut reply = Vec::new();
    soon(stream.read_to_end(&mut reply)).await.unwrap();
    wire::parse(serde_json::from_slice(&reply).unwrap()).unwrap()
}

/// Echoes what it receives.
async fn echo_server(tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut echoes = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            echoes.spawn(async move {
                let (mut reader, mut writer) = split(socket);
                // If a connection is reset, it ends early, which its other end notices.
                if tokio::io::copy(&mut reader, &mut writer).await.is_ok() {
                    writer.shutdown().await.ok();
                }
            });
        }
    });
    address
}

async fn expect_echo(stream: Stream, length: usize) {
    let sent: Vec<u8> = (0..length).map(|at| (at * 31 + at / 977) as u8).collect();
    let (mut reader, mut writer) = split(stream);
    let writing = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let reading = async { reader.read_to_end(&mut back).await.unwrap() };
    soon(async { tokio::join!(writing, reading) }).await;
    assert!(back == sent, "{} of {length} bytes came back", back.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_agent_serves_connections_and_comes_back_after_a_cut() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await;
    let session = running.published("right").await.unwrap();
    assert_eq!(session.id(), "ts_0");
    let url = format!("tcp://{upstream}").parse().unwrap();
    let tunnel = soon(session.tcp_endpoint().listen_and_forward(url))
        .await
        .unwrap();
    let seen = running.until(|seen| seen.binds.len() == 1).await;
    let id = seen.binds[0].1.clone();
    let public = tunnel.url().to_owned();
    assert_eq!(public, format!("tcp://{id}.example.test"));
    assert_eq!(seen.hellos[0].1.as_deref(), Some("localhost"));

    expect_echo(running.dial(&id).await, 5_000_000).await;
    let mut talks = JoinSet::new();
    for nth in 0..40 {
        talks.spawn(expect_echo(running.dial(&id).await, 20_000 + nth));
    }
    soon(talks.join_all()).await;

    // The network fails. The agent reconnects with its session and its endpoints.
    assert!(running.bindings.hang_up("ts_0", "cut by a test"));
    let seen = running.until(|seen| seen.binds.len() == 2).await;
    assert_eq!(seen.ends, [EndReason::Stopped("cut by a test".into())]);
    assert_eq!(seen.hellos[1].0, "ts_0");
    assert_eq!(seen.binds[1], ("ts_0".into(), id.clone()));
    expect_echo(running.dial(&id).await, 100_000).await;
    assert_eq!(tunnel.url(), public);
}

/// As on a server whose edge has threads: see [`Ingress::with_runtimes`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_an_agent_move_on_the_runtime_that_uses_its_streams() {
    let edge = Builder::new_current_thread().enable_all().build().unwrap();
    let handle = edge.handle().clone();
    let end = CancellationToken::new();
    let ends = end.clone();
    let thread = std::thread::spawn(move || edge.block_on(ends.cancelled()));
    let next = handle.clone();
    let running = start_moving_on(move || Some(next.clone())).await;
    let mut services = JoinSet::new();
    let upstream = echo_server(&mut services).await;
    assert_eq!(handle.metrics().num_alive_tasks(), 0);

    let session = running.published("right").await.unwrap();
    let url = format!("tcp://{upstream}").parse().unwrap();
    let _tunnel = soon(session.tcp_endpoint().listen_and_forward(url))
        .await
        .unwrap();
    alive(&handle, 1).await;
    let id = running.seen.borrow().binds[0].1.clone();
    // A stream that is used on the runtime, and one that is not.
    let stream = running.dial(&id).await;
    soon(handle.spawn(expect_echo(stream, 3_000_000)))
        .await
        .unwrap();
    expect_echo(running.dial(&id).await, 3_000_000).await;

    running.stop.cancel();
    soon(running.tasks.join_all()).await;
    alive(&handle, 0).await;
    end.cancel();
    thread.join().unwrap();
}

/// Waits until a runtime has that many tasks. Another runtime starts and ends them.
async fn alive(runtime: &Handle, n_tasks: usize) {
    let waiting = async {
        while runtime.metrics().num_alive_tasks() != n_tasks {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(waiting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_agent_is_given_the_name_it_asks_for_and_gives_it_up() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await;
    let session = running.published("right").await.unwrap();
    let url: url::Url = format!("http://{upstream}").parse().unwrap();
    let mut tunnel = soon(
        session
            .http_endpoint()
            .domain("app.example.test")
            .compression()
            .listen_and_forward(url),
    )
    .await
    .unwrap();
    assert_eq!(tunnel.url(), "https://app.example.test");
    let id = running.seen.borrow().binds[0].1.clone();
    expect_echo(running.dial(&id).await, 4_000_000).await;

    soon(tunnel.close()).await.unwrap();
    let seen = running.until(|seen| !seen.unbinds.is_empty()).await;
    assert_eq!(seen.unbinds, [&id[..]]);
    assert_eq!(running.bindings.count(&id), 0);
}

#[tokio::test]
async fn a_published_agent_is_reported_why_it_is_refused() {
    let running = start().await;
    let error = running.published("wrong").await.err().unwrap();
    assert_eq!(error.error_code(), Some("ERR_NGROK_109"));
    assert_eq!(error.msg(), "nobody has this token");
    assert_eq!(running.bindings.connections(), 0);
}

#[tokio::test]
async fn before_it_said_who_it_is_a_stranger_may_ask_little() {
    let mut running = start().await;
    let session = running.dialled().await;
    let mut heartbeat = session
        .open(Bytes::from_static(&[0xFF, 0xFF, 0xFF, 0xFF, 1, 2, 3, 4]))
        .unwrap();
    let mut beat = [0; 4];
    soon(heartbeat.read_exact(&mut beat)).await.unwrap();
    assert_eq!(beat, [1, 2, 3, 4]);

    let info: ServerInfoReply = ask(&session, StreamType::SERVER_INFO, &Outcome::default()).await;
    assert_eq!(info.region, "test");
    let refused: Outcome = ask(&session, StreamType::BIND, &BindRequest::default()).await;
    assert_eq!(wire::code_of(&refused.error), Some(801));
    let old = AuthRequest {
        versions: vec!["2".into()],
        ..auth("", 30)
    };
    let refused: Outcome = ask(&session, StreamType::AUTH, &old).await;
    assert_eq!(wire::code_of(&refused.error), Some(811));
    soon(session.ended()).await;
    assert!(running.seen.borrow().hellos.is_empty());
}

#[tokio::test]
async fn calls_that_make_no_sense_are_refused_one_by_one() {
    let mut running = start().await;
    let (session, reply) = running.admitted("").await;
    assert_eq!(reply.extra.cookie, "cookie of ts_0");
    let code = async |kind: u32, text: String| {
        let first = [
            &kind.to_be_bytes()[..],
            &text.as_bytes()[..text.len().min(100)],
        ]
        .concat();
        let mut stream = session.open(first.into()).unwrap();
        let (mut reader, mut writer) = split(&mut stream);
        let writing = async {
            // A server that has read enough stops reading.
            writer
                .write_all(&text.as_bytes()[text.len().min(100)..])
                .await
                .ok();
        };
        let mut reply = Vec::new();
        let reading = async { reader.read_to_end(&mut reply).await.unwrap() };
        soon(async { tokio::join!(writing, reading) }).await;
        let outcome: Outcome = wire::parse(serde_json::from_slice(&reply).unwrap()).unwrap();
        wire::code_of(&outcome.error)
    };
    assert_eq!(code(77, "{}".into()).await, Some(800));
    assert_eq!(code(1, "[]".into()).await, Some(801));
    assert_eq!(code(1, r#"{"Proto":7}"#.into()).await, Some(301));
    assert_eq!(
        code(1, r#"{"Proto":"tcp","Opts":{"Addr":[]}}"#.into()).await,
        Some(301)
    );
    assert_eq!(code(1, r#"{"Proto":"gopher"}"#.into()).await, Some(332));
    assert_eq!(code(10, r#"{"TunnelId":"ep_9"}"#.into()).await, Some(333));
    assert_eq!(
        code(2, r#"{"Id":"never bound","Extra":null}"#.into()).await,
        None
    );
    let long = format!(r#"{{"Proto":"{}"}}"#, "x".repeat(3 << 19));
    assert_eq!(code(1, long).await, Some(812));
    // A second Auth changes nothing.
    assert_eq!(code(0, "{}".into()).await, Some(800));

    let bound: BindReply = ask(
        &session,
        StreamType::BIND,
        &BindRequest {
            proto: "https".into(),
            ..BindRequest::default()
        },
    )
    .await;
    assert_eq!(bound.error, "");
    let patched: Outcome = ask(
        &session,
        StreamType::PATCH_ENDPOINT,
        &PatchRequest {
            tunnel_id: bound.extra.tunnel_id,
            ..PatchRequest::default()
        },
    )
    .await;
    assert_eq!(
        (patched.error, running.seen.borrow().patches),
        (String::new(), 1)
    );
}

#[tokio::test]
async fn a_connection_is_taken_over_and_its_session_lives_on() {
    let mut running = start().await;
    let (first, reply) = running.admitted("").await;
    let bind = |id: &str| BindRequest {
        id: id.into(),
        proto: "tcp".into(),
        ..BindRequest::default()
    };
    let bound: BindReply = ask(&first, StreamType::BIND, &bind("")).await;
    assert_eq!(running.bindings.count(&bound.id), 1);

    let (second, again) = running.admitted(&reply.client_id).await;
    assert_eq!(again.client_id, reply.client_id);
    soon(first.ended()).await;
    assert_eq!(running.bindings.count(&bound.id), 0, "nobody serves it yet");
    let kept: BindReply = ask(&second, StreamType::BIND, &bind(&bound.id)).await;
    assert_eq!((&kept.id, &kept.url), (&bound.id, &bound.url));

    let proxied = running.dial(&bound.id).await;
    let arrived = soon(second.accept()).await.unwrap();
    drop((proxied, arrived));
    assert!(running.seen.borrow().ends.is_empty());
    assert_eq!(running.bindings.connections(), 1);

    // The end of the connection ends the session, once.
    second.hang_up();
    let seen = running.until(|seen| !seen.ends.is_empty()).await;
    assert_eq!(seen.ends, [EndReason::Closed]);
    assert_eq!(running.bindings.connections(), 0);
    assert!(!running.bindings.hang_up(&reply.client_id, "nobody there"));
}

#[tokio::test]
async fn a_session_of_two_connections_lasts_as_long_as_one_of_them() {
    let mut running = start().await;
    let (first, reply) = running.admitted("").await;
    let offered = &reply.extra.connect_addresses;
    let offered: Vec<&str> = offered.iter().map(|one| &one.server_addr[..]).collect();
    assert_eq!(offered, LEGS);
    let mut leg = auth(&reply.client_id, 30);
    leg.extra.leg = 1;
    leg.extra.cookie = reply.extra.cookie;
    let second = running.dialled().await;
    let reply: AuthReply = ask(&second, StreamType::AUTH, &leg).await;
    assert_eq!(reply.error, "");
    assert!(reply.extra.connect_addresses.is_empty());
    assert_eq!(running.bindings.connections(), 2);
    leg.extra.leg = 16;
    let refused: AuthReply = ask(&running.dialled().await, StreamType::AUTH, &leg).await;
    assert!(refused.error.contains("at most 16 connections"));
    assert_eq!(running.bindings.connections(), 2);

    let mut want = BindRequest {
        proto: "tcp".into(),
        ..BindRequest::default()
    };
    let bound: BindReply = ask(&first, StreamType::BIND, &want).await;
    want.id = bound.id.clone();
    want.extra.token = bound.extra.token;
    let again: BindReply = ask(&second, StreamType::BIND, &want).await;
    assert_eq!((&again.id, &again.url), (&bound.id, &bound.url));
    // Streams are spread over both.
    for _ in 0..2 {
        let opened = (running.dial(&bound.id).await, running.dial(&bound.id).await);
        let arrived = soon(async { tokio::join!(first.accept(), second.accept()) }).await;
        assert!(arrived.0.is_some() && arrived.1.is_some());
        drop(opened);
    }
    // If one connection ends, the session continues. If the other ends, the session has ended, once.
    first.hang_up();
    soon(async {
        while running.bindings.connections() > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(running.bindings.count(&bound.id), 1);
    assert!(running.seen.borrow().ends.is_empty());
    second.hang_up();
    let seen = running.until(|seen| !seen.ends.is_empty()).await;
    assert_eq!(seen.ends, [EndReason::Closed]);
}

#[tokio::test]
async fn who_is_dismissed_hears_why_of_every_endpoint() {
    let mut running = start().await;
    let (session, reply) = running.admitted("").await;
    let want = BindRequest {
        proto: "tcp".into(),
        ..BindRequest::default()
    };
    let mut bound = Vec::new();
    for _ in 0..3 {
        let one: BindReply = ask(&session, StreamType::BIND, &want).await;
        bound.push(one.id);
    }
    bound.sort();
    let bindings = Arc::clone(&running.bindings);
    let deleted = Refusal::of(code::AGENT_CREDENTIAL_DELETED);
    let hearing = async {
        let mut heard = Vec::new();
        while let Some(mut stream) = session.accept().await {
            // The agent never ends the stream, which delays no other call.
            let mut bytes = Vec::new();
            while stream.read_buf(&mut bytes).await.unwrap_or(0) > 0 {}
            assert_eq!(bytes[..4], StreamType::STOP_ENDPOINT.to_bytes());
            let request: StopEndpointRequest =
                wire::parse(serde_json::from_slice(&bytes[4..]).unwrap()).unwrap();
            assert_eq!(request.error_code, "ERR_NGROK_300");
            heard.push((request.id, stream));
        }
        heard
    };
    let dismissing = bindings.dismiss(&reply.client_id, "credential deleted", &deleted);
    let (was_connected, heard) = soon(async { tokio::join!(dismissing, hearing) }).await;
    assert!(was_connected);
    let mut heard: Vec<String> = heard.into_iter().map(|(id, _)| id).collect();
    heard.sort();
    assert_eq!(heard, bound);
    let seen = running.until(|seen| !seen.ends.is_empty()).await;
    assert_eq!(seen.ends, [EndReason::Stopped("credential deleted".into())]);
}

#[tokio::test]
async fn agents_of_one_endpoint_share_its_connections() {
    let mut running = start().await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let (session, _) = running.admitted("").await;
        let bind = BindRequest {
            id: "ep_shared".into(),
            proto: "tcp".into(),
            ..BindRequest::default()
        };
        let _: BindReply = ask(&session, StreamType::BIND, &bind).await;
        sessions.push(session);
    }
    assert_eq!(running.bindings.count("ep_shared"), 2);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(running.dial("ep_shared").await);
    }
    for session in &sessions {
        held.push(soon(session.accept()).await.unwrap());
        held.push(soon(session.accept()).await.unwrap());
    }
    // One session removes the endpoint; the other serves its streams.
    let unbind = UnbindRequest {
        id: "ep_shared".into(),
    };
    let done: Outcome = ask(&sessions[0], StreamType::UNBIND, &unbind).await;
    assert_eq!(done.error, "");
    held.push(running.dial("ep_shared").await);
    held.push(soon(sessions[1].accept()).await.unwrap());
}

/// Accepts the next stream of the server and reads its type and text.
async fn asked(session: &Session, length: usize) -> (Stream, Vec<u8>) {
    let mut stream = soon(session.accept()).await.unwrap();
    let mut first = vec![0; length];
    soon(stream.read_exact(&mut first)).await.unwrap();
    (stream, first)
}

#[tokio::test]
async fn an_agent_is_asked_for_what_it_said_it_can_do() {
    let mut running = start().await;
    let session = running.dialled().await;
    let mut request = auth("", 30);
    request.extra.stop_unsupported = Some(String::new());
    request.extra.update_unsupported = Some("installed by a package".into());
    let _: AuthReply = ask(&session, StreamType::AUTH, &request).await;
    let bindings = Arc::clone(&running.bindings);
    let update = Command::Update(UpdateRequest::default());
    assert_eq!(
        bindings.command("ts_0", &update).await,
        Err(CommandError::Unsupported("installed by a package".into()))
    );
    assert_eq!(
        bindings.command("ts_0", &Command::Restart).await,
        Err(CommandError::Unsupported(String::new()))
    );
    assert_eq!(
        bindings.command("ts_9", &Command::Stop).await,
        Err(CommandError::Unknown)
    );

    for (answer, outcome) in [
        ("{}", Ok(())),
        (
            r#"{"Error":"busy"}"#,
            Err(CommandError::Failed("busy".into())),
        ),
        // Gone without a word.
        ("", Err(CommandError::Away)),
    ] {
        let answering = async {
            let (mut stream, first) = asked(&session, 6).await;
            assert_eq!(first, b"\0\0\0\x05{}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.is_empty() {
                return;
            }
            // The server ends the stream, because some agents do not.
            let mut rest = Vec::new();
            soon(stream.read_to_end(&mut rest)).await.ok();
        };
        let asking = soon(bindings.command("ts_0", &Command::Stop));
        let (said, ()) = tokio::join!(asking, answering);
        assert_eq!(said, outcome);
    }
}

#[tokio::test]
async fn an_endpoint_that_is_taken_away_is_gone_before_its_agent_knows() {
    let mut running = start().await;
    let (session, _) = running.admitted("").await;
    let bind = BindRequest {
        proto: "tcp".into(),
        ..BindRequest::default()
    };
    let bound: BindReply = ask(&session, StreamType::BIND, &bind).await;
    let stop = StopEndpointRequest {
        id: bound.id.clone(),
        message: "deleted".into(),
        error_code: "ERR_NGROK_319".into(),
    };
    let bindings = Arc::clone(&running.bindings);
    let hearing = async {
        let expected = wire::call(StreamType::STOP_ENDPOINT, &stop);
        let (mut stream, reported) = asked(&session, expected.len()).await;
        assert_eq!(reported, expected);
        assert_eq!(bindings.count(&bound.id), 0);
        stream.shutdown().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    };
    let deleted = Refusal::new(code::BIND_NAME_NOT_RESERVED, "deleted");
    let telling = bindings.stop_endpoint(&stop.id, &deleted);
    soon(async { tokio::join!(telling, hearing) }).await;
    // Its Unbind may follow, and is not an error.
    let unbind = UnbindRequest { id: bound.id };
    let done: Outcome = ask(&session, StreamType::UNBIND, &unbind).await;
    assert_eq!(done.error, "");
}

#[tokio::test]
async fn an_agent_without_a_pulse_is_let_go() {
    let mut running = start().await;
    let session = running.dialled().await;
    let reply: AuthReply = ask(&session, StreamType::AUTH, &auth("", 1)).await;
    assert_eq!(reply.error, "");
    let seen = running.until(|seen| !seen.ends.is_empty()).await;
    assert_eq!(seen.ends, [EndReason::Silent]);
    soon(session.ended()).await;
}

#[tokio::test]
async fn a_session_that_is_admitted_after_its_connection_has_ended_ends_too() {
    let mut running = start().await;
    let session = running.dialled().await;
    let mut request = auth("", 30);
    request.extra.token = "in a while".into();
    let _unanswered = session.open(wire::call(StreamType::AUTH, &request));
    running.until(|seen| seen.deciding).await;
    running.stop.cancel();
    soon(session.ended()).await;
    assert!(running.seen.borrow().ends.is_empty());
    running.decides.add_permits(1);
    soon(running.tasks.join_all()).await;
    assert_eq!(running.seen.borrow().hellos.len(), 1);
    assert_eq!(running.seen.borrow().ends, [EndReason::shutdown()]);
    assert_eq!(running.bindings.connections(), 0);
}

#[tokio::test]
async fn stopping_closes_every_connection_and_ends_every_session() {
    let mut running = start().await;
    let (session, _) = running.admitted("").await;
    let stranger = running.dialled().await;
    let half_open = TcpStream::connect(running.address).await.unwrap();
    running.stop.cancel();
    soon(session.ended()).await;
    soon(stranger.ended()).await;
    soon(running.tasks.join_all()).await;
    drop(half_open);
    assert_eq!(running.seen.borrow().ends, [EndReason::shutdown()]);
}
