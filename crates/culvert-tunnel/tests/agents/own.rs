//! culvert's own agent against the server: endpoints of every kind, lost connections, commands, a clean
//! close, and recorded requests.

#[path = "own/network.rs"]
mod network;
#[path = "own/requests.rs"]
mod requests;
#[path = "own/servers.rs"]
mod servers;
#[path = "own/streams.rs"]
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Refusal, Secret, SeededEntropy, SystemClock, code};
use culvert_tunnel::client::{
    Agent, AgentError, Dialing, Endpoint, Event, Exchanges, FLAGS, Heartbeat, Protocol,
    RequestedEndpoint, RequestedTls, Servers, Settings, Status, Upstream, UpstreamTls,
};
use culvert_tunnel::server::{Command, EndReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Running, echo_server, expect_echo, soon, start};

/// An endpoint of `kind` in front of `upstream`, with flags.
fn endpoint(kind: Protocol, upstream: &str, flags: &[(&str, &str)]) -> Endpoint {
    trusting(kind, upstream, flags, &UpstreamTls::default())
}

/// Trusts the authorities in a PEM text.
fn trusted(pem: String) -> UpstreamTls {
    let requested = RequestedTls {
        authorities: Some(pem.into_bytes()),
        ..RequestedTls::default()
    };
    requested.options().unwrap()
}

fn trusting(
    kind: Protocol,
    upstream: &str,
    flags: &[(&str, &str)],
    trust: &UpstreamTls,
) -> Endpoint {
    let mut wanted = RequestedEndpoint::default();
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
    let servers = dialing(running.address, &running.authority).into();
    run_at(servers, token, endpoints, drain_time, streams_max)
}

fn dialing(address: SocketAddr, authority: &str) -> Dialing {
    let address = format!("localhost:{}", address.port());
    Dialing::new(&address, Some(authority.as_bytes())).unwrap()
}

fn run_at(
    servers: Servers,
    token: &str,
    endpoints: Vec<Endpoint>,
    drain_time: Duration,
    streams_max: usize,
) -> Own {
    let settings = Settings {
        servers,
        token: Secret::new(token.into()),
        metadata: "of the test".into(),
        version: "1.2.3".into(),
        drain_time,
        streams_max,
        heartbeat: Heartbeat::default(),
        is_managed: true,
        mistake_time: Duration::ZERO,
    };
    let (reported, events) = watch::channel(Vec::new());
    let agent = Arc::new(Agent::new(
        settings,
        endpoints,
        Some(Arc::new(Exchanges::new(Arc::new(SystemClock)))),
        Arc::new(SeededEntropy::new(1)),
        Arc::new(move |event| reported.send_modify(|events| events.push(event))),
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

/// A port that speaks HTTP is not that for agents, and will not become it.
#[tokio::test]
async fn a_port_of_another_protocol_ends_an_agent_that_was_never_online() {
    let running = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, mut tasks) = (listener.local_addr().unwrap(), JoinSet::new());
    tasks.spawn(async move {
        let (mut agent, _) = listener.accept().await.unwrap();
        let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        agent.write_all(answer).await.unwrap();
        while agent
            .read(&mut [0; 1024])
            .await
            .is_ok_and(|count| count > 0)
        {}
    });
    let servers = dialing(address, &running.authority).into();
    let endpoints = vec![endpoint(Protocol::Http, "1", &[])];
    let own = run_at(servers, "right", endpoints, Duration::ZERO, 100);
    let error = own.ended().await.unwrap_err();
    assert!(matches!(error, AgentError::Mistaken(_)), "{error}");
    assert!(
        error.to_string().contains("speaks HTTP without TLS"),
        "{error}"
    );
}

/// The server is away, and refuses for a while when it is back.
#[tokio::test]
async fn the_wait_for_a_server_that_refuses_begins_anew() {
    const AWAY: usize = 4;
    let running = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = Running {
        address: listener.local_addr().unwrap(),
        authority: running.authority.clone(),
        ..start().await
    };
    let (address, mut tasks) = (running.address, JoinSet::new());
    tasks.spawn(async move {
        for n in 0.. {
            let (mut agent, _) = listener.accept().await.unwrap();
            if n >= AWAY {
                let mut server = TcpStream::connect(address).await.unwrap();
                tokio::io::copy_bidirectional(&mut agent, &mut server)
                    .await
                    .ok();
            }
        }
    });
    let mut own = run(
        &between,
        "not now",
        vec![endpoint(Protocol::Http, "1", &[])],
    );
    let is_refusal =
        |event: &Event| matches!(event, Event::Waiting { why, .. } if why.contains("not now"));
    own.heard(is_refusal).await;
    let events = own.events.borrow().clone();
    let waits = events.iter().filter_map(|event| match event {
        Event::Waiting { after, .. } => Some(*after),
        _ => None,
    });
    let waits: Vec<_> = waits.collect();
    assert_eq!(waits.len(), AWAY + 1);
    assert!(waits[AWAY - 1] >= Duration::from_secs(2), "{waits:?}");
    assert!(waits[AWAY] <= Duration::from_millis(500), "{waits:?}");
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
