//! HTTP/2 in the clear, from clients that know it before (RFC 9113 3.3).

use std::net::SocketAddr;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_policy::Scheme;
use culvert_tls::acme::{Challenge, ChallengeKind};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::floods::{
    END_HEADERS, END_STREAM, GOAWAY, HEADERS, SETTINGS, clear_section, frame, last_words,
};
use super::harness::*;
use super::logins::Scene;
use super::policies::governed;
use super::streams::{Frames, echo, nothing, websocket_at};
use crate::{Limits, Settings, Snapshot};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

async fn clear(rig: &mut Rig) -> SendRequest<Frames> {
    let stream = TcpStream::connect(rig.edge.http_addr().unwrap()).await;
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream.unwrap()))
        .await
        .unwrap();
    rig.tasks.spawn(async move {
        drop(connection.await);
    });
    sender
}

/// The response to a GET with these fields.
async fn get(
    sender: &mut SendRequest<Frames>,
    url: &str,
    fields: &[(&str, &str)],
) -> Response<Incoming> {
    let mut request = Request::get(url);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(nothing()).unwrap();
    soon("an answer", sender.send_request(request))
        .await
        .unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// An origin whose responses are the heads of their requests.
async fn mirror(rig: &mut Rig) -> SocketAddr {
    origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{head}");
            client.send(answer).await;
        }
    })
    .await
}

fn behind_proxy() -> Settings {
    Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..settings()
    }
}

#[tokio::test]
async fn requests_are_served_with_the_scheme_of_the_connection() {
    let mut rig = Rig::start().await;
    let origin = mirror(&mut rig).await;
    let policy = "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-scheme: '${req.url.scheme}', x-version: '${req.version}'}}}]}]";
    let mut other = governed(Scheme::Http, &format!("http://{origin}"), policy);
    other.host = HostName::parse("ruled.example").unwrap();
    let snapshot = http("app.example", origin).endpoint(other);
    rig.edge.publish(snapshot.build()).await;
    let mut sender = clear(&mut rig).await;
    for _ in 0..2 {
        let plain = text(get(&mut sender, "http://app.example/a", &[]).await).await;
        assert!(plain.starts_with("GET /a HTTP/1.1\r\n"), "{plain}");
        assert!(plain.contains("x-forwarded-proto: http\r\n"), "{plain}");
        let ruled = text(get(&mut sender, "http://ruled.example/a", &[]).await).await;
        assert!(ruled.contains("x-scheme: http\r\n"), "{ruled}");
        assert!(ruled.contains("x-version: HTTP/2.0\r\n"), "{ruled}");
    }
    // Another scheme is malformed, whether or not its request would need a map.
    for fields in [&[][..], &[("cookie", "a=b"), ("cookie", "c=d")]] {
        let refused = get(&mut sender, "https://app.example/a", fields).await;
        assert_eq!(refused.status(), 400);
    }
    drop(sender);
    let events = rig.recorder.events(7).await;
    assert_eq!((of(&events, HTTP).len(), of(&events, TCP).len()), (6, 1));
    for event in of(&events, HTTP) {
        assert_eq!(event["object"]["http"]["request"]["url"]["scheme"], "http");
        assert_eq!(event["culvert"]["protocol"], "HTTP/2");
    }
    assert_eq!(rig.edge.meters().accepted.get(), 1);
}

/// The preface may arrive in pieces, and nothing else is one.
#[tokio::test]
async fn only_the_preface_begins_http2() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    let (names, key, root) = certificate(&["app.example"]);
    let secure = endpoint(
        Scheme::Https,
        "app.example",
        443,
        &format!("http://{origin}"),
        "",
    );
    let snapshot = http("app.example", origin).endpoint(secure);
    rig.edge
        .publish(snapshot.certificate(names, key).build())
        .await;
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &clear_section());
    let whole = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &request].concat();
    for at in [0, 1, 3, 15, 16, 17, 18, 20, 23, 24, 30] {
        let mut client = rig.connect().await;
        let (first, rest) = whole.split_at(at);
        client.send(first).await;
        // Probably they are not read together; the result is the same if they are.
        tokio::task::yield_now().await;
        client.send(rest).await;
        loop {
            let head = soon("a frame", client.take(9)).await.expect("a frame");
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let payload = client.take(usize::try_from(length).unwrap()).await.unwrap();
            assert_ne!(head[3], GOAWAY, "{at}");
            if head[3] == HEADERS {
                // 200, after an update of the size of the table.
                assert_eq!(payload.get(..2), Some(&[0x20, 0x88][..]));
                break;
            }
        }
    }
    for other in [
        &b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\nHost: app.example\r\n\r\n",
        b"PRI / HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n",
        b"\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\n\nSM\n\n",
    ] {
        let mut client = rig.connect().await;
        client.send(other).await;
        assert_eq!(client.answer("GET").await.status, 400, "{other:?}");
        assert_eq!(client.rest().await, b"");
    }
    // A connection of HTTP/1 stays one.
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 200);
    client.send(&whole).await;
    assert_eq!(client.answer("GET").await.status, 400);
    // RFC 9113 3.2: over TLS, ALPN decides.
    let address = rig.edge.https_addr().unwrap();
    let stream = tls(address, &root, "app.example", "http/1.1").await;
    let mut client = Client::new(stream.unwrap());
    client.send(&whole).await;
    assert_eq!(client.answer("GET").await.status, 400);
}

/// A proxy that terminates TLS names the scheme that its client has.
#[tokio::test]
async fn a_trusted_proxy_may_name_https() {
    let mut rig = Rig::with(behind_proxy()).await;
    let origin = mirror(&mut rig).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut sender = clear(&mut rig).await;
    let by_tls = [("x-forwarded-proto", "https")];
    for (url, fields, status) in [
        ("https://app.example/", &by_tls[..], 200),
        ("http://app.example/", &by_tls, 200),
        ("https://app.example/", &[], 400),
        (
            "https://app.example/",
            &[("x-forwarded-proto", "http")],
            400,
        ),
        ("ftp://app.example/", &by_tls, 400),
        ("http://app.example/", &[], 200),
    ] {
        let response = get(&mut sender, url, fields).await;
        assert_eq!(response.status(), status, "{url} {fields:?}");
        if status == 200 {
            let head = text(response).await;
            let proto = fields.first().map_or("http", |(_, value)| value);
            let line = format!("x-forwarded-proto: {proto}\r\n");
            assert!(head.contains(&line), "{head}");
        }
    }
    // The same of an absolute target of HTTP/1.
    for (fields, status) in [("X-Forwarded-Proto: https\r\n", 200), ("", 400)] {
        let ask = format!("GET https://app.example/ HTTP/1.1\r\nHost: app.example\r\n{fields}\r\n");
        assert_eq!(rig.ask(&ask).await.status, status, "{fields}");
    }
}

/// Redirects to https and challenges of certificate authorities.
#[tokio::test]
async fn hosts_with_https_only_are_redirected_and_challenges_answered() {
    for settings in [settings(), behind_proxy()] {
        let is_trusted = !settings.trusted_proxies.is_empty();
        let mut rig = Rig::with(settings).await;
        let origin = hello(&mut rig.tasks).await;
        let secure = endpoint(
            Scheme::Https,
            "app.example",
            443,
            &format!("http://{origin}"),
            "",
        );
        let challenge = Challenge {
            kind: ChallengeKind::Http01,
            host: HostName::parse("app.example").unwrap(),
            token: "token".into(),
            answer: "token.thumb".into(),
        };
        let snapshot = Snapshot::builder().endpoint(secure).challenge(challenge);
        rig.edge.publish(snapshot.build()).await;
        let mut sender = clear(&mut rig).await;
        let moved = get(&mut sender, "http://app.example/a?b", &[]).await;
        assert_eq!(moved.status(), 301);
        assert_eq!(moved.headers()["location"], "https://app.example/a?b");
        let by_tls = [("x-forwarded-proto", "https")];
        let forwarded = get(&mut sender, "http://app.example/", &by_tls).await;
        assert_eq!(forwarded.status(), if is_trusted { 404 } else { 301 });
        let path = "http://app.example/.well-known/acme-challenge";
        let answer = get(&mut sender, &format!("{path}/token"), &[]).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(text(answer).await, "token.thumb");
        let other = get(&mut sender, &format!("{path}/other"), &[]).await;
        assert_eq!(other.status(), 301);
    }
}

/// Cookies of a sign-in are for https only, and a client without it gets none.
#[tokio::test]
async fn a_sign_in_needs_a_client_with_tls() {
    let mut scene = Scene::start("").await;
    let mut sender = clear(&mut scene.rig).await;
    let refused = get(&mut sender, "http://app.example/", &[]).await;
    assert_eq!(refused.status(), 403);
    assert!(!refused.headers().contains_key("set-cookie"));
    for url in ["http://app.example/", "https://app.example/"] {
        let sent = get(&mut sender, url, &[("x-forwarded-proto", "https")]).await;
        assert_eq!(sent.status(), 302, "{url}");
        let cookie = sent.headers()["set-cookie"].to_str().unwrap();
        assert!(cookie.contains("; Secure; HttpOnly"), "{cookie}");
    }
}

#[tokio::test]
async fn websockets_and_errors_of_grpc_are_those_of_http2_with_tls() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig.tasks).await;
    let policy = "on_http_request: [{expressions: [\"req.url.path == '/deny'\"], actions: [{type: deny, config: {status_code: 403}}]}]";
    let mut ruled = governed(Scheme::Http, &format!("http://{origin}"), policy);
    ruled.host = HostName::parse("ruled.example").unwrap();
    let snapshot = http("app.example", origin).endpoint(ruled);
    rig.edge.publish(snapshot.build()).await;
    let mut sender = clear(&mut rig).await;
    // After an answer the client knows what the edge takes.
    let first = get(&mut sender, "http://app.example/", &[]).await;
    assert_eq!(text(first).await, "ok");
    let request = websocket_at("http://app.example/chat").body(nothing());
    let answer = soon("an answer", sender.send_request(request.unwrap()))
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let stream = hyper::upgrade::on(answer).await.unwrap();
    let mut stream = Client::new(TokioIo::new(stream));
    assert_eq!(stream.take(2).await.unwrap(), b"hi");
    stream.send("message").await;
    assert_eq!(stream.take(7).await.unwrap(), b"message");
    for (url, status, grpc) in [
        ("http://ruled.example/deny", 403, "7"),
        ("http://no.example/", 404, "12"),
    ] {
        let request = Request::post(url).header("content-type", "application/grpc");
        let request = request.body(nothing()).unwrap();
        let answer = soon("an answer", sender.send_request(request))
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{url}");
        assert_eq!(answer.headers()["grpc-status"], grpc, "{url}");
        assert!(answer.headers().contains_key("grpc-message"), "{url}");
        assert_eq!(text(answer).await, "");
    }
}

/// `Upgrade: h2c` (RFC 7540 3.2) is not passed on, and is no way to HTTP/2.
#[tokio::test]
async fn an_upgrade_to_h2c_stays_a_request_of_http1() {
    let mut rig = Rig::start().await;
    let origin = mirror(&mut rig).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let answer = rig
        .ask(
            "GET / HTTP/1.1\r\nHost: app.example\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
        )
        .await;
    assert_eq!(answer.status, 200);
    let head = answer.text().to_lowercase();
    assert!(
        !head.contains("h2c") && !head.contains("settings"),
        "{head}"
    );
}

/// The deadlines for the preface, for SETTINGS and between requests.
#[tokio::test]
async fn silent_clients_are_cut() {
    const SOON: Duration = Duration::from_millis(300);
    let limits = Limits {
        first_byte: SOON,
        head: SOON,
        http2_idle: SOON,
        ..settings().limits
    };
    let settings = Settings {
        limits,
        ..settings()
    };
    let mut rig = Rig::with(settings).await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let first = frame(SETTINGS, 0, 0, &[]);
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &clear_section());
    for (bytes, code) in [
        (PREFACE[..20].to_vec(), 11),
        (PREFACE.to_vec(), 11),
        ([PREFACE, &first].concat(), 0),
        ([PREFACE, &first, &request].concat(), 0),
    ] {
        let mut client = rig.connect().await;
        client.send(&bytes).await;
        let last = soon("the end", last_words(client.stream)).await;
        assert_eq!(last, Some(code), "{} bytes", bytes.len());
    }
    // Before the first line is whole, it is a request of HTTP/1.
    let mut client = rig.connect().await;
    client.send(&PREFACE[..9]).await;
    assert_eq!(client.answer("GET").await.status, 408);
}

/// A graceful stop asks clients to open no more streams, and serves those that are open.
#[tokio::test]
async fn a_stopping_edge_says_goaway() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut client = rig.connect().await;
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &clear_section());
    let first = frame(SETTINGS, 0, 0, &[]);
    client.send([PREFACE, &first, &request].concat()).await;
    eventually("it is served", || rig.recorder.count() > 0).await;
    rig.cancel.cancel();
    assert_eq!(soon("the end", last_words(client.stream)).await, Some(0));
}

/// A load balancer may send requests for several hosts over one connection.
#[tokio::test]
async fn a_policy_that_closes_the_connection_ends_its_stream_alone() {
    let mut rig = Rig::start().await;
    let origin = mirror(&mut rig).await;
    let policy = "on_http_request: [{actions: [{type: close-connection}]}]";
    let mut closing = governed(Scheme::Http, &format!("http://{origin}"), policy);
    closing.host = HostName::parse("closing.example").unwrap();
    let snapshot = http("app.example", origin).endpoint(closing);
    rig.edge.publish(snapshot.build()).await;
    let mut sender = clear(&mut rig).await;
    for _ in 0..2 {
        let request = Request::get("http://closing.example/a").body(nothing());
        let ended = soon("its end", sender.send_request(request.unwrap())).await;
        assert!(ended.is_err());
        let other = get(&mut sender, "http://app.example/a", &[]).await;
        assert_eq!(other.status(), 200);
    }
}
