//! Compares our readers with hyper's. Generated messages have the same result in both, and a
//! changed message that ours accept has the same result in hyper.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;

use super::*;
use crate::random::Random;
use crate::target;

/// A connection whose peer sends these pieces and then nothing more. Bytes written to it are
/// dropped.
struct Script {
    pieces: VecDeque<Vec<u8>>,
    /// Whether the peer waits until something was written.
    waits: bool,
    reader: Option<Waker>,
}

impl Script {
    fn new(bytes: &[u8], random: &mut Random, waits: bool) -> Self {
        let most = [1, 7, 100, 100_000][random.below(4)];
        let mut pieces = VecDeque::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + random.below(most)).min(rest.len()));
            pieces.push_back(piece.to_vec());
            rest = behind;
        }
        Self {
            pieces,
            waits,
            reader: None,
        }
    }
}

impl Read for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.waits {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(mut piece) = self.pieces.pop_front() {
            let rest = piece.split_off(piece.len().min(buf.remaining()));
            buf.put_slice(&piece);
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for Script {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.waits = false;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Reads a body of hyper into a message. False if it is not complete.
async fn read_body(mut body: hyper::body::Incoming, message: &mut Message) {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return };
        match frame.into_data() {
            Ok(data) => message.body.extend_from_slice(&data),
            Err(frame) => message.trailers = texts(frame.trailers_ref().unwrap()),
        }
    }
    message.is_whole = true;
}

/// The requests that a server of hyper reads.
async fn their_requests(bytes: &[u8], random: &mut Random) -> Vec<Message> {
    let seen: Arc<Mutex<Vec<Message>>> = Arc::default();
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let seen = Arc::clone(&seen);
        async move {
            let (parts, body) = request.into_parts();
            let target = normal(&parts.uri, &parts.method);
            let fields = texts(&parts.headers);
            let mut message = Message {
                head: format!("{} {target} {fields:?}", parts.method),
                ..Message::default()
            };
            read_body(body, &mut message).await;
            seen.lock().unwrap().push(message);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .max_headers(limits::FIELDS_MAX)
        .header_read_timeout(None)
        .serve_connection(Script::new(bytes, random, false), service);
    // How the connection ends does not affect the messages before.
    drop(connection.await);
    std::mem::take(&mut seen.lock().unwrap())
}

/// The target of a request as we read it; empty if we refuse it.
fn normal(uri: &Uri, method: &Method) -> String {
    let text = Bytes::from(uri.to_string());
    let read = target::read(&text, *method == Method::OPTIONS);
    read.map(|it| it.uri.to_string()).unwrap_or_default()
}

/// The response that a client of hyper reads.
async fn their_response(bytes: &[u8], is_head: bool, random: &mut Random) -> Option<Message> {
    let script = Script::new(bytes, random, true);
    let (mut send, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(limits::RESPONSE_FIELDS_MAX)
        .handshake(script)
        .await
        .unwrap();
    let method = if is_head { "HEAD" } else { "GET" };
    let request = Request::builder()
        .method(method)
        .uri("/")
        .header("host", "a");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let respond = async {
        let (parts, body) = send.send_request(request).await.ok()?.into_parts();
        let fields = texts(&parts.headers);
        let mut message = Message {
            head: format!("{} {fields:?}", parts.status),
            ..Message::default()
        };
        read_body(body, &mut message).await;
        Some(message)
    };
    let (_end, message) = tokio::join!(connection, respond);
    message
}

/// A word in any case.
fn in_any_case(word: &str, random: &mut Random) -> String {
    let letters = word.chars();
    letters
        .map(|c| match random.below(3) {
            0 => c.to_ascii_uppercase(),
            _ => c,
        })
        .collect()
}

fn pick<'a>(of: &[&'a str], random: &mut Random) -> &'a str {
    of[random.below(of.len())]
}

/// Field lines that do not affect framing.
fn fields(random: &mut Random) -> String {
    let mut lines = String::new();
    for _ in 0..random.below(5) {
        let name = pick(
            &["accept", "x", "x-a_b", "cookie", "!#$%&'*+-.^_`|~9", "te"],
            random,
        );
        let value = pick(
            &[
                "",
                "a",
                "a, b",
                "\"q\\\"\"",
                "a\tb",
                "é",
                "a:b;c=d",
                "gzip;q=0.5",
            ],
            random,
        );
        let (before, behind) = (
            pick(&["", " ", "\t", "  "], random),
            pick(&["", " ", "\t"], random),
        );
        lines.push_str(&format!(
            "{}:{before}{value}{behind}\r\n",
            in_any_case(name, random)
        ));
    }
    lines
}

/// The field that determines the length of a body, and the body.
fn body(random: &mut Random, pads: bool) -> (String, Vec<u8>) {
    let parts = random.parts(3_000);
    if random.one_in(2) {
        let length: usize = parts.iter().sum();
        let zeros = pick(&["", "0", "000"], random);
        let name = in_any_case("content-length", random);
        return (format!("{name}: {zeros}{length}\r\n"), vec![b'b'; length]);
    }
    let mut out = Vec::new();
    for length in parts.into_iter().filter(|&length| length > 0) {
        let size = match random.below(3) {
            0 => format!("{length:X}"),
            1 => format!("00{length:x}"),
            _ => format!("{length:x}"),
        };
        let pad = if pads {
            pick(&["", "", " "], random)
        } else {
            ""
        };
        let extension = pick(&["", "", ";a", ";a=b", ";a=\"b c\""], random);
        out.extend_from_slice(format!("{size}{pad}{extension}\r\n").as_bytes());
        out.extend_from_slice(&vec![b'c'; length]);
        out.extend_from_slice(b"\r\n");
    }
    let end = pick(&["0", "000", "0;a=b"], random);
    let trailers = pick(&["", "", "x-sum: 1\r\n", "X: \r\ny:z\r\n"], random);
    out.extend_from_slice(format!("{end}\r\n{trailers}\r\n").as_bytes());
    let name = in_any_case("transfer-encoding", random);
    let value = in_any_case("chunked", random);
    (format!("{name}: {value}\r\n"), out)
}

/// Valid requests, one after another.
fn valid_requests(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + random.below(4) {
        let method = pick(
            &["GET", "POST", "PUT", "OPTIONS", "M-SEARCH", "get"],
            random,
        );
        let target = pick(
            &[
                "/",
                "/a/b?c=d",
                "/%7E?%",
                "//a",
                "/a/../b",
                "http://a/b",
                "http://a?q",
            ],
            random,
        );
        out.extend_from_slice(format!("{method} {target} HTTP/1.1\r\n").as_bytes());
        let host = format!("{}: a\r\n", in_any_case("host", random));
        let (length, body) = if random.one_in(3) {
            (String::new(), Vec::new())
        } else {
            body(random, false)
        };
        let mut lines = [fields(random), host, length, fields(random)];
        let turn = random.below(lines.len());
        lines.rotate_left(turn);
        out.extend_from_slice(lines.concat().as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend(body);
    }
    out
}

/// A valid response, possibly after interim responses.
fn valid_response(random: &mut Random) -> Vec<u8> {
    let mut out = String::new();
    for _ in 0..random.below(3) {
        out.push_str(pick(
            &[
                "HTTP/1.1 100 Continue\r\n\r\n",
                "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n",
            ],
            random,
        ));
    }
    let status = pick(
        &[
            "200 OK",
            "204 No Content",
            "304 Not Modified",
            "404 ",
            "500",
            "299 a b\té",
        ],
        random,
    );
    let version = pick(&["1.1", "1.1", "1.0"], random);
    out.push_str(&format!("HTTP/{version} {status}\r\n"));
    let (length, mut body) = if random.one_in(3) {
        (String::new(), vec![b'd'; random.below(300)])
    } else if version == "1.0" {
        (String::from("content-length: 3\r\n"), b"abc".to_vec())
    } else {
        body(random, true)
    };
    if status.starts_with("204") || status.starts_with("304") {
        body.clear();
    }
    out.push_str(&[fields(random), length, fields(random), "\r\n".into()].concat());
    [out.into_bytes(), body].concat()
}

/// Changes a few bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    const PIECES: [&[u8]; 22] = [
        b"",
        b"",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b":",
        b"\0",
        b"0",
        b"5",
        b";",
        b",",
        b"\xFF",
        b"\r\n\r\n",
        b"HTTP/1.0",
        b"content-length: 1\r\n",
        b"transfer-encoding: chunked\r\n",
        b"host: b\r\n",
        b"x",
        b"/",
        b"\x7F",
    ];
    for _ in 0..1 + random.below(2) {
        // Heads are at the beginning.
        let limit = if random.one_in(3) {
            bytes.len()
        } else {
            bytes.len().min(120)
        };
        let at = random.below(limit + 1);
        let end = (at + random.below(4)).min(bytes.len());
        bytes.splice(at..end, PIECES[random.below(PIECES.len())].iter().copied());
    }
}

/// The requests that we read, up to the last complete one.
fn our_requests(bytes: &[u8]) -> Vec<Message> {
    let (mut messages, _) = requests(bytes, &[usize::MAX]);
    messages.retain(|it| it.is_whole);
    messages
}

/// The response that we read, if it is complete.
fn our_response(bytes: &[u8], is_head: bool) -> Option<Message> {
    let (messages, wrong) = responses(bytes, &[is_head], &[usize::MAX]);
    let last = messages.into_iter().last()?;
    // Bytes after it end the connection for both.
    (last.is_whole && !last.head.starts_with('1') && wrong.is_none_or(|it| it == "behind the last"))
        .then_some(last)
}

#[tokio::test]
async fn valid_messages_are_read_as_hyper_reads_them() {
    for seed in 0..800 {
        let random = &mut Random::new(seed);
        let bytes = valid_requests(random);
        let ours = our_requests(&bytes);
        assert!(!ours.is_empty(), "seed {seed}");
        assert_eq!(ours, their_requests(&bytes, random).await, "seed {seed}");

        let bytes = valid_response(random);
        let is_head = random.one_in(6);
        let ours = our_response(&bytes, is_head);
        assert!(ours.is_some(), "seed {seed}: {}", bytes.escape_ascii());
        let theirs = their_response(&bytes, is_head, random).await;
        assert_eq!(ours, theirs, "seed {seed}: {}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn changed_messages_that_are_accepted_are_read_as_hyper_reads_them() {
    let (mut requests, mut responses) = (0, 0);
    for seed in 0..2_000 {
        let random = &mut Random::new(seed);
        let mut bytes = valid_requests(random);
        change(&mut bytes, random);
        let ours = our_requests(&bytes);
        let theirs = their_requests(&bytes, random).await;
        for (nth, ours) in ours.iter().enumerate() {
            let theirs = theirs.get(nth);
            // hyper ends the connection after an HTTP/1.0 request.
            if theirs.is_none() && nth > 0 && bytes.windows(8).any(|it| it == b"HTTP/1.0") {
                break;
            }
            assert_eq!(Some(ours), theirs, "seed {seed}: {}", bytes.escape_ascii());
            requests += 1;
        }

        let mut bytes = valid_response(random);
        change(&mut bytes, random);
        if let Some(ours) = our_response(&bytes, false) {
            let theirs = their_response(&bytes, false, random).await;
            assert_eq!(Some(ours), theirs, "seed {seed}: {}", bytes.escape_ascii());
            responses += 1;
        }
    }
    assert!(
        requests > 1_000 && responses > 400,
        "{requests} {responses}"
    );
}
