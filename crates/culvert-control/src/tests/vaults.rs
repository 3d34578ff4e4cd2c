//! Vaults and their secrets: codes, and values that are never shown.

use crate::resource::model::vault_secret::VaultSecret;
use crate::tests::*;

async fn vault(house: &House, name: &str) -> String {
    let made = house.post("/vaults", json!({"name": name})).await.body();
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
pub(super) async fn names_of_vaults() {
    let house = House::start().await;
    vault(&house, "a").await;
    let one = format!("/vaults/{}", vault(&house, "b/c.d-e_F").await);
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
        let answered = house.call(&house.admin, method, path, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{method} {body}");
    }
    // Another account has its own names.
    let stranger = house.stranger().await;
    let body = json!({"name": "a"});
    let made = house.call(&stranger, "POST", "/vaults", body).await.body();
    assert_eq!(made["created_by"], *stranger.owner_id);
}

#[tokio::test]
pub(super) async fn codes_of_secrets() {
    let house = House::start().await;
    let (a, b) = (vault(&house, "a").await, vault(&house, "b").await);
    let body = |change: Value| {
        let mut body = json!({"name": "s", "value": "v", "vault_id": a});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let foreign = house.stranger().await;
    let foreign = house
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
        let answered = house.post("/vault_secrets", body(change.clone())).await;
        assert_eq!(answered.code(), Some(code), "{change}");
    }
    let longest = body(json!({"value": "é".repeat(8 << 10), "vault_name": "a"}));
    let made = house.post("/vault_secrets", longest).await.body();
    assert_eq!(made["vault_name"], "a");
    let again = house.post("/vault_secrets", body(json!({}))).await;
    assert_eq!(again.code(), Some(24005));
    let by_name = json!({"name": "s", "value": "v", "vault_name": "b"});
    let other = house.post("/vault_secrets", by_name).await.body();
    assert_eq!(
        other["vault"],
        json!({"id": b, "uri": format!("{BASE}/vaults/{b}")})
    );
    assert_eq!(
        other["created_by"],
        json!({"id": house.admin.owner_id, "uri": ""})
    );

    let one = format!("/vault_secrets/{}", made["id"].as_str().unwrap());
    house
        .post("/vault_secrets", body(json!({"name": "t"})))
        .await
        .body();
    for (change, code) in [
        (json!({"name": "t"}), 24005),
        (json!({"name": ""}), 24001),
        (json!({"name": "t t"}), 24000),
        (json!({"value": ""}), 24003),
        (json!({"vault_id": b}), 214),
    ] {
        let answered = house.patch(&one, change.clone()).await;
        assert_eq!(answered.code(), Some(code), "{change}");
    }
    let full = house.delete(&format!("/vaults/{a}")).await;
    assert_eq!(full.code(), Some(23003));
    assert_eq!(
        house
            .delete(&format!("/vault_secrets/{}", other["id"].as_str().unwrap()))
            .await,
        Answered::NoContent
    );
    assert_eq!(
        house.delete(&format!("/vaults/{b}")).await,
        Answered::NoContent
    );
}

#[tokio::test]
async fn a_value_is_sealed_and_never_seen() {
    let house = House::start().await;
    let vault = vault(&house, "v").await;
    let body = json!({"name": "s", "value": "hush hush", "vault_id": vault});
    let made = house.post("/vault_secrets", body).await.body();
    let id = made["id"].as_str().unwrap().to_owned();
    let one = format!("/vault_secrets/{id}");
    let stored = async || {
        let document = house.store.get("secret", &id).await.unwrap().unwrap();
        let secret: VaultSecret = stored::read(&document).unwrap();
        let value = house.control.seal.open(&id, &secret.sealed_value).unwrap();
        (document.body, value.reveal().to_owned())
    };
    let (before, value) = stored().await;
    assert_eq!(value, "hush hush");
    let changed = house
        .patch(&one, json!({"value": "hush anew"}))
        .await
        .body();
    let (after, value) = stored().await;
    assert_eq!(value, "hush anew");
    let (told, _) = house.told_after(0).await;
    let texts = [
        made.to_string(),
        changed.to_string(),
        house.get(&one).await.body().to_string(),
        house.get("/vault_secrets").await.body().to_string(),
        house
            .get(&format!("/vaults/{vault}/secrets"))
            .await
            .body()
            .to_string(),
        before,
        after,
        Value::from(told).to_string(),
    ];
    for text in texts {
        assert!(!text.contains("hush"), "{text}");
    }
    // A value in the wrong field is not quoted either.
    let wrong = json!({"name": ["hush"], "value": "hush", "vault_id": vault});
    let Answered::Refused(_, Some(215), message) = house.post("/vault_secrets", wrong).await else {
        panic!("a list is no name");
    };
    assert!(!message.contains("hush"));
}

#[tokio::test]
async fn the_secrets_of_a_vault_are_a_list_of_their_own() {
    let house = House::start().await;
    let (a, b) = (vault(&house, "a").await, vault(&house, "b").await);
    let mut ids = Vec::new();
    for (n, vault) in [&a, &b, &a, &a].into_iter().enumerate() {
        let body = json!({"name": format!("{n}"), "value": "v", "vault_id": vault});
        let made = house.post("/vault_secrets", body).await.body();
        if vault == &a {
            ids.insert(0, made["id"].clone());
        }
    }
    let path = format!("/vaults/{a}/secrets");
    let list = house.get(&path).await.body();
    assert_eq!(list["uri"], format!("{BASE}{path}"));
    assert_eq!(list["next_page_uri"], Value::Null);
    let listed = |list: &Value| -> Vec<Value> {
        let secrets = list["secrets"].as_array().unwrap();
        secrets.iter().map(|secret| secret["id"].clone()).collect()
    };
    assert_eq!(listed(&list), ids);
    let first = house.get(&format!("{path}?limit=2")).await.body();
    assert_eq!(listed(&first), ids[..2]);
    let next = first["next_page_uri"].as_str().unwrap();
    let second = house.get(next.strip_prefix(BASE).unwrap()).await.body();
    assert_eq!(listed(&second), ids[2..]);
    assert_eq!(second["next_page_uri"], Value::Null);

    let absent = format!("/vaults/vault_{}/secrets", "0".repeat(27));
    assert!(house.get(&absent).await.is_absent());
    for (path, code) in [
        (format!("{path}?filter=true"), 231),
        (format!("{path}?before_id={a}"), 227),
        (format!("{absent}?limit=0"), 233),
    ] {
        assert_eq!(house.get(&path).await.code(), Some(code), "{path}");
    }
    let stranger = house.stranger().await;
    let answered = house.call(&stranger, "GET", &path, Value::Null).await;
    assert!(answered.is_absent());
    let filtered = house
        .get("/vault_secrets?filter=obj.name.startsWith('1')")
        .await;
    assert_eq!(listed(&filtered.body()).len(), 1);
}

#[tokio::test]
async fn a_renamed_vault_is_shown_and_told_with_its_secrets() {
    let house = House::start().await;
    let vault = vault(&house, "old").await;
    let mut ids = Vec::new();
    for name in ["x", "y"] {
        let body = json!({"name": name, "value": "v", "vault_id": vault});
        ids.push(house.post("/vault_secrets", body).await.body()["id"].clone());
    }
    let (_, start) = house.told_after(0).await;
    let one = format!("/vaults/{vault}");
    house.clock.advance(std::time::Duration::from_secs(5));
    let renamed = house.patch(&one, json!({"name": "new"})).await.body();
    assert_ne!(renamed["updated_at"], renamed["created_at"]);
    let (told, start) = house.told_after(start).await;
    let brief = |event: &Value| (event["event_type"].clone(), event["object"]["id"].clone());
    assert_eq!(
        told.iter().map(brief).collect::<Vec<_>>(),
        [
            (json!("vault_updated.v0"), json!(vault)),
            (json!("secret_updated.v0"), ids[0].clone()),
            (json!("secret_updated.v0"), ids[1].clone()),
        ]
    );
    for id in &ids {
        let path = format!("/vault_secrets/{}", id.as_str().unwrap());
        assert_eq!(house.get(&path).await.body()["vault_name"], "new");
    }
    // Repeating the name changes only the vault.
    house.patch(&one, json!({"name": "new"})).await.body();
    assert_eq!(house.told_after(start).await.0.len(), 1);

    // Secrets created during the rename get the vault's new name.
    let made = async |n: u32| {
        let body = json!({"name": format!("z{n}"), "value": "v", "vault_id": vault});
        house.post("/vault_secrets", body).await.body()
    };
    let rename = house.patch(&one, json!({"name": "newest"}));
    tokio::join!(made(1), rename, made(2), made(3));
    let list = house.get(&format!("{one}/secrets")).await.body();
    let secrets = list["secrets"].as_array().unwrap();
    assert_eq!(secrets.len(), 5);
    assert!(
        secrets
            .iter()
            .all(|secret| secret["vault_name"] == "newest")
    );
}
