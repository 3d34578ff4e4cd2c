//! Sends invalid values that no client sends to every field of every resource. Each is accepted or refused
//! with a code in bounded time, and a refusal leaves nothing behind.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_access::ip::policy_rule;
use culvert_resources::resource::Life;
use rcgen::{CertificateParams, KeyPair};

use crate::operations::resources::ALL;
use crate::tests::*;

/// Far above the time that any of these takes, even on a busy machine.
const PATIENCE: Duration = culvert_testing::PATIENCE;

impl Rig {
    /// Sends a body and checks the rules that hold for all of them. Returns the code, or `None` if it was
    /// accepted. Removes the created object.
    async fn bear(&self, method: &str, path: &str, body: Value, about: &str) -> Option<u16> {
        let before = self.store.revision().await.unwrap();
        let began = Instant::now();
        let answered = self.call(&self.admin, method, path, body).await;
        assert!(began.elapsed() < PATIENCE, "{method} {path} {about}");
        match answered {
            Answered::Created(made) => {
                let one = format!("{path}/{}", made["id"].as_str().unwrap());
                assert_eq!(self.delete(&one).await, Answered::NoContent, "{about}");
                None
            }
            Answered::Ok(_) => None,
            Answered::Refused(_, code, message) => {
                assert!(code.is_some(), "{method} {path} {about}: {message}");
                assert!(
                    message.len() < 2000,
                    "{method} {path} {about}: it is quoted"
                );
                let after = self.store.revision().await.unwrap();
                assert_eq!(
                    before, after,
                    "{method} {path} {about}: something was written"
                );
                code
            }
            Answered::NoContent => panic!("{method} {path} {about}"),
        }
    }

    async fn refused(&self, path: &str, body: Value, about: &str) -> u16 {
        let code = self.bear("POST", path, body, about).await;
        code.unwrap_or_else(|| panic!("{path} takes {about}"))
    }
}

/// Values that are invalid for almost every field.
fn values() -> Vec<(&'static str, Value)> {
    let deep = |wrap: fn(Value) -> Value| (0..100).fold(Value::Null, |value, _| wrap(value));
    let many: serde_json::Map<_, _> = (0..10_000).map(|n| (n.to_string(), json!(n))).collect();
    vec![
        ("NUL", json!("\0")),
        ("a mebibyte", json!("x".repeat(1 << 20))),
        ("accents", json!("\u{e9}".repeat(3000))),
        ("directions", json!("\u{202e}\u{feff}\u{200d}\u{0}")),
        ("half a PEM", json!("-----BEGIN CERTIFICATE-----\n")),
        ("the least", json!(i64::MIN)),
        ("the most", json!(u64::MAX)),
        ("a large float", json!(1e308)),
        ("a flag", json!(true)),
        ("deep lists", deep(|value| json!([value]))),
        ("deep objects", deep(|value| json!({"name": value}))),
        ("many texts", json!(vec!["x"; 100_000])),
        ("many names", Value::Object(many)),
        ("no list", json!([null])),
    ]
}

#[tokio::test]
async fn every_field_handles_every_value() {
    let rig = Rig::start().await;
    for ty in ALL.iter().filter(|ty| ty.life == Life::Configured) {
        let collection = format!("/{}", ty.collection);
        let made = rig.post(&collection, rig.sample(ty.collection, 6).await);
        let one = format!("{collection}/{}", made.await.body()["id"].as_str().unwrap());
        let sample = rig.sample(ty.collection, 7).await;
        for (method, path, schema, known) in [
            ("POST", &collection, ty.create_schema, &sample),
            ("PATCH", &one, ty.update_schema, &json!({})),
        ] {
            let mut generator = schemars::generate::SchemaSettings::draft2020_12()
                .with(|settings| settings.inline_subschemas = true)
                .into_generator();
            let schema = schema(&mut generator).to_value();
            let fields: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
            assert!(!fields.is_empty());
            for field in fields {
                for (about, value) in values() {
                    let mut body = known.clone();
                    body[field] = value;
                    let about = format!("{field} {about}");
                    rig.bear(method, path, body, &about).await;
                }
            }
        }
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let data = STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{data}\n-----END {label}-----\n")
}

fn der(pem: &str) -> Vec<u8> {
    let data: String = pem
        .lines()
        .filter(|line| !line.starts_with("---"))
        .collect();
    STANDARD.decode(data).unwrap()
}

/// The input truncated at many places, with single bits flipped at many places, and with lengths that exceed
/// the data.
fn damaged(der: &[u8]) -> Vec<Vec<u8>> {
    let step = (der.len() / 40).max(1);
    let mut all = Vec::new();
    for at in (0..der.len()).step_by(step) {
        all.push(der[..at].to_vec());
        for bit in [0x01, 0x80] {
            let mut turned = der.to_vec();
            turned[at] ^= bit;
            all.push(turned);
        }
    }
    all.extend([
        vec![0x30; 8000],
        [0x30, 0x80].repeat(4000),
        [0x30, 0x82, 0xff, 0xff].repeat(2000),
        vec![0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 0x02],
        vec![0x30, 0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        vec![0x30, 0xff],
        [der, der].concat(),
        [der, &[0]].concat(),
    ]);
    all
}

#[tokio::test]
async fn damaged_certificates_keys_and_requests_are_refused() {
    let rig = Rig::start().await;
    let authority = certificates::authority("root");
    let leaf = certificates::leaf("a.example");
    let key = leaf["private_key_pem"].as_str().unwrap();
    let request_key = KeyPair::generate().unwrap();
    let request = CertificateParams::new(Vec::<String>::new()).unwrap();
    let request = request.serialize_request(&request_key).unwrap();
    let operator = rig.post("/kubernetes_operators", json!({})).await.body();
    let operator = format!("/kubernetes_operators/{}", operator["id"].as_str().unwrap());

    for bad in damaged(&der(&authority)) {
        let body = json!({"ca_pem": pem("CERTIFICATE", &bad)});
        let code = rig
            .bear("POST", "/certificate_authorities", body, "a CA")
            .await;
        assert!(matches!(code, None | Some(1900..=1999)), "{code:?}");
    }
    for bad in damaged(&der(leaf["certificate_pem"].as_str().unwrap())) {
        let body = json!({"certificate_pem": pem("CERTIFICATE", &bad), "private_key_pem": key});
        let code = rig.bear("POST", "/tls_certificates", body, "a leaf").await;
        assert!(matches!(code, None | Some(1900..=1999)), "{code:?}");
    }
    for bad in damaged(&der(key)) {
        let chain = &leaf["certificate_pem"];
        let body = json!({"certificate_pem": chain, "private_key_pem": pem("PRIVATE KEY", &bad)});
        let code = rig.bear("POST", "/tls_certificates", body, "a key").await;
        assert!(matches!(code, None | Some(1900..=1999)), "{code:?}");
    }
    for bad in damaged(request.der()) {
        let body = json!({"binding": {"csr": pem("CERTIFICATE REQUEST", &bad)}});
        let code = rig.bear("PATCH", &operator, body, "a request").await;
        assert!(matches!(code, None | Some(19001)), "{code:?}");
    }
}

#[tokio::test]
async fn damaged_ssh_keys_are_refused() {
    let rig = Rig::start().await;
    let good = ssh::new_key();
    let blob = STANDARD.decode(good.split(' ').nth(1).unwrap()).unwrap();
    let line = |name: &str, blob: &[u8]| format!("{name} {}", STANDARD.encode(blob));
    let string = |bytes: &[u8]| -> Vec<u8> {
        [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    };
    let wire =
        |fields: &[&[u8]]| -> Vec<u8> { fields.iter().flat_map(|one| string(one)).collect() };
    let mut lines: Vec<String> = (0..blob.len())
        .map(|at| line("ssh-ed25519", &blob[..at]))
        .collect();
    let curve = |name: &str, curve: &str, point: &[u8]| {
        line(name, &wire(&[name.as_bytes(), curve.as_bytes(), point]))
    };
    let point = [&[4][..], &[1; 64]].concat();
    let modulus = [&[0][..], &[0xff; 3000]].concat();
    lines.extend([
        line("ssh-ed25519", &[&blob[..], &[0]].concat()),
        line("ssh-ed25519", &[0xff; 64]),
        line("ssh-rsa", &blob),
        line("ssh-rsa", &wire(&[b"ssh-rsa", &[], &[]])),
        line("ssh-rsa", &wire(&[b"ssh-rsa", &[3], &[0; 256]])),
        line("ssh-rsa", &wire(&[b"ssh-rsa", &[0xff; 256], &[0x7f; 256]])),
        line("ssh-rsa", &wire(&[b"ssh-rsa", &[1; 9], &modulus])),
        line("ssh-rsa", &wire(&[b"ssh-rsa", &[3], &modulus])),
        line("ssh-dss", &wire(&[b"ssh-dss", &[3], &[3], &[3], &[3]])),
        curve("ecdsa-sha2-nistp256", "nistp256", &[4; 65]),
        curve("ecdsa-sha2-nistp256", "nistp256", &point),
        curve("ecdsa-sha2-nistp256", "nistp384", &point),
        curve("ecdsa-sha2-nistp256", "nistp256", &[0]),
        curve("ecdsa-sha2-nistp521", "nistp521", &[]),
        line("sk-ssh-ed25519@openssh.com", &blob),
        line("ssh-ed25519-cert-v01@openssh.com", &blob),
        format!("command=\"x\" {good}"),
        format!("{good}{}", " x".repeat(4097)),
        format!("ssh-ed25519 {}", "A".repeat(1 << 20)),
        "ssh-ed25519 ====".to_owned(),
        "\u{200b}ssh-ed25519".to_owned(),
    ]);
    let authority = rig
        .post("/ssh_certificate_authorities", Value::Null)
        .await
        .body();
    for bad in lines {
        let about = bad.get(..80).unwrap_or(&bad);
        let body = json!({"public_key": bad});
        assert_eq!(rig.refused("/ssh_credentials", body, about).await, 612);
        for collection in ["/ssh_host_certificates", "/ssh_user_certificates"] {
            let body = json!({"public_key": bad, "ssh_certificate_authority_id": authority["id"]});
            let code = rig.refused(collection, body, about).await;
            assert!(matches!(code, 1934 | 1950), "{code} {about}");
        }
    }
}

#[tokio::test]
async fn invalid_ip_prefixes_are_refused() {
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let long = format!("{}/8", "0".repeat(1 << 16));
    for cidr in [
        "0.0.0.0/-1",
        "0.0.0.0/+8",
        "0.0.0.0/08",
        "0.0.0.0/4294967297",
        "0.0.0.0/\u{661}",
        "0.0.0.0/8/8",
        "0x7f.0.0.0/8",
        "127.1/8",
        "010.0.0.0/8",
        "256.0.0.0/8",
        "::/129",
        "::1%eth0/128",
        "[::]/0",
        ":::/0",
        "1:2:3:4:5:6:7:8:9/128",
        "::ffff:1.2.3.4.5/128",
        " 10.0.0.0/8",
        "10.0.0.0 /8",
        "10.0.0.0/8\0",
        "10.0.0.0\u{ff0f}8",
        "/",
        "/8",
        &long,
    ] {
        let body = json!({"ip_policy_id": policy, "action": "deny", "cidr": cidr});
        let about = cidr.get(..40).unwrap_or(cidr);
        assert_eq!(rig.refused("/ip_policy_rules", body, about).await, 1406);
    }
}

#[tokio::test]
async fn rules_of_an_ip_policy_are_limited_and_deleted_with_it() {
    const MOST: usize = policy_rule::RULES_MAX;
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let rule = |cidr: String| json!({"ip_policy_id": policy, "action": "deny", "cidr": cidr});
    let made = rig
        .post("/ip_policy_rules", rule("::/0".to_owned()))
        .await
        .body();
    let kind = "ip_policy_rule";
    let id = made["id"].as_str().unwrap();
    let first = rig.store.get(kind, id).await.unwrap().unwrap();
    // Insert the others without the API, in batches that a slow machine commits within the time limit of writes.
    let numbers: Vec<usize> = (1..MOST).collect();
    for some in numbers.chunks(100) {
        let changes = some.iter().fold(Changes::default(), |changes, n| {
            let cidr = format!("10.{}.{}.0/24", n / 256, n % 256);
            let mut document = first.clone();
            document.head.id = format!(
                "ipr_{}",
                rig.control
                    .kernel
                    .ids
                    .next(&*rig.clock, &SeededEntropy::new(*n as u64))
            );
            document.body = document.body.replace("::/0", &cidr);
            document.keys = vec![culvert_store::Key::new(
                "prefix",
                format!("{policy} {cidr}"),
            )];
            changes.and(Changes::insert(
                document,
                AuditEvent::Suppress { reason: "a test" },
            ))
        });
        rig.store.commit(changes).await.unwrap();
    }
    let more = rule("192.0.2.0/24".to_owned());
    assert_eq!(
        rig.refused("/ip_policy_rules", more.clone(), "one more")
            .await,
        215
    );
    let one = format!("/ip_policy_rules/{id}");
    assert_eq!(rig.delete(&one).await, Answered::NoContent);
    assert_eq!(
        rig.bear("POST", "/ip_policy_rules", more, "one again")
            .await,
        None
    );

    // An unoptimised build does not remove all within the time limit of a write while other tests run.
    let rules = rig.store.all(kind).await.unwrap();
    let (left, others) = rules.split_at(1_000);
    for some in others.chunks(100) {
        let changes = some.iter().fold(Changes::default(), |changes, rule| {
            let silent = AuditEvent::Suppress { reason: "a test" };
            changes.and(Changes::remove(rule.head.clone(), silent))
        });
        rig.store.commit(changes).await.unwrap();
    }
    let (_, start) = rig.events_after(0).await;
    let gone = rig.delete(&format!("/ip_policies/{policy}")).await;
    assert_eq!(gone, Answered::NoContent);
    assert!(rig.store.all(kind).await.unwrap().is_empty());
    let reported = rig.store.outbox_after(start, 20_000).await.unwrap();
    assert_eq!(reported.len(), left.len() + 1);
    assert_eq!(reported.last().unwrap().event.kind, "ip_policy_deleted.v0");
}

#[tokio::test]
async fn invalid_names_are_refused() {
    let rig = Rig::start().await;
    let labels = |label: &str, n: usize| vec![label; n].join(".");
    for name in [
        "xn--.example",
        "xn--\u{e9}.example",
        "xn--a-.example",
        "xn--99999999999999.example",
        "xn--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.example",
        // An encoder never produces upper case or text that is not normalised.
        "xn--Mnchen-3ya.example\u{0}",
        // Left-to-right and right-to-left in one label.
        "a\u{5d0}.example",
        "\u{200d}.example",
        "a\u{200c}b.example",
        "\u{202e}moc.example",
        "\u{ad}.example",
        "\u{ff0e}\u{ff0e}.example",
        "\u{fdfa}.\u{fdfa}.\u{fdfa}.\u{fdfa}.\u{fdfa}.\u{fdfa}.\u{fdfa}.\u{fdfa}.example",
        "\u{1f4a9}_.example",
        "a\u{338}/b.example",
        "\0.example",
        "%2e.example",
        "a@b.example",
        "[::1]",
        "0x7f.1",
        "1.2.3.4",
        &labels("a", 200),
        &labels(&"\u{fc}".repeat(60), 4),
        &"\u{e9}".repeat(1 << 16),
        &"a".repeat(1 << 20),
    ] {
        let about = name.chars().take(40).collect::<String>();
        let body = json!({"domain": name});
        let code = rig.refused("/reserved_domains", body, &about).await;
        assert!(matches!(code, 400..=599), "{code} {about:?}");
        let body = json!({"domain": name});
        let code = rig.refused("/agent_ingresses", body, &about).await;
        assert!(matches!(code, 6704), "{code} {about:?}");
        let body = json!({"url": format!("https://{name}"), "upstream_url": "http://127.0.0.1:9"});
        let code = rig.refused("/endpoints", body, &about).await;
        assert!(matches!(code, 18001 | 18006), "{code} {about:?}");
    }
}
