//! The host of a request, and the client address that it claims.

use super::*;

pub(super) fn requests() -> Vec<Request> {
    [hosts(), host_games()].concat()
}

/// Hosts.
fn hosts() -> Vec<Request> {
    vec![
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
            Refuse(404),
            b"GET http://other.example/ HTTP/1.1\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        (
            Refuse(404),
            b"GET http://app.example.other HTTP/1.1\r\nHost: app.example\r\n\r\n".to_vec(),
        ),
        (
            Refuse(400),
            b"GET http://app.example/ HTTP/1.1\r\nHost: a b\r\n\r\n".to_vec(),
        ),
        (
            Pass,
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
    ]
}

/// The host of a request, and the client address that it claims.
fn host_games() -> Vec<Request> {
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
        ".app.example",
        "app.example..",
    ] {
        games.push((Refuse(400), host(text)));
    }
    for text in [
        "other.example",
        "app..example",
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
