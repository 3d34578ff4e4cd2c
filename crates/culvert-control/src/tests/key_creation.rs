//! API keys that are created with restrictions, and dry runs of that.

use std::time::Duration;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

/// The restrictions of a key, as its sub-resource shows them.
async fn restrictions(rig: &Rig, id: &str) -> Value {
    let shown = rig.get(&format!("/api_keys/{id}/restrictions")).await;
    let shown = shown.body();
    let fields = ["role", "scopes", "expires_at", "networks"];
    Value::Object(
        fields
            .map(|field| (field.to_owned(), shown[field].clone()))
            .into_iter()
            .collect(),
    )
}

/// The caller of a new key.
async fn made(rig: &Rig, by: &Caller, body: Value) -> (String, Caller) {
    let made = rig.call(by, "POST", "/api_keys", body).await.body();
    let caller = rig.authenticate(made["token"].as_str().unwrap()).await;
    (made["id"].as_str().unwrap().to_owned(), caller.unwrap())
}

#[tokio::test]
async fn a_key_is_created_with_its_restrictions() {
    let rig = Rig::start().await;
    let (_, start) = rig.events_after(0).await;
    let body = json!({
        "description": "deploys", "role": "member", "scopes": ["endpoints.write"], "expires_at": "90d",
        "networks": ["192.0.2.0/24"],
    });
    let key = rig.post("/api_keys", body).await.body();
    // The response and the event of a creation have the published fields.
    let names = |object: &Value| -> Vec<String> {
        let mut names: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    };
    let published = [
        "created_at",
        "description",
        "id",
        "metadata",
        "owner_id",
        "token",
        "uri",
    ];
    assert_eq!(names(&key), published);
    let id = key["id"].as_str().unwrap();
    let end = rig.clock.now().whole_seconds().plus(90 * DAY).to_string();
    let expected = json!({
        "role": "member", "scopes": ["endpoints.read", "endpoints.write"], "expires_at": end,
        "networks": ["192.0.2.0/24"],
    });
    assert_eq!(restrictions(&rig, id).await, expected);
    // It never was unrestricted.
    let (reported, start) = rig.events_after(start).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    assert_eq!(kinds, ["api_key_created.v0", "api_key_restricted.v0"]);
    let object = &reported[0]["object"];
    let without_owner: Vec<_> = published
        .into_iter()
        .filter(|one| *one != "owner_id")
        .collect();
    assert_eq!(names(object), without_owner);
    assert_eq!(reported[1]["cause"], reported[0]["event_id"]);
    assert_eq!(reported[1]["object"]["id"], *id);
    assert_eq!(reported[1]["object"]["after"], expected);
    let caller = rig.authenticate(key["token"].as_str().unwrap()).await;
    let caller = caller.unwrap();
    assert_eq!(caller.role, Role::Member);
    let answered = rig.call(&caller, "GET", "/vaults", Value::Null).await;
    assert_eq!(answered.code(), Some(642));
    // A date stands for its first moment; an empty value is none.
    let body = json!({"role": "", "scopes": [], "networks": null, "expires_at": "2099-01-31"});
    let (id, _) = made(&rig, &rig.admin, body).await;
    let shown = restrictions(&rig, &id).await;
    assert_eq!(shown["expires_at"], "2099-01-31T00:00:00Z");
    assert_eq!(shown["role"], "");
    let body = json!({"role": "", "scopes": [], "networks": [], "expires_at": ""});
    let (reported, start) = {
        let (id, caller) = made(&rig, &rig.admin, body).await;
        assert_eq!(caller.restrictions, None, "{id}");
        rig.events_after(start).await
    };
    let last = reported.last().unwrap();
    assert_eq!(last["event_type"], "api_key_created.v0");

    for (body, code) in [
        (json!({"role": "root"}), 215),
        (json!({"role": 1}), 215),
        (json!({"scopes": ["keys.eat"]}), 215),
        (json!({"scopes": "keys.read"}), 215),
        (json!({"networks": ["192.0.2.7/24"]}), 215),
        (json!({"networks": vec!["192.0.2.0/24"; 33]}), 215),
        (json!({"expires_at": "soon"}), 241),
        (json!({"expires_at": "2001-01-01"}), 215),
        (json!({"expires_at": "0d"}), 215),
        (json!({"expires_at": 90}), 215),
        (json!({"restrictions": {}}), 214),
    ] {
        for path in ["/api_keys", "/api_keys?dry_run=true"] {
            let answered = rig.post(path, body.clone()).await;
            assert_eq!(answered.code(), Some(code), "{path} {body}");
        }
    }
    // The same forms in a change.
    let path = format!("/api_keys/{}/restrictions", key["id"].as_str().unwrap());
    let shown = rig.patch(&path, json!({"expires_at": "1h30m"})).await;
    let end = rig
        .clock
        .now()
        .plus(Duration::from_secs(5400))
        .whole_seconds();
    assert_eq!(shown.body()["expires_at"], end.to_string());
    let answered = rig.patch(&path, json!({"expires_at": "2001-01-01"})).await;
    assert_eq!(answered.code(), Some(215));
    let (reported, _) = rig.events_after(start).await;
    assert_eq!(reported.len(), 2, "refusals create no key");
}

/// The code of a refusal; `None` for a success.
fn refused(answered: &Answered) -> Option<u16> {
    match answered {
        Answered::Refused(_, code, _) => *code,
        _ => None,
    }
}

/// Creation × role × owner × restricted caller × dry run.
#[tokio::test]
async fn no_key_is_created_that_can_do_more_than_its_creator() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let bot_id = bot["id"].as_str().unwrap();
    let member = rig.user("member@x.example", Role::Member, true).await;
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let soon = rig.clock.now().plus(DAY).whole_seconds().to_string();
    let narrow = json!({
        "role": "member", "scopes": ["keys.write", "endpoints.read"], "expires_at": soon,
        "networks": ["192.0.2.0/24"],
    });
    let (_, narrow) = made(&rig, &rig.admin, narrow).await;
    let (_, scoped) = made(&rig, &rig.admin, json!({"scopes": ["keys.write"]})).await;
    let (_, as_member) = made(&rig, &rig.admin, json!({"role": "member"})).await;
    let callers = [
        ("admin", &rig.admin),
        ("member", &member),
        ("reader", &reader),
        ("narrow", &narrow),
        ("scoped", &scoped),
        ("as_member", &as_member),
    ];
    let owners = [
        ("own", None),
        ("bot", Some(bot_id)),
        ("admin", Some(rig.admin.owner_id.as_str())),
        ("gone", Some("gone@x.example")),
    ];
    let bodies = [
        json!({}),
        json!({"role": "read_only"}),
        json!({"role": "member"}),
        json!({"role": "admin"}),
        json!({"scopes": ["keys.read"]}),
        json!({"scopes": ["endpoints.write"]}),
        json!({"expires_at": "1h"}),
        json!({"expires_at": "30d"}),
        json!({"networks": ["192.0.2.128/25"]}),
        json!({"networks": ["0.0.0.0/0"]}),
    ];
    let (mut n_made, mut n_wide) = (0, 0);
    for (name, caller) in callers {
        for (owner, owner_id) in owners {
            for body in &bodies {
                let mut body = body.clone();
                if let Some(owner_id) = owner_id {
                    body["owner_id"] = json!(owner_id);
                }
                let what = format!("{name} for {owner}: {body}");
                let before = rig.store.count("api_key").await.unwrap();
                let dry = rig.call(caller, "POST", "/api_keys?dry_run=true", body.clone());
                let dry = dry.await;
                assert_eq!(rig.store.count("api_key").await.unwrap(), before, "{what}");
                let answered = rig.call(caller, "POST", "/api_keys", body.clone()).await;
                // A dry run refuses what the creation refuses.
                assert_eq!(refused(&dry), refused(&answered), "{what}");
                let is_own = owner_id.is_none_or(|id| id == caller.owner_id);
                let given = caller.restrictions();
                let Answered::Created(key) = answered else {
                    let code = answered.code().unwrap();
                    let expected = match () {
                        () if caller.role == Role::ReadOnly => 635,
                        () if !is_own && caller.role != Role::Admin => 630,
                        () if owner == "gone" => 634,
                        () => 643,
                    };
                    n_wide += usize::from(code == 643);
                    assert_eq!(code, expected, "{what}");
                    continue;
                };
                n_made += 1;
                let made = rig.authenticate(key["token"].as_str().unwrap()).await;
                let made = made.unwrap();
                // The authority is that of the creator at most, and that of the owner at most.
                assert!(made.restrictions().is_within(&given), "{what}");
                assert!(made.role <= caller.role, "{what}");
                assert_eq!(
                    made.owner_id,
                    owner_id.unwrap_or(&caller.owner_id),
                    "{what}"
                );
                let expected = match body["role"].as_str() {
                    Some("read_only") => Role::ReadOnly,
                    Some("member") => Role::Member,
                    _ => Role::Admin,
                };
                assert!(made.role <= expected, "{what}");
                // A dry run shows what `GET /self` shows with the key.
                let Answered::Ok(dry) = dry else {
                    panic!("{what}: {dry:?}")
                };
                let shown = rig.call(&made, "GET", "/self", Value::Null).await.body();
                for field in ["owner_id", "role", "scopes", "expires_at", "operations"] {
                    assert_eq!(dry[field], shown[field], "{what}: {field}");
                }
                assert_eq!(dry["owner_name"], shown["user"], "{what}");
                let networks = serde_json::to_value(made.restrictions().networks).unwrap();
                assert_eq!(dry["networks"], networks, "{what}");
            }
        }
    }
    assert!(n_made > 60 && n_wide > 10, "{n_made} {n_wide}");
}

#[tokio::test]
async fn the_query_of_a_creation_is_checked() {
    let rig = Rig::start().await;
    for (query, code) in [
        ("dry_run=yes", 215),
        ("dry_run=true&dry_run=true", 232),
        ("force=true", 231),
    ] {
        let answered = rig.post(&format!("/api_keys?{query}"), json!({})).await;
        assert_eq!(answered.code(), Some(code), "{query}");
    }
    for query in ["dry_run=false", "dry_run="] {
        let answered = rig.post(&format!("/api_keys?{query}"), json!({})).await;
        assert!(matches!(answered, Answered::Created(_)), "{query}");
    }
    let (_, start) = rig.events_after(0).await;
    let revision = rig.store.revision().await.unwrap();
    let dry = rig
        .post("/api_keys?dry_run=true", json!({"role": "admin"}))
        .await;
    assert_eq!(dry.body()["role"], "admin");
    assert_eq!(rig.store.revision().await.unwrap(), revision);
    assert_eq!(rig.events_after(start).await.0, Vec::<Value>::new());
}
