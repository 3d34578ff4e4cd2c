//! Every variable of policies, on every kind of connection on which the reference says that it is filled. The cases
//! come from the table of variables, so that a new one is tried as well.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_edge_config::ACTIONS;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::variables::{self, Filled, Variable};
use culvert_policy::{IpData, IpDataFiles, IpDatabases, Scheme};
use culvert_policy::{Resources, Source};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::handshakes::{certified, keeping};
use super::harness::*;
use super::mutual::Ca;
use crate::{Endpoint, Settings, Snapshot, Upstream};

const REGION: &str = "eu";

fn data_file(name: &str) -> PathBuf {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../culvert-ip-data/tests/data");
    Path::new(data).join(name)
}

/// Data for the loopback, with every field that public databases have.
fn data() -> IpData {
    // Tests run concurrently, so each has its own file.
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("culvert-variables-{}-{number}", std::process::id());
    let list = std::env::temp_dir().join(name);
    std::fs::write(&list, "127.0.0.0/8\n").unwrap();
    let categories = ["com.cloud", "blocklist", "tor"];
    let files = IpDataFiles {
        geo: Some(data_file("geo.mmdb")),
        asn: Some(data_file("asn.mmdb")),
        categories: categories
            .map(|name| (name.to_owned(), list.clone()))
            .into(),
    };
    let data = IpData::read(&files).unwrap();
    std::fs::remove_file(list).unwrap();
    data
}

/// A kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    scheme: Scheme,
    is_http2: bool,
    has_certificate: bool,
    is_resumed: bool,
}

impl Kind {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for scheme in Scheme::ALL {
            for is_http2 in [false, true] {
                for has_certificate in [false, true] {
                    for is_resumed in [false, true] {
                        let kind = Self {
                            scheme,
                            is_http2,
                            has_certificate,
                            is_resumed,
                        };
                        let has_tls = scheme == Scheme::Https;
                        let fits = has_tls || !has_certificate && !is_resumed && !is_http2;
                        if fits {
                            all.push(kind);
                        }
                    }
                }
            }
        }
        all
    }
}

/// Whether the reference promises a value there, to a message that has everything.
fn is_promised(variable: &Variable, kind: Kind) -> bool {
    match variable.filled {
        Filled::Always | Filled::Region | Filled::Message => true,
        Filled::ServerName => matches!(kind.scheme, Scheme::Https | Scheme::Tls),
        Filled::Tls => kind.scheme == Scheme::Https,
        Filled::Resumed => kind.is_resumed,
        Filled::ServerCertificate => {
            kind.scheme == Scheme::Https && CERTIFIED.contains(&tail(variable))
        }
        Filled::ClientCertificate => kind.has_certificate && SHOWN.contains(&tail(variable)),
        // Fields that the files do not have are refused when a policy is written.
        Filled::Data(_) => true,
        Filled::Actions => true,
        // Bodies have their own test.
        Filled::Answered | Filled::Never | Filled::Hidden => false,
    }
}

fn only(field: culvert_policy::IpField) -> culvert_policy::IpFields {
    let mut fields = culvert_policy::IpFields::default();
    fields.insert(field);
    fields
}

/// The part of a path behind `conn.tls.client.` or `conn.tls.server.`.
fn tail(variable: &Variable) -> &str {
    variable.path.splitn(4, '.').nth(3).unwrap_or_default()
}

/// What every certificate has that these tests show.
const CERTIFIED: [&str; 12] = [
    "serial_number",
    "signature_algorithm",
    "extensions",
    "validity.not_before",
    "validity.not_after",
    "san",
    "san.dns_names",
    "issuer",
    "issuer.common_name",
    "subject",
    "subject.common_name",
    "pem",
];

/// The client's has everything.
const SHOWN: [&str; 29] = [
    "pem",
    "serial_number",
    "signature_algorithm",
    "extensions",
    "validity.not_before",
    "validity.not_after",
    "san",
    "san.dns_names",
    "san.email_addresses",
    "san.ip_addresses",
    "san.uris",
    "issuer",
    "issuer.common_name",
    "issuer.country",
    "issuer.locality",
    "issuer.organization",
    "issuer.organizational_unit",
    "issuer.postal_code",
    "issuer.province",
    "issuer.street_address",
    "subject",
    "subject.common_name",
    "subject.country",
    "subject.locality",
    "subject.organization",
    "subject.organizational_unit",
    "subject.postal_code",
    "subject.province",
    "subject.street_address",
];

/// An expression that holds if the variable has a value.
fn has_value(variable: &Variable) -> String {
    let path = &variable.path;
    let of = variable.of.to_string();
    match of.as_str() {
        // Nothing was sent yet, and on a TCP endpoint nothing read.
        _ if path.starts_with("conn.bytes_") => format!("{path} >= 0"),
        "string" => format!("{path} != ''"),
        "int" => format!("{path} != 0"),
        "bool" => path.to_string(),
        // Certificates of the tests begin in 1975.
        "timestamp" => format!("{path} > timestamp('1970-01-02T00:00:00Z')"),
        _ => format!("size({path}) > 0"),
    }
}

/// A rule for each variable, which logs its number if it has a value. Sixteen at a time: an event has a limit.
fn rules(phase: Phase, batch: &[(usize, &Variable)]) -> Value {
    let ready = json!({"actions": [{"type": "set-vars", "config": {"vars": [{"a": "b"}]}}]});
    let rules = batch
        .iter()
        .filter(|(_, variable)| variable.since <= phase)
        .map(|(number, variable)| {
            json!({
                "expressions": [has_value(variable)],
                "actions": [{"type": "log", "config": {"metadata": {"n": format!("{} {number}", phase.name())}}}],
            })
        });
    std::iter::once(ready).chain(rules).collect()
}

fn governed(kind: Kind, upstream: &str, batch: &[(usize, &Variable)], ca: &str) -> Endpoint {
    let mut policy = json!({"on_tcp_connect": rules(Phase::Connect, batch)});
    if kind.scheme.is_http() {
        policy["on_http_request"] = rules(Phase::Request, batch);
        policy["on_http_response"] = rules(Phase::Response, batch);
    }
    if kind.scheme == Scheme::Https {
        let asks = json!({"actions": [{"type": "terminate-tls", "config": {
            "mutual_tls_certificate_authorities": [ca],
            "mutual_tls_verification_strategy": "request",
        }}]});
        policy["on_tcp_connect"].as_array_mut().unwrap().push(asks);
    }
    let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
    let compiled = source
        .compile(kind.scheme, true, &Resources::default())
        .unwrap();
    let mut endpoint = endpoint(kind.scheme, "app.example", 443, "http://127.0.0.1:1", "");
    if kind.scheme == Scheme::Tcp {
        endpoint.port = free_port();
    }
    endpoint.policy = Some(Arc::new(compiled));
    endpoint.upstream = Some(Upstream::parse(upstream, "").unwrap());
    endpoint
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// A request and an answer that have everything.
const REQUEST: &str = "POST /a/b?c=d HTTP/1.1\r\nHost: app.example:443\r\nUser-Agent: curl/8\r\nLocation: /l\r\n\
    Cookie: a=b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi";
const ANSWER: &str = "HTTP/1.1 201 Created\r\nLocation: /m\r\nSet-Cookie: c=d; Path=/\r\n\
    Content-Type: text/html; charset=utf-8\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok";

/// One exchange on a connection of that kind.
async fn exchange(
    rig: &Rig,
    kind: Kind,
    endpoint: &Endpoint,
    root: &CertificateDer<'static>,
    client: &str,
) {
    let tcp_port = endpoint.port;
    match kind.scheme {
        Scheme::Http => {
            let answer = rig.ask(REQUEST).await;
            assert_eq!(answer.status, 201);
        }
        Scheme::Https => {
            let shown = kind.has_certificate.then(|| certified(client));
            let mut config = Arc::unwrap_or_clone(keeping(root, shown));
            let alpn: &[u8] = if kind.is_http2 { b"h2" } else { b"http/1.1" };
            config.alpn_protocols = vec![alpn.to_vec()];
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let turns = if kind.is_resumed { 2 } else { 1 };
            for _ in 0..turns {
                let tcp = TcpStream::connect(rig.edge.https_addr().unwrap())
                    .await
                    .unwrap();
                let name = rustls_pki_types::ServerName::try_from("app.example").unwrap();
                let stream = soon("a handshake", connector.connect(name, tcp))
                    .await
                    .unwrap();
                if kind.is_http2 {
                    over_http2(stream).await;
                } else {
                    let mut client = Client::new(stream);
                    client.send(REQUEST).await;
                    assert_eq!(client.answer("POST").await.status, 201);
                }
            }
        }
        Scheme::Tls => {
            let tcp = TcpStream::connect(rig.edge.https_addr().unwrap())
                .await
                .unwrap();
            let mut client = Client::new(tcp);
            client
                .send(super::mutual::client_hello("app.example"))
                .await;
            assert!(client.more().await);
        }
        Scheme::Tcp => {
            let tcp = TcpStream::connect(("127.0.0.1", tcp_port)).await.unwrap();
            let mut client = Client::new(tcp);
            client.send(REQUEST).await;
            assert!(client.more().await);
        }
    }
}

async fn over_http2<S>(stream: S)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
        .await
        .unwrap();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(connection);
    let request = http::Request::post("https://app.example:443/a/b?c=d")
        .header("user-agent", "curl/8")
        .header("location", "/l")
        .header("cookie", "a=b")
        .header("content-type", "text/plain; charset=utf-8")
        .header("content-encoding", "identity")
        .header("content-length", "2")
        .body(http_body_util::Full::new(bytes::Bytes::from_static(b"hi")))
        .unwrap();
    let answer = soon("an answer", sender.send_request(request))
        .await
        .unwrap();
    assert_eq!(answer.status(), 201);
    drop((answer, sender));
    running.abort_all();
}

/// What the events of an exchange say that variables had, as `phase number`.
fn found(events: &[Value]) -> Vec<String> {
    let logs = events
        .iter()
        .filter_map(|event| event["object"]["traffic_policy"]["logs"].as_array());
    let entries = logs.flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            Some(
                entry["metadata"]["n"]
                    .as_str()
                    .or(entry["n"].as_str())?
                    .to_owned(),
            )
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[tokio::test]
async fn every_documented_variable_has_a_value() {
    let mut rig = Rig::with(Settings {
        ip_data: IpDatabases::new(data()),
        region: REGION.into(),
        ..settings()
    })
    .await;
    let http = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            client.send(ANSWER).await;
        }
    })
    .await;
    let raw = origin(&mut rig.tasks, |mut client| async move {
        if client.more().await {
            client.send("ok").await;
        }
    })
    .await;
    let (names, key, root) = certificate(&["app.example"]);
    let ca = Ca::with_every_name("ours");
    let client = ca.leaf_with_every_name();
    // The client's own certificate is one.
    assert!(CertificateDer::from_pem_slice(client.as_bytes()).is_ok());
    let table = &*variables::ALL;
    let loaded = data();
    let is_held = |variable: &Variable| match variable.filled {
        Filled::Hidden => false,
        Filled::Data(field) => loaded.missing(only(field)).is_empty(),
        _ => true,
    };
    let named: Vec<(usize, &Variable)> = table
        .iter()
        .enumerate()
        .filter(|(_, variable)| is_held(variable))
        .collect();
    let mut missing = Vec::new();
    let mut tried = 0;
    for kind in Kind::all() {
        // Eight variables make at most 24 entries, which an event has room for.
        for batch in named.chunks(8) {
            let upstream = if kind.scheme.is_http() {
                format!("http://{http}")
            } else {
                format!("tcp://{raw}")
            };
            let governed = governed(kind, &upstream, batch, &ca.pem);
            let snapshot = Snapshot::builder().endpoint(governed.clone());
            rig.edge
                .publish(snapshot.certificate(names.clone(), key.clone()).build())
                .await;
            let before = rig.recorder.count();
            exchange(&rig, kind, &governed, &root, &client).await;
            let turns = if kind.is_resumed { 2 } else { 1 };
            let each = if kind.scheme.is_http() { 2 } else { 1 };
            let events = rig.recorder.events(before + turns * each).await;
            let found = found(&events[before..]);
            for (number, variable) in batch {
                for phase in Phase::ALL {
                    let exists = variable.since <= phase
                        && (phase == Phase::Connect || kind.scheme.is_http());
                    if !exists || !is_promised(variable, kind) {
                        continue;
                    }
                    tried += 1;
                    if !found.contains(&format!("{} {number}", phase.name())) {
                        missing.push(format!("{} in {} of {kind:?}", variable.path, phase.name()));
                    }
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "{} of {tried}:\n{}",
        missing.len(),
        missing.join("\n")
    );
    assert!(tried > 1_000, "{tried}");
}

#[tokio::test]
async fn a_policy_with_missing_ip_data_refuses_traffic() {
    let databases = IpDatabases::new(data());
    let rig = Rig::with(Settings {
        ip_data: databases.clone(),
        ..settings()
    })
    .await;
    let answers = json!([{"actions": [{"type": "custom-response", "config": {"body": "ok"}}]}]);
    let never =
        |expression: &str| json!([{"expressions": [expression], "actions": [{"type": "deny"}]}]);
    const ASK: &str = "GET / HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\r\n";
    for (expression, field) in [
        ("conn.geo.country_code == 'KP'", "edge.geo_database"),
        (
            "conn.client_ip.geo.location.is_eu == false",
            "edge.geo_database",
        ),
        ("conn.server_ip.as.number == 1", "edge.asn_database"),
        (
            "'com.bad' in conn.client_ip.categories",
            "edge.ip_categories",
        ),
        ("conn.client_ip.is_tor_node == false", "edge.ip_categories"),
    ] {
        for phase in Phase::ALL {
            let mut policy = json!({"on_http_request": answers});
            if phase == Phase::Request {
                let mut rules = never(expression).as_array().unwrap().clone();
                rules.extend(answers.as_array().unwrap().clone());
                policy["on_http_request"] = rules.into();
            } else if phase == Phase::Connect {
                policy[phase.name()] = never(expression);
            } else {
                policy[phase.name()] = json!([{"expressions": [expression], "actions": [
                    {"type": "add-headers", "config": {"headers": {"x-found": "yes"}}},
                ]}]);
            }
            let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
            // Written without its data it is refused.
            let judged = Resources {
                ip_data: Some(Arc::default()),
                ..Resources::default()
            };
            let refused = source.compile(Scheme::Http, false, &judged).unwrap_err();
            assert_eq!(refused.code.unwrap().number(), 2200);
            assert!(refused.message.contains(field), "{}", refused.message);
            let judged = Resources {
                ip_data: Some(Arc::new(data())),
                ..Resources::default()
            };
            let compiled = source.compile(Scheme::Http, false, &judged).unwrap();
            let mut governed = endpoint(Scheme::Http, "app.example", 80, "http://127.0.0.1:1", "");
            governed.upstream = None;
            governed.policy = Some(Arc::new(compiled));
            rig.edge
                .publish(Snapshot::builder().endpoint(governed).build())
                .await;
            let status = async || {
                let mut client = rig.connect().await;
                client.send(ASK).await;
                client.try_answer("GET").await.map(|answer| answer.status)
            };
            let what = format!("{expression} in {}", phase.name());
            assert_eq!(status().await, Some(200), "{what}");
            assert!(rig.edge.missing_data().is_empty());
            databases.replace(IpData::default());
            let expected = (phase != Phase::Connect).then_some(500);
            assert_eq!(status().await, expected, "{what}");
            assert_eq!(rig.edge.missing_data().settings(), [field], "{what}");
            databases.replace(data());
            assert_eq!(status().await, Some(200), "{what}");
        }
    }
}

#[test]
fn a_template_that_names_missing_data_is_refused() {
    let policy = json!({"on_http_request": [{"actions": [
        {"type": "custom-response", "config": {"body": "${conn.geo.city}"}},
    ]}]});
    let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
    let judged = Resources {
        ip_data: Some(Arc::default()),
        ..Resources::default()
    };
    let refused = source.compile(Scheme::Http, false, &judged).unwrap_err();
    assert_eq!(refused.code.unwrap().number(), 2224);
}
