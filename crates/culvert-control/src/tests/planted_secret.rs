//! A secret that a policy, a destination and a vault hold: every operation, called by every kind of caller, shows it
//! only to those who may read it back.

use super::rights::{CALLERS, Cast, Who, caller_of};
use super::*;
use crate::{KeyRestrictions, Scope};

/// The secret.
const PLANT: &str = "planted-5f1c9e";

/// A policy with the secret in each place that policies declare as secret, in a form that only its author wrote: with
/// comments, single quotes and a block scalar.
fn policy() -> String {
    format!(
        "# of the owner\non_http_request:\n- actions:\n  - type: basic-auth\n    config: {{credentials: ['me:{PLANT}']}}\n  - type: verify-webhook\n    config:\n      provider: github\n      secret: >-\n        {PLANT}\n  - type: custom-response # ends\n    config: {{body: in}}\n"
    )
}

fn endpoint(n: usize) -> Value {
    json!({"url": format!("http://planted-{n}.culvert.localhost"), "traffic_policy": policy()})
}

fn is_shown(answered: &Answered) -> bool {
    format!("{answered:?}").contains(PLANT)
}

/// The planted objects of the owner: the path of each collection.
async fn plant(cast: &Cast, n: usize) -> Vec<(&'static str, String)> {
    let owner = &cast.callers[1];
    let datadog = json!({"datadog": {"api_key": PLANT, "ddsite": "datadoghq.com"}});
    let vault = cast
        .object("vaults", u32::try_from(n).unwrap() + 10_000)
        .await;
    let mut planted = Vec::new();
    for (collection, body) in [
        ("endpoints", endpoint(n)),
        (
            "event_destinations",
            json!({"format": "json", "target": datadog}),
        ),
        (
            "vault_secrets",
            json!({"name": format!("s{n}"), "value": PLANT, "vault_id": vault}),
        ),
    ] {
        let path = format!("/{collection}");
        let made = cast.rig.call(owner, "POST", &path, body).await.body();
        planted.push((collection, made["id"].as_str().unwrap().to_owned()));
    }
    planted.push(("vaults", vault));
    planted
}

/// Bodies of a write: an empty one, one that sends redacted text back, and ones that fail after the secret was
/// restored.
fn bodies(operation: &Operation, shown: &str) -> Vec<Value> {
    if matches!(operation.method, Method::Get | Method::Delete) {
        return vec![Value::Null];
    }
    let mut bodies = vec![json!({}), json!({"description": "changed"})];
    if operation.collection == "endpoints" {
        let broken = shown.replace("custom-response", "no-such-action");
        for policy in [shown, &broken, "[redacted]"] {
            bodies.push(json!({"traffic_policy": policy}));
        }
        bodies.push(json!({"traffic_policy": shown, "url": "https://x"}));
    }
    bodies
}

#[tokio::test]
async fn secrets_are_hidden_from_callers_who_may_not_read_them() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let mut n_shown = 0;
    let mut planted = plant(&cast, 0).await;
    for (index, operation) in operations().iter().enumerate() {
        if operation.path.contains("{id}") && operation.method == Method::Delete {
            planted = plant(&cast, index + 1).await;
        }
        for (caller, who) in cast.callers.iter().zip(CALLERS) {
            let caller = &caller_of(who, caller, operation);
            let own = planted
                .iter()
                .find(|(collection, _)| *collection == operation.collection);
            let id = own.map_or_else(|| format!("ep_{}", "0".repeat(27)), |(_, id)| id.clone());
            let path = operation.path.replace("{id}", &id);
            let path = path.replace("{type}", "vault_created.v0");
            let (_, endpoint_id) = planted.first().unwrap();
            let path_of_shown = format!("/endpoints/{endpoint_id}");
            // The owner in a role that only reads.
            let shown = rig.call(&cast.callers[5], "GET", &path_of_shown, Value::Null);
            let shown = match shown.await {
                Answered::Ok(shown) => shown["traffic_policy"].as_str().unwrap().to_owned(),
                // It was deleted.
                _ => "on_http_request: []".to_owned(),
            };
            for body in bodies(operation, &shown) {
                let method = operation.method.as_str();
                let answered = rig.call(caller, method, &path, body).await;
                let may_read = matches!(who, Who::Admin | Who::Owner)
                    && operation.collection == "endpoints"
                    && matches!(operation.name, "get" | "list" | "update");
                assert!(
                    !is_shown(&answered) || may_read,
                    "{who:?} {method} {path}: {answered:?}"
                );
                n_shown += usize::from(is_shown(&answered));
            }
        }
    }
    // The test sees the secret where it is shown: once for each reader of a get, and more often for updates.
    assert!(n_shown >= 4, "{n_shown}");
    let (events, _) = rig.events_after(0).await;
    assert!(!events.is_empty());
    for event in events {
        assert!(!event.to_string().contains(PLANT), "{event}");
    }
}

#[tokio::test]
async fn callers_who_may_change_a_policy_read_it_unredacted() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let [admin, owner] = [&cast.callers[0], &cast.callers[1]];
    let made = rig.call(owner, "POST", "/endpoints", endpoint(1)).await;
    let made = made.body();
    assert_eq!(made["traffic_policy"], policy());
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let stored = async || {
        let id = made["id"].as_str().unwrap().to_owned();
        let found = rig.store.get_many(&[id]).await.unwrap().pop().unwrap();
        let form: Value = serde_json::from_str(&found.body).unwrap();
        assert!(!found.body.contains(PLANT));
        form["policy"].clone()
    };
    let first = stored().await;
    let wide = |scope| {
        let scopes = [scope].into_iter().collect();
        let restrictions = KeyRestrictions {
            scopes,
            ..KeyRestrictions::default()
        };
        Caller {
            restrictions: Some(Arc::new(restrictions)),
            ..owner.clone()
        }
    };
    // Lists show what a read of the object shows.
    let get = async |caller: &Caller| {
        let shown = rig.call(caller, "GET", &path, Value::Null).await.body();
        let listed = rig.call(caller, "GET", "/endpoints", Value::Null).await;
        assert_eq!(listed.body()["endpoints"], json!([shown]));
        shown["traffic_policy"].clone()
    };
    let redacted = get(&wide(Scope::EndpointsRead)).await;
    assert!(redacted.as_str().unwrap().contains("[redacted]"));
    let write = wide(Scope::EndpointsWrite);
    for caller in [owner, admin, &write] {
        assert_eq!(get(caller).await, policy());
        // What was read, in either form, can be written back and changes nothing.
        for text in [json!(policy()), redacted.clone()] {
            let body = json!({"traffic_policy": text});
            let patched = rig.call(caller, "PATCH", &path, body).await.body();
            assert_eq!(patched["traffic_policy"], policy());
            assert_eq!(stored().await, first);
        }
    }
    // A key that only reads has the redacted text, as above, and so does its owner in that role.
    assert_eq!(get(&cast.callers[5]).await, redacted);
    // Another bot and a reader of the account do not see the policy.
    assert_eq!(get(&cast.callers[2]).await, "[redacted]");
    assert_eq!(get(&cast.callers[3]).await, "[redacted]");
    // A change of another field keeps the text.
    let upstream = json!({"upstream_url": "http://127.0.0.1:9", "description": "d"});
    let patched = rig.call(owner, "PATCH", &path, upstream).await.body();
    assert_eq!(patched["traffic_policy"], policy());
    // A new secret replaces the old one.
    let changed = policy().replace(PLANT, "another word");
    let body = json!({"traffic_policy": changed});
    let patched = rig.call(owner, "PATCH", &path, body).await.body();
    assert_eq!(patched["traffic_policy"], changed);
    assert_eq!(get(admin).await, changed);
    // Without an owner, only admins may read it.
    let id = made["id"].as_str().unwrap().to_owned();
    let document = rig.store.get_many(&[id]).await.unwrap().pop().unwrap();
    let mut form: Value = serde_json::from_str(&document.body).unwrap();
    form["principal_id"] = json!("");
    let body = form.to_string();
    let why = AuditEvent::Suppress { reason: "a test" };
    let changes = Changes::replace(Document { body, ..document }, why);
    rig.store.commit(changes).await.unwrap();
    assert_eq!(get(owner).await, "[redacted]");
    assert_eq!(get(admin).await, changed);
}

/// A secret that an admin writes into the policy of another's endpoint stays unknown to its owner, who may keep it and
/// may replace it.
#[tokio::test]
async fn secrets_written_by_an_admin_are_hidden_from_the_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let [admin, owner] = [&cast.callers[0], &cast.callers[1]];
    let policy = |issuer: &str, secret: &str| {
        format!(
            "on_http_request:\n- actions:\n  - type: openid-connect\n    config: {{issuer_url: 'https://{issuer}', client_id: c, client_secret: '{secret}'}}\n"
        )
    };
    let body = json!({
        "url": "https://planted.culvert.localhost", "upstream_url": "http://127.0.0.1:9",
        "traffic_policy": policy("a.example", "a word of the owner"),
    });
    let made = rig.call(owner, "POST", "/endpoints", body).await.body();
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let patch = async |caller: &Caller, body: Value| rig.call(caller, "PATCH", &path, body).await;
    let send =
        async |caller: &Caller, text: &str| patch(caller, json!({ "traffic_policy": text })).await;
    let get = async |caller: &Caller| {
        let shown = rig.call(caller, "GET", &path, Value::Null).await.body();
        shown["traffic_policy"].as_str().unwrap().to_owned()
    };
    // An admin who changes another part, or sends what it read, does not become the author of the secret.
    let whole = get(admin).await;
    send(admin, &whole).await.body();
    send(admin, &policy("b.example", "[redacted]")).await.body();
    let restored = get(owner).await;
    assert!(restored.contains("a word of the owner") && restored.contains("b.example"));

    send(admin, &policy("b.example", PLANT)).await.body();
    let redacted = policy("b.example", "[redacted]").replace("'[redacted]'", "\"[redacted]\"");
    assert_eq!(get(admin).await, policy("b.example", PLANT));
    assert_eq!(get(owner).await, redacted);
    // The owner changes other fields, and sends back what it read.
    for body in [
        json!({"description": "d"}),
        json!({"traffic_policy": redacted}),
        json!({"traffic_policy": format!("{redacted}on_http_response: []\n")}),
        json!({"traffic_policy": redacted, "metadata": "m"}),
    ] {
        let patched = patch(owner, body.clone()).await;
        assert!(!is_shown(&patched), "{body} {patched:?}");
        patched.body();
        assert!(!get(owner).await.contains(PLANT), "{body}");
        assert!(get(admin).await.contains(PLANT), "{body}");
    }
    // A changed rule could send the secret to another server.
    for text in [
        policy("evil.example", "[redacted]"),
        redacted.replacen("- actions:", "- name: x\n  actions:", 1),
    ] {
        let refused = send(owner, &text).await;
        assert_eq!(refused.code(), Some(2204), "{text} {refused:?}");
    }
    assert!(get(admin).await.contains(PLANT));
    // Its own secret is its own again.
    let own = policy("c.example", "another word");
    assert_eq!(send(owner, &own).await.body()["traffic_policy"], own);
    assert_eq!(get(owner).await, own);
}
