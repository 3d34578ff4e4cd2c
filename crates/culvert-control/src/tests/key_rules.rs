//! The rules of an account about API keys: rule × what makes or changes a key × owner, and what they never lock out.

use std::time::Duration;

use tokio::task::JoinSet;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
const HERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const RULES: &str = "/api_key_rules";

/// Broken rules by the description of the keys.
async fn broken(rig: &Rig) -> Vec<(String, Value)> {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("filter", "obj.broken_rules != []")
        .append_pair("include", "restrictions")
        .finish();
    let list = rig.get(&format!("/api_keys?{query}")).await.body();
    let keys = list["keys"].as_array().unwrap().iter();
    let one = |key: &Value| {
        let description = key["description"].as_str().unwrap().to_owned();
        (description, key["broken_rules"].clone())
    };
    let mut found: Vec<_> = keys.map(one).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

impl Rig {
    /// The events about rules since the last call: their kinds, and whether a caller caused them.
    async fn rule_events(&self) -> Vec<(Value, bool)> {
        let after = *self.last_seq.lock().unwrap();
        let (events, last) = self.events_after(after).await;
        *self.last_seq.lock().unwrap() = last;
        let of_rules = events
            .into_iter()
            .filter(|event| event["event_type"] == "api_key_rule_broken.v0");
        of_rules
            .map(|event| {
                (
                    event["object"]["rules"].clone(),
                    event["principal"].is_object(),
                )
            })
            .collect()
    }

    async fn set_rules(&self, rules: Value) -> Value {
        self.patch(RULES, rules).await.body()
    }
}

#[tokio::test]
async fn admins_change_the_rules_with_an_event_and_others_read_them() {
    let rig = Rig::start().await;
    let shown = rig.get(RULES).await.body();
    assert_eq!(
        shown,
        json!({
            "uri": format!("{BASE}{RULES}"), "maximum_age": "off", "maximum_age_days": 365,
            "required_end": "off", "admin_networks": "off",
        })
    );
    let (_, seq) = rig.events_after(0).await;
    let changed = rig
        .set_rules(json!({"required_end": "warn", "maximum_age_days": 90}))
        .await;
    assert_eq!(changed["required_end"], "warn");
    assert_eq!(rig.get(RULES).await.body(), changed);
    let (events, _) = rig.events_after(seq).await;
    let [event] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(event["event_type"], "api_key_rules_updated.v0");
    assert_eq!(event["principal"]["id"], *rig.admin.owner_id);
    assert_eq!(event["object"]["id"], *rig.admin.account);
    assert_eq!(event["object"]["maximum_age_days"], 90);
    assert_eq!(
        event["previous"],
        json!({"required_end": "off", "maximum_age_days": 365})
    );
    for (body, code) in [
        (json!({"required_end": "deny"}), 215),
        (json!({"maximum_age_days": 0}), 215),
        (json!({"maximum_age_days": 3651}), 215),
        (json!({"maximum_age_days": "90"}), 215),
        (json!({"required_ends": "warn"}), 214),
    ] {
        let answered = rig.patch(RULES, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body} {answered:?}");
    }
    assert_eq!(rig.get(RULES).await.body(), changed);
    let before = rig.store.revision().await.unwrap();
    assert_eq!(rig.set_rules(json!({})).await, changed);
    assert_eq!(rig.store.revision().await.unwrap(), before, "no change");
    for (role, code) in [(Role::Member, 630), (Role::ReadOnly, 635)] {
        let caller = Caller {
            role,
            ..rig.admin.clone()
        };
        let read = rig.call(&caller, "GET", RULES, Value::Null).await;
        assert_eq!(read.body(), changed);
        let body = json!({"required_end": "off"});
        let refused = rig.call(&caller, "PATCH", RULES, body).await;
        assert_eq!(refused.code(), Some(code), "{role:?}");
    }
}

/// Rule × strictness × operation.
#[tokio::test]
async fn a_rule_refuses_or_reports_what_would_break_it() {
    for (rule, fitting) in [
        (
            "required_end",
            json!({"expires_at": "2099-01-01T00:00:00Z"}),
        ),
        ("admin_networks", json!({"networks": ["127.0.0.0/8"]})),
    ] {
        let rig = Rig::start().await;
        let existing = rig
            .post("/api_keys", json!({"description": "existing"}))
            .await
            .body();
        let existing = format!("/api_keys/{}", existing["id"].as_str().unwrap());
        rig.set_rules(json!({rule: "refuse"})).await;
        rig.rule_events().await;
        let restrictions = format!("{existing}/restrictions");
        // Existing keys go on, and nothing makes or changes one that breaks the rule.
        for (method, path, body) in [
            ("POST", "/api_keys".to_owned(), json!({})),
            ("POST", "/api_keys?dry_run=true".to_owned(), json!({})),
            (
                "PATCH",
                restrictions.clone(),
                json!({"scopes": ["keys.read"]}),
            ),
            ("DELETE", restrictions.clone(), Value::Null),
            ("POST", format!("{existing}/rotate"), json!({"overlap": 60})),
        ] {
            let answered = rig.call(&rig.admin, method, &path, body).await;
            assert_eq!(answered.code(), Some(653), "{rule} {method} {path}");
        }
        // A description is no restriction.
        rig.patch(&existing, json!({"description": "renamed"}))
            .await
            .body();
        rig.patch(&restrictions, fitting.clone()).await.body();
        rig.post(&format!("{existing}/rotate"), json!({"overlap": 60}))
            .await
            .body();
        let answered = rig.delete(&restrictions).await;
        assert_eq!(answered.code(), Some(653), "{rule}");
        let mut fits = fitting.clone();
        fits["description"] = json!("fits");
        rig.post("/api_keys", fits).await.body();
        assert!(rig.rule_events().await.is_empty(), "{rule}");

        rig.set_rules(json!({rule: "warn"})).await;
        let dry = rig.post("/api_keys?dry_run=true", json!({})).await.body();
        assert_eq!(dry["broken_rules"], json!([rule]));
        rig.post("/api_keys", json!({"description": "new"}))
            .await
            .body();
        assert_eq!(rig.delete(&restrictions).await, Answered::NoContent);
        rig.post(&format!("{existing}/rotate"), json!({"overlap": 60}))
            .await
            .body();
        let by_caller = (json!([rule]), true);
        let expected = [by_caller.clone(), by_caller];
        assert_eq!(rig.rule_events().await, expected, "{rule}");
        // The key of the installation was there before.
        let look = async || {
            let now = rig.clock.now();
            let (one, two) = tokio::join!(
                rig.control.identity.watch_key_rules(now),
                rig.control.identity.watch_key_rules(now)
            );
            one.and(two).unwrap();
            rig.rule_events().await
        };
        assert_eq!(look().await, [(json!([rule]), false)], "{rule}");
        assert!(look().await.is_empty());
        let names: Vec<_> = broken(&rig).await.into_iter().map(|one| one.0).collect();
        assert_eq!(names, ["first key of the installation", "new", "renamed"]);
        // Without the rule nothing is broken; with it again, it is reported again.
        rig.set_rules(json!({rule: "off"})).await;
        assert!(look().await.is_empty());
        assert!(broken(&rig).await.is_empty());
        rig.set_rules(json!({rule: "warn"})).await;
        assert_eq!(look().await.len(), 3);
    }
}

/// The owner decides whether a key is one of an admin: people, bots, and people who become admins.
#[tokio::test]
pub(super) async fn networks_are_required_of_the_keys_of_admins() {
    let rig = Rig::start().await;
    let bot = rig
        .post("/bot_users", json!({"name": "deployer"}))
        .await
        .body();
    let service = rig
        .post("/service_users", json!({"name": "builder"}))
        .await
        .body();
    let account = rig.admin.account.clone();
    let member = rig
        .user_of(&account, "member@example.com", Role::Member, true)
        .await;
    rig.set_rules(json!({"admin_networks": "refuse"})).await;
    for body in [
        json!({"owner_id": bot["id"]}),
        json!({"owner_id": service["id"]}),
        json!({"owner_id": member.owner_id}),
        json!({"role": "member"}),
    ] {
        rig.post("/api_keys", body.clone()).await.body();
    }
    assert!(
        broken(&rig)
            .await
            .iter()
            .all(|(name, _)| name.starts_with("first key"))
    );
    // Its key would become one of an admin.
    let user = format!("/users/{}", member.owner_id);
    let promote = json!({"role": "admin"});
    assert_eq!(rig.patch(&user, promote.clone()).await.code(), Some(653));
    let filter = format!(
        "/api_keys?filter=obj.owner_id%20==%20%22{}%22",
        member.owner_id
    );
    let list = rig.get(&filter).await.body();
    let key = list["keys"][0]["id"].as_str().unwrap();
    let path = format!("/api_keys/{key}/restrictions");
    rig.patch(&path, json!({"networks": ["192.0.2.0/24"]}))
        .await
        .body();
    rig.patch(&user, promote.clone()).await.body();
    // An inactive admin becomes active again.
    rig.patch(&user, json!({"active": false})).await.body();
    rig.set_rules(json!({"admin_networks": "off"})).await;
    rig.delete(&path).await;
    rig.set_rules(json!({"admin_networks": "refuse"})).await;
    let activate = json!({"active": true});
    assert_eq!(rig.patch(&user, activate.clone()).await.code(), Some(653));
    // A warning does not refuse.
    rig.set_rules(json!({"admin_networks": "warn"})).await;
    rig.patch(&user, activate).await.body();
}

/// An invited person gets a first key that fits the rules.
#[tokio::test]
async fn the_first_key_of_a_person_fits_the_rules() {
    let rig = Rig::start().await;
    rig.set_rules(json!({"required_end": "refuse", "admin_networks": "refuse"}))
        .await;
    for (role, networks) in [("admin", json!(["192.0.2.7/32"])), ("member", json!([]))] {
        let body = json!({"email": format!("{role}@example.com"), "role": role});
        let invited = rig.post("/users", body).await.body();
        let url = invited["invitation_url"].as_str().unwrap();
        let token = url.split_once('#').unwrap().1;
        let from: std::net::IpAddr = [192, 0, 2, 7].into();
        let accepted = rig.control.identity.accept_invitation(token, from);
        let accepted = accepted.await.unwrap();
        let caller = rig.authenticate(accepted.token.reveal()).await.unwrap();
        let path = format!("/api_keys/{}/restrictions", caller.key_id);
        let shown = rig.get(&path).await.body();
        assert_eq!(shown["networks"], networks, "{role}");
        let end = rig.clock.now().plus(30 * DAY).whole_seconds();
        assert_eq!(shown["expires_at"], end.to_string());
        assert_eq!(shown["broken_rules"], json!([]));
    }
}

/// Neither an invitation of a person who has keys already, nor a role that is raised at the same time, evades a rule.
#[tokio::test]
async fn keys_of_a_member_who_becomes_an_admin_are_judged() {
    let rig = Rig::start().await;
    rig.set_rules(json!({"admin_networks": "refuse"})).await;
    let person = rig.user("m@x.example", Role::Member, true).await;
    let person = person.owner_id;
    let key = json!({"owner_id": person});
    rig.post("/api_keys", key.clone()).await.body();
    let path = format!("/users/{person}");
    let raise = rig.patch(&path, json!({"role": "admin"})).await;
    assert_eq!(raise.code(), Some(653));
    rig.patch(&path, json!({"active": false})).await.body();
    rig.patch(&path, json!({"role": "admin"})).await.body();
    let invited = rig
        .post(&format!("{path}/invite"), Value::Null)
        .await
        .body();
    let url = invited["invitation_url"].as_str().unwrap();
    let token = url.split_once('#').unwrap().1;
    let accepted = rig.control.identity.accept_invitation(token, HERE).await;
    assert!(accepted.is_err());
    assert_eq!(rig.get(&path).await.body()["active"], false);

    // With locks that these two do not share.
    let rig = unshared().await;
    rig.set_rules(json!({"admin_networks": "refuse"})).await;
    for n in 0..50 {
        let person = rig
            .user(&format!("r{n}@x.example"), Role::Member, true)
            .await;
        let person = person.owner_id;
        let path = format!("/users/{person}");
        let (made, raised) = tokio::join!(
            rig.post("/api_keys", json!({"owner_id": person})),
            rig.patch(&path, json!({"role": "admin"}))
        );
        let is_refused =
            |answered: &Answered| matches!(answered, Answered::Refused(_, Some(653), _));
        assert!(
            is_refused(&made) || is_refused(&raised),
            "{made:?} {raised:?}"
        );
    }
}

async fn unshared() -> Rig {
    let locks = keyed_mutex::KeyedMutex::default();
    Rig::build(None, None, AGENTS, locks, |_| ()).await
}

/// Keys of one owner are written side by side, whatever the rules: no write conflicts with another, or changes the owner.
#[tokio::test]
async fn keys_of_one_owner_are_written_side_by_side() {
    const AT_ONCE: usize = 30;
    let at_once = async |rig: &Arc<Rig>, method: &'static str, calls: Vec<(String, Value)>| {
        let mut tasks = JoinSet::new();
        for (path, body) in calls {
            let rig = Arc::clone(rig);
            tasks.spawn(async move { rig.call(&rig.admin, method, &path, body).await.body() });
        }
        tasks.join_all().await
    };
    for (rules, restrictions, rotation) in [
        (
            json!({"admin_networks": "refuse"}),
            json!({"networks": ["127.0.0.0/8"]}),
            json!({"overlap": 60}),
        ),
        // Each rotation takes a way in for a moment.
        (json!({}), json!({}), json!({})),
    ] {
        let rig = Arc::new(unshared().await);
        rig.set_rules(rules).await;
        let owner = format!("/users/{}", rig.admin.owner_id);
        let state = async || {
            let terms: Arc<Terms> = Arc::default();
            let seen = rig.call_on(&rig.admin, "GET", &owner, Value::Null, Arc::clone(&terms));
            seen.await.body();
            terms.shown().unwrap()
        };
        let before = state().await;
        let creations = vec![("/api_keys".to_owned(), restrictions.clone()); AT_ONCE];
        let made = at_once(&rig, "POST", creations).await;
        let each = |part: &str, body: &Value| -> Vec<_> {
            let ids = made.iter().map(|key| key["id"].as_str().unwrap());
            ids.map(|id| (format!("/api_keys/{id}{part}"), body.clone()))
                .collect()
        };
        at_once(&rig, "PATCH", each("/restrictions", &restrictions)).await;
        at_once(&rig, "POST", each("/rotate", &rotation)).await;
        let narrow = json!({"networks": ["127.0.0.0/9"]});
        at_once(&rig, "PATCH", each("/restrictions", &narrow)).await;
        assert_eq!(state().await, before);
    }
}

/// An admin who has lost its keys comes in again by a new invitation; what its old key breaks is not new.
#[tokio::test]
async fn an_active_admin_with_an_old_key_accepts_an_invitation() {
    let rig = Rig::start().await;
    let person = rig.user("a@x.example", Role::Admin, true).await.owner_id;
    let old = rig.post("/api_keys", json!({"owner_id": person})).await;
    old.body();
    rig.set_rules(json!({"admin_networks": "refuse"})).await;
    let invite = format!("/users/{person}/invite");
    let invited = rig.post(&invite, Value::Null).await.body();
    let url = invited["invitation_url"].as_str().unwrap();
    let token = url.split_once('#').unwrap().1;
    let accepted = rig.control.identity.accept_invitation(token, HERE).await;
    let caller = rig.authenticate(accepted.unwrap().token.reveal()).await;
    assert_eq!(caller.unwrap().owner_id, person);
}

/// Only a change of the rules changes their tag, and a write of another state is refused.
#[tokio::test]
async fn the_rules_have_a_tag_and_take_conditions() {
    let rig = Rig::start().await;
    let state = async |method: &'static str, body: Value| {
        let terms: Arc<Terms> = Arc::default();
        let seen = rig.call_on(&rig.admin, method, RULES, body, Arc::clone(&terms));
        seen.await.body();
        terms.shown().unwrap()
    };
    let first = state("GET", Value::Null).await;
    // The write of a way in replaces the account.
    let made = rig.post("/api_keys", json!({})).await.body();
    let key = format!("/api_keys/{}", made["id"].as_str().unwrap());
    rig.delete(&key).await;
    assert_eq!(state("GET", Value::Null).await, first);
    assert_eq!(state("PATCH", json!({})).await, first);
    rig.clock.advance(DAY);
    let second = state("PATCH", json!({"required_end": "warn"})).await;
    assert_ne!(second.state, first.state);
    assert_eq!(second.at, rig.clock.now());
    assert_eq!(state("GET", Value::Null).await, second);
    let write = async |state: &str, text: &str| {
        let body = json!({"required_end": text});
        let terms = idempotency::if_match(state);
        match rig.call_on(&rig.admin, "PATCH", RULES, body, terms).await {
            Answered::Ok(_) => None,
            refused => refused.code(),
        }
    };
    assert_eq!(write(&first.state, "off").await, Some(266));
    assert_eq!(rig.get(RULES).await.body()["required_end"], "warn");
    assert_eq!(write(&second.state, "refuse").await, None);
    let read = idempotency::if_match(&second.state);
    let read = rig.call_on(&rig.admin, "GET", RULES, Value::Null, read);
    assert_eq!(read.await.code(), Some(266), "another state");
}

/// Rules are refused only for a way in that they take, and not for one that is not there.
#[tokio::test]
async fn rules_that_take_no_way_in_are_not_refused() {
    let rig = Rig::start().await;
    let only = format!("/api_keys/{}/restrictions?force=true", rig.admin.key_id);
    rig.patch(&only, json!({"networks": ["127.0.0.0/8"]}))
        .await
        .body();
    for rules in [
        json!({"maximum_age": "refuse"}),
        json!({"required_end": "warn"}),
        json!({"maximum_age_days": 3650}),
        json!({"maximum_age_days": 90}),
        json!({"maximum_age": "off"}),
    ] {
        rig.set_rules(rules).await;
    }
}

/// The maximum age ends a token, a rotation begins again, and a change of the rule holds immediately.
#[tokio::test]
async fn a_token_stops_working_at_the_maximum_age() {
    let rig = Rig::start().await;
    let made = rig.post("/api_keys", json!({"description": "ci"})).await;
    let made = made.body();
    let old = made["token"].as_str().unwrap();
    let path = format!("/api_keys/{}", made["id"].as_str().unwrap());
    rig.clock.advance(20 * DAY);
    // The caller of this test keeps its token young.
    let rotate = format!("/api_keys/{}/rotate", rig.admin.key_id);
    let young = rig
        .post(&rotate, json!({"overlap_until": "1h"}))
        .await
        .body();
    let admin = rig
        .authenticate(young["token"].as_str().unwrap())
        .await
        .unwrap();
    let set = async |rules: Value| rig.call(&admin, "PATCH", RULES, rules).await;
    set(json!({"maximum_age": "refuse", "maximum_age_days": 30}))
        .await
        .body();
    let caller = rig.authenticate(old).await.unwrap();
    // Streams end then too. It is no restriction before.
    assert_eq!(caller.ends_at(), Some(made_at(&made).plus(30 * DAY)));
    assert_eq!(caller.restrictions, None);
    let shown = rig
        .get(&format!("{path}?include=restrictions"))
        .await
        .body();
    assert_eq!(
        shown["maximum_age_at"],
        made_at(&made).plus(30 * DAY).to_string()
    );
    let (cookie, _) = rig
        .control
        .identity
        .sign_in(caller.clone(), HERE)
        .await
        .unwrap();
    rig.clock.set(made_at(&made).plus(30 * DAY));
    assert_eq!(rig.authenticate(old).await.err(), Some(Some(640)));
    let again = rig.control.identity.caller_again(&caller, HERE).await;
    assert!(again.is_err());
    let session = rig.control.identity.console_session(cookie.reveal(), HERE);
    assert!(
        session.await.is_err(),
        "a session of the token ends with it"
    );
    // A rotation with an overlap makes a young token, and the old one stays too old.
    let rotated = rig
        .call(
            &admin,
            "POST",
            &format!("{path}/rotate"),
            json!({"overlap": 3600}),
        )
        .await
        .body();
    assert_eq!(rig.authenticate(old).await.err(), Some(Some(640)));
    let new = rotated["token"].as_str().unwrap();
    rig.authenticate(new).await.unwrap();
    // During the overlap, the rule changes: the old token works until the end of the overlap.
    set(json!({"maximum_age": "warn"})).await.body();
    assert_eq!(
        rig.authenticate(old).await.unwrap().ends_at(),
        Some(rig.clock.now().plus(DAY / 24))
    );
    rig.clock.advance(DAY / 24);
    assert_eq!(rig.authenticate(old).await.err(), Some(Some(203)));
}

fn made_at(made: &Value) -> Timestamp {
    Timestamp::parse(made["created_at"].as_str().unwrap()).unwrap()
}

/// No maximum age ends the caller's own token or the last way in, unless it is forced; the server has a way back.
#[tokio::test]
async fn a_maximum_age_locks_nobody_out_unless_forced() {
    let rig = Rig::start().await;
    rig.clock.advance(40 * DAY);
    let strict = json!({"maximum_age": "refuse", "maximum_age_days": 30});
    assert_eq!(rig.patch(RULES, strict.clone()).await.code(), Some(660));
    assert_eq!(rig.get(RULES).await.body()["maximum_age"], "off");
    // A young key with restrictions is no way in.
    let restricted = json!({"role": "admin", "expires_at": "1d"});
    let young = rig.post("/api_keys", restricted).await.body();
    let young = rig
        .authenticate(young["token"].as_str().unwrap())
        .await
        .unwrap();
    let answered = rig.call(&young, "PATCH", RULES, strict.clone()).await;
    assert_eq!(answered.code(), Some(660));
    let warns = json!({"maximum_age": "warn", "maximum_age_days": 30});
    rig.set_rules(warns).await;
    rig.patch(&format!("{RULES}?force=true"), strict)
        .await
        .body();
    let token = rig.token.reveal();
    assert_eq!(rig.authenticate(token).await.err(), Some(Some(640)));
    // `culvert admin create-key`.
    let bootstrap = Bootstrap {
        ids: &IdMaker::new(),
        store: &rig.store,
        clock: &*rig.clock,
        entropy: &SeededEntropy::new(7),
        pepper: &rig.control.kernel.pepper,
        base: BASE,
        domain: "culvert.localhost",
        token_form: Default::default(),
    };
    let key = bootstrap.admin_key(&AdminCommand::default()).await.unwrap();
    rig.authenticate(key.reveal()).await.unwrap();
}

/// A key that is too old is no way in: the only other one is kept.
#[tokio::test]
async fn a_key_that_is_too_old_is_no_way_in() {
    let rig = Rig::start().await;
    rig.clock.advance(40 * DAY);
    let young = rig.post("/api_keys", json!({})).await.body();
    let path = format!("/api_keys/{}", young["id"].as_str().unwrap());
    let young = rig
        .authenticate(young["token"].as_str().unwrap())
        .await
        .unwrap();
    let strict = json!({"maximum_age": "refuse", "maximum_age_days": 30});
    rig.call(&young, "PATCH", RULES, strict).await.body();
    let deleted = rig.call(&young, "DELETE", &path, Value::Null).await;
    assert_eq!(deleted.code(), Some(660));
}

/// The end of a token by its age is announced like that of a key.
#[tokio::test]
async fn a_maximum_age_is_announced() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    rig.set_rules(json!({"maximum_age": "refuse", "maximum_age_days": 100}))
        .await;
    let now = rig.clock.now();
    let mut stages = Vec::new();
    for days in [60, 71, 94, 99] {
        let (_, seq) = rig.events_after(0).await;
        log.watch_expiry(now.plus(days * DAY), Duration::ZERO)
            .await
            .unwrap();
        let (events, _) = rig.events_after(seq).await;
        for event in events {
            assert_eq!(event["event_type"], "api_key_expiring.v0");
            let end = now.plus(100 * DAY).whole_seconds().to_string();
            assert_eq!(event["object"]["expires_at"], end);
            stages.push(event["object"]["within_days"].as_u64().unwrap());
        }
    }
    assert_eq!(stages, [30, 7, 1]);
    // A key that only warns ends nowhere.
    rig.set_rules(json!({"maximum_age": "warn"})).await;
    let identity = &rig.control.identity;
    rig.rule_events().await;
    identity.watch_key_rules(now.plus(99 * DAY)).await.unwrap();
    assert!(rig.rule_events().await.is_empty());
    identity.watch_key_rules(now.plus(100 * DAY)).await.unwrap();
    let expected = [(json!(["maximum_age"]), false)];
    assert_eq!(rig.rule_events().await, expected);
}

/// Rules that cannot be read refuse every call, as if all were broken.
#[tokio::test]
async fn rules_that_cannot_be_read_refuse() {
    let rig = Rig::start().await;
    let account = &rig.admin.account;
    let document = rig.store.get(Account::KIND, account).await.unwrap();
    let mut document = document.unwrap();
    let mut body: Value = serde_json::from_str(&document.body).unwrap();
    body["key_rules"] = json!({"required_end": "of a later version"});
    document.body = body.to_string();
    let event = AuditEvent::Suppress { reason: "a test" };
    rig.store
        .commit(Changes::replace(document, event))
        .await
        .unwrap();
    let header = format!("Bearer {}", rig.token.reveal());
    let judged = rig.control.identity.authenticate(Some(&header)).await;
    assert!(matches!(judged, Err(Error::Faulted(_))), "{judged:?}");
}
