//! Vaults and their secrets: codes, and values that are never shown.

use culvert_endpoints::vault::secret_model::VaultSecret;

use crate::tests::*;

async fn vault(rig: &Rig, name: &str) -> String {
    let made = rig.post("/vaults", json!({"name": name})).await.body();
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
pub(super) async fn invalid_vault_names_are_refused() {
    let rig = Rig::start().await;
    vault(&rig, "a").await;
    let one = format!("/vaults/{}", vault(&rig, "b/c.d-e_F").await);
    for (method, path, body, code) in [
        ("POST", "/vaults", json!({}), 23001),
        ("POST", "/vaults", json!({"name": ""}), 23001),
        ("POST", "/vaults", json!({"name": "a b"}), 23000),
        ("POST", "/vaults", json!({"name": "x".repeat(256)}), 23002),
        ("POST", "/vaults", json!({"name": "a"}), 23004),
        ("PATCH", &one, json!({"name": ""}), 23001),
        ("PATCH", &one, json!({"name": "a:b"}), 23000),
        ("PATCH", &one, json!({"name": "a"}), 23004),
    ] {
        let answered = rig.call(&rig.admin, method, path, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{method} {body}");
    }
    // Another account has its own names.
    let stranger = rig.stranger().await;
    let body = json!({"name": "a"});
    let made = rig.call(&stranger, "POST", "/vaults", body).await.body();
    assert_eq!(made["created_by"], *stranger.owner_id);
}

#[tokio::test]
pub(super) async fn vault_secret_errors_have_their_codes() {
    let rig = Rig::start().await;
    let (a, b) = (vault(&rig, "a").await, vault(&rig, "b").await);
    let body = |change: Value| {
        let mut body = json!({"name": "s", "value": "v", "vault_id": a});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let foreign = rig.stranger().await;
    let foreign = rig
        .call(&foreign, "POST", "/vaults", json!({"name": "theirs"}))
        .await
        .body()["id"]
        .clone();
    for (change, code) in [
        (json!({"name": "a b"}), 24000),
        (json!({"name": ""}), 24001),
        (json!({"name": "x".repeat(256)}), 24002),
        (json!({"value": ""}), 24003),
        (json!({"value": null}), 24003),
        (json!({"value": "x".repeat((16 << 10) + 1)}), 24004),
        (json!({"value": {"a": 1}}), 215),
        (
            json!({"vault_id": format!("vault_{}", "0".repeat(27))}),
            24006,
        ),
        (json!({"vault_id": foreign}), 24006),
        (json!({"vault_id": "no id"}), 223),
        (json!({"vault_id": "ak_1"}), 227),
        (json!({"vault_id": ""}), 24008),
        (json!({"vault_name": "b"}), 24008),
        (json!({"vault_id": "", "vault_name": "theirs"}), 24009),
        (json!({"description": "x".repeat(256)}), 215),
        (json!({"metadata": "x".repeat(4097)}), 215),
    ] {
        let answered = rig.post("/vault_secrets", body(change.clone())).await;
        assert_eq!(answered.code(), Some(code), "{change}");
    }
    let longest = body(json!({"value": "é".repeat(8 << 10), "vault_name": "a"}));
    let made = rig.post("/vault_secrets", longest).await.body();
    assert_eq!(made["vault_name"], "a");
    let again = rig.post("/vault_secrets", body(json!({}))).await;
    assert_eq!(again.code(), Some(24005));
    let by_name = json!({"name": "s", "value": "v", "vault_name": "b"});
    let other = rig.post("/vault_secrets", by_name).await.body();
    assert_eq!(
        other["vault"],
        json!({"id": b, "uri": format!("{BASE}/vaults/{b}")})
    );
    assert_eq!(
        other["created_by"],
        json!({"id": rig.admin.owner_id, "uri": ""})
    );

    let one = format!("/vault_secrets/{}", made["id"].as_str().unwrap());
    rig.post("/vault_secrets", body(json!({"name": "t"})))
        .await
        .body();
    for (change, code) in [
        (json!({"name": "t"}), 24005),
        (json!({"name": ""}), 24001),
        (json!({"name": "t t"}), 24000),
        (json!({"value": ""}), 24003),
        (json!({"vault_id": b}), 214),
    ] {
        let answered = rig.patch(&one, change.clone()).await;
        assert_eq!(answered.code(), Some(code), "{change}");
    }
    let full = rig.delete(&format!("/vaults/{a}")).await;
    assert_eq!(full.code(), Some(23003));
    assert_eq!(
        rig.delete(&format!("/vault_secrets/{}", other["id"].as_str().unwrap()))
            .await,
        Answered::NoContent
    );
    assert_eq!(
        rig.delete(&format!("/vaults/{b}")).await,
        Answered::NoContent
    );
}

#[tokio::test]
async fn vault_secrets_are_encrypted_and_never_shown() {
    let rig = Rig::start().await;
    let vault = vault(&rig, "v").await;
    let body = json!({"name": "s", "value": "hush hush", "vault_id": vault});
    let made = rig.post("/vault_secrets", body).await.body();
    let id = made["id"].as_str().unwrap().to_owned();
    let one = format!("/vault_secrets/{id}");
    let stored = async || {
        let document = rig.store.get("secret", &id).await.unwrap().unwrap();
        let secret: VaultSecret = stored::read(&document).unwrap();
        let value = rig
            .control
            .kernel
            .seal
            .open(&id, &secret.sealed_value)
            .unwrap();
        (document.body, value.reveal().to_owned())
    };
    let (before, value) = stored().await;
    assert_eq!(value, "hush hush");
    let changed = rig.patch(&one, json!({"value": "hush anew"})).await.body();
    let (after, value) = stored().await;
    assert_eq!(value, "hush anew");
    let (reported, _) = rig.events_after(0).await;
    let texts = [
        made.to_string(),
        changed.to_string(),
        rig.get(&one).await.body().to_string(),
        rig.get("/vault_secrets").await.body().to_string(),
        rig.get(&format!("/vaults/{vault}/secrets"))
            .await
            .body()
            .to_string(),
        before,
        after,
        Value::from(reported).to_string(),
    ];
    for text in texts {
        assert!(!text.contains("hush"), "{text}");
    }
    // A value in the wrong field is not quoted either.
    let wrong = json!({"name": ["hush"], "value": "hush", "vault_id": vault});
    let Answered::Refused(_, Some(215), message) = rig.post("/vault_secrets", wrong).await else {
        panic!("a list is no name");
    };
    assert!(!message.contains("hush"));
}

#[tokio::test]
async fn secrets_are_listed_by_vault() {
    let rig = Rig::start().await;
    let (a, b) = (vault(&rig, "a").await, vault(&rig, "b").await);
    let mut ids = Vec::new();
    for (n, vault) in [&a, &b, &a, &a].into_iter().enumerate() {
        let body = json!({"name": format!("{n}"), "value": "v", "vault_id": vault});
        let made = rig.post("/vault_secrets", body).await.body();
        if vault == &a {
            ids.insert(0, made["id"].clone());
        }
    }
    let path = format!("/vaults/{a}/secrets");
    let list = rig.get(&path).await.body();
    assert_eq!(list["uri"], format!("{BASE}{path}"));
    assert_eq!(list["next_page_uri"], Value::Null);
    let listed = |list: &Value| -> Vec<Value> {
        let secrets = list["secrets"].as_array().unwrap();
        secrets.iter().map(|secret| secret["id"].clone()).collect()
    };
    assert_eq!(listed(&list), ids);
    let first = rig.get(&format!("{path}?limit=2")).await.body();
    assert_eq!(listed(&first), ids[..2]);
    let next = first["next_page_uri"].as_str().unwrap();
    let second = rig.get(next.strip_prefix(BASE).unwrap()).await.body();
    assert_eq!(listed(&second), ids[2..]);
    assert_eq!(second["next_page_uri"], Value::Null);

    let absent = format!("/vaults/vault_{}/secrets", "0".repeat(27));
    assert!(rig.get(&absent).await.is_absent());
    for (path, code) in [
        (format!("{path}?filter=true"), 231),
        (format!("{path}?before_id={a}"), 227),
        (format!("{absent}?limit=0"), 233),
    ] {
        assert_eq!(rig.get(&path).await.code(), Some(code), "{path}");
    }
    let stranger = rig.stranger().await;
    let answered = rig.call(&stranger, "GET", &path, Value::Null).await;
    assert!(answered.is_absent());
    let filtered = rig
        .get("/vault_secrets?filter=obj.name.startsWith('1')")
        .await;
    assert_eq!(listed(&filtered.body()).len(), 1);
}

#[tokio::test]
async fn a_renamed_vault_is_shown_and_reported_with_its_secrets() {
    let rig = Rig::start().await;
    let vault = vault(&rig, "old").await;
    let mut ids = Vec::new();
    for name in ["x", "y"] {
        let body = json!({"name": name, "value": "v", "vault_id": vault});
        ids.push(rig.post("/vault_secrets", body).await.body()["id"].clone());
    }
    let (_, start) = rig.events_after(0).await;
    let one = format!("/vaults/{vault}");
    rig.clock.advance(std::time::Duration::from_secs(5));
    let renamed = rig.patch(&one, json!({"name": "new"})).await.body();
    assert_ne!(renamed["updated_at"], renamed["created_at"]);
    let (reported, start) = rig.events_after(start).await;
    let brief = |event: &Value| (event["event_type"].clone(), event["object"]["id"].clone());
    assert_eq!(
        reported.iter().map(brief).collect::<Vec<_>>(),
        [
            (json!("vault_updated.v0"), json!(vault)),
            (json!("secret_updated.v0"), ids[0].clone()),
            (json!("secret_updated.v0"), ids[1].clone()),
        ]
    );
    for id in &ids {
        let path = format!("/vault_secrets/{}", id.as_str().unwrap());
        assert_eq!(rig.get(&path).await.body()["vault_name"], "new");
    }
    // Repeating the name changes only the vault.
    rig.patch(&one, json!({"name": "new"})).await.body();
    assert_eq!(rig.events_after(start).await.0.len(), 1);

    // Secrets created during the rename get the vault's new name.
    let made = async |n: u32| {
        let body = json!({"name": format!("z{n}"), "value": "v", "vault_id": vault});
        rig.post("/vault_secrets", body).await.body()
    };
    let rename = rig.patch(&one, json!({"name": "newest"}));
    tokio::join!(made(1), rename, made(2), made(3));
    let list = rig.get(&format!("{one}/secrets")).await.body();
    let secrets = list["secrets"].as_array().unwrap();
    assert_eq!(secrets.len(), 5);
    assert!(
        secrets
            .iter()
            .all(|secret| secret["vault_name"] == "newest")
    );
}
