//! Bytes through TCP and TLS endpoints, slow and fast: exact both ways, also where the kernel moves them.

use std::net::SocketAddr;
use std::time::Duration;

use culvert_base::BoxFuture;
use culvert_policy::Scheme;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::buffers::AgentStream;
use super::harness::*;
use super::limits::free_port;
use crate::{
    AgentCall, AgentIo, AgentRefused, Clients, Dial, Endpoint, Limits, Protocol, Settings,
    Snapshot, Upstream,
};

/// More than the buffers of both sockets, so that either side waits for the other.
pub(super) const LONG: usize = 24 << 20;

/// Bytes whose every mix-up shows.
pub(super) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut all = vec![0; length.next_multiple_of(8)];
    for word in all.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    all.truncate(length);
    all
}

/// An edge with a TCP endpoint for this origin, and where it listens.
async fn relayed(settings: Settings, origin: SocketAddr) -> (Rig, SocketAddr) {
    let rig = Rig::with(settings).await;
    let port = free_port().await;
    let tcp = endpoint(Scheme::Tcp, "x", port, &format!("tcp://{origin}"), "");
    rig.edge
        .publish(Snapshot::builder().endpoint(tcp).build())
        .await;
    (rig, (std::net::Ipv4Addr::LOCALHOST, port).into())
}

/// An origin that hands its connections over.
async fn handed(tasks: &mut JoinSet<()>) -> (SocketAddr, mpsc::Receiver<TcpStream>) {
    let (send, connections) = mpsc::channel(8);
    let address = origin(tasks, move |client| {
        let send = send.clone();
        async move { send.send(client.stream).await.unwrap() }
    })
    .await;
    (address, connections)
}

/// Both ends of a relayed connection.
async fn pair(at: SocketAddr, origins: &mut mpsc::Receiver<TcpStream>) -> (TcpStream, TcpStream) {
    pair_of(TcpStream::connect(at).await.unwrap(), origins).await
}

/// The same with a client that takes few bytes at a time.
async fn slow_pair(
    at: SocketAddr,
    origins: &mut mpsc::Receiver<TcpStream>,
) -> (TcpStream, TcpStream) {
    pair_of(slow_reader(at).await, origins).await
}

async fn pair_of(
    mut client: TcpStream,
    origins: &mut mpsc::Receiver<TcpStream>,
) -> (TcpStream, TcpStream) {
    // The endpoint connects to its upstream immediately.
    client.write_all(b"!").await.unwrap();
    let mut upstream = soon("a connection", origins.recv()).await.unwrap();
    assert_eq!(upstream.read_u8().await.unwrap(), b'!');
    (client, upstream)
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_arrive_in_order_in_both_directions_and_are_counted() {
    let mut tasks = JoinSet::new();
    let (origin, mut origins) = handed(&mut tasks).await;
    let (rig, at) = relayed(settings(), origin).await;
    let (client, upstream) = pair(at, &mut origins).await;
    let (up, down) = (bytes(1, LONG), bytes(2, LONG + 4321));
    let halves = [(client, up.clone(), down.clone()), (upstream, down, up)];
    let mut ends = JoinSet::new();
    for (stream, sends, expects) in halves {
        let (mut read, mut write) = stream.into_split();
        ends.spawn(async move {
            // Large and small writes take turns, so the relay changes how it moves them.
            for (number, part) in sends.chunks(3 << 20).enumerate() {
                let step = if number % 2 == 0 { part.len() } else { 40_009 };
                for piece in part.chunks(step) {
                    write.write_all(piece).await.unwrap();
                }
            }
            write.shutdown().await.unwrap();
        });
        ends.spawn(async move {
            let mut all = Vec::new();
            soon("all bytes", read.read_to_end(&mut all)).await.unwrap();
            assert!(all == expects, "{} bytes of {}", all.len(), expects.len());
        });
    }
    while let Some(ended) = ends.join_next().await {
        ended.unwrap();
    }
    let events = rig.recorder.events(1).await;
    let closed = of(&events, TCP)[0];
    assert_eq!(closed["object"]["conn"]["bytes_in"], LONG + 1);
    assert_eq!(closed["object"]["conn"]["bytes_out"], LONG + 4321);
}

/// One side ends, and the other goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_half_leaves_the_other_open() {
    let mut tasks = JoinSet::new();
    let (origin, mut origins) = handed(&mut tasks).await;
    let (_rig, at) = relayed(settings(), origin).await;
    let (mut client, mut upstream) = pair(at, &mut origins).await;
    client.shutdown().await.unwrap();
    assert_eq!(upstream.read(&mut [0; 8]).await.unwrap(), 0);
    let down = bytes(3, LONG);
    let sent = down.clone();
    tasks.spawn(async move {
        upstream.write_all(&sent).await.unwrap();
        upstream.shutdown().await.unwrap();
    });
    let mut all = Vec::new();
    soon("all bytes", client.read_to_end(&mut all))
        .await
        .unwrap();
    assert!(all == down);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_every_byte() {
    let mut tasks = JoinSet::new();
    let (origin, mut origins) = handed(&mut tasks).await;
    let (_rig, at) = relayed(settings(), origin).await;
    let (mut client, mut upstream) = slow_pair(at, &mut origins).await;
    let down = bytes(4, LONG);
    let sent = down.clone();
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        upstream.write_all(&sent).await.unwrap();
        upstream
    });
    let mut all = vec![0; 1 << 20];
    soon("a part", client.read_exact(&mut all)).await.unwrap();
    let mut piece = [0; 7_001];
    while all.len() < down.len() {
        let count = soon("bytes", client.read(&mut piece)).await.unwrap();
        assert_ne!(count, 0);
        all.extend_from_slice(&piece[..count]);
    }
    assert!(all == down);
    // And the other direction still works.
    let mut upstream = sending.join_next().await.unwrap().unwrap();
    client.write_all(b"thanks").await.unwrap();
    let mut thanks = [0; 6];
    soon("thanks", upstream.read_exact(&mut thanks))
        .await
        .unwrap();
    assert_eq!(&thanks, b"thanks");
}

/// A reset in the middle of fast bytes ends the other side, and what had arrived is a prefix.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_in_the_middle_ends_both_sides() {
    let mut tasks = JoinSet::new();
    let (origin, mut origins) = handed(&mut tasks).await;
    let (rig, at) = relayed(settings(), origin).await;
    for resets_client in [true, false] {
        let (client, upstream) = pair(at, &mut origins).await;
        let (mut reader, mut sender) = match resets_client {
            true => (client, upstream),
            false => (upstream, client),
        };
        let sent = bytes(5, LONG);
        let expected = sent.clone();
        let mut sending = JoinSet::new();
        sending.spawn(async move {
            // Fails once the relay has ended.
            let result = sender.write_all(&sent).await;
            (sender, result)
        });
        let mut all = vec![0; 4 << 20];
        soon("a part", reader.read_exact(&mut all)).await.unwrap();
        assert!(all == expected[..all.len()]);
        socket2::SockRef::from(&reader)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(reader);
        let sent = soon("the end", sending.join_next()).await;
        let (mut sender, result) = sent.unwrap().unwrap();
        if result.is_ok() {
            let ended = soon("the end", sender.read(&mut [0; 8])).await;
            assert!(matches!(ended, Ok(0) | Err(_)));
        }
    }
    let events = rig.recorder.events(2).await;
    for event in of(&events, TCP) {
        let conn = &event["object"]["conn"];
        let moved = conn["bytes_in"].as_u64().unwrap() + conn["bytes_out"].as_u64().unwrap();
        assert!(moved > 4 << 20 && moved <= LONG as u64 + 1, "{conn}");
    }
}

/// A client that reads nothing is disconnected, however its bytes are moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_is_disconnected() {
    let mut tasks = JoinSet::new();
    let (origin, mut origins) = handed(&mut tasks).await;
    let limits = Limits {
        write_stall: Duration::from_millis(300),
        ..settings().limits
    };
    let settings = Settings {
        limits,
        ..settings()
    };
    let (rig, at) = relayed(settings, origin).await;
    let (mut client, mut upstream) = slow_pair(at, &mut origins).await;
    let down = bytes(6, LONG);
    let mut sending = JoinSet::new();
    sending.spawn(async move { upstream.write_all(&down).await });
    let mut part = vec![0; 4 << 20];
    soon("a part", client.read_exact(&mut part)).await.unwrap();
    // It reads nothing more.
    let events = rig.recorder.events(1).await;
    let moved = of(&events, TCP)[0]["object"]["conn"]["bytes_out"].as_u64();
    assert!(moved.is_some_and(|moved| moved >= 4 << 20 && moved < LONG as u64));
    drop(soon("the end", sending.join_next()).await);
}

/// A connection without traffic for the idle timeout ends, also after fast bytes.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_ends_after_fast_bytes() {
    let mut tasks = JoinSet::new();
    let (origin, mut origins) = handed(&mut tasks).await;
    let limits = Limits {
        tunnel_idle: Duration::from_secs(4),
        ..settings().limits
    };
    let settings = Settings {
        limits,
        ..settings()
    };
    let (_rig, at) = relayed(settings, origin).await;
    let down = bytes(7, LONG);
    let sent = down.clone();
    let (mut client, mut upstream) = pair(at, &mut origins).await;
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        upstream.write_all(&sent).await.unwrap();
        upstream
    });
    let mut all = vec![0; LONG];
    soon("all bytes", client.read_exact(&mut all))
        .await
        .unwrap();
    assert!(all == down);
    let _upstream = sending.join_next().await.unwrap().unwrap();
    let ended = soon("the end", client.read(&mut [0; 8])).await;
    assert!(matches!(ended, Ok(0) | Err(_)));
}

/// The kernel moves no bytes across TCP's urgent mark, and says at the end that there are none behind it.
#[tokio::test]
async fn bytes_behind_urgent_data_arrive() {
    for is_closed in [false, true] {
        let mut tasks = JoinSet::new();
        let (origin, mut origins) = handed(&mut tasks).await;
        let (_rig, at) = relayed(settings(), origin).await;
        let (mut client, mut upstream) = pair(at, &mut origins).await;
        let (fast, behind) = (bytes(3, LONG), bytes(4, 5000));
        let expected = [fast.clone(), behind.clone()].concat();
        tasks.spawn(async move {
            client.write_all(&fast).await.unwrap();
            let urgent = socket2::SockRef::from(&client);
            while urgent.send_out_of_band(b"!").is_err() {
                client.writable().await.unwrap();
                tokio::task::yield_now().await;
            }
            client.write_all(&behind).await.unwrap();
            if is_closed {
                client.shutdown().await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        let mut all = vec![0; expected.len()];
        soon("all bytes", upstream.read_exact(&mut all))
            .await
            .unwrap();
        assert!(all == expected);
        if is_closed {
            assert_eq!(soon("the end", upstream.read(&mut [0])).await.unwrap(), 0);
        }
    }
}

/// An HTTP origin: `/short` has a few bytes; `/long` has many; `/cut` ends in their middle; `/chunks` has no length.
async fn bodies(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let length = format!("HTTP/1.1 200 OK\r\ncontent-length: {LONG}\r\n\r\n");
            match head.split(' ').nth(1).unwrap() {
                "/short" => {
                    let short = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
                    client.send(short).await;
                }
                "/cut" => {
                    client.send(length).await;
                    client.send(&bytes(8, LONG)[..LONG / 2]).await;
                    return;
                }
                "/chunks" => {
                    client
                        .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                        .await;
                    for part in bytes(8, LONG).chunks(1 << 20) {
                        client.send(format!("{:x}\r\n", part.len())).await;
                        client.send(part).await;
                        client.send("\r\n").await;
                    }
                    client.send("0\r\n\r\n").await;
                }
                _ => {
                    client.send(length).await;
                    client.send(bytes(8, LONG)).await;
                }
            }
        }
    })
    .await
}

fn ask(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn long_and_short_bodies_take_turns_on_one_connection() {
    let mut tasks = JoinSet::new();
    let origin = bodies(&mut tasks).await;
    let rig = Rig::start().await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    let paths = ["/long", "/short", "/chunks", "/long", "/long", "/short"];
    // All requests are sent together, so the edge has each next request while it sends.
    client.send(paths.map(ask).concat()).await;
    for path in paths {
        let answer = client.answer("GET").await;
        match path {
            "/short" => assert_eq!(answer.body, b"hello"),
            _ => assert!(answer.body == bytes(8, LONG), "{path}"),
        }
    }
    let events = rig.recorder.events(paths.len()).await;
    for (event, path) in of(&events, HTTP).into_iter().zip(paths) {
        let length = if path == "/short" { 5 } else { LONG };
        let response = &event["object"]["http"]["response"];
        assert_eq!(response["body_length"], length, "{path}");
    }
    // One connection to the upstream served all of them.
    let reused = of(&events, HTTP)
        .iter()
        .filter(|event| event["object"]["backend"]["connection_reused"] == true)
        .count();
    assert_eq!(reused, paths.len() - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_that_breaks_off_ends_the_connection() {
    let mut tasks = JoinSet::new();
    let origin = bodies(&mut tasks).await;
    let rig = Rig::start().await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client.send(ask("/cut")).await;
    assert!(client.head().await.unwrap().starts_with("HTTP/1.1 200"));
    let body = client.rest().await;
    assert!(body == bytes(8, LONG)[..LONG / 2], "{} bytes", body.len());
    let events = rig.recorder.events(1).await;
    let length = &of(&events, HTTP)[0]["object"]["http"]["response"]["body_length"];
    assert_eq!(length, LONG / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_download_is_recorded_with_the_bytes_received() {
    let mut tasks = JoinSet::new();
    let origin = bodies(&mut tasks).await;
    let rig = Rig::start().await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect_slow_reader().await;
    client.send(ask("/long")).await;
    client.head().await.unwrap();
    assert!(client.take(6 << 20).await.unwrap() == bytes(8, LONG)[..6 << 20]);
    drop(client);
    let events = rig.recorder.events(2).await;
    let response = &of(&events, HTTP)[0]["object"]["http"]["response"];
    let length = response["body_length"].as_u64().unwrap();
    assert!(
        length >= 6 << 20 && length < LONG as u64,
        "{length} of {LONG}"
    );
    // The next client is served as if nothing had happened.
    let answer = rig.ask(&ask("/short")).await;
    assert_eq!(answer.body, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_every_byte_of_a_long_body() {
    let mut tasks = JoinSet::new();
    let origin = bodies(&mut tasks).await;
    let rig = Rig::start().await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect_slow_reader().await;
    client.send(ask("/long")).await;
    client.head().await.unwrap();
    let mut body = client.take(1 << 20).await.unwrap();
    body.append(&mut client.read);
    let mut piece = [0; 9_001];
    while body.len() < LONG {
        let count = soon("bytes", client.stream.read(&mut piece)).await.unwrap();
        assert_ne!(count, 0);
        body.extend_from_slice(&piece[..count]);
    }
    assert!(body == bytes(8, LONG));
    client.send(ask("/short")).await;
    assert_eq!(client.answer("GET").await.body, b"hello");
}

/// Bytes that an agent may send ahead: several pieces.
const AGENT_BYTES: usize = 256 << 10;

/// Gives the test the other end of each stream to an agent.
#[derive(Debug)]
struct Agents(mpsc::Sender<DuplexStream>);

impl Dial for Agents {
    fn dial(&self, _: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let (near, far) = tokio::io::duplex(AGENT_BYTES);
        self.0.try_send(far).expect("one stream");
        Ok(Box::new(AgentStream(near)))
    }

    fn dial_in_turn<'a>(
        &'a self,
        call: AgentCall<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn AgentIo>, AgentRefused>> {
        Box::pin(async move { self.dial(&call) })
    }

    fn is_online(&self, _: &str) -> bool {
        true
    }
}

/// Pieces in memory are written together, and what the client does not take is kept in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_gets_all_pieces_of_an_agent_in_order_and_the_end() {
    let (send, mut streams) = mpsc::channel(1);
    let rig = Rig::with(Settings {
        agents: Some(std::sync::Arc::new(Agents(send))),
        ..settings()
    })
    .await;
    let port = free_port().await;
    let agents = Upstream::agent("ep_1", Scheme::Tcp, Protocol::Http1, None, Clients::Apart);
    let endpoint = Endpoint {
        upstream: Some(agents),
        ..endpoint(Scheme::Tcp, "x", port, "tcp://127.0.0.1:1", "")
    };
    let snapshot = Snapshot::builder().endpoint(endpoint).build();
    rig.edge.publish(snapshot).await;
    let mut client = slow_reader((std::net::Ipv4Addr::LOCALHOST, port).into()).await;
    client.write_all(b"!").await.unwrap();
    let mut agent = soon("a stream", streams.recv()).await.unwrap();
    assert_eq!(agent.read_u8().await.unwrap(), b'!');
    let down = bytes(5, LONG);
    let sent = down.clone();
    let mut sending = JoinSet::new();
    sending.spawn(async move {
        // Large and small writes take turns.
        for (number, part) in sent.chunks(1 << 20).enumerate() {
            let step = if number % 2 == 0 { part.len() } else { 3_001 };
            for piece in part.chunks(step) {
                agent.write_all(piece).await.unwrap();
            }
        }
        agent.shutdown().await.unwrap();
        agent
    });
    let mut all = Vec::new();
    let mut room = vec![0; 10_007];
    loop {
        match soon("bytes", client.read(&mut room)).await.unwrap() {
            0 => break,
            read => all.extend_from_slice(&room[..read]),
        }
        tokio::task::yield_now().await;
    }
    assert!(all == down, "{} bytes of {}", all.len(), down.len());
    drop(sending.join_all().await);
}
