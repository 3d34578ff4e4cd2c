//! Several servers, of which some do not serve, and the end of an agent whose server has gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_tunnel::client::{AgentError, Dialing, Event, Protocol, Servers};
use culvert_tunnel::server::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::super::{Running, echo_server, server_tls, soon, start, start_full};
use super::{dialing, endpoint, run_at, run_with};

/// Servers that do not serve, each in another way.
struct Bad {
    servers: Vec<(&'static str, Dialing)>,
    full: Running,
    _closed: TcpSocket,
    _tasks: JoinSet<()>,
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn bad_servers() -> Bad {
    let mut tasks = JoinSet::new();
    // Bound, so that no other program listens there.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (leaves, leaves_at) = listen().await;
    tasks.spawn(async move {
        loop {
            drop(leaves.accept().await.unwrap());
        }
    });
    let (greets, greets_at) = listen().await;
    let (authority, tls) = server_tls();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    tasks.spawn(async move {
        loop {
            let (socket, _) = greets.accept().await.unwrap();
            if let Ok(mut socket) = acceptor.accept(socket).await {
                socket.shutdown().await.ok();
            }
        }
    });
    let (hangs, hangs_at) = listen().await;
    tasks.spawn(async move {
        let mut sockets = Vec::new();
        loop {
            sockets.push(hangs.accept().await.unwrap());
        }
    });
    let full = start_full().await;
    let impatient = dialing(hangs_at, &authority).within(Duration::from_millis(200));
    let servers = vec![
        (
            "closed port",
            dialing(closed.local_addr().unwrap(), &authority),
        ),
        ("accepts and closes", dialing(leaves_at, &authority)),
        ("completes TLS and closes", dialing(greets_at, &authority)),
        ("refuses", dialing(full.address, &full.authority)),
        ("hangs", impatient),
    ];
    Bad {
        servers,
        full,
        _closed: closed,
        _tasks: tasks,
    }
}

/// The first of two sessions of an agent, of which the second waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_finds_the_one_server_that_serves() {
    let (running, bad) = (start().await, bad_servers().await);
    let healthy = dialing(running.address, &running.authority);
    for (kind, server) in &bad.servers {
        let mut cases = JoinSet::new();
        for count in 1..=3 {
            for place in 0..count {
                let mut all = vec![server.clone(); count];
                all[place] = healthy.clone();
                let (address, kind) = (healthy.address().to_owned(), *kind);
                let sessions = Servers::of_sessions(all);
                cases.spawn(async move {
                    let endpoints = vec![endpoint(Protocol::Http, "1", &[])];
                    let drain_time = Duration::from_secs(10);
                    let mut own = run_at(sessions[0].clone(), "right", endpoints, drain_time, 100);
                    let status = own.online().await;
                    let case = format!("{kind}: the server {place} of {count} serves");
                    assert_eq!(status.server, address, "{case}");
                    let events = own.events.borrow().clone();
                    let attempts = events
                        .iter()
                        .filter(|it| matches!(it, Event::Connecting { .. }));
                    assert_eq!(attempts.count(), place + 1, "{case}: {events:?}");
                    own.stop.cancel();
                    assert_eq!(own.ended().await, Ok(()));
                });
            }
        }
        soon(cases.join_all()).await;
    }
    assert!(bad.full.seen.borrow().hellos.is_empty());
}

/// A way to the server that can be closed: its newest connection ends, and no other follows.
async fn closable(running: &mut Running) -> watch::Sender<bool> {
    let (listener, address) = listen().await;
    let server = std::mem::replace(&mut running.address, address);
    let is_closed = watch::Sender::new(false);
    let closed = is_closed.subscribe();
    running.tasks.spawn(async move {
        let mut connections = JoinSet::new();
        for nth in 0.. {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut closed = closed.clone();
            connections.spawn(async move {
                let mut far = TcpStream::connect(server).await.unwrap();
                let closes = async {
                    closed.wait_for(|it| *it).await.unwrap();
                    if nth == 0 {
                        std::future::pending().await
                    }
                };
                tokio::select! {
                    biased;
                    () = closes => {}
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                }
            });
        }
    });
    is_closed
}

/// The agent was moved to another connection, lost that, and waits when it is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_between_two_attempts_leaves_open_connections_their_time() {
    let mut running = start().await;
    let closed = closable(&mut running).await;
    let upstream = echo_server(&mut running.tasks).await.to_string();
    let endpoints = vec![endpoint(Protocol::Tcp, &upstream, &[])];
    let mut own = run_with(&running, "right", endpoints, Duration::from_secs(5));
    let id = own.online().await.endpoints[0].id.clone();
    let mut open = running.dial(&id).await;
    open.write_all(b"ear").await.unwrap();
    let mut back = [0; 3];
    soon(open.read_exact(&mut back)).await.unwrap();
    let bindings = Arc::clone(&running.bindings);
    assert_eq!(bindings.command("ts_0", &Command::Restart).await, Ok(()));
    own.heard(|event| matches!(event, Event::Online { again: true, .. }))
        .await;

    closed.send_replace(true);
    // Long enough for the stop to come before the next attempt.
    let long = |event: &Event| matches!(event, Event::Waiting { after, .. } if *after > Duration::from_secs(1));
    own.heard(long).await;
    own.stop.cancel();
    open.write_all(b"lier").await.unwrap();
    let mut back = [0; 4];
    soon(open.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"lier");
    assert_eq!(own.ended().await, Err(AgentError::Cut(1)));
}
