//! What several rules and sources say of one handshake, and that nothing lets a client in without the certificate
//! that one of them asks for (contract: traffic policy 2, 4.4, 8.6).

use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{ManualClock, Timestamp};
use culvert_edge_config::ACTIONS;
use culvert_policy::Scheme;
use culvert_policy::{OnExpressionError, Resources, Source};
use culvert_tls::tls_policy::Authorities;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::version::TLS12;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::harness::*;
use super::mutual::{BOTH, Ca, Leaf, shake};
use super::policies::governed;
use crate::{Endpoint, Settings, Snapshot};

/// A real certificate of X.509 version 1 with its key, made by OpenSSL.
const V1: &str = include_str!("../../tests/data/client_v1.pem");

/// An endpoint with this connection phase. With https its policy responds `ok`; with tls it forwards to `upstream`.
pub(super) fn ruled(
    scheme: Scheme,
    host: &str,
    upstream: &str,
    rules: &Value,
    among: &Resources,
) -> Endpoint {
    let mut policy = json!({"on_tcp_connect": rules});
    if scheme.is_http() {
        policy["on_http_request"] =
            json!([{"actions": [{"type": "custom-response", "config": {"body": "ok"}}]}]);
    }
    let source = Source::read(&policy.to_string(), ACTIONS).unwrap();
    let compiled = source.compile(scheme, true, among).unwrap();
    let upstream = if scheme.is_http() {
        "http://127.0.0.1:1"
    } else {
        upstream
    };
    let mut endpoint = endpoint(scheme, "app.example", 443, upstream, "");
    endpoint.host = HostName::parse(host).unwrap();
    endpoint.policy = Some(Arc::new(compiled));
    endpoint
}

/// An origin that sends `ok` after the first bytes.
async fn ok(rig: &mut Rig) -> String {
    let origin = origin(&mut rig.tasks, |mut client| async move {
        if client.more().await {
            client.send("ok").await;
        }
    })
    .await;
    format!("tcp://{origin}")
}

/// Whether a client gets through to `name`: a handshake, a request, an answer.
async fn passes_at(
    rig: &Rig,
    root: &CertificateDer<'static>,
    name: &str,
    client: Option<&Leaf>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> bool {
    let Ok(stream) = shake(rig, root, name, client, versions).await else {
        return false;
    };
    let mut client = Client::new(stream);
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let answer = client.rest().await;
    answer.ends_with(b"ok")
}

async fn passes(rig: &Rig, root: &CertificateDer<'static>, client: Option<&Leaf>) -> bool {
    passes_at(rig, root, "app.example", client, &BOTH).await
}

#[tokio::test]
async fn conditions_known_before_the_handshake_request_certificates() {
    let mut rig = Rig::start().await;
    let upstream = ok(&mut rig).await;
    let (names, key, root) = certificate(&["app.example"]);
    let ca = Ca::new("ours");
    let member = ca.leaf("m.example");
    for scheme in [Scheme::Https, Scheme::Tls] {
        let port = rig.edge.https_addr().unwrap().port();
        let held = [
            "conn.tls.sni == 'app.example'".to_owned(),
            "conn.client_ip == '127.0.0.1' && conn.client_port > 0".to_owned(),
            format!("conn.server_ip == '127.0.0.1' && conn.server_port == {port}"),
            "conn.bytes_in > 0".to_owned(),
            "timestamp(time.now) > timestamp('2020-01-01T00:00:00Z')".to_owned(),
            format!(
                "endpoint.protocol == '{}' && endpoint.host == conn.tls.sni",
                scheme.name()
            ),
            "endpoint.id == 'ep_1' && endpoint.port == 443".to_owned(),
            "vars.ask == 'yes'".to_owned(),
            "actions.ngrok.log.metadata.a == 'b' && actions.culvert.log.metadata.a == 'b'"
                .to_owned(),
        ];
        // Fails in every spelling: the rule cannot be decided, so every client is rejected.
        let failing = [
            "vars.none == 'yes'".to_owned(),
            "conn.tls.sni.split('.')[9] == 'x'".to_owned(),
            "actions.ngrok.deny.code == 1".to_owned(),
        ];
        let not_held = ["conn.tls.sni == 'other.example'".to_owned()];
        let cases = held.iter().map(|it| (it, true, false));
        let cases = cases.chain(failing.iter().map(|it| (it, false, false)));
        let cases = cases.chain(not_held.iter().map(|it| (it, true, true)));
        for (expression, with_certificate, without) in cases {
            let rules = json!([
                {"actions": [
                    {"type": "set-vars", "config": {"vars": [{"ask": "yes"}]}},
                    {"type": "log", "config": {"metadata": {"a": "b"}}},
                ]},
                {"actions": [{"type": "terminate-tls"}]},
                {"expressions": [expression], "actions": [{"type": "terminate-tls", "config": {
                    "mutual_tls_certificate_authorities": [ca.pem],
                }}]},
            ]);
            let endpoint = ruled(
                scheme,
                "app.example",
                &upstream,
                &rules,
                &Resources::default(),
            );
            let snapshot = Snapshot::builder().endpoint(endpoint);
            rig.edge
                .publish(snapshot.certificate(names.clone(), key.clone()).build())
                .await;
            let what = format!("{} {expression}", scheme.name());
            assert_eq!(passes(&rig, &root, None).await, without, "{what}");
            assert_eq!(
                passes(&rig, &root, Some(&member)).await,
                with_certificate,
                "{what}"
            );
        }
    }
}

/// Handshakes that fail after a policy accepted the connection are sampled as all refusals are, unless the policy has
/// logged something, which is nowhere else.
#[tokio::test]
async fn a_flood_of_handshakes_that_fail_behind_a_policy_is_sampled_but_for_its_logs() {
    const FLOOD: usize = 30;
    let terminate = json!({"actions": [{"type": "terminate-tls"}]});
    let log = json!({"actions": [{"type": "log", "config": {"metadata": {"seen": "yes"}}}]});
    for (rules, is_logged) in [(json!([terminate]), false), (json!([log, terminate]), true)] {
        let mut rig = Rig::with(Settings {
            limits: crate::Limits {
                refused_whole: 2,
                ..settings().limits
            },
            ..settings()
        })
        .await;
        let upstream = ok(&mut rig).await;
        let (names, key, _) = certificate(&["app.example"]);
        let (_, _, unknown) = certificate(&["app.example"]);
        let resources = Resources::default();
        let endpoint = ruled(Scheme::Tls, "app.example", &upstream, &rules, &resources);
        let snapshot = Snapshot::builder().endpoint(endpoint);
        let snapshot = snapshot.certificate(names, key);
        rig.edge.publish(snapshot.build()).await;
        for _ in 0..FLOOD {
            let refused = shake(&rig, &unknown, "app.example", None, &BOTH).await;
            assert!(refused.is_err());
        }
        eventually("the end of the connections", || {
            rig.edge.shared().census.open().is_empty()
        })
        .await;
        let events = rig.recorder.now();
        let left_out = rig.edge.meters().refusals_sampled.get();
        let reasons = events.iter().map(|event| &event["culvert"]["reason"]);
        assert!(
            reasons
                .into_iter()
                .all(|reason| reason == "handshake_failed")
        );
        match is_logged {
            true => assert_eq!(events.len(), FLOOD),
            false => {
                assert!(left_out > 0);
                assert_eq!(events.len() as u64 + left_out, FLOOD as u64);
            }
        }
    }
}

#[tokio::test]
async fn a_host_with_client_certificates_is_not_reachable_over_a_connection_without() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["a.app.example", "b.app.example"]);
    let ca = Ca::new("ours");
    let member = ca.leaf("m.example");
    let rules = json!([{"expressions": ["conn.tls.sni == 'a.app.example'"], "actions": [
        {"type": "terminate-tls", "config": {"mutual_tls_certificate_authorities": [ca.pem]}},
    ]}]);
    let endpoint = ruled(
        Scheme::Https,
        "*.app.example",
        "",
        &rules,
        &Resources::default(),
    );
    let snapshot = Snapshot::builder()
        .endpoint(endpoint)
        .certificate(names, key);
    rig.edge.publish(snapshot.build()).await;
    for (name, client, expected) in [
        ("a.app.example", None, false),
        ("a.app.example", Some(&member), true),
        ("b.app.example", None, true),
    ] {
        let passed = passes_at(&rig, &root, name, client, &BOTH).await;
        assert_eq!(passed, expected, "{name}");
    }
    let stream = shake(&rig, &root, "b.app.example", None, &BOTH)
        .await
        .unwrap();
    let mut client = Client::new(stream);
    client
        .send("GET / HTTP/1.1\r\nHost: a.app.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 421);
}

/// Rules about a connection, or about the name it was made for, are not passed over a connection made for
/// another name, in every phase.
#[tokio::test]
async fn connection_rules_hold_for_every_host_of_a_connection() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["a.app.example", "b.app.example"]);
    let refusing = json!([{"type": "close-connection", "config": {}}]);
    let sni = "conn.tls.sni == 'a.app.example'";
    let answer = json!([{"actions": [{"type": "custom-response", "config": {"body": "in"}}]}]);
    for policy in [
        json!({
            "on_tcp_connect": [{"expressions": [sni], "actions": refusing}],
            "on_http_request": answer,
        }),
        json!({"on_http_request": [
            {"expressions": [sni], "actions": [{"type": "deny"}]},
            answer[0],
        ]}),
        json!({
            "on_http_request": answer,
            "on_http_response": [{"expressions": [sni], "actions": [
                {"type": "custom-response", "config": {"status_code": 403}},
            ]}],
        }),
    ] {
        let mut endpoint = governed(Scheme::Https, "", &policy.to_string());
        endpoint.host = HostName::parse("*.app.example").unwrap();
        let snapshot = Snapshot::builder().endpoint(endpoint);
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
        let ask = async |host: &str| {
            let stream = shake(&rig, &root, "b.app.example", None, &BOTH).await;
            let mut client = Client::new(stream.unwrap());
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            client.send(request).await;
            client.answer("GET").await.status
        };
        assert_eq!(ask("b.app.example").await, 200, "{policy}");
        assert_eq!(ask("a.app.example").await, 421, "{policy}");
    }
}

/// What a handshake is found to be.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    none: bool,
    own: bool,
    strange: bool,
    tls12: bool,
}

#[tokio::test]
async fn tls_settings_of_several_actions_are_merged_in_any_order() {
    let mut rig = Rig::start().await;
    let upstream = ok(&mut rig).await;
    let (names, key, root) = certificate(&["app.example"]);
    let (ca, other, presented) = (Ca::new("ours"), Ca::new("theirs"), Ca::new("server"));
    let (member, stranger) = (ca.leaf("m.example"), other.leaf("s.example"));
    let leaf = presented.leaf("app.example");
    let mutual = json!({"mutual_tls_certificate_authorities": [ca.pem]});
    let newest = json!({"min_version": "1.3"});
    let own = json!({"server_certificate": leaf.pem, "server_private_key": leaf.key});
    let nothing = json!({});
    let terms = [&mutual, &newest, &own, &nothing];
    let action = |config: &Value| json!({"type": "terminate-tls", "config": config});
    for scheme in [Scheme::Https, Scheme::Tls] {
        for first in terms {
            for second in terms {
                let has = |config: &Value| first == config || second == config;
                // In one rule, in two, and the second in a rule that has a condition.
                let places = [
                    json!([{"actions": [action(first), action(second)]}]),
                    json!([{"actions": [action(first)]}, {"actions": [action(second)]}]),
                    json!([
                        {"actions": [action(first)]},
                        {"expressions": ["conn.client_port > 0"], "actions": [action(second)]},
                    ]),
                ];
                for rules in places {
                    let endpoint = ruled(
                        scheme,
                        "app.example",
                        &upstream,
                        &rules,
                        &Resources::default(),
                    );
                    let snapshot = Snapshot::builder().endpoint(endpoint);
                    rig.edge
                        .publish(snapshot.certificate(names.clone(), key.clone()).build())
                        .await;
                    let root = if has(&own) { presented.root() } else { &root };
                    let old = passes_at(&rig, root, "app.example", Some(&member), &[&TLS12]).await;
                    let found = Found {
                        none: passes(&rig, root, None).await,
                        own: passes(&rig, root, Some(&member)).await,
                        strange: passes(&rig, root, Some(&stranger)).await,
                        tls12: old,
                    };
                    let expected = Found {
                        none: !has(&mutual),
                        own: true,
                        strange: !has(&mutual),
                        tls12: !has(&newest),
                    };
                    assert_eq!(found, expected, "{} {rules}", scheme.name());
                }
            }
        }
    }
}

#[tokio::test]
async fn the_last_action_with_a_tls_setting_decides() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let (ca, other) = (Ca::new("ours"), Ca::new("theirs"));
    let (member, stranger) = (ca.leaf("m.example"), other.leaf("s.example"));
    let authorities = |ca: &Ca| json!({"mutual_tls_certificate_authorities": [ca.pem]});
    let strategy = |name: &str| json!({"mutual_tls_verification_strategy": name});
    let (oldest, newest) = (json!({"max_version": "1.2"}), json!({"min_version": "1.3"}));
    for (first, second, of_none, of_ours, of_theirs) in [
        (authorities(&ca), authorities(&other), false, false, true),
        (authorities(&other), authorities(&ca), false, true, false),
        // To ask for less takes a word.
        (authorities(&ca), strategy("request"), true, true, true),
        (authorities(&ca), strategy("require-any"), false, true, true),
        (strategy("request"), authorities(&ca), false, true, false),
        // No version is left.
        (oldest.clone(), newest.clone(), false, false, false),
        (newest, oldest, false, false, false),
    ] {
        let rules = json!([
            {"actions": [{"type": "terminate-tls", "config": first}]},
            {"actions": [{"type": "terminate-tls", "config": second}]},
        ]);
        let endpoint = ruled(
            Scheme::Https,
            "app.example",
            "",
            &rules,
            &Resources::default(),
        );
        let snapshot = Snapshot::builder().endpoint(endpoint);
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
        let what = rules.to_string();
        assert_eq!(passes(&rig, &root, None).await, of_none, "{what}");
        assert_eq!(passes(&rig, &root, Some(&member)).await, of_ours, "{what}");
        assert_eq!(
            passes(&rig, &root, Some(&stranger)).await,
            of_theirs,
            "{what}"
        );
    }
}

#[tokio::test]
async fn an_internal_endpoint_keeps_the_tls_settings_of_the_previous_one() {
    let mut rig = Rig::start().await;
    let upstream = ok(&mut rig).await;
    let (names, key, root) = certificate(&["app.example"]);
    let ca = Ca::new("ours");
    let member = ca.leaf("m.example");
    let outer = json!([{"actions": [
        {"type": "terminate-tls", "config": {"mutual_tls_certificate_authorities": [ca.pem]}},
        {"type": "forward-internal", "config": {"url": "tls://inner.internal:443"}},
    ]}]);
    let inner = json!([{"actions": [{"type": "terminate-tls", "config": {"min_version": "1.2"}}]}]);
    let outer = ruled(
        Scheme::Tls,
        "app.example",
        &upstream,
        &outer,
        &Resources::default(),
    );
    let mut inner = ruled(
        Scheme::Tls,
        "inner.internal",
        &upstream,
        &inner,
        &Resources::default(),
    );
    inner.binding = crate::EndpointBinding::Internal;
    let snapshot = Snapshot::builder().endpoint(outer).endpoint(inner);
    rig.edge
        .publish(snapshot.certificate(names, key).build())
        .await;
    assert!(!passes(&rig, &root, None).await);
    assert!(passes(&rig, &root, Some(&member)).await);
}

/// Shows a certificate without a look at it.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A client that keeps its sessions from one connection to the next.
pub(super) fn keeping(
    root: &CertificateDer<'static>,
    shown: Option<Arc<CertifiedKey>>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(key) => builder.with_client_cert_resolver(Arc::new(Shows(key))),
    })
}

pub(super) fn certified(pem: &str) -> Arc<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes());
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    Arc::new(CertifiedKey::new(chain, key))
}

/// The answer to a request, and whether its session was resumed; `None` for no answer.
async fn ask(rig: &Rig, config: &Arc<ClientConfig>, name: &str) -> Option<(String, bool)> {
    let tcp = TcpStream::connect(rig.edge.https_addr().unwrap())
        .await
        .unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
    let host = ServerName::try_from(name.to_owned()).unwrap();
    let stream = soon("a handshake", connector.connect(host, tcp))
        .await
        .ok()?;
    let mut client = Client::new(stream);
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let answer = client.try_answer("GET").await?;
    let kind = client.stream.get_ref().1.handshake_kind();
    let is_resumed = kind == Some(rustls::HandshakeKind::Resumed);
    Some((answer.text().to_owned(), is_resumed))
}

#[tokio::test]
async fn version_1_certificates_are_refused_by_every_strategy() {
    let rig = Rig::start().await;
    let (names, key, root) = certificate(&["app.example"]);
    let ca = Ca::new("ours");
    let member = certified(&ca.leaf("m.example").pem_and_key());
    for strategy in ["request", "require-any", "require-and-verify"] {
        let rules = json!([{"actions": [{"type": "terminate-tls", "config": {
            "mutual_tls_certificate_authorities": [ca.pem],
            "mutual_tls_verification_strategy": strategy,
        }}]}]);
        let endpoint = ruled(
            Scheme::Https,
            "app.example",
            "",
            &rules,
            &Resources::default(),
        );
        let snapshot = Snapshot::builder().endpoint(endpoint);
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
        let good = keeping(&root, Some(Arc::clone(&member)));
        assert!(
            ask(&rig, &good, "app.example").await.is_some(),
            "{strategy}"
        );
        // Real, and one that is no certificate at all.
        let first = certified(V1);
        let broken = CertifiedKey::new(vec![vec![0x30, 0].into()], Arc::clone(&first.key));
        for bad in [first, Arc::new(broken)] {
            let bad = keeping(&root, Some(bad));
            assert_eq!(ask(&rig, &bad, "app.example").await, None, "{strategy}");
        }
    }
}

/// A session that began under one set of terms, continued under another.
#[tokio::test]
async fn a_resumed_session_meets_the_current_tls_policy() {
    let now = Timestamp::from_unix_nanos(
        culvert_base::Clock::now(&culvert_base::SystemClock).unix_nanos(),
    );
    let clock = Arc::new(ManualClock::at(now));
    let rig = Rig::at(settings(), Arc::clone(&clock) as _).await;
    let (names, key, root) = certificate(&["app.example", "*.app.example"]);
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let member = certified(&ours.leaf_until("m.example", now.plus(Duration::from_secs(3600))));
    let authorities = Arc::new(Authorities::default());
    authorities.replace(vec![ours.root().clone()]);
    let mut among = Resources::default();
    among
        .authorities
        .insert("ca_1".to_owned(), Arc::clone(&authorities));
    let mutual = |ca: &Ca| json!({"mutual_tls_certificate_authorities": [ca.pem]});
    let by_id = json!({"mutual_tls_certificate_authorities": ["ca_1"]});
    let any = json!({
        "mutual_tls_certificate_authorities": [ours.pem],
        "mutual_tls_verification_strategy": "request",
    });
    let publish = async |config: &Value| {
        let rules = json!([{"actions": [{"type": "terminate-tls", "config": config}]}]);
        let endpoint = ruled(Scheme::Https, "app.example", "", &rules, &among);
        let snapshot = Snapshot::builder().endpoint(endpoint);
        rig.edge
            .publish(snapshot.certificate(names.clone(), key.clone()).build())
            .await;
    };
    let host = "app.example";
    // From no certificate asked for, or from one that may be shown, to one that must be.
    for before in [json!({}), any.clone()] {
        publish(&before).await;
        let nobody = keeping(&root, None);
        assert_eq!(ask(&rig, &nobody, host).await, Some(("ok".into(), false)));
        assert_eq!(ask(&rig, &nobody, host).await, Some(("ok".into(), true)));
        publish(&mutual(&ours)).await;
        assert_eq!(ask(&rig, &nobody, host).await, None, "{before}");
    }
    // From one authority to another.
    let client = keeping(&root, Some(Arc::clone(&member)));
    assert_eq!(ask(&rig, &client, host).await, Some(("ok".into(), false)));
    assert_eq!(ask(&rig, &client, host).await, Some(("ok".into(), true)));
    publish(&mutual(&theirs)).await;
    assert_eq!(ask(&rig, &client, host).await, None);
    // An authority that is trusted no longer.
    publish(&by_id).await;
    assert_eq!(ask(&rig, &client, host).await, Some(("ok".into(), false)));
    assert_eq!(ask(&rig, &client, host).await, Some(("ok".into(), true)));
    authorities.replace(vec![theirs.root().clone()]);
    assert_eq!(ask(&rig, &client, host).await, None);
    authorities.replace(vec![ours.root().clone()]);
    // A certificate that expired while the session was kept.
    assert!(ask(&rig, &client, host).await.is_some());
    assert_eq!(ask(&rig, &client, host).await, Some(("ok".into(), true)));
    clock.advance(Duration::from_secs(3601));
    assert_eq!(ask(&rig, &client, host).await, None);
}

#[tokio::test]
async fn a_failing_expression_skips_rules_according_to_on_error() {
    for (on_expression_error, expected) in [
        (OnExpressionError::Auto, false),
        (OnExpressionError::Deny, false),
        (OnExpressionError::Skip, true),
    ] {
        let rig = Rig::with(Settings {
            on_expression_error,
            ..settings()
        })
        .await;
        let (names, key, root) = certificate(&["app.example"]);
        let rules = json!([{"expressions": ["vars.none == 1"], "actions": [{"type": "deny"}]}]);
        let endpoint = ruled(
            Scheme::Https,
            "app.example",
            "",
            &rules,
            &Resources::default(),
        );
        let snapshot = Snapshot::builder()
            .endpoint(endpoint)
            .certificate(names, key);
        rig.edge.publish(snapshot.build()).await;
        assert_eq!(passes(&rig, &root, None).await, expected);
    }
}
