//! Where the policies of endpoints may use secrets, and who decides it: when they are written, and afterwards.

use std::time::Duration;

use culvert_endpoints::secret_rights;
use culvert_policy::policy::compiled::SecretRight;
use tokio_util::sync::CancellationToken;

use super::*;

/// A place of a policy: the policy with `GET` for the expression, and whether a secret is confined there.
const PLACES: [(&str, bool); 6] = [
    (
        r#"{"on_http_request": [{"actions": [{"type": "add-headers", "config": {"headers": {"x": "${GET}"}}}]}]}"#,
        true,
    ),
    (
        r#"{"on_http_request": [{"actions": [{"type": "basic-auth", "config": {"credentials": ["u:${GET}"]}}]}]}"#,
        true,
    ),
    (
        r#"{"on_http_request": [{"actions": [{"type": "custom-response", "config": {"body": "${GET}"}}]}]}"#,
        false,
    ),
    (
        r#"{"on_http_request": [{"actions": [{"type": "rate-limit", "config": {"capacity": 1, "rate": "60s", "bucket_key": ["GET"]}}]}]}"#,
        false,
    ),
    (
        r#"{"on_http_request": [{"expressions": ["GET.startsWith('a')"], "actions": [{"type": "deny"}]}]}"#,
        false,
    ),
    (
        r#"{"on_http_response": [{"actions": [{"type": "add-headers", "config": {"headers": {"x": "${GET}"}}}]}]}"#,
        false,
    ),
];

fn policy(place: &str, vault: &str) -> Value {
    let get = format!("secrets.get('{vault}', 's')");
    serde_json::from_str(&place.replace("GET", &get)).unwrap()
}

/// A bot as a caller.
async fn bot(rig: &Rig, name: &str) -> Caller {
    let bot = rig.post("/bot_users", json!({"name": name})).await.body();
    let made = rig
        .post("/api_keys", json!({"owner_id": bot["id"]}))
        .await
        .body();
    rig.authenticate(made["token"].as_str().unwrap())
        .await
        .unwrap()
}

/// A vault with this name and the secret `s`; the ID of the vault.
async fn vault(rig: &Rig, owner: &Caller, name: &str) -> String {
    let made = rig
        .call(owner, "POST", "/vaults", json!({"name": name}))
        .await
        .body();
    let body = json!({"vault_id": made["id"], "name": "s", "value": "hush hush"});
    rig.call(owner, "POST", "/vault_secrets", body).await.body();
    made["id"].as_str().unwrap().to_owned()
}

async fn grant(rig: &Rig, vault: &str, grantee: &str) -> String {
    let body = json!({"object_id": vault, "grantee": grantee, "right": "use"});
    let made = rig.post("/grants", body).await.body();
    format!("/grants/{}", made["id"].as_str().unwrap())
}

struct Endpoints(u32);

impl Endpoints {
    async fn make(
        &mut self,
        rig: &Rig,
        caller: &Caller,
        policy: Value,
    ) -> Result<String, Option<u16>> {
        self.0 += 1;
        let body = json!({
            "url": format!("https://s{}.culvert.localhost", self.0), "upstream_url": "http://127.0.0.1:1",
            "traffic_policy": policy,
        });
        match rig.call(caller, "POST", "/endpoints", body).await {
            Answered::Created(made) => Ok(made["id"].as_str().unwrap().to_owned()),
            refused => {
                let code = refused.code();
                Err(code)
            }
        }
    }
}

#[tokio::test]
async fn secrets_stand_only_where_they_cannot_be_echoed() {
    let rig = Rig::start().await;
    let (owner, other) = (bot(&rig, "owner").await, bot(&rig, "other").await);
    for (name, of) in [
        ("own", &owner),
        ("granted", &rig.admin),
        ("foreign", &rig.admin),
        ("other", &other),
    ] {
        let id = vault(&rig, of, name).await;
        if name == "granted" {
            grant(&rig, &id, &owner.owner_id).await;
        }
    }
    let mut endpoints = Endpoints(0);
    for (place, is_confined) in PLACES {
        for (vault, code) in [
            ("own", None),
            ("granted", if is_confined { None } else { Some(2270) }),
            ("foreign", Some(650)),
            ("other", Some(650)),
        ] {
            let made = endpoints.make(&rig, &owner, policy(place, vault)).await;
            assert_eq!(made.err().flatten(), code, "{vault} {place}");
            // An admin may change every vault.
            let made = endpoints.make(&rig, &rig.admin, policy(place, vault)).await;
            assert!(made.is_ok(), "{vault} {place} {made:?}");
            // But the endpoint of the bot would echo it.
            let id = endpoints.make(&rig, &owner, json!("")).await.unwrap();
            let body = json!({"traffic_policy": policy(place, vault)});
            let changed = rig.patch(&format!("/endpoints/{id}"), body).await;
            let is_refused = matches!(changed, Answered::Refused(..));
            assert_eq!(
                if is_refused { changed.code() } else { None },
                code,
                "{vault} {place}"
            );
        }
    }
}

#[tokio::test]
async fn a_key_without_the_scope_for_secrets_names_none() {
    let rig = Rig::start().await;
    vault(&rig, &rig.admin, "own").await;
    let mut endpoints = Endpoints(100);
    for (scopes, code) in [
        (json!(["endpoints.write"]), Some(642)),
        (json!(["endpoints.write", "secrets.read"]), None),
        (json!(["endpoints.write", "secrets.write"]), None),
        (json!([]), None),
    ] {
        let made = rig.post("/api_keys", json!({})).await.body();
        let path = format!("/api_keys/{}/restrictions", made["id"].as_str().unwrap());
        rig.patch(&path, json!({"scopes": scopes})).await.body();
        let caller = rig
            .authenticate(made["token"].as_str().unwrap())
            .await
            .unwrap();
        for (place, _) in PLACES {
            let made = endpoints.make(&rig, &caller, policy(place, "own")).await;
            assert_eq!(made.err().flatten(), code, "{scopes} {place}");
        }
        // A policy without secrets needs no such scope.
        let plain = json!({"on_http_request": [{"actions": [{"type": "deny"}]}]});
        endpoints.make(&rig, &caller, plain).await.unwrap();
    }
}

/// A policy loses its secrets with the grant, with the role of its owner, and with the owner of the secret.
#[tokio::test]
async fn a_policy_that_may_no_longer_use_a_secret_is_refused() {
    let rig = Rig::start().await;
    let cancel = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    let owner = bot(&rig, "owner").await;
    let admin = rig.user("second@x.example", Role::Admin, true).await;
    let id = vault(&rig, &rig.admin, "granted").await;
    let granted = grant(&rig, &id, &owner.owner_id).await;
    let mut endpoints = Endpoints(200);
    let of_bot = endpoints
        .make(&rig, &owner, policy(PLACES[0].0, "granted"))
        .await
        .unwrap();
    let of_admin = endpoints
        .make(&rig, &admin, policy(PLACES[2].0, "granted"))
        .await
        .unwrap();
    let right = async |id: &str| -> Arc<SecretRight> {
        let mut snapshots = rig.edge.0.subscribe();
        let find = |snapshot: &Option<culvert_edge_config::Snapshot>| {
            let policy = snapshot.as_ref()?.policy_of(id)?;
            policy.secret_right().cloned()
        };
        let waiting = snapshots.wait_for(|snapshot| find(snapshot).is_some());
        let found = tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .unwrap();
        find(&found.unwrap()).unwrap()
    };
    let (bots, admins) = (right(&of_bot).await, right(&of_admin).await);
    eventually("both are allowed", async || {
        !bots.is_withdrawn() && !admins.is_withdrawn()
    })
    .await;
    let health = async |id: &str| rig.get(&format!("/endpoints/{id}/health")).await.body();
    assert_eq!(health(&of_bot).await["state"], "ok");
    rig.delete(&format!("{granted}?force=true")).await;
    eventually("the grant is gone", async || bots.is_withdrawn()).await;
    let shown = health(&of_bot).await;
    assert_eq!(
        (&shown["state"], &shown["problems"][0]["code"]),
        (&json!("refused"), &json!("ERR_NGROK_2270"))
    );
    grant(&rig, &id, &of_bot).await;
    eventually("the endpoint has a grant", async || !bots.is_withdrawn()).await;
    assert!(!admins.is_withdrawn());
    rig.patch(
        &format!("/users/{}", admin.owner_id),
        json!({"role": "member"}),
    )
    .await
    .body();
    eventually("the owner is no admin", async || admins.is_withdrawn()).await;
    grant(&rig, &id, &admin.owner_id).await;
    // It may use the secret now, but not echo it.
    eventually("judged again", async || {
        health(&of_admin).await["problems"][0]["message"]
            .to_string()
            .contains("echoed")
    })
    .await;
    assert!(admins.is_withdrawn());
    cancel.cancel();
    tokio::time::timeout(Duration::from_secs(30), tasks.join_next())
        .await
        .unwrap();
}

/// Policies that were stored before the rights existed may echo secrets for 30 days after the upgrade.
#[tokio::test]
async fn policies_of_an_earlier_version_echo_secrets_for_30_days() {
    const DAY: Duration = Duration::from_secs(86_400);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| StoreUrl::Sqlite(folder.path().join(name));
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000)));
    // The first start notes the end of that time; later ones read it.
    let upgraded = Store::open(&at("upgraded.db"), clock.clone(), texts())
        .await
        .unwrap();
    let account = Rig::start()
        .await
        .store
        .all(Account::KIND)
        .await
        .unwrap()
        .remove(0);
    let reason = "an installation of an earlier version";
    let change = Changes::insert(account, AuditEvent::Suppress { reason });
    upgraded.commit(change).await.unwrap();
    let end = clock.now().plus(30 * DAY);
    for is_strict in [false, true, false] {
        let noted = secret_rights::grace(&upgraded, &*clock, is_strict)
            .await
            .unwrap();
        assert_eq!(noted == end, !is_strict);
        assert!(noted == end || noted < clock.now());
        clock.advance(DAY);
    }

    let url = at("state.db");
    let store = Store::open(&url, clock, texts()).await.unwrap();
    let noted = (end.unix_millis() / 1_000).to_string();
    store.meta_set("secret_echo_until", &noted).await.unwrap();
    drop(store);
    let rig = Rig::on(Some(url.clone()), None, AGENTS).await;
    let cancel = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(rig.control.clone().run(cancel.clone()));
    let admin = rig.user("second@x.example", Role::Admin, true).await;
    let id = vault(&rig, &rig.admin, "granted").await;
    let granted = grant(&rig, &id, &admin.owner_id).await;
    let (echo, _) = PLACES[2];
    let made = Endpoints(500)
        .make(&rig, &admin, policy(echo, "granted"))
        .await;
    let path = format!("/users/{}", admin.owner_id);
    rig.patch(&path, json!({"role": "member"})).await.body();
    let made = made.unwrap();
    let right = async || {
        let snapshot = rig.edge.0.borrow();
        let policy = snapshot.as_ref()?.policy_of(&made)?;
        policy.secret_right().cloned()
    };
    let state = async |expected: &str, is_withdrawn: bool| {
        eventually(expected, async || {
            let health = rig.get(&format!("/endpoints/{made}/health")).await.body();
            let right = right().await;
            health["state"] == expected
                && right.is_some_and(|right| right.is_withdrawn() == is_withdrawn)
        })
        .await;
    };
    state("warning", false).await;
    rig.clock.advance(30 * DAY);
    // A commit wakes the compiler.
    rig.ip_policy().await;
    state("refused", true).await;
    // `culvert doctor` sees the same without the server.
    let seal = Seal::new(&Secret::new("a master key of the tests".into()));
    let listed = async || policy_misuses(&url, &seal, rig.clock.now()).await.unwrap();
    let found = listed().await;
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].endpoint_id, found[0].is_echo), (&made, true));
    assert!(found[0].message.contains("`s` of the vault `granted`"));
    rig.delete(&format!("{granted}?force=true")).await;
    let found = listed().await;
    assert_eq!((found.len(), found[0].is_echo), (1, false));
    rig.delete(&format!("/endpoints/{made}")).await;
    assert_eq!(listed().await, []);
    cancel.cancel();
    running.join_all().await;
}

/// The headers of a policy go to the upstream, so a new upstream is a new use of its secrets.
#[tokio::test]
async fn a_new_upstream_needs_the_rights_to_the_secrets_of_the_policy() {
    let rig = Rig::start().await;
    let other = bot(&rig, "other").await;
    vault(&rig, &rig.admin, "own").await;
    vault(&rig, &other, "foreign").await;
    let mut endpoints = Endpoints(300);
    let scoped = json!({"scopes": ["endpoints.write"]});
    let reader = json!({"scopes": ["endpoints.write", "secrets.read"]});
    let lowered = json!({"role": "member"});
    for (restrictions, vault, code) in [
        (&scoped, "own", Some(642)),
        (&scoped, "foreign", Some(642)),
        (&reader, "own", None),
        (&reader, "foreign", None),
        (&lowered, "own", None),
        (&lowered, "foreign", Some(650)),
    ] {
        let made = rig.post("/api_keys", json!({})).await.body();
        let path = format!("/api_keys/{}/restrictions", made["id"].as_str().unwrap());
        rig.patch(&path, restrictions.clone()).await.body();
        let token = made["token"].as_str().unwrap();
        let caller = rig.authenticate(token).await.unwrap();
        let policy = policy(PLACES[0].0, vault);
        let made = endpoints.make(&rig, &rig.admin, policy.clone()).await;
        let path = format!("/endpoints/{}", made.unwrap());
        let there = json!({"upstream_url": "http://127.0.0.1:2"});
        let rewritten = json!({"traffic_policy": {"on_http_request": [{"actions": [
            {"type": "http-request", "config": {
                "url": "https://elsewhere.internal/", "headers": {"x": format!("${{secrets.get('{vault}', 's')}}")},
            }},
        ]}]}});
        for body in [there, rewritten] {
            let answered = rig.call(&caller, "PATCH", &path, body.clone()).await;
            let is_refused = matches!(answered, Answered::Refused(..));
            let found = if is_refused { answered.code() } else { None };
            assert_eq!(found, code, "{restrictions} {vault} {body}");
        }
        // What sends no secret elsewhere stays possible.
        let path = format!(
            "/endpoints/{}",
            endpoints.make(&rig, &rig.admin, policy).await.unwrap()
        );
        for body in [
            json!({"description": "changed"}),
            json!({"upstream_url": "http://127.0.0.1:1"}),
        ] {
            rig.call(&caller, "PATCH", &path, body).await.body();
        }
    }
}

/// The requests to an internal endpoint may have the secrets of the policies that forward them, and a key without the
/// scope to read secrets does not decide who gets them.
#[tokio::test]
async fn a_key_without_the_scope_for_secrets_serves_no_internal_endpoint() {
    let rig = Rig::start().await;
    let key = async |scopes: Value| {
        let made = rig.post("/api_keys", json!({})).await.body();
        let path = format!("/api_keys/{}/restrictions", made["id"].as_str().unwrap());
        rig.patch(&path, json!({"scopes": scopes})).await.body();
        let token = made["token"].as_str().unwrap();
        rig.authenticate(token).await.unwrap()
    };
    let scoped = key(json!(["endpoints.write"])).await;
    let reader = key(json!(["endpoints.write", "secrets.read"])).await;
    let refusal = |answered: &Answered| match answered {
        Answered::Refused(..) => answered.code(),
        _ => None,
    };
    let at = |url: &str| json!({"url": url, "upstream_url": "http://127.0.0.1:1", "pooling_enabled": true});
    let path = |made: Value| format!("/endpoints/{}", made["id"].as_str().unwrap());
    let (inside, outside) = ("http://to.internal", "http://to.culvert.localhost");
    let mut first = at(inside);
    let plain = json!({"on_http_request": [{"actions": [{"type": "deny"}]}]}).to_string();
    first["traffic_policy"] = json!(plain);
    let to = path(rig.post("/endpoints", first).await.body());
    let echo = json!({"on_http_request": [{"actions": [
        {"type": "custom-response", "config": {"body": "${req.headers['x'][0]}"}},
    ]}]});
    for (caller, code) in [(&scoped, Some(642)), (&reader, None)] {
        let other = path(
            rig.call(caller, "POST", "/endpoints", at(outside))
                .await
                .body(),
        );
        for (method, path, body) in [
            ("POST", "/endpoints", at(inside)),
            ("PATCH", &*to, json!({"upstream_url": "http://127.0.0.1:2"})),
            ("PATCH", &*to, json!({"traffic_policy": echo})),
            ("PATCH", &*to, json!({"traffic_policy": ""})),
            ("PATCH", &*other, json!({"url": inside})),
        ] {
            let answered = rig.call(caller, method, path, body.clone()).await;
            assert_eq!(refusal(&answered), code, "{method} {body}");
        }
        // The same again, and what does not decide who gets the requests.
        let same = json!({"description": "d", "traffic_policy": plain, "pooling_enabled": true});
        rig.call(caller, "PATCH", &to, same).await.body();
    }
}

/// No owner grants a secret that it may not use: an admin's secret in the vault of another.
#[tokio::test]
async fn the_owner_of_a_vault_does_not_grant_the_secrets_of_others_in_it() {
    let rig = Rig::start().await;
    let (owner, other) = (bot(&rig, "owner").await, bot(&rig, "other").await);
    let id = vault(&rig, &owner, "v").await;
    let body = json!({"vault_id": id, "name": "admins", "value": "hush hush"});
    let secret = rig.post("/vault_secrets", body).await.body();
    let body = json!({"object_id": id, "grantee": "role:member"});
    rig.call(&owner, "POST", "/grants", body).await.body();
    let admins = PLACES[0].0.replace("GET", "secrets.get('v', 'admins')");
    let admins: Value = serde_json::from_str(&admins).unwrap();
    let mut endpoints = Endpoints(400);
    for caller in [&owner, &other] {
        let made = endpoints.make(&rig, caller, admins.clone()).await;
        assert_eq!(made.err().flatten(), Some(650), "{}", caller.owner_id);
        let own = policy(PLACES[0].0, "v");
        endpoints.make(&rig, caller, own).await.unwrap();
    }
    // A grant of the secret itself is the admin's; without it, the endpoint does not work either.
    let granted = grant(&rig, secret["id"].as_str().unwrap(), &other.owner_id).await;
    let made = endpoints.make(&rig, &other, admins).await.unwrap();
    let health = async || rig.get(&format!("/endpoints/{made}/health")).await.body();
    assert_eq!(health().await["state"], "ok");
    rig.delete(&format!("{granted}?force=true")).await;
    assert_eq!(health().await["state"], "refused");
}
