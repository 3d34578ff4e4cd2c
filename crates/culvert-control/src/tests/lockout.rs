//! Locking oneself out: changes that take the last way in, or block the caller's own address.

use std::net::IpAddr;

use super::*;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Changes that take a way in: method, path and body; `KEY` and `USER` stand for the admin's own.
const CHANGES: [(&str, &str, &str); 9] = [
    ("DELETE", "/api_keys/KEY", ""),
    (
        "PATCH",
        "/api_keys/KEY/restrictions",
        r#"{"role": "member"}"#,
    ),
    (
        "PATCH",
        "/api_keys/KEY/restrictions",
        r#"{"scopes": ["keys.write"]}"#,
    ),
    (
        "PATCH",
        "/api_keys/KEY/restrictions",
        r#"{"expires_at": "2099-01-01T00:00:00Z"}"#,
    ),
    (
        "PATCH",
        "/api_keys/KEY/restrictions",
        r#"{"networks": ["127.0.0.0/8"]}"#,
    ),
    ("POST", "/api_keys/KEY/rotate", ""),
    ("PATCH", "/users/USER", r#"{"role": "member"}"#),
    ("PATCH", "/users/USER", r#"{"active": false}"#),
    ("DELETE", "/users/USER", ""),
];

/// What the installation has besides the admin with one key, and whether it is a way in after a change of the admin's
/// key, and after one of the admin.
#[derive(Clone, Copy, Debug)]
enum Other {
    Nothing,
    SecondKey,
    SecondKeyWith(&'static str),
    /// Another user with a key: role, whether it is active, and the restrictions of the key.
    User(Role, bool, &'static str),
    UserWithoutKey,
    Bot,
}

const OTHERS: [(Other, bool, bool); 14] = [
    (Other::Nothing, false, false),
    (Other::SecondKey, true, false),
    (Other::SecondKeyWith(r#"{"role": "admin"}"#), true, false),
    (
        Other::SecondKeyWith(r#"{"role": "read_only"}"#),
        false,
        false,
    ),
    (
        Other::SecondKeyWith(r#"{"networks": ["0.0.0.0/0"]}"#),
        false,
        false,
    ),
    (Other::User(Role::Admin, true, "{}"), true, true),
    (
        Other::User(Role::Admin, true, r#"{"role": "member"}"#),
        false,
        false,
    ),
    (
        Other::User(Role::Admin, true, r#"{"scopes": ["users.write"]}"#),
        false,
        false,
    ),
    (
        Other::User(
            Role::Admin,
            true,
            r#"{"expires_at": "2099-01-01T00:00:00Z"}"#,
        ),
        false,
        false,
    ),
    (
        Other::User(Role::Admin, true, r#"{"networks": ["127.0.0.1/32"]}"#),
        false,
        false,
    ),
    (Other::User(Role::Admin, false, "{}"), false, false),
    (Other::User(Role::Member, true, "{}"), false, false),
    (Other::UserWithoutKey, false, false),
    (Other::Bot, false, false),
];

/// A key of this owner with these restrictions.
async fn key(rig: &Rig, owner: &Caller, restrictions: &str) -> String {
    let made = rig
        .call(owner, "POST", "/api_keys", Value::Null)
        .await
        .body();
    let id = made["id"].as_str().unwrap().to_owned();
    let restrictions: Value = serde_json::from_str(restrictions).unwrap();
    let path = format!("/api_keys/{id}/restrictions?force=true");
    rig.patch(&path, restrictions).await.body();
    id
}

/// Whether there is another active admin.
async fn add(rig: &Rig, other: Other) -> bool {
    match other {
        Other::Nothing => {}
        Other::SecondKey => drop(key(rig, &rig.admin, "{}").await),
        Other::SecondKeyWith(restrictions) => drop(key(rig, &rig.admin, restrictions).await),
        Other::User(role, is_active, restrictions) => {
            let user = rig.user("other@x.example", role, is_active).await;
            key(rig, &user, restrictions).await;
            return role == Role::Admin && is_active;
        }
        Other::UserWithoutKey => {
            rig.user("other@x.example", Role::Admin, true).await;
            return true;
        }
        Other::Bot => {
            let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
            rig.post("/api_keys", json!({"owner_id": bot["id"]}))
                .await
                .body();
        }
    }
    false
}

async fn change(
    rig: &Rig,
    of: &Caller,
    (method, path, body): (&str, &str, &str),
    query: &str,
) -> Answered {
    let path = path
        .replace("KEY", &of.key_id)
        .replace("USER", &of.owner_id);
    let body = match body {
        "" => Value::Null,
        body => serde_json::from_str(body).unwrap(),
    };
    rig.call(&rig.admin, method, &format!("{path}{query}"), body)
        .await
}

#[tokio::test]
async fn a_change_that_takes_the_last_way_in_needs_force() {
    for (other, after_key, after_admin) in OTHERS {
        for it in CHANGES {
            let rig = Rig::start().await;
            let has_admin = add(&rig, other).await;
            let is_of_key = it.1.contains("KEY");
            let stays = if is_of_key { after_key } else { after_admin };
            let answered = change(&rig, &rig.admin, it, "").await;
            let expected = match stays {
                true => None,
                false if is_of_key || has_admin => Some(660),
                false => Some(644),
            };
            let is_refused = matches!(answered, Answered::Refused(..));
            let code = if is_refused { answered.code() } else { None };
            assert_eq!(code, expected, "{other:?} {it:?} {answered:?}");
            if let Answered::Refused(_, _, message) = answered {
                assert!(message.contains("culvert admin create-key"), "{message}");
                assert!(message.contains("force=true"), "{message}");
                let forced = change(&rig, &rig.admin, it, "?force=true").await;
                assert!(
                    !matches!(forced, Answered::Refused(..)),
                    "{other:?} {it:?} {forced:?}"
                );
            }
        }
    }
}

/// Changes of keys that are no way in, and changes that take nothing, are not asked about.
#[tokio::test]
async fn other_changes_of_keys_and_users_need_no_force() {
    let rig = Rig::start().await;
    let member = rig.user("m@x.example", Role::Member, true).await;
    let theirs = key(&rig, &member, "{}").await;
    let own = rig.admin.key_id.clone();
    for (path, body) in [
        (
            format!("/api_keys/{theirs}/restrictions"),
            json!({"role": "read_only"}),
        ),
        (
            format!("/users/{}", member.owner_id),
            json!({"active": false}),
        ),
        (
            format!("/api_keys/{own}/restrictions"),
            json!({"role": "admin"}),
        ),
        (
            format!("/api_keys/{own}/restrictions"),
            json!({"networks": []}),
        ),
        (format!("/api_keys/{own}"), json!({"description": "x"})),
        (
            format!("/users/{}", rig.admin.owner_id),
            json!({"role": "admin", "active": true}),
        ),
    ] {
        let answered = rig.patch(&path, body.clone()).await;
        assert!(
            matches!(answered, Answered::Ok(_)),
            "{path} {body} {answered:?}"
        );
    }
    let rotated = rig
        .post(&format!("/api_keys/{own}/rotate"), json!({"overlap": 60}))
        .await;
    assert!(matches!(rotated, Answered::Created(_)), "{rotated:?}");
    assert_eq!(
        rig.delete(&format!("/api_keys/{theirs}")).await,
        Answered::NoContent
    );
    for (query, code) in [
        ("force=maybe", 215),
        ("force=true&force=true", 232),
        ("forced=true", 231),
    ] {
        let path = format!("/users/{}?{query}", rig.admin.owner_id);
        assert_eq!(
            rig.patch(&path, json!({"role": "member"})).await.code(),
            Some(code),
            "{query}"
        );
    }
}

/// Of two changes that together lock out, one is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_leave_a_way_in() {
    for first in CHANGES {
        for second in CHANGES {
            let rig = Rig::start().await;
            let mut other = rig.user("other@x.example", Role::Admin, true).await;
            other.key_id = key(&rig, &other, "{}").await;
            let (a, b) = tokio::join!(
                change(&rig, &rig.admin, first, ""),
                change(&rig, &other, second, "")
            );
            let refused = [&a, &b].map(|answered| matches!(answered, Answered::Refused(..)));
            let refused = refused.iter().filter(|is| **is).count();
            // A key is a way in again once it is rotated.
            let rotates = [first, second].iter().any(|it| it.1.ends_with("/rotate"));
            let is_right = refused == 1 || (refused == 0 && rotates);
            assert!(is_right, "{first:?} {second:?}: {a:?} {b:?}");
        }
    }
}

#[tokio::test]
async fn the_command_line_makes_an_admin_again() {
    for it in CHANGES {
        let rig = Rig::start().await;
        let answered = change(&rig, &rig.admin, it, "?force=true").await;
        assert!(
            !matches!(answered, Answered::Refused(..)),
            "{it:?} {answered:?}"
        );
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
        let token = bootstrap.admin_key(&AdminCommand::default()).await.unwrap();
        let caller = rig.authenticate(token.reveal()).await.unwrap();
        assert_eq!(
            (caller.role, caller.restrictions),
            (Role::Admin, None),
            "{it:?}"
        );
        assert_eq!(caller.account, rig.admin.account);
    }
}

/// An account with an IP restriction of the API and a policy with one rule that allows 127.0.0.1, and one that does not
/// matter: the paths of the restriction and of both rules, and the ID of the policy.
async fn restricted(rig: &Rig, is_enforced: bool) -> [String; 4] {
    let policy = rig.ip_policy().await;
    let mut rules = Vec::new();
    for cidr in ["127.0.0.0/8", "192.0.2.0/24"] {
        let body = json!({"ip_policy_id": policy, "action": "allow", "cidr": cidr});
        let made = rig.post("/ip_policy_rules", body).await.body();
        rules.push(format!("/ip_policy_rules/{}", made["id"].as_str().unwrap()));
    }
    let body = json!({"type": "api", "ip_policy_ids": [policy], "enforced": is_enforced});
    let made = rig.post("/ip_restrictions", body).await.body();
    let restriction = format!("/ip_restrictions/{}", made["id"].as_str().unwrap());
    let [first, second] = rules.try_into().unwrap();
    [restriction, first, second, policy]
}

#[tokio::test]
pub(super) async fn an_ip_restriction_that_blocks_its_caller_needs_force() {
    // Method, path, body, whether the restriction is enforced before, and whether the change blocks.
    let changes: &[(&str, &str, &str, bool, bool)] = &[
        (
            "PATCH",
            "RESTRICTION",
            r#"{"enforced": true}"#,
            false,
            false,
        ),
        (
            "PATCH",
            "RESTRICTION",
            r#"{"ip_policy_ids": ["OTHER"], "enforced": true}"#,
            false,
            true,
        ),
        (
            "PATCH",
            "RESTRICTION",
            r#"{"ip_policy_ids": ["OTHER"]}"#,
            false,
            false,
        ),
        (
            "PATCH",
            "RESTRICTION",
            r#"{"ip_policy_ids": ["OTHER"]}"#,
            true,
            true,
        ),
        (
            "PATCH",
            "RESTRICTION",
            r#"{"ip_policy_ids": ["OTHER", "POLICY"]}"#,
            true,
            false,
        ),
        (
            "PATCH",
            "RESTRICTION",
            r#"{"ip_policy_ids": ["OTHER"], "enforced": false}"#,
            true,
            false,
        ),
        (
            "PATCH",
            "RESTRICTION",
            r#"{"description": "x"}"#,
            true,
            false,
        ),
        ("DELETE", "RESTRICTION", "", true, false),
        ("DELETE", "ALLOWING", "", true, true),
        ("DELETE", "ALLOWING", "", false, false),
        ("DELETE", "NEUTRAL", "", true, false),
        ("PATCH", "ALLOWING", r#"{"cidr": "10.0.0.0/8"}"#, true, true),
        (
            "PATCH",
            "ALLOWING",
            r#"{"cidr": "127.0.0.1/32"}"#,
            true,
            false,
        ),
        ("PATCH", "ALLOWING", r#"{"description": "x"}"#, true, false),
        (
            "POST",
            "/ip_policy_rules",
            r#"{"ip_policy_id": "POLICY", "action": "deny", "cidr": "127.0.0.1/32"}"#,
            true,
            true,
        ),
        (
            "POST",
            "/ip_policy_rules",
            r#"{"ip_policy_id": "POLICY", "action": "deny", "cidr": "127.0.0.1/32"}"#,
            false,
            false,
        ),
        (
            "POST",
            "/ip_policy_rules",
            r#"{"ip_policy_id": "POLICY", "action": "deny", "cidr": "10.0.0.0/8"}"#,
            true,
            false,
        ),
        (
            "POST",
            "/ip_policy_rules",
            r#"{"ip_policy_id": "OTHER", "action": "deny", "cidr": "127.0.0.1/32"}"#,
            true,
            false,
        ),
        (
            "POST",
            "/ip_restrictions",
            r#"{"type": "agent", "ip_policy_ids": ["OTHER"], "enforced": true}"#,
            true,
            false,
        ),
        (
            "POST",
            "/ip_restrictions",
            r#"{"type": "endpoints", "ip_policy_ids": ["OTHER"], "enforced": true}"#,
            true,
            false,
        ),
    ];
    for (method, path, body, is_enforced, blocks) in changes {
        let rig = Rig::start().await;
        let [restriction, allowing, neutral, policy] = restricted(&rig, *is_enforced).await;
        let other = rig.ip_policy().await;
        let path = match *path {
            "RESTRICTION" => restriction,
            "ALLOWING" => allowing,
            "NEUTRAL" => neutral,
            path => path.to_owned(),
        };
        let body = match *body {
            "" => Value::Null,
            body => serde_json::from_str(&body.replace("POLICY", &policy).replace("OTHER", &other))
                .unwrap(),
        };
        let answered = rig.call(&rig.admin, method, &path, body.clone()).await;
        let Answered::Refused(_, code, message) = answered else {
            assert!(!blocks, "{method} {path} {body} {answered:?}");
            continue;
        };
        assert!(
            *blocks && code == Some(660),
            "{method} {path} {body} {message}"
        );
        assert!(
            message.contains("127.0.0.1") && message.contains("culvert admin lift-api-restriction"),
            "{message}"
        );
        let forced = rig
            .call(&rig.admin, method, &format!("{path}?force=true"), body)
            .await;
        assert!(!matches!(forced, Answered::Refused(..)), "{forced:?}");
    }
    // The first restriction of an account.
    let rig = Rig::start().await;
    let policy = rig.ip_policy().await;
    let body = |is_enforced: bool| json!({"type": "api", "ip_policy_ids": [policy], "enforced": is_enforced});
    assert_eq!(
        rig.post("/ip_restrictions", body(true)).await.code(),
        Some(660)
    );
    rig.post("/ip_restrictions", body(false)).await.body();
}

/// Of two changes that together block the caller, one is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_do_not_block_their_caller() {
    for n in 0..12 {
        let rig = Rig::start().await;
        let [restriction, allowing, _, policy] = restricted(&rig, n % 3 != 0).await;
        let deny = json!({"ip_policy_id": policy, "action": "deny", "cidr": "127.0.0.1/32"});
        let also = json!({"ip_policy_id": policy, "action": "allow", "cidr": "127.0.0.1/32"});
        let (a, b) = match n % 3 {
            // The rule goes while the restriction begins.
            0 => tokio::join!(
                rig.patch(&restriction, json!({"enforced": true})),
                rig.delete(&allowing)
            ),
            // Of two rules that allow, each seems to be the one too many.
            1 => {
                let made = rig.post("/ip_policy_rules", also).await.body();
                let second = format!("/ip_policy_rules/{}", made["id"].as_str().unwrap());
                tokio::join!(rig.delete(&second), rig.delete(&allowing))
            }
            // A restriction begins while a rule denies.
            _ => {
                rig.patch(&restriction, json!({"enforced": false}))
                    .await
                    .body();
                tokio::join!(
                    rig.patch(&restriction, json!({"enforced": true})),
                    rig.post("/ip_policy_rules", deny)
                )
            }
        };
        let refused = [&a, &b].map(|answered| matches!(answered, Answered::Refused(..)));
        assert_eq!(
            refused.iter().filter(|is| **is).count(),
            1,
            "{n}: {a:?} {b:?}"
        );
    }
}

/// The console sessions of an owner that was deactivated do not come back.
#[tokio::test]
async fn deactivation_ends_console_sessions_for_good() {
    let rig = Rig::start().await;
    let user = rig.user("ada@x.example", Role::Member, true).await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let service = rig
        .post("/service_users", json!({"name": "s"}))
        .await
        .body();
    let text = |value: &Value| value["id"].as_str().unwrap().to_owned();
    for (owner, path) in [
        (user.owner_id.clone(), format!("/users/{}", user.owner_id)),
        (text(&bot), format!("/bot_users/{}", text(&bot))),
        (text(&service), format!("/service_users/{}", text(&service))),
    ] {
        let made = rig
            .post("/api_keys", json!({"owner_id": owner}))
            .await
            .body();
        let caller = rig
            .authenticate(made["token"].as_str().unwrap())
            .await
            .unwrap();
        let mut cookies = vec![
            rig.control
                .identity
                .sign_in(caller.clone(), HERE)
                .await
                .unwrap()
                .0,
        ];
        if owner.starts_with("usr") {
            let person = Caller {
                key_id: String::new(),
                token: None,
                ..caller
            };
            cookies.push(rig.control.identity.sign_in(person, HERE).await.unwrap().0);
        }
        let is_valid = async |cookie: &Secret| {
            rig.control
                .identity
                .console_session(cookie.reveal(), HERE)
                .await
                .is_ok()
        };
        for cookie in &cookies {
            assert!(is_valid(cookie).await, "{path}");
        }
        for active in [false, true] {
            rig.patch(&path, json!({"active": active})).await.body();
            for cookie in &cookies {
                assert!(!is_valid(cookie).await, "{path} {active}");
            }
        }
        assert!(
            rig.authenticate(made["token"].as_str().unwrap())
                .await
                .is_ok()
        );
    }
}

/// Every text that names something for people.
#[tokio::test]
pub(super) async fn names_have_no_deceptive_characters() {
    let rig = Rig::start().await;
    let upstream = json!({"url": "https://a.internal", "traffic_policy": ""});
    for character in [
        '\u{7}',
        '\n',
        '\u{7f}',
        '\u{85}',
        '\u{202E}',
        '\u{2066}',
        '\u{200B}',
        '\u{FEFF}',
        '\u{E0041}',
    ] {
        let name = format!("a{character}b");
        let policy = json!({"on_http_request": [{"name": name, "actions": [{"type": "deny"}]}]});
        let with = |policy: Value| {
            let mut body = upstream.clone();
            body["traffic_policy"] = policy;
            body
        };
        for (path, body, code) in [
            ("/bot_users", json!({"name": name}), 661),
            ("/service_users", json!({"name": name}), 661),
            ("/vaults", json!({"name": name}), 23000),
            ("/endpoints", with(policy.clone()), 661),
            ("/endpoints", with(json!(policy.to_string())), 661),
        ] {
            let answered = rig.post(path, body.clone()).await;
            assert_eq!(answered.code(), Some(code), "{path} {body}");
        }
        let code = rig
            .post("/users", json!({"email": format!("{name}@x.example")}))
            .await
            .code();
        assert!(matches!(code, Some(661 | 215)), "{character:?} {code:?}");
        // Descriptions may have them; they are shown escaped.
        rig.post("/api_keys", json!({"description": name}))
            .await
            .body();
    }
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let path = format!("/bot_users/{}", bot["id"].as_str().unwrap());
    assert_eq!(
        rig.patch(&path, json!({"name": "a\u{202E}b"})).await.code(),
        Some(661)
    );
}

#[tokio::test]
pub(super) async fn a_bot_is_not_called_like_a_user() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let path = format!("/bot_users/{}", bot["id"].as_str().unwrap());
    for name in [
        "ada@x.example",
        "Ada＠X.example",
        "ada﹫x.example",
        " nobody@x ",
    ] {
        for collection in ["/bot_users", "/service_users"] {
            let answered = rig.post(collection, json!({"name": name})).await;
            assert_eq!(answered.code(), Some(662), "{name}");
        }
        assert_eq!(
            rig.patch(&path, json!({"name": name})).await.code(),
            Some(662),
            "{name}"
        );
    }
    rig.post("/bot_users", json!({"name": "@home"}))
        .await
        .body();
    // A bot from a version that allowed it keeps its name until a user wants it.
    let mut document = rig
        .store
        .get("bot_user", bot["id"].as_str().unwrap())
        .await
        .unwrap()
        .unwrap();
    document.body = document.body.replace("\"b\"", "\"Ada＠x.example\"");
    let silent = AuditEvent::Suppress { reason: "a test" };
    rig.store
        .commit(Changes::replace(document, silent))
        .await
        .unwrap();
    assert_eq!(rig.get(&path).await.body()["name"], "Ada＠x.example");
    rig.patch(&path, json!({"name": "Ada＠x.example", "active": true}))
        .await
        .body();
    let invite = async || rig.post("/users", json!({"email": "ada@x.example"})).await;
    assert_eq!(invite().await.code(), Some(662));
    rig.patch(&path, json!({"name": "b"})).await.body();
    invite().await.body();
}
