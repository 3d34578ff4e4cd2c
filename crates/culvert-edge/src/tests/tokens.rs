//! jwt-validation on live traffic: which tokens pass, and the responses to the others.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{ManualClock, Timestamp};
use culvert_edge_config::ACTIONS;
use culvert_policy::Scheme;
use culvert_policy::{Resources, Source};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::harness::*;
use super::policies::{last_event, publish};
use crate::Settings;

pub(super) const NOW: i64 = 1_767_225_600;
const KEYS: &str = "https://issuer.example/keys";

const POLICY: &str = "
on_http_request:
- actions:
  - type: jwt-validation
    config:
      issuer: {allow_list: [{value: 'https://issuer.example'}]}
      audience: {allow_list: [{value: ours}, {value: theirs}]}
      http: {tokens: [{type: TYPE, method: METHOD, name: NAME, prefix: 'Bearer '}]}
      jws: {allowed_algorithms: [ES256, EdDSA], keys: {sources: {additional_jkus: ['https://issuer.example/keys']}}}
  - {type: custom-response, config: {body: 'for ${actions.ngrok.jwt_validation.tokens[0].payload.sub}'}}
on_http_response:
- actions: [{type: log, config: {metadata: {error: '${actions.culvert.jwt_validation.error.code}'}}}]
";

fn policy(kind: &str, method: &str, name: &str) -> String {
    POLICY
        .replace("TYPE", kind)
        .replace("METHOD", method)
        .replace("NAME", name)
}

pub(super) struct Issuer {
    key: EncodingKey,
    pub(super) public: Vec<u8>,
    header: Header,
}

impl Issuer {
    pub(super) fn ec(id: &str) -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(id.to_owned());
        Self {
            key: EncodingKey::from_ec_der(&pair.serialize_der()),
            public: pair.public_key_raw().to_vec(),
            header,
        }
    }

    fn ed(id: &str) -> Self {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(id.to_owned());
        Self {
            key: EncodingKey::from_ed_der(&pair.serialize_der()),
            public: pair.public_key_raw().to_vec(),
            header,
        }
    }

    pub(super) fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self.header.alg {
            Algorithm::EdDSA => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": self.header.kid, "x": text(&self.public)})
            }
            _ => json!({
                "kty": "EC", "crv": "P-256", "kid": self.header.kid, "alg": "ES256", "use": "sig",
                "x": text(&self.public[1..33]), "y": text(&self.public[33..]),
            }),
        }
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        encode(&self.header, claims, &self.key).unwrap()
    }

    fn sign_as(&self, change: impl FnOnce(&mut Header)) -> String {
        let mut header = self.header.clone();
        change(&mut header);
        encode(&header, &claims(json!({})), &self.key).unwrap()
    }
}

pub(super) fn claims(change: Value) -> Value {
    let mut claims =
        json!({"iss": "https://issuer.example", "aud": "ours", "sub": "me", "exp": NOW + 10});
    for (name, value) in change.as_object().unwrap() {
        claims[name] = value.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
    }
    claims
}

async fn rig(keys: &[&Issuer]) -> Rig {
    rig_with(keys, settings()).await
}

pub(super) async fn rig_with(keys: &[&Issuer], settings: Settings) -> Rig {
    let clock = ManualClock::at(Timestamp::from_unix_seconds(NOW));
    let rig = Rig::at(settings, Arc::new(clock)).await;
    let set = json!({"keys": keys.iter().map(|issuer| issuer.jwk()).collect::<Vec<_>>()});
    let documents = &rig.edge.shared();
    documents
        .policy
        .documents
        .put(KEYS, set.to_string().into())
        .await;
    rig
}

async fn ask(rig: &Rig, authorization: &str) -> Answer {
    rig.ask(&format!(
        "GET / HTTP/1.1\r\nHost: app.example\r\n{authorization}\r\n"
    ))
    .await
}

#[tokio::test]
async fn only_tokens_of_the_issuer_are_accepted() {
    let (ours, other, stranger) = (Issuer::ec("a"), Issuer::ed("b"), Issuer::ec("a"));
    let rig = rig(&[&other, &ours]).await;
    publish(&rig, "", &policy("jwt", "header", "Authorization")).await;
    let good = ours.sign(&claims(json!({})));
    let (head, signature) = good.rsplit_once('.').unwrap();
    let tampered = URL_SAFE_NO_PAD.encode(claims(json!({"sub": "you"})).to_string());
    let tampered = format!("{}.{tampered}.{signature}", head.split('.').next().unwrap());
    let unsigned = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let unsigned = format!("{unsigned}.{}.", head.split('.').nth(1).unwrap());
    // A verifier that uses the public key as a shared secret would accept this.
    let confused = encode(
        &Header::new(Algorithm::HS256),
        &claims(json!({})),
        &EncodingKey::from_secret(&ours.public),
    )
    .unwrap();
    for (why, token, status, code) in [
        ("good", good.clone(), 200, ""),
        (
            "another kind of key",
            other.sign(&claims(json!({}))),
            200,
            "",
        ),
        (
            "one audience of two",
            ours.sign(&claims(json!({"aud": ["x", "theirs"]}))),
            200,
            "",
        ),
        (
            "no key named",
            ours.sign_as(|header| header.kid = None),
            200,
            "",
        ),
        (
            "just expired",
            ours.sign(&claims(json!({"exp": NOW - 50}))),
            200,
            "",
        ),
        (
            "nearly valid",
            ours.sign(&claims(json!({"nbf": NOW + 50}))),
            200,
            "",
        ),
        (
            "expired",
            ours.sign(&claims(json!({"exp": NOW - 70}))),
            403,
            "3403",
        ),
        (
            "never expires",
            ours.sign(&claims(json!({"exp": null}))),
            403,
            "3403",
        ),
        (
            "expires in words",
            ours.sign(&claims(json!({"exp": "late"}))),
            403,
            "3403",
        ),
        (
            "not valid yet",
            ours.sign(&claims(json!({"nbf": NOW + 70}))),
            403,
            "3403",
        ),
        (
            "another issuer",
            ours.sign(&claims(json!({"iss": "https://issuer.example/"}))),
            403,
            "3403",
        ),
        (
            "a list of issuers",
            ours.sign(&claims(json!({"iss": ["https://issuer.example"]}))),
            403,
            "3403",
        ),
        (
            "no issuer",
            ours.sign(&claims(json!({"iss": null}))),
            403,
            "3403",
        ),
        (
            "another audience",
            ours.sign(&claims(json!({"aud": "x"}))),
            403,
            "3403",
        ),
        (
            "no audience",
            ours.sign(&claims(json!({"aud": null}))),
            403,
            "3403",
        ),
        (
            "another key of the name",
            stranger.sign(&claims(json!({}))),
            403,
            "3403",
        ),
        (
            "a key that is not known",
            ours.sign_as(|header| header.kid = Some("c".into())),
            403,
            "3403",
        ),
        (
            "a demand",
            ours.sign_as(|header| header.crit = Some(vec!["exp".into()])),
            403,
            "3403",
        ),
        ("tampered", tampered, 403, "3403"),
        ("a shared key", confused, 403, "3403"),
        ("unsigned", unsigned, 401, "3406"),
        ("two parts", head.to_owned(), 401, "3406"),
        ("nothing", String::new(), 401, "3401"),
        (
            "too long",
            format!("{good}{}", "A".repeat(16 << 10)),
            401,
            "3406",
        ),
    ] {
        let answer = ask(&rig, &format!("authorization: bearer {token}\r\n")).await;
        assert_eq!(answer.status, status, "{why}: {}", answer.text());
        let expected = (!code.is_empty()).then(|| format!("ERR_NGROK_{code}"));
        assert_eq!(
            answer.header("ngrok-error-code"),
            expected.as_deref(),
            "{why}"
        );
        let challenge = (status == 401).then_some("Bearer");
        assert_eq!(answer.header("www-authenticate"), challenge, "{why}");
        if status == 200 {
            assert_eq!(answer.text(), "for me", "{why}");
        }
    }
    for (why, authorization, code) in [
        ("none", String::new(), "3401"),
        (
            "another scheme",
            "authorization: Basic bWU6eA==\r\n".to_owned(),
            "3401",
        ),
        (
            "two",
            format!("authorization: Bearer {good}\r\nauthorization: Bearer {good}\r\n"),
            "3406",
        ),
    ] {
        let answer = ask(&rig, &authorization).await;
        let code = format!("ERR_NGROK_{code}");
        assert_eq!(answer.status, 401, "{why}");
        assert_eq!(
            answer.header("ngrok-error-code"),
            Some(code.as_str()),
            "{why}"
        );
    }
}

#[tokio::test]
async fn results_of_jwt_validation_are_recorded() {
    let ours = Issuer::ec("a");
    let rig = rig(&[&ours]).await;
    publish(&rig, "", &policy("at+jwt", "header", "x-token")).await;
    let typed = ours.sign_as(|header| header.typ = Some("application/AT+JWT".into()));
    let good = ask(&rig, &format!("x-token: Bearer {typed}\r\n")).await;
    assert_eq!((good.status, good.text()), (200, "for me"));
    let event = last_event(&rig, 1).await;
    let log = json!([{"metadata": {"error": ""}}]);
    assert_eq!(event["traffic_policy"]["logs"], log);
    let untyped = ours.sign(&claims(json!({})));
    let refused = ask(&rig, &format!("x-token: Bearer {untyped}\r\n")).await;
    assert_eq!(refused.status, 403);
    let event = last_event(&rig, 3).await;
    let log = json!([{"metadata": {"error": "ERR_NGROK_3403"}}]);
    assert_eq!(event["traffic_policy"]["logs"], log);
}

#[tokio::test]
async fn tokens_are_read_from_bodies() {
    let ours = Issuer::ec("a");
    let rig = rig(&[&ours]).await;
    publish(&rig, "", &policy("id_token", "body", "token")).await;
    let token = ours.sign(&claims(json!({})));
    for (media, body, status) in [
        (
            "application/json",
            format!("{{\"a\": 1, \"token\": \"Bearer {token}\"}}"),
            200,
        ),
        (
            "application/x-www-form-urlencoded",
            format!("a=1&token=Bearer+{token}"),
            200,
        ),
        ("application/json", "{\"token\": 1}".to_owned(), 401),
        ("application/json", "{".to_owned(), 401),
        ("text/plain", format!("token=Bearer+{token}"), 401),
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: app.example\r\nContent-Type: {media}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(rig.ask(&request).await.status, status, "{media} {body}");
    }
}

#[tokio::test]
async fn requests_are_refused_while_keys_are_unavailable() {
    let ours = Issuer::ec("a");
    let rig = rig(&[]).await;
    let unreachable = policy("jwt", "header", "authorization")
        .replace(&format!("'{KEYS}'"), "'https://127.0.0.1:1/keys'");
    publish(&rig, "", &unreachable).await;
    let bearer = format!(
        "authorization: Bearer {}\r\n",
        ours.sign(&claims(json!({})))
    );
    let answer = ask(&rig, &bearer).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("ngrok-error-code"), Some("ERR_NGROK_3422"));
}

#[test]
fn invalid_jwt_validation_configurations_are_refused() {
    let whole = policy("jwt", "header", "authorization");
    for (from, to, code) in [
        ("[ES256, EdDSA]", "[none]", "ERR_NGROK_2204"),
        ("[ES256, EdDSA]", "[HS256]", "ERR_NGROK_2204"),
        ("[ES256, EdDSA]", "[]", "ERR_NGROK_2223"),
        ("['https://issuer.example/keys']", "[]", "ERR_NGROK_2223"),
        (
            "https://issuer.example/keys",
            "http://issuer.example/keys",
            "ERR_NGROK_2204",
        ),
        (
            "https://issuer.example/keys",
            "https://u:p@issuer.example/keys",
            "ERR_NGROK_2204",
        ),
        ("{value: ours}, {value: theirs}", "", "ERR_NGROK_2223"),
        ("type: jwt,", "type: opaque,", "ERR_NGROK_2203"),
        ("method: header,", "method: query,", "ERR_NGROK_2203"),
        ("name: authorization,", "name: 'a b',", "ERR_NGROK_2204"),
        ("name: authorization,", "", "ERR_NGROK_2234"),
    ] {
        assert!(whole.contains(from), "{from}");
        let source = Source::read(&whole.replace(from, to), ACTIONS).unwrap();
        let refused = source
            .compile(Scheme::Http, false, &Resources::default())
            .unwrap_err();
        assert_eq!(refused.code.unwrap().to_string(), code, "{from} {to}");
    }
    let source = Source::read(&whole, ACTIONS).unwrap();
    assert!(
        source
            .compile(Scheme::Http, false, &Resources::default())
            .is_ok()
    );
}
