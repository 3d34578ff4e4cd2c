//! An endpoint without a policy forwards heads as text, and one with a policy through a map of their fields. The same
//! request, however odd, has the same result on both, and is at most one request at the upstream.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use culvert_base::{Entropy, SeededEntropy};
use culvert_policy::Scheme;
use http_body_util::{BodyExt, Full};
use rustls_pki_types::CertificateDer;
use tokio::sync::mpsc;

use super::floods::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, frame, stream,
};
use super::harness::*;
use super::http2_streams::{Raw, raw};
use super::internal::named;
use super::secure::http2;
use crate::Snapshot;

/// A policy that changes nothing.
const IDLE: &str = "on_http_request: [{expressions: ['false'], actions: [{type: deny}]}]";

const NAMES: [&str; 42] = [
    "accept",
    "accept-encoding",
    "authorization",
    "content-length",
    "content-length",
    "content-type",
    "cookie",
    "cookie",
    "connection",
    "culvert-replay-of",
    "culvert-request-id",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-connection",
    "range",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-a",
    "x-a",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-a-name-that-is-longer-than-others",
    "x-real-ip",
    "x_a",
    "x.a",
    "X-Upper",
    "x:a",
    ":path",
    ":x",
    "",
    "x a",
    "x\"a",
    "x\ra",
    "x\0",
];
const VALUES: [&[u8]; 30] = [
    b"a",
    b"a",
    b"a=b",
    b"",
    b" a",
    b"a\t",
    b"a  b",
    b"a\tb",
    b"a: b",
    b"a\r\nx-b: c",
    b"a\nx-b: c",
    b"a\rb",
    b"a\0b",
    b"a\x7f",
    b"a\xC3\xA4",
    b"a\r\n\r\nGET /b HTTP/1.1\r\nhost: app.example\r\n\r\n",
    b"0",
    b"5",
    b"05",
    b"+5",
    b"5, 5",
    b"18446744073709551616",
    b"chunked",
    b"close",
    b"x-a",
    b"trailers",
    b"gzip, trailers",
    b"100-continue",
    b"app.example",
    b"evil.example",
];
const METHODS: [&str; 14] = [
    "GET", "GET", "POST", "POST", "HEAD", "OPTIONS", "PUT", "CONNECT", "TRACE", "PRI", "get",
    "G:T", "G T", "",
];
const TARGETS: [&str; 22] = [
    "/",
    "/",
    "/a/b?c=d",
    "/a//b",
    "//a",
    "/a/../b",
    "/a/%2e%2e/b",
    "/%61",
    "/a%2Fb",
    "/a%0d%0ab",
    "/a b",
    "/a#b",
    "/a?b?c",
    "/a\\b",
    "*",
    "a",
    "",
    "http://app.example/a",
    "https://evil.example/a",
    "/\r\nx: y",
    "/a\0",
    "/\u{e4}",
];
const AUTHORITIES: [&str; 16] = [
    "app.example",
    "app.example",
    "app.example",
    "App.Example",
    "app.example.",
    "app.example:443",
    "app.example:0443",
    "app.example:8443",
    "app.example:99999",
    "app.example:",
    "me@app.example",
    "other.example",
    "app.example/a",
    "app.example, evil.example",
    "app.example\r\nx: y",
    "",
];

/// A random sequence.
struct Choices(SeededEntropy);

impl Choices {
    fn below(&self, count: usize) -> usize {
        let entropy: &dyn Entropy = &self.0;
        let [first, second] = entropy.bytes();
        usize::from(u16::from_be_bytes([first, second])) % count
    }

    fn of<T: Copy>(&self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Mostly the first of them.
    fn mostly<T: Copy>(&self, all: &[T]) -> T {
        match self.below(3) {
            0 => self.of(all),
            _ => all[0],
        }
    }

    fn fields(&self) -> Vec<(String, Vec<u8>)> {
        (0..self.below(5))
            .map(|_| (self.of(&NAMES).to_owned(), self.of(&VALUES).to_vec()))
            .collect()
    }
}

/// What the upstream responds.
type Script = Arc<Mutex<Vec<u8>>>;

/// What became of a request: at the client, and at the upstream.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    answer: String,
    /// Head and body, with the lines of the head sorted by their names.
    upstream: Vec<(Vec<String>, Vec<u8>)>,
}

/// An edge, and the requests that its upstream gets.
struct Side {
    rig: Rig,
    root: CertificateDer<'static>,
    requests: mpsc::Receiver<(String, Vec<u8>)>,
    client: Option<(Raw, u32)>,
}

impl Side {
    /// With a policy, and an upstream that responds with `script`, if that is not empty, and closes.
    async fn start(policy: &str, script: &Script) -> Self {
        let mut rig = Rig::start().await;
        let (send, requests) = mpsc::channel(64);
        let script = Arc::clone(script);
        let origin = origin(&mut rig.tasks, move |mut client| {
            let (send, script) = (send.clone(), Arc::clone(&script));
            async move {
                while let Some(head) = client.head().await {
                    let Some((body, _)) = client.body(&head).await else {
                        send.send((head, b"incomplete".to_vec())).await.unwrap();
                        return;
                    };
                    let is_head = head.starts_with("HEAD ");
                    send.send((head, body)).await.unwrap();
                    let script = script.lock().unwrap().clone();
                    if !script.is_empty() {
                        return client.send(script).await;
                    }
                    let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
                    client.send(head).await;
                    if !is_head {
                        client.send("ok").await;
                    }
                }
            }
        })
        .await;
        let (names, key, root) = certificate(&["app.example"]);
        let upstream = format!("http://{origin}");
        let mut snapshot = Snapshot::builder().certificate(names, Arc::clone(&key));
        for (scheme, port) in [(Scheme::Http, 80), (Scheme::Https, 443)] {
            snapshot = snapshot.endpoint(named(scheme, "app.example", port, &upstream, policy));
        }
        rig.edge.publish(snapshot.build()).await;
        Self {
            rig,
            root,
            requests,
            client: None,
        }
    }

    /// The requests that have reached the upstream, which is done with all of them.
    fn upstream(&mut self) -> Vec<(Vec<String>, Vec<u8>)> {
        let mut all = Vec::new();
        while let Ok((head, body)) = self.requests.try_recv() {
            let mut lines: Vec<String> = head.split("\r\n").map(str::to_owned).collect();
            // Nothing but CR LF ends a line.
            assert!(
                !lines.iter().any(|line| line.contains(['\r', '\n', '\0'])),
                "{head:?}"
            );
            lines[1..].sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
            all.push((lines, body));
        }
        all
    }

    /// Sends frames as a request on the next stream.
    async fn http2(&mut self, frames: impl Fn(u32) -> Vec<u8>) -> Outcome {
        let (mut client, turn) = match self.client.take() {
            Some(client) => client,
            None => (raw(&self.rig, &self.root, 65_535).await, 0),
        };
        client.send(frames(stream(turn))).await;
        let mut answer = String::new();
        loop {
            let Some((kind, flags, of, payload)) = next(&mut client).await else {
                answer.push_str("end");
                break;
            };
            if kind == GOAWAY {
                answer.push_str(&format!("GOAWAY {:?}", &payload[4..]));
                break;
            }
            if of != stream(turn) {
                // A setting, or about a stream that had its answer.
                continue;
            }
            match kind {
                HEADERS => {
                    // An index of the static table, or a literal of three digits.
                    let status = match payload[0] & 0x80 {
                        0 => payload[..5].to_vec(),
                        _ => payload[..1].to_vec(),
                    };
                    answer.push_str(&format!("{status:?} "));
                }
                RST_STREAM => answer.push_str(&format!("reset {payload:?}")),
                _ => {}
            }
            if kind == RST_STREAM || flags & END_STREAM != 0 {
                self.client = Some((client, turn + 1));
                break;
            }
        }
        Outcome {
            answer,
            upstream: self.upstream(),
        }
    }

    /// Sends a request on its own connection of HTTP/1.
    async fn http1(&mut self, request: &[u8]) -> Outcome {
        let mut client = self.rig.connect().await;
        client.send(request).await;
        let mut answer = String::new();
        let method = match request.starts_with(b"HEAD ") {
            true => "HEAD",
            false => "GET",
        };
        while let Some(next) = client.try_answer(method).await {
            answer.push_str(&format!("{} ", next.status));
        }
        Outcome {
            answer,
            upstream: self.upstream(),
        }
    }
}

/// The next frame: type, flags, stream, payload. `None` at the end of the connection.
async fn next(client: &mut Raw) -> Option<(u8, u8, u32, Vec<u8>)> {
    let head = client.take(9).await?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some((head[3], head[4], of, client.take(length).await?))
}

/// A literal with a new name (RFC 7541 6.2).
fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = vec![first];
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text);
    }
    block
}

/// The frames of a request on HTTP/2, for any stream.
fn http2_request(choices: &Choices) -> impl Fn(u32) -> Vec<u8> + use<> {
    let mut pseudo = vec![
        (":method", choices.mostly(&METHODS)),
        (
            ":scheme",
            choices.mostly(&["https", "https", "http", "HTTPS", "ftp", ""]),
        ),
        (":authority", choices.mostly(&AUTHORITIES)),
        (":path", choices.mostly(&TARGETS)),
    ];
    let at = choices.below(4);
    match choices.below(12) {
        0 => drop(pseudo.remove(at)),
        1 => pseudo.push(pseudo[at]),
        2 => pseudo.push((":protocol", "websocket")),
        3 => pseudo.push((":status", "200")),
        _ => pseudo.rotate_left(at),
    }
    let mut fields: Vec<(String, Vec<u8>)> = pseudo
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect();
    fields.extend(choices.fields());
    if choices.below(12) == 0 {
        let other = choices.below(fields.len());
        fields.swap(0, other);
    }
    let firsts: Vec<u8> = fields
        .iter()
        .map(|_| choices.of(&[0, 0, 0x10, 0x40]))
        .collect();
    let mut block = Vec::new();
    match choices.below(20) {
        // The table becomes empty, and then as large as before.
        0 => block.extend([0x20, 0x3F, 0xE1, 0x1F]),
        // Larger than is allowed.
        1 => block.extend([0x3F, 0xE2, 0x1F]),
        _ => {}
    }
    for ((name, value), first) in fields.iter().zip(firsts) {
        block.extend(literal(first, name.as_bytes(), value));
    }
    let (body, trailers) = (choices.below(4), choices.fields());
    let is_split = choices.below(4) == 0;
    move |id| {
        let ends = if body == 0 { END_STREAM } else { 0 };
        let mut bytes = match is_split {
            false => frame(HEADERS, ends | END_HEADERS, id, &block),
            true => {
                let (first, rest) = block.split_at(block.len() / 2);
                let mut bytes = frame(HEADERS, ends, id, first);
                bytes.extend(frame(CONTINUATION, END_HEADERS, id, rest));
                bytes
            }
        };
        match body {
            0 => {}
            1 => bytes.extend(frame(DATA, END_STREAM, id, b"hello")),
            2 => bytes.extend(frame(DATA, END_STREAM, id, b"")),
            _ => {
                bytes.extend(frame(DATA, 0, id, b"hello"));
                let mut block = Vec::new();
                for (name, value) in &trailers {
                    block.extend(literal(0, name.as_bytes(), value));
                }
                bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, id, &block));
            }
        }
        bytes
    }
}

/// A request on HTTP/1, the last of its connection. It has a body of at least five bytes, so that no `content-length` among
/// its fields makes the edge wait.
fn http1_request(choices: &Choices) -> Vec<u8> {
    let end = choices.mostly(&["\r\n", "\n", "\r", " \r\n", "\r\n "]);
    let mut request = Vec::new();
    let version = choices.mostly(&[
        "HTTP/1.1",
        "HTTP/1.0",
        "HTTP/2.0",
        "HTTP/1.1 ",
        "http/1.1",
        "",
    ]);
    let (method, target) = (choices.mostly(&METHODS), choices.mostly(&TARGETS));
    request.extend(format!("{method} {target} {version}\r\n").as_bytes());
    let mut fields = choices.fields();
    let hosts = choices.mostly(&[1, 0, 2]);
    for _ in 0..hosts {
        let host = choices.mostly(&AUTHORITIES).as_bytes().to_vec();
        let at = choices.below(fields.len() + 1);
        fields.insert(at, ("Host".to_owned(), host));
    }
    fields.push(("Connection".to_owned(), b"close".to_vec()));
    let odd = choices.below(3 * fields.len());
    for (position, (name, value)) in fields.iter().enumerate() {
        request.extend_from_slice(name.as_bytes());
        let colon = choices.mostly(&[": ", ":", ":  ", " : ", ":\t"]);
        request.extend_from_slice(colon.as_bytes());
        request.extend_from_slice(value);
        let end = if position == odd { end } else { "\r\n" };
        request.extend_from_slice(end.as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(choices.of(&[
        &b"hello"[..],
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\n",
    ]));
    request
}

async fn compare(seed: u64) {
    let script = Script::default();
    let mut text = Side::start("", &script).await;
    let mut map = Side::start(IDLE, &script).await;
    let choices = Choices(SeededEntropy::new(seed));
    let mut n_forwarded = 0;
    for turn in 0..1_500 {
        let (as_text, as_map, case) = match turn % 2 {
            0 => {
                let request = http2_request(&choices);
                let case = String::from_utf8_lossy(&request(1)).into_owned();
                (text.http2(&request).await, map.http2(&request).await, case)
            }
            _ => {
                let request = http1_request(&choices);
                let case = String::from_utf8_lossy(&request).into_owned();
                (text.http1(&request).await, map.http1(&request).await, case)
            }
        };
        assert_eq!(as_text, as_map, "{turn} of {seed}: {case:?}");
        n_forwarded += as_text.upstream.len();
        // With line ends in its values, one of HTTP/1 is several.
        let n_max = if turn % 2 == 0 { 1 } else { usize::MAX };
        assert!(
            as_text.upstream.len() <= n_max,
            "{turn} of {seed}: {case:?} {as_text:?}"
        );
    }
    assert!(n_forwarded > 100, "{n_forwarded}");
}

#[tokio::test]
async fn a_request_is_the_same_as_text_and_as_a_map() {
    compare(1).await;
    compare(2).await;
}

/// A response of an upstream, which then closes the connection.
fn response(choices: &Choices) -> Vec<u8> {
    let line = choices.mostly(&[
        "HTTP/1.1 200 OK",
        "HTTP/1.1 404",
        "HTTP/1.1 204 None",
        "HTTP/1.1 304 Old",
        "HTTP/1.1 101 Upgrade",
        "HTTP/1.1 103 Hints",
        "HTTP/1.1 200 \u{e4}",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 999 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/2 200",
        "http/1.1 200 OK",
        " HTTP/1.1 200 OK",
        "",
    ]);
    let mut fields = choices.fields();
    for name in [
        "Set-Cookie",
        "Date",
        "ngrok-error-code",
        "Ngrok.Error_Code",
        "Culvert-Request-Id",
        "culvert_request_id",
        "Connection",
    ] {
        if choices.below(8) == 0 {
            fields.push((name.to_owned(), choices.of(&VALUES).to_vec()));
        }
    }
    if choices.below(4) > 0 {
        let at = choices.below(fields.len() + 1);
        let length = choices.mostly(&["2", "02", "3", "1", "+2", "2, 2", ""]);
        fields.insert(at, ("Content-Length".to_owned(), length.into()));
    }
    let mut response = format!("{line}\r\n").into_bytes();
    for (name, value) in fields {
        response.extend_from_slice(name.as_bytes());
        let colon = choices.mostly(&[": ", ":", ":  ", " : "]);
        response.extend_from_slice(colon.as_bytes());
        response.extend_from_slice(&value);
        let end = choices.mostly(&["\r\n", "\r\n", "\r\n", "\n", "\r\n "]);
        response.extend_from_slice(end.as_bytes());
    }
    response.extend_from_slice(b"\r\n");
    response.extend_from_slice(choices.of(&[&b"ok"[..], b"", b"2\r\nok\r\n0\r\n\r\n"]));
    response
}

impl Side {
    /// The response to a request on HTTP/1, and on HTTP/2 as a strict client reads it. Without the time, which may differ.
    async fn responses(&mut self) -> (Vec<String>, String) {
        // The queue of requests has a limit.
        drop(self.upstream());
        let mut client = self.rig.connect().await;
        let request = "GET / HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n";
        client.send(request).await;
        let all = String::from_utf8_lossy(&client.rest().await).into_owned();
        let mut lines: Vec<String> = all.split("\r\n").map(without_time).collect();
        lines.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));

        let mut sender = http2(&mut self.rig, &self.root, "app.example").await;
        let request = http::Request::get("https://app.example/").body(Full::<Bytes>::default());
        let answered = soon("a response", sender.send_request(request.unwrap())).await;
        let answered = match answered {
            Ok(response) => {
                let (head, body) = response.into_parts();
                let fields = head.headers.iter();
                let fields = fields.map(|(name, value)| {
                    without_time(&format!(
                        "{name}: {}",
                        String::from_utf8_lossy(value.as_bytes())
                    ))
                });
                let mut fields: Vec<String> = fields.collect();
                fields.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
                let body = soon("a body", body.collect()).await;
                let body = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
                let body = body.map(|body| without_time(&body)).ok();
                format!("{} {fields:?} {body:?}", head.status)
            }
            Err(_) => "reset".to_owned(),
        };
        (lines, answered)
    }
}

/// A line without the date and the ID that the edge adds.
fn without_time(line: &str) -> String {
    match line.split_once(": ") {
        Some(("date", date)) if date.ends_with(" GMT") => "date".to_owned(),
        Some((name @ "culvert-request-id", id)) if id.len() > 20 => name.to_owned(),
        _ => line
            .split(" (request ")
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

#[tokio::test]
async fn a_response_is_the_same_as_text_and_as_a_map() {
    let script = Script::default();
    let mut text = Side::start("", &script).await;
    let mut map = Side::start(IDLE, &script).await;
    let choices = Choices(SeededEntropy::new(3));
    let mut n_passed = 0;
    for turn in 0..300 {
        let response = response(&choices);
        let case = String::from_utf8_lossy(&response).into_owned();
        *script.lock().unwrap() = response;
        let (as_text, as_map) = (text.responses().await, map.responses().await);
        assert_eq!(as_text, as_map, "{turn}: {case:?}");
        n_passed += usize::from(as_text.1.contains("ok"));
    }
    assert!(n_passed > 30, "{n_passed}");
}
