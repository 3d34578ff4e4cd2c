//! Handshakes as policies want them: clients' certificates, versions, certificates of a policy, TLS
//! endpoints that end TLS (contract: traffic policy 8.6, events 7.2).

use std::sync::Arc;

use culvert_base::Timestamp;
use culvert_edge_config::ACTIONS;
use culvert_policy::Scheme;
use culvert_policy::{Resources, Source};
use culvert_tls::tls_policy::Authorities;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType, SerialNumber,
};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::harness::*;
use super::internal::{named, publish};
use super::policies::last_event;
use crate::{Snapshot, SnapshotBuilder};

/// An authority.
pub(super) struct Ca {
    pub(super) pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A leaf: certificate and key.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) der: CertificateDer<'static>,
    pub(super) pem: String,
    pub(super) key: String,
}

impl Leaf {
    pub(super) fn pem_and_key(&self) -> String {
        format!("{}{}", self.pem, self.key)
    }
}

impl Ca {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        Self {
            pem: made.pem(),
            der: made.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// One whose name has every part that variables show.
    pub(super) fn with_every_name(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = every_name(name);
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        Self {
            pem: made.pem(),
            der: made.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A leaf with every part that variables show, and its key: PEM.
    pub(super) fn leaf_with_every_name(&self) -> String {
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from_slice(&[0x0A, 0xBC]));
        params.distinguished_name = every_name("Me");
        params.subject_alt_names = vec![
            SanType::DnsName("m.example".try_into().unwrap()),
            SanType::Rfc822Name("me@m.example".try_into().unwrap()),
            SanType::IpAddress("192.0.2.1".parse().unwrap()),
            SanType::URI("https://m.example/me".try_into().unwrap()),
        ];
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        made.pem() + &key.serialize_pem()
    }

    /// The certificate itself.
    pub(super) fn root(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// A leaf that is good until then, with its key: PEM.
    pub(super) fn leaf_until(&self, name: &str, until: Timestamp) -> String {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after =
            rcgen::date_time_ymd(1970, 1, 1) + until.since(Timestamp::from_unix_nanos(0));
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        made.pem() + &key.serialize_pem()
    }

    /// A client certificate with this common name.
    pub(super) fn client(&self, common_name: &str) -> Leaf {
        self.client_with(common_name, |_| {})
    }

    /// The same with other properties.
    pub(super) fn client_with(
        &self,
        common_name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        Leaf {
            der: made.der().clone(),
            pem: made.pem(),
            key: key.serialize_pem(),
        }
    }

    pub(super) fn leaf(&self, name: &str) -> Leaf {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(&[0x0A, 0xBC]));
        params.distinguished_name = Default::default();
        params.distinguished_name.push(DnType::CommonName, "Me");
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        Leaf {
            der: made.der().clone(),
            pem: made.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A name with every part that variables show.
fn every_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names.push(DnType::CountryName, "AT");
    names.push(DnType::LocalityName, "Vienna");
    names.push(DnType::OrganizationName, "Example");
    names.push(DnType::OrganizationalUnitName, "Tests");
    names.push(DnType::StateOrProvinceName, "Vienna");
    names.push(DnType::CustomDnType(vec![2, 5, 4, 17]), "1010");
    names.push(DnType::CustomDnType(vec![2, 5, 4, 9]), "Street 1");
    names
}

/// A handshake as a client, with a certificate or without.
pub(super) async fn shake(
    rig: &Rig,
    root: &CertificateDer<'static>,
    name: &str,
    client: Option<&Leaf>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(rig.edge.https_addr().unwrap()).await?;
    shake_over(tcp, root, name, client, versions).await
}

/// A handshake over a connection.
pub(super) async fn shake_over(
    tcp: TcpStream,
    root: &CertificateDer<'static>,
    name: &str,
    client: Option<&Leaf>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(leaf) => {
            use rustls_pki_types::pem::PemObject;
            let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![leaf.der.clone()], key)
                .unwrap()
        }
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    soon("a handshake", connector.connect(name, tcp)).await
}

pub(super) const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
const ASK: &str =
    "GET /a?b=c HTTP/1.1\r\nHost: app.example\r\nX-Who: me\r\nConnection: close\r\n\r\n";

/// The status of a request on a new connection; `None` when there is no handshake, or no answer.
async fn status(
    rig: &Rig,
    root: &CertificateDer<'static>,
    client: Option<&Leaf>,
    versions: &[&'static SupportedProtocolVersion],
) -> Option<(u16, String)> {
    let stream = shake(rig, root, "app.example", client, versions)
        .await
        .ok()?;
    let mut client = Client::new(stream);
    client.send(ASK).await;
    let answer = client.try_answer("GET").await?;
    Some((answer.status, String::from_utf8(answer.body).unwrap()))
}

/// An endpoint for `app.example` with a terminate-tls of this configuration.
fn terminating(
    scheme: Scheme,
    upstream: &str,
    config: &Value,
    resources: &Resources,
) -> SnapshotBuilder {
    let answer = json!([{"actions": [{"type": "custom-response", "config": {
        "body": "${conn.tls.version} ${has(conn.tls.client.subject) ? conn.tls.client.subject + ' ' + conn.tls.client.san.dns_names[0] : 'nobody'} ${conn.tls.server.san} ${actions.ngrok.terminate_tls.sni}",
    }}]}]);
    let mut policy =
        json!({"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": config}]}]});
    if scheme.is_http() {
        policy["on_http_request"] = answer;
    }
    let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
    let policy = source
        .compile(scheme, !upstream.is_empty(), resources)
        .unwrap();
    let mut endpoint = endpoint(scheme, "app.example", 443, "http://127.0.0.1:1", "");
    endpoint.upstream = match upstream {
        "" => None,
        url => Some(crate::Upstream::parse(url, "").unwrap()),
    };
    endpoint.policy = Some(Arc::new(policy));
    Snapshot::builder().endpoint(endpoint)
}

#[tokio::test]
async fn every_strategy_requests_client_certificates() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let (member, stranger) = (ours.leaf("member.example"), theirs.leaf("stranger.example"));
    let mut reported = 0;
    for (strategy, of_ours, of_theirs, of_none) in [
        (None, true, false, false),
        (Some("require-and-verify"), true, false, false),
        (Some("require-any"), true, true, false),
        (Some("request"), true, true, true),
    ] {
        let mut config = json!({"mutual_tls_certificate_authorities": [ours.pem]});
        if let Some(strategy) = strategy {
            config["mutual_tls_verification_strategy"] = json!(strategy);
        }
        let snapshot = terminating(Scheme::Https, "", &config, &Resources::default());
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
        for (client, passes) in [
            (Some(&member), of_ours),
            (Some(&stranger), of_theirs),
            (None, of_none),
        ] {
            for versions in [&BOTH[..], &BOTH[1..]] {
                let answer = status(&rig, &root, client, versions).await;
                assert_eq!(answer.is_some(), passes, "{strategy:?}");
                // A handshake that fails is no exchange, but a connection that was attributed.
                reported += if passes { 2 } else { 1 };
                let events = rig.recorder.events(reported).await;
                let Some((200, text)) = answer else { continue };
                let version = if versions.len() == 2 { "1.3" } else { "1.2" };
                let who = match client {
                    Some(leaf) if leaf.der == member.der => "CN=Me member.example",
                    Some(_) => "CN=Me stranger.example",
                    None => "nobody",
                };
                assert_eq!(text, format!("{version} {who} app.example app.example"));
                let object = &of(&events, HTTP).last().unwrap()["object"];
                let shown = match client {
                    Some(_) => json!({"serial_number": "0abc", "subject": {"cn": "Me"}}),
                    None => json!({"serial_number": null, "subject": {"cn": null}}),
                };
                assert_eq!(object["tls"]["client_cert"], shown);
                assert_eq!(object["tls"]["version"], version);
            }
        }
    }
}

#[tokio::test]
async fn terminate_tls_sets_versions_and_certificates() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    for (config, on_12, on_13) in [
        (json!({"min_version": 1.3}), false, true),
        (json!({"max_version": "1.2"}), true, false),
        (json!({}), true, true),
    ] {
        let snapshot = terminating(Scheme::Https, "", &config, &Resources::default());
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
        assert_eq!(
            status(&rig, &root, None, &BOTH[1..]).await.is_some(),
            on_12,
            "{config}"
        );
        assert_eq!(
            status(&rig, &root, None, &BOTH[..1]).await.is_some(),
            on_13,
            "{config}"
        );
    }
    // The policy's own certificate, where there is no other.
    let ca = Ca::new("root");
    let own = ca.leaf("app.example");
    let config = json!({"server_certificate": own.pem, "server_private_key": own.key});
    let snapshot = terminating(Scheme::Https, "", &config, &Resources::default());
    rig.edge.publish(snapshot.build()).await;
    assert!(status(&rig, &ca.der, None, &BOTH).await.is_some());
    assert!(status(&rig, &root, None, &BOTH).await.is_none());
}

#[tokio::test]
async fn changes_of_certificate_authorities_apply_to_open_connections() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example", "other.example"]);
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let (member, stranger) = (ours.leaf("m.example"), theirs.leaf("s.example"));
    let authorities = Arc::new(Authorities::default());
    let mut resources = Resources::default();
    resources
        .authorities
        .insert("ca_1".to_owned(), Arc::clone(&authorities));
    let config = json!({"mutual_tls_certificate_authorities": ["ca_1"]});
    let other = endpoint(
        Scheme::Https,
        "other.example",
        443,
        "http://127.0.0.1:1",
        "",
    );
    let snapshot = terminating(Scheme::Https, "", &config, &resources)
        .endpoint(other)
        .certificate(names.clone(), key.clone())
        .build();
    rig.edge.publish(snapshot.clone()).await;
    // Without a trusted authority, every client is rejected.
    assert!(status(&rig, &root, Some(&member), &BOTH).await.is_none());
    authorities.replace(vec![ours.der.clone()]);
    assert!(status(&rig, &root, Some(&member), &BOTH).await.is_some());
    assert!(status(&rig, &root, Some(&stranger), &BOTH).await.is_none());
    authorities.replace(vec![theirs.der.clone()]);
    assert!(status(&rig, &root, Some(&member), &BOTH).await.is_none());
    assert!(status(&rig, &root, Some(&stranger), &BOTH).await.is_some());

    // A connection for another name, made without a certificate, does not get there.
    let stream = shake(&rig, &root, "other.example", None, &BOTH)
        .await
        .unwrap();
    let mut client = Client::new(stream);
    client.send(ASK).await;
    assert_eq!(client.answer("GET").await.status, 421);
    // One that was open before the policy asked for certificates is closed.
    let plain = terminating(Scheme::Https, "", &json!({}), &Resources::default());
    rig.edge
        .publish(plain.certificate(names, key).build())
        .await;
    let stream = shake(&rig, &root, "app.example", None, &BOTH)
        .await
        .unwrap();
    let mut client = Client::new(stream);
    let keep = ASK.replace("Connection: close\r\n", "");
    client.send(&keep).await;
    assert_eq!(client.answer("GET").await.status, 200);
    rig.edge.publish(snapshot).await;
    client.send(&keep).await;
    assert!(client.try_answer("GET").await.is_none());
}

#[tokio::test]
async fn a_tls_endpoint_terminates_tls_only_with_a_policy() {
    let mut rig = Rig::start().await;
    let upper = origin(&mut rig.tasks, |mut client| async move {
        while client.more().await {
            let bytes = std::mem::take(&mut client.read);
            client.send(bytes.to_ascii_uppercase()).await;
        }
    })
    .await;
    let ca = Ca::new("root");
    let own = ca.leaf("app.example");
    let config = json!({
        "server_certificate": own.pem, "server_private_key": own.key,
        "mutual_tls_certificate_authorities": [ca.pem],
    });
    let upstream = format!("tcp://{upper}");
    let snapshot = terminating(Scheme::Tls, &upstream, &config, &Resources::default());
    rig.edge.publish(snapshot.build()).await;
    let member = ca.leaf("m.example");
    let stream = shake(&rig, &ca.der, "app.example", Some(&member), &BOTH)
        .await
        .unwrap();
    let mut client = Client::new(stream);
    client.send("in clear").await;
    assert_eq!(client.take(8).await.unwrap(), b"IN CLEAR");
    drop(client);
    let event = rig.recorder.events(1).await.remove(0);
    assert_eq!(event["event_type"], TCP);
    assert_eq!(event["object"]["conn"]["server_name"], "app.example");
    // Without a certificate the handshake does not succeed.
    let refused = async {
        let stream = shake(&rig, &ca.der, "app.example", None, &BOTH)
            .await
            .ok()?;
        let mut client = Client::new(stream);
        client.send("in clear").await;
        client.take(8).await
    };
    assert_eq!(refused.await, None);
    // And passed through it is not the edge's to answer.
    let through = endpoint(Scheme::Tls, "app.example", 443, &upstream, "");
    rig.edge
        .publish(Snapshot::builder().endpoint(through).build())
        .await;
    let mut client = Client::new(
        TcpStream::connect(rig.edge.https_addr().unwrap())
            .await
            .unwrap(),
    );
    let hello = client_hello("app.example");
    client.send(&hello).await;
    assert_eq!(
        client.take(hello.len()).await.unwrap(),
        hello.to_ascii_uppercase()
    );
}

/// The first bytes that a client of ours says.
pub(super) fn client_hello(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn a_resumed_session_keeps_its_client_certificate() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let ca = Ca::new("ours");
    let member = ca.leaf("m.example");
    let policy = json!({
        "on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": {"mutual_tls_certificate_authorities": [ca.pem]}}]}],
        "on_http_request": [{"actions": [{"type": "custom-response", "config": {"body": "${conn.tls.session_resumed} ${conn.tls.client.serial_number}"}}]}],
    });
    let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
    let mut governed = endpoint(Scheme::Https, "app.example", 443, "http://127.0.0.1:1", "");
    governed.policy = Some(Arc::new(
        source
            .compile(Scheme::Https, true, &Resources::default())
            .unwrap(),
    ));
    let snapshot = Snapshot::builder()
        .endpoint(governed)
        .certificate(names, key);
    rig.edge.publish(snapshot.build()).await;
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    use rustls_pki_types::pem::PemObject;
    let own = PrivateKeyDer::from_pem_slice(member.key.as_bytes()).unwrap();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![member.der.clone()], own)
        .unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for (n, expected) in ["false 0abc", "true 0abc"].into_iter().enumerate() {
        let tcp = TcpStream::connect(rig.edge.https_addr().unwrap())
            .await
            .unwrap();
        let name = ServerName::try_from("app.example").unwrap();
        let stream = soon("a handshake", connector.connect(name, tcp))
            .await
            .unwrap();
        let mut client = Client::new(stream);
        client.send(ASK).await;
        assert_eq!(client.answer("GET").await.text(), expected);
        drop(client);
        let reported = last_event(&rig, 2 * n + 1).await;
        assert_eq!(reported["tls"]["client_cert"]["subject"]["cn"], "Me");
        rig.recorder.events(2 * n + 2).await;
    }
}

/// A request comes to an internal endpoint over a handshake that its policy had no part in, so the client showed no
/// certificate to it, whatever it showed before.
#[tokio::test]
async fn an_internal_endpoint_with_client_certificates_refuses_connections() {
    let mut rig = Rig::start().await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while client.request().await.is_some() {
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret";
            client.send(answer).await;
        }
    })
    .await;
    let origin = format!("http://{origin}");
    let ca = Ca::new("ours");
    let asks = |strategy: &str| {
        let config = json!({
            "mutual_tls_certificate_authorities": [ca.pem],
            "mutual_tls_verification_strategy": strategy,
        });
        json!({"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": config}]}]})
            .to_string()
    };
    let forwards = |to: &str| {
        let config = json!({"url": to});
        json!({"on_http_request": [{"actions": [{"type": "forward-internal", "config": config}]}]})
            .to_string()
    };
    let plain = json!({"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": {"min_version": "1.2"}}]}]});
    let public = |host, to: &str| named(Scheme::Http, host, 80, "", &forwards(to));
    let inner = |host, policy: &str| named(Scheme::Https, host, 443, &origin, policy);
    publish(
        &rig,
        [
            public("must.example", "https://must.internal"),
            public("may.example", "https://may.internal"),
            public("open.example", "https://open.internal"),
            inner("must.internal", &asks("require-and-verify")),
            inner("may.internal", &asks("request")),
            inner("open.internal", &plain.to_string()),
        ],
    )
    .await;
    for (host, is_served) in [
        ("must.example", false),
        ("may.example", false),
        ("open.example", true),
    ] {
        // Twice: what was decided of a connection is remembered.
        let mut stream = TcpStream::connect(rig.edge.http_addr().unwrap())
            .await
            .unwrap();
        let ask = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let last = ask.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        stream
            .write_all(format!("{ask}{last}").as_bytes())
            .await
            .unwrap();
        let mut got = Vec::new();
        // A connection that is closed may be reset.
        drop(soon("the end", stream.read_to_end(&mut got)).await);
        let got = String::from_utf8_lossy(&got);
        assert_eq!(got.contains("secret"), is_served, "{host}: {got}");
        assert_eq!(got.contains("200 OK"), is_served, "{host}: {got}");
    }
}

#[test]
fn invalid_terminate_tls_configurations_are_refused() {
    let ca = Ca::new("ca");
    let (leaf, other) = (ca.leaf("a.example"), ca.leaf("a.example"));
    for (scheme, config, code) in [
        (Scheme::Https, json!({"min_version": "1.1"}), 2203),
        (
            Scheme::Https,
            json!({"min_version": 1.3, "max_version": 1.2}),
            2215,
        ),
        (Scheme::Https, json!({"server_certificate": leaf.pem}), 2234),
        (
            Scheme::Https,
            json!({"server_certificate": leaf.pem, "server_private_key": other.key}),
            2204,
        ),
        (
            Scheme::Https,
            json!({"mutual_tls_certificate_authorities": []}),
            2223,
        ),
        (
            Scheme::Https,
            json!({"mutual_tls_certificate_authorities": ["nonsense"]}),
            2204,
        ),
        (
            Scheme::Https,
            json!({"mutual_tls_certificate_authorities": ["ca_none"]}),
            2204,
        ),
        (
            Scheme::Tls,
            json!({"mutual_tls_verification_strategy": "require-and-verify"}),
            2234,
        ),
        (
            Scheme::Tls,
            json!({"mutual_tls_verification_strategy": "maybe"}),
            2222,
        ),
        (Scheme::Http, json!({}), 2205),
        (Scheme::Tcp, json!({}), 2205),
    ] {
        let policy =
            json!({"on_tcp_connect": [{"actions": [{"type": "terminate-tls", "config": config}]}]});
        let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
        let refused = source
            .compile(scheme, true, &Resources::default())
            .unwrap_err();
        assert_eq!(refused.code.unwrap().number(), code, "{config}");
    }
}

/// A certificate authority that a policy names and that does not exist: no handshake is done, whatever
/// else the policy trusts and whatever it asks of clients.
#[tokio::test]
async fn a_missing_certificate_authority_refuses_every_handshake() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let ours = Ca::new("ours");
    let member = ours.leaf("m.example");
    for strategy in ["require-and-verify", "require-any", "request"] {
        let authorities = Arc::new(Authorities::default());
        authorities.replace(vec![ours.der.clone()]);
        let mut resources = Resources::default();
        let named = Arc::clone(&authorities);
        resources.authorities.insert("ca_1".to_owned(), named);
        let config = json!({
            "mutual_tls_certificate_authorities": ["ca_1", ours.pem],
            "mutual_tls_verification_strategy": strategy,
        });
        let snapshot = terminating(Scheme::Https, "", &config, &resources);
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
        let enter = async |client| status(&rig, &root, client, &BOTH).await.is_some();
        assert!(enter(Some(&member)).await, "{strategy}");
        authorities.replace(Vec::new());
        assert!(!enter(Some(&member)).await, "{strategy}");
        assert!(!enter(None).await, "{strategy}");
    }
}
