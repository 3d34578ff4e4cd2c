//! Attacks of peers on the ingress: each limit at its value and one above it, and invalid input. Each ends at
//! most one connection, and others are not affected.

use std::time::Duration;

use bytes::Bytes;
use culvert_tunnel::server::DialError;
use culvert_tunnel::wire::{
    self, AuthReply, BindReply, BindRequest, Outcome, ProxyHeader, StreamType, UnbindRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{ask, auth, expect_echo, soon, start};

fn tcp() -> BindRequest {
    BindRequest {
        proto: "tcp".into(),
        ..BindRequest::default()
    }
}

/// Sends a call of this length, padded with harmless bytes, and returns the code of the reply.
async fn padded(
    session: &culvert_tunnel::driver::Session,
    kind: StreamType,
    text: &str,
    length: usize,
) -> Option<u16> {
    let rest = text.strip_prefix('{').unwrap();
    let padding = length - text.len() - r#""Padding":"","#.len();
    let text = format!(r#"{{"Padding":"{}",{rest}"#, "x".repeat(padding));
    assert_eq!(text.len(), length);
    let mut stream = session
        .open(Bytes::copy_from_slice(&kind.to_bytes()))
        .unwrap();
    // A server that has read enough stops reading.
    stream.write_all(text.as_bytes()).await.ok();
    let mut reply = Vec::new();
    soon(stream.read_to_end(&mut reply)).await.unwrap();
    let outcome: Outcome = wire::parse(serde_json::from_slice(&reply).unwrap()).unwrap();
    wire::code_of(&outcome.error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_limit_holds_at_its_number_and_no_further() {
    let mut running = start().await;

    // Maximum size of a call, for unauthenticated and authenticated agents.
    let introduction = serde_json::to_string(&auth("", 30)).unwrap();
    let stranger = running.dialled().await;
    assert_eq!(
        padded(&stranger, StreamType::AUTH, &introduction, (64 << 10) + 1).await,
        Some(812)
    );
    let agent = running.dialled().await;
    assert_eq!(
        padded(&agent, StreamType::AUTH, &introduction, 64 << 10).await,
        None
    );
    let want = serde_json::to_string(&tcp()).unwrap();
    assert_eq!(
        padded(&agent, StreamType::BIND, &want, (1 << 20) + 1).await,
        Some(812)
    );
    assert_eq!(padded(&agent, StreamType::BIND, &want, 1 << 20).await, None);

    // Endpoints of a session, which has one already. Concurrent requests do not get around the limit.
    for _ in 1..80 {
        let reply: BindReply = ask(&agent, StreamType::BIND, &tcp()).await;
        assert_eq!(reply.error, "");
    }
    let mut asked = JoinSet::new();
    for _ in 0..40 {
        let agent = agent.clone();
        asked.spawn(async move { ask::<BindReply>(&agent, StreamType::BIND, &tcp()).await });
    }
    let (mut bound, mut refused) = (Vec::new(), Vec::new());
    for reply in asked.join_all().await {
        match wire::code_of(&reply.error) {
            None => bound.push(reply.id),
            Some(code) => refused.push(code),
        }
    }
    assert_eq!((bound.len(), refused), (20, vec![324; 20]));
    // Removing one makes room for one.
    let gone = UnbindRequest {
        id: bound.remove(0),
    };
    let unbound: Outcome = ask(&agent, StreamType::UNBIND, &gone).await;
    assert_eq!(unbound.error, "");
    for expected in [None, Some(324)] {
        let reply: BindReply = ask(&agent, StreamType::BIND, &tcp()).await;
        assert_eq!(wire::code_of(&reply.error), expected);
    }

    // Streams of a connection.
    let (agent, _) = running.admitted("").await;
    let bound: BindReply = ask(&agent, StreamType::BIND, &tcp()).await;
    let header = ProxyHeader {
        id: bound.id,
        client_addr: "192.0.2.7:1234".into(),
        proto: "tcp".into(),
        edge_type: "1".into(),
        passthrough_tls: false,
    };
    let mut open = Vec::new();
    soon(async {
        while open.len() < 480 {
            match running.bindings.dial(&header) {
                Ok(stream) => open.push((stream, agent.accept().await.unwrap())),
                // Streams of the calls before are still ending.
                Err(DialError::Busy) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;
    assert_eq!(running.bindings.dial(&header).unwrap_err(), DialError::Busy);
    // All of them carry data, and one that ends makes room.
    for (server, agent) in &mut open {
        server.write_all(b"ping").await.unwrap();
        let mut bytes = vec![0; wire_length(&header) + 4];
        soon(agent.read_exact(&mut bytes)).await.unwrap();
        assert!(bytes.ends_with(b"ping"));
    }
    drop(open.pop());
    soon(async {
        while running.bindings.dial(&header).is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;

    // Unauthenticated connections of one source: of seventeen, one is closed immediately. The earlier one has
    // to be gone first.
    drop(stranger);
    soon(async {
        loop {
            let mut strangers = JoinSet::new();
            for _ in 0..17 {
                let mut stranger = TcpStream::connect(running.address).await.unwrap();
                strangers.spawn(async move {
                    let reading = stranger.read_u8();
                    let is_open = timeout(Duration::from_secs(2), reading).await.is_err();
                    // The open ones stay open while the others are checked.
                    (is_open, stranger)
                });
            }
            let looked_at = strangers.join_all().await;
            if looked_at.iter().filter(|(is_open, _)| *is_open).count() == 16 {
                break;
            }
        }
    })
    .await;
}

/// Number of bytes before the payload of a connection.
fn wire_length(header: &ProxyHeader) -> usize {
    header.encode().len()
}

/// A frame of any type.
fn frame(kind: u8, stream: u32, length: usize, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).unwrap();
    [
        &length.to_be_bytes()[1..],
        &[kind],
        &stream.to_be_bytes(),
        payload,
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_protocol_ends_one_connection_at_most() {
    let mut running = start().await;
    // It sends nothing for longer than invalid connections may last.
    let agent = running.dialled().await;
    let reply: AuthReply = ask(&agent, StreamType::AUTH, &auth("", 580)).await;
    assert_eq!(reply.error, "");
    let bound: BindReply = ask(&agent, StreamType::BIND, &tcp()).await;
    let goaway = |text: &[u8]| {
        let payload = [&[0, 0, 0, 2, 0, 0, 0, 0][..], text].concat();
        frame(0x30, 0, payload.len(), &payload)
    };
    let auth_stream = [&StreamType::AUTH.to_bytes()[..], b"{"].concat();
    let open = frame(0x12, 3, 5, &auth_stream);
    let beyond = [open.clone(), frame(0x10, 3, 300_000, &vec![b' '; 300_000])].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "nothing but text",
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        ),
        ("zeros", vec![0; 4096]),
        ("ones", vec![0xFF; 4096]),
        ("half a header", vec![0, 0]),
        ("a goodbye without its fields", frame(0x30, 0, 2, b"xx")),
        ("a goodbye of nothing", frame(0x30, 0, 0, b"")),
        (
            "a goodbye that goes on",
            [goaway(b"bye"), open.clone(), goaway(&[0xFE; 9])].concat(),
        ),
        ("a goodbye of a mebibyte", goaway(&vec![b'x'; 1 << 20])),
        (
            "a goodbye that is never whole",
            frame(0x30, 0, 0xFF_FFFF, b"x"),
        ),
        ("a reset of stream nought", frame(0x00, 0, 4, &[0; 4])),
        ("a reset without a code", frame(0x00, 3, 1, b"x")),
        (
            "credit of nothing",
            [open.clone(), frame(0x20, 3, 4, &[0; 4])].concat(),
        ),
        (
            "credit without end",
            [
                open.clone(),
                frame(0x20, 3, 4, &[0x7F, 0xFF, 0xFF, 0xFF]).repeat(4),
            ]
            .concat(),
        ),
        ("data beyond the window", beyond),
        (
            "data of no stream",
            frame(0x10, 9, 300_000, &vec![1; 300_000]),
        ),
        ("a stream of the server's", frame(0x12, 2, 4, &[0; 4])),
        ("one stream twice", [open.clone(), open.clone()].concat()),
        ("frames of no kind", frame(0x70, 0, 0, b"").repeat(100)),
        (
            "streams without end",
            (0..512)
                .flat_map(|nth| frame(0x12, 3 + 2 * nth, 4, &[0; 4]))
                .collect(),
        ),
        (
            "a call in pieces that never ends",
            [open, frame(0x10, 3, 1, b" ").repeat(2000)].concat(),
        ),
    ];
    let header = ProxyHeader {
        id: bound.id.clone(),
        client_addr: "192.0.2.7:1234".into(),
        proto: "tcp".into(),
        edge_type: "1".into(),
        passthrough_tls: false,
    };
    // Not more at a time than the limit of unauthenticated connections.
    let mut cases = cases.into_iter().peekable();
    while cases.peek().is_some() {
        let mut ends = JoinSet::new();
        for (what, bytes) in cases.by_ref().take(10) {
            let mut socket = running.connected().await;
            ends.spawn(async move {
                socket.write_all(&bytes).await.ok();
                // It ends immediately, or when its time to authenticate is over.
                let mut said = Vec::new();
                soon(async { while socket.read_buf(&mut said).await.unwrap_or(0) > 0 {} }).await;
                assert!(said.len() < 1 << 20, "{what}: {} bytes", said.len());
            });
        }
        // Other agents are served meanwhile.
        let server = running.dial(&bound.id).await;
        let echo = async {
            let mut stream = agent.accept().await.unwrap();
            let mut head = vec![0; wire_length(&header)];
            stream.read_exact(&mut head).await.unwrap();
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        soon(async { tokio::join!(expect_echo(server, 100_000), echo) }).await;
        ends.join_all().await;
    }
    assert_eq!(running.bindings.connections(), 1);
    assert!(running.seen.borrow().ends.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_tokens_without_end_let_right_ones_through() {
    let mut running = start().await;
    let mut wrong = auth("", 30);
    wrong.extra.token = "wrong".into();
    let mut refused = 0;
    for _ in 0..12 {
        let session = running.dialled().await;
        let reply: Outcome = ask(&session, StreamType::AUTH, &wrong).await;
        assert_eq!(wire::code_of(&reply.error), Some(109));
        refused += 1;
        soon(session.ended()).await;
    }
    // Replies are delayed by now; an authenticated agent is not delayed.
    let slow = running.dialled().await;
    let stream = slow.open(wire::call(StreamType::AUTH, &wrong)).unwrap();
    let session = running.dialled().await;
    let reply: AuthReply = ask(&session, StreamType::AUTH, &auth("", 30)).await;
    assert_eq!((reply.error, refused), (String::new(), 12));
    drop(stream);
}
