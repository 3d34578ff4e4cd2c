//! Users: invitations, roles, and removal.

use std::net::IpAddr;
use std::time::Duration;

use super::*;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const DAY: Duration = Duration::from_secs(86_400);

/// Invites a person. Returns the ID and the token of the link.
async fn invite(rig: &Rig, email: &str, role: &str) -> (String, String) {
    let made = rig
        .post("/users", json!({"email": email, "role": role}))
        .await;
    let made = made.body();
    (made["id"].as_str().unwrap().to_owned(), token_of(&made))
}

fn token_of(invited: &Value) -> String {
    let url = invited["invitation_url"].as_str().unwrap();
    let (page, token) = url.split_once('#').unwrap();
    assert_eq!(page, format!("{BASE}/console/invitation"));
    token.to_owned()
}

/// Accepts an invitation; the code of the refusal.
async fn accept(rig: &Rig, token: &str) -> Result<Accepted, Option<u16>> {
    match rig.control.identity.accept_invitation(token, HERE).await {
        Ok(accepted) => Ok(accepted),
        Err(Error::Refused(refusal)) => {
            codes::note(refusal.code);
            Err(refusal.code.map(Code::number))
        }
        Err(Error::Faulted(fault)) => panic!("{}", fault.chain()),
    }
}

#[tokio::test]
async fn an_invitation_is_accepted_if_its_user_and_its_session_share_a_lock() {
    let rig = Rig::start().await;
    let (_, token) = invite(&rig, "ada@x.example", "").await;
    let accepted = tokio::time::timeout(culvert_testing::PATIENCE, accept(&rig, &token));
    assert!(accepted.await.expect("it waited for itself").is_ok());
}

#[tokio::test]
async fn an_invitation_link_works_once() {
    let rig = Rig::start().await;
    let (id, token) = invite(&rig, "Ada@x.example", "").await;
    let path = format!("/users/{id}");
    let shown = rig.get(&path).await.body();
    assert_eq!(
        (&shown["role"], &shown["active"]),
        (&json!("member"), &json!(false))
    );
    assert_eq!(shown["invitation_url"], Value::Null);
    let end = rig.clock.now().plus(7 * DAY).to_string();
    assert_eq!(shown["invitation_expires_at"], *end);
    let early = rig.patch(&path, json!({"active": true})).await;
    assert_eq!(early.code(), Some(215));

    let accepted = accept(&rig, &token).await.unwrap();
    assert_eq!(accept(&rig, &token).await.unwrap_err(), Some(645));
    let caller = rig.authenticate(accepted.token.reveal()).await.unwrap();
    assert_eq!((&caller.owner_id, caller.role), (&id, Role::Member));
    assert_eq!(caller.subject, "Ada@x.example");
    let session = rig
        .control
        .identity
        .console_session(accepted.cookie.reveal(), HERE);
    assert_eq!(session.await.unwrap().caller, caller);
    let shown = rig.get(&path).await.body();
    assert_eq!(shown["active"], true);
    assert_eq!(shown["invitation_expires_at"], Value::Null);

    let (reported, _) = rig.events_after(0).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    let expected = [
        "user_updated.v0",
        "invitation_deleted.v0",
        "api_key_created.v0",
        "sign_in.v0",
        "console_session_created.v0",
    ];
    assert_eq!(kinds[kinds.len() - 5..], expected);
    let user = &reported[kinds.len() - 5];
    assert_eq!(user["previous"]["active"], false);
    let key = &reported[kinds.len() - 3];
    assert_eq!(key["principal"]["subject"], "Ada@x.example");
    assert_eq!(key["principal"]["source"], "Dashboard");
    assert_eq!(key["principal"]["credential"], Value::Null);
    let kept = format!("{reported:?}{:?}", rig.store.all("user").await.unwrap());
    assert!(
        !kept.contains(secret_of(&token)) && !kept.contains(secret_of(accepted.token.reveal()))
    );
}

#[tokio::test]
pub(super) async fn invalid_invitations_are_refused() {
    let rig = Rig::start().await;
    let (id, first) = invite(&rig, "ada@x.example", "admin").await;
    let other = token::Form::Prefixed.generate(&*rig.clock, &SeededEntropy::new(7));
    let guessed = guessed(&first);
    for wrong in ["", "x", &guessed, other.reveal(), rig.token.reveal()] {
        assert_eq!(accept(&rig, wrong).await.unwrap_err(), Some(645), "{wrong}");
    }
    // A new link replaces the one before it.
    let path = format!("/users/{id}");
    let second = rig.post(&format!("{path}/invite"), Value::Null).await;
    let second = token_of(&second.body());
    assert_eq!(accept(&rig, &first).await.unwrap_err(), Some(645));
    rig.clock.advance(7 * DAY);
    assert_eq!(accept(&rig, &second).await.unwrap_err(), Some(645));
    // To deactivate a user revokes the invitation.
    let third = rig.post(&format!("{path}/invite"), Value::Null).await;
    let third = token_of(&third.body());
    rig.patch(&path, json!({"active": false})).await.body();
    assert_eq!(accept(&rig, &third).await.unwrap_err(), Some(645));
    // One token is never another's.
    let (_, token) = invite(&rig, "bob@x.example", "").await;
    assert_eq!(rig.authenticate(&token).await, Err(Some(203)));
}

#[tokio::test]
pub(super) async fn invalid_users_are_refused() {
    let rig = Rig::start().await;
    invite(&rig, "ada@x.example", "").await;
    let long = format!("{}@x.example", "a".repeat(254));
    for (body, code) in [
        (json!({"email": "ADA@x.example"}), 646),
        (json!({"email": "ada"}), 215),
        (json!({"email": "a b@x.example"}), 215),
        (json!({"email": "a@b@x.example"}), 215),
        (json!({"email": "@x.example"}), 215),
        (json!({"email": long}), 215),
        (json!({}), 215),
        (json!({"email": "b@x.example", "role": "developer"}), 215),
        (json!({"email": "b@x.example", "active": true}), 214),
    ] {
        let answered = rig.post("/users", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
}

#[tokio::test]
pub(super) async fn the_last_active_admin_cannot_be_removed() {
    let rig = Rig::start().await;
    let path = format!("/users/{}", rig.admin.owner_id);
    let refused = async || {
        for body in [json!({"role": "member"}), json!({"active": false})] {
            let answered = rig.patch(&path, body.clone()).await;
            assert_eq!(answered.code(), Some(644), "{body}");
        }
        assert_eq!(rig.delete(&path).await.code(), Some(644));
    };
    refused().await;
    // Inactive admins do not count.
    rig.user("gone@x.example", Role::Admin, false).await;
    rig.user("member@x.example", Role::Member, true).await;
    rig.stranger().await;
    let (id, token) = invite(&rig, "ada@x.example", "admin").await;
    refused().await;
    let accepted = accept(&rig, &token).await.unwrap();
    let ada = rig.authenticate(accepted.token.reveal()).await.unwrap();
    let answered = rig.call(&ada, "DELETE", &path, Value::Null).await;
    assert_eq!(answered, Answered::NoContent);
    assert_eq!(rig.authenticate(rig.token.reveal()).await, Err(Some(203)));
    let own = format!("/users/{id}");
    let answered = rig.call(&ada, "DELETE", &own, Value::Null).await;
    assert_eq!(answered.code(), Some(644));
}

/// Of two admins who demote each other, one stays.
#[tokio::test]
async fn concurrent_removals_leave_one_admin() {
    for _ in 0..8 {
        let rig = Rig::start().await;
        let other = rig.user("other@x.example", Role::Admin, true).await;
        let paths = [&rig.admin, &other].map(|user| format!("/users/{}", user.owner_id));
        let demote = json!({"role": "member"});
        let (a, b) = tokio::join!(rig.patch(&paths[0], demote.clone()), rig.delete(&paths[1]));
        let refused = [a, b].map(|answered| matches!(answered, Answered::Refused(..)));
        assert_ne!(refused[0], refused[1], "one of them is refused");
    }
}

#[tokio::test]
async fn a_changed_role_and_a_removal_take_effect_at_once() {
    let rig = Rig::start().await;
    let (id, token) = invite(&rig, "ada@x.example", "").await;
    let accepted = accept(&rig, &token).await.unwrap();
    let path = format!("/users/{id}");
    let key = async || rig.authenticate(accepted.token.reveal()).await;
    let session = async || {
        let session = rig
            .control
            .identity
            .console_session(accepted.cookie.reveal(), HERE);
        session.await.map(|session| session.caller.role).ok()
    };
    for (role, expected) in [("admin", Role::Admin), ("read_only", Role::ReadOnly)] {
        rig.patch(&path, json!({"role": role})).await.body();
        assert_eq!(key().await.unwrap().role, expected);
        assert_eq!(session().await, Some(expected));
    }
    rig.patch(&path, json!({"active": false})).await.body();
    assert_eq!(key().await, Err(Some(636)));
    assert_eq!(session().await, None);
    rig.patch(&path, json!({"active": true})).await.body();
    // A session of the person itself, without a key.
    let person = Caller {
        key_id: String::new(),
        token: None,
        ..key().await.unwrap()
    };
    let (cookie, _) = rig
        .control
        .identity
        .sign_in(person.clone(), HERE)
        .await
        .unwrap();
    let found = rig
        .control
        .identity
        .console_session(cookie.reveal(), HERE)
        .await;
    assert_eq!(found.unwrap().caller, person);
    assert_eq!(
        rig.control
            .identity
            .caller_again(&person, HERE)
            .await
            .unwrap(),
        person
    );
    let shown = rig.call(&person, "GET", "/self", Value::Null).await.body();
    assert_eq!(shown["api_key"], Value::Null);
    assert_eq!(shown["user"], "ada@x.example");

    let (_, start) = rig.events_after(0).await;
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    assert_eq!(key().await, Err(Some(203)));
    assert_eq!(session().await, None);
    assert!(
        rig.control
            .identity
            .console_session(cookie.reveal(), HERE)
            .await
            .is_err()
    );
    assert!(
        rig.control
            .identity
            .caller_again(&person, HERE)
            .await
            .is_err()
    );
    let (reported, _) = rig.events_after(start).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    let expected = [
        "api_key_deleted.v0",
        "console_session_deleted.v0",
        "user_deleted.v0",
    ];
    assert_eq!(kinds, expected);
}

#[tokio::test]
async fn a_restricted_key_grants_no_rights_to_users() {
    let rig = Rig::start().await;
    let (id, _) = invite(&rig, "ada@x.example", "read_only").await;
    let restrictions = KeyRestrictions {
        scopes: [Scope::UsersWrite].into_iter().collect(),
        ..KeyRestrictions::default()
    };
    let caller = Caller {
        restrictions: Some(Arc::new(restrictions)),
        ..rig.admin.clone()
    };
    let call =
        async |method: &str, path: &str, body: Value| rig.call(&caller, method, path, body).await;
    let path = format!("/users/{id}");
    let invited = call("POST", "/users", json!({"email": "b@x.example"})).await;
    assert_eq!(invited.code(), Some(643));
    let invited = call("POST", &format!("{path}/invite"), Value::Null).await;
    assert_eq!(invited.code(), Some(643));
    let raised = call("PATCH", &path, json!({"role": "member"})).await;
    assert_eq!(raised.code(), Some(643));
    call("PATCH", &path, json!({"active": false})).await.body();
    assert_eq!(
        call("DELETE", &path, Value::Null).await,
        Answered::NoContent
    );
}

/// A person at the identity provider.
fn identity(id: &str, email: Option<&str>) -> culvert_login::Identity {
    culvert_login::Identity {
        id: format!("https://id.example {id}"),
        email: email.map(str::to_owned),
        groups: Vec::new(),
    }
}

/// Signs in a person whose groups have this role.
async fn come(
    rig: &Rig,
    identity: &culvert_login::Identity,
    role: Option<Role>,
) -> Result<Caller, Option<u16>> {
    match rig
        .control
        .identity
        .person_of(identity, role, &HERE.into())
        .await
    {
        Ok(caller) => Ok(caller),
        Err(Error::Refused(refusal)) => {
            codes::note(refusal.code);
            Err(refusal.code.map(Code::number))
        }
        Err(Error::Faulted(fault)) => panic!("{}", fault.chain()),
    }
}

#[tokio::test]
pub(super) async fn groups_of_the_identity_provider_admit_users() {
    let rig = Rig::start().await;
    let ada = identity("1", Some("ada@x.example"));
    assert_eq!(come(&rig, &ada, None).await, Err(Some(647)));
    let unverified = identity("1", None);
    let refused = come(&rig, &unverified, Some(Role::Member)).await;
    assert_eq!(refused, Err(Some(647)));
    assert_eq!(rig.store.count("user").await.unwrap(), 1);
    let first = come(&rig, &ada, Some(Role::Member)).await.unwrap();
    assert_eq!((first.role, first.key_id.as_str()), (Role::Member, ""));
    // A sign-in without a change writes nothing.
    let revision = rig.store.revision().await.unwrap();
    assert_eq!(
        come(&rig, &ada, Some(Role::Member)).await,
        Ok(first.clone())
    );
    assert_eq!(rig.store.revision().await.unwrap(), revision);
    // The groups decide the role, and the provider's ID the user.
    let renamed = identity("1", Some("other@x.example"));
    let again = come(&rig, &renamed, Some(Role::ReadOnly)).await.unwrap();
    assert_eq!(
        (&again.owner_id, again.role),
        (&first.owner_id, Role::ReadOnly)
    );
    assert_eq!(come(&rig, &ada, None).await, Err(Some(647)));
    // Another person with the same address is not the same user.
    let other = identity("2", Some("ada@x.example"));
    assert_eq!(come(&rig, &other, Some(Role::Admin)).await, Err(Some(647)));

    let path = format!("/users/{}", first.owner_id);
    rig.patch(&path, json!({"active": false})).await.body();
    assert_eq!(come(&rig, &ada, Some(Role::Admin)).await, Err(Some(636)));
}

#[tokio::test]
async fn invited_users_sign_in_by_their_verified_address() {
    let rig = Rig::start().await;
    let (id, token) = invite(&rig, "Ada@x.example", "read_only").await;
    let unverified = identity("1", None);
    assert_eq!(come(&rig, &unverified, None).await, Err(Some(647)));
    let ada = identity("1", Some("ada@X.example"));
    // The role of the invitation counts, whatever the groups.
    let caller = come(&rig, &ada, Some(Role::Admin)).await.unwrap();
    assert_eq!((&caller.owner_id, caller.role), (&id, Role::ReadOnly));
    assert_eq!(accept(&rig, &token).await.unwrap_err(), Some(645));
    assert!(come(&rig, &identity("1", None), None).await.is_ok());

    invite(&rig, "bob@x.example", "member").await;
    rig.clock.advance(7 * DAY);
    let bob = identity("2", Some("bob@x.example"));
    assert_eq!(come(&rig, &bob, None).await, Err(Some(645)));
}

/// A role that the groups give follows the rules of the account like one that an admin gives.
#[tokio::test]
async fn groups_raise_no_role_against_a_rule() {
    let rig = Rig::start().await;
    let ada = identity("1", Some("ada@x.example"));
    let member = come(&rig, &ada, Some(Role::Member)).await.unwrap();
    let key = rig
        .call(&member, "POST", "/api_keys", json!({}))
        .await
        .body();
    let key = format!("/api_keys/{}", key["id"].as_str().unwrap());
    let rules = |strictness: &str| json!({"admin_networks": strictness});
    rig.patch("/api_key_rules", rules("refuse")).await.body();
    let revision = rig.store.revision().await.unwrap();
    assert_eq!(come(&rig, &ada, Some(Role::Admin)).await, Err(Some(653)));
    assert_eq!(rig.store.revision().await.unwrap(), revision);
    let role = rig.get(&format!("/users/{}", member.owner_id)).await.body();
    assert_eq!(role["role"], "member");
    // The role from before still signs in.
    assert_eq!(
        come(&rig, &ada, Some(Role::Member)).await,
        Ok(member.clone())
    );
    let halves = json!({"networks": ["0.0.0.0/1", "128.0.0.0/1"]});
    let path = format!("{key}/restrictions");
    rig.call(&member, "PATCH", &path, halves).await.body();
    assert_eq!(come(&rig, &ada, Some(Role::Admin)).await, Err(Some(653)));
    let narrow = json!({"networks": ["192.0.2.0/24"]});
    rig.call(&member, "PATCH", &path, narrow).await.body();
    let raised = come(&rig, &ada, Some(Role::Admin)).await.unwrap();
    assert_eq!(raised.role, Role::Admin);
    // An admin stays one, and a rule that warns refuses none.
    rig.call(
        &raised,
        "DELETE",
        &format!("{key}/restrictions"),
        Value::Null,
    )
    .await;
    assert!(come(&rig, &ada, Some(Role::Admin)).await.is_ok());
    come(&rig, &ada, Some(Role::Member)).await.unwrap();
    rig.patch("/api_key_rules", rules("warn")).await.body();
    let path = format!("{key}/restrictions");
    rig.call(&member, "DELETE", &path, Value::Null).await;
    assert!(come(&rig, &ada, Some(Role::Admin)).await.is_ok());
}

#[tokio::test]
async fn the_last_admin_does_not_lose_its_role_by_its_groups() {
    let rig = Rig::start().await;
    let ada = identity("1", Some("ada@x.example"));
    let admin = come(&rig, &ada, Some(Role::Admin)).await.unwrap();
    // A sign-in at the provider is no way in.
    let path = format!("/users/{}?force=true", rig.admin.owner_id);
    let gone = rig.call(&admin, "DELETE", &path, Value::Null).await;
    assert_eq!(gone, Answered::NoContent);
    assert_eq!(come(&rig, &ada, Some(Role::Member)).await, Err(Some(644)));
    assert_eq!(come(&rig, &ada, Some(Role::Admin)).await, Ok(admin));
}
