//! Requests that two parsers could read differently, and legal ones that look odd: none of the former
//! reaches the origin, all of the latter do, and as they were meant.

use std::collections::HashSet;
use std::sync::Arc;

use super::harness::*;

mod controls;
mod framing;
mod hosts;
mod lines;
mod origin;
mod sizes;
mod upgrades;

use self::origin::{Heard, Tap};

/// What the edge must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Must {
    /// With this status and a close, nothing forwarded.
    Refuse(u16),
    /// With the origin's answer; the origin saw one request.
    Pass,
}

use Must::{Pass, Refuse};

/// A request, and what must come of it.
pub(super) type Request = (Must, Vec<u8>);

const H: &str = "Host: app.example\r\n";

/// A request with a line added, without body.
fn field(line: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\n{H}{line}\r\n\r\n").into_bytes()
}

/// A request with a body and additional lines.
fn body(lines: &str, body: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\n{H}{lines}\r\n\r\n{body}").into_bytes()
}

/// A chunked request with this on the wire after its head.
fn chunks(wire: &str) -> Vec<u8> {
    body("Transfer-Encoding: chunked", wire)
}

/// A request with this request line.
fn line(line: &str) -> Vec<u8> {
    format!("{line}\r\n{H}\r\n").into_bytes()
}
/// All requests, and each that must be refused with another request behind it.
pub(super) fn corpus() -> Vec<Request> {
    let mut corpus = [
        framing::requests(),
        lines::requests(),
        hosts::requests(),
        sizes::requests(),
        upgrades::requests(),
        controls::requests(),
    ]
    .concat();
    // A second request behind a bad one must not count.
    let smuggled = corpus
        .iter()
        .filter(|(must, _)| *must == Refuse(400))
        .map(|(must, bytes)| {
            let behind = format!("GET /smuggled HTTP/1.1\r\n{H}\r\n").into_bytes();
            (*must, [bytes.as_slice(), &behind].concat())
        })
        .collect::<Vec<_>>();
    corpus.extend(smuggled);
    corpus
}

#[expect(
    clippy::print_stdout,
    reason = "the counts are what the corpus reports"
)]
#[tokio::test]
async fn ambiguous_requests_are_refused_and_legal_ones_forwarded() {
    let mut rig = Rig::start().await;
    let heard: Arc<Heard> = Arc::default();
    let hears = Arc::clone(&heard);
    let origin = origin(&mut rig.tasks, move |client| {
        let hears = Arc::clone(&hears);
        async move {
            let mut client = Client::new(Tap {
                stream: client.stream,
                heard: Arc::clone(&hears.raw),
            });
            while let Some(request) = client.request().await {
                hears.whole.lock().unwrap().push(request);
                client
                    .send("HTTP/1.1 299 Passed\r\ncontent-length: 0\r\n\r\n")
                    .await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;

    let corpus = corpus();
    let distinct: HashSet<&[u8]> = corpus.iter().map(|(_, bytes)| bytes.as_slice()).collect();
    let mut wrong = Vec::new();
    let (mut refused, mut passed) = (0, 0);
    for (must, bytes) in &corpus {
        heard.forget();
        let mut client = rig.connect().await;
        client.send(bytes).await;
        // The connection closes after an error response, for every method.
        let method = if *must == Pass && bytes.starts_with(b"HEAD") {
            "HEAD"
        } else {
            "GET"
        };
        let status = {
            // Shorter than the harness's own, so that the request is named.
            let answer = tokio::time::timeout(PATIENCE / 2, client.try_answer(method)).await;
            answer.ok().flatten().map(|answer| answer.status)
        };
        let why = match must {
            // A head that is good is on its way before a body that is not comes; then it is an
            // exchange cut short, whose end the origin never receives.
            Refuse(code) => {
                refused += 1;
                let ends = matches!(code, 400 | 414 | 431);
                let is_open = ends && status == Some(*code) && client.more().await;
                let whole = heard.whole.lock().unwrap().len();
                let is_smuggled = find(&heard.raw.lock().unwrap(), b"/smuggled").is_some();
                (status != Some(*code) || is_open || whole > 0 || is_smuggled)
                    .then(|| format!("open {is_open}, heard {whole}, smuggled {is_smuggled}"))
            }
            Pass if status != Some(299) => Some("it did not pass".to_owned()),
            Pass => {
                passed += 1;
                heard.wrong(bytes)
            }
        };
        if let Some(why) = why {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(160)]).into_owned();
            wrong.push(format!("{must:?} got {status:?}: {why}: {shown:?}"));
        }
    }
    println!(
        "{} requests, {} of them distinct: {refused} had to be refused, {passed} passed, {} went wrong",
        corpus.len(),
        distinct.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(distinct.len() >= 300);
    assert_eq!(rig.edge.meters().panics.get(), 0);
}

#[tokio::test]
async fn unusual_legal_requests_are_forwarded_byte_for_byte() {
    let mut rig = Rig::start().await;
    let (reported, mut hears) = tokio::sync::mpsc::channel(1);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            while let Some(head) = client.head().await {
                let (body, trailers) = client.body(&head).await.unwrap();
                reported.send((head, body, trailers)).await.unwrap();
                client
                    .send("HTTP/1.1 299 Passed\r\ncontent-length: 0\r\n\r\n")
                    .await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;

    // The bytes after the host, and what the origin must receive: own lines, body, trailers.
    let cases: [(&str, &str, &str, &str); 12] = [
        ("X: a\r\nx: b\r\nX: a\r\n\r\n", "x: a|x: b|x: a", "", ""),
        ("X:\r\nY: \t\r\n\r\n", "x: |y: ", "", ""),
        ("X:  a  b\t c \t\r\n\r\n", "x: a  b\t c", "", ""),
        ("X: é ÿ \"\\\"\" ,;:\r\n\r\n", "x: é ÿ \"\\\"\" ,;:", "", ""),
        ("!#$%&'*+-.^`|~9: x\r\n\r\n", "!#$%&'*+-.^`|~9: x", "", ""),
        (
            "Cookie: a=b\r\nCookie: c=d\r\n\r\n",
            "cookie: a=b|cookie: c=d",
            "",
            "",
        ),
        (
            "Connection: X, close\r\nX: gone\r\nY: stays\r\n\r\n",
            "y: stays",
            "",
            "",
        ),
        (
            "Content-Length: 003\r\n\r\na\r\n",
            "content-length: 3",
            "a\r\n",
            "",
        ),
        (
            "Transfer-Encoding: CHUNKED\r\n\r\n3;x=\"\\\"\"\r\n\r\n0\r\n5\r\n\r\n\r\n0\r\n000\r\n\r\n",
            "transfer-encoding: chunked",
            "\r\n0\r\n\r\n0",
            "",
        ),
        (
            "Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\0\r\n0\r\nX-Sum:  1 2 \r\n\r\n",
            "transfer-encoding: chunked",
            "\0",
            "",
        ),
        (
            "X-Forwarded-For: 9.9.9.9\r\nForwarded: for=x\r\nVia: 1.0 me\r\n\r\n",
            "via: 1.0 me",
            "",
            "",
        ),
        (
            "Range: bytes=0-\r\nIf-Match: *, W/\"x\"\r\n\r\n",
            "range: bytes=0-|if-match: *, W/\"x\"",
            "",
            "",
        ),
    ];
    let mut client = rig.connect().await;
    for (sent, lines, body, trailers) in cases {
        client
            .send(format!("POST /x?y HTTP/1.1\r\nHost: app.example\r\n{sent}"))
            .await;
        let (head, heard_body, heard_trailers) = hears.recv().await.unwrap();
        let answer = client.answer("POST").await;
        assert_eq!(answer.status, 299, "{sent:?}");
        let mut heard: Vec<&str> = head.trim_end_matches("\r\n").split("\r\n").collect();
        assert_eq!(heard.remove(0), "POST /x?y HTTP/1.1");
        let ours = [
            "host: ",
            "x-forwarded-for: ",
            "x-forwarded-host: ",
            "x-forwarded-proto: ",
        ];
        for name in ours {
            let at = heard.iter().position(|line| line.starts_with(name));
            heard.remove(at.unwrap_or_else(|| panic!("no {name} in {head:?}")));
        }
        let mut wanted: Vec<&str> = lines.split('|').filter(|line| !line.is_empty()).collect();
        if lines.starts_with("!#") {
            wanted = vec![lines];
        }
        heard.retain(|line| *line != "content-length: 0");
        heard.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(heard, wanted, "{sent:?}");
        assert_eq!(heard_body, body.as_bytes(), "{sent:?}");
        assert_eq!(heard_trailers, trailers, "{sent:?}");
        if sent.contains("close") {
            client = rig.connect().await;
        }
    }
}
