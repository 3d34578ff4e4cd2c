//! Terraform's provider and the Kubernetes operator work with what they read back. The calls have the shape of those
//! that the two clients send, learned from their public sources: create, read, plan again, update, read, delete.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Backend, Harness, backends};

/// A policy with a secret in each form that clients send: a comment, single quotes, a block scalar.
const POLICY: &str = "# kept\non_http_request:\n- actions:\n  - type: basic-auth\n    config: {credentials: ['me:correct horse']}\n  - type: verify-webhook\n    config:\n      provider: github\n      secret: >-\n        hush hush hush\n  - type: custom-response\n    config: {body: in}\n";

/// A resource of the provider.
struct Case {
    collection: &'static str,
    /// What the provider sends to create it. Empty optional fields stay away.
    create: Value,
    /// What it sends to update it: every optional field that is set.
    update: Value,
    /// Fields that no response carries, and whose value the provider takes from its state.
    hidden: &'static [&'static str],
}

fn case(
    collection: &'static str,
    create: Value,
    update: Value,
    hidden: &'static [&'static str],
) -> Case {
    Case {
        collection,
        create,
        update,
        hidden,
    }
}

/// The value of a sent field in a response.
fn shown(body: &Value, field: &str) -> Value {
    let ids = |items: &Value| -> Value {
        let items = items.as_array().unwrap().iter();
        items.map(|item| item["id"].clone()).collect()
    };
    match field {
        "ip_policy_id" => body["ip_policy"]["id"].clone(),
        "vault_id" => body["vault"]["id"].clone(),
        "ip_policy_ids" => ids(&body["ip_policies"]),
        "destination_ids" => ids(&body["destinations"]),
        "certificate_id" => body["certificate"]["id"].clone(),
        field => body[field].clone(),
    }
}

/// Whether each sent value came back. Objects may have more fields than were sent, and a redacted secret is null or
/// empty, as the provider expects.
fn is_kept(sent: &Value, got: &Value) -> bool {
    match (sent, got) {
        (Value::Object(sent), Value::Object(got)) => sent.iter().all(|(key, sent)| {
            let is_redacted =
                ["api_key", "client_secret", "aws_secret_access_key"].contains(&key.as_str());
            match is_redacted {
                true => got[key].is_null() || got[key] == "",
                false => is_kept(sent, &got[key]),
            }
        }),
        (Value::Array(sent), Value::Array(got)) => {
            sent.len() == got.len() && sent.iter().zip(got).all(|(sent, got)| is_kept(sent, got))
        }
        (sent, got) => sent == got,
    }
}

fn assert_kept(case: &Case, sent: &Value, got: &Value, when: &str) {
    for (field, sent) in sent.as_object().unwrap() {
        if case.hidden.contains(&field.as_str()) {
            let text = got.to_string();
            assert!(
                !text.contains(sent.as_str().unwrap()),
                "{}: {field} {when}",
                case.collection
            );
            continue;
        }
        let got = shown(got, field);
        assert!(
            is_kept(sent, &got),
            "{} {field} {when}: sent {sent}, got {got}",
            case.collection
        );
    }
}

async fn cases(culvert: &Harness) -> Vec<Case> {
    let policy = culvert.create("ip_policies", json!({})).await["id"].clone();
    let vault = culvert
        .create("vaults", json!({"name": "of-secrets"}))
        .await["id"]
        .clone();
    let target = json!({"datadog": {"api_key": "dd-hush", "ddtags": "a:b", "service": "s", "ddsite": "datadoghq.com"}});
    let destination = json!({"format": "json", "target": target, "description": "d"});
    let destination = culvert.create("event_destinations", destination).await["id"].clone();
    let both = json!({"description": "changed", "metadata": "{\"a\":1}"});
    let with = |more: Value| {
        let mut body = both.clone();
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["t.example".into()]).unwrap();
    let leaf = params.self_signed(&key).unwrap().pem();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let authority = params.self_signed(&key).unwrap().pem();
    let changed = POLICY
        .replace("body: in", "body: inside")
        .replace("correct horse", "battery staple");
    vec![
        case(
            "agent_ingresses",
            json!({"domain": "connect.example.com", "description": "d"}),
            both.clone(),
            &[],
        ),
        case(
            "api_keys",
            json!({"description": "d", "metadata": ""}),
            both.clone(),
            &[],
        ),
        case(
            "certificate_authorities",
            json!({"description": "d", "ca_pem": authority}),
            both.clone(),
            &[],
        ),
        case(
            "endpoints",
            json!({"url": "https://back.culvert.localhost", "traffic_policy": POLICY, "description": "d", "bindings": ["public"], "pooling_enabled": false}),
            with(
                json!({"traffic_policy": changed, "bindings": ["public"], "pooling_enabled": true}),
            ),
            &[],
        ),
        case(
            "credentials",
            json!({"description": "d", "acl": ["bind:*.example.com"]}),
            with(json!({"acl": []})),
            &[],
        ),
        case(
            "reserved_domains",
            json!({"domain": "back.example.com", "description": "d"}),
            both.clone(),
            &[],
        ),
        case(
            "event_destinations",
            json!({"format": "json", "target": target, "description": "d"}),
            with(json!({"format": "json", "target": target})),
            &[],
        ),
        case(
            "event_subscriptions",
            json!({"description": "d", "sources": [{"type": "ip_policy_created.v0"}, {"type": "http_request_complete.v0", "fields": ["conn.client_ip"]}], "destination_ids": [destination]}),
            with(
                json!({"sources": [{"type": "ip_policy_created.v0"}], "destination_ids": [destination]}),
            ),
            &[],
        ),
        case(
            "ip_policies",
            json!({"description": "d"}),
            both.clone(),
            &[],
        ),
        case(
            "ip_policy_rules",
            json!({"description": "d", "cidr": "192.0.2.0/24", "ip_policy_id": policy, "action": "allow"}),
            with(json!({"cidr": "198.51.100.0/24"})),
            &[],
        ),
        case(
            "ip_restrictions",
            json!({"description": "d", "type": "endpoints", "ip_policy_ids": [policy]}),
            with(json!({"enforced": false, "ip_policy_ids": [policy]})),
            &[],
        ),
        case(
            "vault_secrets",
            json!({"name": "pin", "value": "a-hidden-value", "vault_id": vault, "description": "d"}),
            with(json!({"name": "pin-2", "value": "another-hidden-value"})),
            &["value"],
        ),
        case(
            "bot_users",
            json!({"name": "robot", "active": true}),
            json!({"name": "robot-2", "active": false}),
            &[],
        ),
        case(
            "ssh_certificate_authorities",
            json!({"description": "d", "private_key_type": "ed25519"}),
            both.clone(),
            &[],
        ),
        case(
            "ssh_credentials",
            json!({"description": "d", "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl", "acl": ["bind:*"]}),
            with(json!({"acl": ["bind:a.example.com"]})),
            &[],
        ),
        case(
            "reserved_addrs",
            json!({"description": "d"}),
            both.clone(),
            &[],
        ),
        case(
            "tls_certificates",
            json!({"description": "d", "certificate_pem": leaf, "private_key_pem": key.serialize_pem()}),
            both.clone(),
            &["private_key_pem"],
        ),
        case(
            "vaults",
            json!({"name": "v", "description": "d"}),
            with(json!({"name": "v-2"})),
            &[],
        ),
    ]
}

/// A plan after each write finds nothing to change, for every resource of Terraform's provider.
#[tokio::test(flavor = "multi_thread")]
async fn terraform_plans_show_no_drift() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        for mut case in cases(&culvert).await {
            if case.collection == "ssh_certificate_authorities" {
                // The view shows the type in another field.
                let kind = case
                    .create
                    .as_object_mut()
                    .unwrap()
                    .remove("private_key_type")
                    .unwrap();
                let mut body = case.create.clone();
                body["private_key_type"] = kind;
                run(&culvert, &case, &body).await;
            } else {
                let body = case.create.clone();
                run(&culvert, &case, &body).await;
            }
        }
        culvert.stop().await;
    }
}

async fn run(culvert: &Harness, case: &Case, body: &Value) {
    let made = culvert.create(case.collection, body.clone()).await;
    assert_kept(case, &case.create, &made, "after the create");
    let path = format!("/{}/{}", case.collection, made["id"].as_str().unwrap());
    let read = async || culvert.call(Method::GET, &path, None).await.body;
    let refreshed = read().await;
    assert_kept(case, &case.create, &refreshed, "after a refresh");
    assert_eq!(read().await, refreshed, "{}", case.collection);
    // The same plan applied again changes nothing.
    for _ in 0..2 {
        let patched = culvert
            .call(Method::PATCH, &path, Some(case.update.clone()))
            .await;
        assert_eq!(patched.status, 200, "{}: {}", case.collection, patched.body);
        assert_kept(case, &case.update, &patched.body, "after the update");
        let refreshed = read().await;
        assert_kept(
            case,
            &case.update,
            &refreshed,
            "after a refresh of the update",
        );
    }
    let deleted = culvert.call(Method::DELETE, &path, None).await;
    assert_eq!(deleted.status, 204, "{}: {}", case.collection, deleted.body);
    let absent = culvert.call(Method::GET, &path, None).await;
    assert_eq!(
        (absent.status, &absent.body["status_code"]),
        (404, &json!(404))
    );
}

/// The operator compares these fields of an endpoint with its own by equality, and updates when one differs.
#[tokio::test(flavor = "multi_thread")]
async fn operator_reconciles_change_nothing_twice() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let policy = json!({"on_http_request": [{"name": "in", "actions": [
        {"type": "basic-auth", "config": {"credentials": ["me:correct horse"]}},
        {"type": "custom-response", "config": {"status_code": 200, "body": "in"}},
    ]}]})
    .to_string();
    let mut spec = json!({
        "type": "cloud", "url": "https://operator.culvert.localhost", "description": "Created by the operator",
        "metadata": "{\"owned-by\":\"x\"}", "traffic_policy": policy, "bindings": ["public"], "pooling_enabled": true,
    });
    let made = culvert.create("endpoints", spec.clone()).await;
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    spec.as_object_mut().unwrap().remove("type");
    let reconcile = async |spec: &Value| {
        let current = culvert.call(Method::GET, &path, None).await.body;
        let is_same = spec
            .as_object()
            .unwrap()
            .iter()
            .all(|(field, value)| current[field] == *value);
        if !is_same {
            let updated = culvert.call(Method::PATCH, &path, Some(spec.clone())).await;
            assert_eq!(updated.status, 200, "{}", updated.body);
        }
        is_same
    };
    assert!(reconcile(&spec).await);
    spec["traffic_policy"] = json!(policy.replace("correct horse", "battery staple"));
    assert!(!reconcile(&spec).await);
    assert!(reconcile(&spec).await);
    // The operator finds its domains by paging and compares this field with nil.
    let domain = culvert
        .create(
            "reserved_domains",
            json!({"domain": "operator.example.com", "metadata": "{}"}),
        )
        .await;
    assert_eq!(domain["resolves_to"], Value::Null);
    // Rules are found by paging, and keyed by network.
    let list = culvert
        .create("ip_policies", json!({"description": "d", "metadata": "{}"}))
        .await;
    let rule = json!({"ip_policy_id": list["id"], "cidr": "192.0.2.0/24", "action": "deny", "description": "", "metadata": "{}"});
    let rule = culvert.create("ip_policy_rules", rule).await;
    let page = culvert
        .call(Method::GET, "/ip_policy_rules", None)
        .await
        .body;
    assert_eq!(page["ip_policy_rules"][0], rule);
    culvert.stop().await;
}

/// Policies as people and programs write them: the order of keys, numbers, comments, line ends and characters are theirs.
const TEXTS: [&str; 6] = [
    "# première règle\r\non_http_response: []\r\non_http_request:\r\n  - name: \"\\u00fc ü😀\"   \r\n    actions:\r\n    - {type: custom-response, config: {status_code: 0xC9, body: 'it''s'}} # \u{202e}\r\n",
    "{\"on_http_response\":[ ],\t\"on_http_request\" : [{\"actions\":[{\"config\":{\"status_code\":201 ,\"body\":\"\\u00fc\\n\"},\"type\":\"custom-response\"}]}]}",
    "{\n  \"on_http_request\": [{\"name\": \"z\", \"actions\": [{\"type\": \"log\", \"config\": {\"metadata\": {\"z\": 1e3, \"a\": 10000000000000000000, \"m\": -0.0}}}, {\"type\": \"deny\"}]}]\n}\n\n",
    "on_http_request: &all\n- actions:\n  - type: custom-response\n    config:\n      body: |+\n        one\n\n        two\n\n",
    "---\non_http_request:\n- actions: [{type: deny, config: {status_code: +0403}}]\n...\n",
    POLICY,
];

/// An admin, and an owner that is none, read each policy as it was written: the two clients above compare bytes.
#[tokio::test(flavor = "multi_thread")]
async fn policies_come_back_byte_for_byte() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let bot = culvert
        .create("bot_users", json!({"name": "robot", "active": true}))
        .await;
    let key = json!({"owner_id": bot["id"], "role": "member"});
    let key = culvert.create("api_keys", key).await;
    let owner = culvert.client_with(key["token"].as_str().unwrap());
    for (n, text) in TEXTS.into_iter().enumerate() {
        let body = json!({
            "url": format!("https://bytes{n}.culvert.localhost"), "upstream_url": "http://127.0.0.1:9", "traffic_policy": text,
        });
        let made = owner
            .call(Method::POST, "/endpoints", Some(&body))
            .await
            .unwrap();
        assert_eq!(made.status, 201, "{text}: {}", made.body);
        assert_eq!(made.body["traffic_policy"], text);
        let path = format!("/endpoints/{}", made.body["id"].as_str().unwrap());
        let again = json!({"traffic_policy": text});
        let patched = owner
            .call(Method::PATCH, &path, Some(&again))
            .await
            .unwrap();
        assert_eq!(patched.body["traffic_policy"], text);
        let of_owner = owner.call(Method::GET, &path, None).await.unwrap().body;
        assert_eq!(of_owner["traffic_policy"], text);
        let of_admin = culvert.call(Method::GET, &path, None).await.body;
        assert_eq!(of_admin["traffic_policy"], text);
    }
    // Lists too, but for the secrets, which they never have.
    for listed in [
        owner
            .call(Method::GET, "/endpoints", None)
            .await
            .unwrap()
            .body,
        culvert.call(Method::GET, "/endpoints", None).await.body,
    ] {
        let listed = listed["endpoints"].as_array().unwrap().iter();
        let listed: Vec<_> = listed.map(|one| &one["traffic_policy"]).collect();
        assert_eq!(listed.len(), TEXTS.len());
        for text in TEXTS.into_iter().filter(|text| *text != POLICY) {
            assert!(listed.iter().any(|shown| **shown == text), "{text}");
        }
    }
    culvert.stop().await;
}

/// Responses with secrets are not cached, also lists.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_response_that_may_be_stored() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let body = json!({"url": "https://one.culvert.localhost", "traffic_policy": POLICY});
    let made = culvert.create("endpoints", body).await;
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let raw = async |path: &str| {
        let address: std::net::SocketAddr = culvert
            .api
            .strip_prefix("http://")
            .unwrap()
            .parse()
            .unwrap();
        let ask = format!(
            "GET {path} HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
            culvert.token
        );
        crate::harness::raw(address, ask.as_bytes()).await.text
    };
    let one = raw(&path).await;
    assert!(
        one.contains("correct horse") && one.contains("hush hush hush"),
        "{one}"
    );
    assert!(
        one.to_ascii_lowercase().contains("cache-control: no-store"),
        "{one}"
    );
    // A list shows the same, and must be stored nowhere either.
    let list = raw("/endpoints").await;
    assert!(
        list.contains("correct horse")
            && list
                .to_ascii_lowercase()
                .contains("cache-control: no-store"),
        "{list}"
    );
    for needle in ["correct horse", "hush hush hush"] {
        let found = crate::secrets::files_with(&culvert.settings.data_dir, needle.as_bytes());
        assert_eq!(found, Vec::<String>::new());
    }
    culvert.stop().await;
}
