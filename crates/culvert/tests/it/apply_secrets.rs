//! Secrets in the files of `culvert apply`, in every field of every kind and from every source: no output repeats them.
//! Generated from the table of operations.

use std::path::Path;
use std::process::{Command, Stdio};

use culvert_control::operations;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Backend, Harness, binary};

const PLANT: &str = "planted-5f1c9e";

/// Runs the program. Returns all that it prints.
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn culvert(server: &Harness, arguments: &[&str], path: &Path) -> Command {
    let mut command = binary();
    command
        .env("CULVERT_API_URL", &server.api)
        .env("CULVERT_API_KEY", &server.token)
        .env("PLANT", PLANT)
        .args(arguments)
        .arg(path);
    command
}

/// The forms of a plan, an apply and its errors.
const COMMANDS: [&[&str]; 4] = [
    &["diff", "-f"],
    &["diff", "-o", "json", "-f"],
    &["apply", "--dry-run", "-o", "json", "-f"],
    &["apply", "--yes", "-f"],
];

fn policy(secret: &str) -> String {
    format!(
        "on_http_request:\n- actions:\n  - type: basic-auth\n    config: {{credentials: ['me:{secret}']}}\n  - type: verify-webhook\n    config: {{provider: github, secret: '{secret}'}}\n"
    )
}

/// The fields of new objects of a collection.
fn fields(collection: &str) -> Option<Vec<String>> {
    let create = operations()
        .iter()
        .find(|it| it.collection == collection && it.name == "create")?;
    let mut generator = schemars::SchemaGenerator::default();
    let schema = (create.body?.schema)(&mut generator).to_value();
    let name = schema["$ref"].as_str()?.rsplit_once('/')?.1.to_owned();
    let schema = generator.take_definitions(true)[&name].clone();
    Some(schema["properties"].as_object()?.keys().cloned().collect())
}

/// What an object of a collection needs.
fn needed(collection: &str) -> Value {
    match collection {
        "bot_users" | "service_users" | "vaults" => json!({"name": "a"}),
        "vault_secrets" => json!({"name": "a", "value": "b", "vault_id": "${vaults/keys}"}),
        "ip_policy_rules" => json!({"cidr": "192.0.2.0/24", "action": "allow"}),
        "certificate_authorities" => json!({"ca_pem": "x"}),
        "tls_certificates" => json!({"certificate_pem": "x", "private_key_pem": "x"}),
        "agent_ingresses" | "reserved_domains" => json!({"domain": "a.example"}),
        "event_destinations" => {
            json!({"target": {"webhook": {"url": "https://hooks.example/in"}}})
        }
        "event_subscriptions" => json!({"sources": [{"type": "vault_created.v0"}]}),
        "endpoints" => {
            json!({"url": "http://planted.culvert.localhost", "upstream_url": "http://127.0.0.1:1"})
        }
        "ip_restrictions" => json!({"type": "dashboard", "ip_policy_ids": []}),
        _ => json!({}),
    }
}

/// A variable in any field of any kind is a secret.
#[tokio::test(flavor = "multi_thread")]
async fn output_never_shows_variables() {
    let server = Harness::start(&Backend::Sqlite).await;
    server
        .create(
            "vaults",
            json!({"name": "keys", "metadata": "{\"culvert_apply\":{\"name\":\"keys\"}}"}),
        )
        .await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.json");
    std::fs::write(folder.path().join("whole.txt"), PLANT).unwrap();
    let mut n = 0;
    let creates = operations().iter().filter(|it| it.name == "create");
    for ty in creates.map(|it| it.collection) {
        let Some(fields) = fields(ty) else {
            continue;
        };
        for field in fields {
            for text in [
                "${env:PLANT}",
                "https://me:${env:PLANT}@a.example/?t=${env:PLANT}",
                "@whole.txt",
            ] {
                // A file is a secret only where people keep secrets in files: in a field that is not a policy.
                let mut spec = needed(ty);
                spec[&field] = match (ty, field.as_str()) {
                    ("event_destinations", "target") => {
                        json!({"webhook": {"url": "https://hooks.example/in", "headers": {"x-key": text}}})
                    }
                    ("event_subscriptions", "sources") => json!([{"type": text}]),
                    ("endpoints", "traffic_policy") => json!(policy(text)),
                    (_, "acl" | "bindings" | "destination_ids" | "ip_policy_ids") => json!([text]),
                    (_, "metadata") => json!({"key": text}),
                    _ => json!(text),
                };
                let object = json!({"kind": ty, "name": format!("o{n}"), "spec": spec});
                std::fs::write(&file, object.to_string()).unwrap();
                n += 1;
                // All commands for the first form, else the plan and the apply.
                let some: &[usize] = if text.starts_with("${") {
                    &[0, 1, 2, 3]
                } else {
                    &[0, 3]
                };
                for arguments in some.iter().map(|index| COMMANDS[*index]) {
                    let said = run(&mut culvert(&server, arguments, &file));
                    assert!(!said.contains(PLANT), "{arguments:?} {object}: {said}");
                    assert!(!said.is_empty(), "{arguments:?} {object}");
                }
            }
        }
    }
    assert!(n > 150, "{n}");
    server.stop().await;
}

/// Secrets of policies: written into the file, read from a file, by reference, older ones, and in broken policies. Names, such as
/// that of an unknown phase, are no secrets.
#[tokio::test(flavor = "multi_thread")]
async fn output_never_shows_secrets_of_policies() {
    let server = Harness::start(&Backend::Sqlite).await;
    let folder = tempfile::tempdir().unwrap();
    let (at, file) = (folder.path(), folder.path().join("objects.json"));
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("policy.yaml", &policy(PLANT));
    write(
        "broken.yaml",
        &policy(PLANT).replace("on_http_request:", "on_http_request: ]"),
    );
    write(
        "unknown.yaml",
        &policy(PLANT).replace("basic-auth", "no-such-action"),
    );
    write("other.yaml", &format!("password: {PLANT}\n"));
    write(
        "long.yaml",
        &policy(PLANT).replace("config: {credentials", "config: {realm: '${', credentials"),
    );
    let older = policy("older-7d21-word");
    let url = "http://planted.culvert.localhost";
    let body = json!({
        "url": url, "traffic_policy": older, "upstream_url": "http://127.0.0.1:1",
        "metadata": "{\"culvert_apply\":{\"name\":\"shop\"}}",
    });
    let shop = server.create("endpoints", body).await;
    let path = format!("/endpoints/{}", shop["id"].as_str().unwrap());
    let mapping = json!({"on_http_request": [{"actions": [
        {"type": "basic-auth", "config": {"credentials": [format!("me:{PLANT}")]}},
    ]}]});
    for traffic_policy in [
        json!(policy(PLANT)),
        mapping,
        json!("@policy.yaml"),
        json!("@broken.yaml"),
        json!("@unknown.yaml"),
        json!("@other.yaml"),
        json!("@long.yaml"),
        json!(format!("on_http_request: {PLANT}")),
        json!({"on_http_request": PLANT}),
    ] {
        let shop = json!({"kind": "endpoints", "name": "shop", "spec": {
            "url": url, "upstream_url": "http://127.0.0.1:1", "traffic_policy": traffic_policy,
        }});
        let by_reference = json!({"kind": "vaults", "name": "keys", "spec": {
            "name": "keys", "description": "${endpoints/shop:traffic_policy}",
        }});
        for objects in [json!([shop]), json!([shop, by_reference])] {
            write("objects.json", &objects.to_string());
            for arguments in COMMANDS {
                let said = run(&mut culvert(&server, arguments, &file));
                for secret in [PLANT, "older-7d21-word"] {
                    assert!(!said.contains(secret), "{arguments:?} {objects}: {said}");
                }
                assert!(!said.is_empty());
            }
            let again = json!({"traffic_policy": older});
            server.call(Method::PATCH, &path, Some(again)).await;
        }
    }
    // The values reached the server: the outputs are of real plans.
    write(
        "objects.json",
        &json!([{"kind": "endpoints", "name": "shop", "spec": {
            "url": url, "upstream_url": "http://127.0.0.1:1", "traffic_policy": "@policy.yaml",
        }}])
        .to_string(),
    );
    run(&mut culvert(&server, COMMANDS[3], &file));
    let whole = server.call(Method::GET, &path, None).await.body;
    assert!(whole["traffic_policy"].as_str().unwrap().contains(PLANT));
    server.stop().await;
}
