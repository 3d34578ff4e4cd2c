//! TLS clients that are older than what they meet: without a server name, without extended master secret.

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_policy::Scheme;
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::handshakes::ruled;
use super::harness::*;
use super::mutual::Ca;
use crate::{Settings, Snapshot};

/// The first bytes of a client of TLS 1.2 that knows no extension later than RFC 5246 and RFC 6066.
fn old_hello(name: &str) -> Vec<u8> {
    let vector = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        [&length[..], bytes].concat()
    };
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &vector(body)].concat();
    let host = [&[0][..], &vector(name.as_bytes())].concat();
    let extensions = [
        extension(0, &vector(&host)),
        // secp256r1 and X25519.
        extension(10, &vector(&[0, 23, 0, 29])),
        extension(11, &[1, 0]),
        // ECDSA and RSA with SHA-256.
        extension(13, &vector(&[4, 3, 4, 1, 8, 4])),
    ]
    .concat();
    // ECDHE with AES-128-GCM.
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &vector(&[0xC0, 0x2B, 0xC0, 0x2F]),
        &[1, 0],
        &vector(&extensions),
    ]
    .concat();
    let message = [&[1, 0][..], &vector(&body)].concat();
    [&[22, 3, 1][..], &vector(&message)].concat()
}

#[tokio::test]
async fn clients_without_extended_master_secret_are_accepted_if_a_setting_says_so() {
    for accepts in [false, true] {
        let rig = Rig::with(Settings {
            tls12_without_ems: accepts,
            ..settings()
        })
        .await;
        let (names, key, _) = certificate(&["app.example", "mutual.example"]);
        let none = &culvert_policy::Resources::default();
        let ca = Ca::new("ours");
        let asks = serde_json::json!([{"actions": [{"type": "terminate-tls", "config": {"mutual_tls_certificate_authorities": [ca.pem]}}]}]);
        let nothing = serde_json::json!([]);
        let snapshot = Snapshot::builder()
            .endpoint(ruled(Scheme::Https, "app.example", "", &nothing, none))
            .endpoint(ruled(Scheme::Https, "mutual.example", "", &asks, none))
            .certificate(names, key);
        rig.edge.publish(snapshot.build()).await;
        // With a client certificate the secret must be bound to its handshake.
        for (name, is_accepted) in [("app.example", accepts), ("mutual.example", false)] {
            let stream = TcpStream::connect(rig.edge.https_addr().unwrap()).await;
            let mut client = Client::new(stream.unwrap());
            client.send(old_hello(name)).await;
            let record = soon("a record", client.take(6)).await.unwrap();
            // ServerHello, or a fatal alert: handshake_failure.
            let kind = if is_accepted { [22, 2] } else { [21, 2] };
            assert_eq!([record[0], record[5]], kind, "{name} {accepts}");
            if !is_accepted {
                assert_eq!(client.take(1).await.unwrap(), [40], "{name}");
            }
        }
    }
}

/// A handshake without server name.
async fn unnamed(rig: &Rig, root: &CertificateDer<'static>) -> Option<TlsStream<TcpStream>> {
    let mut config: ClientConfig = tls_config(root, "http/1.1");
    config.enable_sni = false;
    let stream = TcpStream::connect(rig.edge.https_addr().unwrap()).await;
    let name = ServerName::try_from("app.example").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream.unwrap())
        .await
        .ok()
}

#[tokio::test]
async fn clients_without_server_name_get_the_default_one() {
    for name in [None, Some("app.example"), Some("no.example")] {
        let mut rig = Rig::with(Settings {
            default_server_name: name.map(|name| HostName::parse(name).unwrap()),
            ..settings()
        })
        .await;
        let origin = hello(&mut rig.tasks).await;
        let url = format!("http://{origin}");
        let (names, key, root) = certificate(&["app.example"]);
        let (others, other_key, _) = certificate(&["other.example"]);
        let mut other = endpoint(Scheme::Https, "other.example", 443, &url, "");
        other.account = "ac_2".into();
        let snapshot = Snapshot::builder()
            .endpoint(endpoint(Scheme::Https, "app.example", 443, &url, ""))
            .endpoint(other)
            .certificate(names, key)
            .certificate(others, other_key);
        rig.edge.publish(snapshot.build()).await;
        let stream = soon("an end", unnamed(&rig, &root)).await;
        assert_eq!(stream.is_some(), name == Some("app.example"), "{name:?}");
        let Some(stream) = stream else { continue };
        let mut client = Client::new(stream);
        for (host, status) in [("app.example", 200), ("other.example", 421)] {
            client
                .send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
                .await;
            assert_eq!(client.answer("GET").await.status, status, "{host}");
        }
        drop(client);
        let events = rig.recorder.events(3).await;
        let event = of(&events, HTTP)[0];
        assert_eq!(event["object"]["conn"]["server_name"], "app.example");
    }
}
