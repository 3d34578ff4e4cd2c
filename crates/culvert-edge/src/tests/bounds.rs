//! Sends every row of [`BOUNDS`] through the edge: a message at its limit is served, and one above it gets
//! the listed reaction. A row without a case fails. Limits with settings are in [`limits`](super::limits).

use culvert_http::http2::{Reason, limits};
use culvert_policy::Scheme;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::floods::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    frame, request, section, stream,
};
use super::harness::*;
use super::mutual::client_hello;
use super::proxied::behind;
use crate::Snapshot;
use crate::settings::bounds::{BOUNDS, Beyond};

/// An edge that serves `app.example` over plain HTTP from an origin that responds as the path says, and over
/// TLS from one that never responds, so that no request body is read. A second edge is behind a load
/// balancer.
struct Scene {
    rig: Rig,
    root: CertificateDer<'static>,
    balanced: Rig,
}

#[tokio::test]
async fn each_documented_bound_is_enforced() {
    let scene = Scene::start().await;
    for bound in BOUNDS {
        let most = usize::try_from(bound.most).unwrap();
        let came = scene.send(bound.what, most).await;
        assert_eq!(came, None, "{most}: {}", bound.what);
        let more = most + step(bound.what);
        let came = scene.send(bound.what, more).await;
        assert_eq!(came, Some(bound.beyond), "{more}: {}", bound.what);
    }
    assert_eq!(scene.rig.edge.meters().panics.get(), 0);
}

/// How far above a limit the test sends: by one, or by more if a second message would free some capacity.
fn step(what: &str) -> usize {
    let per_second = match what {
        "HTTP/2: resets in one burst" => limits::RESETS.1,
        "HTTP/2: frames without progress in one burst" => limits::IDLE_FRAMES.1,
        _ => 0,
    };
    1 + per_second as usize
}

impl Scene {
    async fn start() -> Self {
        let mut rig = Rig::start().await;
        let by_path = origin(&mut rig.tasks, |mut client| async move {
            while let Some((head, _)) = client.request().await {
                client.send(answer(head.split(' ').nth(1).unwrap())).await;
            }
        })
        .await;
        let silent = origin(&mut rig.tasks, |mut client| async move {
            client.rest().await;
        })
        .await;
        let (names, key, root) = certificate(&["app.example"]);
        let silent = format!("https://{silent}");
        let snapshot = http("app.example", by_path)
            .endpoint(endpoint(Scheme::Https, "app.example", 443, &silent, ""))
            .certificate(names, key)
            .build();
        rig.edge.publish(snapshot).await;
        let balanced = Rig::with(behind("127.0.0.0/8")).await;
        let snapshot: Snapshot = http("app.example", by_path).build();
        balanced.edge.publish(snapshot).await;
        Self {
            rig,
            root,
            balanced,
        }
    }

    /// The reaction to a message of this size; `None` if it is served.
    async fn send(&self, what: &str, n: usize) -> Option<Beyond> {
        match what.split_once(": ").unwrap() {
            ("HTTP/1", what) => of_http1(self.rig.connect().await, &http1(what, n)).await,
            ("HTTP/2", what) => {
                let address = self.rig.edge.https_addr().unwrap();
                let stream = tls(address, &self.root, "app.example", "h2").await;
                of_http2(Client::new(stream.unwrap()), http2(what, n)).await
            }
            ("TLS", "ClientHello with its records") => {
                let address = self.rig.edge.https_addr().unwrap();
                let mut client = Client::new(TcpStream::connect(address).await.unwrap());
                client.send(hello_of(n)).await;
                (!client.more().await).then_some(Beyond::Close)
            }
            ("PROXY protocol", "header") => {
                // LOCAL, followed by bytes that must be ignored.
                let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x20\0".to_vec();
                bytes.extend(u16::try_from(n - 16).unwrap().to_be_bytes());
                bytes.resize(n, 0);
                bytes.extend(b"GET / HTTP/1.1\r\nHost: app.example\r\n\r\n");
                of_http1(self.balanced.connect().await, &bytes).await
            }
            _ => panic!("no case: {what}"),
        }
    }
}

/// The origin's response to a path.
fn answer(path: &str) -> String {
    let (what, n) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or(("", ""));
    let n: usize = n.parse().unwrap_or(0);
    let (status, end) = ("HTTP/1.1 200 OK\r\n", "Content-Length: 0\r\n\r\n");
    match what {
        "head" => {
            let line = n - status.len() - end.len() - "X: \r\n".len();
            format!("{status}X: {}\r\n{end}", "y".repeat(line))
        }
        "fields" => format!("{status}{}{end}", "X: y\r\n".repeat(n - 1)),
        "hints" => format!(
            "{}{status}{end}",
            "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(n)
        ),
        _ => format!("{status}{end}"),
    }
}

fn http1(what: &str, n: usize) -> Vec<u8> {
    const HOST: &str = "Host: app.example\r\n";
    let long = |n: usize| "x".repeat(n);
    let get = |path: &str, fields: &str| format!("GET {path} HTTP/1.1\r\n{HOST}{fields}\r\n");
    let chunks =
        |wire: &str| format!("POST / HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n{wire}");
    let request = match what {
        "request line" => get(&format!("/{}", long(n - "GET / HTTP/1.1".len())), ""),
        "field line" => get("/", &format!("X: {}\r\n", long(n - "X: ".len()))),
        "field section" => {
            let lines = n - HOST.len() - 2 * "X: \r\n".len();
            let (a, b) = (long(lines / 2), long(lines - lines / 2));
            get("/", &format!("X: {a}\r\nX: {b}\r\n"))
        }
        "field lines" => get("/", &"X: y\r\n".repeat(n - 1)),
        "digits of a chunk's size" => chunks(&format!("{:0>n$}\r\nabc\r\n0\r\n\r\n", 3)),
        "extension of a chunk" => chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(n - 1))),
        "trailer section" => chunks(&format!("0\r\nX: {}\r\n\r\n", long(n - "X: \r\n".len()))),
        "trailer lines" => chunks(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(n))),
        "head of an upstream response" => get(&format!("/head/{n}"), ""),
        "field lines of an upstream response" => get(&format!("/fields/{n}"), ""),
        "interim responses of an upstream" => get(&format!("/hints/{n}"), ""),
        _ => panic!("no case: {what}"),
    };
    request.into_bytes()
}

async fn of_http1(mut client: Client<TcpStream>, request: &[u8]) -> Option<Beyond> {
    client.send(request).await;
    match client.try_answer("GET").await.map(|answer| answer.status) {
        Some(200) => None,
        Some(status) => Some(Beyond::Status(status)),
        None => Some(Beyond::Close),
    }
}

fn http2(what: &str, n: usize) -> Vec<u8> {
    const FRAME: usize = 16 << 10;
    let data = |turn: u32, bytes: usize| -> Vec<u8> {
        let zeros = vec![0; bytes];
        let frames = zeros
            .chunks(FRAME)
            .map(|part| frame(DATA, 0, stream(turn), part));
        frames.flatten().collect()
    };
    match what {
        "payload of a frame" => [request(0, 0), frame(DATA, 0, stream(0), &vec![0; n])].concat(),
        // 177 bytes are the request and 32 for each of its fields.
        "field section, decoded, with 32 for each field" => fields(0, n - 177 - 33),
        "fields including the authority, all cookies counted as one" => {
            let mut block = section();
            block.extend([0, 1, b'a', 1, b'b'].repeat(n - 1));
            // The cookies are one more field.
            block.truncate(block.len() - 5);
            block.extend([0, 6, b'c', b'o', b'o', b'k', b'i', b'e', 1, b'x'].repeat(9));
            headers(0, &block)
        }
        "path with its query" => {
            let mut block = vec![0x82, 0x87, 0x04];
            number(&mut block, 0, 7, n);
            block.push(b'/');
            block.resize(block.len() + n - 1, b'x');
            block.extend([0x01, 11]);
            block.extend(b"app.example");
            headers(0, &block)
        }
        "trailer fields" => {
            let block = [0, 1, b'a', 1, b'b'].repeat(n);
            let trailers = frame(HEADERS, END_STREAM | END_HEADERS, stream(0), &block);
            [request(0, 0), trailers].concat()
        }
        "HPACK dynamic table" => {
            let mut block = Vec::new();
            number(&mut block, 0x20, 5, n);
            block.extend(section());
            frame(HEADERS, END_STREAM | END_HEADERS, stream(0), &block)
        }
        "CONTINUATION frames of a field section" => {
            let mut bytes = frame(HEADERS, END_STREAM, stream(0), &section());
            for piece in 1..=n {
                let flags = if piece == n { END_HEADERS } else { 0 };
                let field = [0, 1, b'a', 1, b'b'];
                bytes.extend(frame(CONTINUATION, flags, stream(0), &field));
            }
            bytes
        }
        "unread data of a stream" => [request(0, 0), data(0, n)].concat(),
        "unread data of a connection" => {
            let whole = 64 << 10;
            let turns = n.div_ceil(whole);
            let streams = (0..turns).flat_map(|nth| {
                let turn = u32::try_from(nth).unwrap();
                let bytes = whole.min(n - nth * whole);
                [request(turn, 0), data(turn, bytes)].concat()
            });
            streams.collect()
        }
        "resets in one burst" => {
            let turns = 0..u32::try_from(n).unwrap();
            let cancel = Reason::CANCEL.0.to_be_bytes();
            let resets = turns.flat_map(|turn| {
                [
                    request(turn, END_STREAM),
                    frame(RST_STREAM, 0, stream(turn), &cancel),
                ]
                .concat()
            });
            resets.collect()
        }
        // SETTINGS frames came before, and two PINGs follow.
        "frames without progress in one burst" => frame(0xB0, 0, 0, &[]).repeat(n - 3),
        "field sections of the open requests of a connection" => {
            let (requests, target) = (10, "/".len());
            let each = n / requests;
            let sections = (0..requests).flat_map(|nth| {
                let rest = if nth == 0 { n % requests } else { 0 };
                fields(u32::try_from(nth).unwrap(), each + rest - target - 33)
            });
            sections.collect()
        }
        _ => panic!("no case: {what}"),
    }
}

/// A request with a field `x` of this many bytes, which counts as 33 more.
fn fields(turn: u32, bytes: usize) -> Vec<u8> {
    let mut block = section();
    block.extend([0, 1, b'x']);
    number(&mut block, 0, 7, bytes);
    block.resize(block.len() + bytes, b'y');
    headers(turn, &block)
}

/// The frames of a field section that is a complete request.
fn headers(turn: u32, block: &[u8]) -> Vec<u8> {
    let mut pieces = block.chunks(16 << 10).enumerate().peekable();
    let mut frames = Vec::new();
    while let Some((nth, piece)) = pieces.next() {
        let (kind, begins) = if nth == 0 {
            (HEADERS, END_STREAM)
        } else {
            (CONTINUATION, 0)
        };
        let ends = if pieces.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        frames.extend(frame(kind, begins | ends, stream(turn), piece));
    }
    frames
}

/// An integer with a prefix of this many bits (RFC 7541 5.1).
fn number(block: &mut Vec<u8>, first: u8, bits: u8, value: usize) {
    let most = (1 << bits) - 1;
    let Some(mut rest) = value.checked_sub(most).filter(|_| value >= most) else {
        block.push(first | u8::try_from(value).unwrap());
        return;
    };
    block.push(first | u8::try_from(most).unwrap());
    while rest >= 0x80 {
        block.push(0x80 | u8::try_from(rest & 0x7F).unwrap());
        rest >>= 7;
    }
    block.push(u8::try_from(rest).unwrap());
}

/// The end of a stream or of the connection, or a response of the edge; `None` if two consecutive PINGs are
/// acknowledged first: then everything was processed.
async fn of_http2<S: AsyncRead + AsyncWrite + Unpin>(
    mut client: Client<S>,
    bytes: Vec<u8>,
) -> Option<Beyond> {
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(frame(SETTINGS, 0, 0, &[])).await;
    client.send(bytes).await;
    let code = |bytes: &[u8]| Reason(u32::from_be_bytes(bytes[..4].try_into().unwrap()));
    for _ in 0..2 {
        client.send(frame(PING, 0, 0, &[0; 8])).await;
        loop {
            let Some(head) = client.take(9).await else {
                return Some(Beyond::Close);
            };
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let length = usize::try_from(length).unwrap();
            let payload = client.take(length).await?;
            match head[3] {
                PING => break,
                GOAWAY => return Some(Beyond::Connection(code(&payload[4..]))),
                // The stream ends with its connection, whose code has the reason.
                RST_STREAM if code(&payload) == Reason::INTERNAL_ERROR => {}
                RST_STREAM => return Some(Beyond::Stream(code(&payload))),
                HEADERS if find(&payload, b"431").is_some() => return Some(Beyond::Status(431)),
                HEADERS if find(&payload, b"414").is_some() => return Some(Beyond::Status(414)),
                HEADERS => panic!("the origin never answers"),
                _ => {}
            }
        }
    }
    None
}

/// A ClientHello, padded to this many bytes (RFC 7685), in two records.
fn hello_of(bytes: usize) -> Vec<u8> {
    let bytes = bytes - 2 * 5;
    let hello = client_hello("app.example");
    // After the head of its only record.
    let mut message = hello[5..].to_vec();
    let padding = bytes - message.len() - 4;
    message.extend([0, 21]);
    message.extend(u16::try_from(padding).unwrap().to_be_bytes());
    message.resize(bytes, 0);
    let length = u32::try_from(bytes - 4).unwrap().to_be_bytes();
    message[1..4].copy_from_slice(&length[1..]);
    // Version, random bytes, session, ciphers and compressions come before the extensions.
    let mut at = 4 + 2 + 32;
    at += 1 + usize::from(message[at]);
    at += 2 + usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
    at += 1 + usize::from(message[at]);
    let extensions = u16::try_from(bytes - at - 2).unwrap();
    message[at..at + 2].copy_from_slice(&extensions.to_be_bytes());
    let records = message.chunks(16 << 10).flat_map(|part| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[22, 3, 1], &length[..], part].concat()
    });
    records.collect()
}
