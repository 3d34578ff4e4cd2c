//! TLS at the agent, and limits of streams.

use std::sync::Arc;
use std::time::Duration;

use culvert_tunnel::client::{Protocol, TlsEnd};
use culvert_tunnel::server::DialError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::{echo_server, expect_echo, soon, start};
use super::requests::{answer_requests, ask};
use super::{endpoint, run, run_taking, trusted, trusting};

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
    let trust = trusted(chain.clone());
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
                    // Until writes block or the stream is reset.
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
        assert_eq!(refused, DialError::Busy);
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

/// After a load peak, a further connection takes no new streams and keeps those that it has, however long they last
/// compared with the time for a stop. It serves again under the next peak, and ends with its last stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_no_longer_needed_ends_with_its_last_stream() {
    let mut running = start().await;
    let upstream = echo_server(&mut running.tasks).await;
    let mut own = run_taking(
        &running,
        "right",
        vec![endpoint(Protocol::Tcp, &upstream.to_string(), &[])],
        Duration::from_millis(1),
        10_000,
    );
    let id = own.online().await.endpoints[0].id.clone();
    let bindings = Arc::clone(&running.bindings);
    let until = async |holds: &dyn Fn() -> bool| {
        soon(async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    };
    let mut peak = Vec::new();
    for _ in 0..520 {
        peak.push(running.dial(&id).await);
    }
    until(&|| bindings.count(&id) == 2).await;
    let mut long = [running.dial(&id).await, running.dial(&id).await];
    for stream in &mut long {
        echo_once(stream).await;
    }
    drop(peak);
    until(&|| bindings.count(&id) == 1).await;
    for stream in &mut long {
        echo_once(stream).await;
    }
    assert_eq!(bindings.connections(), 2);

    let mut peak = Vec::new();
    for _ in 0..520 {
        peak.push(running.dial(&id).await);
    }
    until(&|| bindings.count(&id) == 2).await;
    assert_eq!(running.seen.borrow().hellos.len(), 2, "it is the same one");
    for stream in &mut long {
        echo_once(stream).await;
    }
    expect_echo(running.dial(&id).await, 1_000).await;
    expect_echo(running.dial(&id).await, 1_000).await;
    drop(peak);
    until(&|| bindings.count(&id) == 1).await;
    assert_eq!(bindings.connections(), 2);
    for stream in long {
        expect_echo(stream, 1_000).await;
    }
    until(&|| bindings.connections() == 1).await;
    own.stop.cancel();
    assert_eq!(own.ended().await, Ok(()));
}

async fn echo_once(stream: &mut culvert_tunnel::driver::Stream) {
    stream.write_all(b"back").await.unwrap();
    let mut back = [0; 4];
    soon(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"back");
}

/// Clients that download and read nothing hold no place that another client needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_do_not_read_make_room_for_another_client() {
    let mut running = start().await;
    let upstream = stalling_service(&mut running.tasks, true).await;
    let mut own = run(
        &running,
        "right",
        vec![endpoint(Protocol::Tcp, &upstream, &[])],
    );
    let id = own.online().await.endpoints[0].id.clone();
    // One place has the agent's heartbeat.
    let mut held = Vec::new();
    for nth in 0..99 {
        let mut stream = running.dial_from(&id, "192.0.2.1:1").unwrap();
        soon(stream.read_u8())
            .await
            .unwrap_or_else(|error| panic!("{nth}: {error}"));
        held.push(stream);
    }
    let mut others = soon(async {
        loop {
            match running.dial_from(&id, "198.51.100.1:1") {
                Ok(stream) => return stream,
                Err(error) => assert_eq!(error, DialError::Busy),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(soon(others.read_u8()).await.unwrap(), 7);
}
