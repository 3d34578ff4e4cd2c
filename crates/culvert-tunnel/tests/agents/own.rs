//! culvert's own agent against the server: endpoints of every kind, lost connections, commands, a clean
//! close, and recorded requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Refusal, Secret, SeededEntropy, SystemClock, code};
use culvert_tunnel::client::{
    Agent, AgentError, Dialing, Endpoint, Event, Exchanges, FLAGS, Protocol, ReplayError, Settings,
    Status, TlsEnd, Upstream, UpstreamTrust, Wanted,
};
use culvert_tunnel::server::{Command, EndReason};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::{Running, echo_server, expect_echo, soon, start};

/// An endpoint of `kind` in front of `upstream`, with flags.
fn endpoint(kind: Protocol, upstream: &str, flags: &[(&str, &str)]) -> Endpoint {
    trusting(kind, upstream, flags, &UpstreamTrust::System)
}

fn trusting(
    kind: Protocol,
    upstream: &str,
    flags: &[(&str, &str)],
    trust: &UpstreamTrust,
) -> Endpoint {
    let mut wanted = Wanted::default();
    for (name, value) in flags {
        let flag = FLAGS.iter().find(|flag| flag.name == *name).unwrap();
        (flag.apply)(&mut wanted, value).unwrap();
    }
    let upstream = Upstream::parse(upstream, kind, false, trust).unwrap();
    Endpoint::new(kind, wanted, upstream).unwrap()
}

/// A running agent of culvert.
struct Own {
    agent: Arc<Agent>,
    status: watch::Receiver<Status>,
    events: watch::Receiver<Vec<Event>>,
    stop: CancellationToken,
    ended: oneshot::Receiver<Result<(), AgentError>>,
    tasks: JoinSet<()>,
}

fn run(running: &Running, token: &str, endpoints: Vec<Endpoint>) -> Own {
    run_with(running, token, endpoints, Duration::from_secs(10))
}

fn run_with(running: &Running, token: &str, endpoints: Vec<Endpoint>, drain_time: Duration) -> Own {
    run_taking(running, token, endpoints, drain_time, 100)
}

fn run_taking(
    running: &Running,
    token: &str,
    endpoints: Vec<Endpoint>,
    drain_time: Duration,
    streams_max: usize,
) -> Own {
    let address = format!("localhost:{}", running.address.port());
    let settings = Settings {
        servers: Dialing::new(&address, Some(running.authority.as_bytes()))
            .unwrap()
            .into(),
        token: Secret::new(token.into()),
        metadata: "of the test".into(),
        version: "1.2.3".into(),
        drain_time,
        streams_max,
    };
    let (told, events) = watch::channel(Vec::new());
    let agent = Arc::new(Agent::new(
        settings,
        endpoints,
        Some(Arc::new(Exchanges::new(Arc::new(SystemClock)))),
        Arc::new(SeededEntropy::new(1)),
        Arc::new(move |event| told.send_modify(|events| events.push(event))),
    ));
    let (stop, (end, ended)) = (CancellationToken::new(), oneshot::channel());
    let mut tasks = JoinSet::new();
    let running = Arc::clone(&agent).run(stop.clone());
    tasks.spawn(async move { drop(end.send(running.await)) });
    Own {
        status: agent.status(),
        agent,
        events,
        stop,
        ended,
        tasks,
    }
}

impl Own {
    async fn heard(&mut self, what: impl Fn(&Event) -> bool) -> Event {
        let heard = soon(self.events.wait_for(|events| events.iter().any(&what)))
            .await
            .unwrap();
        heard.iter().rfind(|event| what(event)).unwrap().clone()
    }

    async fn online(&mut self) -> Status {
        self.heard(|event| matches!(event, Event::Online { .. }))
            .await;
        self.status.borrow().clone()
    }

    async fn ended(self) -> Result<(), AgentError> {
        let ended = soon(self.ended).await.unwrap();
        soon(self.tasks.join_all()).await;
        ended
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_carries_bytes_and_comes_back_after_a_cut_with_the_same_url() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await;
    let endpoints = vec![
        endpoint(
            Protocol::Tcp,
            &upstream.to_string(),
            &[("remote-addr", "tcp.test:7001")],
        ),
        endpoint(
            Protocol::Tcp,
            &format!("tcp://localhost:{}", upstream.port()),
            &[],
        ),
    ];
    let mut own = run(&running, "right", endpoints);
    let status = own.online().await;
    let ids: Vec<_> = status
        .endpoints
        .iter()
        .map(|endpoint| endpoint.id.clone())
        .collect();
    assert_eq!(status.endpoints[0].url, "tcp://tcp.test:7001");
    assert_eq!(status.session_id, "ts_0");

    expect_echo(running.dial(&ids[0]).await, 5_000_000).await;
    let mut talks = JoinSet::new();
    for nth in 0..40 {
        talks.spawn(expect_echo(running.dial(&ids[nth % 2]).await, 20_000 + nth));
    }
    soon(talks.join_all()).await;

    assert!(!running.bindings.has_just_lost(&ids[0]));
    assert!(running.bindings.hang_up("ts_0", "cut by a test"));
    // The agent stays away for at least half a second, and requests wait for it.
    soon(async {
        while !ids.iter().all(|id| running.bindings.has_just_lost(id)) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!running.bindings.has_just_lost("ep_of_nobody"));
    let seen = running.until(|seen| seen.binds.len() == 4).await;
    assert_eq!(seen.hellos[1].0, "ts_0");
    assert_eq!(seen.binds[2], ("ts_0".into(), ids[0].clone()));
    assert_eq!(seen.binds[3], ("ts_0".into(), ids[1].clone()));
    own.heard(|event| matches!(event, Event::Online { again: true, .. }))
        .await;
    expect_echo(running.dial(&ids[0]).await, 100_000).await;
    assert!(!ids.iter().any(|id| running.bindings.has_just_lost(id)));
    assert_eq!(own.status.borrow().endpoints, status.endpoints);

    own.stop.cancel();
    assert_eq!(own.ended().await, Ok(()));
    let seen = running.until(|seen| seen.ends.len() == 2).await;
    assert_eq!(seen.unbinds, ids);
    assert_eq!(seen.ends[1], EndReason::Closed);
    assert_eq!(running.bindings.connections(), 0);
}

#[tokio::test]
async fn a_wrong_token_is_the_end_and_a_server_that_is_away_is_not() {
    let running = start().await;
    let own = run(&running, "wrong", vec![endpoint(Protocol::Http, "1", &[])]);
    let error = own.ended().await.unwrap_err();
    assert_eq!(
        error,
        AgentError::Refused("nobody has this token".into(), Some(109))
    );
    assert_eq!(error.to_string(), "nobody has this token (ERR_NGROK_109)");

    running.stop.cancel();
    soon(running.tasks.join_all()).await;
    let running = Running {
        tasks: JoinSet::new(),
        ..start().await
    };
    running.stop.cancel();
    let mut own = run(&running, "right", vec![endpoint(Protocol::Http, "1", &[])]);
    own.heard(|event| matches!(event, Event::Waiting { .. }))
        .await;
    own.stop.cancel();
    assert_eq!(own.ended().await, Ok(()));
}

/// A restart by the server: the new connection serves before the old one stops.
#[tokio::test]
async fn an_agent_that_is_asked_to_restart_is_away_at_no_moment() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await.to_string();
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Tcp, &upstream, &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    let bindings = Arc::clone(&running.bindings);
    // A connection that began earlier and ends last.
    let mut long = running.dial(&id).await;
    long.write_all(b"ear").await.unwrap();
    let mut back = [0; 3];
    soon(long.read_exact(&mut back)).await.unwrap();

    let is_there = async {
        loop {
            assert!(bindings.count(&id) > 0, "the agent was away");
            tokio::task::yield_now().await;
        }
    };
    let restarts = async {
        let asked = bindings.command("ts_0", &Command::Restart).await;
        assert_eq!(asked, Ok(()));
        own.heard(|event| matches!(event, Event::Online { again: true, .. }))
            .await;
        assert_eq!(bindings.count(&id), 2, "both serve for a while");
        while bindings.count(&id) > 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = is_there => {}
        () = soon(restarts) => {}
    }
    // No endpoint went offline, and open streams continue on the old connection.
    assert_eq!(running.seen.borrow().unbinds, Vec::<String>::new());
    assert_eq!(bindings.connections(), 2);
    long.write_all(b"lier").await.unwrap();
    let mut back = [0; 4];
    soon(long.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"lier");
    long.shutdown().await.unwrap();
    expect_echo(running.dial(&id).await, 1000).await;
    soon(async {
        while bindings.connections() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    own.stop.cancel();
    assert_eq!(own.ended().await, Ok(()));
    running.until(|seen| seen.unbinds.len() == 1).await;
}

#[tokio::test]
async fn commands_of_the_server_are_followed() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await.to_string();
    let endpoints = vec![
        endpoint(Protocol::Tcp, &upstream, &[]),
        endpoint(Protocol::Tls, &upstream, &[]),
    ];
    let mut own = run(&running, "right", endpoints);
    let status = own.online().await;
    let bindings = Arc::clone(&running.bindings);
    assert_eq!(
        soon(bindings.command("ts_0", &Command::Restart)).await,
        Ok(())
    );
    running.until(|seen| seen.binds.len() == 4).await;
    own.heard(|event| matches!(event, Event::Online { again: true, .. }))
        .await;
    expect_echo(running.dial(&status.endpoints[0].id).await, 1000).await;

    for endpoint in &status.endpoints {
        let deleted = Refusal::new(code::BIND_NAME_NOT_RESERVED, "deleted");
        soon(bindings.stop_endpoint(&endpoint.id, &deleted)).await;
    }
    let error = own.ended().await.unwrap_err();
    assert!(
        matches!(&error, AgentError::Taken(why) if why.ends_with("deleted")),
        "{error}"
    );

    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Tcp, &upstream, &[])],
    );
    let status = own.online().await;
    let stopping = bindings.command(&status.session_id, &Command::Stop);
    assert_eq!(soon(stopping).await, Ok(()));
    assert_eq!(own.ended().await, Ok(()));
}

#[tokio::test]
async fn a_service_that_is_away_ends_the_stream_without_a_byte() {
    let running = start().await;
    // An address without a listener.
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &gone.to_string(), &[])],
    );
    let status = own.online().await;
    let mut stream = running.dial(&status.endpoints[0].id).await;
    let mut said = Vec::new();
    soon(stream.read_to_end(&mut said)).await.unwrap();
    assert!(said.is_empty());
    let event = own
        .heard(|event| matches!(event, Event::Unreached { .. }))
        .await;
    assert!(
        matches!(event, Event::Unreached { upstream, .. } if upstream == format!("http://{gone}"))
    );
}

/// Responds to requests: to `/large` with 5 MB, to `POST` with the number of received bytes, to others with
/// their path. `hold` delays a response until it is released.
async fn http_server(tasks: &mut JoinSet<()>, hold: watch::Receiver<bool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            connections.spawn(answer_requests(socket, hold.clone()));
        }
    });
    address
}

async fn answer_requests(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    mut hold: watch::Receiver<bool>,
) {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
        let path = text.split(' ').nth(1).unwrap().to_owned();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while bytes.len() < head + length {
            assert!(socket.read_buf(&mut bytes).await.unwrap() > 0);
        }
        let sent = bytes[head..head + length]
            .iter()
            .filter(|byte| **byte == b'u')
            .count();
        bytes.drain(..head + length);
        let body = match &path[..] {
            "/large" => vec![b'd'; 5_000_000],
            _ if length > 0 => sent.to_string().into_bytes(),
            path => path.as_bytes().to_vec(),
        };
        if path == "/held" {
            hold.wait_for(|held| !held).await.unwrap();
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        if socket
            .write_all(&[head.as_bytes(), &body].concat())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// One request and the body of its response.
async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    method: &str,
    path: &str,
    body: usize,
) -> Vec<u8> {
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: a.test\r\ncontent-length: {body}\r\n\r\n");
    let request = [head.as_bytes(), &vec![b'u'; body]].concat();
    soon(stream.write_all(&request)).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
            let length: usize = head
                .split("content-length: ")
                .nth(1)
                .unwrap()
                .parse()
                .unwrap();
            let mut body = bytes.split_off(at + 4);
            while body.len() < length {
                assert!(soon(stream.read_buf(&mut body)).await.unwrap() > 0);
            }
            return body;
        }
        assert!(soon(stream.read_buf(&mut bytes)).await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_arrive_whole_are_kept_and_can_be_sent_again() {
    let mut running = start().await;
    let (_hold, held) = watch::channel(false);
    let upstream = http_server(&mut running.tasks, held).await;
    let flags = [("url", "https://app.example.test")];
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream.to_string(), &flags)],
    );
    let status = own.online().await;
    assert_eq!(status.endpoints[0].url, "https://app.example.test");
    let id = &status.endpoints[0].id;

    let mut stream = running.dial(id).await;
    assert!(ask(&mut stream, "GET", "/large", 0).await == vec![b'd'; 5_000_000]);
    assert_eq!(ask(&mut stream, "POST", "/up", 4_000_000).await, b"4000000");
    assert_eq!(ask(&mut stream, "POST", "/small", 3).await, b"3");
    let mut talks = JoinSet::new();
    for nth in 0..40 {
        let mut stream = running.dial(id).await;
        talks.spawn(async move {
            let path = format!("/{nth}");
            assert_eq!(ask(&mut stream, "GET", &path, 0).await, path.as_bytes());
        });
    }
    soon(talks.join_all()).await;

    let all = Arc::clone(own.agent.exchanges().unwrap());
    let find = |path: &str| {
        all.recent()
            .into_iter()
            .find(|exchange| exchange.path == path)
    };
    let small = find("/small").unwrap();
    assert_eq!((&small.method[..], small.status), ("POST", Some(200)));
    assert_eq!(
        (&small.request.body[..], &small.response.body[..]),
        (&b"uuu"[..], &b"3"[..])
    );
    assert_eq!(small.client, "192.0.2.7:1234");
    assert_eq!(find("/large").unwrap().response.body_bytes, 5_000_000);
    assert_eq!(all.recent().len(), 43);

    let again = soon(own.agent.replay(small.id)).await.unwrap();
    let replayed = all.get(again).unwrap();
    assert_eq!(replayed.replay_of, Some(small.id));
    assert_eq!(
        (&replayed.request.body[..], &replayed.response.body[..]),
        (&b"uuu"[..], &b"3"[..])
    );
    let cut = find("/up").unwrap().id;
    assert_eq!(soon(own.agent.replay(cut)).await, Err(ReplayError::Cut));
    assert_eq!(
        soon(own.agent.replay(9999)).await,
        Err(ReplayError::Unknown)
    );
}

#[tokio::test]
async fn what_is_on_its_way_is_finished_before_the_agent_ends() {
    let mut running = start().await;
    let (hold, held) = watch::channel(true);
    let upstream = http_server(&mut running.tasks, held).await;
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream.to_string(), &[])],
    );
    let status = own.online().await;
    let id = status.endpoints[0].id.clone();
    let mut idle = running.dial(&id).await;
    assert_eq!(ask(&mut idle, "GET", "/idle", 0).await, b"/idle");
    let mut busy = running.dial(&id).await;
    let asking = async {
        assert_eq!(ask(&mut busy, "GET", "/held", 0).await, b"/held");
    };
    let stopping = async {
        own.stop.cancel();
        // It stops serving before it closes its open connections.
        running.until(|seen| seen.unbinds.len() == 1).await;
        soon(idle.read_to_end(&mut Vec::new())).await.unwrap();
        hold.send_replace(false);
    };
    tokio::join!(asking, stopping);
    drop((busy, idle));
    assert_eq!(own.ended().await, Ok(()));
}

#[tokio::test]
async fn a_response_that_pauses_is_finished_before_the_agent_ends() {
    let mut running = start().await;
    let (go_on, paused) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap().to_string();
    running.tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut paused = paused.clone();
            connections.spawn(async move {
                let mut request = Vec::new();
                socket.read_buf(&mut request).await.unwrap();
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n";
                socket.write_all(head).await.unwrap();
                if !request.starts_with(b"GET /idle") {
                    socket.write_all(b"half").await.unwrap();
                    paused.wait_for(|go_on| *go_on).await.unwrap();
                    socket.write_all(b"half").await.unwrap();
                } else {
                    socket.write_all(b"halfhalf").await.unwrap();
                }
                // The service keeps its connection.
                socket.read_buf(&mut request).await.ok();
            });
        }
    });
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream, &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    let mut idle = running.dial(&id).await;
    assert_eq!(ask(&mut idle, "GET", "/idle", 0).await, b"halfhalf");
    let mut busy = running.dial(&id).await;
    let request = b"GET /pauses HTTP/1.1\r\nhost: a.test\r\n\r\n";
    soon(busy.write_all(request)).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhalf") {
        assert!(soon(busy.read_buf(&mut answer)).await.unwrap() > 0);
    }
    own.stop.cancel();
    // The idle connection is closed immediately, the busy one with its response.
    soon(idle.read_to_end(&mut Vec::new())).await.unwrap();
    go_on.send_replace(true);
    soon(busy.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.ends_with(b"\r\n\r\nhalfhalf"), "{answer:?}");
    drop((idle, busy));
    assert_eq!(own.ended().await, Ok(()));
}

#[tokio::test]
async fn connections_that_outlast_the_drain_time_are_cut_and_counted() {
    let mut running = start().await;
    let (_hold, held) = watch::channel(true);
    let upstream = http_server(&mut running.tasks, held).await.to_string();
    let mut own = run_with(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &upstream, &[])],
        Duration::from_millis(50),
    );
    let id = own.online().await.endpoints[0].id.clone();
    let mut busy = running.dial(&id).await;
    let request = b"GET /held HTTP/1.1\r\nhost: a.test\r\n\r\n";
    soon(busy.write_all(request)).await.unwrap();
    own.stop.cancel();
    let ended = own.ended().await;
    assert_eq!(ended, Err(AgentError::Cut(1)));
    assert_eq!(
        ended.unwrap_err().to_string(),
        "1 connection was closed at the end of the drain time"
    );
}

/// How a service ends a connection after its response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    /// TLS without `close_notify`.
    WithoutGoodbye,
    /// With a TCP reset.
    WithReset,
    /// While the client still sends its request.
    BeforeTheRequest,
}

/// A response that the service sent completely arrives completely, for each framing and each way of ending
/// the connection, with and without TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_response_arrives_however_the_service_leaves() {
    // Fits into the window of a stream.
    const BODY: usize = 200_000;
    let mut running = start().await;
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = Arc::new(
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![made.cert.der().clone()],
                rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
            )
            .unwrap(),
    );
    let trust = UpstreamTrust::Only(made.cert.pem().into_bytes());
    let framings = [
        format!("content-length: {BODY}\r\n"),
        "transfer-encoding: chunked\r\n".to_owned(),
        "connection: close\r\n".to_owned(),
    ];
    for leaves in [
        Leaves::WithoutGoodbye,
        Leaves::WithReset,
        Leaves::BeforeTheRequest,
    ] {
        for framing in &framings {
            // A body that is delimited by the close is incomplete after a reset.
            if leaves != Leaves::WithoutGoodbye && framing.starts_with("connection") {
                continue;
            }
            for tls in [true, false] {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let port = listener.local_addr().unwrap().port();
                let mut answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n").into_bytes();
                if framing.starts_with("transfer") {
                    answer.extend_from_slice(format!("{BODY:x}\r\n").as_bytes());
                }
                answer.extend_from_slice(&vec![b'd'; BODY]);
                if framing.starts_with("transfer") {
                    answer.extend_from_slice(b"\r\n0\r\n\r\n");
                }
                let (whole, config) = (answer.clone(), Arc::clone(&config));
                let (left, has_left) = oneshot::channel();
                running.tasks.spawn(async move {
                    let (socket, agent) = listener.accept().await.unwrap();
                    if leaves == Leaves::WithReset {
                        socket.set_zero_linger().unwrap();
                    }
                    if tls {
                        let mut socket = TlsAcceptor::from(config).accept(socket).await.unwrap();
                        respond(&mut socket, &answer, leaves).await;
                        taken_by_kernel(port, agent.port()).await;
                        // The connection closes without the shutdown that sends `close_notify`.
                        drop(socket);
                    } else {
                        let mut socket = socket;
                        respond(&mut socket, &answer, leaves).await;
                        taken_by_kernel(port, agent.port()).await;
                        drop(socket);
                    }
                    left.send(()).ok();
                });
                let scheme = if tls { "https" } else { "http" };
                let upstream = format!("{scheme}://localhost:{port}");
                let mut own = run(
                    &running,
                    "right",
                    vec![trusting(Protocol::Http, &upstream, &[], &trust)],
                );
                let id = own.online().await.endpoints[0].id.clone();
                let mut stream = running.dial(&id).await;
                let request = b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 3000000\r\n\r\n";
                soon(stream.write_all(request)).await.unwrap();
                let body = vec![b'u'; 3_000_000];
                let (mut reader, mut writer) = tokio::io::split(stream);
                let (_, came) = tokio::join!(writer.write_all(&body), async {
                    let mut came = Vec::new();
                    soon(has_left).await.unwrap();
                    while came.len() < whole.len() {
                        match soon(reader.read_buf(&mut came)).await {
                            Ok(read) if read > 0 => {}
                            Ok(_) | Err(_) => break,
                        }
                    }
                    came
                });
                assert!(
                    came == whole,
                    "{leaves:?} {framing:?} tls={tls}: {} of {} bytes",
                    came.len(),
                    whole.len()
                );
                own.stop.cancel();
            }
        }
    }
}

async fn respond(
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    answer: &[u8],
    leaves: Leaves,
) {
    let mut request = Vec::new();
    let wanted = match leaves {
        Leaves::BeforeTheRequest => 1,
        Leaves::WithoutGoodbye | Leaves::WithReset => 3_000_000,
    };
    while request.len() < wanted {
        socket.read_buf(&mut request).await.unwrap();
    }
    socket.write_all(answer).await.unwrap();
    socket.flush().await.unwrap();
    if leaves == Leaves::BeforeTheRequest {
        // Reads on for a moment as servers do, so that the kernel does not discard the response.
        let mut rest = vec![0; 64 << 10];
        while socket.read(&mut rest).await.unwrap_or(0) > 0 && request.len() < 2_000_000 {
            request.extend_from_slice(&rest);
        }
    }
}

/// Waits until the peer's kernel has received everything sent on the connection between two local ports.
async fn taken_by_kernel(from: u16, to: u16) {
    let is_sent = |table: &str| {
        table.lines().skip(1).all(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            !columns[1].ends_with(&format!(":{from:04X}"))
                || !columns[2].ends_with(&format!(":{to:04X}"))
                || columns[4].starts_with("00000000:")
        })
    };
    while !["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .all(|table| is_sent(&std::fs::read_to_string(table).unwrap_or_default()))
    {
        tokio::task::yield_now().await;
    }
}

/// A request to an unreachable service is recorded with the error.
#[tokio::test]
async fn a_request_to_a_service_that_is_down_is_kept_with_the_reason() {
    let running = start().await;
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Http, &gone.to_string(), &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    let mut stream = running.dial(&id).await;
    let request = b"GET /down HTTP/1.1\r\nhost: a.test\r\n\r\n";
    soon(stream.write_all(request)).await.unwrap();
    soon(stream.read_to_end(&mut Vec::new())).await.unwrap();
    let kept = own.agent.exchanges().unwrap().recent();
    assert_eq!(kept.len(), 1);
    assert_eq!((&kept[0].path[..], kept[0].status), ("/down", None));
    let error = kept[0].error.as_deref().unwrap();
    assert!(error.starts_with("the service is unreachable: "), "{error}");
}

/// The PROXY header that a server sends first.
const PROXIED: &[u8; 42] = b"PROXY TCP4 192.0.2.7 192.0.2.1 1234 4430\r\n";

#[tokio::test]
async fn tls_can_begin_or_end_at_the_agent_with_the_clients_address_ahead() {
    let mut running = start().await;
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let end = TlsEnd::new(chain.as_bytes(), key.as_bytes(), None).unwrap();

    // A service with TLS that reads the header first.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        )
        .unwrap();
    running.tasks.spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut header = [0; 42];
        socket.read_exact(&mut header).await.unwrap();
        assert_eq!(&header, PROXIED);
        let socket = TlsAcceptor::from(Arc::new(config))
            .accept(socket)
            .await
            .unwrap();
        answer_requests(socket, watch::channel(false).1).await;
    });
    let echo = echo_server(&mut running.tasks).await.to_string();
    let trust = UpstreamTrust::Only(chain.clone().into_bytes());
    let with_tls = trusting(
        Protocol::Http,
        &format!("https://localhost:{port}"),
        &[("proxy-proto", "1")],
        &trust,
    );
    let mut ending = endpoint(Protocol::Tls, &echo, &[]);
    ending.tls_end = Some(end);
    let mut own = run(&running, "right", vec![with_tls, ending]);
    let status = own.online().await;

    let mut stream = running.dial(&status.endpoints[0].id).await;
    stream.write_all(PROXIED).await.unwrap();
    assert_eq!(ask(&mut stream, "GET", "/secure", 0).await, b"/secure");

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = running.dial(&status.endpoints[1].id).await;
    let name = "localhost".try_into().unwrap();
    let mut clear = soon(TlsConnector::from(Arc::new(client)).connect(name, stream))
        .await
        .unwrap();
    clear.write_all(b"through and back").await.unwrap();
    let mut back = [0; 16];
    soon(clear.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"through and back");
}

/// A service that sends endlessly and reads nothing, or does neither.
async fn stalling_service(tasks: &mut JoinSet<()>, sends: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            connections.spawn(async move {
                while sends && socket.write_all(&[7; 16 << 10]).await.is_ok() {}
                std::future::pending::<()>().await;
            });
        }
    });
    address
}

/// The agent holds a limited number of bytes for streams whose readers stall, on either side, and releases
/// them with the streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_stall_take_a_bounded_amount_of_memory_and_give_it_back() {
    const STREAMS: usize = 40;
    // Queued in the session; or held by connections, and received by the session in a burst.
    for (sends, most) in [(true, 2 << 20), (false, (8 + 16 + 2) << 20)] {
        let mut running = start().await;
        let upstream = stalling_service(&mut running.tasks, sends).await;
        let mut own = run(
            &running,
            "right",
            vec![endpoint(Protocol::Tcp, &upstream, &[])],
        );
        let id = own.online().await.endpoints[0].id.clone();
        let mut streams = JoinSet::new();
        let stalled = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for _ in 0..STREAMS {
            let mut stream = running.dial(&id).await;
            let stalled = Arc::clone(&stalled);
            streams.spawn(async move {
                if sends {
                    soon(stream.read_u8()).await.unwrap();
                } else {
                    // Until no more is accepted, or the stream is reset.
                    let piece = [7; 16 << 10];
                    let mut sent = 0;
                    while sent < 64 << 20
                        && tokio::time::timeout(Duration::from_secs(2), stream.write_all(&piece))
                            .await
                            .is_ok_and(|written| written.is_ok())
                    {
                        sent += piece.len();
                    }
                }
                stalled.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                std::future::pending::<()>().await;
            });
        }
        soon(async {
            while stalled.load(std::sync::atomic::Ordering::Relaxed) < STREAMS {
                let held = own.agent.held_bytes();
                assert!(held <= most, "{held} bytes are held");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        streams.shutdown().await;
        soon(async {
            while own.agent.held_bytes() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        own.stop.cancel();
        drop(own.ended().await);
    }
}

/// An agent refuses streams above its limit as busy, and accepts others when those have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_opens_no_more_streams_than_the_agent_takes() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await;
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Tcp, &upstream.to_string(), &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    for _ in 0..2 {
        let mut streams = Vec::new();
        // One is the agent's heartbeat.
        for _ in 0..99 {
            streams.push(running.dial(&id).await);
        }
        let refused = running.dial_at_once(&id).unwrap_err();
        assert_eq!(refused, culvert_tunnel::server::DialError::Busy);
        for stream in streams {
            expect_echo(stream, 1_000).await;
        }
    }
    own.stop.cancel();
    drop(own.ended().await);
}

/// Under more streams than one connection should carry, the agent opens another and both serve; it closes the
/// additional one when the streams have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_get_a_further_connection_for_as_long_as_they_need_it() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await;
    let mut own = run_taking(
        &running,
        "right",
        vec![endpoint(Protocol::Tcp, &upstream.to_string(), &[])],
        Duration::from_secs(10),
        10_000,
    );
    let status = own.online().await;
    let id = &status.endpoints[0].id;
    let count = async |count: usize| {
        soon(async {
            while running.bindings.count(id) != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    let mut streams = Vec::new();
    for _ in 0..520 {
        streams.push(running.dial(id).await);
    }
    count(2).await;
    assert_eq!(running.bindings.connections(), 2);
    for _ in 0..2 {
        expect_echo(running.dial(id).await, 100_000).await;
    }
    // Both belong to one session, and the second one requests the same endpoint by its id.
    assert!(running.seen.borrow().ends.is_empty());
    assert_eq!(own.status.borrow().endpoints, status.endpoints);
    for stream in streams.drain(..10) {
        expect_echo(stream, 1_000).await;
    }
    drop(streams);
    count(1).await;
    expect_echo(running.dial(id).await, 1_000).await;
    own.stop.cancel();
    drop(own.ended().await);
}
