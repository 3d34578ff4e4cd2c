//! Kubernetes bindings: an operator registers as the public one does, gets its certificate, and reaches the endpoints
//! that it selects through the listener for operators, until it may no longer.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{Harness, Receiver, backends, eventually};

const INGRESS: &str = "kubernetes-binding-ingress.culvert.localhost";
/// The upgrade message for `shop.web` and port 80.
const ASK: &[u8] = b"\x0c\x00\x0a\x08shop.web\x10\x50";

/// The forwarder of an operator: it dials with the certificate that the API returned.
struct Forwarder {
    ingress: SocketAddr,
    config: Arc<rustls::ClientConfig>,
}

impl Forwarder {
    fn new(culvert: &Harness, operator: &Value, key: &KeyPair) -> Self {
        let binding = &operator["binding"];
        let (host, port) = binding["ingress_endpoint"]
            .as_str()
            .and_then(|address| address.split_once(':'))
            .unwrap();
        assert_eq!(host, INGRESS);
        let mut roots = rustls::RootCertStore::empty();
        let ca = culvert.settings.data_dir.join("ca.pem");
        roots
            .add(CertificateDer::from_pem_file(ca).unwrap())
            .unwrap();
        let leaf = binding["cert"]["cert"].as_str().unwrap();
        let leaf = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![leaf],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        Self {
            ingress: ([127, 0, 0, 1], port.parse().unwrap()).into(),
            config: Arc::new(config),
        }
    }

    /// Asks for `shop.web`. Returns the connection with the bytes of the response.
    async fn dial(&self) -> std::io::Result<(TlsStream<TcpStream>, Vec<u8>)> {
        let tcp = TcpStream::connect(self.ingress).await?;
        let name = ServerName::try_from(INGRESS).unwrap();
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let mut stream = connector.connect(name, tcp).await?;
        stream.write_all(ASK).await?;
        let mut response = vec![0; stream.read_u16_le().await?.into()];
        stream.read_exact(&mut response).await?;
        Ok((stream, response))
    }

    /// Whether the response names this endpoint.
    async fn reaches(&self, endpoint: &Value) -> bool {
        let id = endpoint["id"].as_str().unwrap().as_bytes();
        let dialled = self.dial().await;
        dialled.is_ok_and(|(_, response)| response.windows(id.len()).any(|part| part == id))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_reaches_its_selected_endpoints() {
    for backend in backends().await {
        let culvert = Harness::start_with(&backend, |settings| {
            settings.kubernetes.addr = "127.0.0.1:0".into();
        })
        .await;
        let origin = Receiver::start().await;
        let upstream = format!("http://{}", origin.address);
        let endpoint = |url: &str, metadata: &str| {
            let upstream = match url.starts_with("tcp:") {
                true => "tcp://127.0.0.1:1",
                false => &upstream,
            };
            json!({
                "url": url, "bindings": ["kubernetes"], "metadata": metadata,
                "upstream_url": upstream,
            })
        };
        let shop = endpoint("http://shop.web", "team=shop");
        let shop = culvert.create("endpoints", shop).await;
        assert_eq!(shop["bindings"], json!(["kubernetes"]));
        assert_eq!(
            (&shop["url"], &shop["public_url"]),
            (&json!("http://shop.web"), &shop["url"])
        );
        culvert
            .create("endpoints", endpoint("http://pay.web:8080", "team=pay"))
            .await;
        for (url, code) in [
            ("https://shop.web", "ERR_NGROK_18018"),
            ("http://shop", "ERR_NGROK_18014"),
            ("http://a.shop.web", "ERR_NGROK_18014"),
            ("http://*.web", "ERR_NGROK_18014"),
            ("tcp://shop.web", "ERR_NGROK_18003"),
            ("tcp://shop.web:80", "ERR_NGROK_18017"),
        ] {
            let refused = endpoint(url, "");
            let refused = culvert
                .call(Method::POST, "/endpoints", Some(refused))
                .await;
            assert_eq!(refused.body["error_code"], code, "{url}");
        }

        let key = KeyPair::generate().unwrap();
        let csr = CertificateParams::default()
            .serialize_request(&key)
            .unwrap();
        let body = json!({
            "enabled_features": ["Bindings"], "metadata": "{\"namespace.uid\":\"1\"}",
            "deployment": {"name": "op", "namespace": "ngrok", "version": "1"},
            "binding": {
                "endpoint_selectors": ["endpoint.metadata.contains('team=shop')"],
                "csr": csr.pem().unwrap(),
            },
        });
        let operator = culvert.create("kubernetes_operators", body).await;
        let path = format!("/kubernetes_operators/{}", operator["id"].as_str().unwrap());
        let bound = async || {
            let bound = format!("{path}/bound_endpoints");
            let list = culvert.call(Method::GET, &bound, None).await.body;
            let ids = list["endpoints"].as_array().unwrap().iter();
            ids.map(|one| one["id"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(bound().await, [shop["id"].clone()]);

        let forwarder = Forwarder::new(&culvert, &operator, &key);
        eventually("the operator is known to the edge", async || {
            forwarder.reaches(&shop).await
        })
        .await;
        let (mut stream, _) = forwarder.dial().await.unwrap();
        let request = "GET /cart HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The edge may close TCP without the end of TLS.
        drop(stream.read_to_end(&mut answer).await);
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
        assert_eq!(origin.received()[0].path, "/cart");
        assert_eq!(culvert.get("shop.web", "/").await.status, 404);

        // Each of these takes the endpoint from the operator, and back.
        let shop_path = format!("/endpoints/{}", shop["id"].as_str().unwrap());
        for (path, off, on) in [
            (
                &path,
                json!({"enabled_features": []}),
                json!({"enabled_features": ["bindings"]}),
            ),
            (
                &path,
                json!({"binding": {"endpoint_selectors": ["false"]}}),
                json!({"binding": {"endpoint_selectors": ["endpoint.port == 80"]}}),
            ),
            (
                &shop_path,
                json!({"metadata": "team=pay"}),
                json!({"metadata": "team=shop"}),
            ),
        ] {
            if path == &shop_path {
                let selectors = json!({"endpoint_selectors": ["endpoint.metadata == 'team=shop'"]});
                let change = json!({"binding": selectors});
                let operator =
                    format!("/kubernetes_operators/{}", operator["id"].as_str().unwrap());
                culvert.call(Method::PATCH, &operator, Some(change)).await;
            }
            for (change, expected) in [(off, false), (on, true)] {
                let changed = culvert
                    .call(Method::PATCH, path, Some(change.clone()))
                    .await;
                assert_eq!(changed.status, 200, "{}", changed.body);
                eventually(&format!("{change} is in force"), async || {
                    forwarder.reaches(&shop).await == expected
                })
                .await;
                assert_eq!(bound().await.len(), usize::from(expected), "{change}");
            }
        }
        let deleted = culvert.call(Method::DELETE, &path, None).await;
        assert_eq!(deleted.status, 204);
        eventually(
            "the certificate of a deleted operator is refused",
            async || forwarder.dial().await.is_err(),
        )
        .await;
        culvert.stop().await;
    }
}

/// The certificate of an operator opens the listener while its owner is active.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_an_inactive_or_deleted_bot_is_refused() {
    let culvert = Harness::start_with(&crate::harness::Backend::Sqlite, |settings| {
        settings.kubernetes.addr = "127.0.0.1:0".into();
    })
    .await;
    let shop = json!({
        "url": "http://shop.web", "bindings": ["kubernetes"], "upstream_url": "http://127.0.0.1:1",
    });
    let shop = culvert.create("endpoints", shop).await;
    let bot = culvert.create("bot_users", json!({"name": "b"})).await;
    let token = culvert.create("api_keys", json!({"owner_id": bot["id"]}));
    let token = token.await["token"].as_str().unwrap().to_owned();
    let key = KeyPair::generate().unwrap();
    let csr = CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    let body = json!({
        "enabled_features": ["bindings"],
        "binding": {"endpoint_selectors": ["true"], "csr": csr.pem().unwrap()},
    });
    let operator = culvert
        .client_with(&token)
        .expect(Method::POST, "/kubernetes_operators", Some(&body))
        .await
        .unwrap();
    let forwarder = Forwarder::new(&culvert, &operator, &key);
    let path = format!("/bot_users/{}", bot["id"].as_str().unwrap());
    for active in [true, false, true] {
        let body = json!({ "active": active });
        culvert.call(Method::PATCH, &path, Some(body)).await;
        eventually(
            &format!("the bot is active: {active}"),
            async || match active {
                true => forwarder.reaches(&shop).await,
                false => forwarder.dial().await.is_err(),
            },
        )
        .await;
    }
    assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
    eventually("the bot is gone", async || forwarder.dial().await.is_err()).await;
    let path = format!("/kubernetes_operators/{}", operator["id"].as_str().unwrap());
    assert_eq!(culvert.call(Method::GET, &path, None).await.status, 404);
    culvert.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_bindings_are_refused_without_a_listener() {
    let culvert = Harness::start(&crate::harness::Backend::Sqlite).await;
    let body = json!({
        "url": "http://shop.web", "bindings": ["kubernetes"], "upstream_url": "http://127.0.0.1:1",
    });
    let refused = culvert.call(Method::POST, "/endpoints", Some(body)).await;
    assert_eq!(refused.body["error_code"], "ERR_NGROK_18014");
    let why = refused.body["msg"].as_str().unwrap();
    assert!(why.contains("`kubernetes.addr`"), "{why}");
    culvert.stop().await;
}
