//! Starting, being healthy, restarting on the same state, and stopping.

use std::sync::Arc;

use http::Method;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio_rustls::TlsConnector;

use crate::events_arrive::subscribe_debug;
use crate::harness::{Backend, Harness, Receiver, backends, eventually, raw};
use crate::kill::Process;

#[tokio::test(flavor = "multi_thread")]
async fn health_readiness_and_metrics_respond() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        for path in ["/healthz", "/readyz"] {
            let answer = culvert
                .client_with("")
                .call(Method::GET, path, None)
                .await
                .unwrap();
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
        let origin = Receiver::start().await;
        culvert.endpoint("app", origin.address).await;
        assert_eq!(culvert.get("app.culvert.localhost", "/").await.status, 200);
        let metrics = raw(
            culvert.metrics,
            b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert_eq!(metrics.status, 200);
        // A web page that points its own name to this machine reads nothing.
        let rebound = raw(
            culvert.metrics,
            b"GET /metrics HTTP/1.1\r\nhost: web.example\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert_eq!(rebound.status, 421, "{}", rebound.text);
        for name in [
            "culvert_edge_requests_total",
            "culvert_events_offered_total",
            "culvert_panics_total",
        ] {
            assert!(
                metrics.text.contains(name),
                "{name} is missing:\n{}",
                metrics.text
            );
        }
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_all_objects_and_makes_no_new_first_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Process::start(&data, "");
    let token = culvert::client::read_token(&data.join("bootstrap-key")).unwrap();
    let client = culvert::client::Client::new(&server.api, token.clone()).unwrap();
    let key = client
        .expect(Method::POST, "/api_keys", Some(&json!({})))
        .await
        .unwrap();
    assert_eq!(server.terminate(), 0);

    let server = Process::start(&data, "");
    let client = culvert::client::Client::new(&server.api, token).unwrap();
    let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
    assert_eq!(
        client.call(Method::GET, &path, None).await.unwrap().status,
        200
    );
    let list = client.expect(Method::GET, "/api_keys", None).await.unwrap();
    assert_eq!(list["keys"].as_array().unwrap().len(), 2);
    assert_eq!(server.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_created_in_the_second_of_the_bootstrap_are_newer() {
    for _ in 0..4 {
        let culvert = Harness::start(&Backend::Sqlite).await;
        let made = culvert.create("api_keys", json!({})).await;
        let list = culvert.call(Method::GET, "/api_keys", None).await.body;
        assert_eq!(list["keys"][0]["id"], made["id"]);
        culvert.stop().await;
    }
}

#[test]
fn a_reload_ends_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let server = Process::start(&folder.path().join("data"), "");
    server.signal("HUP");
    assert_eq!(server.terminate(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_reaches_the_edge_without_a_failed_request() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let origin = Receiver::start().await;
    culvert.endpoint("steady", origin.address).await;
    let requests = {
        let changes = async {
            for n in 0..10 {
                culvert.endpoint(&format!("fresh{n}"), origin.address).await;
            }
        };
        tokio::pin!(changes);
        let mut requests = 0;
        loop {
            tokio::select! {
                biased;
                () = &mut changes => break requests,
                answer = culvert.get("steady.culvert.localhost", "/") => {
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    requests += 1;
                }
            }
        }
    };
    assert!(requests > 10, "requests flowed: {requests}");
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_key_is_refused_immediately() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        for _ in 0..20 {
            let key = culvert.create("api_keys", json!({})).await;
            let user = culvert.client_with(key["token"].as_str().unwrap());
            let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
            assert_eq!(
                user.call(Method::GET, &path, None).await.unwrap().status,
                200
            );
            assert_eq!(
                user.call(Method::DELETE, &path, None).await.unwrap().status,
                204
            );
            let dead = user.call(Method::GET, &path, None).await.unwrap();
            assert_eq!(
                (dead.status, dead.body["error_code"].as_str()),
                (401, Some("ERR_NGROK_203"))
            );
        }
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_endpoints_carry_bytes_and_report_the_connection() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (origin, hook) = (Receiver::start().await, Receiver::start().await);
    subscribe_debug(
        &culvert,
        &hook,
        json!([{"type": "tcp_connection_closed.v0"}]),
    )
    .await;
    let body = json!({"url": "tcp://", "upstream_url": format!("tcp://{}", origin.address)});
    let endpoint = culvert.create("endpoints", body).await;
    let port = u16::try_from(endpoint["port"].as_u64().unwrap()).unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    eventually("the port is open", async || {
        tokio::net::TcpStream::connect(address).await.is_ok()
    })
    .await;
    let answer = raw(
        address,
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(answer.status, 200);
    eventually("the connection's event arrives", async || {
        hook.events().iter().any(|event| {
            event["object"]["conn"]["server_port"] == port
                && event["object"]["conn"]["bytes_out"].as_u64() == Some(answer.text.len() as u64)
        })
    })
    .await;
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn https_is_served_under_the_installations_own_authority() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (origin, hook) = (Receiver::start().await, Receiver::start().await);
    subscribe_debug(
        &culvert,
        &hook,
        json!([{"type": "http_request_complete.v0"}]),
    )
    .await;
    let body = json!({
        "url": "https://safe.culvert.localhost",
        "upstream_url": format!("http://{}", origin.address),
    });
    culvert.create("endpoints", body).await;
    eventually("a request over TLS and HTTP/2 is answered", async || {
        over_http2(&culvert, "safe.culvert.localhost").await == Some(200)
    })
    .await;
    let events = hook.wait_for("http_request_complete.v0", 1).await;
    let object = &events[0]["object"];
    assert_eq!(object["http"]["request"]["url"]["scheme"], "https");
    assert_eq!(object["tls"]["version"], "1.3");
    assert_eq!(object["conn"]["server_name"], "safe.culvert.localhost");
    culvert.stop().await;
}

/// One request with the installation's authority as the only root; the status, if there is one.
async fn over_http2(culvert: &Harness, host: &str) -> Option<u16> {
    let mut roots = rustls::RootCertStore::empty();
    let pem = culvert.settings.data_dir.join("ca.pem");
    roots
        .add(CertificateDer::from_pem_file(pem).unwrap())
        .unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let mut config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(culvert.https).await.unwrap();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    // Before the endpoint is live its name is unknown.
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .ok()?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let request = http::Request::get(format!("https://{host}/"))
        .body(Empty::<Bytes>::new())
        .unwrap();
    Some(sender.send_request(request).await.ok()?.status().as_u16())
}
