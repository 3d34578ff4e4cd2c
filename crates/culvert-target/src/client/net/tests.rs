mod proxied;

use std::net::SocketAddr;

use culvert_base::{ManualClock, OsEntropy};
use culvert_testing::http_server::{Fake, Reply};

use super::*;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000)))
}

fn net(allow: &[&str]) -> Net {
    net_with(allow, Arc::new(Names(Vec::new())))
}

fn net_with(allow: &[&str], resolver: Arc<dyn Resolve>) -> Net {
    let settings = NetSettings {
        rules: Rules {
            allow_networks: allow
                .iter()
                .map(|network| network.parse().unwrap())
                .collect(),
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        ..NetSettings::default()
    };
    Net::with_resolver(settings, clock(), Arc::new(OsEntropy), resolver)
}

/// A resolver that returns the next list of addresses at each lookup, and repeats the last.
#[derive(Debug)]
struct Names(Vec<Vec<IpAddr>>);

#[derive(Debug)]
struct Moving {
    names: Names,
    asked: AtomicU64,
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        let found = self.0.first().cloned();
        Box::pin(async move { found.ok_or_else(|| "the host name does not resolve".to_owned()) })
    }
}

impl Resolve for Moving {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) as usize;
        let last = self.names.0.len() - 1;
        let found = self.names.0[asked.min(last)].clone();
        Box::pin(async move { Ok(found) })
    }
}

fn checked(net: &Net, url: &str) -> CheckedUrl {
    net.rules().url(url).unwrap()
}

async fn post(net: &Net, to: &CheckedUrl) -> Result<HttpResponse, Failure> {
    let body = Bytes::from_static(b"{}");
    let deadline = Duration::from_millis(500);
    net.http().post(to, HeaderMap::new(), body, deadline).await
}

fn name_with_port(addr: SocketAddr) -> String {
    format!("http://hook.example:{}/", addr.port())
}

const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const PUBLIC: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(93, 184, 216, 34));

#[tokio::test]
async fn names_with_private_addresses_are_refused_before_connecting() {
    let fake = Fake::start().await;
    for answers in [
        vec![LOOPBACK],
        vec![PUBLIC, LOOPBACK],
        vec![LOOPBACK, PUBLIC],
    ] {
        let net = net_with(&[], Arc::new(Names(vec![answers])));
        let failure = post(&net, &checked(&net, &name_with_port(fake.addr)))
            .await
            .unwrap_err();
        assert_eq!(
            (failure.class, &*failure.code),
            (FailureClass::Config, "address")
        );
        assert_eq!(
            failure.text,
            "loopback addresses are not allowed unless `destinations.allow_networks` lists them"
        );
        assert_eq!(
            net.refused()
                .find(|(rule, _)| *rule == "loopback")
                .unwrap()
                .1,
            1
        );
    }
    assert_eq!(fake.accepts(), 0);
}

#[tokio::test]
async fn a_name_that_changes_to_a_private_address_is_refused() {
    let fake = Fake::start().await;
    let names = Names(vec![
        vec![LOOPBACK],
        vec!["169.254.169.254".parse().unwrap()],
    ]);
    let moving = Moving {
        names,
        asked: AtomicU64::new(0),
    };
    let net = net_with(&["127.0.0.0/8"], Arc::new(moving));
    let to = checked(&net, &name_with_port(fake.addr));
    assert_eq!(post(&net, &to).await.unwrap().status, 200);
    let failure = post(&net, &to).await.unwrap_err();
    assert_eq!(
        failure.text,
        "metadata services and other link-local addresses are not allowed"
    );
    assert_eq!(fake.accepts(), 1);
}

#[tokio::test]
async fn addresses_are_checked_again_at_each_connection() {
    let fake = Fake::start().await;
    let to = checked(&net(&["127.0.0.0/8"]), &fake.url("/"));
    let failure = post(&net(&[]), &to).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Config);
    assert_eq!(fake.accepts(), 0);
}

#[tokio::test]
async fn own_listeners_are_refused_even_in_allowed_networks() {
    let fake = Fake::start().await;
    let net = net(&["0.0.0.0/0"]);
    let to = checked(&net, &fake.url("/"));
    let wildcard = SocketAddr::from(([0, 0, 0, 0], fake.addr.port()));
    for own in [fake.addr, wildcard] {
        net.set_own_listeners(vec![own]);
        let failure = post(&net, &to).await.unwrap_err();
        assert_eq!(failure.text, "this server's own listeners are not allowed");
    }
    assert_eq!(fake.accepts(), 0);
    let other_port = fake.addr.port().wrapping_add(1).max(1);
    net.set_own_listeners(vec![SocketAddr::from(([0, 0, 0, 0], other_port))]);
    assert_eq!(post(&net, &to).await.unwrap().status, 200);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (fake, other) = (Fake::start().await, Fake::start().await);
    fake.script([Reply::Status(
        302,
        vec![format!("location: {}", other.url("/"))],
        String::new(),
    )]);
    let net = net(&["127.0.0.0/8"]);
    assert_eq!(
        post(&net, &checked(&net, &fake.url("/")))
            .await
            .unwrap()
            .status,
        302
    );
    assert_eq!((fake.seen().len(), other.accepts()), (1, 0));
}

#[tokio::test]
async fn at_most_64_kib_of_a_response_are_read() {
    let fake = Fake::start().await;
    fake.script([Reply::Status(200, Vec::new(), "x".repeat(200_000))]);
    let net = net(&["127.0.0.0/8"]);
    let answer = post(&net, &checked(&net, &fake.url("/"))).await.unwrap();
    assert_eq!(answer.text.len(), ANSWER_BYTES_MAX);
}

#[tokio::test]
async fn network_errors_are_classified() {
    use FailureClass::*;
    let net = net(&["127.0.0.0/8"]);
    for (reply, class, code) in [
        (Reply::Close, Unknown, "connection"),
        (Reply::Hang, Unknown, "timeout"),
    ] {
        let fake = Fake::start().await;
        fake.otherwise(reply.clone());
        let failure = post(&net, &checked(&net, &fake.url("/")))
            .await
            .unwrap_err();
        assert_eq!(
            (failure.class, &*failure.code),
            (class, code),
            "{reply:?} {failure}"
        );
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}/", nobody.local_addr().unwrap());
    drop(nobody);
    let failure = post(&net, &checked(&net, &closed)).await.unwrap_err();
    assert_eq!(
        (failure.class, &*failure.text),
        (Retryable, "connection refused")
    );
    let failure = post(&net, &checked(&net, "http://nowhere.example/"))
        .await
        .unwrap_err();
    assert_eq!(
        (failure.class, &*failure.text),
        (Retryable, "the host name does not resolve")
    );
}

/// Every status, with every kind of body. If the status decides, the body has no effect. If the body decides, a
/// truncated body of a success leaves the outcome unknown. A status of an error is a failure.
#[tokio::test]
async fn a_slow_or_aborted_body_fails_only_requests_that_need_it() {
    let net = net(&["127.0.0.0/8"]);
    for status in [200, 202, 204, 400, 404, 500, 503] {
        for reply in [
            Reply::status(status),
            Reply::Torn(status),
            Reply::Drips(status),
        ] {
            for success in [Success::Head(EMPTY_BODY_FOR), Success::Whole] {
                let is_whole = matches!(reply, Reply::Status(..)) || status == 204;
                let fake = Fake::start().await;
                fake.otherwise(reply.clone());
                let to = checked(&net, &fake.url("/"));
                let deadline = Duration::from_millis(400);
                let body = Bytes::from_static(b"{}");
                let order = HttpRequest {
                    success,
                    ..HttpRequest::post(to.url, HeaderMap::new(), body, deadline)
                };
                let answer = net.http().send(order).await;
                let case = format!("{status} {reply:?} {success:?}");
                if success == Success::Whole && (200..300).contains(&status) && !is_whole {
                    assert_eq!(answer.unwrap_err().class, FailureClass::Unknown, "{case}");
                } else {
                    assert_eq!(answer.expect(&case).status, status, "{case}");
                }
            }
        }
    }
}

/// The deadline is far away, so only the status can have ended the send.
#[tokio::test]
async fn a_slow_body_does_not_delay_a_success() {
    let net = net(&["127.0.0.0/8"]);
    for (status, at_most) in [(200, 5), (400, 10)] {
        let fake = Fake::start().await;
        fake.otherwise(Reply::Drips(status));
        let to = checked(&net, &fake.url("/"));
        let body = Bytes::from_static(b"{}");
        let deadline = Duration::from_secs(60);
        let began = std::time::Instant::now();
        let sent = net.http().post(&to, HeaderMap::new(), body, deadline).await;
        assert_eq!(sent.unwrap().status, status);
        assert!(
            began.elapsed() < Duration::from_secs(at_most),
            "{:?}",
            began.elapsed()
        );
    }
}

#[tokio::test]
async fn tls_accepts_the_extra_authority_and_verifies_the_name() {
    let certified = rcgen::generate_simple_self_signed(vec!["hook.example".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, certified.cert.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certified.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der())
                .unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = tokio::task::JoinSet::new();
    server.spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = Vec::new();
            stream.read_buf(&mut request).await.ok();
            stream
                .write_all(b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n")
                .await
                .ok();
        }
    });
    let with = |extra_ca_file| {
        let settings = NetSettings {
            extra_ca_file,
            rules: Rules {
                allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
                ..Rules::default()
            },
            ..NetSettings::default()
        };
        let names = Arc::new(Names(vec![vec![LOOPBACK]]));
        Net::with_resolver(settings, clock(), Arc::new(OsEntropy), names)
    };
    let trusting = with(Some(ca_file));
    let right = checked(&trusting, &format!("https://hook.example:{port}/"));
    let wrong = checked(&trusting, &format!("https://other.example:{port}/"));
    assert_eq!(post(&trusting, &right).await.unwrap().status, 204);
    for (net, to) in [(&trusting, &wrong), (&with(None), &right)] {
        let failure = post(net, to).await.unwrap_err();
        assert_eq!(
            (failure.class, &*failure.code),
            (FailureClass::Config, "tls"),
            "{failure}"
        );
    }
}

#[tokio::test]
async fn a_busy_connection_ends_so_that_names_are_resolved_again() {
    let fake = Fake::start().await;
    let moving = Arc::new(Moving {
        names: Names(vec![vec![LOOPBACK]]),
        asked: AtomicU64::new(0),
    });
    let net = net_with(&["127.0.0.0/8"], moving.clone());
    let to = checked(&net, &name_with_port(fake.addr));
    let http = net.http();
    let post = async || {
        let body = Bytes::from_static(b"{}");
        let deadline = Duration::from_secs(10);
        let answer = http.post(&to, HeaderMap::new(), body, deadline).await;
        assert_eq!(answer.unwrap().status, 200);
    };
    let lookups = || moving.asked.load(Ordering::SeqCst);
    for _ in 0..renewed::REQUESTS_MAX {
        post().await;
    }
    let before = lookups();
    assert!(before < 10, "{before}");
    post().await;
    assert_eq!(lookups(), before + 1, "after many requests");
    tokio::time::pause();
    tokio::time::advance(CONNECTION_LIFE).await;
    tokio::time::resume();
    post().await;
    assert_eq!(lookups(), before + 2, "after a while");
}

#[tokio::test]
async fn a_misdirected_request_is_repeated_on_a_new_connection() {
    let fake = Fake::start().await;
    fake.script([
        Reply::Status(200, Vec::new(), String::new()),
        Reply::Status(421, Vec::new(), "not here".into()),
        Reply::Status(200, Vec::new(), String::new()),
        Reply::Status(421, Vec::new(), "not here".into()),
        Reply::Status(421, Vec::new(), "nor here".into()),
    ]);
    let net = net_with(&["127.0.0.0/8"], Arc::new(Names(vec![vec![LOOPBACK]])));
    let to = checked(&net, &name_with_port(fake.addr));
    let http = net.http();
    let order = |deadline| {
        let body = Bytes::from_static(b"{}");
        HttpRequest::post(to.url.clone(), HeaderMap::new(), body, deadline)
    };
    let post = async || http.send(order(Duration::from_secs(10))).await;
    assert_eq!(post().await.unwrap().status, 200);
    let before = fake.accepts();
    assert_eq!(post().await.unwrap().status, 200);
    assert_eq!(fake.accepts(), before + 1, "without a wait");
    let failure = post().await.unwrap_err();
    assert_eq!(
        (failure.class, &*failure.code),
        (FailureClass::Retryable, "421"),
        "twice"
    );
    let before = fake.accepts();
    assert_eq!(post().await.unwrap().status, 200);
    assert_eq!(fake.accepts(), before + 1);
    // Without the time for a new connection, it is not.
    fake.script([Reply::Status(421, Vec::new(), "not here".into())]);
    let hurried = http.send(order(Duration::from_millis(900))).await;
    assert_eq!(hurried.unwrap_err().code, "421");
    // With a time to wait, it is not either.
    let wait = vec!["retry-after: 7".to_owned()];
    fake.script([Reply::Status(421, wait, "not now".into())]);
    let (before, seen) = (fake.accepts(), fake.seen().len());
    let failure = post().await.unwrap_err();
    assert_eq!(failure.code, "421");
    let after = RetryAfter::new(Duration::from_secs(7));
    assert_eq!(failure.after, Some(after));
    assert_eq!(fake.seen().len(), seen + 1);
    assert!(fake.accepts() <= before + 1);
}
