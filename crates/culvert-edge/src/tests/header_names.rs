//! Header fields whose names origins confuse with others, and the number of fields.

use culvert_policy::Scheme;
use http::Request;
use http_body_util::BodyExt;
use rustls_pki_types::CertificateDer;

use super::harness::*;
use super::internal::named;
use super::paths::{ask2, rig};
use super::streams::{connect, frames};
use crate::{Settings, Snapshot};

/// An edge with an endpoint of this policy over HTTP and HTTPS, and its root certificate. The upstream returns the head and
/// An edge with an endpoint of this policy over HTTP and HTTPS, and its root certificate. The upstream returns the head and
/// the trailers that it got, of which it gets none, and this field.
pub(super) async fn echoing(
    field: &'static str,
    policy: &str,
    keeps: bool,
) -> (Rig, CertificateDer<'static>) {
    let settings = Settings {
        underscore_headers: keeps,
        ..settings()
    };
    let mut rig = Rig::with(settings).await;
    let origin = origin(&mut rig.tasks, move |mut client| async move {
        while let Some(head) = client.head().await {
            let (_, trailers) = client.body(&head).await.unwrap();
            let text = format!("{head}{trailers}");
            let response = format!(
                "HTTP/1.1 200 OK\r\n{field}\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            );
            client.send(response).await;
        }
    })
    .await;
    let (names, key, root) = certificate(&["app.example"]);
    let origin = format!("http://{origin}");
    let snapshot = Snapshot::builder()
        .endpoint(named(Scheme::Http, "app.example", 80, &origin, policy))
        .endpoint(named(Scheme::Https, "app.example", 443, &origin, policy))
        .certificate(names, key);
    rig.edge.publish(snapshot.build()).await;
    (rig, root)
}

#[tokio::test]
async fn fields_with_underscores_are_not_forwarded() {
    for keeps in [false, true] {
        let policy = "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-saw: \"${'x_real_ip' in req.headers}\", x_mine: \"1\"}}}]}]";
        let (mut rig, root) = echoing("x_own: 1", policy, keeps).await;
        let request = "POST / HTTP/1.1\r\nHost: app.example\r\nX_Real_IP: 1.1.1.1\r\nContent_Length: 7\r\nX-Fine: 1\r\nCulvert_Replay_Of: ev_1\r\n\
                       Transfer-Encoding: chunked\r\n\r\n0\r\nx_tail: 1\r\nx-tail: 1\r\n\r\n";
        let answer = rig.ask(request).await;
        // Fields of upstreams and policies are kept.
        assert_eq!(answer.header("x_own"), Some("1"));
        let one = answer.text().to_ascii_lowercase();

        let mut sender = connect(&mut rig, &root).await;
        let (send, body) = frames();
        let request = Request::post("https://app.example/")
            .header("te", "trailers")
            .header("x_real_ip", "1.1.1.1")
            .header("content_length", "7")
            .header("culvert_replay_of", "ev_1")
            .header("x-fine", "1");
        let asked = sender.send_request(request.body(body).unwrap());
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x_tail", http::HeaderValue::from_static("1"));
        trailers.insert("x-tail", http::HeaderValue::from_static("1"));
        send.send(hyper::body::Frame::trailers(trailers))
            .await
            .unwrap();
        drop(send);
        let answer = soon("an answer", asked).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let two = String::from_utf8(body.to_vec())
            .unwrap()
            .to_ascii_lowercase();
        for text in [one, two] {
            for name in ["x_real_ip:", "content_length:"] {
                assert_eq!(text.contains(name), keeps, "{name} in {text}");
            }
            for name in ["x-fine:", "x_mine:", &format!("x-saw: {keeps}")] {
                assert!(text.contains(name), "{name} in {text}");
            }
            for name in ["tail", "culvert_replay"] {
                assert!(!text.contains(name), "{name} in {text}");
            }
        }
    }
}

/// Servers that store fields in variables (CGI, WSGI) read every character other than letters and digits as
/// `_`, so they would confuse these names with culvert's fields or with other fields.
#[tokio::test]
async fn fields_that_origins_may_confuse_are_not_forwarded() {
    const DROPPED: [&str; 13] = [
        "culvert.replay.of",
        "culvert.assertion",
        "x.forwarded.for",
        "x!forwarded!for",
        "x-forwarded.host",
        "x.real~ip",
        "content.length",
        "transfer*encoding",
        "proxy.connection",
        "ngrok.error.code",
        "x.user",
        "x.gone",
        "x.given",
    ];
    const KEPT: [&str; 4] = ["x.fine", "x-amz-meta-a.b", "x-given", "x-user"];
    for keeps in [false, true] {
        // If a policy sets or removes a field, other spellings of it are removed, too.
        let policy = r#"
on_http_request:
- actions:
  - {type: add-headers, config: {headers: {x-user: "anna", x_mine: "1"}}}
  - {type: remove-headers, config: {headers: [x-gone]}}
"#;
        let (mut rig, root) = echoing("x.forwarded.for: 1", policy, keeps).await;
        let mut request = "POST / HTTP/1.1\r\nHost: app.example\r\nX-Given: 1\r\nx.fine: 1\r\n\
                           x-amz-meta-a.b: 1\r\nTransfer-Encoding: chunked\r\n"
            .to_owned();
        for name in DROPPED {
            request += &format!("{name}: evil\r\n");
        }
        request += "\r\n0\r\nx.real.ip: evil\r\nx-tail: 1\r\nx.tail: evil\r\n\r\n";
        let answer = rig.ask(&request).await;
        assert_eq!(answer.header("x.forwarded.for"), Some("1"), "an upstream's");
        let one = answer.text().to_ascii_lowercase();

        let mut sender = connect(&mut rig, &root).await;
        let (send, body) = frames();
        let mut request = Request::post("https://app.example/")
            .header("te", "trailers")
            .header("x-given", "1")
            .header("x.fine", "1")
            .header("x-amz-meta-a.b", "1");
        for name in DROPPED {
            request = request.header(name, "evil");
        }
        let asked = sender.send_request(request.body(body).unwrap());
        let mut trailers = http::HeaderMap::new();
        for (name, value) in [("x.real.ip", "evil"), ("x-tail", "1"), ("x.tail", "evil")] {
            trailers.insert(name, http::HeaderValue::from_static(value));
        }
        send.send(hyper::body::Frame::trailers(trailers))
            .await
            .unwrap();
        drop(send);
        let answer = soon("an answer", asked).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let two = String::from_utf8_lossy(&body).to_ascii_lowercase();
        for text in [one, two] {
            assert!(!text.contains("evil"), "{text}");
            for name in KEPT.into_iter().chain(["x_mine"]) {
                assert!(text.contains(&format!("{name}:")), "{name} in {text}");
            }
        }
    }
}

/// One limit for both protocols; a browser's cookies, which HTTP/2 splits, count as one field.
#[tokio::test]
async fn the_limit_of_fields_is_equal_over_http2() {
    let (mut rig, root) = rig().await;
    let mut sender = connect(&mut rig, &root).await;
    for (fields, cookies, status) in [
        (127, 0, 200),
        (128, 0, 431),
        (1_500, 0, 431),
        (100, 600, 200),
    ] {
        let mut request = Request::get("https://app.example/");
        for nth in 0..fields {
            request = request.header(format!("x-{nth}"), "1");
        }
        for _ in 0..cookies {
            request = request.header("cookie", "a=b");
        }
        let answer = ask2(&mut sender, request).await;
        assert_eq!(answer.0, status, "{fields} fields, {cookies} cookies");
    }
}
