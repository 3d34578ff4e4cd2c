//! Traffic that the edge refuses: one event at the endpoint that it names, or a count without one, and never both
//! (contract: audit 3).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use culvert_events::{Reason, RefusedTraffic};
use culvert_policy::Scheme;
use culvert_statistics::{Field, Frame, Point};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::floods::{END_HEADERS, END_STREAM, HEADERS, SETTINGS, frame, stream};
use super::harness::*;
use super::malformed::{Must, corpus};
use crate::{Limits, Settings, Snapshot};

/// Settings under which every refusal has an event.
fn whole() -> Settings {
    Settings {
        limits: Limits {
            refused_whole: u64::MAX,
            refused_events: u64::MAX,
            head: Duration::from_millis(300),
            ..settings().limits
        },
        ..settings()
    }
}

/// An edge with `http` and `https` endpoints at `a.example` (account 1, `ep_a`), an `https` one at `b.example` (account 2),
/// and a certificate for `empty.example`, which has no endpoint.
struct Refusing {
    rig: Rig,
    roots: BTreeMap<&'static str, CertificateDer<'static>>,
    collected: Vec<RefusedTraffic>,
    points: Mutex<BTreeMap<String, Point>>,
}

impl Refusing {
    async fn start(settings: Settings) -> Self {
        let mut rig = Rig::with(settings).await;
        let origin = hello(&mut rig.tasks).await;
        let url = format!("http://{origin}");
        let mut builder = Snapshot::builder();
        let of = |scheme, host, port, account: &str, id: &str| {
            let mut endpoint = endpoint(scheme, host, port, &url, "");
            endpoint.account = account.into();
            endpoint.id = id.into();
            endpoint
        };
        builder = builder
            .endpoint(of(Scheme::Http, "a.example", 80, "ac_1", "ep_a"))
            .endpoint(of(Scheme::Https, "a.example", 443, "ac_1", "ep_as"))
            .endpoint(of(Scheme::Https, "b.example", 443, "ac_2", "ep_b"))
            .endpoint(of(Scheme::Https, "bare.example", 443, "ac_2", "ep_bare"));
        let mut roots = BTreeMap::new();
        for name in ["a.example", "b.example", "empty.example"] {
            let (names, key, root) = certificate(&[name]);
            builder = builder.certificate(names, key);
            roots.insert(name, root);
        }
        rig.edge.publish(builder.build()).await;
        Self {
            rig,
            roots,
            collected: Vec::new(),
            points: Mutex::default(),
        }
    }

    fn take(&mut self) {
        self.collected.extend(self.rig.edge.take_refused());
    }

    /// How many refusals there are: those with an event, and those without an endpoint.
    fn outcomes(&mut self) -> (usize, u64) {
        self.take();
        let events = self.rig.recorder.now();
        let refused = events
            .iter()
            .filter(|event| event["culvert"]["reason"] != "");
        let collected = self.collected.iter().map(|one| one.count).sum();
        (refused.count(), collected)
    }

    /// Waits until there are this many of each, and checks that the edge counts as many.
    async fn expect(&mut self, events: usize, collected: u64, what: &str) {
        let waiting = async {
            while self.outcomes() != (events, collected) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let limit = Duration::from_secs(20);
        if tokio::time::timeout(limit, waiting).await.is_err() {
            let outcomes = self.outcomes();
            panic!("{what}: {outcomes:?} instead of {events} and {collected}");
        }
    }

    /// The last event of a refusal.
    fn last(&self) -> Value {
        let events = self.rig.recorder.now();
        let mut refused = events
            .into_iter()
            .filter(|event| event["culvert"]["reason"] != "");
        refused.next_back().unwrap()
    }

    async fn plain(&self) -> Client<TcpStream> {
        self.rig.connect().await
    }

    async fn tls(
        &self,
        name: &str,
        alpn: &str,
    ) -> Client<tokio_rustls::client::TlsStream<TcpStream>> {
        let address = self.rig.edge.https_addr().unwrap();
        let root = &self.roots[name];
        Client::new(tls(address, root, name, alpn).await.unwrap())
    }

    /// An HTTP/2 connection after its preface.
    async fn http2(&self, name: &str) -> Client<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut client = self.tls(name, "h2").await;
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        client.send(frame(SETTINGS, 0, 0, &[])).await;
        client
    }

    /// What was counted of a subject so far, such as `e/ac_1/ep_a`.
    fn counted(&self, subject: &str) -> Point {
        let mut frame = Frame::default();
        self.rig.edge.traffic().read(&mut frame);
        let mut points = self.points.lock().unwrap();
        for (key, point) in frame.points() {
            let known = points.entry(key.as_str().to_owned()).or_default();
            known.merge_step(point);
        }
        points.get(subject).cloned().unwrap_or_default()
    }
}

/// A field section of literals that are not kept.
fn literals(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // A prefix of seven bits (RFC 7541 5.1).
            if text.len() < 127 {
                block.push(u8::try_from(text.len()).unwrap());
            } else {
                block.push(127);
                let mut left = text.len() - 127;
                while left >= 128 {
                    block.push(u8::try_from(left % 128 + 128).unwrap());
                    left /= 128;
                }
                block.push(u8::try_from(left).unwrap());
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A request of HTTP/2 in frames, whatever its length.
pub(super) fn head2(turn: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let block = literals(fields);
    let pieces: Vec<&[u8]> = block.chunks(16_000).collect();
    let mut bytes = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let end = if at + 1 == pieces.len() {
            END_HEADERS
        } else {
            0
        };
        bytes.extend(match at {
            0 => frame(HEADERS, END_STREAM | end, stream(turn), piece),
            _ => frame(super::floods::CONTINUATION, end, stream(turn), piece),
        });
    }
    bytes
}

/// Heads of HTTP/1 that are refused: the status, the reason, and the head for a host.
type Head = (u16, Reason, Box<dyn Fn(&str) -> String>);

fn heads() -> Vec<Head> {
    let long = "x".repeat(70_000);
    let path = "p".repeat(500_000);
    let many = "y: 1\r\n".repeat(200);
    vec![
        (
            400,
            Reason::Malformed,
            Box::new(|host| format!("GET /p?q=1 HTTP/1.1\r\nHost: {host}\r\nbad line\r\n\r\n")),
        ),
        (
            400,
            Reason::Malformed,
            Box::new(|host| {
                format!(
                    "GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
                )
            }),
        ),
        (
            400,
            Reason::Malformed,
            Box::new(|host| format!("GET / HTTP/1.1\r\nBad Name: 1\r\nHost: {host}\r\n\r\n")),
        ),
        (
            400,
            Reason::Malformed,
            Box::new(|host| format!("nothing\r\nHost: {host}\r\n\r\n")),
        ),
        (
            400,
            Reason::Malformed,
            Box::new(|host| format!("GET /%zz HTTP/1.1\r\nHost: {host}\r\n\r\n")),
        ),
        (
            405,
            Reason::Method,
            Box::new(|host| format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}\r\n\r\n")),
        ),
        (
            431,
            Reason::HeadTooLarge,
            Box::new(move |host| format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: {long}\r\n\r\n")),
        ),
        (
            431,
            Reason::HeadTooLarge,
            Box::new(move |host| format!("GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n")),
        ),
        (
            408,
            Reason::TooSlow,
            Box::new(|host| format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: ")),
        ),
        // The host comes behind the limit, so only TLS names an endpoint.
        (
            414,
            Reason::TargetTooLong,
            Box::new(move |host| format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n")),
        ),
    ]
}

#[tokio::test]
async fn a_refused_head_makes_one_event_of_the_endpoint_that_it_names_or_is_counted_without_one() {
    let mut edge = Refusing::start(whole()).await;
    let (mut events, mut collected) = (0, 0);
    for (status, reason, head) in heads() {
        let is_named = reason != Reason::TargetTooLong;
        for (host, is_endpoint) in [("a.example", is_named), ("nobody.example", false)] {
            let about = format!("{reason:?} {host}");
            let mut client = edge.plain().await;
            client.send(head(host)).await;
            assert_eq!(client.answer("GET").await.status, status, "{about}");
            drop(client);
            match is_endpoint {
                true => events += 1,
                false => collected += 1,
            }
            edge.expect(events, collected, &about).await;
            if is_endpoint {
                let event = edge.last();
                assert_eq!(event["event_type"], HTTP);
                assert_eq!(event["account_id"], "ac_1");
                let http = &event["object"]["http"];
                assert_eq!(http["response"]["status_code"], status, "{about}");
                assert!(http["response"]["body_length"].as_u64().unwrap() > 0);
                assert_eq!(event["culvert"]["reason"], reason.name());
                assert_eq!(event["culvert"]["sampled"], 1);
                assert_eq!(event["object"]["conn"]["server_name"], host);
                assert_eq!(http["request"]["url"]["host"], host);
                assert_eq!(http["request"]["body_length"], 0);
            }
        }
        // With TLS the name of the connection names it.
        let mut client = edge.tls("a.example", "http/1.1").await;
        client.send(head("nobody.example")).await;
        assert_eq!(client.answer("GET").await.status, status);
        drop(client);
        events += 1;
        let about = format!("{reason:?} over TLS");
        edge.expect(events, collected, &about).await;
        let event = edge.last();
        assert_eq!(event["culvert"]["reason"], reason.name(), "{about}");
        assert_eq!(event["object"]["conn"]["server_name"], "a.example");
        assert_eq!(event["object"]["tls"]["version"], "1.3");
    }
    // Of the endpoints' own connections, only those with TLS are theirs.
    let tcp = of(&edge.rig.recorder.now(), TCP).len();
    assert_eq!(tcp, heads().len());
    let point = edge.counted("e/ac_1/ep_a");
    assert_eq!(point.refused(), heads().len() as u64 - 1);
    assert_eq!(point.requests(), point.refused());
    assert_eq!(point.get(Field::RefusedMethod), 1);
    let point = edge.counted("e/ac_1/ep_as");
    assert_eq!(point.refused(), heads().len() as u64);
    let total: u64 = edge
        .rig
        .edge
        .meters()
        .refused
        .iter()
        .map(|meter| meter.get())
        .sum();
    assert_eq!(total, events as u64 + collected);
}

#[tokio::test]
async fn what_is_known_of_a_malformed_request_is_in_its_event_and_no_credential() {
    let mut edge = Refusing::start(whole()).await;
    for (head, headers, path) in [
        (
            "GET /p?token=t&q=1 HTTP/1.1\r\nHost: a.example\r\nUser-Agent: probe\r\nAuthorization: Basic c2VjcmV0\r\nCookie: s=c2VjcmV0\r\n broken\r\n\r\n",
            json!({"Host": ["a.example"], "User-Agent": ["probe"], "Authorization": ["[redacted]"], "Cookie": ["[redacted]"]}),
            "/p",
        ),
        (
            "GET /p HTTP/1.1\r\nHost: a.example\r\nAuthorization : Basic c2VjcmV0\r\nX: c2VjcmV0\r\n\r\n",
            json!({"Host": ["a.example"]}),
            "/p",
        ),
        (
            "GET /c2VjcmV0\u{1} HTTP/1.1\r\nHost: a.example\r\n\r\n",
            json!({"Host": ["a.example"]}),
            "",
        ),
    ] {
        let before = edge.outcomes().0;
        let mut client = edge.plain().await;
        client.send(head).await;
        assert_eq!(client.answer("GET").await.status, 400);
        edge.expect(before + 1, 0, head).await;
        let event = edge.last();
        let request = &event["object"]["http"]["request"];
        assert_eq!(request["headers"], headers);
        assert_eq!(request["url"]["path"], path);
        assert_eq!(request["method"], "get");
        assert!(!event.to_string().contains("c2VjcmV0"), "{event}");
    }
}

#[tokio::test]
async fn every_refused_request_of_the_corpus_has_one_outcome_and_every_other_none() {
    let mut edge = Refusing::start(whole()).await;
    let (mut refused, mut passed, mut more) = (0, 0, 0);
    let total = |edge: &Refusing| -> u64 {
        let meters = edge.rig.edge.meters();
        meters.refused.iter().map(|meter| meter.get()).sum()
    };
    for (must, bytes) in corpus() {
        // The corpus is for another host.
        let bytes = replaced(&bytes, b"app.example", b"a.example");
        let before = total(&edge);
        let mut client = edge.plain().await;
        client.send(&bytes).await;
        let answer = client.try_answer("GET").await;
        let counted = total(&edge) - before;
        match (must, answer) {
            (Must::Refuse(_), Some(answer)) if answer.status != 200 => {
                let text = String::from_utf8_lossy(&bytes);
                assert_eq!(counted, 1, "{}", &text[..text.len().min(300)]);
                refused += 1;
            }
            // A good one may have a refused one behind it.
            _ => {
                passed += 1;
                more += counted;
            }
        }
    }
    assert!(refused > 100 && passed > 10, "{refused} {passed}");
    let sum = async {
        loop {
            let (events, collected) = edge.outcomes();
            if events as u64 + collected >= refused + more {
                return events as u64 + collected;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let sum = soon("all outcomes", sum).await;
    assert!(sum >= refused + more && sum == total(&edge), "{sum}");
    let events = edge.rig.recorder.now();
    for event in of(&events, HTTP) {
        let status = event["object"]["http"]["response"]["status_code"].as_u64();
        let is_refused = event["culvert"]["reason"] != "";
        assert_eq!(
            is_refused,
            status.is_none_or(|status| status >= 400),
            "{event}"
        );
    }
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = bytes;
    while let Some(at) = find(rest, from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// Requests of HTTP/2 that are refused: the status if there is a response, the reason, and the fields.
type Head2 = (Option<u16>, Reason, Vec<(&'static str, String)>);

fn heads2() -> Vec<Head2> {
    let usual = |method: &str, host: &str, path: &str| {
        vec![
            (":method", method.to_owned()),
            (":scheme", "https".to_owned()),
            (":authority", host.to_owned()),
            (":path", path.to_owned()),
        ]
    };
    let with = |name: &'static str, value: &str| {
        let mut fields = usual("GET", "a.example", "/p");
        fields.push((name, value.to_owned()));
        fields
    };
    let mut many = usual("GET", "a.example", "/");
    many.extend((0..140).map(|_| ("y", "1".to_owned())));
    vec![
        (None, Reason::Malformed, with("Upper", "1")),
        (None, Reason::Malformed, with("connection", "close")),
        (None, Reason::Malformed, with("content-length", "7")),
        (None, Reason::Malformed, usual("GET", "a.example", "")),
        (
            Some(400),
            Reason::Malformed,
            usual("GET", "a.example", "/%zz"),
        ),
        (Some(431), Reason::HeadTooLarge, many),
        (
            Some(414),
            Reason::TargetTooLong,
            usual("GET", "a.example", &format!("/{}", "p".repeat(17_000))),
        ),
        (
            Some(421),
            Reason::Misdirected,
            usual("GET", "b.example", "/"),
        ),
        (
            Some(404),
            Reason::UnknownHost,
            usual("GET", "nobody.example", "/"),
        ),
        (Some(400), Reason::BadHost, with("host", "other.example")),
    ]
}

#[tokio::test]
async fn each_refused_stream_makes_one_event_and_the_connection_goes_on() {
    let mut edge = Refusing::start(whole()).await;
    let mut client = edge.http2("a.example").await;
    let usual = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", "/good"),
    ];
    let mut turn = 0;
    for (nth, (status, reason, fields)) in heads2().into_iter().enumerate() {
        let fields: Vec<(&str, &str)> = fields
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        client.send(head2(turn, &fields)).await;
        edge.expect(nth + 1, 0, &format!("{reason:?}")).await;
        let event = edge.last();
        assert_eq!(event["account_id"], "ac_1", "{reason:?}");
        assert_eq!(event["culvert"]["reason"], reason.name(), "{event}");
        assert_eq!(
            event["object"]["http"]["response"]["status_code"],
            json!(status),
            "{event}"
        );
        assert_eq!(event["object"]["conn"]["server_name"], "a.example");
        // A good request beside it has its own event, without a reason.
        client.send(head2(turn + 1, &usual)).await;
        turn += 2;
    }
    let good = async {
        loop {
            let events = edge.rig.recorder.now();
            let good = events
                .iter()
                .filter(|event| event["object"]["http"]["response"]["status_code"] == 200);
            if good.count() == heads2().len() {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let events = soon("the good requests", good).await;
    assert_eq!(of(&events, HTTP).len(), 2 * heads2().len());
    drop(client);
    edge.rig.recorder.events(2 * heads2().len() + 1).await;
    let events = edge.rig.recorder.now();
    let tcp = of(&events, TCP);
    assert_eq!(tcp.len(), 1);
    assert_eq!(tcp[0]["culvert"]["reason"], "");
    // The other account has no event, whatever the host said.
    assert!(events.iter().all(|event| event["account_id"] == "ac_1"));
    assert_eq!(
        edge.counted("e/ac_1/ep_as").refused(),
        heads2().len() as u64
    );
}

/// A browser sends requests for all names of a certificate over one connection, and the other name may be another
/// account's: its path, query, cookies and credentials are not for the account of the connection.
#[tokio::test]
async fn a_request_for_another_host_leaves_nothing_of_it_at_the_endpoint_of_the_connection() {
    const SECRETS: [&str; 5] = ["of-path", "of-query", "of-cookie", "of-field", "of-agent"];
    let mut edge = Refusing::start(whole()).await;
    let mut turns = 0;
    for (host, path, status, reason) in [
        ("b.example", "/of-path?of-query", Some(421), "misdirected"),
        (
            "nobody.example",
            "/of-path?of-query",
            Some(404),
            "unknown_host",
        ),
        // The head is refused before it is routed.
        (
            "b.example",
            "/of-path?of-query&%zz=%zz",
            Some(421),
            "misdirected",
        ),
        ("b.example", "/of-path%zz?of-query", Some(400), "malformed"),
    ] {
        let fields = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", host),
            (":path", path),
            ("cookie", "s=of-cookie"),
            ("x-key", "of-field"),
            ("user-agent", "of-agent"),
        ];
        let mut client = edge.http2("a.example").await;
        client.send(head2(0, &fields)).await;
        turns += 1;
        edge.expect(turns, 0, &format!("HTTP/2, {host}{path}"))
            .await;
        let seen = |event: &Value| {
            let (object, text) = (&event["object"]["http"], event.to_string());
            assert_eq!(event["account_id"], "ac_1");
            assert_eq!(event["culvert"]["reason"], reason, "{event}");
            assert_eq!(object["response"]["status_code"], json!(status));
            for secret in SECRETS {
                assert!(!text.contains(secret), "{secret}: {event}");
            }
            // What names the mistake stays.
            assert_eq!(object["request"]["method"], "get");
            assert_eq!(object["request"]["url"]["host"], host);
        };
        seen(&edge.last());
        let mut client = edge.tls("a.example", "http/1.1").await;
        client
            .send(format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nCookie: s=of-cookie\r\nX-Key: of-field\r\n\
                 User-Agent: of-agent\r\n\r\n"
            ))
            .await;
        assert_eq!(Some(client.answer("GET").await.status), status);
        turns += 1;
        edge.expect(turns, 0, &format!("HTTP/1, {host}{path}"))
            .await;
        seen(&edge.last());
    }
    // A refused request for the host of the connection keeps its target and fields.
    let mut client = edge.tls("a.example", "http/1.1").await;
    client
        .send("GET /known HTTP/1.1\r\nHost: a.example\r\nUser-Agent: known-agent\r\nX\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 400);
    edge.expect(turns + 1, 0, "the host of the connection")
        .await;
    let own = edge.last()["object"]["http"].to_string();
    assert!(
        own.contains("/known") && own.contains("known-agent"),
        "{own}"
    );
}

/// The host may have another owner since, who gets no event, and the former one neither.
#[tokio::test]
async fn an_outdated_configuration_names_no_owner_of_what_it_refuses() {
    let mut edge = Refusing::start(Settings {
        limits: Limits {
            copy_age_max: Some(Duration::from_millis(1)),
            ..whole().limits
        },
        ..whole()
    })
    .await;
    edge.rig.edge.confirm(std::time::Instant::now());
    eventually("an outdated configuration", || {
        edge.rig.edge.outdated_for().is_some()
    })
    .await;
    let mut client = edge.plain().await;
    client
        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 503);
    drop(client);
    edge.expect(0, 1, "a request").await;
    assert_eq!(edge.collected[0].reason, Reason::Outdated);
    let mut client = edge.tls("a.example", "http/1.1").await;
    client
        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 503);
    drop(client);
    edge.expect(0, 2, "a request over TLS").await;
    eventually("the end of the connections", || {
        edge.rig.edge.shared().census.open().is_empty()
    })
    .await;
    assert_eq!(edge.rig.recorder.count(), 0);
}

#[tokio::test]
async fn a_refusal_behind_good_requests_is_one_event_more() {
    let mut edge = Refusing::start(whole()).await;
    let good = "GET /good HTTP/1.1\r\nHost: a.example\r\n\r\n";
    for bad in [
        "bad line\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: nobody.example\r\nX\r\n\r\n",
    ] {
        let before = edge.rig.recorder.count();
        let (events, collected) = edge.outcomes();
        let mut client = edge.plain().await;
        for _ in 0..3 {
            client.send(good).await;
            assert_eq!(client.answer("GET").await.status, 200);
        }
        client.send(bad).await;
        assert_eq!(client.answer("GET").await.status, 400);
        drop(client);
        // Three requests and the connection; the refused request names no endpoint.
        edge.rig.recorder.events(before + 4).await;
        edge.expect(events, collected + 1, bad).await;
        let events = edge.rig.recorder.now().split_off(before);
        assert_eq!(of(&events, HTTP).len(), 3);
        assert_eq!(of(&events, TCP).len(), 1);
        assert!(events.iter().all(|event| event["culvert"]["reason"] == ""));
    }
    // One that names it is an event of the endpoint, after those of the good requests.
    let before = edge.rig.recorder.count();
    let mut client = edge.plain().await;
    client
        .send([good, "GET / HTTP/1.1\r\nHost: a.example\r\nX\r\n\r\n"].concat())
        .await;
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(client.answer("GET").await.status, 400);
    drop(client);
    let events = edge.rig.recorder.events(before + 3).await.split_off(before);
    let statuses: Vec<&Value> = of(&events, HTTP)
        .iter()
        .map(|event| &event["object"]["http"]["response"]["status_code"])
        .collect();
    assert_eq!(statuses, [200, 400]);
    assert_eq!(of(&events, TCP).len(), 1);
}

#[tokio::test]
async fn failed_handshakes_are_events_of_the_connection_or_counted_without_an_endpoint() {
    let mut edge = Refusing::start(Settings {
        limits: Limits {
            handshake: Duration::from_millis(300),
            ..whole().limits
        },
        ..whole()
    })
    .await;
    let address = edge.rig.edge.https_addr().unwrap();
    // A client that sends nothing asks for nothing.
    drop(TcpStream::connect(address).await.unwrap());
    let mut client = Client::new(TcpStream::connect(address).await.unwrap());
    client
        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    client.rest().await;
    edge.expect(0, 1, "not TLS").await;
    assert_eq!(edge.collected[0].reason, Reason::NotTls);
    let mut client = Client::new(TcpStream::connect(address).await.unwrap());
    client.send([0x16, 3, 1, 0]).await;
    client.rest().await;
    edge.expect(0, 2, "half a message").await;
    assert_eq!(edge.collected[1].reason, Reason::HandshakeTimeout);
    // Nothing has this name.
    let wrong = edge.roots["b.example"].clone();
    assert!(tls(address, &wrong, "nobody.example", "h2").await.is_err());
    edge.expect(0, 3, "unknown name").await;
    let unknown = &edge.collected[2];
    assert_eq!(unknown.reason, Reason::UnknownName);
    let sample = unknown.sample.as_ref().unwrap();
    assert_eq!(
        (&*sample.host, sample.server_port),
        ("nobody.example", address.port())
    );
    assert_eq!(unknown.network_text().unwrap(), "127.0.0.0/24");
    // The client rejects the certificate: of an endpoint, and of none.
    for (name, events, collected) in [
        ("a.example", 1, 3),
        ("empty.example", 1, 4),
        ("bare.example", 2, 4),
    ] {
        assert!(tls(address, &wrong, name, "h2").await.is_err(), "{name}");
        edge.expect(events, collected, name).await;
    }
    let events = edge.rig.recorder.now();
    assert_eq!(of(&events, HTTP).len(), 0);
    let tcp = of(&events, TCP);
    let seen: Vec<(&str, &str)> = tcp
        .iter()
        .map(|event| {
            (
                event["account_id"].as_str().unwrap(),
                event["culvert"]["reason"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [("ac_1", "handshake_failed"), ("ac_2", "no_certificate")]
    );
    assert_eq!(tcp[0]["object"]["conn"]["server_name"], "a.example");
    assert_eq!(edge.collected[3].reason, Reason::HandshakeFailed);
    assert_eq!(
        edge.counted("e/ac_2/ep_bare")
            .get(Field::RefusedNoCertificate),
        1
    );
    // Statistics of accounts have them too.
    let account = edge.counted("a/ac_2/");
    assert_eq!(account.refused(), 1);
}

#[tokio::test]
async fn a_flood_is_sampled_counted_whole_and_hides_no_honest_event() {
    const FLOOD: u32 = 400;
    let settings = Settings {
        limits: Limits {
            refused_whole: 2,
            http2_requests: u64::MAX,
            ..settings().limits
        },
        ..settings()
    };
    let edge = Refusing::start(settings).await;
    let mut client = edge.http2("a.example").await;
    for turn in 0..FLOOD {
        let host = if turn % 4 == 0 {
            "a.example"
        } else {
            "nobody.example"
        };
        client
            .send(head2(
                turn,
                &[
                    (":method", "GET"),
                    (":scheme", "https"),
                    (":authority", host),
                    (":path", "/"),
                ],
            ))
            .await;
        // So that no more streams are open than may be.
        if turn % 50 == 49 {
            let done = u64::from(turn + 1);
            eventually("responses", || {
                edge.counted("e/ac_1/ep_as").requests() >= done
            })
            .await;
        }
    }
    let refused = u64::from(FLOOD) * 3 / 4;
    let honest = usize::try_from(FLOOD / 4).unwrap();
    drop(client);
    let point = edge.counted("e/ac_1/ep_as");
    assert_eq!(point.get(Field::RefusedUnknownHost), refused);
    let good = || {
        edge.rig
            .recorder
            .now()
            .iter()
            .filter(|event| event["object"]["http"]["response"]["status_code"] == 200)
            .count()
    };
    eventually("the honest events", || good() == honest).await;
    let events = edge.rig.recorder.now();
    let sampled: Vec<u64> = events
        .iter()
        .filter(|event| event["culvert"]["reason"] != "")
        .map(|event| event["culvert"]["sampled"].as_u64().unwrap())
        .collect();
    assert!(sampled.iter().sum::<u64>() <= refused);
    let left_out = edge.rig.edge.meters().refusals_sampled.get();
    assert_eq!(sampled.len() as u64 + left_out, refused);
    assert!(left_out > 0);
}

#[tokio::test]
async fn connections_that_are_turned_away_are_counted() {
    let settings = Settings {
        limits: Limits {
            connections: 1,
            ..whole().limits
        },
        ..whole()
    };
    let mut edge = Refusing::start(settings).await;
    let mut first = edge.plain().await;
    first
        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
        .await;
    first.answer("GET").await;
    let mut second = edge.plain().await;
    second.rest().await;
    edge.expect(0, 1, "the second connection").await;
    assert_eq!(edge.collected[0].reason, Reason::ConnectionLimit);
}

#[tokio::test]
async fn a_failed_upstream_is_a_reason_and_an_attempt_has_times() {
    let mut rig = Rig::start().await;
    let good = hello(&mut rig.tasks).await;
    let bad = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
        client.send("no HTTP\r\n\r\n").await;
    })
    .await;
    let gone = origin(&mut rig.tasks, |mut client| async move {
        client.request().await;
    })
    .await;
    let mut builder = Snapshot::builder();
    let hosts = [
        ("good.example", good.to_string(), 200, "", 1),
        (
            "bad.example",
            bad.to_string(),
            502,
            "upstream_bad_response",
            1,
        ),
        ("gone.example", gone.to_string(), 502, "upstream_aborted", 1),
        (
            "closed.example",
            "127.0.0.1:1".to_owned(),
            502,
            "upstream_connect_failed",
            0,
        ),
    ];
    for (host, upstream, ..) in &hosts {
        builder = builder.endpoint(endpoint(
            Scheme::Http,
            host,
            80,
            &format!("http://{upstream}"),
            "",
        ));
    }
    rig.edge.publish(builder.build()).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (nth, (host, upstream, status, reason, attempts)) in hosts.iter().enumerate() {
        let mut client = rig.connect().await;
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: {host}\r\nTraceParent: {trace}\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answer("POST").await.status, *status, "{host}");
        drop(client);
        let events = rig.recorder.events(2 * nth + 2).await;
        let event = of(&events, HTTP)[nth];
        let own = &event["culvert"];
        assert_eq!(own["reason"], *reason, "{event}");
        assert_eq!(own["attempts"], *attempts);
        assert_eq!(own["sampled"], 1);
        assert_eq!(own["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(own["protocol"], "HTTP/1.1");
        assert!(own["duration_ms"].as_u64() >= own["first_byte_ms"].as_u64());
        assert!(own["connect_ms"].is_u64(), "{own}");
        if *attempts > 0 {
            assert_eq!(own["upstream"], format!("http://{upstream}"));
        }
    }
    // A reused connection has no time to connect.
    let mut client = rig.connect().await;
    client
        .send("GET / HTTP/1.1\r\nHost: good.example\r\nTraceParent: 00-nonsense-1-1\r\n\r\n")
        .await;
    client.answer("GET").await;
    drop(client);
    let events = rig.recorder.events(10).await;
    let own = &of(&events, HTTP)[4]["culvert"];
    assert_eq!(
        (&own["connect_ms"], &own["trace_id"]),
        (&Value::Null, &Value::Null)
    );
}

#[tokio::test]
async fn a_malformed_body_is_the_reason_of_its_exchange_and_counted_once() {
    let mut edge = Refusing::start(whole()).await;
    let mut client = edge.plain().await;
    client
        .send(
            "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        )
        .await;
    assert_eq!(client.answer("POST").await.status, 400);
    drop(client);
    edge.expect(1, 0, "a malformed body").await;
    assert_eq!(edge.last()["culvert"]["reason"], "malformed");
    assert_eq!(edge.counted("e/ac_1/ep_a").refused(), 1);
    assert_eq!(edge.rig.edge.meters().refused[0].get(), 1);
}

#[tokio::test]
async fn without_a_subscription_refusals_are_only_counted() {
    let mut edge = Refusing::start(whole()).await;
    edge.rig
        .recorder
        .is_off
        .store(true, std::sync::atomic::Ordering::SeqCst);
    for host in ["a.example", "nobody.example"] {
        let mut client = edge.plain().await;
        client
            .send(format!("GET / HTTP/1.1\r\nHost: {host}\r\nX\r\n\r\n"))
            .await;
        assert_eq!(client.answer("GET").await.status, 400);
    }
    edge.expect(0, 1, "a request without an endpoint").await;
    assert_eq!(edge.counted("e/ac_1/ep_a").refused(), 1);
    assert_eq!(edge.rig.recorder.count(), 0);
}
