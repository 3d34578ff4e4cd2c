//! Challenge responses: a certificate authority gets them, other clients do not.

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_base::{IpSet, Prefix, Verdict};
use culvert_policy::Scheme;
use culvert_tls::acme::{Challenge, ChallengeKind};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::harness::*;
use crate::Restriction;

fn challenge(kind: ChallengeKind, host: &str) -> Challenge {
    Challenge {
        kind,
        host: HostName::parse(host).unwrap(),
        token: "token_1".into(),
        answer: "token_1.thumbprint".into(),
    }
}

/// A restriction that no address here passes.
fn nobody() -> Restriction {
    Restriction {
        id: "ipx_1".into(),
        account: "ac_1".into(),
        enforced: true,
        admitted: Arc::new(IpSet::of([(
            Verdict::Allow,
            Prefix::parse("192.0.2.0/24").unwrap(),
        )])),
    }
}

#[tokio::test]
async fn http_challenges_are_answered_before_routing() {
    let mut rig = Rig::start().await;
    let origin = hello(&mut rig.tasks).await;
    let snapshot = || http("app.example", origin).restriction(nobody());
    let pending = snapshot()
        .challenge(challenge(ChallengeKind::Http01, "app.example"))
        .challenge(challenge(ChallengeKind::Http01, "bare.example"));
    rig.edge.publish(pending.build()).await;
    let path = "/.well-known/acme-challenge/";
    for (method, host, target, status) in [
        ("GET", "app.example", "token_1", 200),
        ("GET", "APP.example.:80", "token_1?x", 200),
        ("GET", "bare.example", "token_1", 200),
        ("POST", "app.example", "token_1", 403),
        ("GET", "app.example", "token_2", 403),
        ("GET", "app.example", "token_1/", 403),
        ("GET", "app.example", "", 403),
        ("GET", "bare.example", "token_2", 404),
        ("GET", "x.bare.example", "token_1", 404),
    ] {
        let length = if method == "POST" {
            "Content-Length: 0\r\n"
        } else {
            ""
        };
        let head = format!("{method} {path}{target} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n");
        let answer = rig.ask(&head).await;
        assert_eq!(answer.status, status, "{method} {host} {target}");
        if status == 200 {
            assert_eq!(answer.text(), "token_1.thumbprint");
        }
    }
    assert_eq!(rig.edge.meters().challenges_answered.get(), 3);
    let mut client = rig.connect().await;
    client
        .send(format!(
            "HEAD {path}token_1 HTTP/1.1\r\nHost: app.example\r\n\r\n"
        ))
        .await;
    let answer = client.answer("HEAD").await;
    assert_eq!(
        (answer.status, answer.header("content-length")),
        (200, Some("18"))
    );

    rig.edge.publish(snapshot().build()).await;
    let head = format!("GET {path}token_1 HTTP/1.1\r\nHost: app.example\r\n\r\n");
    assert_eq!(rig.ask(&head).await.status, 403);
    // Of all this only what the restriction refused is an account's.
    let events = rig.recorder.events(10).await;
    assert_eq!((of(&events, HTTP).len(), of(&events, TCP).len()), (5, 5));
    for event in of(&events, HTTP) {
        assert_eq!(event["object"]["http"]["response"]["status_code"], 403);
    }
}

/// Takes every certificate: the one of a challenge proves itself by what it says.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The certificate presented to a client that offers these protocols.
async fn presented(rig: &Rig, name: &str, offers: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|offer| offer.to_vec()).collect();
    let tcp = tokio::net::TcpStream::connect(rig.edge.https_addr().unwrap()).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = soon("a handshake", connector.connect(name, tcp)).await?;
    let session = stream.get_ref().1;
    assert!(offers.contains(&session.alpn_protocol().unwrap()));
    Ok(session.peer_certificates().unwrap()[0].to_vec())
}

#[tokio::test]
async fn tls_alpn_challenges_are_answered_only_if_requested() {
    let rig = Rig::start().await;
    let (names, key, own) = certificate(&["app.example"]);
    let snapshot = || {
        crate::Snapshot::builder()
            .certificate(names.clone(), key.clone())
            .endpoint(endpoint(
                Scheme::Tls,
                "pass.example",
                443,
                "tcp://127.0.0.1:9",
                "",
            ))
            .restriction(nobody())
    };
    let pending = || {
        snapshot()
            .challenge(challenge(ChallengeKind::TlsAlpn01, "app.example"))
            .challenge(challenge(ChallengeKind::TlsAlpn01, "pass.example"))
    };
    rig.edge.publish(pending().build()).await;
    let proof = presented(&rig, "app.example", &[b"acme-tls/1"])
        .await
        .unwrap();
    // The digest of the answer, as the extension has it: an octet string of 32 bytes.
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, b"token_1.thumbprint");
    let says = |certificate: &[u8]| memchr::memmem::find(certificate, digest.as_ref()).is_some();
    assert!(says(&proof));
    let passed = presented(&rig, "pass.example", &[b"acme-tls/1"]).await;
    assert!(says(&passed.unwrap()));
    // The same certificate while the same challenge is pending.
    rig.edge.publish(pending().build()).await;
    let again = presented(&rig, "app.example", &[b"acme-tls/1"])
        .await
        .unwrap();
    assert_eq!(proof, again);
    // The client is through a moment before the edge.
    soon("three answers", async {
        while rig.edge.meters().challenges_answered.get() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let ordinary = presented(&rig, "app.example", &[b"http/1.1"])
        .await
        .unwrap();
    assert_eq!(ordinary, own.as_ref());
    let both: [&[u8]; 2] = [b"http/1.1", b"acme-tls/1"];
    let mixed = presented(&rig, "app.example", &both).await.unwrap();
    assert_eq!(mixed, own.as_ref());
    rig.edge.publish(snapshot().build()).await;
    assert!(
        presented(&rig, "app.example", &[b"acme-tls/1"])
            .await
            .is_err()
    );
    assert!(
        presented(&rig, "other.example", &[b"acme-tls/1"])
            .await
            .is_err()
    );
    assert_eq!(rig.recorder.count(), 0);
}
