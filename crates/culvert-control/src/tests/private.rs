//! Privacy of objects that belong to one owner: no operation reveals them to another owner.

use culvert_base::Refusal;
use culvert_event_config::event_kinds::event_types;
use culvert_event_config::subscription;
use culvert_target::batch::OpenBatch;
use culvert_tunnel::server::{AgentAuthorizer, Proof};

use super::agents::{Open, hello};
use super::names::{Kind, LIMITS, Owner};
use super::rights::Cast;
use super::*;

const KEYS: [&str; 5] = [
    "api_key_created.v0",
    "tunnel_credential_deleted.v0",
    "ssh_public_key_updated.v0",
    "agent_session_start.v0",
    "agent_session_stop.v0",
];

fn spec(kinds: &[&str]) -> TailSpec {
    TailSpec {
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        ..TailSpec::default()
    }
}

#[test]
fn events_of_private_resources_are_recognised_by_kind() {
    let private: Vec<String> = event_types()
        .into_iter()
        .filter(|name| event_kinds::is_private(name))
        .collect();
    // All others report writes of what everyone in the account sees.
    let public = ["user", "vault", "ip_policy", "domain", "agent_ingress"];
    for name in public {
        let kind = format!("{name}_created.v0");
        assert!(!private.contains(&kind), "{kind}");
    }
    for name in ["endpoint", "application_user", "grant", "event_destination"] {
        let kind = format!("{name}_created.v0");
        assert!(private.contains(&kind), "{kind}");
    }
    for kind in KEYS {
        assert!(private.iter().any(|name| name == kind), "{kind}");
    }
}

#[tokio::test]
async fn only_admins_follow_events_about_keys() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let code = |refusal: Refusal| refusal.code.map(Code::number);
    for kind in KEYS {
        rig.control.events.tail(&rig.admin, spec(&[kind])).unwrap();
        for caller in &cast.callers[1..4] {
            let refused = rig
                .control
                .events
                .tail(caller, spec(&["vault_created.v0", kind]));
            assert_eq!(code(refused.unwrap_err()), Some(630), "{kind}");
        }
    }
    for caller in &cast.callers[..4] {
        rig.control.events.tail(caller, spec(&[])).unwrap();
        let traffic = spec(&["http_request_complete.v0", "vault_created.v0"]);
        rig.control.events.tail(caller, traffic).unwrap();
    }
}

#[tokio::test]
async fn only_admins_subscribe_to_events_about_keys() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let bot = &cast.callers[1];
    let call = async |caller: &Caller, method: &str, path: &str, body: Value| {
        rig.call(caller, method, path, body).await
    };
    let own = json!({"sources": [{"type": "http_request_complete.v0"}]});
    let own = call(bot, "POST", "/event_subscriptions", own).await.body();
    let own = format!("/event_subscriptions/{}", own["id"].as_str().unwrap());
    for kind in KEYS.into_iter().chain(["audit"]) {
        let sources = json!({"sources": [{"type": "http_request_complete.v0"}, {"type": kind}]});
        for (method, path, body) in [
            ("POST", "/event_subscriptions", sources.clone()),
            ("PATCH", own.as_str(), sources.clone()),
            ("POST", &format!("{own}/sources"), json!({"type": kind})),
        ] {
            let answered = call(bot, method, path, body).await;
            assert_eq!(answered.code(), Some(630), "{method} {path} {kind}");
        }
        // The bot cannot change an admin's subscription or redirect its destination.
        let hook =
            json!({"format": "json", "target": {"webhook": {"url": "https://hooks.example/in"}}});
        let hook = rig.post("/event_destinations", hook).await.body();
        let mut theirs = sources;
        theirs["destination_ids"] = json!([hook["id"]]);
        let theirs = rig.post("/event_subscriptions", theirs).await.body();
        let theirs = format!("/event_subscriptions/{}", theirs["id"].as_str().unwrap());
        let hook = format!("/event_destinations/{}", hook["id"].as_str().unwrap());
        let elsewhere = json!({"target": {"webhook": {"url": "https://evil.example/in"}}});
        for (method, path, body) in [
            ("PATCH", theirs.clone(), json!({"destination_ids": []})),
            ("PATCH", format!("{theirs}/sources/{kind}"), json!({})),
            (
                "DELETE",
                format!("{theirs}/sources/http_request_complete.v0"),
                Value::Null,
            ),
            ("DELETE", theirs.clone(), Value::Null),
            ("PATCH", hook.clone(), elsewhere.clone()),
        ] {
            let answered = call(bot, method, &path, body.clone()).await;
            // It does not see the subscription.
            let is_seen = path == hook;
            match answered {
                Answered::Refused(culvert_base::Class::NotFound, ..) => assert!(!is_seen, "{path}"),
                other => assert_eq!(
                    (is_seen, other.code()),
                    (true, Some(630)),
                    "{method} {path}"
                ),
            }
        }
        let described = call(bot, "PATCH", &hook, json!({"description": "d"})).await;
        assert_eq!(described.code(), Some(630));
        call(&rig.admin, "PATCH", &hook, elsewhere).await.body();
        let gone = call(&rig.admin, "DELETE", &theirs, Value::Null).await;
        assert_eq!(gone, Answered::NoContent);
    }
}

/// A subscription delivers by the current rights of its owner, not by those at its creation.
#[tokio::test]
async fn a_subscription_follows_the_rights_of_its_owner() {
    let rig = Rig::start().await;
    let mut running = tokio::task::JoinSet::new();
    let cancel = tokio_util::sync::CancellationToken::new();
    running.spawn(Arc::clone(&rig.control).run(cancel.clone()));
    running.spawn(Arc::clone(&rig.control.events.delivery).run(cancel.clone()));
    let former = rig.user("former@x.example", Role::Admin, true).await;
    // No server listens there.
    let hook =
        json!({"format": "json", "target": {"webhook": {"url": "https://hooks.invalid/in"}}});
    let mut destinations = Vec::new();
    for caller in [&rig.admin, &former] {
        let made = rig.call(caller, "POST", "/event_destinations", hook.clone());
        let id = made.await.body()["id"].as_str().unwrap().to_owned();
        let kinds = ["api_key_created.v0", "vault_created.v0"].map(|kind| json!({"type": kind}));
        let body = json!({"sources": kinds, "destination_ids": [id]});
        let made = rig.call(caller, "POST", "/event_subscriptions", body).await;
        made.body();
        destinations.push(id);
    }
    // An event that a destination got is dropped when its owner loses the right before the first attempt.
    let copied = async |id: &String| {
        let health = rig.get(&format!("/event_destinations/{id}/health")).await;
        let health = health.body();
        health["queued"].as_u64().unwrap() + health["dropped"].as_u64().unwrap()
    };
    let until = async |of_admin: u64, of_former: u64| {
        eventually(
            &format!("the destinations get {of_admin} and {of_former} events"),
            async || {
                let counts = (
                    copied(&destinations[0]).await,
                    copied(&destinations[1]).await,
                );
                counts == (of_admin, of_former)
            },
        )
        .await;
    };
    let key = || rig.post("/api_keys", Value::Null);
    key().await.body();
    until(1, 1).await;
    let set = async |role: Role, active: bool| {
        let document = rig.store.get(User::KIND, &former.owner_id).await;
        let document = document.unwrap().unwrap();
        let mut user: User = stored::read(&document).unwrap();
        (user.role, user.active) = (role, active);
        let body = stored::write(&user).unwrap();
        let changed = Document { body, ..document };
        let changes = Changes::replace(changed, AuditEvent::Suppress { reason: "a test" });
        // Every later commit is subject to the new rights immediately.
        rig.store.commit(changes).await.unwrap();
    };
    let mut counts = (1, 1);
    for (role, active, gets) in [
        (Role::Member, true, false),
        (Role::ReadOnly, true, false),
        (Role::Admin, false, false),
        (Role::Admin, true, true),
    ] {
        set(role, active).await;
        key().await.body();
        counts = (counts.0 + 1, counts.1 + u64::from(gets));
        until(counts.0, counts.1).await;
        // Events that every owner may receive are still delivered.
        let name = json!({"name": format!("v{}", counts.0)});
        rig.post("/vaults", name).await.body();
        counts = (counts.0 + 1, counts.1 + 1);
        until(counts.0, counts.1).await;
    }
    cancel.cancel();
}

/// Subscriptions of a version that did not store owners: a start takes them from the audit log.
#[tokio::test]
async fn older_subscriptions_get_the_owner_that_the_audit_log_names() {
    const KIND: &str = "event_subscription";
    let rig = Rig::start().await;
    let second = rig.user("second@x.example", Role::Admin, true).await;
    let about_keys = json!({"sources": [{"type": "api_key_created.v0"}]});
    let about_vaults = json!({"sources": [{"type": "vault_created.v0"}]});
    let make = async |caller: &Caller, body: &Value| {
        let path = "/event_subscriptions";
        let made = rig.call(caller, "POST", path, body.clone()).await.body();
        made["id"].as_str().unwrap().to_owned()
    };
    let untouched = make(&second, &about_keys).await;
    let updated = make(&rig.admin, &about_keys).await;
    let public = make(&rig.admin, &about_vaults).await;
    let owned = make(&rig.admin, &about_keys).await;
    // More rows of the log than one read returns.
    let noise = |n: u32| {
        let id = format!("ev_noise{n}");
        Changes::event(culvert_events::encode::test(&id, rig.clock.now(), "ac_1"))
    };
    let noise = (0..1100).fold(Changes::default(), |all, n| all.and(noise(n)));
    rig.store.commit(noise).await.unwrap();
    let path = format!("/event_subscriptions/{updated}");
    let body = json!({"description": "changed"});
    rig.call(&second, "PATCH", &path, body).await.body();

    let write = async |document: Document| {
        let changes = Changes::replace(document, AuditEvent::Suppress { reason: "a test" });
        rig.store.commit(changes).await.unwrap();
    };
    let mut older = Value::Null;
    for mut document in rig.store.all(KIND).await.unwrap() {
        let mut form: Value = serde_json::from_str(&document.body).unwrap();
        if document.head.id == owned {
            form["owner_id"] = json!("usr_noted");
        } else {
            form.as_object_mut().unwrap().remove("owner_id").unwrap();
        }
        document.body = form.to_string();
        if document.head.id == untouched {
            older = form;
        }
        write(document).await;
    }
    let prefix = subscription::TYPE.id_prefix;
    let account = &rig.admin.account;
    let unlogged = rig.insert(KIND, prefix, account, &older, Vec::new()).await;

    let owner_of = async |id: &str| {
        let document = rig.store.get(KIND, id).await.unwrap().unwrap();
        let form: Value = serde_json::from_str(&document.body).unwrap();
        form["owner_id"].as_str().unwrap_or_default().to_owned()
    };
    let seal = Seal::new(&Secret::new("a master key of the tests".into()));
    // Once completed, another start changes nothing.
    relink::relink(&rig.store, &seal).await.unwrap();
    assert_eq!(owner_of(&untouched).await, "");
    rig.store.meta_set("subscription_owners", "").await.unwrap();
    relink::relink(&rig.store, &seal).await.unwrap();
    assert_eq!(owner_of(&untouched).await, second.owner_id);
    assert_eq!(owner_of(&updated).await, second.owner_id);
    assert_eq!(owner_of(&owned).await, "usr_noted");
    // The first needs no owner; an admin must update the other.
    assert_eq!(owner_of(&public).await, "");
    assert_eq!(owner_of(&unlogged).await, "");

    let path = format!("/event_subscriptions/{unlogged}");
    let body = json!({"description": "adopted"});
    rig.call(&second, "PATCH", &path, body).await.body();
    assert_eq!(owner_of(&unlogged).await, second.owner_id);
}

/// A rejected batch shows its events, but shows events about keys only to admins.
#[tokio::test]
async fn dead_letters_show_events_about_keys_only_to_admins() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let sample = rig.sample("event_destinations", 1).await;
    let made = rig.call(&cast.callers[1], "POST", "/event_destinations", sample);
    let made = made.await.body();
    let destination = made["id"].as_str().unwrap();
    let kinds = ["vault_created.v0", "http_request_complete.v0"];
    for kind in KEYS.iter().chain(&kinds) {
        let mut batch = OpenBatch::default();
        for kind in [*kind, "vault_deleted.v0"] {
            let envelope = json!({"event_id": "ev_1", "event_type": kind}).to_string();
            batch.push(&"esb_1".into(), envelope.as_bytes());
        }
        let batch = culvert_store::NewBatch {
            destination: destination.to_owned(),
            class: culvert_store::BatchClass::Audit,
            count: batch.len(),
            body: batch.finish(),
        };
        rig.queue.append(vec![batch], None).await.unwrap();
        let now = rig.clock.now();
        let minute = std::time::Duration::from_secs(60);
        let lease = rig.queue.lease(destination, "a test", minute, now);
        let lease = lease.await.unwrap().unwrap();
        let why = culvert_store::DeadLetterReason {
            class: "permanent".to_owned(),
            code: "400".to_owned(),
            text: "no".to_owned(),
        };
        rig.queue.dead_letter(&lease, why).await.unwrap();
    }
    let path = format!("/event_destinations/{destination}/dead_letters");
    for caller in &cast.callers[2..4] {
        let refused = rig.call(caller, "GET", &path, Value::Null).await;
        assert_eq!(refused.code(), Some(630), "{}", caller.subject);
    }
    for caller in &cast.callers[..2] {
        let shown = rig.call(caller, "GET", &path, Value::Null).await.body();
        let letters = shown["dead_letters"].as_array().unwrap();
        assert_eq!(letters.len(), KEYS.len() + kinds.len());
        let text = shown.to_string();
        let is_admin = caller.role == Role::Admin;
        for kind in KEYS {
            assert_eq!(text.contains(kind), is_admin, "{}: {kind}", caller.subject);
        }
        for kind in kinds {
            assert!(text.contains(kind), "{}: {kind}", caller.subject);
        }
        assert_eq!(text.matches("vault_deleted.v0").count(), letters.len());
    }
}

/// Events about keys may still be queued for a destination that receives no more of them. Only admins may
/// change its target.
#[tokio::test]
async fn only_admins_change_a_destination_that_got_events_about_keys() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let target = |host: &str| json!({"webhook": {"url": format!("https://{host}.example/in")}});
    for way in [
        "create",
        "update",
        "add source",
        "new destination",
        "replay",
    ] {
        let hook = json!({"format": "json", "target": target("hooks")});
        let hook = rig.call(&cast.callers[1], "POST", "/event_destinations", hook);
        let hook = hook.await.body()["id"].clone();
        let path = format!("/event_destinations/{}", hook.as_str().unwrap());
        let private = json!([{"type": "api_key_created.v0"}]);
        let public = json!([{"type": "vault_created.v0"}]);
        let subscribe = async |sources: &Value, to: &Value| {
            let body = json!({"sources": sources, "destination_ids": to});
            let made = rig.post("/event_subscriptions", body).await.body();
            format!("/event_subscriptions/{}", made["id"].as_str().unwrap())
        };
        let redirect = async |caller: &Caller, host: &str| {
            let body = json!({"target": target(host)});
            rig.call(caller, "PATCH", &path, body).await
        };
        redirect(&cast.callers[1], "before").await.body();
        let subscription = match way {
            "create" => Some(subscribe(&private, &json!([hook])).await),
            "update" => {
                let made = subscribe(&public, &json!([hook])).await;
                let changed = rig.patch(&made, json!({"sources": private}));
                changed.await.body();
                Some(made)
            }
            "add source" => {
                let made = subscribe(&public, &json!([hook])).await;
                let sources = format!("{made}/sources");
                rig.post(&sources, private[0].clone()).await.body();
                Some(made)
            }
            "new destination" => {
                let made = subscribe(&private, &json!([])).await;
                let changed = rig.patch(&made, json!({"destination_ids": [hook]}));
                changed.await.body();
                Some(made)
            }
            _ => {
                let body =
                    json!({"from": "2020-01-01T00:00:00Z", "event_types": ["api_key_created.v0"]});
                rig.post(&format!("{path}/replay"), body).await.body();
                None
            }
        };
        for bot in &cast.callers[1..3] {
            assert_eq!(redirect(bot, "evil").await.code(), Some(630), "{way}");
        }
        if let Some(subscription) = subscription {
            assert_eq!(rig.delete(&subscription).await, Answered::NoContent);
        }
        for bot in &cast.callers[1..3] {
            assert_eq!(redirect(bot, "evil").await.code(), Some(630), "{way}");
        }
        // Its owner still describes it.
        let body = json!({"description": way});
        rig.call(&cast.callers[1], "PATCH", &path, body)
            .await
            .body();
        redirect(&rig.admin, "after").await.body();
    }
}

/// As above, for a destination that received them from a subscription of an older version.
#[tokio::test]
async fn only_admins_change_a_destination_of_an_older_subscription() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let target = |host: &str| json!({"webhook": {"url": format!("https://{host}.example/in")}});
    let hook = json!({"format": "json", "target": target("hooks")});
    let hook = rig.call(&cast.callers[1], "POST", "/event_destinations", hook);
    let hook = hook.await.body()["id"].as_str().unwrap().to_owned();
    let body = json!({"sources": [{"type": "api_key_created.v0"}], "destination_ids": [hook]});
    let made = rig.post("/event_subscriptions", body).await.body();
    let document = rig.store.get("event_destination", &hook).await;
    let document = document.unwrap().unwrap();
    let mut form: Value = serde_json::from_str(&document.body).unwrap();
    form.as_object_mut().unwrap().remove("has_private").unwrap();
    let body = form.to_string();
    let older = Changes::replace(
        Document { body, ..document },
        AuditEvent::Suppress { reason: "a test" },
    );
    rig.store.commit(older).await.unwrap();
    let seal = Seal::new(&Secret::new("a master key of the tests".into()));
    for meta in ["subscription_owners", "private_destinations"] {
        rig.store.meta_set(meta, "").await.unwrap();
    }
    relink::relink(&rig.store, &seal).await.unwrap();
    let made = format!("/event_subscriptions/{}", made["id"].as_str().unwrap());
    assert_eq!(rig.delete(&made).await, Answered::NoContent);
    let path = format!("/event_destinations/{hook}");
    let elsewhere = json!({"target": target("evil")});
    for caller in &cast.callers[1..3] {
        let answered = rig.call(caller, "PATCH", &path, elsewhere.clone()).await;
        assert_eq!(answered.code(), Some(630));
    }
}

/// Lists, filters, single objects and refusals reveal neither the IDs of other owners' keys nor the secrets
/// in their policies.
#[tokio::test]
async fn keys_and_secrets_of_others_are_never_revealed() {
    let open = Open::with(LIMITS).await;
    let rig = &open.rig;
    let owner = Owner::bot(&open, "owner").await;
    let other = Owner::bot(&open, "other").await;
    let reader = rig.user("reader@x.example", Role::ReadOnly, true).await;
    let policy = json!({"on_http_request": [{"actions": [{"type": "add-headers", "config": {
        "headers": {"authorization": "Bearer hush"}
    }}]}]});
    let body = json!({
        "url": "https://e.culvert.localhost",
        "upstream_url": "http://127.0.0.1:1",
        "traffic_policy": policy.to_string(),
    });
    let made = rig.call(&owner.caller, "POST", "/endpoints", body).await;
    let endpoint = made.body()["id"].as_str().unwrap().to_owned();
    owner
        .take(&open, Kind::Agent, "https://a.culvert.localhost")
        .await
        .unwrap();
    let session = owner.grant.session_id.clone();
    let shown = rig.get(&format!("/tunnel_sessions/{session}")).await.body();
    let credential = shown["credential"]["id"].as_str().unwrap().to_owned();
    let key = owner.caller.key_id.clone();
    let filter = |text: &str| {
        url::form_urlencoded::Serializer::new(String::new())
            .append_pair("filter", text)
            .finish()
    };
    let paths = [
        "/tunnel_sessions".to_owned(),
        format!("/tunnel_sessions/{session}"),
        "/tunnels".to_owned(),
        "/endpoints".to_owned(),
        format!("/endpoints/{endpoint}"),
        "/api_keys".to_owned(),
        format!("/api_keys/{key}"),
        "/credentials".to_owned(),
        format!("/credentials/{credential}"),
        "/ssh_credentials".to_owned(),
    ];
    for (caller, is_reported) in [
        (&rig.admin, true),
        (&owner.caller, true),
        (&other.caller, false),
        (&reader, false),
    ] {
        let mut reported = String::new();
        for path in &paths {
            let answered = rig.call(caller, "GET", path, Value::Null).await;
            // A refusal does not repeat the path.
            reported += &format!("{answered:?}\n");
        }
        for secret in [&credential, &key, "hush"] {
            assert_eq!(
                reported.contains(secret),
                is_reported,
                "{}: {secret}\n{reported}",
                caller.subject
            );
        }
        for expression in [
            format!("obj.credential == '{credential}'"),
            format!("obj.credential.id == '{credential}'"),
        ] {
            let path = format!("/tunnel_sessions?{}", filter(&expression));
            let listed = rig.call(caller, "GET", &path, Value::Null).await.body();
            let n = listed["tunnel_sessions"].as_array().unwrap().len();
            assert_eq!(
                n,
                usize::from(is_reported),
                "{}: {expression}",
                caller.subject
            );
        }
    }
}

/// Only admins may change the rules of an IP restriction and its policy.
#[tokio::test]
async fn only_admins_change_ip_policies_of_restrictions() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let bot = &cast.callers[1];
    let policy = rig
        .call(bot, "POST", "/ip_policies", Value::Null)
        .await
        .body();
    let policy = policy["id"].as_str().unwrap().to_owned();
    let rule = |cidr: &str| json!({"cidr": cidr, "action": "deny", "ip_policy_id": policy});
    let made = rig
        .call(bot, "POST", "/ip_policy_rules", rule("192.0.2.1/32"))
        .await;
    let of_policy = format!("/ip_policy_rules/{}", made.body()["id"].as_str().unwrap());
    for place in ["api", "agent", "endpoints", "dashboard"] {
        for enforced in [true, false] {
            let body = json!({"type": place, "ip_policy_ids": [policy], "enforced": enforced});
            let answered = rig.call(bot, "POST", "/ip_restrictions", body).await;
            assert_eq!(answered.code(), Some(630), "{place}");
        }
    }
    let body = json!({"type": "api", "ip_policy_ids": [policy], "enforced": false});
    let made = rig.post("/ip_restrictions", body).await.body();
    let restriction = format!("/ip_restrictions/{}", made["id"].as_str().unwrap());
    let the_policy = format!("/ip_policies/{policy}");
    for (method, path, body) in [
        ("PATCH", &restriction, json!({"enforced": true})),
        ("DELETE", &restriction, Value::Null),
        ("POST", &"/ip_policy_rules".to_owned(), rule("0.0.0.0/0")),
        ("PATCH", &of_policy, json!({"cidr": "0.0.0.0/0"})),
        ("DELETE", &of_policy, Value::Null),
        ("PATCH", &the_policy, json!({"description": "d"})),
    ] {
        let answered = rig.call(bot, method, path, body).await;
        assert_eq!(answered.code(), Some(630), "{method} {path}");
    }
    rig.patch(&of_policy, json!({"cidr": "192.0.2.2/32"}))
        .await
        .body();
    assert_eq!(rig.delete(&restriction).await, Answered::NoContent);
    let changed = rig.call(bot, "PATCH", &of_policy, json!({"cidr": "192.0.2.3/32"}));
    changed.await.body();
}

/// A reservation that another owner's agent uses stays until an admin deletes it. Its name then stays
/// reserved for that owner for a while.
#[tokio::test]
async fn a_reservation_in_use_by_an_agent_is_not_given_to_another_owner() {
    let open = Open::with(LIMITS).await;
    let rig = &open.rig;
    let owner = Owner::bot(&open, "owner").await;
    let other = Owner::bot(&open, "other").await;
    let admin = Owner::of(&open, rig.admin.clone()).await;
    for (domain, served) in [
        ("d1.example", "d1.example"),
        ("*.d2.example", "x.d2.example"),
        ("*.d3.example", "*.d3.example"),
    ] {
        let made = rig
            .post("/reserved_domains", json!({"domain": domain}))
            .await;
        let path = format!("/reserved_domains/{}", made.body()["id"].as_str().unwrap());
        let url = format!("https://{served}");
        owner.take(&open, Kind::Agent, &url).await.unwrap();
        let refused = rig.call(&other.caller, "DELETE", &path, Value::Null).await;
        assert_eq!(refused.code(), Some(630), "{domain}");
        assert_eq!(rig.delete(&path).await, Answered::NoContent);
        // The reconcile loop takes the endpoint offline.
        eventually("the endpoint is offline", async || {
            let endpoints = open.collection("endpoints").await;
            !endpoints.iter().any(|one| one["url"] == *url)
        })
        .await;
        let again = rig
            .post("/reserved_domains", json!({"domain": domain}))
            .await;
        again.body();
        for third in [&other, &admin] {
            let taken = third.take(&open, Kind::Agent, &url).await;
            assert_eq!(taken, Err(320), "{domain}");
        }
        owner.take(&open, Kind::Agent, &url).await.unwrap();
    }
    let made = rig.post("/reserved_addrs", Value::Null).await.body();
    let path = format!("/reserved_addrs/{}", made["id"].as_str().unwrap());
    let url = format!("tcp://{}", made["addr"].as_str().unwrap());
    owner.take(&open, Kind::Agent, &url).await.unwrap();
    let refused = rig.call(&other.caller, "DELETE", &path, Value::Null).await;
    assert_eq!(refused.code(), Some(630));
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    // The other two ports of the pool are free; this one is not assigned.
    for _ in 0..2 {
        let taken = other.take(&open, Kind::Agent, "tcp://").await.unwrap();
        let shown = rig.get(&format!("/endpoints/{taken}")).await.body();
        assert_ne!(shown["url"], *url);
    }
    assert!(other.take(&open, Kind::Agent, "tcp://").await.is_err());
}

/// A certificate of an authority that was registered later signs in only as the owner that it was issued by.
#[tokio::test]
async fn an_ssh_certificate_authenticates_only_its_issuing_owner() {
    let open = Open::with(LIMITS).await;
    let rig = &open.rig;
    let owner = Owner::bot(&open, "owner").await;
    let other = Owner::bot(&open, "other").await;
    let authority = rig
        .post("/ssh_certificate_authorities", Value::Null)
        .await
        .body();
    let issued = async |caller: &Caller| {
        let body = json!({
            "ssh_certificate_authority_id": authority["id"],
            "public_key": ssh::new_key(),
            // The server's value overrides this one.
            "extensions": {"permit-port-forwarding": "", "issuer@culvert": "admin"},
        });
        let made = rig
            .call(caller, "POST", "/ssh_user_certificates", body)
            .await;
        let made = made.body();
        let line = made["certificate"].as_str().unwrap();
        let read = ssh_key::Certificate::from_openssh(line).unwrap();
        let issuer = read.extensions().get("issuer@culvert").cloned();
        let authority = read.signature_key().fingerprint(ssh_key::HashAlg::Sha256);
        Proof::Certificate {
            authority: authority.to_string(),
            valid_until: Some(read.valid_before()),
            issuer,
        }
    };
    let before = [
        issued(&owner.caller).await,
        issued(&other.caller).await,
        issued(&rig.admin).await,
    ];
    let key = authority["public_key"].as_str().unwrap();
    let body = json!({"public_key": format!("cert-authority {key}")});
    let made = rig
        .call(&owner.caller, "POST", "/ssh_credentials", body)
        .await;
    made.body();
    let admit = async |proof: &Proof| {
        let hello = culvert_tunnel::server::AgentAuthRequest {
            proof: proof.clone(),
            ..hello("")
        };
        AgentAuthorizer::authorize(&*rig.control.agents, hello)
            .await
            .map(drop)
            .map_err(agents::code)
    };
    assert_eq!(admit(&before[0]).await, Ok(()));
    assert_eq!(admit(&before[1]).await, Err(1102));
    assert_eq!(admit(&before[2]).await, Ok(()));
    // A certificate from before issuers were recorded and, after the authority is removed, one with an
    // issuer.
    let Proof::Certificate {
        authority: by,
        valid_until,
        ..
    } = before[0].clone()
    else {
        panic!("{before:?}");
    };
    let silent = Proof::Certificate {
        authority: by,
        valid_until,
        issuer: None,
    };
    assert_eq!(admit(&silent).await, Err(1102));
    // No owner may remove the authority, whose certificates would then need no issuer.
    let listed = rig.get("/ssh_user_certificates").await.body();
    for issued in listed["ssh_user_certificates"].as_array().unwrap() {
        let path = format!("/ssh_user_certificates/{}", issued["id"].as_str().unwrap());
        assert_eq!(rig.delete(&path).await, Answered::NoContent);
    }
    let path = "/ssh_certificate_authorities";
    let path = format!("{path}/{}", authority["id"].as_str().unwrap());
    let in_use = code::CERTIFICATE_AUTHORITY_IN_USE.number();
    for (caller, code) in [(&other.caller, 630), (&rig.admin, in_use)] {
        let refused = rig.call(caller, "DELETE", &path, Value::Null).await;
        assert_eq!(refused.code(), Some(code));
    }
    assert_eq!(admit(&silent).await, Err(1102));
    assert_eq!(admit(&before[1]).await, Err(1102));

    // Its connections end with the certificate, also if the clock was behind when they began.
    let agents = rig.control.agents.agents.as_ref().unwrap();
    let expiring = || {
        agents
            .lock()
            .values()
            .filter(|live| live.expires_at.is_some())
            .count()
    };
    assert_eq!(expiring(), 2);
    let valid_until = i64::try_from(valid_until.unwrap()).unwrap();
    rig.clock.set(Timestamp::from_unix_seconds(valid_until));
    // A commit wakes the task.
    rig.ip_policy().await;
    eventually("they are closed", async || expiring() == 0).await;
}

/// A policy can send the secrets that it names to any upstream.
#[tokio::test]
async fn policies_may_use_secrets_of_their_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let [admin, owner, other] = [0, 1, 2].map(|index| &cast.callers[index]);
    for (caller, name) in [
        (admin, "of-admin"),
        (owner, "of-owner"),
        (other, "of-other"),
    ] {
        let vault = json!({ "name": name });
        let vault = rig.call(caller, "POST", "/vaults", vault).await.body()["id"].clone();
        let body = json!({"name": name, "value": "hush", "vault_id": vault});
        rig.call(caller, "POST", "/vault_secrets", body)
            .await
            .body();
    }
    let policy = |value: &str| {
        let config = json!({"headers": {"x-secret": value}});
        json!({"on_http_request": [{"actions": [{"type": "add-headers", "config": config}]}]})
            .to_string()
    };
    let mut n = 0;
    let mut make = async |caller: &Caller, value: &str| {
        n += 1;
        let body = json!({
            "url": format!("https://p{n}.culvert.localhost"),
            "upstream_url": "http://127.0.0.1:1",
            "traffic_policy": policy(value),
        });
        match rig.call(caller, "POST", "/endpoints", body).await {
            Answered::Created(made) => Ok(made["id"].as_str().unwrap().to_owned()),
            refused => Err(refused.code()),
        }
    };
    for (caller, name, is_allowed) in [
        (admin, "of-admin", true),
        (admin, "of-owner", true),
        (owner, "of-admin", false),
        (owner, "of-owner", true),
        (owner, "of-other", false),
    ] {
        let made = make(caller, &format!("${{secrets.get('{name}', '{name}')}}")).await;
        match is_allowed {
            true => drop(made.unwrap()),
            false => assert_eq!(made, Err(Some(650)), "{name}"),
        }
    }
    // A computed name is not a reference, because the secret that it uses is unknown.
    for value in [
        "${secrets.get('of-admin', 'of-' + 'admin')}",
        "${secrets.get(req.headers['x'][0], 'of-admin')}",
        "${[secrets].map(s, s.get('v', 'of-admin'))[0]}",
        "${secrets.get('v', 'of-admin') + secrets.get('v', req.method)}",
    ] {
        assert_eq!(make(admin, value).await, Err(Some(2204)), "{value}");
    }
    // An admin who adds a secret of another does not give it to the owner of the endpoint; a grant does.
    let own = make(owner, "plain").await.unwrap();
    let path = format!("/endpoints/{own}");
    let text = policy("${secrets.get('of-other', 'of-other')}");
    let with = json!({ "traffic_policy": text });
    assert_eq!(rig.patch(&path, with.clone()).await.code(), Some(650));
    let vaults = rig.call(other, "GET", "/vaults", Value::Null).await.body();
    let vaults = vaults["vaults"].as_array().unwrap();
    let vault = vaults.iter().find(|one| one["name"] == "of-other").unwrap();
    let grant = json!({"object_id": vault["id"], "grantee": own});
    rig.call(other, "POST", "/grants", grant).await.body();
    rig.patch(&path, with).await.body();
    let changed = json!({"traffic_policy": text.replace("x-secret", "x-other")});
    rig.call(owner, "PATCH", &path, changed).await.body();
}

#[tokio::test]
async fn likely_mistakes_of_a_policy_are_shown_with_it() {
    let open = Open::with(LIMITS).await;
    let rig = &open.rig;
    let owner = Owner::bot(&open, "owner").await;
    let other = Owner::bot(&open, "other").await;
    let (bot, other) = (&owner.caller, &other.caller);
    let policy = |action: &str| {
        format!(
            "on_http_request: [{{actions: [{{type: {action}, config: {{headers: {{x-user: '1'}}}}}}]}}]"
        )
    };
    let body = json!({
        "url": "https://w.culvert.localhost", "upstream_url": "http://127.0.0.1:1",
        "traffic_policy": policy("add-headers"),
    });
    let made = rig.call(bot, "POST", "/endpoints", body).await.body();
    let warnings = made["traffic_policy_warnings"].as_array().unwrap();
    assert!(warnings[0].as_str().unwrap().contains("`x-user`"), "{made}");
    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    let seen = rig.call(bot, "GET", &path, Value::Null).await.body();
    assert_eq!(
        seen["traffic_policy_warnings"],
        made["traffic_policy_warnings"]
    );
    // A warning names parts of the policy.
    let hidden = rig.call(other, "GET", &path, Value::Null).await.body();
    assert_eq!(hidden["traffic_policy"], "[redacted]");
    assert_eq!(hidden["traffic_policy_warnings"], json!([]));
    let body = json!({"traffic_policy": policy("set-headers")});
    let changed = rig.call(bot, "PATCH", &path, body).await.body();
    assert_eq!(changed["traffic_policy_warnings"], json!([]));
}
