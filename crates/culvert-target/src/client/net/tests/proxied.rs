//! Requests through proxies: a fake one, which records requests, and two foreign ones.

use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use culvert_testing::{TlsFront, tls_front};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

const PASSWORD: &str = "a-long-password";

/// A proxy that connects, or has the same response to all requests.
struct FakeProxy {
    addr: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

impl FakeProxy {
    /// Without an `answer` it connects; an empty one means that it never responds.
    async fn start(answer: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let mut task = JoinSet::new();
        let seen = heads.clone();
        task.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let seen = seen.clone();
                links.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(near.read_u8().await?);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let target = head.split(' ').nth(1).unwrap().to_owned();
                    seen.lock().unwrap().push(head);
                    match answer {
                        None => {
                            let mut far = TcpStream::connect(target).await?;
                            near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                            tokio::io::copy_bidirectional(&mut near, &mut far).await?;
                        }
                        Some("") => std::future::pending().await,
                        Some(answer) => {
                            let answer = format!("HTTP/1.1 {answer}\r\n\r\n");
                            near.write_all(answer.as_bytes()).await?;
                        }
                    }
                    io::Result::Ok(())
                });
            }
        });
        Self {
            addr,
            heads,
            _task: task,
        }
    }

    fn url(&self) -> String {
        format!("http://user:{PASSWORD}@{}", self.addr)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// A client with these variables, to which all names are this machine.
fn net_by(variables: &[(&str, &str)], allow: &[&str], extra_ca_file: Option<PathBuf>) -> Net {
    let settings = NetSettings {
        rules: Rules {
            allow_networks: allow.iter().map(|text| text.parse().unwrap()).collect(),
            allow_plain_http: true,
            deny_ports: Vec::new(),
        },
        extra_ca_file,
        proxies: Proxies::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
        .unwrap(),
    };
    let names = Arc::new(Names(vec![vec![LOOPBACK]]));
    Net::with_resolver(settings, clock(), Arc::new(OsEntropy), names)
}

async fn patient_post(http: &Http, to: &CheckedUrl) -> Result<HttpResponse, Failure> {
    let body = Bytes::from_static(b"{}");
    let deadline = culvert_testing::PATIENCE;
    http.post(to, HeaderMap::new(), body, deadline).await
}

/// A destination with TLS in front of `fake`, and a client that trusts it.
async fn with_tls(fake: &Fake) -> (tempfile::TempDir, TlsFront, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let front = tls_front(&folder, "hook.example", fake.addr.to_string()).await;
    let ca_file = folder.path().join("cert.pem");
    (folder, front, ca_file)
}

#[tokio::test]
async fn a_proxy_connects_to_the_checked_address_and_tls_is_inside() {
    let (fake, proxy) = (Fake::start().await, FakeProxy::start(None).await);
    let (_folder, front, ca_file) = with_tls(&fake).await;
    let url = proxy.url();
    let variables = [("HTTPS_PROXY", &url[..]), ("http_proxy", &url)];
    let net = net_by(&variables, &["127.0.0.0/8"], Some(ca_file));
    let http = net.http();
    let secure = checked(&net, &format!("https://hook.example:{}/", front.port));
    let plain = checked(&net, &name_with_port(fake.addr));
    for to in [&secure, &secure, &plain, &plain] {
        assert_eq!(patient_post(&http, to).await.unwrap().status, 200);
    }
    // The second request to each uses the connection of the first.
    let heads = proxy.heads();
    assert_eq!(heads.len(), 2, "{heads:?}");
    for (head, port) in heads.iter().zip([front.port, fake.addr.port()]) {
        let line = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n");
        assert!(head.starts_with(&line), "{head}");
        assert!(head.contains("\r\nproxy-authorization: Basic "), "{head}");
    }
    let seen = fake.seen();
    let host = format!("hook.example:{}", fake.addr.port());
    assert_eq!(seen[2].header("host"), Some(&host[..]));
    assert!(seen.iter().all(|seen| seen.line.starts_with("POST / ")));
    // The proxy is not trusted with names: the certificate must be that of the destination.
    let other = checked(&net, &format!("https://other.example:{}/", front.port));
    let failure = patient_post(&http, &other).await.unwrap_err();
    assert_eq!(&*failure.code, "tls", "{failure}");
}

#[tokio::test]
async fn the_guard_decides_before_the_proxy_is_asked() {
    let (fake, proxy) = (Fake::start().await, FakeProxy::start(None).await);
    let url = proxy.url();
    let net = net_by(&[("ALL_PROXY", &url)], &[], None);
    let to = checked(&net, &name_with_port(fake.addr));
    let failure = patient_post(&net.http(), &to).await.unwrap_err();
    assert_eq!(
        failure.text,
        "loopback addresses are not allowed unless `destinations.allow_networks` lists them"
    );
    let net = net_by(&[("ALL_PROXY", &url)], &["127.0.0.0/8"], None);
    net.set_own_listeners(vec![fake.addr]);
    let failure = patient_post(&net.http(), &to).await.unwrap_err();
    assert_eq!(failure.text, "this server's own listeners are not allowed");
    assert!(proxy.heads().is_empty());
}

#[tokio::test]
async fn excepted_hosts_and_other_protocols_are_connected_to_directly() {
    let (fake, proxy) = (Fake::start().await, FakeProxy::start(None).await);
    let url = proxy.url();
    let variables = [("ALL_PROXY", &url[..]), ("no_proxy", ".example")];
    let net = net_by(&variables, &["127.0.0.0/8"], None);
    let to = checked(&net, &name_with_port(fake.addr));
    assert_eq!(patient_post(&net.http(), &to).await.unwrap().status, 200);
    let net = net_by(&variables[..1], &["127.0.0.0/8"], None);
    net.dial("broker.test", fake.addr.port()).await.unwrap();
    let literal = checked(&net, &fake.url("/"));
    let answer = patient_post(&net.http(), &literal).await;
    assert_eq!(answer.unwrap().status, 200);
    assert!(proxy.heads().is_empty());
    assert_eq!(patient_post(&net.http(), &to).await.unwrap().status, 200);
    assert_eq!(proxy.heads().len(), 1);
}

#[tokio::test]
async fn what_a_proxy_refuses_is_told_without_its_address_and_password() {
    use FailureClass::{Config, Retryable};
    let fake = Fake::start().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://user:{PASSWORD}@{}", listener.local_addr().unwrap());
    drop(listener);
    let mut cases = vec![(closed, Retryable, "the proxy is not reachable: ".to_owned())];
    let mut proxies = Vec::new();
    for (answer, class) in [
        ("407 Proxy Authentication Required", Config),
        ("403 Filtered", Config),
        ("502 Bad Gateway", Retryable),
        ("504 Gateway Timeout", Retryable),
    ] {
        let proxy = FakeProxy::start(Some(answer)).await;
        let text = format!("the proxy refused the connection: {answer}");
        cases.push((proxy.url(), class, text));
        proxies.push(proxy);
    }
    for (url, class, text) in cases {
        let net = net_by(&[("ALL_PROXY", &url)], &["127.0.0.0/8"], None);
        for scheme in ["http", "https"] {
            let to = format!("{scheme}://hook.example:{}/", fake.addr.port());
            let failure = patient_post(&net.http(), &checked(&net, &to)).await;
            let failure = failure.unwrap_err();
            assert_eq!((failure.class, &*failure.code), (class, "proxy"));
            assert!(failure.text.starts_with(&text), "{failure}");
            let address = url.rsplit('@').next().unwrap();
            for hidden in [PASSWORD, address] {
                assert!(!failure.to_string().contains(hidden), "{failure}");
            }
        }
        assert!(!format!("{net:?}").contains(PASSWORD));
    }
    assert_eq!(fake.accepts(), 0, "nothing goes past a proxy");
}

#[tokio::test]
async fn a_proxy_that_never_responds_is_waited_for_for_a_while() {
    let (fake, proxy) = (Fake::start().await, FakeProxy::start(Some("")).await);
    let url = proxy.url();
    let net = net_by(&[("ALL_PROXY", &url)], &["127.0.0.0/8"], None);
    let to = checked(&net, &name_with_port(fake.addr));
    let http = net.http();
    let mut posting = std::pin::pin!(patient_post(&http, &to));
    let asked = async {
        while proxy.heads().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = &mut posting => panic!("{answer:?}"),
        () = asked => {}
    }
    tokio::time::pause();
    tokio::time::advance(RESOLVE_DEADLINE + CONNECT_DEADLINE).await;
    tokio::time::resume();
    let failure = posting.await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Retryable);
    assert_eq!(failure.text, "connecting through the proxy timed out");
}

/// A foreign proxy, which ends with this.
struct Foreign(Child, u16);

impl Drop for Foreign {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts a program that listens on a port, or says that it is missing.
async fn foreign(program: &str, arguments: impl Fn(u16) -> Vec<String>) -> Option<Foreign> {
    // Another process may take the port between the two, so there is another attempt.
    for _ in 0..10 {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut command = Command::new(program);
        command.args(arguments(port)).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut proxy = match child {
            Ok(child) => Foreign(child, port),
            Err(_) => {
                culvert_testing::ignore(format_args!("{program} is not installed"));
                return None;
            }
        };
        while proxy.0.try_wait().unwrap().is_none() {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Some(proxy);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    panic!("{program} does not start");
}

async fn post_by_foreign(scheme: &str, program: &str, port: u16) {
    let fake = Fake::start().await;
    let (_folder, front, ca_file) = with_tls(&fake).await;
    let with = |password: &str| {
        let url = format!("{scheme}://user:{password}@127.0.0.1:{port}");
        net_by(
            &[("ALL_PROXY", &url)],
            &["127.0.0.0/8"],
            Some(ca_file.clone()),
        )
    };
    let net = with(PASSWORD);
    let to = checked(&net, &format!("https://hook.example:{}/", front.port));
    let answer = patient_post(&net.http(), &to).await;
    assert_eq!(answer.unwrap().status, 200, "{program}");
    let before = fake.accepts();
    let failure = patient_post(&with("wrong").http(), &to).await.unwrap_err();
    assert_eq!(&*failure.code, "proxy", "{program}: {failure}");
    assert_eq!(fake.accepts(), before, "{program}");
}

#[tokio::test]
async fn tinyproxy_connects() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tinyproxy.conf");
    let started = foreign("tinyproxy", |port| {
        let text = format!("Port {port}\nListen 127.0.0.1\nBasicAuth user {PASSWORD}\n");
        std::fs::write(&file, text).unwrap();
        vec!["-d".into(), "-c".into(), file.display().to_string()]
    });
    if let Some(proxy) = started.await {
        post_by_foreign("http", "tinyproxy", proxy.1).await;
    }
}

#[tokio::test]
async fn microsocks_connects() {
    let started = foreign("microsocks", |port| {
        let port = port.to_string();
        ["-i", "127.0.0.1", "-p", &port, "-u", "user", "-P", PASSWORD]
            .map(str::to_owned)
            .into()
    });
    if let Some(proxy) = started.await {
        post_by_foreign("socks5", "microsocks", proxy.1).await;
    }
}
