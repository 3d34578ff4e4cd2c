//! Malformed and hostile requests. Each is rejected or its connection is closed; none causes a server error.

use std::sync::atomic::Ordering;

use http_body_util::BodyExt;

use super::harness::Http2;
use super::*;

fn impatient() -> Settings {
    Settings {
        limits: Limits {
            head: Duration::from_secs(1),
            idle: (Duration::from_millis(1500), Duration::from_millis(1500)),
            request: Duration::from_secs(1),
            ..Limits::default()
        },
        ..Settings::default()
    }
}

#[tokio::test]
async fn raw_requests_are_refused_and_never_fail_us() {
    let harness = Harness::start(Settings::default()).await;
    let bearer = format!("Host: a\r\nAuthorization: Bearer {}\r\n", harness.token);
    let post = format!("POST /api_keys HTTP/1.1\r\n{bearer}");
    let get = format!("GET /self HTTP/1.1\r\n{bearer}");
    let many_headers: String = (0..500).map(|n| format!("x-{n}: y\r\n")).collect();
    let long = "x".repeat(200_000);
    let longish = "x".repeat(20_000);
    let deep = "[".repeat(500_000);
    let expected: Vec<(Vec<u8>, &[u16])> = vec![
        (b"\0\x01\x02\x03\r\n\r\n".to_vec(), &[400]),
        (b"GET\r\n\r\n".to_vec(), &[400]),
        (b"GET / HTTP/9.9\r\n\r\n".to_vec(), &[400, 505]),
        (b"G\xffT / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), &[400]),
        (
            b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            &[400, 404],
        ),
        (b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), &[400]),
        (b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n".to_vec(), &[400]),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n".to_vec(), &[400]),
        (b"GET / HTTP/1.1\r\nname : x\r\n\r\n".to_vec(), &[400]),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
            &[400],
        ),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), &[404]),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), &[405]),
        (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(), &[400]),
        (
            format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n").into(),
            &[414, 431],
        ),
        (
            format!("GET /{longish} HTTP/1.1\r\nHost: a\r\n\r\n").into(),
            &[414],
        ),
        (
            format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n").into(),
            &[431],
        ),
        (
            format!("GET / HTTP/1.1\r\n{many_headers}\r\n").into(),
            &[431],
        ),
        (format!("{get}Content-Length: -1\r\n\r\n").into(), &[400]),
        (format!("{get}Content-Length: 1, 2\r\n\r\n").into(), &[400]),
        (
            format!("{get}Content-Length: 1\r\nContent-Length: 2\r\n\r\n").into(),
            &[400],
        ),
        (
            format!("{get}Content-Length: 99999999999999999999\r\n\r\n").into(),
            &[400],
        ),
        (
            format!("{get}Transfer-Encoding: gzip\r\n\r\n").into(),
            &[400],
        ),
        (
            format!("{post}Content-Length: 18446744073709551615\r\n\r\n").into(),
            &[400, 413, 431],
        ),
        (
            format!("{post}Content-Length: 1048577\r\n\r\n").into(),
            &[413],
        ),
        (
            format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n").into(),
            &[400],
        ),
        (
            format!("{post}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}X\r\n").into(),
            &[400],
        ),
        (
            format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n").into(),
            &[400],
        ),
        (
            format!("{post}Content-Length: 500000\r\n\r\n{deep}").into(),
            &[400],
        ),
        (
            format!("{get}ngrok-version: {longish}\r\n\r\n").into(),
            &[400],
        ),
        (
            format!("{get}Origin: \u{e9}\u{1f600}\r\n\r\n").into(),
            &[200],
        ),
        (format!("{get}Cookie: {longish}\r\n\r\n").into(), &[200]),
    ];
    for (bytes, statuses) in expected {
        let mut wire = Wire::to(&harness).await;
        let about = String::from_utf8_lossy(&bytes[..bytes.len().min(160)]).into_owned();
        wire.push(&bytes).await;
        match wire.try_answer().await {
            Some(answer) => {
                assert!(statuses.contains(&answer.status), "{about}: {answer:?}");
                if !answer.body.is_null() {
                    answer.check_shape(&about);
                }
            }
            None => assert!(statuses.is_empty(), "closed without an answer: {about}"),
        }
    }
    assert_eq!(harness.meters.failed.load(Ordering::Relaxed), 0);
    assert_eq!(harness.meters.panics.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_though_it_is_being_sent() {
    let harness = Harness::start(Settings::default()).await;
    let body = "x".repeat(3 << 20);
    for framing in ["length", "chunks"] {
        let mut wire = Wire::to(&harness).await;
        let head = format!(
            "POST /api_keys HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n",
            harness.token
        );
        let text = match framing {
            "length" => format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()),
            _ => format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            ),
        };
        wire.send(text).await;
        let answer = wire.answer().await;
        assert_eq!(
            (answer.status, answer.code()),
            (413, Some(212)),
            "{framing}"
        );
        let after = wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await;
        assert_eq!(after.status, 200, "{framing}: the connection goes on");
    }
    let exactly = format!("{{\"metadata\":\"{}\"}}", "x".repeat(BODY_BYTES_MAX - 15));
    assert_eq!(exactly.len(), BODY_BYTES_MAX);
    let mut wire = Wire::to(&harness).await;
    let answer = wire
        .ask("POST", "/api_keys", Some(&harness.token), &[], &exactly)
        .await;
    assert_eq!(
        (answer.status, answer.code()),
        (400, Some(605)),
        "1 MiB is read"
    );
}

#[tokio::test]
async fn a_stranger_with_a_small_body_hears_that_and_may_go_on() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    let body = "x".repeat(40_000);
    let answer = wire.ask("POST", "/api_keys", None, &[], &body).await;
    assert_eq!(answer.code(), Some(200));
    assert_eq!(
        wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await.status,
        200
    );
}

#[tokio::test]
async fn slow_and_silent_connections_are_closed() {
    let harness = Harness::start(impatient()).await;
    let mut wires = Vec::new();
    for sent in [
        "",
        "GET / HT",
        "GET / HTTP/1.1\r\nHost: a\r\nx",
        "PRI * HTT",
        "PRI * HTTP/2.0\r\n",
    ] {
        let mut wire = Wire::to(&harness).await;
        wire.send(sent).await;
        wires.push((sent, wire));
    }
    let mut idle = Wire::to(&harness).await;
    assert_eq!(
        idle.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await.status,
        200
    );
    assert!(idle.closed().await);
    for (sent, mut wire) in wires {
        assert!(wire.closed().await, "{sent:?}");
    }
    assert_eq!(harness.meters.connections_late.load(Ordering::Relaxed), 6);
    assert_eq!(harness.meters.failed.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_head_that_trickles_is_closed_though_every_byte_comes_in_time() {
    let harness = Harness::start(impatient()).await;
    let mut wire = Wire::to(&harness).await;
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    wire.send("GET / HTTP/1.1\r\nx: ").await;
    let mut n_sent = 0;
    while wire.push("x").await {
        pace.tick().await;
        n_sent += 1;
        assert!(n_sent < 500, "the connection is still open");
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_refused() {
    let harness = Harness::start(impatient()).await;
    let head = format!(
        "POST /api_keys HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n",
        harness.token
    );
    let mut wires = Vec::new();
    for framing in [
        "Content-Length: 10\r\n\r\n{",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{",
    ] {
        let mut wire = Wire::to(&harness).await;
        wire.send(format!("{head}{framing}")).await;
        wires.push((framing, wire));
    }
    for (framing, mut wire) in wires {
        let answer = wire.answer().await;
        assert_eq!(
            (answer.status, answer.code()),
            (408, Some(212)),
            "{framing}"
        );
        assert!(wire.closed().await);
    }
    let mut wire = Wire::to(&harness).await;
    wire.send(format!("{head}Content-Length: 10\r\n\r\n{{"))
        .await;
    drop(wire);
    assert_eq!(harness.meters.failed.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn one_source_has_so_many_connections() {
    let settings = Settings {
        limits: Limits {
            connections_per_source: 2,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut first = Wire::to(&harness).await;
    assert_eq!(
        first
            .ask("GET", ALIVE_PATH, None, &[], NO_BODY)
            .await
            .status,
        200
    );
    let mut second = Wire::to(&harness).await;
    assert_eq!(
        second
            .ask("GET", ALIVE_PATH, None, &[], NO_BODY)
            .await
            .status,
        200
    );
    // The same number again waits, and gets 503. Who comes after them gets it immediately.
    let mut more = Vec::new();
    for _ in 0..4 {
        let mut wire = Wire::to(&harness).await;
        wire.send(format!("GET {ALIVE_PATH} HTTP/1.1\r\nHost: a\r\n\r\n"))
            .await;
        more.push(wire);
    }
    for wire in &mut more {
        let answer = wire.answer().await;
        assert_eq!((answer.status, answer.code()), (503, Some(10_000)));
        assert_eq!(answer.header("retry-after"), Some("1"));
        answer.check_shape("no place");
        assert!(wire.closed().await);
    }
    drop(first);
    harness::until(async || {
        let mut wire = Wire::to(&harness).await;
        wire.push("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
        wire.try_answer().await
    })
    .await;
    assert_eq!(
        second
            .ask("GET", ALIVE_PATH, None, &[], NO_BODY)
            .await
            .status,
        200
    );
}

/// A client whose window is closed takes no body, though nothing waits in the socket.
#[tokio::test]
async fn a_client_of_http2_that_takes_no_body_is_closed() {
    let settings = Settings {
        limits: Limits {
            stalled: Duration::from_millis(500),
            head: Duration::from_secs(2),
            connections_per_source: 2,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let mut reads = Http2::to(&harness).await;
    assert_eq!(reads.ask("GET", ALIVE_PATH, None, "").await.0, 200);
    let mut stalls = Http2::with_window(&harness, 0).await;
    let response = stalls.begin("GET", "/nothing", None, "").await;
    assert_eq!(response.status(), 404);
    assert!(response.into_body().collect().await.is_err(), "closed");
    // A connection without a place: two others have both.
    let mut holds = harness::until(async || {
        let mut wire = Wire::to(&harness).await;
        let answer = wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await;
        (answer.status == 200).then_some(wire)
    })
    .await;
    let refused_before = harness.meters.failed.load(Ordering::Relaxed);
    let mut stalls = Http2::with_window(&harness, 0).await;
    let response = stalls.begin("GET", "/nothing", None, "").await;
    assert_eq!(response.status(), 503);
    assert!(response.into_body().collect().await.is_err(), "closed");
    let refused = harness.meters.failed.load(Ordering::Relaxed);
    assert_eq!(refused, refused_before + 1);
    assert_eq!(reads.ask("GET", ALIVE_PATH, None, "").await.0, 200);
    assert_eq!(
        holds
            .ask("GET", ALIVE_PATH, None, &[], NO_BODY)
            .await
            .status,
        200
    );
}

/// What an owner does not read takes the places of that owner, so that it takes a bounded amount of memory.
#[tokio::test]
async fn responses_that_are_not_read_take_the_places_of_their_owner() {
    let settings = Settings {
        limits: Limits {
            concurrent: 2,
            concurrent_per_owner: 2,
            waiting: Duration::from_millis(100),
            ..Limits::default()
        },
        ..Settings::default()
    };
    let harness = Harness::start(settings).await;
    let token = harness.token.clone();
    let mut other = Wire::to(&harness).await;
    let mut ask = async || {
        let answer = other.ask("GET", "/self", Some(&token), &[], NO_BODY).await;
        answer.status
    };
    // With a window of one byte, the HTTP library has the whole body.
    for window in [0, 1] {
        let mut stalls = Http2::with_window(&harness, window).await;
        let mut held = Vec::new();
        for _ in 0..2 {
            let response = stalls.begin("GET", "/self", Some(&token), "").await;
            assert_eq!(response.status(), 200);
            held.push(response);
        }
        assert_eq!(ask().await, 503, "{window}");
        // There is room for others.
        let mut stranger = Wire::to(&harness).await;
        let refused = stranger.ask("GET", "/self", None, &[], NO_BODY).await;
        assert_eq!(refused.status, 401);
        drop(held);
        drop(stalls);
        harness::until(async || (ask().await == 200).then_some(())).await;
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let harness = Harness::start(Settings::default()).await;
    let mut wire = Wire::to(&harness).await;
    wire.send(
        "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n".repeat(10),
    )
    .await;
    for _ in 0..10 {
        assert_eq!(wire.answer().await.status, 200);
        assert_eq!(wire.answer().await.status, 404);
    }
}

/// Sends ten mebibytes to every operation with a body. It is rejected because of its announced length, or at the
/// first byte above the limit, and is not buffered.
#[tokio::test]
async fn no_operation_takes_ten_mebibytes() {
    const ANNOUNCED: usize = 10 << 20;
    let harness = Harness::start(Settings::default()).await;
    let mut wires = Vec::new();
    for operation in operations() {
        if operation.body.is_none() {
            continue;
        }
        let path: Vec<_> = operation
            .path
            .split('/')
            .map(|part| if part.starts_with('{') { "x" } else { part })
            .collect();
        let head = format!(
            "{} {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Length: {ANNOUNCED}\r\n\r\n",
            operation.method.as_str(),
            path.join("/"),
            harness.token
        );
        let mut wire = Wire::to(&harness).await;
        wire.send(format!("{head}{{\"description\":\"")).await;
        wires.push((operation, wire));
    }
    assert!(wires.len() > 40, "{}", wires.len());
    for (operation, mut wire) in wires {
        let answer = wire.answer().await;
        let about = format!("{} {}", operation.method.as_str(), operation.path);
        assert_eq!((answer.status, answer.code()), (413, Some(212)), "{about}");
    }
    let mut wire = Wire::to(&harness).await;
    let head = format!(
        "POST /vault_secrets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        harness.token
    );
    wire.send(head).await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    for _ in 0..ANNOUNCED >> 16 {
        // The peer may have closed the connection.
        if !wire.push(&chunk).await {
            break;
        }
    }
    wire.push("0\r\n\r\n").await;
    let answer = wire.answer().await;
    assert_eq!((answer.status, answer.code()), (413, Some(212)));
    assert_eq!(harness.meters.failed.load(Ordering::Relaxed), 0);
}

/// The limit of connections is that of the process, whatever the number of its listeners.
#[tokio::test]
async fn all_listeners_share_the_limit_of_connections() {
    let settings = Settings {
        limits: Limits {
            connections: 2,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let mut harness = Harness::start(settings).await;
    let other = harness.listen_again().await;
    let alive = async |wire: &mut Wire| {
        let answer = wire.ask("GET", ALIVE_PATH, None, &[], NO_BODY).await;
        answer.status == 200
    };
    let mut first = Wire::to(&harness).await;
    let mut second = Wire::at(other).await;
    assert!(alive(&mut first).await && alive(&mut second).await);
    let mut late = Wire::at(other).await;
    late.send(format!("GET {ALIVE_PATH} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .await;
    for _ in 0..100 {
        assert!(alive(&mut first).await && alive(&mut second).await);
        assert_eq!(harness.meters.connections.load(Ordering::Relaxed), 2);
    }
    // The place of a connection to one listener goes to the other.
    drop(first);
    assert_eq!(late.answer().await.status, 200);
}
