//! A custom domain from its reservation to a request over TLS with its own certificate, and its state after the
//! certificate is deleted.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::harness::{Harness, Receiver, backends, eventually};

const NAME: &str = "app.custom.example";

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_domain_is_served_under_its_own_certificate_while_it_has_one() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let origin = Receiver::start().await;
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let body =
            json!({"certificate_pem": certificate.pem(), "private_key_pem": key.serialize_pem()});
        let uploaded = culvert.create("tls_certificates", body).await;

        let endpoint = json!({
            "url": format!("https://{NAME}"),
            "upstream_url": format!("http://{}", origin.address),
        });
        let early = culvert
            .call(Method::POST, "/endpoints", Some(endpoint.clone()))
            .await;
        assert_eq!(early.body["error_code"], "ERR_NGROK_18006");
        let body = json!({"domain": NAME, "certificate_id": uploaded["id"]});
        let domain = culvert.create("reserved_domains", body).await;
        let endpoint = culvert.create("endpoints", endpoint).await;
        assert_eq!(endpoint["domain"]["id"], domain["id"]);

        let trusted = certificate.der();
        eventually("the domain is served under its certificate", async || {
            request(culvert.https, NAME, trusted).await == Some(200)
        })
        .await;
        let path = format!("/reserved_domains/{}", domain["id"].as_str().unwrap());
        let refused = culvert.call(Method::DELETE, &path, None).await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_446");

        let uploaded = format!("/tls_certificates/{}", uploaded["id"].as_str().unwrap());
        let refused = culvert.call(Method::DELETE, &uploaded, None).await;
        assert_eq!(refused.body["error_code"], "ERR_NGROK_1966");
        let attached = format!("{path}/certificate");
        let detached = culvert.call(Method::DELETE, &attached, None).await;
        assert_eq!(detached.status, 204);
        let deleted = culvert.call(Method::DELETE, &uploaded, None).await;
        assert_eq!(deleted.status, 204);
        let shown = culvert.call(Method::GET, &path, None).await;
        assert!(shown.body["certificate"].is_null());
        eventually("the certificate is presented no more", async || {
            request(culvert.https, NAME, trusted).await.is_none()
        })
        .await;
        culvert.stop().await;
    }
}

/// Sends one request to a domain by its server name. Returns the status if the server presented this certificate;
/// `None` if the handshake failed.
pub async fn request(
    https: SocketAddr,
    name: &'static str,
    trusted: &CertificateDer<'static>,
) -> Option<u16> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(https).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from(name).unwrap(), stream)
        .await
        .ok()?;
    let presented = stream.get_ref().1.peer_certificates().unwrap();
    assert_eq!(presented, std::slice::from_ref(trusted));
    let head = format!("GET / HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.split(' ').nth(1)?.parse().ok()
}
