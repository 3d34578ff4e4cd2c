//! TLS: certificates by name, HTTP/2, connections that name one host and ask for another.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use culvert_policy::Scheme;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use tokio::task::JoinSet;

use super::harness::*;
use crate::Snapshot;

/// An HTTP/2 origin that tells what it was asked.
pub(super) async fn http2_origin(tasks: &mut JoinSet<()>) -> SocketAddr {
    origin(tasks, |client| async move {
        let service = hyper::service::service_fn(
            |request: http::Request<hyper::body::Incoming>| async move {
                let asked = format!("{} {}", request.method(), request.uri());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let answer = format!("{asked} {}", body.len());
                Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(Bytes::from(
                    answer,
                ))))
            },
        );
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(
            server
                .serve_connection(TokioIo::new(client.stream), service)
                .await,
        );
    })
    .await
}

/// Its open streams end in order, and the next request has another connection.
#[tokio::test]
async fn an_http2_connection_to_an_address_that_a_name_lost_takes_no_further_stream() {
    let mut rig = Rig::start().await;
    let origin = http2_origin(&mut rig.tasks).await;
    let mut app = endpoint(
        Scheme::Http,
        "a.example",
        80,
        &format!("http://{origin}"),
        "",
    );
    let upstream = crate::Upstream::parse(&format!("http://{origin}"), "http2").unwrap();
    app.upstream = Some(upstream);
    rig.edge
        .publish(Snapshot::builder().endpoint(app).build())
        .await;
    let get = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let connects = |rig: &Rig| rig.edge.meters().upstream_connects.get();
    for _ in 0..3 {
        assert_eq!(rig.ask(get).await.status, 200);
    }
    assert_eq!(connects(&rig), 1);
    let pools = rig.edge.pools().await;
    let note = |address: &str| {
        pools
            .iter()
            .for_each(|pool| pool.note_addresses(&[address.parse().unwrap()]));
    };
    note("127.0.0.1");
    assert_eq!(rig.ask(get).await.status, 200);
    assert_eq!(connects(&rig), 1);
    note("127.0.0.2");
    assert_eq!(rig.ask(get).await.status, 200);
    assert_eq!(connects(&rig), 2);
}

/// An edge with `https://a.example` of account 1 and `https://b.example` of account 2, each with its
/// certificate, and `https://*.w.example` under one wildcard of account 1.
async fn rig() -> (Rig, Vec<CertificateDer<'static>>) {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    let url = format!("http://{origin}");
    let mut builder = Snapshot::builder();
    let mut roots = Vec::new();
    for (account, names) in [
        (1, vec!["a.example"]),
        (2, vec!["b.example"]),
        (1, vec!["*.w.example"]),
    ] {
        let (names, key, root) = certificate(&names);
        for name in &names {
            let mut endpoint = endpoint(Scheme::Https, name, 443, &url, "");
            endpoint.account = format!("ac_{account}").into();
            builder = builder.endpoint(endpoint);
        }
        builder = builder.certificate(names, key);
        roots.push(root);
    }
    rig.edge.publish(builder.build()).await;
    (rig, roots)
}

/// A request over an HTTP/2 connection.
pub(super) async fn ask2(
    sender: &mut hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    uri: &str,
    body: &'static str,
) -> (u16, Bytes) {
    let request = http::Request::post(uri)
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    let status = answer.status().as_u16();
    (
        status,
        answer.into_body().collect().await.unwrap().to_bytes(),
    )
}

pub(super) async fn http2(
    rig: &mut Rig,
    root: &CertificateDer<'static>,
    name: &str,
) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = tls(rig.edge.https_addr().unwrap(), root, name, "h2")
        .await
        .unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    rig.tasks.spawn(async move {
        drop(connection.await);
    });
    sender
}

#[tokio::test]
async fn certificates_are_selected_by_sni_and_events_describe_tls() {
    let (rig, roots) = rig().await;
    let address = rig.edge.https_addr().unwrap();
    let mut client = Client::new(
        tls(address, &roots[0], "a.example", "http/1.1")
            .await
            .unwrap(),
    );
    client
        .send("GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.text(), "hello");
    drop(client);
    let events = rig.recorder.events(2).await;
    let object = &events[0]["object"];
    assert_eq!(object["tls"]["version"], "1.3");
    assert!(
        object["tls"]["cipher_suite"]
            .as_str()
            .unwrap()
            .starts_with("TLS_AES_")
    );
    assert_eq!(
        object["http"]["request"]["url"]["raw"],
        "https://a.example/x"
    );
    assert_eq!(object["conn"]["server_name"], "a.example");
    assert_eq!(events[1]["object"]["conn"]["server_name"], "a.example");

    // The other name has another certificate.
    assert!(
        tls(address, &roots[0], "b.example", "http/1.1")
            .await
            .is_err()
    );
    assert!(
        tls(address, &roots[1], "b.example", "http/1.1")
            .await
            .is_ok()
    );
    assert!(
        tls(address, &roots[2], "x.w.example", "http/1.1")
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn an_unknown_server_name_gets_an_alert() {
    let (rig, roots) = rig().await;
    let error = tls(rig.edge.https_addr().unwrap(), &roots[0], "c.example", "h2")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    assert_eq!(rig.edge.meters().unknown_names.get(), 1);
    // Nothing in clear on this port.
    let mut client = Client::new(
        tokio::net::TcpStream::connect(rig.edge.https_addr().unwrap())
            .await
            .unwrap(),
    );
    client
        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    assert_eq!(client.rest().await, b"");
    assert_eq!(rig.recorder.count(), 0);
}

#[tokio::test]
async fn a_tls_connection_without_a_request_is_recorded_under_its_server_name() {
    let (rig, roots) = rig().await;
    drop(
        tls(
            rig.edge.https_addr().unwrap(),
            &roots[1],
            "b.example",
            "http/1.1",
        )
        .await
        .unwrap(),
    );
    let events = rig.recorder.events(1).await;
    assert_eq!(events[0]["event_type"], TCP);
    assert_eq!(events[0]["account_id"], "ac_2");
    assert_eq!(events[0]["object"]["conn"]["server_name"], "b.example");
}

#[tokio::test]
async fn each_http2_stream_and_the_connection_make_one_event() {
    let (mut rig, roots) = rig().await;
    let mut sender = http2(&mut rig, &roots[0], "a.example").await;
    for _ in 0..3 {
        let (status, body) = ask2(&mut sender, "https://a.example/p?q", "abc").await;
        assert_eq!((status, &body[..]), (200, &b"hello"[..]));
    }
    drop(sender);
    let events = rig.recorder.events(4).await;
    assert_eq!(of(&events, HTTP).len(), 3);
    let object = &events[0]["object"];
    assert_eq!(object["http"]["request"]["body_length"], 3);
    assert_eq!(object["http"]["request"]["headers"]["Host"][0], "a.example");
    assert_eq!(object["http"]["response"]["body_length"], 5);
    assert_eq!(
        object["http"]["request"]["url"]["raw"],
        "https://a.example/p?q"
    );
    assert_eq!(events[3]["event_type"], TCP);
}

#[tokio::test]
async fn a_connection_serves_only_hosts_of_its_certificate() {
    let (mut rig, roots) = rig().await;
    let mut sender = http2(&mut rig, &roots[0], "a.example").await;
    assert_eq!(ask2(&mut sender, "https://b.example/", "").await.0, 421);
    assert_eq!(
        ask2(&mut sender, "https://nobody.example/", "").await.0,
        404
    );
    assert_eq!(ask2(&mut sender, "https://a.example/", "").await.0, 200);
    drop(sender);
    let events = rig.recorder.events(4).await;
    for (event, status) in events.iter().zip([421, 404, 200]) {
        assert_eq!(event["account_id"], "ac_1");
        assert_eq!(event["object"]["http"]["response"]["status_code"], status);
    }

    // Names under one certificate and account may share.
    let mut sender = http2(&mut rig, &roots[2], "x.w.example").await;
    assert_eq!(ask2(&mut sender, "https://y.w.example/", "").await.0, 200);
}

#[tokio::test]
async fn malformed_http2_requests_are_refused() {
    let (mut rig, roots) = rig().await;
    let mut sender = http2(&mut rig, &roots[0], "a.example").await;
    let connect = http::Request::connect("a.example:443")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let status = sender
        .send_request(connect)
        .await
        .map(|answer| answer.status().as_u16());
    assert!(matches!(status, Ok(405) | Err(_)));
    let two = http::Request::get("https://a.example/")
        .header("host", "b.example")
        .body(Full::new(Bytes::new()))
        .unwrap();
    assert_eq!(sender.send_request(two).await.unwrap().status(), 400);
}

#[tokio::test]
async fn a_reset_stream_ends_only_its_own_exchange() {
    let (mut rig, roots) = rig().await;
    let waits = origin(&mut rig.tasks, |mut client| async move {
        client.head().await;
        client.rest().await;
    })
    .await;
    let mut sender = http2(&mut rig, &roots[0], "a.example").await;
    assert_eq!(ask2(&mut sender, "https://a.example/", "").await.0, 200);
    let (names, key, root) = certificate(&["slow.example"]);
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Https,
            "slow.example",
            443,
            &format!("http://{waits}"),
            "",
        ))
        .certificate(names, key)
        .build();
    rig.edge.publish(snapshot).await;
    let mut sender2 = http2(&mut rig, &root, "slow.example").await;
    for _ in 0..20 {
        let request = http::Request::get("https://slow.example/")
            .body(Full::new(Bytes::new()))
            .unwrap();
        let before = rig.edge.meters().requests.get();
        let answer = sender2.send_request(request);
        tokio::select! {
            _ = answer => panic!("nobody answers here"),
            () = async {
                while rig.edge.meters().requests.get() == before {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
    }
    let events = rig.recorder.events(21).await;
    let given_up = of(&events, HTTP);
    assert!(
        given_up[1..]
            .iter()
            .all(|event| event["object"]["http"]["response"]["status_code"].is_null())
    );
    assert!(sender2.is_ready());
}

#[tokio::test]
async fn draining_sends_goaway() {
    let (mut rig, roots) = rig().await;
    let mut sender = http2(&mut rig, &roots[0], "a.example").await;
    assert_eq!(ask2(&mut sender, "https://a.example/", "").await.0, 200);
    rig.cancel.cancel();
    soon("the connection to close", async {
        while !sender.is_closed() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let events = rig.recorder.events(2).await;
    assert_eq!(events[1]["event_type"], TCP);
}

#[tokio::test]
async fn tls_endpoints_pass_tls_through() {
    let mut rig = Rig::start().await;
    let (_, key, root) = certificate(&["pass.example"]);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
            Arc::into_inner(key).unwrap(),
        )));
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let origin = origin(&mut rig.tasks, move |client| {
        let acceptor = acceptor.clone();
        async move {
            let mut client = Client::new(acceptor.accept(client.stream).await.unwrap());
            client.send("from the origin").await;
            client.rest().await;
        }
    })
    .await;
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Tls,
            "pass.example",
            443,
            &format!("tcp://{origin}"),
            "",
        ))
        .build();
    rig.edge.publish(snapshot).await;
    let mut client = Client::new(
        tls(rig.edge.https_addr().unwrap(), &root, "pass.example", "x")
            .await
            .unwrap(),
    );
    assert_eq!(client.take(15).await.unwrap(), b"from the origin");
    drop(client);
    let events = rig.recorder.events(1).await;
    assert_eq!(events[0]["event_type"], TCP);
    assert_eq!(events[0]["object"]["conn"]["server_name"], "pass.example");
}

/// Servers that close TLS without `close_notify` are common. Framing × end: what was whole arrives whole,
/// and what was cut does not pass for whole.
#[tokio::test]
async fn upstreams_may_close_tls_without_close_notify() {
    let (_, key, root) = certificate(&["localhost"]);
    let mut rig = Rig::with(crate::Settings {
        upstream_roots: vec![root],
        ..settings()
    })
    .await;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
            Arc::into_inner(key).unwrap(),
        )));
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let origin = origin(&mut rig.tasks, move |client| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(client.stream).await else {
                return;
            };
            let mut client = Client::new(stream);
            let (asked, _) = client.request().await.unwrap();
            client
                .send(if asked.contains("/close") {
                    "HTTP/1.1 200 OK\r\n\r\nwhole"
                } else if asked.contains("/length") {
                    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole"
                } else if asked.contains("/chunks") {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n"
                } else {
                    "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"
                })
                .await;
            // Dropped without the shutdown that sends `close_notify`.
        }
    })
    .await;
    let url = format!("https://localhost:{}", origin.port());
    let endpoint = endpoint(Scheme::Http, "app.example", 80, &url, "");
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    for path in ["/close", "/length", "/chunks"] {
        let answer = rig
            .ask(&format!(
                "GET {path} HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n"
            ))
            .await;
        assert_eq!((answer.status, answer.text()), (200, "whole"), "{path}");
    }
    let (mut client, mut cut) = (rig.connect().await, Vec::new());
    client
        .send("GET /cut HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n")
        .await;
    tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut cut)
        .await
        .ok();
    let cut = String::from_utf8(cut).unwrap();
    assert!(
        cut.contains("content-length: 9") && cut.ends_with("half"),
        "{cut}"
    );
}

#[tokio::test]
async fn https_upstreams_are_verified() {
    let (names, key, root) = certificate(&["localhost"]);
    drop(names);
    let mut rig = Rig::with(crate::Settings {
        upstream_roots: vec![root],
        ..settings()
    })
    .await;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
            Arc::into_inner(key).unwrap(),
        )));
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let origin = origin(&mut rig.tasks, move |client| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(client.stream).await else {
                return;
            };
            let mut client = Client::new(stream);
            while client.request().await.is_some() {
                client
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret")
                    .await;
            }
        }
    })
    .await;
    let port = origin.port();
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(
            Scheme::Http,
            "good.example",
            80,
            &format!("https://localhost:{port}"),
            "",
        ))
        .endpoint(endpoint(
            Scheme::Http,
            "bad.example",
            80,
            &format!("https://127.0.0.1:{port}"),
            "",
        ))
        .build();
    rig.edge.publish(snapshot).await;
    assert_eq!(
        rig.ask("GET / HTTP/1.1\r\nHost: good.example\r\n\r\n")
            .await
            .text(),
        "secret"
    );
    assert_eq!(
        rig.ask("GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n")
            .await
            .status,
        502
    );
}
