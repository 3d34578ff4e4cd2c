//! Options of endpoints, as a published agent sends them. Each behaves like the traffic policy action that it
//! corresponds to, at the real edge.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ngrok::config::{HttpTunnelBuilder, OidcOptions};
use ngrok::prelude::*;
use rustls_pki_types::{PrivateKeyDer, ServerName, pem::PemObject};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::agents::{Service, connect, credential, list, soon};
use crate::harness::{Backend, Harness, RawAnswer, Receiver, eventually, raw};
use crate::login::{Browser, Provider, callback};

type Endpoint = HttpTunnelBuilder;

/// A request and its expected response: the request's header fields and body, the status (0 if the connection is
/// closed instead), a text that the response contains, and one that it does not contain.
struct Try {
    fields: &'static str,
    body: &'static str,
    status: u16,
    has: &'static str,
    lacks: &'static str,
}

const fn get(fields: &'static str, status: u16) -> Try {
    Try {
        fields,
        body: "",
        status,
        has: "",
        lacks: "what no answer has",
    }
}

/// An option, how an agent sets it, and its effects.
struct Row {
    name: &'static str,
    set: fn(&mut Endpoint),
    tries: fn() -> Vec<Try>,
}

const SIGNED: &str = "authorization: Basic YW5uOm9wZW4gc2VzYW1l\r\n";

const ROWS: &[Row] = &[
    Row {
        name: "basic-auth",
        set: |to| {
            to.basic_auth("ann", "open sesame");
        },
        tries: || vec![get("", 401), get(SIGNED, 200)],
    },
    Row {
        name: "allow-cidr",
        set: |to| {
            to.allow_cidr("192.0.2.0/24");
        },
        tries: || vec![get("", 0)],
    },
    Row {
        name: "deny-cidr",
        set: |to| {
            to.deny_cidr("127.0.0.1/32");
        },
        tries: || vec![get("", 0)],
    },
    Row {
        name: "another-cidr",
        set: |to| {
            to.allow_cidr("127.0.0.0/8").deny_cidr("127.0.0.99/32");
        },
        tries: || vec![get("", 200)],
    },
    Row {
        name: "allow-agent",
        set: |to| {
            to.allow_user_agent("^good");
        },
        tries: || vec![get("user-agent: good/1\r\n", 200), get("", 403)],
    },
    Row {
        name: "deny-agent",
        set: |to| {
            to.deny_user_agent("^bad");
        },
        tries: || vec![get("user-agent: bad/1\r\n", 403), get("", 200)],
    },
    Row {
        name: "request-headers",
        set: |to| {
            to.request_header("x-added", "at the edge")
                .remove_request_header("x-gone");
        },
        tries: || {
            vec![Try {
                has: r#""x-added": "at the edge""#,
                lacks: "x-gone",
                ..get("x-gone: not yet\r\n", 200)
            }]
        },
    },
    Row {
        name: "response-headers",
        set: |to| {
            to.response_header("x-added", "at the edge")
                .remove_response_header("x-service");
        },
        tries: || {
            vec![Try {
                has: "x-added: at the edge",
                lacks: "x-service",
                ..get("", 200)
            }]
        },
    },
    Row {
        name: "compression",
        set: |to| {
            to.compression();
        },
        tries: || {
            vec![
                Try {
                    has: "content-encoding: gzip",
                    ..get("accept-encoding: gzip\r\n", 200)
                },
                Try {
                    lacks: "content-encoding",
                    ..get("", 200)
                },
            ]
        },
    },
    Row {
        name: "circuit-breaker",
        set: |to| {
            to.circuit_breaker(0.4).traffic_policy(
                "on_http_response: [{actions: [{type: add-headers, config: {headers: {x-a: b}}}]}]",
            );
        },
        tries: || {
            let mut tries: Vec<Try> = (0..10).map(|_| get("x-answer: 500\r\n", 500)).collect();
            tries.push(Try {
                has: "ERR_NGROK_3202",
                ..get("", 503)
            });
            tries
        },
    },
    Row {
        name: "webhook",
        set: |to| {
            to.webhook_verification("github", "whsec");
        },
        tries: || {
            let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"whsec").unwrap();
            mac.update(b"{}");
            let sum = mac.finalize().into_bytes();
            let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            let signed = format!("x-hub-signature-256: sha256={sum}\r\n");
            vec![
                Try {
                    body: "{}",
                    ..get(signed.leak(), 200)
                },
                get("", 403),
            ]
        },
    },
    Row {
        name: "many-of-them",
        set: |to| {
            to.basic_auth("ann", "open sesame")
                .request_header("x-added", "by the edge")
                .deny_user_agent("^bad")
                .allow_cidr("127.0.0.0/8")
                .circuit_breaker(0.5)
                .traffic_policy("on_http_request:\n- actions:\n  - type: add-headers\n    config: {headers: {x-own: policy}}\n");
        },
        tries: || {
            vec![
                get("", 401),
                Try {
                    has: r#""x-added": "by the edge""#,
                    ..get(SIGNED, 200)
                },
                Try {
                    has: r#""x-own": "policy""#,
                    ..get(SIGNED, 200)
                },
                get(
                    "user-agent: bad/1\r\nauthorization: Basic YW5uOm9wZW4gc2VzYW1l\r\n",
                    403,
                ),
            ]
        },
    },
    Row {
        name: "policy",
        set: |to| {
            to.traffic_policy(
                "on_http_request: [{actions: [{type: custom-response, config: {status_code: 418, body: short and stout}}]}]",
            );
        },
        tries: || {
            vec![Try {
                has: "short and stout",
                ..get("", 418)
            }]
        },
    },
    Row {
        name: "old-policy",
        set: |to| {
            to.policy(r#"{"inbound":[{"name":"","expressions":[],"actions":[{"type":"deny","config":{"status_code":410}}]}],"outbound":[]}"#)
                .unwrap();
        },
        tries: || vec![get("", 410)],
    },
    Row {
        name: "oauth",
        set: |to| {
            let mut google = OauthOptions::new("google");
            google
                .client_id("of the app")
                .client_secret("its secret")
                .scope("openid")
                .scope("email")
                .allow_domain("example.test");
            to.oauth(google);
        },
        tries: || {
            vec![Try {
                fields: "x-forwarded-proto: https\r\n",
                has: "location: https://accounts.google.com/",
                ..get("", 302)
            }]
        },
    },
];

async fn ask(at: SocketAddr, host: &str, one: &Try) -> RawAnswer {
    let method = if one.body.is_empty() { "GET" } else { "POST" };
    let (fields, body) = (one.fields, one.body);
    let length = body.len();
    let text = format!(
        "{method} / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
    );
    raw(at, text.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_option_of_a_published_agent_behaves_like_its_action() {
    // A proxy before the edge terminates TLS: sign-ins need it.
    let culvert = Harness::start_with(&Backend::Sqlite, |settings| {
        settings.edge.trusted_proxies = vec!["127.0.0.1/32".into()];
    });
    let culvert = culvert.await;
    let service = Service::named("one").await;
    let (_, token) = credential(&culvert, json!([])).await;
    let session = connect(&culvert, &token).await;
    let mut tunnels = Vec::new();
    for row in ROWS {
        let host = format!("{}.culvert.localhost", row.name);
        let mut endpoint = session.http_endpoint();
        endpoint.scheme(Scheme::HTTP).domain(&host);
        (row.set)(&mut endpoint);
        let tunnel = soon(row.name, endpoint.listen_and_forward(service.url())).await;
        tunnels.push(tunnel.unwrap_or_else(|error| panic!("{}: {error}", row.name)));
        for (nth, one) in (row.tries)().iter().enumerate() {
            let answer = ask(culvert.http, &host, one).await;
            let (name, text) = (row.name, &answer.text);
            assert_eq!(answer.status, one.status, "{name} {nth}: {text}");
            assert!(text.contains(one.has), "{name} {nth}: {text}");
            assert!(!text.contains(one.lacks), "{name} {nth}: {text}");
        }
    }
    // The API returns none of these secrets.
    let shown = serde_json::to_string(&list(&culvert, "endpoints").await).unwrap();
    for secret in ["open sesame", "whsec", "its secret"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    // An option without an implementation is rejected, not ignored.
    let mut endpoint = session.http_endpoint();
    endpoint.websocket_tcp_conversion();
    let refused = soon("an answer", endpoint.listen_and_forward(service.url())).await;
    let refused = refused.err().unwrap();
    assert_eq!(refused.error_code(), Some("ERR_NGROK_359"));
    culvert.stop().await;
}

async fn version(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = format!("{:?}", request.version());
    Ok(Response::new(Full::new(text.into())))
}

/// Responds with the HTTP version of the request.
pub async fn versioned(tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            connections.spawn(async move {
                let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service_fn(version));
                drop(served.await);
            });
        }
    });
    address
}

/// Responds on each connection with the data up to a blank line, and closes it.
pub async fn repeating(tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut bytes = Vec::new();
                while !bytes.ends_with(b"\r\n\r\n")
                    && socket.read_buf(&mut bytes).await.unwrap_or(0) > 0
                {}
                let length = bytes.len();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                drop(
                    socket
                        .write_all(&[head.as_bytes(), &bytes[..]].concat())
                        .await,
                );
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_get_the_configured_protocol_and_proxy_header() {
    let (culvert, port) = Harness::start_with_port().await;
    let mut tasks = JoinSet::new();
    let (versioned, repeating) = (versioned(&mut tasks).await, repeating(&mut tasks).await);
    let (_, token) = credential(&culvert, json!([])).await;
    let session = connect(&culvert, &token).await;

    let mut endpoint = session.http_endpoint();
    endpoint
        .scheme(Scheme::HTTP)
        .domain("h2.culvert.localhost")
        .app_protocol("http2");
    let upstream = format!("http://{versioned}").parse().unwrap();
    let _h2 = soon("an endpoint", endpoint.listen_and_forward(upstream))
        .await
        .unwrap();
    let answer = ask(culvert.http, "h2.culvert.localhost", &get("", 200)).await;
    assert!(answer.text.ends_with("HTTP/2.0"), "{}", answer.text);

    // The header of the PROXY protocol contains the client's address.
    for (version, begins) in [
        (ProxyProto::V1, "PROXY TCP4 127.0.0.1 127.0.0.1 "),
        (ProxyProto::V2, "\r\n\r\n\0\r\nQUIT\n"),
    ] {
        let mut endpoint = session.http_endpoint();
        endpoint
            .scheme(Scheme::HTTP)
            .domain("proxied.culvert.localhost")
            .proxy_proto(version);
        let upstream = format!("http://{repeating}").parse().unwrap();
        let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(upstream))
            .await
            .unwrap();
        let answer = ask(culvert.http, "proxied.culvert.localhost", &get("", 200)).await;
        let (_, body) = answer.text.split_once("\r\n\r\n").unwrap();
        assert!(body.starts_with(begins), "{body:?}");
        soon("a clean end", tunnel.close()).await.unwrap();

        let mut endpoint = session.tcp_endpoint();
        endpoint.proxy_proto(version);
        let upstream = format!("tcp://{repeating}").parse().unwrap();
        let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(upstream))
            .await
            .unwrap();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let answer = raw(at, b"hello\r\n\r\n").await;
        let (_, body) = answer.text.split_once("\r\n\r\n").unwrap();
        assert!(body.starts_with(begins), "{body:?}");
        soon("a clean end", tunnel.close()).await.unwrap();
        eventually("the address is free", async || {
            list(&culvert, "endpoints").await.len() == 1
        })
        .await;
    }
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_internal_endpoint_of_an_agent_is_reached_by_policies_alone() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let service = Service::named("one").await;
    let (_, token) = credential(&culvert, json!([])).await;
    let session = connect(&culvert, &token).await;
    let mut endpoint = session.http_endpoint();
    endpoint
        .scheme(Scheme::HTTP)
        .domain("agent.internal")
        .binding("internal");
    let _tunnel = soon("an endpoint", endpoint.listen_and_forward(service.url()))
        .await
        .unwrap();
    let shown = list(&culvert, "endpoints").await;
    assert_eq!(shown[0]["bindings"], json!(["internal"]));
    let host = "front.culvert.localhost";
    let policy = "on_http_request: [{actions: [{type: forward-internal, config: {url: http://agent.internal}}]}]";
    let body = json!({"url": format!("http://{host}"), "traffic_policy": policy});
    culvert.create("endpoints", body).await;
    eventually("it is reached through the other", async || {
        let answer = ask(culvert.http, host, &get("", 200)).await;
        answer.status == 200 && answer.text.contains("x-service: one")
    })
    .await;
    assert_eq!(
        ask(culvert.http, "agent.internal", &get("", 404))
            .await
            .status,
        404
    );
    culvert.stop().await;
}

/// A self-signed certificate and its key, in PEM.
pub fn made(names: &[&str]) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// A TLS client that trusts an authority, and presents a certificate if it has one.
pub fn connector(authority: &[u8], shown: Option<&(String, String)>) -> tokio_rustls::TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls_pki_types::CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = rustls_pki_types::CertificateDer::pem_slice_iter(certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(chain.map(Result::unwrap).collect(), key)
                .unwrap()
        }
    };
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

/// A TLS service that responds on each connection with its first nine bytes.
pub async fn secure(tasks: &mut JoinSet<()>, shown: &(String, String)) -> url::Url {
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(
        rustls_pki_types::CertificateDer::pem_slice_iter(shown.0.as_bytes())
            .map(Result::unwrap)
            .collect(),
        PrivateKeyDer::from_pem_slice(shown.1.as_bytes()).unwrap(),
    )
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut tls) = acceptor.accept(socket).await else {
                continue;
            };
            let mut bytes = [0; 9];
            drop(tls.read_exact(&mut bytes).await);
            drop(tls.write_all(&bytes).await);
            drop(tls.shutdown().await);
        }
    });
    format!("tcp://{address}").parse().unwrap()
}

/// Sends a text over TLS and reads the response; `None` if either fails.
pub async fn talk(
    connector: &tokio_rustls::TlsConnector,
    at: SocketAddr,
    host: &'static str,
    said: &str,
) -> Option<String> {
    let exchange = async {
        let socket = TcpStream::connect(at).await.ok()?;
        let name = ServerName::try_from(host).unwrap();
        let mut tls = connector.connect(name, socket).await.ok()?;
        tls.write_all(said.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        // How the peer closes the connection does not matter.
        while tls.read_buf(&mut answer).await.unwrap_or(0) > 0 {}
        (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned())
    };
    soon("an answer in TLS", exchange).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_terminated_where_the_agent_configures_it() {
    const HOST: &str = "tls.culvert.localhost";
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (_, token) = credential(&culvert, json!([])).await;
    let session = connect(&culvert, &token).await;
    let mut tasks = JoinSet::new();
    let repeating = repeating(&mut tasks).await;
    let plain: url::Url = format!("tcp://{repeating}").parse().unwrap();
    let own = std::fs::read(culvert.settings.data_dir.join("ca.pem")).unwrap();
    let theirs = made(&[HOST]);
    let (by_own, by_theirs) = (connector(&own, None), connector(theirs.0.as_bytes(), None));
    let said = "hello\r\n\r\n";
    let echoed = |answer: Option<String>| answer.is_some_and(|answer| answer.ends_with(said));

    // TLS is terminated at the service: the agent forwards TLS, and the client sees the service's certificate.
    let secure = secure(&mut tasks, &theirs).await;
    let mut endpoint = session.tls_endpoint();
    endpoint.domain(HOST);
    let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(secure))
        .await
        .unwrap();
    assert!(echoed(talk(&by_theirs, culvert.https, HOST, said).await));
    assert_eq!(talk(&by_own, culvert.https, HOST, said).await, None);
    soon("a clean end", tunnel.close()).await.unwrap();

    // TLS is terminated at the server with the agent's certificate; the service gets plain bytes.
    let mut endpoint = session.tls_endpoint();
    endpoint
        .domain(HOST)
        .termination(Bytes::from(theirs.0.clone()), Bytes::from(theirs.1.clone()));
    let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(plain.clone()))
        .await
        .unwrap();
    assert!(echoed(talk(&by_theirs, culvert.https, HOST, said).await));
    assert_eq!(talk(&by_own, culvert.https, HOST, said).await, None);
    soon("a clean end", tunnel.close()).await.unwrap();

    // With client certificates, for tls and https.
    let (client, stranger) = (made(&["client"]), made(&["stranger"]));
    let (known, unknown) = (
        connector(&own, Some(&client)),
        connector(&own, Some(&stranger)),
    );
    let mut endpoint = session.tls_endpoint();
    endpoint
        .domain(HOST)
        .mutual_tlsca(Bytes::from(client.0.clone()));
    let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(plain.clone()))
        .await
        .unwrap();
    assert!(echoed(talk(&known, culvert.https, HOST, said).await));
    for other in [&unknown, &by_own] {
        assert_eq!(talk(other, culvert.https, HOST, said).await, None);
    }
    soon("a clean end", tunnel.close()).await.unwrap();

    let service = Service::named("one").await;
    let mut endpoint = session.http_endpoint();
    endpoint
        .domain(HOST)
        .mutual_tlsca(Bytes::from(client.0.clone()));
    let _tunnel = soon("an endpoint", endpoint.listen_and_forward(service.url()))
        .await
        .unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    let answer = talk(&known, culvert.https, HOST, &request).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for other in [&unknown, &by_own] {
        let answer = talk(other, culvert.https, HOST, &request).await;
        assert!(answer.is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")));
    }
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_sign_in_at_an_endpoint_of_an_agent() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let Some(provider) = Provider::start(&[callback(&culvert)]) else {
        culvert.stop().await;
        return;
    };
    let origin = Receiver::start().await;
    let (_, token) = credential(&culvert, json!([])).await;
    let session = connect(&culvert, &token).await;
    let mut login = OidcOptions::new(&provider.issuer, "app", "a secret of the tests");
    login
        .scope("profile")
        .scope("email")
        .allow_email("ann@x.example");
    let mut endpoint = session.http_endpoint();
    endpoint.domain(crate::login::HOST).oidc(login);
    let upstream = format!("http://{}", origin.address).parse().unwrap();
    let _tunnel = soon("an endpoint", endpoint.listen_and_forward(upstream))
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ann = Browser::new(folder.path(), "ann", &culvert, crate::login::HOST);
    let page = ann.log_in("/", "ann").await;
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(origin.received().len(), 1);
    // The provider accepts all users, the agent only some.
    let bob = Browser::new(folder.path(), "bob", &culvert, crate::login::HOST);
    let page = bob.log_in("/", "bob").await;
    assert_eq!(page.status, 403, "{page:?}");
    assert_eq!(origin.received().len(), 1);
    culvert.stop().await;
}

/// All sources of handshake settings, from an agent's options and from its policy: none of them drops the requirement
/// for client certificates.
#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_is_required_with_every_other_tls_setting() {
    const HOST: &str = "mutual.culvert.localhost";
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (_, token) = credential(&culvert, json!([])).await;
    let session = connect(&culvert, &token).await;
    let mut tasks = JoinSet::new();
    let repeating = repeating(&mut tasks).await;
    let plain: url::Url = format!("tcp://{repeating}").parse().unwrap();
    let own = std::fs::read(culvert.settings.data_dir.join("ca.pem")).unwrap();
    let (theirs, client, stranger) = (made(&[HOST]), made(&["client"]), made(&["stranger"]));
    let request = format!("GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n");
    // A known client gets a response, others do not.
    let check = async |authority: &[u8], what: &str| {
        let passes = async |shown: Option<&(String, String)>| {
            let answer = talk(&connector(authority, shown), culvert.https, HOST, &request).await;
            answer.is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        eventually(what, async || passes(Some(&client)).await).await;
        assert!(!passes(Some(&stranger)).await, "{what}: a stranger");
        assert!(!passes(None).await, "{what}: without a certificate");
    };

    // TLS is terminated at the server, with its own or the agent's certificate.
    let mut endpoint = session.tls_endpoint();
    endpoint
        .domain(HOST)
        .termination(Bytes::from(theirs.0.clone()), Bytes::from(theirs.1.clone()))
        .mutual_tlsca(Bytes::from(client.0.clone()));
    let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(plain.clone()))
        .await
        .unwrap();
    check(theirs.0.as_bytes(), "tls with a certificate of the agent").await;
    soon("a clean end", tunnel.close()).await.unwrap();

    // An agent's policy with another handshake setting.
    let policy = r#"{"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": {"min_version": "1.2"}}]}]}"#;
    let service = Service::named("one").await;
    let mut endpoint = session.http_endpoint();
    endpoint
        .domain(HOST)
        .mutual_tlsca(Bytes::from(client.0.clone()))
        .traffic_policy(policy);
    let mut tunnel = soon("an endpoint", endpoint.listen_and_forward(service.url()))
        .await
        .unwrap();
    check(&own, "https with a policy").await;
    soon("a clean end", tunnel.close()).await.unwrap();

    // An agent's policy with the same setting is rejected.
    let policy = r#"{"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": {"mutual_tls_verification_strategy": "request"}}]}]}"#;
    let mut endpoint = session.http_endpoint();
    endpoint
        .domain(HOST)
        .mutual_tlsca(Bytes::from(client.0.clone()))
        .traffic_policy(policy);
    let refused = soon("an endpoint", endpoint.listen_and_forward(service.url())).await;
    let why = format!("{:?}", refused.err().expect("the endpoint is rejected"));
    assert!(why.contains("359"), "{why}");

    // Our own agent: TLS is terminated at the server, and at the agent.
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (crt, key, cas) = (
        file("crt.pem", &theirs.0),
        file("key.pem", &theirs.1),
        file("cas.pem", &client.0),
    );
    let (service, url) = (repeating.to_string(), format!("tls://{HOST}"));
    let at_agent = ["--crt", &crt, "--key", &key];
    for (arguments, authority) in [(&at_agent[..0], &own[..]), (&at_agent, theirs.0.as_bytes())] {
        let mut all = vec!["tls", &service, "--url", &url, "--mutual-tls-cas", &cas];
        all.extend(arguments);
        let mut child = crate::agents::own_agent(&culvert, &json!({"token": token}), &all);
        check(authority, &format!("culvert {}", all.join(" "))).await;
        soon("the end of the agent", child.kill()).await.unwrap();
        eventually("the name is free", async || {
            let listed = culvert.call(http::Method::GET, "/endpoints", None).await;
            listed.body["endpoints"]
                .as_array()
                .is_some_and(Vec::is_empty)
        })
        .await;
    }
    culvert.stop().await;
}
