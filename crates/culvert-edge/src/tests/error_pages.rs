//! Pages for browsers: who gets one, what it has, and what replaces it.

use std::sync::Arc;

use bytes::Bytes;
use culvert_policy::{ErrorPages, Scheme};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use super::harness::*;
use super::policies::publish;
use crate::{Settings, Snapshot};

/// As current browsers send it for a navigation.
const BROWSER: &str =
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8\r\n";
const POLICY: &str = "
on_http_request:
- expressions: ['req.url.path == \"/deny\"']
  actions: [{type: deny, config: {status_code: 451}}]
- expressions: ['req.url.path == \"/basic\"']
  actions: [{type: basic-auth, config: {credentials: ['user:password']}}]
- expressions: ['req.url.path == \"/own\"']
  actions: [{type: custom-response, config: {status_code: 404, body: mine}}]
- expressions: ['req.url.path == \"/ip\"']
  actions: [{type: restrict-ips, config: {deny: [127.0.0.1]}}]
- actions:
  - {type: rate-limit, config: {capacity: 1, rate: 60s, bucket_key: [req.url.path]}}
  - {type: custom-response, config: {body: ok}}
";

async fn get(rig: &Rig, method: &str, path: &str, host: &str, more: &str) -> Answer {
    let mut client = rig.connect().await;
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    client.send(head).await;
    client.answer(method).await
}

/// Checks what every page has.
fn check_page(answer: &Answer, status: u16, what: &str) {
    assert_eq!(answer.status, status, "{what}");
    let header = |name| answer.header(name).unwrap_or_default();
    assert_eq!(header("content-type"), "text/html; charset=utf-8", "{what}");
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(header("x-content-type-options"), "nosniff");
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    let (id, page) = (header("culvert-request-id"), answer.text());
    assert!(!id.is_empty() && page.contains(id), "{what}: {page}");
    assert!(page.contains(&format!("<title>{status} ")), "{page}");
    assert!(page.contains(header("ngrok-error-code")));
    assert!(page.len() < 8 << 10);
}

#[tokio::test]
async fn browsers_get_error_pages_and_other_clients_json_or_text() {
    let rig = Rig::start().await;
    publish(&rig, "", POLICY).await;
    let host = "app.example";
    assert_eq!(get(&rig, "GET", "/", host, "").await.text(), "ok");
    for (path, host, status, code, text) in [
        ("/", "no.example", 404, "ERR_NGROK_3200", None),
        ("/ip", host, 403, "ERR_NGROK_3203", None),
        ("/deny", host, 451, "", Some("")),
        ("/basic", host, 401, "", Some("Unauthorized\n")),
        ("/", host, 429, "", Some("Too many requests\n")),
    ] {
        let page = get(&rig, "GET", path, host, BROWSER).await;
        check_page(&page, status, path);
        assert_eq!(page.header("ngrok-error-code").unwrap_or_default(), code);
        assert!(page.text().contains(host));
        let head = get(&rig, "HEAD", path, host, BROWSER).await;
        assert_eq!((head.status, head.body.len()), (status, 0));
        let length: usize = head.header("content-length").unwrap().parse().unwrap();
        assert!(length.abs_diff(page.body.len()) < 16, "but for the ID");

        for accept in ["", "Accept: */*\r\n", "Accept: application/json\r\n"] {
            let grpc = format!("{accept}Content-Type: application/grpc\r\nTE: trailers\r\n");
            for more in [accept, &grpc] {
                let plain = get(&rig, "GET", path, host, more).await;
                assert_eq!(plain.status, status, "{path} {more}");
                let id = plain.header("culvert-request-id").unwrap();
                assert!(plain.header("content-security-policy").is_none());
                assert!(!plain.text().contains("<"), "{}", plain.text());
                match text {
                    // A policy's own response is the same for all other clients.
                    Some(text) => assert_eq!(plain.text(), text),
                    None => assert!(plain.text().contains(code) && plain.text().contains(id)),
                }
            }
        }
        let challenge = page.header("www-authenticate");
        assert_eq!(challenge.is_some(), status == 401);
        assert_eq!(page.header("retry-after").is_some(), status == 429);
    }
    let own = get(&rig, "GET", "/own", host, BROWSER).await;
    assert_eq!((own.status, own.text()), (404, "mine"));
    assert!(own.header("content-security-policy").is_none());
}

/// The page tells the owner what the event says.
#[tokio::test]
async fn pages_say_why_the_upstream_did_not_respond() {
    let mut rig = Rig::start().await;
    let leaves = origin(&mut rig.tasks, |client| async move { drop(client) }).await;
    let is_broken = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client.send("nonsense\r\n\r\n").await;
    })
    .await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refuses = closed.local_addr().unwrap();
    drop(closed);
    for (number, (upstream, status, cause)) in [
        (format!("http://{refuses}"), 502, "upstream_connect_failed"),
        (format!("http://{leaves}"), 502, "upstream_aborted"),
        (format!("http://{is_broken}"), 502, "upstream_bad_response"),
    ]
    .into_iter()
    .enumerate()
    {
        publish(&rig, &upstream, "on_http_request: []").await;
        let page = get(&rig, "GET", "/", "app.example", BROWSER).await;
        check_page(&page, status, cause);
        let shown = format!("(<code>{cause}</code>)</p>");
        assert!(page.text().contains(&shown), "{cause}: {}", page.text());
        // Others get the code and the ID alone.
        let plain = get(&rig, "GET", "/", "app.example", "").await;
        assert!(!plain.text().contains(cause), "{}", plain.text());
        // Two requests, each with a connection.
        let events = rig.recorder.events(4 * (number + 1)).await;
        for event in of(&events, HTTP).iter().rev().take(2) {
            assert_eq!(event["culvert"]["reason"], cause);
        }
    }
}

#[tokio::test]
async fn markup_in_a_host_is_escaped() {
    let rig = Rig::start().await;
    for host in [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "a.example:<b>",
        "a&lt;b'\"",
        "{{host}}",
    ] {
        let more = format!("{BROWSER}Connection: close\r\n");
        let answer = get(&rig, "GET", "/", host, &more).await;
        assert!(matches!(answer.status, 400 | 404), "{host}");
        let page = answer.text();
        for markup in ["<script", "<img", "<b>", "onerror=alert(1)>", "'\""] {
            assert!(!page.contains(markup), "{host}: {page}");
        }
    }
}

#[tokio::test]
async fn error_pages_are_sent_over_http2() {
    let (names, key, root) = certificate(&["app.example"]);
    let rig = Rig::with(Settings {
        certificates: vec![(names, key)],
        ..settings()
    })
    .await;
    let source = culvert_policy::Source::read(POLICY, culvert_edge_config::ACTIONS).unwrap();
    let policy = source.compile(Scheme::Https, false, &Default::default());
    let mut endpoint = endpoint(Scheme::Https, "app.example", 443, "http://127.0.0.1:1", "");
    endpoint.policy = Some(Arc::new(policy.unwrap()));
    endpoint.upstream = None;
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    let address = rig.edge.https_addr().unwrap();
    let stream = tls(address, &root, "app.example", "h2").await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    #[allow(clippy::disallowed_methods, reason = "it ends with its connection")]
    tokio::spawn(connection);
    for (method, accept, begins) in [
        ("GET", "text/html", "<!doctype html>"),
        ("HEAD", "text/html", ""),
        ("GET", "*/*", ""),
    ] {
        let request = http::Request::builder()
            .method(method)
            .uri("https://app.example/deny")
            .header("accept", accept)
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = soon("a response", client.send_request(request))
            .await
            .unwrap();
        assert_eq!(response.status(), 451);
        assert!(response.headers().contains_key("culvert-request-id"));
        assert_eq!(
            response.headers().contains_key("content-security-policy"),
            accept == "text/html"
        );
        let body = soon("a body", response.into_body().collect())
            .await
            .unwrap();
        let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        assert!(text.starts_with(begins), "{text}");
        assert_eq!(text.is_empty(), begins.is_empty());
        assert_eq!(text.contains("app.example"), !begins.is_empty());
    }
}

#[tokio::test]
async fn a_reload_applies_the_operators_templates() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start().await;
    let built_in = get(&rig, "GET", "/", "no.example", BROWSER).await;
    check_page(&built_in, 404, "before");
    let template = "<p>{{status}} {{code}} {{request_id}} {{host}} {{message}}</p>";
    std::fs::write(folder.path().join("404.html"), template).unwrap();
    let reload = || {
        let pages = ErrorPages::read(folder.path()).unwrap();
        let with = Settings {
            error_pages: Arc::new(pages),
            ..settings()
        };
        rig.edge.reload(&with).unwrap();
    };
    reload();
    let own = get(&rig, "GET", "/", "no.example", BROWSER).await;
    let id = own.header("culvert-request-id").unwrap();
    let expected =
        format!("<p>404 ERR_NGROK_3200 {id} no.example No endpoint is online at this host.</p>");
    assert_eq!(own.text(), expected);
    let policy = own.header("content-security-policy").unwrap();
    assert!(policy.contains("style-src 'unsafe-inline'") && !policy.contains("script"));
    // Other clients get no page, and other statuses the built-in one.
    let plain = get(&rig, "GET", "/", "no.example", "").await;
    assert!(plain.text().starts_with("ERR_NGROK_3200: "));
    let other = get(&rig, "GET", "/", "a b", BROWSER).await;
    check_page(&other, 400, "another status");
    std::fs::remove_file(folder.path().join("404.html")).unwrap();
    reload();
    let again = get(&rig, "GET", "/", "no.example", BROWSER).await;
    check_page(&again, 404, "after");
}
