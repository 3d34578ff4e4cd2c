//! TLS to upstreams: pins, authorities, names, client certificates, and connections that no other options get.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_edge_config::upstream_tls::{
    ClientCertificate, Pin, UpstreamTls, Verification, server_name,
};
use culvert_edge_config::{
    Balancing, ListedUpstream, PassiveHealth, Retries, TlsOptions, TlsWithheld, UpstreamList,
};
use culvert_policy::Scheme;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::harness::*;
use crate::{Snapshot, Upstream};

/// A service with TLS.
struct Service {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    /// SHA-256 of the certificate, in hexadecimal.
    pin: Pin,
}

/// What a certificate says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// As `openssl req -x509 -subj /CN=service` makes it: a CA with a common name and no other.
    ByOpenssl,
    /// For `localhost` and `127.0.0.1`.
    ForTheHost,
    /// The same, long ago.
    Expired,
}

fn pin_of(bytes: &[u8]) -> Pin {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let hex: String = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    Pin::parse(&hex).unwrap()
}

/// A service that counts its connections, and responds with their number. It asks for a certificate of `clients`, if
/// there is one.
async fn service(
    tasks: &mut JoinSet<()>,
    made: Made,
    clients: Option<&CertificateDer<'static>>,
) -> Service {
    let mut params = match made {
        Made::ByOpenssl => rcgen::CertificateParams::default(),
        Made::ForTheHost | Made::Expired => {
            rcgen::CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
        }
    };
    if made == Made::ByOpenssl {
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "service");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    if made == Made::Expired {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(root) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(root.clone()).unwrap();
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(clients.build().unwrap())
        }
    };
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = builder
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let turns = Arc::new(Turns::default());
    let address = origin(tasks, move |client| {
        let (acceptor, turns) = (acceptor.clone(), Arc::clone(&turns));
        async move {
            let Ok(stream) = acceptor.accept(client.stream).await else {
                return;
            };
            let turn = turns.next();
            let mut client = Client::new(stream);
            while client.request().await.is_some() {
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{turn}");
                client.send(answer).await;
            }
        }
    })
    .await;
    Service {
        address,
        pin: pin_of(&certificate),
        certificate,
    }
}

/// A rig with one endpoint for each of these options, at `0.example`, `1.example` and so on.
async fn publish(rig: &Rig, host: &str, port: u16, all: Vec<Result<UpstreamTls, TlsWithheld>>) {
    let mut builder = Snapshot::builder();
    for (at, options) in all.into_iter().enumerate() {
        let url = format!("https://{host}:{port}");
        let mut one = endpoint(Scheme::Http, &format!("{at}.example"), 80, &url, "");
        one.id = format!("ep_{at}");
        let upstream = Upstream::parse(&url, "").unwrap();
        one.upstream = Some(upstream.with_tls(Arc::new(TlsOptions::new(options))));
        builder = builder.endpoint(one);
    }
    rig.edge.publish(builder.build()).await;
}

async fn ask(rig: &Rig, at: usize) -> Answer {
    rig.ask(&format!(
        "GET / HTTP/1.1\r\nHost: {at}.example\r\nConnection: close\r\n\r\n"
    ))
    .await
}

fn with(verification: Verification) -> Result<UpstreamTls, TlsWithheld> {
    Ok(UpstreamTls {
        verification,
        ..UpstreamTls::default()
    })
}

#[tokio::test]
async fn each_reason_of_a_failed_handshake_is_in_the_page_and_in_the_event() {
    let mut rig = Rig::start().await;
    let by_openssl = service(&mut rig.tasks, Made::ByOpenssl, None).await;
    let for_the_host = service(&mut rig.tasks, Made::ForTheHost, None).await;
    let expired = service(&mut rig.tasks, Made::Expired, None).await;
    let trusts = |service: &Service| {
        Verification::Authorities(vec![service.certificate.clone()], Vec::new())
    };
    let both = |service: &Service, pin| {
        Verification::Authorities(vec![service.certificate.clone()], vec![pin])
    };
    let named = |name: &str, verification| {
        Ok(UpstreamTls {
            verification,
            server_name: server_name(name),
            client: None,
        })
    };
    let other = pin_of(b"another");
    let mut requests = 0;
    for (service, options, status, code, reason) in [
        (
            &by_openssl,
            with(Verification::System),
            502,
            "ERR_NGROK_3632",
            "upstream_certificate_untrusted",
        ),
        (
            &by_openssl,
            with(trusts(&by_openssl)),
            502,
            "ERR_NGROK_3632",
            "upstream_certificate_untrusted",
        ),
        (
            &by_openssl,
            with(Verification::Pins(vec![other, by_openssl.pin])),
            200,
            "",
            "",
        ),
        (
            &by_openssl,
            with(Verification::Pins(vec![other])),
            502,
            "ERR_NGROK_3634",
            "upstream_certificate_not_pinned",
        ),
        (&by_openssl, with(Verification::Off), 200, "", ""),
        (
            &for_the_host,
            with(Verification::System),
            502,
            "ERR_NGROK_3632",
            "upstream_certificate_untrusted",
        ),
        (&for_the_host, with(trusts(&for_the_host)), 200, "", ""),
        (
            &for_the_host,
            with(both(&for_the_host, for_the_host.pin)),
            200,
            "",
            "",
        ),
        (
            &for_the_host,
            with(both(&for_the_host, other)),
            502,
            "ERR_NGROK_3634",
            "upstream_certificate_not_pinned",
        ),
        (
            &for_the_host,
            named("localhost", trusts(&for_the_host)),
            200,
            "",
            "",
        ),
        (
            &for_the_host,
            named("b.example", trusts(&for_the_host)),
            502,
            "ERR_NGROK_3633",
            "upstream_certificate_wrong_name",
        ),
        (
            &expired,
            with(trusts(&expired)),
            502,
            "ERR_NGROK_3631",
            "upstream_certificate_expired",
        ),
        (
            &expired,
            with(Verification::Pins(vec![expired.pin])),
            200,
            "",
            "",
        ),
        (
            &for_the_host,
            Err(TlsWithheld::Client),
            502,
            "ERR_NGROK_3630",
            "upstream_tls_failed",
        ),
        (
            &for_the_host,
            with(Verification::Authorities(
                Vec::new(),
                vec![for_the_host.pin],
            )),
            502,
            "ERR_NGROK_3630",
            "upstream_tls_failed",
        ),
    ] {
        let shown = format!("{options:?}");
        publish(&rig, "127.0.0.1", service.address.port(), vec![options]).await;
        let answer = ask(&rig, 0).await;
        assert_eq!(answer.status, status, "{shown}: {}", answer.text());
        assert_eq!(
            answer.header("ngrok-error-code").unwrap_or_default(),
            code,
            "{shown}"
        );
        requests += 1;
        // Each request has an event, and each connection.
        let events = rig.recorder.events(2 * requests).await;
        let event = *of(&events, HTTP).last().unwrap();
        assert_eq!(
            event["culvert"]["reason"].as_str().unwrap_or_default(),
            reason,
            "{shown}"
        );
    }
}

#[tokio::test]
async fn endpoints_with_other_options_share_no_connection() {
    let mut rig = Rig::start().await;
    let service = service(&mut rig.tasks, Made::ByOpenssl, None).await;
    let pinned = || with(Verification::Pins(vec![service.pin]));
    let port = service.address.port();
    let off = || with(Verification::Off);
    let options = vec![off(), pinned(), with(Verification::System), pinned()];
    publish(&rig, "127.0.0.1", port, options).await;
    // The connection of one that verifies nothing is idle, and has a session that could be resumed.
    assert_eq!(ask(&rig, 0).await.text(), "0");
    assert_eq!(ask(&rig, 0).await.text(), "0");
    assert_eq!(ask(&rig, 1).await.text(), "1");
    assert_eq!(ask(&rig, 2).await.status, 502);
    // The same options share.
    assert_eq!(ask(&rig, 3).await.text(), "1");
    // Options that change get other connections, and those that stay keep theirs.
    let wrong = with(Verification::Pins(vec![pin_of(b"another")]));
    publish(&rig, "127.0.0.1", port, vec![wrong, pinned()]).await;
    assert_eq!(ask(&rig, 0).await.status, 502);
    assert_eq!(ask(&rig, 1).await.text(), "1");
}

#[tokio::test]
async fn a_client_certificate_is_presented_to_its_upstream_only() {
    let mut rig = Rig::start().await;
    let (_, key, client) = certificate(&["edge.example"]);
    let service = service(&mut rig.tasks, Made::ForTheHost, Some(&client)).await;
    let presenting = Ok(UpstreamTls {
        verification: Verification::Pins(vec![service.pin]),
        server_name: None,
        client: Some(ClientCertificate::new(key)),
    });
    let silent = with(Verification::Pins(vec![service.pin]));
    publish(
        &rig,
        "127.0.0.1",
        service.address.port(),
        vec![presenting, silent],
    )
    .await;
    assert_eq!(ask(&rig, 0).await.text(), "0");
    assert_eq!(ask(&rig, 1).await.status, 502);
    assert_eq!(ask(&rig, 0).await.text(), "0");
}

#[tokio::test]
async fn a_pin_may_be_that_of_the_public_key() {
    let mut rig = Rig::start().await;
    let service = service(&mut rig.tasks, Made::ByOpenssl, None).await;
    let key = {
        let parsed = rustls::server::ParsedCertificate::try_from(&service.certificate).unwrap();
        parsed.subject_public_key_info()
    };
    let options = with(Verification::Pins(vec![pin_of(&key)]));
    publish(&rig, "127.0.0.1", service.address.port(), vec![options]).await;
    assert_eq!(ask(&rig, 0).await.status, 200);
}

#[tokio::test]
async fn one_of_several_upstreams_with_another_certificate_is_ejected() {
    let mut rig = Rig::start().await;
    let good = service(&mut rig.tasks, Made::ForTheHost, None).await;
    let wrong = service(&mut rig.tasks, Made::ForTheHost, None).await;
    let options = with(Verification::Authorities(
        vec![good.certificate.clone()],
        Vec::new(),
    ));
    let options = Arc::new(TlsOptions::new(options));
    let listed = |service: &Service| {
        let upstream = Upstream::parse(&format!("https://{}", service.address), "").unwrap();
        ListedUpstream {
            upstream: upstream.with_tls(Arc::clone(&options)),
            weight: 1,
            priority: 0,
            in_flight_max: None,
        }
    };
    let list = UpstreamList {
        upstreams: vec![listed(&wrong), listed(&good)],
        balancing: Balancing::default(),
        sticky: None,
        health: PassiveHealth::default(),
        slow_start: Duration::ZERO,
        checks: None,
        retries: Retries::default(),
    };
    let mut one = endpoint(Scheme::Http, "0.example", 80, "https://127.0.0.1:1", "");
    one.upstream = Some(list.upstreams[0].upstream.clone());
    one.upstreams = Some(Arc::new(list));
    rig.edge
        .publish(Snapshot::builder().endpoint(one).build())
        .await;
    for _ in 0..10 {
        assert_eq!(ask(&rig, 0).await.status, 200);
    }
    assert_eq!(rig.edge.meters().upstreams_ejected.get(), 1);
    // Only until it was ejected.
    assert_eq!(rig.edge.meters().upstream_moves.get(), 3);
}
