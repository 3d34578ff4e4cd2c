//! Owners of keys, and bots with their objects.

use super::*;

#[tokio::test]
pub(super) async fn only_admins_may_set_another_owner() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let bot_id = bot["id"].as_str().unwrap().to_owned();
    let service_id = bot_id.replace("bot_", "service_");
    let developer = rig.user("Dev@x.example", Role::Member, true).await;
    rig.user("gone@x.example", Role::Member, false).await;
    let stranger = rig.stranger().await;

    let made = |owner: &str| json!({ "owner_id": owner });
    for (owner, expected) in [
        ("", &rig.admin.owner_id),
        (rig.admin.owner_id.as_str(), &rig.admin.owner_id),
        (&bot_id, &bot_id),
        (&service_id, &bot_id),
        ("dev@X.example", &developer.owner_id),
        (&developer.owner_id, &developer.owner_id),
    ] {
        let key = rig.post("/api_keys", made(owner)).await.body();
        assert_eq!(key["owner_id"], **expected, "{owner}");
    }
    let nobody = format!("usr_{}", "0".repeat(27));
    for (owner, code) in [
        (nobody.as_str(), 634),
        ("nobody@x.example", 634),
        (&stranger.owner_id, 634),
        (&stranger.subject, 634),
        ("gone@x.example", 636),
        ("ak_000", 243),
        ("not an id", 223),
    ] {
        let answered = rig.post("/api_keys", made(owner)).await;
        assert_eq!(answered.code(), Some(code), "{owner}");
        let Answered::Refused(class, ..) = answered else {
            unreachable!()
        };
        assert_eq!(class, culvert_base::Class::Invalid, "{owner}");
    }
    for own in ["", "DEV@x.example", &developer.owner_id] {
        let key = rig
            .call(&developer, "POST", "/api_keys", made(own))
            .await
            .body();
        assert_eq!(key["owner_id"], *developer.owner_id);
    }
    for other in [&rig.admin.owner_id, &bot_id, "gone@x.example", "junk"] {
        let answered = rig.call(&developer, "POST", "/api_keys", made(other)).await;
        assert_eq!(answered.code(), Some(630), "{other}");
    }
    let key = rig.post("/api_keys", json!({})).await.body();
    let one = format!("/api_keys/{}", key["id"].as_str().unwrap());
    assert_eq!(rig.patch(&one, made(&bot_id)).await.code(), Some(214));
}

#[tokio::test]
async fn deletion_of_a_bot_deletes_its_objects_in_one_commit() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let bot_id = bot["id"].as_str().unwrap();
    let mut keys = Vec::new();
    let mut owned = Vec::new();
    for n in 0..6 {
        let (collection, kind) = [
            ("api_keys", "api_key_deleted.v0"),
            ("credentials", "tunnel_credential_deleted.v0"),
            ("ssh_credentials", "ssh_public_key_deleted.v0"),
        ][n % 3];
        let mut body = rig.sample(collection, 10).await;
        body["owner_id"] = json!(bot_id);
        let made = rig.post(&format!("/{collection}"), body).await.body();
        owned.push((made["id"].clone(), json!(kind)));
        if collection == "api_keys" {
            keys.push(made["token"].as_str().unwrap().to_owned());
        }
    }
    let (_, start) = rig.events_after(0).await;
    let revision = rig.store.revision().await.unwrap();
    let path = format!("/service_users/{}", bot_id.replace("bot_", "service_"));
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    assert_eq!(
        rig.store.revision().await.unwrap().number,
        revision.number + 1
    );
    let (reported, _) = rig.events_after(start).await;
    let gone: Vec<_> = reported
        .iter()
        .map(|event| (event["object"]["id"].clone(), event["event_type"].clone()))
        .collect();
    let id = json!(bot_id.replace("bot_", "service_"));
    let service_user = (id, json!("service_user_deleted.v0"));
    assert_eq!(gone, [owned, vec![service_user]].concat());
    for token in &keys {
        assert_eq!(rig.authenticate(token).await, Err(Some(203)));
    }
}

#[tokio::test]
async fn service_users_are_an_alias_of_bot_users() {
    let rig = Rig::start().await;
    let made = rig
        .post("/service_users", json!({"name": "s"}))
        .await
        .body();
    let service_id = made["id"].as_str().unwrap();
    let bot_id = service_id.replace("service_", "bot_");
    assert!(service_id.starts_with("service_"));
    for id in [service_id, &bot_id] {
        let bot = rig.get(&format!("/bot_users/{id}")).await.body();
        assert_eq!(bot["id"], *bot_id);
        assert_eq!(bot["uri"], format!("{BASE}/bot_users/{bot_id}"));
        let service = rig.get(&format!("/service_users/{id}")).await.body();
        assert_eq!(service, made);
    }
    assert_eq!(
        rig.get("/bot_users").await.body()["bot_users"][0]["id"],
        *bot_id
    );
    assert_eq!(
        rig.post("/bot_users", json!({"name": "s"})).await.code(),
        Some(4112)
    );
    // A name is unique only within its account.
    let stranger = rig.stranger().await;
    let other = rig
        .call(&stranger, "POST", "/bot_users", json!({"name": "s"}))
        .await;
    assert!(matches!(other, Answered::Created(_)));
}
