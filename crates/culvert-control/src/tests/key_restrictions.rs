//! Restrictions, rotation and last use of API keys.

use std::net::IpAddr;
use std::time::Duration;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// A new key: its ID and token.
async fn key(rig: &Rig, caller: &Caller, body: Value) -> (String, String) {
    let made = rig.call(caller, "POST", "/api_keys", body).await.body();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("id"), text("token"))
}

/// A new key of the admin with these restrictions, and its caller.
async fn restricted(rig: &Rig, restrictions: Value) -> (String, Caller) {
    let (id, token) = key(rig, &rig.admin, json!({})).await;
    let path = format!("/api_keys/{id}/restrictions");
    rig.patch(&path, restrictions).await.body();
    (id, rig.authenticate(&token).await.unwrap())
}

/// Whether the caller may call from this address; the code of the refusal.
fn admitted(rig: &Rig, caller: &Caller, address: &str) -> Option<u16> {
    let address: IpAddr = address.parse().unwrap();
    let refusal = rig.control.identity.admit(caller, address).err()?;
    codes::note(refusal.code);
    refusal.code.map(Code::number)
}

#[tokio::test]
async fn restrictions_are_set_shown_and_removed() {
    let rig = Rig::start().await;
    let (id, token) = key(&rig, &rig.admin, json!({})).await;
    let path = format!("/api_keys/{id}/restrictions");
    let none = json!({
        "key_id": id, "uri": format!("{BASE}{path}"), "role": "", "scopes": [], "expires_at": null,
        "networks": [], "leak": null, "previous_token_expires_at": null, "last_used_at": null, "last_used_from": "",
        "rotated_at": null, "token_last_used_at": null, "token_last_used_from": "",
        "previous_token_last_used_at": null, "previous_token_last_used_from": "",
        "maximum_age_at": null, "broken_rules": [],
    });
    assert_eq!(rig.get(&path).await.body(), none);
    let (_, start) = rig.events_after(0).await;
    let set = json!({
        "role": "member", "scopes": ["endpoints.write"], "expires_at": "2027-02-01T02:00:00+02:00",
        "networks": ["192.0.2.0/24", "2001:db8::/32"],
    });
    let shown = rig.patch(&path, set).await.body();
    assert_eq!(shown["role"], "member");
    assert_eq!(
        shown["scopes"],
        json!(["endpoints.read", "endpoints.write"])
    );
    assert_eq!(shown["expires_at"], "2027-02-01T00:00:00Z");
    assert_eq!(shown["networks"], json!(["192.0.2.0/24", "2001:db8::/32"]));
    assert_eq!(rig.get(&path).await.body(), shown);
    // Absent and null fields stay; empty ones are lifted.
    assert_eq!(rig.patch(&path, json!({"role": null})).await.body(), shown);
    let lifted = json!({"role": "", "scopes": [], "expires_at": ""});
    let lifted = rig.patch(&path, lifted).await.body();
    assert_eq!(lifted["networks"], shown["networks"]);
    let lifted_networks = lifted["networks"].clone();
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    assert_eq!(rig.get(&path).await.body(), none);
    let caller = rig.authenticate(&token).await.unwrap();
    assert_eq!(caller.restrictions, None);
    // The key keeps its form, and each change has its event.
    let key = rig.get(&format!("/api_keys/{id}")).await.body();
    let mut fields: Vec<&String> = key.as_object().unwrap().keys().collect();
    fields.sort();
    let contract = [
        "created_at",
        "description",
        "id",
        "metadata",
        "owner_id",
        "token",
        "uri",
    ];
    assert_eq!(fields, contract);
    let (reported, _) = rig.events_after(start).await;
    let restricted = ["api_key_updated.v0", "api_key_restricted.v0"];
    let lifted = ["api_key_updated.v0", "api_key_unrestricted.v0"];
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    assert_eq!(kinds, [restricted, restricted, restricted, lifted].concat());
    for event in &reported {
        assert_eq!(event["object"]["id"], *id);
    }
    let last = &reported[7]["object"];
    assert_eq!(last["before"]["networks"], lifted_networks);
    assert_eq!(last["after"], json!({}));
}

#[tokio::test]
async fn invalid_restrictions_are_refused() {
    let rig = Rig::start().await;
    let (id, _) = key(&rig, &rig.admin, json!({})).await;
    let path = format!("/api_keys/{id}/restrictions");
    let many: Vec<String> = (0..33).map(|n| format!("10.0.{n}.0/24")).collect();
    for (body, code) in [
        (json!({"role": "root"}), 215),
        (json!({"role": 1}), 215),
        (json!({"scopes": ["endpoints.eat"]}), 215),
        (json!({"scopes": "endpoints.read"}), 215),
        (json!({"expires_at": "tomorrow"}), 241),
        (json!({"expires_at": "2026-01-01T00:00:00Z"}), 215),
        (json!({"networks": ["10.0.0.1"]}), 215),
        (json!({"networks": ["10.0.0.1/8"]}), 215),
        (json!({"networks": many}), 215),
        (json!({"last_used_at": "2027-01-01T00:00:00Z"}), 214),
    ] {
        let answered = rig.patch(&path, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let rotate = format!("/api_keys/{id}/rotate");
    for (body, code) in [
        (json!({"overlap": 604_801}), 215),
        (json!({"overlap": -1}), 215),
        (json!({"overlap": "1h"}), 215),
        (json!({"until": 1}), 214),
    ] {
        let answered = rig.post(&rotate, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    for path in [path.replace(&id, "ak_0"), path.replace("ak_", "cr_")] {
        assert!(rig.get(&path).await.is_absent());
        assert!(rig.patch(&path, json!({})).await.is_absent());
        assert!(rig.delete(&path).await.is_absent());
    }
}

#[tokio::test]
pub(super) async fn a_restricted_key_may_do_less_than_its_owner() {
    let rig = Rig::start().await;
    let (id, token) = key(&rig, &rig.admin, json!({})).await;
    let path = format!("/api_keys/{id}/restrictions");
    let restrict = async |body: Value| {
        rig.patch(&path, body).await.body();
        rig.authenticate(&token).await
    };
    // The role is the lower one of the owner and the key.
    for (role, expected) in [
        ("read_only", Role::ReadOnly),
        ("member", Role::Member),
        ("admin", Role::Admin),
    ] {
        let caller = restrict(json!({"role": role})).await.unwrap();
        assert_eq!(caller.role, expected);
    }
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let (of_bot, bot_token) = key(&rig, &rig.admin, json!({"owner_id": bot["id"]})).await;
    let body = json!({"role": "admin"});
    let of_bot = format!("/api_keys/{of_bot}/restrictions");
    rig.patch(&of_bot, body).await.body();
    let caller = rig.authenticate(&bot_token).await.unwrap();
    assert_eq!(caller.role, Role::Member);

    let caller = restrict(json!({"role": "", "scopes": ["secrets.read"]})).await;
    let caller = caller.unwrap();
    let call = async |method: &str, path: &str| {
        let answered = rig.call(&caller, method, path, Value::Null).await;
        match answered {
            Answered::Refused(_, code, _) => code,
            _ => None,
        }
    };
    assert_eq!(call("GET", "/vaults").await, None);
    assert_eq!(call("GET", "/self").await, None);
    assert_eq!(call("POST", "/vaults").await, Some(642));
    assert_eq!(call("GET", "/endpoints").await, Some(642));
    assert_eq!(call("GET", "/events").await, Some(642));
    let tail = rig.control.events.tail(&caller, TailSpec::default());
    assert_eq!(tail.unwrap_err().code.map(Code::number), Some(642));

    let caller = restrict(json!({"scopes": [], "networks": ["192.0.2.0/24"]})).await;
    let caller = caller.unwrap();
    assert_eq!(admitted(&rig, &caller, "192.0.2.9"), None);
    assert_eq!(admitted(&rig, &caller, "::ffff:192.0.2.9"), None);
    assert_eq!(admitted(&rig, &caller, "192.0.3.9"), Some(641));

    let end = rig.clock.now().plus(HOUR).to_string();
    let caller = restrict(json!({"networks": [], "expires_at": end})).await;
    let caller = caller.unwrap();
    let here = IpAddr::from([127, 0, 0, 1]);
    let (cookie, _) = rig
        .control
        .identity
        .sign_in(caller.clone(), here)
        .await
        .unwrap();
    let session = async || {
        rig.control
            .identity
            .console_session(cookie.reveal(), here)
            .await
    };
    assert!(session().await.is_ok());
    rig.clock.advance(HOUR);
    assert_eq!(rig.authenticate(&token).await, Err(Some(640)));
    assert!(session().await.is_err());
    assert!(
        rig.control
            .identity
            .caller_again(&caller, here)
            .await
            .is_err()
    );
}

#[tokio::test]
pub(super) async fn a_restricted_key_grants_no_more_than_it_has() {
    let rig = Rig::start().await;
    let end = rig.clock.now().plus(HOUR).to_string();
    let own = json!({
        "role": "member", "scopes": ["keys.write", "credentials.write"], "expires_at": end,
        "networks": ["192.0.2.0/24"],
    });
    let (id, caller) = restricted(&rig, own.clone()).await;
    let call =
        async |method: &str, path: &str, body: Value| rig.call(&caller, method, path, body).await;
    // A new key has the same restrictions.
    let (child, token) = key(&rig, &caller, json!({})).await;
    let made = rig.authenticate(&token).await.unwrap();
    assert_eq!(made.restrictions, caller.restrictions);
    let of = |id: &str| format!("/api_keys/{id}/restrictions");
    let (wide, _) = key(&rig, &rig.admin, json!({})).await;
    for id in [&id, &child, &wide] {
        for body in [
            json!({"role": ""}),
            json!({"role": "admin"}),
            json!({"scopes": []}),
            json!({"scopes": ["keys.write", "endpoints.read"]}),
            json!({"expires_at": ""}),
            json!({"expires_at": "2099-01-01T00:00:00Z"}),
            json!({"networks": []}),
            json!({"networks": ["192.0.0.0/16"]}),
        ] {
            let answered = call("PATCH", &of(id), body.clone()).await;
            assert_eq!(answered.code(), Some(643), "{body}");
        }
        assert_eq!(call("DELETE", &of(id), Value::Null).await.code(), Some(643));
    }
    // The token of a wider key is not shown to it.
    let rotate = |id: &str| format!("/api_keys/{id}/rotate");
    let rotated = call("POST", &rotate(&wide), Value::Null).await;
    assert_eq!(rotated.code(), Some(643));
    let rotated = call("POST", &rotate(&child), Value::Null).await;
    assert!(matches!(rotated, Answered::Created(_)));
    // Credentials would have the owner's rights, without restriction or expiry.
    makes_no_credential(&rig, &caller, "all").await;
    // It may narrow itself, and then do no more than that.
    let body = json!({"scopes": ["keys.write"], "networks": ["192.0.2.128/25"]});
    call("PATCH", &of(&id), body).await.body();
    let narrowed = rig
        .control
        .identity
        .caller_again(&caller, [192, 0, 2, 200].into())
        .await;
    let narrowed = narrowed.unwrap();
    let again = rig.call(&narrowed, "PATCH", &of(&id), own).await;
    assert_eq!(again.code(), Some(643));
}

/// The caller makes nothing that would have its owner's rights and outlive its key.
async fn makes_no_credential(rig: &Rig, caller: &Caller, what: &str) {
    for collection in [
        "credentials",
        "ssh_credentials",
        "ssh_user_certificates",
        "ssh_host_certificates",
    ] {
        let body = rig.sample(collection, 1).await;
        let path = format!("/{collection}");
        let answered = rig.call(caller, "POST", &path, body).await;
        assert_eq!(answered.code(), Some(643), "{what}: {collection}");
    }
}

/// Each restriction alone.
#[tokio::test]
async fn credentials_inherit_every_restriction_of_their_creator() {
    let rig = Rig::start().await;
    let end = rig.clock.now().plus(HOUR).to_string();
    for restriction in [
        json!({"role": "member"}),
        json!({"expires_at": end}),
        json!({"networks": ["192.0.2.0/24"]}),
        json!({"scopes": ["credentials.write", "keys.write", "agents.write"]}),
        // The policies of agents use secrets.
        json!({"scopes": ["credentials.write", "keys.write", "endpoints.write"]}),
    ] {
        let (_, caller) = restricted(&rig, restriction.clone()).await;
        makes_no_credential(&rig, &caller, &restriction.to_string()).await;
    }
    let scopes = json!({"scopes": ["credentials.write", "endpoints.write", "secrets.read"]});
    let (_, caller) = restricted(&rig, scopes).await;
    let made = rig.call(&caller, "POST", "/credentials", json!({})).await;
    assert!(matches!(made, Answered::Created(_)), "{made:?}");
}

/// The token from before a rotation works until its end, and so does all that is made with it.
#[tokio::test]
async fn credentials_made_with_a_previous_token_expire_with_it() {
    let rig = Rig::start().await;
    let (id, first) = key(&rig, &rig.admin, json!({})).await;
    let rotate = format!("/api_keys/{id}/rotate");
    let rotated = rig.post(&rotate, json!({"overlap": 3_600})).await;
    assert!(matches!(rotated, Answered::Created(_)));
    let caller = rig.authenticate(&first).await.unwrap();
    makes_no_credential(&rig, &caller, "a previous token").await;
    let again = rig
        .call(&caller, "POST", &rotate, json!({"overlap": 0}))
        .await;
    assert_eq!(again.code(), Some(643));
    let (_, child) = key(&rig, &caller, json!({})).await;
    assert!(rig.authenticate(&child).await.is_ok());
    rig.clock.advance(HOUR);
    assert!(rig.authenticate(&child).await.is_err());
}

/// What depends on the role of the owner depends on the role of the key too.
#[tokio::test]
async fn a_key_with_a_lower_role_has_the_rights_of_that_role() {
    let rig = Rig::start().await;
    let (_, caller) = restricted(&rig, json!({"role": "member"})).await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let (_, token) = key(&rig, &rig.admin, json!({"owner_id": bot["id"]})).await;
    let bot = rig.authenticate(&token).await.unwrap();
    let vault = rig
        .call(&bot, "POST", "/vaults", json!({"name": "v"}))
        .await
        .body();
    let secret = json!({"name": "s", "value": "hush", "vault_id": vault["id"]});
    rig.call(&bot, "POST", "/vault_secrets", secret)
        .await
        .body();
    let policy = json!({"on_http_request": [{"actions": [{
        "type": "add-headers", "config": {"headers": {"x": "${secrets.get('v', 's')}"}},
    }]}]});
    let internal = json!({
        "url": "https://*.internal", "bindings": ["internal"], "upstream_url": "http://127.0.0.1:9",
    });
    let foreign = json!({
        "url": "https://a.culvert.localhost", "upstream_url": "http://127.0.0.1:9",
        "traffic_policy": policy,
    });
    for body in [internal, foreign] {
        let answered = rig.call(&caller, "POST", "/endpoints", body.clone()).await;
        assert!(
            matches!(answered, Answered::Refused(..)),
            "{body} {answered:?}"
        );
        let answered = rig.post("/endpoints", body.clone()).await;
        assert!(
            matches!(answered, Answered::Created(_)),
            "{body} {answered:?}"
        );
    }
}

#[tokio::test]
async fn both_tokens_of_a_rotated_key_work_during_the_overlap() {
    let rig = Rig::start().await;
    let (id, first) = key(&rig, &rig.admin, json!({})).await;
    let path = format!("/api_keys/{id}/rotate");
    let rotate = async |body: Value| {
        let rotated = rig.post(&path, body).await;
        let Answered::Created(rotated) = rotated else {
            panic!("{rotated:?}")
        };
        assert_eq!(rotated["id"], *id);
        rotated["token"].as_str().unwrap().to_owned()
    };
    let works = async |token: &str| rig.authenticate(token).await.is_ok();
    let second = rotate(json!({"overlap": 3_600})).await;
    assert_eq!(body_of(&second), body_of(&first));
    assert!(works(&first).await && works(&second).await);
    let restrictions = rig.get(&format!("/api_keys/{id}/restrictions")).await;
    let end = rig.clock.now().plus(HOUR).to_string();
    assert_eq!(restrictions.body()["previous_token_expires_at"], *end);
    rig.clock.advance(HOUR);
    assert_eq!(rig.authenticate(&first).await, Err(Some(203)));
    assert!(works(&second).await);
    let restrictions = rig.get(&format!("/api_keys/{id}/restrictions")).await;
    assert_eq!(
        restrictions.body()["previous_token_expires_at"],
        Value::Null
    );

    // A second rotation ends the token of the first one.
    let third = rotate(json!({"overlap": 60})).await;
    let fourth = rotate(json!({"overlap": 60})).await;
    assert!(!works(&second).await && works(&third).await && works(&fourth).await);
    // Without overlap, the token and what was begun with it ends.
    let here = IpAddr::from([127, 0, 0, 1]);
    let caller = rig.authenticate(&fourth).await.unwrap();
    let (cookie, _) = rig.control.identity.sign_in(caller, here).await.unwrap();
    let fifth = rotate(Value::Null).await;
    assert!(!works(&third).await && !works(&fourth).await && works(&fifth).await);
    assert!(
        rig.control
            .identity
            .console_session(cookie.reveal(), here)
            .await
            .is_err()
    );

    let (reported, _) = rig.events_after(0).await;
    let everything = format!("{reported:?}{:?}", rig.store.all("api_key").await.unwrap());
    for token in [first, second, third, fourth, fifth] {
        assert!(!everything.contains(secret_of(&token)));
    }
}

#[tokio::test]
async fn the_last_use_of_a_key_is_stored() {
    let rig = Rig::start().await;
    let (id, token) = key(&rig, &rig.admin, json!({})).await;
    let caller = rig.authenticate(&token).await.unwrap();
    let path = format!("/api_keys/{id}/restrictions");
    let last = async || {
        let shown = rig.get(&path).await.body();
        (
            shown["last_used_at"].clone(),
            shown["last_used_from"].clone(),
        )
    };
    assert_eq!(last().await, (Value::Null, json!("")));
    let noted = |address: &str| {
        let address = address.parse().unwrap();
        rig.control.identity.note_key_use(&caller, address);
        (
            json!(rig.clock.now().to_string()),
            json!(address.to_string()),
        )
    };
    let first = noted("192.0.2.1");
    assert_eq!(last().await, first);
    rig.control.identity.write_key_uses().await.unwrap();
    let revision = rig.store.revision().await.unwrap();
    // Nothing to write.
    rig.control.identity.write_key_uses().await.unwrap();
    assert_eq!(rig.store.revision().await.unwrap(), revision);
    rig.clock.advance(HOUR);
    let second = noted("2001:db8::1");
    assert_eq!(last().await, second);
    rig.control.identity.write_key_uses().await.unwrap();
    assert_eq!(rig.store.count("key_uses").await.unwrap(), 1);

    // The use of a deleted key is not written, and what was written goes.
    noted("192.0.2.3");
    rig.delete(&format!("/api_keys/{id}")).await;
    rig.control.identity.write_key_uses().await.unwrap();
    rig.control.identity.clean_key_uses().await.unwrap();
    assert_eq!(rig.store.count("key_uses").await.unwrap(), 0);
}

#[tokio::test]
async fn self_shows_the_rights_of_the_caller() {
    let rig = Rig::start().await;
    let may = |shown: &Value| -> Vec<String> {
        let operations = shown["operations"].as_array().unwrap().iter();
        operations
            .map(|id| id.as_str().unwrap().to_owned())
            .collect()
    };
    let shown = rig.get("/self").await.body();
    assert_eq!(shown["role"], "admin");
    assert_eq!(shown["owner_id"], *rig.admin.owner_id);
    assert_eq!(shown["scopes"].as_array().unwrap().len(), Scope::ALL.len());
    assert_eq!(shown["expires_at"], Value::Null);
    assert_eq!(may(&shown).len(), operations().len());

    let end = rig.clock.now().plus(HOUR).to_string();
    let body = json!({"role": "member", "scopes": ["users.write", "keys.read"], "expires_at": end});
    let (id, caller) = restricted(&rig, body).await;
    let shown = rig.call(&caller, "GET", "/self", Value::Null).await.body();
    assert_eq!(shown["api_key"]["id"], *id);
    assert_eq!(shown["role"], "member");
    assert_eq!(
        shown["scopes"],
        json!(["keys.read", "users.read", "users.write"])
    );
    assert_eq!(shown["expires_at"], *end);
    let may = may(&shown);
    for (id, is_in) in [
        ("self", true),
        ("api_keys_list", true),
        ("api_keys_get_restrictions", true),
        ("api_keys_create", false),
        ("bot_users_list", true),
        // The scope without the role.
        ("bot_users_create", false),
        ("endpoints_list", false),
    ] {
        assert_eq!(may.iter().any(|one| one == id), is_in, "{id}");
    }
}

/// An owner of many keys does not erase the uses of other keys before they are written.
#[tokio::test]
async fn many_keys_of_one_owner_erase_no_use_of_another() {
    let rig = Rig::start().await;
    let made = rig.post("/api_keys", json!({})).await.body();
    let token = made["token"].as_str().unwrap();
    let caller = rig.authenticate(token).await.unwrap();
    let identity = &rig.control.identity;
    let address: IpAddr = [192, 0, 2, 1].into();
    let called = Some(("api_keys", "get"));
    identity.note_call(&caller, address, called);
    let used_at = rig.clock.now().to_string();
    rig.clock.advance(HOUR);
    for n in 0..5_000 {
        let many = Caller {
            owner_id: "bot_1".to_owned(),
            key_id: format!("ak_{n}"),
            ..caller.clone()
        };
        identity.note_call(&many, address, called);
    }
    let path = format!("/api_keys/{}?include=usage", made["id"].as_str().unwrap());
    let shown = async || rig.get(&path).await.body()["last_used_at"].clone();
    assert_eq!(shown().await, used_at);
    identity.write_key_uses().await.unwrap();
    assert_eq!(shown().await, used_at);
    let calls = identity.take_key_calls();
    let its = calls.iter().filter(|one| one.key_id == caller.key_id);
    assert_eq!(its.count(), 1);
}
