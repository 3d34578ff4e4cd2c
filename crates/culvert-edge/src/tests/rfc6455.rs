//! WebSocket as it is written (RFC 6455): the same frames straight to an origin and through the edge, over
//! HTTP/1.1 and in streams of HTTP/2 on either side, give the same bytes in return.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::harness::*;
use super::situations::proof;
use super::streams::{connect, nothing, rig, websocket};

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const PROTOCOL_ERROR: u16 = 1002;
const INVALID: u16 = 1007;
const TOO_BIG: u16 = 1009;
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A strict server that sends messages back.
#[derive(Debug, Default)]
struct Echo {
    read: Vec<u8>,
    message: Option<(u8, Vec<u8>)>,
    is_over: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Frame {
    fin: bool,
    opcode: u8,
    payload: Vec<u8>,
}

impl Echo {
    /// What a client's bytes are answered with.
    fn take(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.read.extend_from_slice(bytes);
        let mut out = Vec::new();
        while !self.is_over
            && let Some(frame) = frame(&mut self.read, true)
        {
            match frame.and_then(|frame| self.answer(frame)) {
                Ok(answer) => out.extend(answer),
                Err(code) => {
                    self.is_over = true;
                    out.extend(sent(CLOSE, &code.to_be_bytes()));
                }
            }
        }
        out
    }

    fn answer(&mut self, frame: Frame) -> Result<Vec<u8>, u16> {
        let Frame {
            fin,
            opcode,
            payload,
        } = frame;
        match opcode {
            PING => return Ok(sent(PONG, &payload)),
            PONG => return Ok(Vec::new()),
            CLOSE => {
                if let Some((code, reason)) = payload.split_at_checked(2) {
                    let code = u16::from_be_bytes(code.try_into().unwrap());
                    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                        return Err(PROTOCOL_ERROR);
                    }
                    std::str::from_utf8(reason).map_err(|_| INVALID)?;
                } else if !payload.is_empty() {
                    return Err(PROTOCOL_ERROR);
                }
                self.is_over = true;
                return Ok(sent(CLOSE, &payload));
            }
            CONTINUATION => {
                let (_, message) = self.message.as_mut().ok_or(PROTOCOL_ERROR)?;
                message.extend(payload);
                if message.len() > MESSAGE_BYTES_MAX {
                    return Err(TOO_BIG);
                }
            }
            _ if self.message.is_some() => return Err(PROTOCOL_ERROR),
            _ => self.message = Some((opcode, payload)),
        }
        if !fin {
            return Ok(Vec::new());
        }
        let (opcode, message) = self.message.take().unwrap();
        if opcode == TEXT {
            std::str::from_utf8(&message).map_err(|_| INVALID)?;
        }
        Ok(sent(opcode, &message))
    }
}

/// Takes the next whole frame off `read`; one that must not be is refused as soon as that is seen.
fn frame(read: &mut Vec<u8>, is_masked: bool) -> Option<Result<Frame, u16>> {
    let [first, second] = *read.first_chunk()?;
    let (fin, opcode) = (first & 0x80 != 0, first & 0x0F);
    let is_control = opcode >= 8;
    let is_known = matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG);
    let short = second & 0x7F;
    if first & 0x70 != 0
        || !is_known
        || (second & 0x80 != 0) != is_masked
        || (is_control && (!fin || short > 125))
    {
        return Some(Err(PROTOCOL_ERROR));
    }
    let (length, at, least) = match short {
        126 => (
            u64::from(u16::from_be_bytes(*read[2..].first_chunk()?)),
            4,
            126,
        ),
        127 => (u64::from_be_bytes(*read[2..].first_chunk()?), 10, 1 << 16),
        short => (u64::from(short), 2, 0),
    };
    if length < least || length >> 63 != 0 {
        return Some(Err(PROTOCOL_ERROR));
    }
    let Some(length) = usize::try_from(length)
        .ok()
        .filter(|it| *it <= MESSAGE_BYTES_MAX)
    else {
        return Some(Err(TOO_BIG));
    };
    let mask_bytes = if is_masked { 4 } else { 0 };
    if read.len() < at + mask_bytes + length {
        return None;
    }
    let mask: Vec<u8> = read[at..at + mask_bytes].to_vec();
    let mut payload = read[at + mask_bytes..at + mask_bytes + length].to_vec();
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    read.drain(..at + mask_bytes + length);
    Some(Ok(Frame {
        fin,
        opcode,
        payload,
    }))
}

/// A frame head: what stands before mask and payload.
fn head(first: u8, is_masked: bool, length: usize) -> Vec<u8> {
    let mask = if is_masked { 0x80 } else { 0 };
    let mut head = vec![first];
    match u16::try_from(length) {
        Ok(short) if short < 126 => head.push(mask | short.to_be_bytes()[1]),
        Ok(short) => {
            head.push(mask | 126);
            head.extend(short.to_be_bytes());
        }
        Err(_) => {
            head.push(mask | 127);
            head.extend((length as u64).to_be_bytes());
        }
    }
    head
}

/// A whole frame of a server.
fn sent(opcode: u8, payload: &[u8]) -> Vec<u8> {
    [&head(0x80 | opcode, false, payload.len()), payload].concat()
}

/// A frame of a client: its first byte as given, masked.
fn raw(first: u8, mask: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = head(first, true, payload.len());
    bytes.extend(mask);
    bytes.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// The last frame of a message, or a control frame.
fn last(opcode: u8, payload: &[u8]) -> Vec<u8> {
    raw(0x80 | opcode, MASK, payload)
}

/// A frame that others follow.
fn part(opcode: u8, payload: &[u8]) -> Vec<u8> {
    raw(opcode, MASK, payload)
}

fn closing(code: u16, reason: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes(), reason].concat()
}

/// What a client sends, and the frames it gets for it before the connection ends.
type Case = (Vec<u8>, Vec<(u8, Vec<u8>)>);

fn cases() -> Vec<Case> {
    let normal = || (CLOSE, closing(1000, b""));
    let end = || last(CLOSE, &closing(1000, b""));
    let failed = |code: u16| vec![(CLOSE, closing(code, b""))];
    let mut cases: Vec<Case> = Vec::new();
    let mut echoed = |frames: Vec<Vec<u8>>, answers: Vec<(u8, Vec<u8>)>| {
        let answers = answers.into_iter().chain([normal()]).collect();
        cases.push(([frames.concat(), end()].concat(), answers));
    };

    // Lengths in each of their forms, masks, pings and pongs.
    for length in [
        0,
        1,
        125,
        126,
        127,
        128,
        65_535,
        65_536,
        300_000,
        MESSAGE_BYTES_MAX,
    ] {
        for opcode in [TEXT, BINARY] {
            let payload = vec![b'x'; length];
            echoed(vec![last(opcode, &payload)], vec![(opcode, payload)]);
        }
    }
    for mask in [[0; 4], [0xFF; 4], [1, 2, 3, 4]] {
        let payload: Vec<u8> = (0..=255).collect();
        let frame = raw(0x80 | BINARY, mask, &payload);
        echoed(vec![frame], vec![(BINARY, payload)]);
    }
    for length in [0, 1, 125] {
        let payload = vec![0xFE; length];
        echoed(vec![last(PING, &payload)], vec![(PONG, payload.clone())]);
        echoed(vec![last(PONG, &payload)], vec![]);
    }
    let pings = (0..10u8).map(|n| (n, last(PING, &[n])));
    let (numbers, pings): (Vec<u8>, Vec<_>) = pings.unzip();
    echoed(
        pings,
        numbers.into_iter().map(|n| (PONG, vec![n])).collect(),
    );

    // Messages in parts, with control frames between.
    let parts = |opcode| vec![part(opcode, b"one "), last(CONTINUATION, b"two")];
    for opcode in [TEXT, BINARY] {
        echoed(parts(opcode), vec![(opcode, b"one two".to_vec())]);
    }
    echoed(
        vec![
            part(TEXT, b"a"),
            last(PING, b"p"),
            part(CONTINUATION, b""),
            last(PONG, b"q"),
            part(CONTINUATION, b"b"),
            last(PING, b""),
            last(CONTINUATION, b""),
        ],
        vec![
            (PONG, b"p".to_vec()),
            (PONG, vec![]),
            (TEXT, b"ab".to_vec()),
        ],
    );
    let many = (0..200).map(|n| match n {
        0 => part(BINARY, &[0]),
        199 => last(CONTINUATION, &[199]),
        n => part(CONTINUATION, &[n]),
    });
    echoed(many.collect(), vec![(BINARY, (0..200).collect())]);
    let both = vec![last(TEXT, b"1"), last(BINARY, b"2"), last(TEXT, b"3")];
    let answers = [(TEXT, b"1"), (BINARY, b"2"), (TEXT, b"3")];
    echoed(
        both,
        answers
            .map(|(opcode, text)| (opcode, text.to_vec()))
            .to_vec(),
    );

    // Text is UTF-8, wherever it is cut.
    let greek = "κόσμε 𐍈 \u{10FFFF}".as_bytes();
    echoed(vec![last(TEXT, greek)], vec![(TEXT, greek.to_vec())]);
    for cut in 0..greek.len() {
        let (first, second) = greek.split_at(cut);
        let frames = vec![part(TEXT, first), last(CONTINUATION, second)];
        echoed(frames, vec![(TEXT, greek.to_vec())]);
    }
    // In bytes anything goes.
    echoed(
        vec![last(BINARY, b"\xFF\xFE")],
        vec![(BINARY, b"\xFF\xFE".to_vec())],
    );

    let mut ends = |frames: Vec<Vec<u8>>, answers: Vec<(u8, Vec<u8>)>| {
        // Bytes after the end are ignored.
        let more = last(TEXT, b"too late");
        cases.push(([frames.concat(), more, end()].concat(), answers));
    };
    for wrong in [
        &b"\xFF"[..],
        b"\xC0\x80",
        b"\xED\xA0\x80",
        b"\xF4\x90\x80\x80",
        b"\xCE",
        b"ok \x80",
    ] {
        ends(vec![last(TEXT, wrong)], failed(INVALID));
        ends(
            vec![part(TEXT, b"ok "), last(CONTINUATION, wrong)],
            failed(INVALID),
        );
    }

    // How it is closed.
    ends(vec![last(CLOSE, b"")], vec![(CLOSE, vec![])]);
    let long = vec![b'r'; 123];
    for (code, reason) in [
        (1000, &b""[..]),
        (1000, b"bye"),
        (1001, b""),
        (1003, "ende \u{1F44B}".as_bytes()),
        (1007, b""),
        (1011, &long),
        (3000, b""),
        (3999, b""),
        (4000, b""),
        (4999, b""),
    ] {
        let payload = closing(code, reason);
        ends(vec![last(CLOSE, &payload)], vec![(CLOSE, payload)]);
    }
    for code in [
        0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535,
    ] {
        ends(
            vec![last(CLOSE, &closing(code, b""))],
            failed(PROTOCOL_ERROR),
        );
    }
    ends(vec![last(CLOSE, b"\x03")], failed(PROTOCOL_ERROR));
    ends(vec![last(CLOSE, &closing(1000, b"\xFF"))], failed(INVALID));
    // In the middle of a message.
    ends(
        vec![part(TEXT, b"half"), last(CLOSE, b"")],
        vec![(CLOSE, vec![])],
    );

    // What no client may send.
    for reserved in [0x10, 0x20, 0x40, 0x70] {
        ends(
            vec![raw(0x80 | TEXT | reserved, MASK, b"x")],
            failed(PROTOCOL_ERROR),
        );
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        ends(vec![last(opcode, b"x")], failed(PROTOCOL_ERROR));
    }
    for frames in [
        vec![last(CONTINUATION, b"of nothing")],
        vec![part(CONTINUATION, b"of nothing")],
        vec![part(TEXT, b"a"), last(TEXT, b"b")],
        vec![part(BINARY, b"a"), last(PING, b""), part(TEXT, b"b")],
        vec![part(PING, b"")],
        vec![part(CLOSE, b"")],
        vec![last(PING, &[b'x'; 126])],
        vec![sent(TEXT, b"without a mask")],
        vec![[&[0x80 | TEXT, 0x80 | 126, 0, 5][..], &MASK, b"short"].concat()],
        vec![
            [
                &[0x80 | BINARY, 0x80 | 127][..],
                &(1u64 << 63).to_be_bytes(),
            ]
            .concat(),
        ],
    ] {
        let answers = match frames.len() {
            3 => vec![(PONG, vec![]), (CLOSE, closing(PROTOCOL_ERROR, b""))],
            _ => failed(PROTOCOL_ERROR),
        };
        ends(frames, answers);
    }
    ends(
        vec![head(0x80 | BINARY, true, MESSAGE_BYTES_MAX + 1)],
        failed(TOO_BIG),
    );
    cases
}

/// Echoes what comes over a stream that became a WebSocket, to its end.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, early: &[u8]) {
    let mut echo = Echo::default();
    let mut answer = echo.take(early);
    let mut room = vec![0; 16 << 10];
    loop {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
        if echo.is_over {
            break;
        }
        match stream.read(&mut room).await {
            Ok(length) if length > 0 => answer = echo.take(&room[..length]),
            _ => return,
        }
    }
    drop(stream.shutdown().await);
    // The rest of the client's bytes is read, so that it receives the last ones of the server.
    while stream.read(&mut room).await.is_ok_and(|length| length > 0) {}
}

async fn http1_origin(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            let mut lines = head.split("\r\n");
            let key = lines.find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("sec-websocket-key")
                    .then_some(value)
            });
            let Some(key) = key else {
                client
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .await;
                continue;
            };
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                 sec-websocket-accept: {}\r\n\r\n",
                proof(key)
            );
            client.send(answer).await;
            return echo(client.stream, &client.read).await;
        }
    })
    .await
}

async fn http2_origin(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |client| async move {
        let service = |mut request: Request<hyper::body::Incoming>| async move {
            if request.method() == Method::CONNECT {
                let upgrade = hyper::upgrade::on(&mut request);
                let mut tasks = JoinSet::new();
                tasks.spawn(async move {
                    echo(TokioIo::new(upgrade.await.unwrap()), b"").await;
                });
                tasks.detach_all();
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        };
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let serving = server.enable_connect_protocol().serve_connection(
            TokioIo::new(client.stream),
            hyper::service::service_fn(service),
        );
        drop(serving.await);
    })
    .await
}

/// All bytes received after `bytes` were sent in pieces.
async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8], piece: usize) -> Vec<u8> {
    let (mut reads, mut writes) = tokio::io::split(stream);
    let mut answer = Vec::new();
    let write = async {
        for piece in bytes.chunks(piece) {
            // A peer that has received enough may have closed.
            if writes.write_all(piece).await.is_err() || writes.flush().await.is_err() {
                return;
            }
        }
    };
    soon("the end of a WebSocket", async {
        tokio::join!(write, async {
            reads.read_to_end(&mut answer).await.unwrap();
        })
    })
    .await;
    answer
}

/// A WebSocket over HTTP/1.1.
async fn over_http1(address: SocketAddr) -> TcpStream {
    let mut client = Client::new(TcpStream::connect(address).await.unwrap());
    client
        .send(
            "GET /echo HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    let head = client.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert_eq!(client.read, b"");
    client.stream
}

#[tokio::test]
async fn websockets_behave_equally_with_and_without_the_edge() {
    let mut tasks = JoinSet::new();
    let one = http1_origin(&mut tasks).await;
    let two = http2_origin(&mut tasks).await;
    let (mut to_one, root) = rig(&format!("http://{one}"), "", settings()).await;
    let mut streams_to_one = connect(&mut to_one, &root).await;
    let (mut to_two, root) = rig(&format!("http://{two}"), "http2", settings()).await;
    let mut streams_to_two = connect(&mut to_two, &root).await;
    let mut count = 0;
    for (bytes, answers) in cases() {
        let shown: Vec<u8> = bytes.iter().copied().take(40).collect();
        let pieces = match bytes.len() {
            ..600 => vec![1, usize::MAX],
            _ => vec![1_000, usize::MAX],
        };
        for piece in pieces {
            let straight = talk(over_http1(one).await, &bytes, piece).await;
            let mut read = straight.clone();
            let heard: Vec<(u8, Vec<u8>)> =
                std::iter::from_fn(|| frame(&mut read, false).map(Result::unwrap))
                    .map(|frame| (frame.opcode, frame.payload))
                    .collect();
            assert_eq!(read, b"", "whole frames");
            assert!(heard == answers, "{shown:?} in pieces of {piece}");

            for (rig, sender) in [
                (&to_one, &mut streams_to_one),
                (&to_two, &mut streams_to_two),
            ] {
                let stream = over_http1(rig.edge.http_addr().unwrap()).await;
                let through = talk(stream, &bytes, piece).await;
                assert!(through == straight, "{shown:?} in pieces of {piece}");
                let request = websocket("/echo").body(nothing()).unwrap();
                let answer = soon("an answer", sender.send_request(request)).await;
                let stream = hyper::upgrade::on(answer.unwrap()).await.unwrap();
                let through = talk(TokioIo::new(stream), &bytes, piece).await;
                assert!(through == straight, "{shown:?} in pieces of {piece}");
                count += 2;
            }
        }
    }
    assert!(count > 700, "{count}");
}
