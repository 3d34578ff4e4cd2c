//! Policies check the same path that is sent upstream (contract: traffic policy), over HTTP/1 and
//! HTTP/2; and plain HTTP requests to https endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::net::HostName;
use culvert_base::{IpSet, Prefix, Verdict};
use culvert_policy::Scheme;
use culvert_tls::acme::{Challenge, ChallengeKind};
use http::uri::PathAndQuery;
use http::{Request, Uri};
use http_body_util::BodyExt;
use hyper::client::conn::http2::SendRequest;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;

use super::harness::*;
use super::internal::named;
use super::streams::{Frames, connect, nothing};
use crate::{Endpoint, Restriction, Settings, Snapshot, SnapshotBuilder};

/// Adds the values that rules see as header fields.
const ECHO: &str = r#"
  - type: add-headers
    config:
      headers:
        x-path: "${req.url.path}"
        x-uri: "${req.url.uri}"
        x-url: "${req.url}"
        x-raw-path: "${req.url.raw_path}"
        x-raw: "${req.url.raw}"
"#;

fn denies() -> String {
    format!(
        "on_http_request:\n\
         - expressions: [\"req.url.path.startsWith('/admin')\"]\n  \
           actions: [{{type: deny, config: {{status_code: 451}}}}]\n\
         - actions:{ECHO}"
    )
}

fn allows() -> String {
    format!(
        "on_http_request:\n\
         - expressions: [\"!req.url.path.startsWith('/public')\"]\n  \
           actions: [{{type: deny, config: {{status_code: 451}}}}]\n\
         - actions:{ECHO}"
    )
}

const FORWARDS: &str =
    "on_http_request:\n- actions: [{type: forward-internal, config: {url: http://inner.internal}}]";

/// An origin that responds with the request head it received.
async fn echo(rig: &mut Rig) -> String {
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some((head, _)) = client.request().await {
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}",
                head.len()
            );
            client.send(answer).await;
        }
    })
    .await;
    format!("http://{origin}")
}

/// The same endpoints for plain HTTP and for TLS: `app.example` denies `/admin`, `allow.example` admits
/// `/public`, `hop.example` forwards to an endpoint that denies `/admin`, and `raw.example` keeps empty
/// segments.
pub(super) async fn rig() -> (Rig, CertificateDer<'static>) {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let (names, key, root) =
        certificate(&["app.example", "allow.example", "hop.example", "raw.example"]);
    let mut snapshot = Snapshot::builder().certificate(names, key);
    for (scheme, port) in [(Scheme::Http, 80), (Scheme::Https, 443)] {
        let raw = Endpoint {
            merge_slashes: false,
            ..named(scheme, "raw.example", port, &origin, &denies())
        };
        snapshot = snapshot
            .endpoint(named(scheme, "app.example", port, &origin, &denies()))
            .endpoint(named(scheme, "allow.example", port, &origin, &allows()))
            .endpoint(named(scheme, "hop.example", port, "", FORWARDS))
            .endpoint(raw);
    }
    let inner = named(Scheme::Http, "inner.internal", 80, &origin, &denies());
    rig.edge.publish(snapshot.endpoint(inner).build()).await;
    (rig, root)
}

/// A client of one protocol.
enum Asker {
    Http1(Client<TcpStream>),
    Http2(SendRequest<Frames>),
}

impl Asker {
    async fn http1(rig: &Rig) -> Self {
        Self::Http1(rig.connect().await)
    }

    async fn http2(rig: &mut Rig, root: &CertificateDer<'static>) -> Self {
        Self::Http2(connect(rig, root).await)
    }

    /// Returns the status, and the head that the origin received.
    async fn ask(&mut self, rig: &Rig, host: &str, target: &str) -> (u16, String) {
        match self {
            Self::Http1(client) => {
                let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                client.send(request).await;
                let answer = client.answer("GET").await;
                let text = answer.text().to_owned();
                if answer.status == 400 {
                    *client = rig.connect().await;
                }
                (answer.status, text)
            }
            Self::Http2(sender) => {
                let path = PathAndQuery::from_maybe_shared(Bytes::from(target.to_owned()));
                // HTTP/1 has shown that targets which this client cannot send are rejected.
                let Ok(path) = path else {
                    return (400, String::new());
                };
                let mut parts = http::uri::Parts::default();
                parts.scheme = Some(http::uri::Scheme::HTTPS);
                parts.authority = Some(host.parse().unwrap());
                parts.path_and_query = Some(path);
                let request = Request::get(Uri::from_parts(parts).unwrap());
                let request = request.body(nothing()).unwrap();
                let answer = soon("an answer", sender.send_request(request))
                    .await
                    .unwrap();
                let status = answer.status().as_u16();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                (status, String::from_utf8(body.to_vec()).unwrap())
            }
        }
    }

    fn scheme(&self) -> &'static str {
        match self {
            Self::Http1(_) => "http",
            Self::Http2(_) => "https",
        }
    }
}

/// The target that the origin received, and the fields that the policy added.
fn got(head: &str) -> (String, BTreeMap<String, String>) {
    let mut lines = head.split("\r\n");
    let target = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let fields = lines.filter_map(|line| line.split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    (target, fields.collect())
}

/// Reads a path like servers that decode it first, remove parameters, treat `\` as `/`, and drop empty
/// segments.
fn read_loosely(path: &str) -> String {
    let bytes = path.as_bytes();
    let (mut decoded, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = bytes
            .get(at + 1..at + 3)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if bytes[at] == b'%' => {
                decoded.push(byte);
                at += 3;
            }
            _ => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    let decoded = String::from_utf8_lossy(&decoded).replace('\\', "/");
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment.split(';').next().unwrap() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

/// Waits for this number of request events.
async fn http_events(rig: &Rig, count: usize) -> Vec<serde_json::Value> {
    let mut all = count;
    loop {
        let events = rig.recorder.events(all).await;
        // Some of those that the edge refused have events too.
        let served = of(&events, HTTP).into_iter();
        let served = served.filter(|event| event["culvert"]["reason"] == "");
        let found: Vec<_> = served.cloned().collect();
        if found.len() >= count {
            return found;
        }
        all = events.len() + 1;
    }
}

/// Pseudo-random numbers, equal in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn target(&mut self) -> String {
        const PIECES: [&str; 40] = [
            "/",
            "/",
            "/",
            "/",
            "/",
            "//",
            "\\",
            "%2f",
            "%2F",
            "%5c",
            ".",
            "..",
            "..",
            "%2e",
            "%2E%2e",
            ".%2e",
            "admin",
            "admin",
            "%61dmin",
            "adm%69n",
            "public",
            "public",
            "%70ublic",
            "a",
            "b",
            ";",
            ";x=1",
            "%3b",
            "%25",
            "%252e",
            "%20",
            "%C3%A9",
            "%00",
            "%zz",
            "|",
            "{",
            "\"",
            "~",
            "%7e",
            "?q=/../admin",
        ];
        let starts = [
            "/",
            "/",
            "/",
            "//",
            "/admin",
            "/public/",
            "/public/../",
            "/\\",
        ];
        let mut target = starts[self.roll(starts.len())].to_owned();
        for _ in 0..self.roll(9) {
            target.push_str(PIECES[self.roll(PIECES.len())]);
        }
        target
    }
}

#[expect(clippy::print_stdout, reason = "the counts are what the test reports")]
#[tokio::test]
async fn policies_upstreams_and_events_see_the_same_path() {
    const TARGETS: usize = 2_500;
    let (mut rig, root) = rig().await;
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut paths: Vec<String> = Vec::new();
    for is_http2 in [false, true] {
        let mut asker = match is_http2 {
            false => Asker::http1(&rig).await,
            true => Asker::http2(&mut rig, &root).await,
        };
        let mut reported = Vec::new();
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for _ in 0..TARGETS {
            let target = dice.target();
            let host = ["app.example", "allow.example", "hop.example"][dice.roll(3)];
            let (status, head) = asker.ask(&rig, host, &target).await;
            *statuses.entry(status).or_default() += 1;
            let raw_path = target.split('?').next().unwrap();
            if status != 400 {
                reported.push(raw_path.to_owned());
            }
            let case = format!("{host} {target} over {}", asker.scheme());
            assert!([200, 400, 451].contains(&status), "{case}: {status}");
            if status != 200 {
                continue;
            }
            let (sent, fields) = got(&head);
            let path = sent.split('?').next().unwrap();
            assert_eq!(fields["x-path"], path, "{case}");
            assert_eq!(fields["x-uri"], sent, "{case}");
            assert_eq!(fields["x-raw-path"], raw_path, "{case}");
            assert_eq!(
                fields["x-url"],
                format!("{}://{host}{sent}", asker.scheme()),
                "{case}"
            );
            assert_eq!(
                fields["x-raw"],
                format!("{}://{host}{target}", asker.scheme()),
                "{case}"
            );
            let loosely = read_loosely(path);
            match host {
                "allow.example" => assert!(loosely.starts_with("/public"), "{case}: {sent}"),
                _ => assert!(!loosely.starts_with("/admin"), "{case}: {sent}"),
            }
        }
        println!("{}: {statuses:?}", asker.scheme());
        let enough = |status| {
            statuses
                .get(&status)
                .is_some_and(|count| *count > TARGETS / 10)
        };
        assert!(enough(200) && enough(400) && enough(451), "{statuses:?}");
        drop(asker);
        // Our HTTP/2 clients send a request of their own first.
        if is_http2 {
            paths.push("/settings".to_owned());
        }
        paths.extend(reported);
        let reported = http_events(&rig, paths.len()).await;
        let reported: Vec<&str> = reported
            .iter()
            .map(|event| {
                event["object"]["http"]["request"]["url"]["path"]
                    .as_str()
                    .unwrap()
            })
            .collect();
        assert_eq!(reported, paths);
    }
}

/// Reads a path like servers that decode slashes first and keep empty segments.
fn read_raw(path: &str) -> String {
    let mut decoded = path.to_ascii_uppercase();
    for (escape, slash) in [("%2F", "/"), ("%5C", "/"), ("\\", "/")] {
        decoded = decoded.replace(escape, slash);
    }
    let segments = decoded.split('/').map(|segment| {
        let end = segment.find("%3B").unwrap_or(segment.len());
        segment[..end].split(';').next().unwrap()
    });
    segments.collect::<Vec<_>>().join("/")
}

/// If empty segments are kept, rules see whether a path begins with one, in any encoding, and url-rewrite
/// creates no path that a client could not have requested.
#[tokio::test]
async fn kept_empty_segments_are_visible_to_policies() {
    const TARGETS: usize = 2_500;
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    // The rewrite removes the first segment and decodes slashes, which later rules do not see.
    let rewrites = format!(
        "on_http_request:\n\
         - expressions: [\"req.url.path.startsWith('/admin') || req.url.path.startsWith('//')\"]\n  \
           actions: [{{type: deny, config: {{status_code: 451}}}}]\n\
         - actions:\n  \
           - {{type: url-rewrite, config: {{from: \"^(https?://[^/]*)/public(.*)\", to: \"$1$2\"}}}}\n  \
           - {{type: url-rewrite, config: {{from: \"%2F\", to: \"/\"}}}}{ECHO}"
    );
    let keeps = |host, policy: &str| Endpoint {
        merge_slashes: false,
        ..named(Scheme::Http, host, 80, &origin, policy)
    };
    let strict = "on_http_request:\n\
         - expressions: [\"req.url.path.startsWith('/admin') || req.url.path.startsWith('//')\"]\n  \
           actions: [{type: deny, config: {status_code: 451}}]\n\
         - actions:"
        .to_owned()
        + ECHO;
    let endpoints = [
        keeps("raw.example", &strict),
        keeps("rewrite.example", &rewrites),
    ];
    super::internal::publish(&rig, endpoints).await;
    let mut asker = Asker::http1(&rig).await;
    let mut dice = Dice(0xD1B5_4A32_D192_ED03);
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for _ in 0..TARGETS {
        let target = dice.target();
        let host = ["raw.example", "rewrite.example"][dice.roll(2)];
        let (status, head) = asker.ask(&rig, host, &target).await;
        *statuses.entry(status).or_default() += 1;
        let case = format!("{host} {target}");
        // If the result of url-rewrite is not a path, the policy fails.
        let is_expected =
            [200, 400, 451].contains(&status) || host == "rewrite.example" && status == 500;
        assert!(is_expected, "{case}: {status}");
        if status != 200 {
            continue;
        }
        let (sent, fields) = got(&head);
        let path = sent.split('?').next().unwrap();
        let judged = &fields["x-path"];
        let read = read_raw(path);
        assert!(
            !judged.starts_with("//") && !judged.starts_with("/admin"),
            "{case}"
        );
        // A path of empty segments alone is no prefix of another path.
        let begins_empty = |read: &str| read.starts_with("//") && read.bytes().any(|b| b != b'/');
        assert!(!begins_empty(&read_raw(judged)), "{case}: {judged}");
        if host == "raw.example" {
            assert_eq!(judged, path, "{case}");
            assert_eq!(fields["x-uri"], sent, "{case}");
            assert!(!read.starts_with("/ADMIN"), "{case}: {sent}");
        } else {
            // A rewrite may change the path, but not into one with two readings.
            let normal = culvert_http::target::settle(&sent, false).unwrap();
            assert_eq!(normal.as_str(), sent, "{case}");
            let hides = begins_empty(&read) && !path.starts_with("//");
            assert!(!hides, "{case}: {sent}");
        }
    }
    assert!(
        statuses[&200] > TARGETS / 10 && statuses[&400] > TARGETS / 20,
        "{statuses:?}"
    );
}

#[tokio::test]
async fn no_spelling_of_a_path_evades_a_rule() {
    let (mut rig, root) = rig().await;
    let mut askers = [
        Asker::http1(&rig).await,
        Asker::http2(&mut rig, &root).await,
    ];
    for (host, target, expected) in [
        ("app.example", "/admin", Err(451)),
        ("app.example", "//admin", Err(451)),
        ("app.example", "/\\admin", Err(451)),
        ("app.example", "/%61dmin", Err(451)),
        ("app.example", "/x/../admin", Err(451)),
        ("app.example", "/x/%2e%2e/admin", Err(451)),
        ("app.example", "/x\\..\\admin", Err(451)),
        ("app.example", "/./admin", Err(451)),
        ("app.example", "/..//admin", Err(451)),
        ("app.example", "/%2e%2e%2fadmin", Err(400)),
        ("app.example", "/%2fadmin", Err(400)),
        ("app.example", "/x/..;/admin", Err(400)),
        ("app.example", "/;/admin", Err(400)),
        ("app.example", "/x%00", Err(400)),
        ("app.example", "/x%", Err(400)),
        ("app.example", "/x%u0041", Err(400)),
        ("app.example", "/admin/../public", Ok("/public")),
        ("app.example", "/admin/%2e%2e/public", Ok("/public")),
        (
            "app.example",
            "/admin\\..\\public?a=/../b",
            Ok("/public?a=/../b"),
        ),
        ("app.example", "/a%20b|%7e", Ok("/a%20b%7C~")),
        ("app.example", "/group%2fproject", Ok("/group%2Fproject")),
        ("app.example", "/?", Ok("/?")),
        ("allow.example", "/public/../admin", Err(451)),
        ("allow.example", "/public/%2e%2e/admin", Err(451)),
        ("allow.example", "/public\\..\\admin", Err(451)),
        ("allow.example", "/public/..%2fadmin", Err(400)),
        ("allow.example", "/public/..%5cadmin", Err(400)),
        ("allow.example", "//public//a", Ok("/public/a")),
        ("allow.example", "/x/../%70ublic", Ok("/public")),
        ("hop.example", "/x/..//admin", Err(451)),
        ("hop.example", "/x/..//b", Ok("/b")),
        // Rules see empty segments if they are sent.
        ("raw.example", "//admin", Ok("//admin")),
        ("raw.example", "/a//b/../c", Ok("/a//c")),
        (
            "raw.example",
            "/api/queues/%2F/name",
            Ok("/api/queues/%2F/name"),
        ),
        ("raw.example", "/x/../admin", Err(451)),
        // A path that servers which decode first read as `//…` is read so by rules, too.
        ("raw.example", "/%2Fadmin", Err(400)),
        ("raw.example", "/%2fadmin", Err(400)),
        ("raw.example", "/%5Cadmin", Err(400)),
        ("raw.example", "/;x/admin", Err(400)),
        ("raw.example", "/%3bx/admin", Err(400)),
        ("raw.example", "/%2F%2Fadmin", Err(400)),
        ("raw.example", "/x/../%2Fadmin", Err(400)),
        ("raw.example", "/;jsessionid=1", Ok("/;jsessionid=1")),
        ("raw.example", "/a%2Fb//c", Ok("/a%2Fb//c")),
        ("raw.example", "/x/..%2fadmin", Err(400)),
    ] {
        for asker in &mut askers {
            let (status, head) = asker.ask(&rig, host, target).await;
            let case = format!("{host} {target} over {}", asker.scheme());
            match expected {
                Err(refusal) => assert_eq!(status, refusal, "{case}"),
                Ok(sent) => {
                    assert_eq!(status, 200, "{case}");
                    assert_eq!(got(&head).0, sent, "{case}");
                }
            }
        }
    }
}

/// Status and body of a response over HTTP/2.
pub(super) async fn ask2(
    sender: &mut SendRequest<Frames>,
    request: http::request::Builder,
) -> (u16, String) {
    let request = request.body(nothing()).unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// RFC 9112 3.2.2: for routing, for policies and for the upstream.
#[tokio::test]
async fn the_host_of_an_absolute_target_replaces_the_field() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let policy = "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-host: '${req.host}'}}}]}]";
    let snapshot = Snapshot::builder()
        .endpoint(named(Scheme::Http, "app.example", 80, &origin, ""))
        .endpoint(named(Scheme::Http, "ruled.example", 80, &origin, policy));
    rig.edge.publish(snapshot.build()).await;
    for host in ["app.example", "ruled.example"] {
        for field in ["app.example", "ruled.example", "other.example"] {
            let request = format!("GET http://{host}/a HTTP/1.1\r\nHost: {field}\r\n\r\n");
            let answer = rig.ask(&request).await;
            assert_eq!(answer.status, 200, "{request}");
            let head = answer.text();
            assert!(head.contains(&format!("\nhost: {host}\r\n")), "{head}");
            let forwarded = format!("x-forwarded-host: {host}\r\n");
            assert!(head.contains(&forwarded), "{head}");
            let is_ruled = head.contains("x-host: ruled.example\r\n");
            assert_eq!(is_ruled, host == "ruled.example", "{head}");
        }
    }
}

#[tokio::test]
async fn every_form_of_request_target_is_handled() {
    let (mut rig, root) = rig().await;
    for (line, expected) in [
        (
            "GET http://app.example",
            Ok(("GET / ", "http://app.example/")),
        ),
        (
            "GET http://app.example?q=1",
            Ok(("GET /?q=1 ", "http://app.example/?q=1")),
        ),
        (
            "GET http://app.example/a/../b",
            Ok(("GET /b ", "http://app.example/b")),
        ),
        ("OPTIONS *", Ok(("OPTIONS * ", "http://app.example"))),
        (
            "OPTIONS http://app.example",
            Ok(("OPTIONS * ", "http://app.example")),
        ),
        (
            "OPTIONS http://app.example/",
            Ok(("OPTIONS / ", "http://app.example/")),
        ),
        ("GET https://app.example/", Err(400)),
        ("GET ?q", Err(400)),
        ("PRI /", Err(405)),
        ("pri /", Ok(("pri / ", "http://app.example/"))),
    ] {
        let request = format!("{line} HTTP/1.1\r\nHost: app.example\r\n\r\n");
        let answer = rig.ask(&request).await;
        match expected {
            Err(status) => assert_eq!(answer.status, status, "{line}"),
            Ok((start, url)) => {
                let head = answer.text();
                assert!(head.starts_with(start), "{line}: {head}");
                assert_eq!(got(head).1["x-url"], url, "{line}");
            }
        }
    }
    let mut sender = connect(&mut rig, &root).await;
    let path =
        |path: &'static str| PathAndQuery::from_maybe_shared(Bytes::from_static(path.as_bytes()));
    for (method, scheme, target, expected) in [
        ("GET", "https", "/a/../b?q", Ok("GET /b?q ")),
        ("OPTIONS", "https", "*", Ok("OPTIONS * ")),
        ("GET", "https", "*", Err(400)),
        ("GET", "https", "?q", Err(400)),
        ("GET", "https", "/é?é", Ok("GET /%C3%A9?%C3%A9 ")),
        ("GET", "http", "/", Err(400)),
        ("GET", "ftp", "/", Err(400)),
        ("PRI", "https", "/", Err(405)),
    ] {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(scheme.parse().unwrap());
        parts.authority = Some("app.example".parse().unwrap());
        parts.path_and_query = Some(path(target).unwrap());
        let request = Request::builder()
            .method(method)
            .uri(Uri::from_parts(parts).unwrap());
        let (status, head) = ask2(&mut sender, request).await;
        match expected {
            Err(refusal) => assert_eq!(status, refusal, "{method} {scheme} {target}"),
            Ok(start) => assert!(head.starts_with(start), "{method} {target}: {head}"),
        }
    }
    // Over TLS, an absolute target must have the https scheme.
    let address = rig.edge.https_addr().unwrap();
    for (target, status) in [("https://app.example/", 200), ("http://app.example/", 400)] {
        let stream = tls(address, &root, "app.example", "http/1.1")
            .await
            .unwrap();
        let mut client = Client::new(stream);
        let request = format!("GET {target} HTTP/1.1\r\nHost: app.example\r\n\r\n");
        client.send(request).await;
        assert_eq!(client.answer("GET").await.status, status, "{target}");
    }
}

#[tokio::test]
async fn targets_written_by_policies_are_normalised() {
    let mut rig = Rig::start().await;
    let origin = echo(&mut rig).await;
    let policy = r#"
on_http_request:
- expressions: ["req.url.path.startsWith('/away')"]
  actions:
  - {type: redirect, config: {from: "^(https?://[^/]*)/away(.*)", to: "$1/here/..$2"}}
- expressions: ["req.url.path == '/elsewhere'"]
  actions:
  - {type: redirect, config: {to: "https://other.example/x/../y//z?q=/../a#/../f"}}
- expressions: ["req.url.path == '/nowhere'"]
  actions:
  - {type: redirect, config: {to: "/x/..%2fy"}}
- expressions: ["req.url.path == '/doubt'"]
  actions:
  - {type: url-rewrite, config: {to: "/x/..%2fy"}}
- actions:
  - {type: url-rewrite, config: {from: "/v1(/.*)", to: "/api/v0/..$1"}}
  - {type: add-headers, config: {headers: {x-rewritten: "${actions.ngrok.url_rewrite.url}"}}}
"#;
    let endpoint = named(Scheme::Http, "app.example", 80, &origin, policy);
    rig.edge
        .publish(Snapshot::builder().endpoint(endpoint).build())
        .await;
    let ask = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: app.example\r\n\r\n");
    for (target, location) in [
        ("/away/x/../b", "http://app.example/b"),
        ("/elsewhere", "https://other.example/y//z?q=/../a#/../f"),
    ] {
        let answer = rig.ask(&ask(target)).await;
        assert_eq!(answer.header("location"), Some(location), "{target}");
    }
    for target in ["/nowhere", "/doubt"] {
        assert_eq!(rig.ask(&ask(target)).await.status, 500, "{target}");
    }
    let answer = rig.ask(&ask("/v1//a/./b?c")).await;
    let (sent, fields) = got(answer.text());
    assert_eq!(sent, "/api/a/b?c");
    assert_eq!(fields["x-rewritten"], "http://app.example/api/a/b?c");
}

#[tokio::test]
async fn plain_http_of_an_https_endpoint_is_redirected() {
    let mut rig = Rig::with(Settings {
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..settings()
    })
    .await;
    let origin = echo(&mut rig).await;
    let endpoint = |host: &str, port| named(Scheme::Https, host, port, &origin, "");
    let challenge = Challenge {
        kind: ChallengeKind::Http01,
        host: HostName::parse("app.example").unwrap(),
        token: "token".into(),
        answer: "token.thumb".into(),
    };
    let snapshot = |builder: SnapshotBuilder| {
        builder
            .endpoint(endpoint("app.example", 443))
            .endpoint(endpoint("*.wild.example", 8443))
            .endpoint(named(Scheme::Https, "both.example", 443, &origin, ""))
            .endpoint(named(Scheme::Http, "both.example", 80, &origin, ""))
            .challenge(challenge.clone())
    };
    rig.edge
        .publish(snapshot(Snapshot::builder()).build())
        .await;
    for (method, host, target, status, location) in [
        (
            "GET",
            "app.example",
            "/a?b=c",
            301,
            "https://app.example/a?b=c",
        ),
        ("GET", "App.Example.:8080", "/", 301, "https://app.example/"),
        ("HEAD", "app.example", "/", 301, "https://app.example/"),
        ("POST", "app.example", "/a", 308, "https://app.example/a"),
        ("OPTIONS", "app.example", "*", 308, "https://app.example/"),
        (
            "GET",
            "x.wild.example",
            "//evil/../b",
            301,
            "https://x.wild.example:8443/b",
        ),
        ("GET", "both.example", "/", 200, ""),
        ("GET", "none.example", "/", 404, ""),
        (
            "GET",
            "app.example",
            "/.well-known/acme-challenge/token",
            200,
            "",
        ),
        (
            "GET",
            "app.example",
            "/.well-known/acme-challenge/other",
            301,
            "https://app.example/.well-known/acme-challenge/other",
        ),
    ] {
        let mut client = rig.connect().await;
        client
            .send(format!(
                "{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
            ))
            .await;
        let answer = client.answer(method).await;
        assert_eq!(answer.status, status, "{method} {host} {target}");
        assert_eq!(
            answer.header("location").unwrap_or_default(),
            location,
            "{method} {host} {target}"
        );
    }
    // A proxy in front terminates TLS: redirecting its client to https would loop.
    let proxied = "GET / HTTP/1.1\r\nHost: app.example\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert_eq!(rig.ask(proxied).await.status, 404);
    // The event belongs to the endpoint's account.
    let plain = "GET /reported HTTP/1.1\r\nHost: app.example\r\n\r\n";
    assert_eq!(rig.ask(plain).await.status, 301);
    // Of the ten requests before, the one of the CA and those without an endpoint have no event.
    let reported = http_events(&rig, 9).await;
    let reported = &reported.last().unwrap()["object"]["http"];
    assert_eq!(
        reported["request"]["url"]["raw"],
        "http://app.example/reported"
    );
    assert_eq!(reported["response"]["status_code"], 301);
    // Clients that are denied are not redirected.
    let nobody = Restriction {
        id: "ipx_1".into(),
        account: "ac_1".into(),
        enforced: true,
        admitted: Arc::new(IpSet::of([(
            Verdict::Allow,
            Prefix::parse("192.0.2.0/24").unwrap(),
        )])),
    };
    rig.edge
        .publish(snapshot(Snapshot::builder().restriction(nobody)).build())
        .await;
    assert_eq!(rig.ask(plain).await.status, 403);

    let rig = Rig::with(Settings {
        redirect_http: false,
        ..settings()
    })
    .await;
    rig.edge
        .publish(snapshot(Snapshot::builder()).build())
        .await;
    assert_eq!(rig.ask(plain).await.status, 404);
}
