//! The messages of the official Go SDK, version by version, from a peer that sends exactly them: which protocol arrives
//! for its options `WithUpstreamProtocol` and `WithAgentTLSTermination`.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_mux::{Limits, Side};
use culvert_tunnel::driver::{self, Session, Stream};
use culvert_tunnel::wire::{self, StreamType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::agents::{credential, soon};
use crate::harness::{Backend, Harness, raw};

/// TLS to this address, as a client that trusts the installation's authority.
async fn tls(
    culvert: &Harness,
    at: SocketAddr,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let ca = std::fs::read(culvert.settings.data_dir.join("ca.pem")).unwrap();
    let ca = CertificateDer::from_pem_slice(&ca).unwrap();
    tls_to(at, name, ca, &[]).await
}

/// TLS to this address, with the trusted authority and the protocols that the client offers.
async fn tls_to(
    at: SocketAddr,
    name: &str,
    ca: CertificateDer<'static>,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let socket = TcpStream::connect(at).await.unwrap();
    let name = name.to_owned().try_into().unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
}

/// Makes a call and reads its reply to the end.
async fn ask(session: &Session, kind: StreamType, of: &Value) -> Value {
    let mut stream = session.open(wire::call(kind, of)).unwrap();
    let mut reply = Vec::new();
    soon("a reply", stream.read_to_end(&mut reply))
        .await
        .unwrap();
    serde_json::from_slice(&reply).unwrap()
}

/// A session, with the message that the SDK sends.
async fn connect(culvert: &Harness, tasks: &mut JoinSet<()>) -> Session {
    let socket = tls(culvert, culvert.agents, "localhost").await.unwrap();
    let (session, driver) = driver::connect(socket, Side::Client, Limits::default());
    tasks.spawn(async { drop(driver.run().await) });
    let token = credential(culvert, json!([])).await.1;
    let auth = json!({"Version": ["3", "2"], "ClientId": "", "Extra": {
        "OS": "linux", "Arch": "amd64", "Authtoken": token, "Version": "2.1.1", "Hostname": "",
        "UserAgent": "ngrok-go/2.1.1", "Metadata": "", "Cookie": "",
        "HeartbeatInterval": 10_000_000_000_i64, "HeartbeatTolerance": 60_000_000_000_i64,
        "Fingerprint": null, "UpdateUnsupportedError": "no", "StopUnsupportedError": "no",
        "RestartUnsupportedError": "no", "ProxyType": "none", "MutualTLS": false, "ServiceRun": false,
        "ConfigVersion": "", "CustomInterface": false, "CustomCAs": true, "ClientType": "ngrok-go",
        "LegNumber": 0}});
    let reply = ask(&session, StreamType::AUTH, &auth).await;
    assert_eq!(reply["Error"].as_str().unwrap_or_default(), "", "{reply}");
    session
}

/// Binds with the options that the SDK sends for a URL, and returns the public URL.
async fn bind(session: &Session, url: &str, forwards_proto: &str, proxy_proto: u8) -> String {
    let proto = url.split("://").next().unwrap();
    let opts = match proto {
        "tls" => {
            json!({"URL": url, "Domain": "", "Hostname": "", "Subdomain": "", "ProxyProto": proxy_proto,
            "MutualTLSAtAgent": false, "MutualTLSAtEdge": null, "TLSTermination": null,
            "IPRestriction": null, "Policy": null, "TrafficPolicy": ""})
        }
        _ => json!({"URL": url, "Domain": "", "Hostname": "", "Subdomain": "", "Auth": "",
            "HostHeaderRewrite": false, "LocalURLScheme": "", "ProxyProto": proxy_proto, "Compression": null,
            "CircuitBreaker": null, "IPRestriction": null, "BasicAuth": null, "OAuth": null,
            "OIDC": null, "WebhookVerification": null, "MutualTLSCA": null, "RequestHeaders": null,
            "ResponseHeaders": null, "WebsocketTCPConverter": null, "UserAgentFilter": null,
            "Policy": null, "TrafficPolicy": ""}),
    };
    let request = json!({"Id": "", "Proto": proto, "ForwardsTo": "app://host/program?pid=1",
        "ForwardsProto": forwards_proto, "Opts": opts, "Extra": {"Name": "", "Token": "",
        "IPPolicyRef": "", "Metadata": "", "Description": "", "Bindings": null,
        "PoolingEnabled": false}});
    let reply = ask(session, StreamType::BIND, &request).await;
    assert_eq!(reply["Error"].as_str().unwrap_or_default(), "", "{reply}");
    reply["URL"].as_str().unwrap().to_owned()
}

/// The next connection: its header, and the stream with the payload.
async fn accept(session: &Session) -> (Value, Stream) {
    let mut stream = soon("a connection", session.accept()).await.unwrap();
    assert_eq!(stream.read_u32().await.unwrap(), 3, "a proxied connection");
    let length = stream.read_u64_le().await.unwrap();
    let mut header = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut header).await.unwrap();
    (serde_json::from_slice(&header).unwrap(), stream)
}

async fn first_bytes<const N: usize>(stream: &mut Stream) -> [u8; N] {
    let mut bytes = [0; N];
    soon("the first bytes", stream.read_exact(&mut bytes))
        .await
        .unwrap();
    bytes
}

/// Up to 2.1.1 the SDK sends `ForwardsProto`, and passes the bytes on. Later versions send nothing and speak to the
/// service themselves: HTTP/2 to one with TLS only.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_protocol_arrives_as_each_version_sends_it() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let mut tasks = JoinSet::new();
    let session = connect(&culvert, &mut tasks).await;
    for (host, sent, begins) in [
        ("old", "http2", &b"PRI * HTTP/2.0"[..]),
        ("new", "", b"GET / HTTP/1.1"),
    ] {
        let host = format!("{host}.culvert.localhost");
        bind(&session, &format!("http://{host}"), sent, 0).await;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let at = culvert.http;
        tasks.spawn(async move { drop(raw(at, request.as_bytes()).await) });
        let (header, mut stream) = accept(&session).await;
        assert_eq!(
            (&header["Proto"], &header["PassthroughTLS"]),
            (&json!("http"), &json!(false))
        );
        assert_eq!(first_bytes::<14>(&mut stream).await, begins, "{host}");
    }
    drop(tasks);
    culvert.stop().await;
}

/// A TLS server of the agent that speaks HTTP/2, and its certificate.
fn agent_tls(name: &str) -> (TlsAcceptor, CertificateDer<'static>) {
    let own = rcgen::generate_simple_self_signed([name.into()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), own.cert.der().clone())
}

/// `WithAgentTLSTermination` leaves no trace in the messages. It works for a tls endpoint, whose connections arrive
/// encrypted. The client agrees on HTTP/2 with the agent, which is how a gRPC service stays reachable.
#[tokio::test(flavor = "multi_thread")]
async fn a_tls_endpoint_carries_http2_to_the_agent() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let mut tasks = JoinSet::new();
    let session = connect(&culvert, &mut tasks).await;
    let host = "end.culvert.localhost";
    let (acceptor, certificate) = agent_tls(host);
    bind(&session, &format!("tls://{host}"), "", 0).await;
    let serving = async {
        let (header, stream) = accept(&session).await;
        assert_eq!(
            (&header["Proto"], &header["PassthroughTLS"]),
            (&json!("tls"), &json!(true))
        );
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut message = [0; 7];
        stream.read_exact(&mut message).await.unwrap();
        stream.write_all(&message).await.unwrap();
        stream
    };
    let asking = async {
        let mut client = tls_to(culvert.https, host, certificate, &[b"h2", b"http/1.1"])
            .await
            .unwrap();
        assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        client.write_all(b"message").await.unwrap();
        let mut echo = [0; 7];
        client.read_exact(&mut echo).await.unwrap();
        echo
    };
    let (_open, echo) = soon("an echo", Box::pin(async { tokio::join!(serving, asking) })).await;
    assert_eq!(&echo, b"message");
    drop(tasks);
    culvert.stop().await;
}

/// The PROXY header comes before the handshake, so an agent that expects the handshake first, such as the SDK with both
/// options, rejects the connection. One that reads the header first finds the whole handshake after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_header_precedes_the_handshake_with_the_agent() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let mut tasks = JoinSet::new();
    let session = connect(&culvert, &mut tasks).await;
    let host = "proxied.culvert.localhost";
    let (acceptor, certificate) = agent_tls(host);
    bind(&session, &format!("tls://{host}"), "", 1).await;
    let serving = async {
        let (_, mut stream) = accept(&session).await;
        assert_eq!(first_bytes::<11>(&mut stream).await, *b"PROXY TCP4 ");
        while first_bytes::<1>(&mut stream).await != *b"\n" {}
        acceptor.accept(stream).await.unwrap()
    };
    let asking = tls_to(culvert.https, host, certificate, &[b"h2"]);
    let (_open, client) = soon("a handshake", async { tokio::join!(serving, asking) }).await;
    client.unwrap();
    drop(tasks);
    culvert.stop().await;
}

/// The server terminates the TLS of an https endpoint. An agent that expects TLS there breaks the exchange, and the
/// client learns that the agent is the cause.
#[tokio::test(flavor = "multi_thread")]
async fn an_https_endpoint_never_carries_tls_to_the_agent() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let mut tasks = JoinSet::new();
    let session = connect(&culvert, &mut tasks).await;
    let at = culvert.https;
    bind(&session, "https://end.culvert.localhost", "", 0).await;
    for (answer, expected) in [
        // What a TLS server says to plain bytes: the alert `unexpected_message`.
        (&b"\x15\x03\x01\x00\x02\x02\x0a"[..], "ERR_NGROK_3004"),
        // The SDK, which closes the connection.
        (b"", "ERR_NGROK_8012"),
        // What Go's HTTP server says instead.
        (
            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
            "Client sent an HTTP request to an HTTPS server.",
        ),
    ] {
        let asking = async {
            let mut client = tls(&culvert, at, "end.culvert.localhost").await.unwrap();
            let request =
                b"GET / HTTP/1.1\r\nhost: end.culvert.localhost\r\nconnection: close\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut response = Vec::new();
            drop(client.read_to_end(&mut response).await);
            String::from_utf8_lossy(&response).into_owned()
        };
        let serving = async {
            let (header, mut stream) = accept(&session).await;
            assert_eq!(
                (&header["Proto"], &header["PassthroughTLS"]),
                (&json!("https"), &json!(false))
            );
            assert_eq!(first_bytes::<5>(&mut stream).await, *b"GET /");
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            drop(stream.read_to_end(&mut rest).await);
        };
        let (response, ()) = soon("a response", async { tokio::join!(asking, serving) }).await;
        assert!(response.contains(expected), "{response}");
    }
    drop(tasks);
    culvert.stop().await;
}
