//! Who the user is: fields that clients cannot set, and assertions that services verify.

use std::sync::Arc;

use culvert_policy::identity::AssertionKeys;
use culvert_policy::{Resources, Scheme};
use http::Request;
use http_body_util::BodyExt;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::harness::*;
use super::header_names::echoing;
use super::policies::governed_with;
use super::streams::{connect, frames};
use super::tokens::{Issuer, NOW, claims, rig_with};
use crate::{Settings, Snapshot};

/// Names by which an upstream may know a user, as a client may write them.
const FORGED: [&str; 8] = [
    "X-User",
    "x_user",
    "x.user",
    "X-Roles",
    "x_roles",
    "Culvert-Assertion",
    "culvert_assertion",
    "culvert.assertion",
];

fn forged() -> String {
    let twice = FORGED.iter().chain(&FORGED);
    twice.map(|name| format!("{name}: mallory\r\n")).collect()
}

const POLICY: &str = "
on_http_request:
- expressions: ['req.url.path != \"/open\"']
  actions:
  - type: jwt-validation
    config:
      issuer: {allow_list: [{value: 'https://issuer.example'}]}
      audience: {allow_list: [{value: ours}]}
      http: {tokens: [{type: jwt, method: header, name: authorization, prefix: 'Bearer '}]}
      jws: {allowed_algorithms: [ES256], keys: {sources: {additional_jkus: ['https://issuer.example/keys']}}}
      forward_identity:
        headers: {x-user: email, x-roles: roles}
        assertion: {claims: [email, roles, none]}
- expressions: ['\"x-user\" in req.headers || \"culvert-assertion\" in req.headers']
  actions: [{type: deny, config: {status_code: 418}}]
";

/// An edge with an endpoint of this policy over HTTP and HTTPS. The upstream returns the head and the trailers that it got.
async fn start(issuer: &Issuer, keeps: bool) -> (Rig, CertificateDer<'static>) {
    let settings = Settings {
        underscore_headers: keeps,
        ..settings()
    };
    let mut rig = rig_with(&[issuer], settings).await;
    let origin = origin(&mut rig.tasks, |mut client| async move {
        while let Some(head) = client.head().await {
            let (_, trailers) = client.body(&head).await.unwrap();
            let text = format!("{head}{trailers}");
            let length = text.len();
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
            client.send(response).await;
        }
    })
    .await;
    let keys = AssertionKeys::new("https://culvert.example", [[9; 32]]);
    let resources = Resources {
        assertions: Some(Arc::new(keys)),
        ..Resources::default()
    };
    let (names, key, root) = certificate(&["app.example"]);
    let upstream = format!("http://{origin}");
    let mut snapshot = Snapshot::builder().certificate(names, key);
    for (scheme, port) in [(Scheme::Http, 80), (Scheme::Https, 443)] {
        let mut endpoint = governed_with(scheme, &upstream, POLICY, &resources);
        endpoint.port = port;
        snapshot = snapshot.endpoint(endpoint);
    }
    rig.edge.publish(snapshot.build()).await;
    (rig, root)
}

/// The values of a field in a head.
fn values<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let named = lines.filter(|(given, _)| given.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value).collect()
}

/// The claims of an assertion, verified with the keys that the endpoint publishes.
fn verified(key_set: &str, token: &str, audience: &str) -> Value {
    let set: JwkSet = serde_json::from_str(key_set).unwrap();
    let id = decode_header(token).unwrap().kid.unwrap();
    let key = DecodingKey::from_jwk(set.find(&id).unwrap()).unwrap();
    let mut validation = Validation::new(Algorithm::ES256);
    validation.set_audience(&[audience]);
    validation.set_issuer(&["https://culvert.example"]);
    // The clock of the test stands still.
    validation.validate_exp = false;
    decode(token, &key, &validation).unwrap().claims
}

#[tokio::test]
async fn upstreams_learn_who_the_user_is_from_the_edge_alone() {
    let issuer = Issuer::ec("a");
    let claims = claims(json!({"email": "anna@x.example", "roles": ["a", "b"]}));
    let token = issuer.sign(&claims);
    for keeps in [false, true] {
        let (mut rig, root) = start(&issuer, keeps).await;
        let forged = forged();
        let request = |path: &str, authorization: &str| {
            format!(
                "POST {path} HTTP/1.1\r\nHost: app.example\r\n{authorization}{forged}Transfer-Encoding: chunked\r\n\r\n\
                 0\r\nx-user: mallory\r\nx_roles: mallory\r\nculvert-assertion: mallory\r\nx-tail: 1\r\n\r\n"
            )
        };
        let bearer = format!("authorization: Bearer {token}\r\n");
        let answer = rig.ask(&request("/", &bearer)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let head = answer.text();
        assert!(!head.contains("mallory"), "{head}");
        assert!(values(head, "x-tail").is_empty(), "{head}");
        assert_eq!(values(head, "x-user"), ["anna@x.example"]);
        assert_eq!(values(head, "x-roles"), [r#"["a","b"]"#]);
        let assertions = values(head, "culvert-assertion");
        let [assertion] = assertions[..] else {
            panic!("{head}");
        };

        let keys = rig
            .ask("GET /culvert/jwks.json HTTP/1.1\r\nHost: app.example\r\n\r\n")
            .await;
        assert_eq!(keys.status, 200);
        assert_eq!(
            keys.header("content-type"),
            Some("application/jwk-set+json")
        );
        assert_eq!(keys.header("cache-control"), Some("public, max-age=3600"));
        let known = verified(keys.text(), assertion, "http://app.example");
        assert_eq!(known["sub"], "me");
        assert_eq!(known["idp"], "https://issuer.example");
        assert_eq!(known["email"], "anna@x.example");
        assert_eq!(known["roles"], json!(["a", "b"]));
        assert_eq!(known["exp"], NOW + 60);
        assert!(known.get("none").is_none() && known["jti"].is_string());
        let posted =
            "POST /culvert/jwks.json HTTP/1.1\r\nHost: app.example\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(rig.ask(posted).await.status, 405);

        // Whichever rule matches, and whether or not there is a user.
        let open = rig.ask(&request("/open", "")).await;
        assert_eq!(open.status, 200, "{}", open.text());
        assert!(!open.text().contains("mallory"), "{}", open.text());
        assert_eq!(rig.ask(&request("/", "")).await.status, 401);

        let mut sender = connect(&mut rig, &root).await;
        let (send, body) = frames();
        let mut two = Request::post("https://app.example/")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {token}"));
        for name in FORGED {
            two = two.header(name.to_ascii_lowercase(), "mallory");
        }
        let asked = sender.send_request(two.body(body).unwrap());
        let mut trailers = http::HeaderMap::new();
        for (name, value) in [
            ("x-user", "mallory"),
            ("x.roles", "mallory"),
            ("x-tail", "1"),
        ] {
            trailers.insert(name, http::HeaderValue::from_static(value));
        }
        send.send(hyper::body::Frame::trailers(trailers))
            .await
            .unwrap();
        drop(send);
        let answer = soon("an answer", asked).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let head = String::from_utf8_lossy(&body);
        assert!(!head.contains("mallory"), "{head}");
        assert_eq!(values(&head, "x-user"), ["anna@x.example"]);
        let assertion = values(&head, "culvert-assertion");
        verified(keys.text(), assertion[0], "https://app.example");
    }
}

#[tokio::test]
async fn a_value_with_a_line_break_leaves_no_field() {
    let issuer = Issuer::ec("a");
    let (rig, _) = start(&issuer, false).await;
    let given = claims(json!({"sub": null, "email": "a\r\nx-admin: 1", "roles": null}));
    let bearer = format!("authorization: Bearer {}\r\n", issuer.sign(&given));
    let request = format!(
        "GET / HTTP/1.1\r\nHost: app.example\r\n{bearer}{}\r\n",
        forged()
    );
    let answer = rig.ask(&request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for name in FORGED.into_iter().chain(["x-admin"]) {
        let name = format!("{}:", name.to_ascii_lowercase());
        assert!(
            !answer.text().to_ascii_lowercase().contains(&name),
            "{name} in {}",
            answer.text()
        );
    }
}

/// An endpoint without a policy, and one whose policy knows no users: both paths of a request.
#[tokio::test]
async fn clients_send_no_assertions_anywhere() {
    for policy in [
        "",
        "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-mine: '1'}}}]}]",
    ] {
        for keeps in [false, true] {
            let (mut rig, root) = echoing("x-own: 1", policy, keeps).await;
            for name in [
                "Culvert-Assertion",
                "culvert_assertion",
                "culvert.assertion",
                "CULVERT-ASSERTION",
                "culvert.replay.of",
                "culvert_replay_of",
            ] {
                let request = format!(
                    "GET / HTTP/1.1\r\nHost: app.example\r\n{name}: mallory\r\nx-fine: 1\r\n\r\n"
                );
                let answer = rig.ask(&request).await;
                assert!(answer.text().contains("x-fine: 1"), "{}", answer.text());
                assert!(
                    !answer.text().contains("mallory"),
                    "{name}: {}",
                    answer.text()
                );
            }
            let chunked = "POST / HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\
                           culvert-assertion: mallory\r\nculvert.assertion: mallory\r\nculvert-replay-of: mallory\r\nx-tail: 1\r\n\r\n";
            let answer = rig.ask(chunked).await;
            assert!(!answer.text().contains("x-tail"), "{}", answer.text());
            assert!(!answer.text().contains("mallory"), "{}", answer.text());

            let mut sender = connect(&mut rig, &root).await;
            let request = Request::get("https://app.example/")
                .header("culvert-assertion", "mallory")
                .header("culvert.assertion", "mallory");
            let (_, text) = super::paths::ask2(&mut sender, request).await;
            assert!(!text.contains("mallory"), "{text}");
        }
    }
}

/// An upstream that joins lines, or takes the first or the last one, reads the same value.
#[tokio::test]
async fn a_field_that_a_policy_sets_is_the_only_one() {
    const SET: &str = "
on_http_request:
- actions:
  - {type: set-headers, config: {headers: {x-user: 'anna', x_roles: 'ADMIN', x-bad: \"${'a\\\\nb'}\", x-failed: \"${req.headers['none'][0]}\", host: other.example}}}
  - {type: add-headers, config: {headers: {x-broken: \"${'a\\\\nb'}\"}}}
on_http_response:
- actions:
  - {type: set-headers, config: {headers: {x-own: 'edge'}}}
";
    for keeps in [false, true] {
        let (rig, _) = echoing("x-own: 1\r\nx-own: 2", SET, keeps).await;
        let names = [
            "X-User", "x_user", "x.user", "X-Roles", "x_roles", "x.roles", "x-bad", "x-failed",
            "x-broken", "x_broken",
        ];
        let lines: String = names
            .iter()
            .chain(&names)
            .map(|name| format!("{name}: mallory\r\n"))
            .collect();
        let answer = rig
            .ask(&format!(
                "GET / HTTP/1.1\r\nHost: app.example\r\n{lines}\r\n"
            ))
            .await;
        assert_eq!(answer.status, 200);
        let head = answer.text();
        assert!(!head.contains("mallory"), "{head}");
        assert_eq!(values(head, "x-user"), ["anna"]);
        assert_eq!(values(head, "x_roles"), ["ADMIN"]);
        assert_eq!(values(head, "host"), ["other.example"]);
        for name in ["x-bad", "x-failed", "x-broken"] {
            assert!(values(head, name).is_empty(), "{name} in {head}");
        }
        assert_eq!(answer.header("x-own"), Some("edge"));
    }
    // A host that cannot be set is not that of the client.
    for action in ["set-headers", "add-headers"] {
        let policy = format!(
            "on_http_request: [{{actions: [{{type: {action}, config: {{headers: {{host: \"${{'a\\\\nb'}}\"}}}}}}]}}]"
        );
        let (rig, _) = echoing("x-own: 1", &policy, false).await;
        let answer = rig.ask("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n").await;
        assert_eq!(answer.status, 500, "{action}");
    }
}

/// RFC 9110 15: clients disagree about such a status, and caches may store it.
#[tokio::test]
async fn a_status_outside_of_http_is_a_bad_gateway() {
    for policy in [
        "",
        "on_http_response: [{actions: [{type: add-headers, config: {headers: {x-mine: '1'}}}]}]",
    ] {
        for (status, expected) in [
            ("599", 599),
            ("600", 502),
            ("999", 502),
            ("099", 502),
            ("1000", 502),
        ] {
            let mut rig = Rig::start().await;
            let origin = origin(&mut rig.tasks, move |mut client| async move {
                while client.head().await.is_some() {
                    client
                        .send(format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n"))
                        .await;
                }
            })
            .await;
            let origin = format!("http://{origin}");
            let endpoint = super::internal::named(Scheme::Http, "app.example", 80, &origin, policy);
            rig.edge
                .publish(Snapshot::builder().endpoint(endpoint).build())
                .await;
            let answer = rig.ask("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n").await;
            assert_eq!(answer.status, expected, "{status}");
        }
    }
}

/// HTTP/2 splits cookies over several fields. Both paths of a request join the others.
#[tokio::test]
async fn no_field_of_http2_brings_a_cookie_of_the_edge() {
    let policy =
        "on_http_request: [{actions: [{type: add-headers, config: {headers: {x-mine: '1'}}}]}]";
    for policy in ["", policy] {
        let (mut rig, root) = echoing("x-own: 1", policy, false).await;
        let mut sender = connect(&mut rig, &root).await;
        for (fields, expected) in [
            (
                &["a=1", "__Host-culvert.session=hush", "b=2"][..],
                "a=1; b=2",
            ),
            (
                &[
                    "a=1; __secure-CULVERT.x.session=hush",
                    "culvert.nonce=hush",
                    "b=2",
                ],
                "a=1; b=2",
            ),
            (
                &["__Host-culvert=hush", "=culvert.session=hush", "a=1"],
                "a=1",
            ),
            (&["a=1, __Host-culvert-sign-in=hush"], "a=1"),
        ] {
            let mut request = Request::get("https://app.example/");
            for field in fields {
                request = request.header("cookie", *field);
            }
            let (_, text) = super::paths::ask2(&mut sender, request).await;
            assert_eq!(values(&text, "cookie"), [expected], "{fields:?}: {text}");
            assert!(!text.contains("hush"), "{fields:?}: {text}");
        }
    }
}
