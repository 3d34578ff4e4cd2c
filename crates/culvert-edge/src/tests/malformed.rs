//! Requests that two parsers could read differently, and legal ones that look odd: none of the first
//! reaches the origin, all of the second do, and as they were meant.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use culvert_http::http1::limits::{
    CHUNK_EXTENSION_BYTES_MAX, FIELD_LINE_BYTES_MAX, FIELD_SECTION_BYTES_MAX, FIELDS_MAX,
    REQUEST_LINE_BYTES_MAX, TRAILER_BYTES_MAX, TRAILERS_MAX,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::harness::*;

/// What the edge must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    /// With this status and a close, nothing forwarded.
    Refuse(u16),
    /// With the origin's answer; the origin saw one request.
    Pass,
}

use Must::{Pass, Refuse};

const H: &str = "Host: app.example\r\n";

/// A request with a line added, without body.
fn field(line: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\n{H}{line}\r\n\r\n").into_bytes()
}

/// A request with a body and lines of its own.
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

#[expect(clippy::too_many_lines, reason = "a table")]
fn corpus() -> Vec<(Must, Vec<u8>)> {
    let long = |n: usize| "x".repeat(n);
    let mut corpus = vec![
        // Two lengths, or a length and an encoding.
        (
            Refuse(400),
            body("Content-Length: 3\r\nContent-Length: 3", "abc"),
        ),
        (
            Refuse(400),
            body("Content-Length: 3\r\nContent-Length: 4", "abcd"),
        ),
        (
            Refuse(400),
            body("Content-Length: 3\r\ncontent-length: 3", "abc"),
        ),
        (Refuse(400), body("Content-Length: 3, 3", "abc")),
        (Refuse(400), body("Content-Length: 3,4", "abc")),
        (
            Refuse(400),
            body(
                "Content-Length: 3\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nContent-Length: 3",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nContent-Length: 0",
                "0\r\n\r\n",
            ),
        ),
        // Lengths that are no numbers.
        (Refuse(400), body("Content-Length: +3", "abc")),
        (Refuse(400), body("Content-Length: -3", "abc")),
        (Refuse(400), body("Content-Length: -0", "")),
        (Refuse(400), body("Content-Length: 0x3", "abc")),
        (Refuse(400), body("Content-Length: 3_0", "abc")),
        (Refuse(400), body("Content-Length: 3 0", "abc")),
        (Refuse(400), body("Content-Length: 3.0", "abc")),
        (Refuse(400), body("Content-Length: 3;q=1", "abc")),
        (Refuse(400), body("Content-Length: \"3\"", "abc")),
        (Refuse(400), body("Content-Length:", "")),
        (Refuse(400), body("Content-Length: ", "")),
        (Refuse(400), body("Content-Length: a", "abc")),
        (Refuse(400), body("Content-Length: 9223372036854775808", "")),
        (
            Refuse(400),
            body("Content-Length: 18446744073709551616", ""),
        ),
        (
            Refuse(400),
            body("Content-Length: 99999999999999999999999999", ""),
        ),
        (Refuse(400), body("Content-Length: ３", "abc")),
        (Pass, body("Content-Length: 3", "abc")),
        (Pass, body("Content-Length:3", "abc")),
        (Pass, body("Content-Length: \t 3 \t", "abc")),
        (Pass, body("Content-Length: 003", "abc")),
        (Pass, body("content-LENGTH: 3", "abc")),
        (Pass, body("Content-Length: 0", "")),
        // Encodings other than exactly chunked.
        (
            Refuse(400),
            body("Transfer-Encoding: xchunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked, identity", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: identity, chunked", "0\r\n\r\n"),
        ),
        (Refuse(400), body("Transfer-Encoding: identity", "")),
        (
            Refuse(400),
            body("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
                "0\r\n\r\n",
            ),
        ),
        (
            Refuse(400),
            body(
                "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
                "0\r\n\r\n",
            ),
        ),
        (Refuse(400), body("Transfer-Encoding:", "")),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked;q=1", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: \"chunked\"", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: chunked,", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: ,chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding : chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding\t: chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("Transfer-Encoding:\r\n chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            body("X: y\r\n Transfer-Encoding: chunked", "0\r\n\r\n"),
        ),
        (
            Refuse(400),
            format!("POST / HTTP/1.0\r\n{H}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
                .into_bytes(),
        ),
        (Pass, body("Transfer-Encoding: Chunked", "0\r\n\r\n")),
        (
            Pass,
            body("transfer-encoding:\tchunked ", "3\r\nabc\r\n0\r\n\r\n"),
        ),
        // Field lines.
        (Refuse(400), field("X: a\r\n b")),
        (Refuse(400), field("X: a\r\n\tb")),
        (Refuse(400), field(" X: a")),
        (Refuse(400), field("X : a")),
        (Refuse(400), field("X")),
        (Refuse(400), field("X Y: a")),
        (Refuse(400), field(": a")),
        (Refuse(400), field("X\x00: a")),
        (Refuse(400), field("X: a\x00b")),
        (Refuse(400), field("X: a\x01b")),
        (Refuse(400), field("X: a\x7fb")),
        (Refuse(400), field("X: a\rb")),
        (Refuse(400), field("X: a\r")),
        (Refuse(400), field("X: a\nY: b")),
        (Refuse(400), field("X: a\n\n")),
        (Refuse(400), field("X(: a")),
        (Refuse(400), field("X/Y: a")),
        (Refuse(400), field("\"X\": a")),
        (Refuse(400), field("X[0]: a")),
        (Refuse(400), field("é: a")),
        (Refuse(400), field("\u{b}X: a")),
        (Pass, field("X:")),
        (Pass, field("X:a")),
        (Pass, field("X: a: b")),
        (Pass, field("X: a\tb")),
        (Pass, field("X: é")),
        (Pass, field("x!#$%&'*+-.^_`|~0: a")),
        (Pass, field("X: a\r\nX: b")),
        (Pass, field("Connection: close, x\r\nx: 1")),
        (Pass, field("Cookie: a=b; c=\"d\"")),
        // Hosts.
        (Refuse(400), b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (Refuse(400), b"GET / HTTP/1.0\r\n\r\n".to_vec()),
        (Refuse(400), field("Host: app.example")),
        (Refuse(400), field("host: other.example")),
        (Refuse(400), b"GET / HTTP/1.1\r\nHost:\r\n\r\n".to_vec()),
        (Refuse(400), b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n".to_vec()),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: u@app.example\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: u:p@app.example\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example, b\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example:x\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example:80:80\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example:70000\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example:-1\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example/x\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example#x\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET http://other.example/ HTTP/1.1\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET http://app.example:81/ HTTP/1.1\r\nHost: app.example:80\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET http://u@app.example/ HTTP/1.1\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        (
            Pass,
            b"GET / HTTP/1.1\r\nHost: APP.Example.\r\n\r\n".to_vec(),
        ),
        (
            Pass,
            b"GET / HTTP/1.1\r\nhOST:app.example:8080\r\n\r\n".to_vec(),
        ),
        (
            Pass,
            b"GET / HTTP/1.1\r\nHost: app.example:\r\n\r\n".to_vec(),
        ),
        (
            Pass,
            b"GET / HTTP/1.0\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        (
            Pass,
            b"GET http://app.example/ HTTP/1.1\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        (
            Pass,
            b"GET HTTP://APP.EXAMPLE HTTP/1.1\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        // Request lines.
        (Refuse(400), line("GET  / HTTP/1.1")),
        (Refuse(400), line("GET /  HTTP/1.1")),
        (Refuse(400), line("GET / HTTP/1.1 ")),
        (Refuse(400), line(" GET / HTTP/1.1")),
        (Refuse(400), line("GET\t/\tHTTP/1.1")),
        (Refuse(400), line("GET /")),
        (Refuse(400), line("GET")),
        (Refuse(400), line("GET / HTTP/1.2")),
        (Refuse(400), line("GET / HTTP/2.0")),
        (Refuse(400), line("GET / HTTP/0.9")),
        (Refuse(400), line("GET / HTTP/1.01")),
        (Refuse(400), line("GET / http/1.1")),
        (Refuse(400), line("GET / HTTP/11")),
        (Refuse(400), line("GET / HTTPS/1.1")),
        (Refuse(400), line("G(ET / HTTP/1.1")),
        (Refuse(400), line("G\x00T / HTTP/1.1")),
        (Refuse(400), line("GÉT / HTTP/1.1")),
        (Refuse(400), line("GET x HTTP/1.1")),
        (Refuse(400), line("GET ?x HTTP/1.1")),
        (Refuse(400), line("GET * HTTP/1.1")),
        (Refuse(400), line("GET app.example:80 HTTP/1.1")),
        (Refuse(400), line("GET ftp://app.example/ HTTP/1.1")),
        (Refuse(400), line("GET /a#b HTTP/1.1")),
        (Refuse(400), line("GET /é HTTP/1.1")),
        (Refuse(400), line("GET /<x> HTTP/1.1")),
        (Refuse(400), line("GET /`x` HTTP/1.1")),
        (Refuse(400), line("GET /?\"x\" HTTP/1.1")),
        (Refuse(400), line("GET http:// HTTP/1.1")),
        (Refuse(400), line("GET http:///x HTTP/1.1")),
        (Refuse(400), line("GET /\x01 HTTP/1.1")),
        (Refuse(400), line("GET /\x7f HTTP/1.1")),
        (Refuse(400), line("GET /a b HTTP/1.1")),
        (Refuse(400), line("GET /\rX HTTP/1.1")),
        (Refuse(405), line("CONNECT app.example:80 HTTP/1.1")),
        (Refuse(400), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        (
            Refuse(400),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n".to_vec(),
        ),
        (Refuse(400), format!("GET / HTTP/1.1\n{H}\r\n").into_bytes()),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\r\nHost: app.example\r\n\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET / HTTP/1.1\nHost: app.example\n\n".to_vec(),
        ),
        (
            Refuse(400),
            format!("\r\n\r\nGET / HTTP/1.1\r\n{H}\r\n").into_bytes(),
        ),
        (
            Refuse(400),
            format!("\nGET / HTTP/1.1\r\n{H}\r\n").into_bytes(),
        ),
        (Pass, format!("\r\nGET / HTTP/1.1\r\n{H}\r\n").into_bytes()),
        (Pass, line("OPTIONS * HTTP/1.1")),
        (Pass, line("PROPFIND /x HTTP/1.1")),
        (Pass, line("get / HTTP/1.1")),
        (Pass, line("GET //x/../y?z=%00&a=b+c;d|e{f}[]^` HTTP/1.1")),
        (Pass, line("GET /\"{}|^[]~!$&'()*+,;=:@-._ HTTP/1.1")),
        (Pass, line("GET /? HTTP/1.1")),
        (Refuse(400), line("GET /%zz HTTP/1.1")),
        // Chunks.
        (Refuse(400), chunks("x\r\n")),
        (Refuse(400), chunks("\r\n0\r\n\r\n")),
        (Refuse(400), chunks("0x3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("+3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("-3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks(" 3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3 \r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabc0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabcd\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabc\n0\r\n\r\n")),
        (Refuse(400), chunks("3\r\nabc\r0\r\n\r\n")),
        (Refuse(400), chunks("3;a\nb\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("3;\x00\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("00000000000000003\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("10000000000000000\r\nabc")),
        (Refuse(400), chunks("3,3\r\nabc\r\n0\r\n\r\n")),
        (Refuse(400), chunks("0\r\nX\r\n\r\n")),
        (Refuse(400), chunks("0\r\n X: y\r\n\r\n")),
        (Refuse(400), chunks("0\r\nX: y\n\r\n")),
        (Refuse(400), chunks("0\r\nX: \x01\r\n\r\n")),
        (Refuse(400), chunks("0\n\n")),
        (Pass, chunks("0\r\n\r\n")),
        (Pass, chunks("000\r\n\r\n")),
        (Pass, chunks("3\r\nabc\r\n0\r\n\r\n")),
        (Pass, chunks("0000000000000003\r\nabc\r\n0\r\n\r\n")),
        (
            Pass,
            chunks("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"),
        ),
        (Pass, chunks("3;x=\"y\";z\r\nabc\r\n0;last\r\n\r\n")),
        (Pass, chunks("0\r\nX-Sum: 1\r\nContent-Length: 7\r\n\r\n")),
        // Expectations, and sizes at and over their limits.
        (Refuse(417), body("Expect: 200-ok\r\nContent-Length: 0", "")),
        (
            Refuse(414),
            line(&format!("GET /{} HTTP/1.1", long(16 << 10))),
        ),
        (Pass, line(&format!("GET /{} HTTP/1.1", long(15 << 10)))),
        (Refuse(431), field(&format!("X: {}", long(33 << 10)))),
        (Pass, field(&format!("X: {}", long(31 << 10)))),
        (
            Refuse(431),
            field(&format!("{}X: y", "X: y\r\n".repeat(127))),
        ),
        (Pass, field(&format!("{}X: y", "X: y\r\n".repeat(120)))),
        (
            Refuse(431),
            field(&format!("A: {0}\r\nB: {0}\r\nC: {0}", long(22 << 10))),
        ),
        (
            Refuse(400),
            chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(300))),
        ),
        (
            Refuse(400),
            chunks(&format!("0\r\nX: {}\r\n\r\n", long(9 << 10))),
        ),
        (
            Refuse(400),
            chunks(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(33))),
        ),
        (
            Pass,
            chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(200))),
        ),
    ];
    corpus.extend(framing_games());
    corpus.extend(line_games());
    corpus.extend(host_games());
    corpus.extend(upgrade_games());
    corpus.extend(sizes());
    corpus.extend(controls());
    // A second request behind a bad one never counts.
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

/// Lengths, encodings and chunks.
#[expect(clippy::too_many_lines, reason = "a table")]
fn framing_games() -> Vec<(Must, Vec<u8>)> {
    let mut games = Vec::new();
    for length in [
        "3,",
        ",3",
        "3 3",
        "0 3",
        "3\t4",
        "=3",
        "0b11",
        "'3'",
        "$3",
        "3h",
        "%33",
        "1e1",
        "٣",
        "3\u{a0}",
        "\u{feff}3",
        "3\\0",
        "three",
        "3/1",
        "(3)",
        "[3]",
        "3:3",
        "#3",
        "*",
        "NaN",
        "Infinity",
        "null",
        "0x",
        "00x3",
        "3-",
        "3+0",
        "0,0",
        "-9223372036854775808",
    ] {
        games.push((
            Refuse(400),
            body(&format!("Content-Length: {length}"), "abc"),
        ));
    }
    for lines in [
        "Content-Length:\r\nContent-Length: 3",
        "Content-Length: 3\r\nX: y\r\nContent-Length: 3",
        "Content-Length: 3\r\nCONTENT-LENGTH: 03",
        "Content-Length: 0\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 0",
        "Content-Length: 3\r\nContent-Length: 3\r\nContent-Length: 3",
        "Content-Length : 3",
        "Content-Length\t: 3",
        " Content-Length: 3",
        "\tContent-Length: 3",
        "Content-\r\nLength: 3",
        "Content Length: 3",
        "Content-Length 3",
        "Content-Length= 3",
        "Content-Length\u{b}: 3",
        "Content-Length:\u{b}3",
        "Content-Length: 3\u{c}",
        "Content-Length:\r\n 3",
        "Content-Length:\r\n\t3",
        "X: y\r\n\tContent-Length: 3",
        "X:\r\n Content-Length: 3",
        "Content-Length: 3\nTransfer-Encoding: chunked",
        "Content-Length: 3\rTransfer-Encoding: chunked",
        "X: y\nContent-Length: 3",
        "X: y\rContent-Length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: identity",
        "Content-Length: 3\r\nTransfer-Encoding:",
        "Content-Length: 3\r\ntransfer-encoding: CHUNKED",
        "TRANSFER-ENCODING: chunked\r\ncontent-length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: x",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\n Transfer-Encoding: chunked",
        "Content-Length: 3\r\nTransfer-Encoding : chunked",
        "Content-Length: 3\r\nTransfer-Encoding\u{b}: chunked",
        "Content-Length: 3\r\nTransfer-Encoding:\u{b}chunked",
    ] {
        games.push((Refuse(400), body(lines, "abc")));
    }
    for encoding in [
        "chunk",
        "chunkedx",
        "chun ked",
        "\"chunked",
        "chunked\"",
        "'chunked'",
        "chunked\u{a0}",
        "chunked ;",
        "chunked;",
        "chunked;x",
        "CHUNKED,identity",
        "x, chunked",
        "chunked x",
        "chunked chunked",
        "chunked,gzip",
        "br, chunked",
        "deflate",
        "compress",
        "trailers",
        "null",
        "cow, chunked",
        "chunked/1.1",
        "(chunked)",
        "chunked\\",
        "chunked\r\n\tx",
        "\r\n chunked",
        "chunked\r\nTransfer-Encoding:",
        "\r\nTransfer-Encoding: chunked",
        "%63hunked",
        "ｃhunked",
        "chunked\r\nX: y\r\nTransfer-Encoding: chunked",
        "identity\r\nTransfer-Encoding: chunked",
        "chunked\nX: y",
        "chunked\rX: y",
        "chunked,,",
        "identity, identity",
        "gzip;q=1, chunked",
    ] {
        games.push((
            Refuse(400),
            body(&format!("Transfer-Encoding: {encoding}"), "0\r\n\r\n"),
        ));
    }
    for wire in [
        "3 ;x\r\nabc\r\n0\r\n\r\n",
        "3\t\r\nabc\r\n0\r\n\r\n",
        "\t3\r\nabc\r\n0\r\n\r\n",
        "-0\r\n\r\n",
        "+0\r\n\r\n",
        "0x0\r\n\r\n",
        "0 \r\n\r\n",
        "0\u{b}\r\n\r\n",
        "0\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        "0\r\n\r\r\n",
        "0\r\n\n",
        "0\r\r\n\r\n",
        "0\n\r\n",
        "3\r\r\nabc\r\n0\r\n\r\n",
        "3\n\rabc\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "3\r\nabc\r\n\r\n0\r\n\r\n",
        "3\r\nabc\n\n0\r\n\r\n",
        "3\r\nabc\r\r\n0\r\n\r\n",
        "3;a=\"b\r\nc\"\r\nabc\r\n0\r\n\r\n",
        "3;a\u{7f}\r\nabc\r\n0\r\n\r\n",
        "3;\rx\r\nabc\r\n0\r\n\r\n",
        "3;x\nabc\r\n0\r\n\r\n",
        "3;x\r\r\nabc\r\n0\r\n\r\n",
        "g\r\n",
        "３\r\nabc\r\n0\r\n\r\n",
        "3\u{a0}\r\nabc\r\n0\r\n\r\n",
        "3.\r\nabc\r\n0\r\n\r\n",
        "'3'\r\nabc\r\n0\r\n\r\n",
        "3h\r\nabc\r\n0\r\n\r\n",
        "0x\r\n\r\n",
        "3_0\r\nabc\r\n0\r\n\r\n",
        "1 0\r\nabc\r\n0\r\n\r\n",
        "#3\r\nabc\r\n0\r\n\r\n",
        "3=\r\nabc\r\n0\r\n\r\n",
        "%33\r\nabc\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        ";x\r\nabc\r\n0\r\n\r\n",
        "0\r\nX: y\r\n z\r\n\r\n",
        "0\r\n: y\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nX: y\r\nX\r\n\r\n",
        "0\r\nX: y\rz\r\n\r\n",
        "0\r\nX: y\nz: 1\r\n\r\n",
        "0\r\nX: \0\r\n\r\n",
        "0\r\n\tX: y\r\n\r\n",
        "0\r\nX(: y\r\n\r\n",
    ] {
        games.push((Refuse(400), chunks(wire)));
    }
    for wire in [
        "3; x=y\r\nabc\r\n0\r\n\r\n",
        "3;x=y;z=\"; \t\"\r\nabc\r\n0\r\n\r\n",
        "03\r\nabc\r\n0000000000000000\r\n\r\n",
        "1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n",
        "2\r\n\r\n\r\n0\r\n\r\n",
        "5\r\n0\r\n\r\n\r\n0\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nHost: other.example\r\n\r\n",
        "0\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
        "0\r\nAuthorization: Basic x\r\nCookie: a=b\r\n\r\n",
    ] {
        games.push((Pass, chunks(wire)));
    }
    for lines in [
        "TE: chunked\r\nContent-Length: 3",
        "Connection: content-length\r\nContent-Length: 3",
        "Connection: transfer-encoding, host, te\r\nContent-Length: 3",
        "Content-Encoding: chunked\r\nContent-Length: 3",
        "Length: 9\r\nContent-Length: 3",
        "Content-Length: 0000000000000000000000003",
        "Expect: 100-continue\r\nContent-Length: 3",
        "Expect: 100-Continue\r\nContent-Length: 3",
        "Trailer: content-length\r\nContent-Length: 3",
    ] {
        games.push((Pass, body(lines, "abc")));
    }
    for expectation in [
        "",
        "100-continue, x",
        "100",
        "x, 100-continue",
        "200-ok, 100-continue",
    ] {
        games.push((
            Refuse(417),
            body(&format!("Expect: {expectation}\r\nContent-Length: 0"), ""),
        ));
    }
    games
}

/// Methods, targets, versions, ends of lines.
fn line_games() -> Vec<(Must, Vec<u8>)> {
    let mut games = Vec::new();
    for text in [
        "GET / HTTP/1.1x",
        "GET / HTTP/ 1.1",
        "GET / HTTP/1,1",
        "GET / HTTP/1.10",
        "GET / HTTP/3",
        "GET / HTTP/1",
        "GET / HTTP/1.",
        "GET / HTTP/.1",
        "GET / hTTP/1.1",
        "GET / HTP/1.1",
        "GET / HTTP/1.1\t",
        "GET / HTTP/1.1 HTTP/1.1",
        "GET / HTTP/-1.1",
        "GET / HTTP/0.0",
        "GET / HTTP/1.3",
        "GET / HTTP/+1.1",
        "GET / HTTP/1.1\u{b}",
        "GET / HTTP\\1.1",
        "GET / HTTP/１.1",
        "GET / HTTP/1.1\r",
        "GET / ",
        "GET /\t HTTP/1.1",
        "GET\u{b}/ HTTP/1.1",
        "GE\tT / HTTP/1.1",
        "GET,POST / HTTP/1.1",
        "\"GET\" / HTTP/1.1",
        "G@T / HTTP/1.1",
        "{GET} / HTTP/1.1",
        "GET: / HTTP/1.1",
        "\u{feff}GET / HTTP/1.1",
        "/ HTTP/1.1",
        "GET HTTP/1.1",
        "GET / a HTTP/1.1",
        "GET /\r HTTP/1.1",
        "GET \r/ HTTP/1.1",
        "\rGET / HTTP/1.1",
        "GET @app.example/ HTTP/1.1",
        "GET app.example HTTP/1.1",
        "GET \\ HTTP/1.1",
        "GET http:/app.example/ HTTP/1.1",
        "GET http:app.example HTTP/1.1",
        "GET file:///etc/passwd HTTP/1.1",
        "GET ws://app.example/ HTTP/1.1",
        "GET javascript:x HTTP/1.1",
        "GET http://app.example\\@other/ HTTP/1.1",
        "GET http://app.example:80:81/ HTTP/1.1",
        "GET http://[::1/ HTTP/1.1",
        "GET http://app.example.other/ HTTP/1.1",
        "GET http://other.example HTTP/1.1",
        "GET http://app.example%2eother/ HTTP/1.1",
        "GET http://app.example#/ HTTP/1.1",
        "GET http://app.example;x/ HTTP/1.1",
        "GET http://app.example,other/ HTTP/1.1",
        "GET http://:80/ HTTP/1.1",
        "GET http://?x HTTP/1.1",
        "GET http://app.example:x/ HTTP/1.1",
        "GET http://app.example:70000/ HTTP/1.1",
        "GET //\u{7f} HTTP/1.1",
        "POST * HTTP/1.1",
        "HEAD * HTTP/1.1",
        "OPTIONS *x HTTP/1.1",
        "OPTIONS ** HTTP/1.1",
        "OPTIONS * HTTP/2.0",
        "GET /?\u{a0} HTTP/1.1",
        "GET /?a#b HTTP/1.1",
        "GET /?<script> HTTP/1.1",
        "GET # HTTP/1.1",
        "GET /%2e%2e/%2F%5ca HTTP/1.1",
        "GET /% HTTP/1.1",
        "GET /%u0041 HTTP/1.1",
        "GET /%00%0d%0a HTTP/1.1",
        "GET /..;/x HTTP/1.1",
    ] {
        games.push((Refuse(400), line(text)));
    }
    for raw in [
        "\r\rGET / HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "\n\nGET / HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\n\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example\r\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example\n\r\n\r\n",
        "GET / HTTP/1.1\r\rHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\n\tHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example\r\n\r\r\n",
        "GET / HTTP/1.1\r\nHost: app.example\r\n \r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example\r\n\t\r\n\r\n",
        "GET /\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example\r\nX: a\r\n\r\t\r\n\r\n",
        "\u{feff}\r\nGET / HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "SSH-2.0-x\r\nHost: app.example\r\n\r\n",
        "EHLO app.example\r\nHost: app.example\r\n\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\u{0}\r\nHost: app.example\r\n\r\n",
    ] {
        games.push((Refuse(400), raw.as_bytes().to_vec()));
    }
    games.push((Refuse(405), line("TRACE / HTTP/1.1")));
    games.push((Refuse(405), line("PRI / HTTP/1.1")));
    games.push((Refuse(405), line("CONNECT / HTTP/1.1")));
    games.push((Refuse(405), line("CONNECT http://app.example/ HTTP/1.1")));
    for text in [
        "M-SEARCH / HTTP/1.1",
        "PURGE /x HTTP/1.1",
        "QUERY /x HTTP/1.1",
        "BREW /pot HTTP/1.1",
        "!#$%&'*+-.^_`|~ / HTTP/1.1",
        "PATCH / HTTP/1.1",
        "DELETE / HTTP/1.1",
        "pri / HTTP/1.1",
        "GET //other.example/ HTTP/1.1",
        "GET /a//b HTTP/1.1",
        "GET /../../x HTTP/1.1",
        "GET /a\\b HTTP/1.1",
        "GET /;p=1;q HTTP/1.1",
        "GET /?? HTTP/1.1",
        "GET /?a?b/c:d@e HTTP/1.1",
        "GET /?url=http://x/?y=%26 HTTP/1.1",
        "GET /a:b@c HTTP/1.1",
        "GET /http://x/ HTTP/1.1",
        "GET /* HTTP/1.1",
        "GET /%E2%9C%93 HTTP/1.1",
        "GET /%2e%2e/%2F%5c HTTP/1.1",
        "GET /%0d%0a HTTP/1.1",
        "GET /%2e%2e/a%2Fb HTTP/1.1",
        "GET /a=b&c=d HTTP/1.1",
        "GET /?=&&= HTTP/1.1",
        "GET /HTTP/1.1 HTTP/1.1",
    ] {
        games.push((Pass, line(text)));
    }
    games
}

/// Which host is meant, and who says that it is calling.
fn host_games() -> Vec<(Must, Vec<u8>)> {
    let mut games = Vec::new();
    let host = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    for text in [
        "app.example:80@other",
        "other@app.example",
        "app.example\\other",
        "app.example?x",
        "app.example;x",
        "app.example%00",
        "app.example%2eother",
        "[app.example]",
        "[::1]:80:80",
        "app.example:+80",
        "app.example: 80",
        "app.example :80",
        "app.example:80,",
        "app.example:0x50",
        "app.example:80/",
        "http://app.example",
        "//app.example",
        "app.example other.example",
        "app.example,other.example",
        "\"app.example\"",
        "<app.example>",
        "app.example:٨٠",
        "app.example:65536",
        "app.example:99999999999999999999",
        "*.example*",
        "[::1]80",
        "::1",
        "app.example=",
        "(app.example)",
        "app.example&x",
        "app.exämple",
        "app.example\u{200b}",
        ":",
        ".",
        "[]",
        "[::1%25eth0]",
        "[v1.x]",
        "app.example:80:",
        "app'example",
        "app.example|x",
    ] {
        games.push((Refuse(400), host(text)));
    }
    for text in [
        "other.example",
        "app..example",
        ".app.example",
        "app.example..",
        "127.0.0.1",
        "[::1]",
        "localhost",
        "example",
        "xn--app.example",
        "-",
        "_",
        "x.app.example",
        "0",
        "2130706433",
    ] {
        games.push((Refuse(404), host(text)));
    }
    for lines in [
        "host: app.example",
        "HOST: app.example",
        "Host:",
        "Host: ",
        "Host: other.example",
        "Host : app.example",
        "Host\t: other.example",
        " Host: other.example",
        "Ho\u{0}st: x",
        "X: y\r\n Host: other.example",
        "X: y\nHost: other.example",
        "X: y\rHost: other.example",
    ] {
        games.push((Refuse(400), field(lines)));
    }
    for raw in [
        "GET http://app.example/ HTTP/1.1\r\n\r\n",
        "GET http://app.example/ HTTP/1.1\r\nHost:\r\n\r\n",
        "GET http://app.example/ HTTP/1.0\r\nHost: other.example\r\n\r\n",
        "GET http://app.example/ HTTP/1.1\r\nHost: app.example\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: app.example\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: app.example\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: app.example\r\nTransfer-Encoding: identity\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ] {
        games.push((Refuse(400), raw.as_bytes().to_vec()));
    }
    for raw in [
        "GET http://app.example/ HTTP/1.0\r\n\r\n",
        "GET http://app.example?x HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "GET http://app.example:8080/a HTTP/1.1\r\nHost: app.example:8080\r\n\r\n",
        "GET http://App.Example./a HTTP/1.1\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: app.example\r\nConnection: keep-alive\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: app.example\r\nContent-Length: 3\r\n\r\nabc",
        "HEAD / HTTP/1.0\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\nX: y\r\nHost: app.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\tapp.example\t\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example:0000000080\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: app.example:0\r\n\r\n",
    ] {
        games.push((Pass, raw.as_bytes().to_vec()));
    }
    for lines in [
        "X-Forwarded-Host: other.example",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Port: 443",
        "X-Forwarded-Anything: x",
        "X-Real-IP: 127.0.0.1",
        "Forwarded: for=127.0.0.1;host=other.example",
        "X-Original-URL: /admin",
        "X-Rewrite-URL: /admin",
        "X-HTTP-Method-Override: DELETE",
        "Connection: x-forwarded-for",
        "Connection: host",
        "Connection:",
        "Connection: ,,,",
        "Connection: \"x\", (y)",
        "Proxy-Connection: keep-alive",
        "Keep-Alive: timeout=5",
        "TE: trailers, deflate;q=0.5",
        "Proxy-Authorization: Basic x",
        "Accept: */*;q=0",
        "Range: bytes=0-,1-,2-",
        "Via: 1.0 x",
        "Max-Forwards: 0",
        "X_Y: under",
        "X.Y: dot",
        "1: digit",
        "X: \u{ff}\u{a0}",
        "X: \"\\\"\"",
        "X:\t",
        "Cookie: a=b\r\nCookie: c=d",
        "Accept-Encoding: gzip;q=1.000, *;q=0",
        "Date: never",
    ] {
        games.push((Pass, field(lines)));
    }
    games
}

/// Upgrades that are none, or half.
fn upgrade_games() -> Vec<(Must, Vec<u8>)> {
    const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    const ASK: &str = "Connection: Upgrade\r\nUpgrade: websocket";
    let mut games = Vec::new();
    for lines in [
        ASK.to_owned(),
        format!("{ASK}\r\n{KEY}"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 8"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13, 8"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\n{KEY}\r\n{KEY}\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\nSec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\nSec-WebSocket-Key:\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\nUpgrade: h2c\r\n{KEY}\r\nSec-WebSocket-Version: 13"),
        format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\nTransfer-Encoding: chunked"),
    ] {
        games.push((Refuse(400), field(&lines)));
    }
    games.push((
        Refuse(400),
        body(
            &format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13\r\nContent-Length: 3"),
            "abc",
        ),
    ));
    games.push((
        Refuse(400),
        body(&format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13"), ""),
    ));
    let sound = format!("{ASK}\r\n{KEY}\r\nSec-WebSocket-Version: 13");
    let early = format!("GET /smuggled HTTP/1.1\r\n{H}\r\n");
    games.push((Pass, [field(&sound), early.into_bytes()].concat()));
    for lines in [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        "Upgrade: websocket",
        "Upgrade: h2c",
        "Connection: Upgrade",
        "Connection: Upgrade\r\nUpgrade: TLS/1.0, websocket",
        "Connection: close\r\nUpgrade: websocket",
        "Connection: Upgrade\r\nUpgrade:",
        "Connection: Upgrade\r\nUpgrade: websocketx",
    ] {
        games.push((Pass, field(lines)));
    }
    games.push((
        Pass,
        format!("GET / HTTP/1.0\r\n{H}{sound}\r\n\r\n").into_bytes(),
    ));
    games
}

/// Sizes at their limits, and one over.
fn sizes() -> Vec<(Must, Vec<u8>)> {
    let long = |n: usize| "x".repeat(n);
    let target = REQUEST_LINE_BYTES_MAX - "GET / HTTP/1.1".len();
    let value = FIELD_LINE_BYTES_MAX - "X: ".len();
    // What is left of a section beside the host, in three lines.
    let third = (FIELD_SECTION_BYTES_MAX - H.len()) / 3;
    let last = FIELD_SECTION_BYTES_MAX - H.len() - 2 * third;
    let section = |last: usize| {
        let [a, b, c] = [third, third, last].map(|n| long(n - "A: \r\n".len()));
        field(&format!("A: {a}\r\nB: {b}\r\nC: {c}"))
    };
    let fields = |n: usize| field("X: y\r\n".repeat(n - 1).trim_end());
    let trailer = TRAILER_BYTES_MAX - "X: \r\n".len();
    let trailers = |n: usize| chunks(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(n)));
    let extension = CHUNK_EXTENSION_BYTES_MAX - ";".len();
    let chunk = |n: usize| chunks(&format!("3;{}\r\nabc\r\n0\r\n\r\n", long(n)));
    vec![
        (Pass, line(&format!("GET /{} HTTP/1.1", long(target)))),
        (
            Refuse(414),
            line(&format!("GET /{} HTTP/1.1", long(target + 1))),
        ),
        (Pass, line(&format!("GET /?{} HTTP/1.1", long(target - 1)))),
        (
            Refuse(414),
            line(&format!("GET /?{} HTTP/1.1", long(target))),
        ),
        (Refuse(414), line(&format!("{} / HTTP/1.1", long(17 << 10)))),
        (
            Refuse(414),
            line(&format!("GET / HTTP/1.1{}", long(17 << 10))),
        ),
        (Pass, field(&format!("X: {}", long(value)))),
        (Refuse(431), field(&format!("X: {}", long(value + 1)))),
        (
            Refuse(431),
            field(&format!("{}: x", long(FIELD_LINE_BYTES_MAX))),
        ),
        (Pass, section(last)),
        (Refuse(431), section(last + 1)),
        (Pass, fields(FIELDS_MAX)),
        (Refuse(431), fields(FIELDS_MAX + 1)),
        (Pass, trailers(TRAILERS_MAX)),
        (Refuse(400), trailers(TRAILERS_MAX + 1)),
        (Pass, chunks(&format!("0\r\nX: {}\r\n\r\n", long(trailer)))),
        (
            Refuse(400),
            chunks(&format!("0\r\nX: {}\r\n\r\n", long(trailer + 1))),
        ),
        (Pass, chunk(extension)),
        (Refuse(400), chunk(extension + 1)),
        (
            Pass,
            chunks(&format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(2_000))),
        ),
        (Pass, body("Content-Length: 70000", &long(70_000))),
        (
            Refuse(400),
            format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", long(254)).into_bytes(),
        ),
        (Pass, line(&format!("{} / HTTP/1.1", "M".repeat(200)))),
    ]
}

/// Every control character, wherever one could hide.
fn controls() -> Vec<(Must, Vec<u8>)> {
    let controls = (0..0x20).chain([0x7F]).filter(|b| !b"\t\r\n".contains(b));
    let mut games = Vec::new();
    for byte in controls {
        let c = char::from(byte);
        games.extend(
            [
                line(&format!("G{c}T / HTTP/1.1")),
                line(&format!("GET /{c} HTTP/1.1")),
                line(&format!("GET / HTTP/1.1{c}")),
                field(&format!("X{c}: y")),
                field(&format!("X: y{c}")),
                field(&format!("{c}X: y")),
                chunks(&format!("3{c}\r\nabc\r\n0\r\n\r\n")),
                chunks(&format!("3;{c}\r\nabc\r\n0\r\n\r\n")),
                chunks(&format!("0\r\nX: {c}\r\n\r\n")),
            ]
            .map(|bytes| (Refuse(400), bytes)),
        );
    }
    games
}

/// A socket whose reader leaves a copy of all it reads.
struct Tap {
    stream: TcpStream,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.heard
            .lock()
            .unwrap()
            .extend_from_slice(&buf.filled()[before..]);
        result
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What an origin got of one request of the corpus.
#[derive(Debug, Default)]
struct Heard {
    /// Every byte, of every connection.
    raw: Arc<Mutex<Vec<u8>>>,
    /// Requests that came whole.
    whole: Mutex<Vec<(String, Vec<u8>)>>,
}

impl Heard {
    fn forget(&self) {
        self.raw.lock().unwrap().clear();
        self.whole.lock().unwrap().clear();
    }

    /// What is wrong with what was heard of a request that had to pass.
    fn wrong(&self, sent: &[u8]) -> Option<String> {
        let whole = self.whole.lock().unwrap();
        let [(head, _)] = whole.as_slice() else {
            return Some(format!("{} requests were heard", whole.len()));
        };
        let sent = String::from_utf8_lossy(sent);
        let asked = sent.trim_start_matches("\r\n").split("\r\n").next()?;
        let mut lines = head.split("\r\n");
        let (asked, got) = (asked.rsplit_once(' ')?.0, lines.next()?);
        // An absolute target becomes a local one, and some paths their normal form; any other passes as it is.
        let (method, target) = asked.split_once(' ')?;
        let normal = match target {
            "//x/../y?z=%00&a=b+c;d|e{f}[]^`" => "/y?z=%00&a=b+c;d|e{f}[]^`",
            "/\"{}|^[]~!$&'()*+,;=:@-._" => "/%22%7B%7D%7C%5E%5B%5D~!$&'()*+,;=:@-._",
            "//other.example/" => "/other.example/",
            "/a//b" => "/a/b",
            "/../../x" => "/x",
            "/a\\b" => "/a/b",
            "/http://x/" => "/http:/x/",
            "/%0d%0a" => "/%0D%0A",
            "/%2e%2e/%2F%5c" => "/%2F%5C",
            "/%2e%2e/a%2Fb" => "/a%2Fb",
            target => target,
        };
        let is_absolute = target.to_ascii_lowercase().starts_with("http://");
        if !is_absolute && got != format!("{method} {normal} HTTP/1.1") {
            return Some(format!("{asked:?} became {got:?}"));
        }
        let forbidden = [
            "/smuggled",
            "other.example",
            "1.1.1.1",
            "https",
            "upgrade",
            "http2-settings",
        ];
        let claims =
            sent.contains("orwarded") || sent.contains("pgrade") || sent.contains("\r\n0\r\n");
        let raw = String::from_utf8_lossy(&self.raw.lock().unwrap()).to_ascii_lowercase();
        if let Some(word) = forbidden.iter().find(|word| claims && raw.contains(**word)) {
            let is_asked = asked.to_ascii_lowercase().contains(*word);
            // A sound handshake is passed on as one.
            let is_handshake = *word == "upgrade" && raw.contains("sec-websocket-key");
            if !is_asked && !is_handshake {
                return Some(format!("{word:?} was heard: {raw:?}"));
            }
        }
        let [hosts, lengths, encodings] =
            ["\r\nhost:", "\r\ncontent-length:", "\r\ntransfer-encoding:"]
                .map(|name| head.to_ascii_lowercase().matches(name).count());
        (hosts != 1 || lengths + encodings > 1).then(|| format!("it is ambiguous: {head:?}"))
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the counts are what the corpus reports"
)]
#[tokio::test]
async fn no_ambiguous_request_is_forwarded_and_no_legal_one_refused() {
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
        // A refusal is closed behind its text, whatever the method.
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
            // exchange cut short, of which the origin never hears the end.
            Refuse(code) => {
                refused += 1;
                let ends = matches!(code, 400 | 414 | 431);
                let is_open = ends && client.more().await;
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
async fn odd_but_legal_requests_arrive_to_the_byte() {
    let mut rig = Rig::start().await;
    let (told, mut hears) = tokio::sync::mpsc::channel(1);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let told = told.clone();
        async move {
            while let Some(head) = client.head().await {
                let (body, trailers) = client.body(&head).await.unwrap();
                told.send((head, body, trailers)).await.unwrap();
                client
                    .send("HTTP/1.1 299 Passed\r\ncontent-length: 0\r\n\r\n")
                    .await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;

    // What is sent behind the host, and what the origin must hear of it: own lines, body, trailers.
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
            "trailer: X-Sum|transfer-encoding: chunked",
            "\0",
            "x-sum: 1 2\n",
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
