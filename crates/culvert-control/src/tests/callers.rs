//! Authentication of callers, and the objects of a first start.

use super::*;

#[tokio::test]
pub(super) async fn authentication_checks_each_property_of_a_token() {
    let rig = Rig::start().await;
    let token = rig.token.reveal();
    assert_eq!(rig.authenticate(token).await.unwrap(), rig.admin);
    assert_eq!(rig.admin.role, Role::Admin);

    assert_eq!(rig.judged(None).await, Err(Some(200)));
    assert_eq!(rig.judged(Some("Digest x")).await, Err(Some(201)));

    let last = if token.ends_with('x') { "y" } else { "x" };
    let mistyped = format!("{}{last}", &token[..token.len() - 1]);
    let other = token::Form::Prefixed.generate(&*rig.clock, &SeededEntropy::new(5));
    // The public half of an existing key with another secret in the right format.
    let wrong_secret = guessed(token);
    for (token, code) in [
        ("hunter2", 202),
        (rig.admin.key_id.as_str(), 208),
        (&mistyped, 203),
        (other.reveal(), 203),
        (&wrong_secret, 203),
    ] {
        assert_eq!(rig.authenticate(token).await, Err(Some(code)), "{code}");
    }
}

#[tokio::test]
async fn a_key_works_until_deletion_and_its_token_is_shown_once() {
    let rig = Rig::start().await;
    let made = rig.post("/api_keys", Value::Null).await.body();
    let (id, token) = (
        made["id"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    assert_eq!(body_of(token), &id[3..]);
    let caller = rig.authenticate(token).await.unwrap();
    assert_eq!(caller.key_id, id);
    assert_eq!(caller.owner_id, rig.admin.owner_id);

    // A key can delete itself.
    let one = format!("/api_keys/{id}");
    assert_eq!(
        rig.call(&caller, "DELETE", &one, Value::Null).await,
        Answered::NoContent
    );
    assert_eq!(rig.authenticate(token).await, Err(Some(203)));

    let (reported, _) = rig.events_after(0).await;
    let deleted = reported.last().unwrap();
    assert_eq!(deleted["event_type"], "api_key_deleted.v0");
    assert_eq!(deleted["principal"]["credential"]["id"], id);
    let everything = serde_json::to_string(&reported).unwrap();
    assert!(!everything.contains(secret_of(token)));
    for document in rig.store.all("api_key").await.unwrap() {
        assert!(!document.body.contains(secret_of(token)));
        assert!(!document.body.contains(secret_of(rig.token.reveal())));
    }
}

#[tokio::test]
pub(super) async fn tunnel_credentials_are_refused_by_the_api() {
    let rig = Rig::start().await;
    let made = rig.post("/credentials", Value::Null).await.body();
    let (id, token) = (
        made["id"].as_str().unwrap(),
        made["token"].as_str().unwrap(),
    );
    assert_eq!(body_of(token), &id[3..]);
    assert_eq!(rig.authenticate(token).await, Err(Some(206)));
    // The public half alone reveals nothing to a caller.
    let guessed = guessed(token);
    assert_eq!(rig.authenticate(&guessed).await, Err(Some(203)));

    let (reported, _) = rig.events_after(0).await;
    let document = rig.store.all("tunnel_credential").await.unwrap();
    let kept = format!("{reported:?}{}", document[0].body);
    assert!(!kept.contains(secret_of(token)));
    assert_eq!(
        rig.delete(&format!("/credentials/{id}")).await,
        Answered::NoContent
    );
    assert_eq!(rig.authenticate(token).await, Err(Some(203)));
}

#[tokio::test]
pub(super) async fn deactivation_of_an_owner_applies_immediately() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    let bot_id = bot["id"].as_str().unwrap();
    let key = rig
        .post("/api_keys", json!({"owner_id": bot_id}))
        .await
        .body();
    let token = key["token"].as_str().unwrap();
    let one = format!("/bot_users/{bot_id}");
    for _ in 0..3 {
        let caller = rig.authenticate(token).await.unwrap();
        assert_eq!(
            (caller.role, caller.owner_kind),
            (Role::Member, OwnerKind::Bot)
        );
        assert_eq!(caller.subject, "b");
        rig.patch(&one, json!({"active": false})).await.body();
        assert_eq!(rig.authenticate(token).await, Err(Some(636)));
        rig.patch(&one, json!({"active": true})).await.body();
    }
}

#[tokio::test]
pub(super) async fn a_suspended_account_is_refused() {
    let rig = Rig::start().await;
    let id = &rig.admin.account;
    let mut document = rig.store.get("account", id).await.unwrap().unwrap();
    let mut account: Account = stored::read(&document).unwrap();
    account.suspended = true;
    document.body = stored::write(&account).unwrap();
    let reported = AuditEvent::Suppress { reason: "a test" };
    rig.store
        .commit(Changes::replace(document, reported))
        .await
        .unwrap();
    assert_eq!(rig.authenticate(rig.token.reveal()).await, Err(Some(205)));
}

#[tokio::test]
async fn bootstrap_runs_once_and_its_key_event_has_no_principal() {
    let rig = Rig::start().await;
    assert!(rig.control.bootstrap(None).await.unwrap().is_none());
    let (reported, _) = rig.events_after(0).await;
    assert_eq!(reported.len(), 2);
    assert_eq!(reported[0]["event_type"], "user_created.v0");
    assert_eq!(reported[0]["object"]["role"], "admin");
    assert_eq!(reported[1]["event_type"], "api_key_created.v0");
    assert_eq!(reported[1]["principal"], Value::Null);
    assert_eq!(
        reported[1]["object"]["uri"],
        format!("{BASE}/api_keys/{}", rig.admin.key_id)
    );
    assert_eq!(reported[1]["object"]["token"], Value::Null);
    assert_eq!(rig.store.all("user").await.unwrap().len(), 1);
}

#[tokio::test]
async fn bootstrap_installs_a_given_token_or_refuses_a_malformed_one() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000)));
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let store = Store::open(&url, clock.clone(), texts()).await.unwrap();
    let entropy = SeededEntropy::new(3);
    let pepper = Pepper::new(&Secret::new("pepper".into()));
    let bootstrap = Bootstrap {
        ids: &IdMaker::new(),
        store: &store,
        clock: &*clock,
        entropy: &entropy,
        pepper: &pepper,
        base: BASE,
        domain: "culvert.localhost",
        token_form: Default::default(),
    };
    assert!(bootstrap.admin_key(&AdminCommand::default()).await.is_err());
    let wrong = Secret::new("hunter2".into());
    let fault = bootstrap.first_start(Some(&wrong)).await.unwrap_err();
    assert!(fault.chain().contains("generate-token") && !fault.chain().contains("hunter2"));
    assert!(store.all("account").await.unwrap().is_empty());

    let token = token::Form::Plain.generate(&*clock, &entropy);
    let installed = bootstrap.first_start(Some(&token)).await.unwrap().unwrap();
    assert_eq!(installed, token);
    assert!(bootstrap.first_start(Some(&token)).await.unwrap().is_none());
    let another = bootstrap.admin_key(&AdminCommand::default()).await.unwrap();
    let keys = store.all("api_key").await.unwrap();
    assert_eq!(keys.len(), 2);
    for token in [&token, &another] {
        let id = format!("ak_{}", body_of(token.reveal()));
        let key = keys.iter().find(|key| key.head.id == id).unwrap();
        assert!(key.body.contains(&pepper.digest(token.reveal())));
    }
}
