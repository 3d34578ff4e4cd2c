//! Forwarding between client and origin.

use std::sync::Arc;

use culvert_policy::Scheme;

use super::harness::*;

const GET: &str = "GET /x?y=1 HTTP/1.1\r\nHost: app.example\r\n\r\n";

#[tokio::test]
async fn a_request_and_its_response_are_forwarded() {
    let mut rig = Rig::start().await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            while let Some((head, body)) = client.request().await {
                reported.send((head, body)).await.unwrap();
                client.send("HTTP/1.1 201 Created\r\nx-a: 1\r\nkeep-alive: x\r\nngrok-error-code: no\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").await;
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;

    let mut client = rig.connect().await;
    for _ in 0..3 {
        client
            .send(
                "POST /p?q HTTP/1.1\r\nHost: App.Example.:8080\r\nConnection: X-Gone, keep-alive\r\nX-Gone: 1\r\n\
                 X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1\r\nX-Real-IP: 9\r\nUpgrade: h2c\r\nX-Stays: Yes\r\nContent-Length: 4\r\n\r\nbody",
            )
            .await;
        let answer = client.answer("POST").await;
        assert_eq!((answer.status, answer.text()), (201, "abc"));
        assert_eq!(answer.header("x-a"), Some("1"));
        assert_eq!(answer.header("ngrok-error-code"), None);
        assert_eq!(answer.header("keep-alive"), None);
        assert!(answer.header("date").is_some());

        let (head, body) = heard.recv().await.unwrap();
        assert_eq!(body, b"body");
        let mut lines: Vec<&str> = head.trim_end().split("\r\n").collect();
        assert_eq!(lines.remove(0), "POST /p?q HTTP/1.1");
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "content-length: 4",
                "host: app.example:8080",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-host: app.example:8080",
                "x-forwarded-proto: http",
                "x-stays: Yes",
            ]
        );
    }
    assert_eq!(rig.edge.meters().upstream_connects.get(), 1);
    assert_eq!(rig.edge.meters().upstream_reused.get(), 2);
}

#[tokio::test]
async fn forwarded_fields_of_a_trusted_proxy_are_extended() {
    let mut rig = Rig::with(crate::Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..settings()
    })
    .await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            let (head, _) = client.request().await.unwrap();
            reported.send(head).await.unwrap();
            client.send("HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    rig.ask("GET / HTTP/1.1\r\nHost: app.example\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\n\r\n").await;
    let head = heard.recv().await.unwrap();
    assert!(
        head.contains("x-forwarded-for: 1.2.3.4, 127.0.0.1\r\n"),
        "{head}"
    );
    assert!(head.contains("x-forwarded-proto: https\r\n"), "{head}");
}

#[tokio::test]
async fn trailers_of_responses_are_forwarded_and_those_of_requests_are_not() {
    let mut rig = Rig::start().await;
    let (reported, mut heard) = tokio::sync::mpsc::channel(8);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let reported = reported.clone();
        async move {
            let head = client.head().await.unwrap();
            let (body, trailers) = client.body(&head).await.unwrap();
            reported.send((head, body, trailers)).await.unwrap();
            client.send("HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\nset-cookie: a=b\r\n\r\n").await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let answer = rig
        .ask(
            "POST / HTTP/1.1\r\nHost: app.example\r\nTE: trailers\r\nTrailer: x-check, content-length\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\nx-check: 1\r\ncontent-length: 5\r\n\r\n",
        )
        .await;
    assert_eq!(
        (answer.text(), answer.trailers.as_str()),
        ("ok", "x-sum: 7\n")
    );
    let (head, body, trailers) = heard.recv().await.unwrap();
    assert!(head.contains("te: trailers"), "{head}");
    assert!(!head.contains("trailer: "), "{head}");
    assert_eq!((body.as_slice(), trailers.as_str()), (&b"abc"[..], ""));
}

#[tokio::test]
async fn interim_responses_are_forwarded_to_http_1_1_clients() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let hints = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\nconnection: x\r\n\r\n";
            client.send(hints).await;
            if head.starts_with("GET /late") {
                // The client confirms once it has them.
                client.head().await;
            }
            client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for _ in 0..2 {
        client.send(GET).await;
        let hints = client.head().await.unwrap();
        assert_eq!(hints, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        assert_eq!(client.answer("GET").await.text(), "ok");
    }
    let old = GET.replace("HTTP/1.1", "HTTP/1.0");
    assert_eq!(rig.ask(&old).await.text(), "ok");
}

#[tokio::test]
async fn http2_clients_get_interim_responses_and_100_continue() {
    use super::floods::{
        DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame, request, section,
    };
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, body)) = client.request().await {
            let hints = match head.starts_with("GET") {
                true => "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
                false => "",
            };
            let answer = format!(
                "{hints}HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            client.send([answer.as_bytes(), &body].concat()).await;
        }
    })
    .await;
    let (names, key, root) = certificate(&["app.example"]);
    let upstream = format!("http://{origin}");
    let endpoint = endpoint(Scheme::Https, "app.example", 443, &upstream, "");
    let snapshot = crate::Snapshot::builder().endpoint(endpoint);
    rig.edge
        .publish(snapshot.certificate(names, key).build())
        .await;
    let address = rig.edge.https_addr().unwrap();
    let mut client = Client::new(tls(address, &root, "app.example", "h2").await.unwrap());
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(frame(SETTINGS, 0, 0, &[])).await;
    // Kinds of the frames of streams, and the beginning of each: the status is what a section begins with.
    let next = async |client: &mut Client<_>| loop {
        let head = client.take(9).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.take(length as usize).await.unwrap();
        if head[3] == HEADERS || head[3] == DATA {
            return (head[3], payload);
        }
    };
    client.send(request(0, END_STREAM)).await;
    // That no table is used, and then the status as a literal: `103`, coded.
    let (kind, hints) = next(&mut client).await;
    assert_eq!(
        (kind, &hints[..5]),
        (HEADERS, &[0x20, 0x08, 0x82, 0x08, 0x19][..])
    );
    let (kind, answer) = next(&mut client).await;
    assert_eq!((kind, answer[0]), (HEADERS, 0x88));

    let mut block = section();
    block.extend_from_slice(&[0, 6]);
    block.extend_from_slice(b"expect\x0c100-continue");
    block[0] = 0x83;
    client.send(frame(HEADERS, END_HEADERS, 3, &block)).await;
    // `100`, coded.
    let (kind, goes_on) = next(&mut client).await;
    assert_eq!(
        (kind, &goes_on[..]),
        (HEADERS, &[0x08, 0x82, 0x08, 0x01][..])
    );
    client.send(frame(DATA, END_STREAM, 3, b"abc")).await;
    let (kind, answer) = next(&mut client).await;
    assert_eq!((kind, answer[0]), (HEADERS, 0x88));
    assert_eq!(next(&mut client).await, (DATA, b"abc".to_vec()));
}

/// The time for a request to end after an early response runs out even if nothing else happens on the
/// connection.
#[tokio::test]
async fn an_http2_request_with_an_early_response_is_ended() {
    use super::floods::{DATA, END_STREAM, RST_STREAM, SETTINGS, frame, request};
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.head().await;
        client
            .send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\n\r\nmuch")
            .await;
        client.rest().await;
    })
    .await;
    let (names, key, root) = certificate(&["app.example"]);
    let upstream = format!("http://{origin}");
    let endpoint = endpoint(Scheme::Https, "app.example", 443, &upstream, "");
    let snapshot = crate::Snapshot::builder().endpoint(endpoint);
    rig.edge
        .publish(snapshot.certificate(names, key).build())
        .await;
    let address = rig.edge.https_addr().unwrap();
    let mut client = Client::new(tls(address, &root, "app.example", "h2").await.unwrap());
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    client.send(frame(SETTINGS, 0, 0, &[])).await;
    client
        .send([request(0, 0), frame(DATA, 0, 1, b"some")].concat())
        .await;
    let next = async |client: &mut Client<_>, kind: u8| loop {
        let head = client.take(9).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.take(length as usize).await.unwrap();
        if head[3] == kind {
            return (head[4], payload);
        }
        assert_ne!(head[3], RST_STREAM, "the answer was not whole");
    };
    assert_eq!(
        next(&mut client, DATA).await,
        (END_STREAM, b"much".to_vec())
    );
    // The rest is not wanted, which is no error; the client gets a reset without doing anything.
    assert_eq!(next(&mut client, RST_STREAM).await.1, [0; 4]);
}

#[tokio::test]
async fn a_response_may_precede_the_end_of_its_request() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        client.head().await;
        client
            .send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\n\r\nmuch")
            .await;
        // It stops reading, and keeps the connection open.
        std::future::pending::<()>().await;
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    let length = 64 << 20;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: {length}\r\n\r\n"
        ))
        .await;
    let (mut reads, mut writes) = tokio::io::split(client.stream);
    let upload = async {
        let part = vec![b'x'; 64 << 10];
        for _ in 0..length / part.len() {
            if tokio::io::AsyncWriteExt::write_all(&mut writes, &part)
                .await
                .is_err()
            {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        () = upload => {}
        read = soon("an answer", tokio::io::AsyncReadExt::read_to_end(&mut reads, &mut answer)) => drop(read),
    }
    assert!(answer.starts_with(b"HTTP/1.1 413 "), "{answer:?}");
    assert!(answer.ends_with(b"\r\n\r\nmuch"));
}

#[tokio::test]
async fn invalid_responses_become_502() {
    let mut rig = Rig::start().await;
    let said = Arc::new(std::sync::Mutex::new(""));
    let says = Arc::clone(&said);
    let origin = origin(&mut rig.tasks, move |mut client| {
        let says = Arc::clone(&says);
        async move {
            while client.request().await.is_some() {
                let says = *says.lock().unwrap();
                client.send(says).await;
                if !says.contains("keep") {
                    return;
                }
            }
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for (answer, status, text) in [
        ("", 502, ""),
        ("HTTP/1.1", 502, ""),
        ("SSH-2.0-OpenSSH\r\n\r\n", 502, ""),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na",
            502,
            "",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\na", 502, ""),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            502,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            502,
            "",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            502,
            "",
        ),
        // Unusual, but unambiguous.
        ("HTTP/1.0 200\n\nto the end", 200, "to the end"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2  ;x\r\nok\r\n0\r\nx: y\r\n\r\n",
            200,
            "ok",
        ),
        (
            "HTTP/1.1 299 keep\r\ncontent-length: 2\r\n\r\nok",
            299,
            "ok",
        ),
        (
            "HTTP/1.1 200 OK\r\nx-keep: 1\r\ncontent-length: 2\r\n\r\nok and more",
            200,
            "ok",
        ),
    ] {
        *said.lock().unwrap() = answer;
        for _ in 0..2 {
            let seen = rig.ask(GET).await;
            assert_eq!(seen.status, status, "{answer:?}");
            if status != 502 {
                assert_eq!(seen.text(), text, "{answer:?}");
            }
        }
    }
    // Only the last but one response leaves its connection usable for another request.
    assert_eq!(rig.edge.meters().upstream_reused.get(), 2);
}

#[tokio::test]
async fn responses_without_a_body_end_with_their_head() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let answer = match head.split(' ').nth(1).unwrap() {
                "/head" => "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
                "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\netag: x\r\ncontent-length: 7\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            };
            client.send(answer).await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for (method, path, status) in [
        ("HEAD", "/head", 200),
        ("GET", "/204", 204),
        ("GET", "/304", 304),
        ("GET", "/empty", 200),
        ("HEAD", "/head", 200),
    ] {
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nHost: app.example\r\n\r\n"
            ))
            .await;
        let answer = client.answer(method).await;
        assert_eq!((answer.status, answer.text()), (status, ""), "{path}");
        if method == "HEAD" {
            assert_eq!(answer.header("content-length"), Some("1000"));
        }
    }
    client
        .send("HEAD / HTTP/1.1\r\nHost: nobody.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("HEAD").await.status, 404);
    client.send(GET).await;
    assert_eq!(client.answer("GET").await.status, 200);
    // One connection carried all of it: nothing was left unread.
    assert_eq!(rig.edge.meters().upstream_connects.get(), 1);
}

#[tokio::test]
async fn http_1_0_clients_get_responses_without_chunks() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            client
                .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.0\r\nHost: app.example\r\n\r\n")
        .await;
    let answer = client.answer("GET").await;
    assert_eq!(
        (answer.text(), answer.header("transfer-encoding")),
        ("ok", None)
    );
    assert!(!client.more().await);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, body)) = client.request().await {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let text = format!("{path}{}", String::from_utf8(body).unwrap());
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                ))
                .await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    client
        .send(
            "GET /1 HTTP/1.1\r\nHost: app.example\r\n\r\n\
             POST /2 HTTP/1.1\r\nHost: app.example\r\nContent-Length: 3\r\n\r\nabc\
             POST /3 HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nz\r\n0\r\n\r\n\
             GET /4 HTTP/1.1\r\nHost: app.example\r\n\r\nGET /bad HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        )
        .await;
    for text in ["/1", "/2abc", "/3z", "/4"] {
        assert_eq!(client.answer("GET").await.text(), text);
    }
    assert_eq!(client.answer("GET").await.status, 400);
    assert!(!client.more().await);
}

#[tokio::test]
async fn a_head_may_arrive_byte_by_byte() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for byte in "POST / HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".bytes() {
        client.send([byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.answer("POST").await.text(), "hello");
}

#[tokio::test]
async fn large_bodies_pass_in_both_directions_concurrently() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, body)) = client.request().await {
            assert!(head.contains("content-length: 3000000"));
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                ))
                .await;
            client.send(&body).await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let body: Vec<u8> = (0..3_000_000u32).map(|i| i.to_le_bytes()[0]).collect();
    let mut client = rig.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 3000000\r\n\r\n")
        .await;
    client.send(&body).await;
    let answer = client.answer("POST").await;
    assert!(answer.body == body);
}

#[tokio::test]
async fn a_closed_pooled_connection_fails_no_request() {
    let mut rig = Rig::start().await;
    let turns = Arc::new(Turns::default());
    let seen = Arc::clone(&turns);
    // Each connection responds once and closes on the second request without a response.
    let origin = origin(&mut rig.tasks, move |mut client| {
        let seen = Arc::clone(&seen);
        async move {
            seen.next();
            client.request().await;
            client
                .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await;
            client.head().await;
        }
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    for _ in 0..4 {
        client.send(GET).await;
        assert_eq!(client.answer("GET").await.text(), "ok");
    }
    assert_eq!(turns.get(), 4);
    assert_eq!(rig.edge.meters().upstream_retries.get(), 3);

    // A request that must not be repeated is not repeated.
    client
        .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 1\r\n\r\nx")
        .await;
    assert_eq!(client.answer("POST").await.status, 502);
    let events = rig.recorder.events(5).await;
    assert_eq!(events[4]["object"]["backend"]["connection_reused"], true);
    assert_eq!(events[3]["object"]["backend"]["connection_reused"], false);
}

#[tokio::test]
async fn hosts_match_exactly_before_wildcards() {
    let mut rig = Rig::start().await;
    let [a, b] = [
        named(&mut rig.tasks, "a").await,
        named(&mut rig.tasks, "b").await,
    ];
    let snapshot = http("a.example", a).endpoint(endpoint(
        Scheme::Http,
        "*.example",
        80,
        &format!("http://{b}"),
        "",
    ));
    rig.edge.publish(snapshot.build()).await;
    for (host, name) in [
        ("A.example:99", "a"),
        ("b.example", "b"),
        ("x.y.example.", "b"),
    ] {
        let answer = rig
            .ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await;
        assert_eq!(answer.text(), name, "{host}");
    }
    let answer = rig
        .ask("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    assert_eq!(answer.text(), "a");
    let answer = rig
        .ask("GET / HTTP/1.1\r\nHost: other\r\nAccept: text/html, */*\r\n\r\n")
        .await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3200"));
    assert!(answer.text().contains("<title>404 Not Found</title>"));
    let answer = rig
        .ask("GET / HTTP/1.1\r\nHost: other\r\nAccept: application/json\r\n\r\n")
        .await;
    let json: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    assert_eq!(json["error_code"], "ERR_NGROK_3200");
    assert_eq!(
        json["details"]["request_id"],
        answer.header("culvert-request-id").unwrap()
    );
}

/// An origin that responds with its name.
async fn named(tasks: &mut tokio::task::JoinSet<()>, name: &'static str) -> std::net::SocketAddr {
    origin(tasks, move |mut client| async move {
        while client.request().await.is_some() {
            client
                .send(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}",
                    name.len()
                ))
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn endpoints_of_a_pool_take_turns() {
    let mut rig = Rig::start().await;
    let [a, b] = [
        named(&mut rig.tasks, "a").await,
        named(&mut rig.tasks, "b").await,
    ];
    let snapshot = http("a.example", a).endpoint(endpoint(
        Scheme::Http,
        "a.example",
        80,
        &format!("http://{b}"),
        "",
    ));
    rig.edge.publish(snapshot.build()).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(
            rig.ask("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
                .await
                .text()
                .to_owned(),
        );
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!(seen[..2], seen[2..]);
}

#[tokio::test]
async fn a_change_of_the_snapshot_fails_no_request() {
    let mut rig = Rig::start().await;
    let [a, b] = [hello(&mut rig.tasks).await, hello(&mut rig.tasks).await];
    rig.edge.publish(http("app.example", a).build()).await;
    let done = tokio_util::sync::CancellationToken::new();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (mut client, done) = (rig.connect().await, done.clone());
        clients.spawn(async move {
            let mut answered = 0;
            while !done.is_cancelled() || answered < 10 {
                client.send(GET).await;
                assert_eq!(client.answer("GET").await.text(), "hello");
                answered += 1;
            }
            answered
        });
    }
    for turn in 0..200 {
        let origin = if turn % 2 == 0 { b } else { a };
        rig.edge.publish(http("app.example", origin).build()).await;
        tokio::task::yield_now().await;
    }
    done.cancel();
    let mut answered = 0;
    while let Some(count) = clients.join_next().await {
        answered += count.unwrap();
    }
    assert!(answered >= 40);
}

#[tokio::test]
async fn malformed_responses_become_502() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        let Some((head, _)) = client.request().await else {
            return;
        };
        let answer = match head.split(' ').nth(1).unwrap() {
            "/two-lengths" => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
            "/odd-encoding" => {
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
            }
            "/garbage" => "nonsense\r\n\r\n",
            "/switch" => {
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
            }
            _ => "",
        };
        client.send(answer).await;
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for path in [
        "/two-lengths",
        "/odd-encoding",
        "/garbage",
        "/nothing",
        "/switch",
    ] {
        let answer = rig
            .ask(&format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n\r\n"))
            .await;
        assert_eq!(answer.status, 502, "{path}");
        assert_eq!(
            answer.header("ngrok-error-code"),
            Some("ERR_NGROK_3004"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn requests_to_an_http2_upstream_share_one_connection() {
    let mut rig = Rig::start().await;
    let origin = super::secure::http2_origin(&mut rig.tasks).await;
    let snapshot = crate::Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Http,
            "app.example",
            80,
            &format!("http://{origin}"),
            "http2",
        ))
        .build();
    rig.edge.publish(snapshot).await;
    let mut client = rig.connect().await;
    for turn in 0..3 {
        client
            .send("POST /p?q HTTP/1.1\r\nHost: app.example\r\nContent-Length: 3\r\n\r\nabc")
            .await;
        let answer = client.answer("POST").await;
        assert_eq!(
            (answer.status, answer.text()),
            (200, "POST http://app.example/p?q 3"),
            "{turn}"
        );
    }
    let events = rig.recorder.events(3).await;
    let reused: Vec<_> = events
        .iter()
        .map(|e| e["object"]["backend"]["connection_reused"].clone())
        .collect();
    assert_eq!(reused, [false, true, true]);
    assert_eq!(rig.edge.meters().upstream_connects.get(), 1);
}

#[tokio::test]
async fn response_heads_have_limits() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        let Some((head, _)) = client.request().await else {
            return;
        };
        let lines = if head.contains("/many") {
            "x: y\r\n".repeat(200)
        } else {
            format!("x: {}\r\n", "y".repeat(200_000))
        };
        client
            .send(format!(
                "HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n"
            ))
            .await;
    })
    .await;
    rig.edge.publish(http("app.example", origin).build()).await;
    for path in ["/many", "/long"] {
        let answer = rig
            .ask(&format!("GET {path} HTTP/1.1\r\nHost: app.example\r\n\r\n"))
            .await;
        assert_eq!(answer.status, 502, "{path}");
    }
}

#[tokio::test]
async fn cancelled_requests_need_few_http2_upstream_connections() {
    let mut rig = Rig::start().await;
    let origin = super::secure::http2_origin(&mut rig.tasks).await;
    let snapshot = crate::Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Http,
            "app.example",
            80,
            &format!("http://{origin}"),
            "http2",
        ))
        .build();
    rig.edge.publish(snapshot).await;
    // The upstream responds when it has read the whole body, which never arrives.
    for _ in 0..300 {
        let before = rig.edge.meters().requests.get();
        let mut client = rig.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 9\r\n\r\nabc")
            .await;
        soon("the request to be read", async {
            while rig.edge.meters().requests.get() == before {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    assert_eq!(rig.ask(GET).await.status, 200);
    // Each takes 32 resets, and is used no more by the request after that.
    let connects = rig.edge.meters().upstream_connects.get();
    assert!(connects <= 301_u64.div_ceil(33), "{connects}");
}
