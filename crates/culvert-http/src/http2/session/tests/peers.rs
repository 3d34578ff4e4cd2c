//! Compares field sections and frames with those of the crate `h2`, in both directions, with seeded
//! random input. Our decoder reads the fields of its client, its decoder reads ours, and its server
//! reads frames that we write as a client.

use std::sync::Arc;

use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::differential::Choppy;
use super::*;
use crate::http2::hpack::Field;
use crate::random::Random;

/// The parts of a message that one side sends.
#[derive(Clone, Debug, Default, PartialEq)]
struct Message {
    fields: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

/// The request and the response of each stream.
type Script = Arc<Vec<(Message, Message)>>;

/// Fields that repeat, so that dynamic tables are used, and fields that do not.
fn fields(random: &mut Random) -> HeaderMap {
    const NAMES: [&str; 9] = [
        "accept",
        "authorization",
        "cache-control",
        "cookie",
        "set-cookie",
        "www-authenticate",
        "x",
        "x-a_b.c~d",
        "!#$%&'*+-.^_`|~",
    ];
    const VALUES: [&[u8]; 6] = [
        b"",
        b"a",
        b"gzip, deflate",
        b"no-cache",
        b"\xE9\xFF",
        b"a\tb \"c\"",
    ];
    let mut fields = HeaderMap::new();
    for _ in 0..random.below(10) {
        let name = match random.below(4) {
            0 => format!("x-{}", random.below(1_000)),
            _ => NAMES[random.below(NAMES.len())].to_owned(),
        };
        let value = match random.below(8) {
            0 => vec![b'a' + random.below(26) as u8; random.below(5_000)],
            1 => (0..random.below(60))
                .map(|_| 0x21 + random.below(94) as u8)
                .collect(),
            _ => VALUES[random.below(VALUES.len())].to_vec(),
        };
        let mut value = HeaderValue::from_bytes(&value).unwrap();
        value.set_sensitive(random.one_in(6));
        fields.append(HeaderName::try_from(name).unwrap(), value);
    }
    fields
}

fn message(random: &mut Random, has_body: bool) -> Message {
    let has_trailers = has_body && random.one_in(3);
    Message {
        fields: fields(random),
        body: match has_body {
            true => (0..random.below(400)).map(|at| at as u8).collect(),
            false => Vec::new(),
        },
        trailers: has_trailers.then(|| {
            let mut trailers = fields(random);
            trailers.insert("x-end", HeaderValue::from_static("1"));
            trailers
        }),
    }
}

fn script(random: &mut Random, has_bodies: bool) -> Script {
    let exchange = |random: &mut Random| (message(random, has_bodies), message(random, has_bodies));
    Arc::new(
        (0..1 + random.below(20))
            .map(|_| exchange(random))
            .collect(),
    )
}

fn response_head(message: &Message) -> response::Parts {
    let mut head = Response::builder()
        .status(203)
        .body(())
        .unwrap()
        .into_parts()
        .0;
    head.headers = message.fields.clone();
    head
}

fn connect(seed: u64, random: &mut Random) -> (Choppy, Choppy) {
    Choppy::pair(seed, [1, 40, 3_000, 70_000][random.below(4)], 4 << 20)
}

/// A client of `h2` sends and receives fields.
async fn their_client(io: Choppy, script: Script, table: u32) {
    let mut builder = h2::client::Builder::new();
    builder.header_table_size(table);
    let (mut send, connection) = builder.handshake::<_, Bytes>(io).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    for (number, (request, response)) in script.iter().enumerate() {
        let uri = format!("https://a.example/{number}");
        let mut head = Request::get(uri).body(()).unwrap();
        *head.headers_mut() = request.fields.clone();
        send = send.ready().await.unwrap();
        let (received, _) = send.send_request(head, true).unwrap();
        let received = received.await.unwrap();
        assert_eq!(received.status(), 203);
        assert_eq!(*received.headers(), response.fields, "{number}");
    }
    drop(send);
    driver.join_next().await.unwrap().unwrap().unwrap();
}

/// Our machine compares the requests and sends the responses.
async fn our_server(mut io: Choppy, script: Script) {
    let now = Instant::now();
    let (mut session, mut inbox) = (Session::new(100, Schemes::Https, now), BytesMut::new());
    loop {
        match session.step(&mut inbox, now).unwrap() {
            Step::Done | Step::Refused(..) => {}
            Step::Request(it) => {
                let head = it.head.into_parts(http::uri::Scheme::HTTPS);
                let number: usize = head.uri.path()[1..].parse().unwrap();
                let (request, response) = &script[number];
                assert_eq!(head.headers, request.fields, "{number}");
                session.send_head(it.stream, &response_head(response), true);
            }
            Step::More => {
                let sent = session.outbox().take_all();
                io.write_all(&sent).await.unwrap();
                if io.read_buf(&mut inbox).await.unwrap() == 0 {
                    return;
                }
            }
        }
    }
}

#[tokio::test]
async fn fields_of_a_client_of_h2() {
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let script = script(&mut random, false);
        let table = [0, 100, 4_096, 65_536][random.below(4)];
        let (here, there) = connect(seed, &mut random);
        let client = their_client(here, Arc::clone(&script), table);
        let both = async { tokio::join!(client, our_server(there, script)) };
        let done = tokio::time::timeout(Duration::from_secs(60), both).await;
        assert!(done.is_ok(), "seed {seed}: it hangs");
    }
}

/// Adds a field section in frames of random sizes, with padding and priority, which must have no
/// effect.
fn write_section(out: &mut Vec<u8>, stream: u32, block: &[u8], ends: bool, random: &mut Random) {
    let mut payload = Vec::new();
    let mut flags = if ends { frame::END_STREAM } else { 0 };
    let padding = random.below(20);
    if random.one_in(3) {
        flags |= frame::PADDED;
        payload.push(padding as u8);
    }
    if random.one_in(3) {
        flags |= frame::WITH_PRIORITY;
        payload.extend([0, 0, 0, 0, 16]);
    }
    let (first, mut rest) = block.split_at(random.below(block.len().min(10_000) + 1));
    payload.extend_from_slice(first);
    if flags & frame::PADDED != 0 {
        payload.resize(payload.len() + padding, 0);
    }
    if rest.is_empty() {
        flags |= frame::END_HEADERS;
    }
    out.extend(frame(frame::HEADERS, flags, stream, &payload));
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(1_000 + random.below(15_000)));
        rest = behind;
        let end = if rest.is_empty() {
            frame::END_HEADERS
        } else {
            0
        };
        out.extend(frame(frame::CONTINUATION, end, stream, piece));
    }
}

/// Frames without effect.
fn write_noise(out: &mut Vec<u8>, random: &mut Random) {
    match random.below(6) {
        0 => out.extend(frame(frame::PING, 0, 0, &[7; 8])),
        1 => out.extend(frame(0x42, 0xFF, 0, &[7; 30])),
        2 => out.extend(frame(frame::PRIORITY, 0, 2_001, &[0, 0, 0, 0, 1])),
        3 => out.extend(frame(frame::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9])),
        _ => {}
    }
}

fn write_fields(block: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        hpack::write_field(block, name, value);
    }
}

/// All bytes that a client sends.
fn client_bytes(script: &Script, table: u32, random: &mut Random) -> Vec<u8> {
    let mut out = frame::PREFACE.to_vec();
    let mut settings = Vec::new();
    for (name, value) in [(1, table), (2, 0), (4, 1 << 20)] {
        settings.extend_from_slice(&u16::to_be_bytes(name));
        settings.extend_from_slice(&u32::to_be_bytes(value));
    }
    out.extend(frame(frame::SETTINGS, 0, 0, &settings));
    out.extend(frame(frame::WINDOW_UPDATE, 0, 0, &[0, 0x10, 0, 0]));
    for (number, (message, _)) in script.iter().enumerate() {
        let stream = 2 * number as u32 + 1;
        let mut block = of(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "a.example"),
            (":path", &format!("/{number}")),
        ]);
        write_fields(&mut block, &message.fields);
        let has_end = message.body.is_empty() && message.trailers.is_none();
        write_section(&mut out, stream, &block, has_end, random);
        write_noise(&mut out, random);
        if has_end {
            continue;
        }
        let mut rest = &message.body[..];
        loop {
            let (piece, behind) = rest.split_at(random.below(rest.len() + 1));
            rest = behind;
            let is_last = rest.is_empty() && message.trailers.is_none();
            let padded = [&[3][..], piece, &[0; 3]].concat();
            let end = if is_last { frame::END_STREAM } else { 0 };
            out.extend(match random.one_in(3) {
                true => frame(frame::DATA, frame::PADDED | end, stream, &padded),
                false => frame(frame::DATA, end, stream, piece),
            });
            write_noise(&mut out, random);
            if rest.is_empty() {
                break;
            }
        }
        if let Some(trailers) = &message.trailers {
            let mut block = Vec::new();
            write_fields(&mut block, trailers);
            write_section(&mut out, stream, &block, true, random);
        }
    }
    out
}

/// Our frames and field sections as a client: sends everything, and reads until each stream has ended.
async fn our_client(io: Choppy, script: Script, table: u32, random: &mut Random) {
    let bytes = client_bytes(&script, table, random);
    let (mut reader, mut writer) = tokio::io::split(io);
    let send = async { writer.write_all(&bytes).await.unwrap() };
    let receive = async {
        let mut decoder = Decoder::default();
        let mut inbox = BytesMut::new();
        let mut seen = vec![Message::default(); script.len()];
        let mut heads = vec![0; script.len()];
        let mut open = script.len();
        let mut block = BytesMut::new();
        let mut section_ends = false;
        while open > 0 {
            let head =
                Head::read(&inbox).filter(|head| inbox.len() >= frame::HEAD_BYTES + head.length);
            let Some(head) = head else {
                assert!(
                    reader.read_buf(&mut inbox).await.unwrap() > 0,
                    "{open} streams are open"
                );
                continue;
            };
            inbox.advance(frame::HEAD_BYTES);
            let payload = inbox.split_to(head.length);
            let number = (head.stream as usize).wrapping_sub(1) / 2;
            let mut ends = head.has(frame::END_STREAM);
            match head.kind {
                frame::DATA => seen[number].body.extend_from_slice(&payload),
                frame::HEADERS | frame::CONTINUATION => {
                    if head.kind == frame::HEADERS {
                        section_ends = ends;
                    }
                    block.extend_from_slice(&payload);
                    ends = section_ends && head.has(frame::END_HEADERS);
                    if head.has(frame::END_HEADERS) {
                        let mut fields = HeaderMap::new();
                        let section = block.split().freeze();
                        let read = decoder.read(&section, |field, _, _| {
                            // `:status` is not a field of a request.
                            if let Field::Plain(name, value) = field {
                                fields.append(name.clone(), value.clone());
                            }
                        });
                        read.expect("sections of h2 can be decoded");
                        heads[number] += 1;
                        match heads[number] {
                            1 => seen[number].fields = fields,
                            _ => seen[number].trailers = Some(fields),
                        }
                    }
                }
                frame::RST_STREAM | frame::GOAWAY => panic!("{head:?} {payload:?}"),
                _ => ends = false,
            }
            open -= usize::from(ends);
        }
        for (number, (_, response)) in script.iter().enumerate() {
            assert_eq!(seen[number], *response, "{number}");
        }
    };
    tokio::join!(send, receive);
}

/// A server of `h2` compares the requests and sends the responses.
async fn their_server(io: Choppy, script: Script) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(1_000);
    let mut connection = builder.handshake::<_, Bytes>(io).await.unwrap();
    let mut tasks = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        tasks.spawn(their_response(request, respond, Arc::clone(&script)));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

async fn their_response(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    script: Script,
) {
    assert_eq!(request.method(), Method::POST);
    let number: usize = request.uri().path()[1..].parse().unwrap();
    let (expected, response) = &script[number];
    let (head, mut body) = request.into_parts();
    let mut seen = Message {
        fields: head.headers,
        ..Message::default()
    };
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        seen.body.extend_from_slice(&data);
    }
    seen.trailers = body.trailers().await.unwrap();
    assert_eq!(seen, *expected, "{number}");
    let head = Response::from_parts(response_head(response), ());
    let mut stream = respond.send_response(head, false).unwrap();
    let has_trailers = response.trailers.is_some();
    stream
        .send_data(response.body.clone().into(), !has_trailers)
        .unwrap();
    if let Some(trailers) = &response.trailers {
        stream.send_trailers(trailers.clone()).unwrap();
    }
}

#[tokio::test]
async fn frames_for_a_server_of_h2() {
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let script = script(&mut random, true);
        let table = [0, 100, 1_000, 4_096][random.below(4)];
        let (here, there) = connect(seed, &mut random);
        let mut server = JoinSet::new();
        server.spawn(their_server(there, Arc::clone(&script)));
        let client = our_client(here, script, table, &mut random);
        let done = tokio::time::timeout(Duration::from_secs(60), client).await;
        assert!(done.is_ok(), "seed {seed}: it hangs");
        server.join_next().await.unwrap().unwrap();
    }
}
