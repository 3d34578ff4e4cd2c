//! Requests that are repeated with their `Idempotency-Key`, and conditions on objects.

use std::time::Duration;

use culvert_base::Class;
use culvert_resources::operation::once;
use culvert_resources::operation::terms::{Conditions, TagKey, Tags};
use culvert_store::KeptAnswer;
use tokio::task::JoinSet;

use super::*;

fn keyed(key: &str) -> Arc<Terms> {
    let mut terms = Terms::default();
    terms.key = Some(key.to_owned());
    Arc::new(terms)
}

pub(super) fn if_match(state: &str) -> Arc<Terms> {
    let tag = TagKey::default()
        .entity_tag(state, "")
        .trim_matches('"')
        .to_owned();
    let mut terms = Terms::default();
    terms.conditions = Conditions {
        if_match: Some(Tags::Of(vec![(tag, false)])),
        ..Conditions::default()
    };
    Arc::new(terms)
}

impl Rig {
    /// Posts with a key. Returns the response, and whether it is that of an earlier request.
    async fn once(&self, by: &Caller, path: &str, key: &str, body: Value) -> (Answered, bool) {
        let terms = keyed(key);
        let answered = self
            .call_on(by, "POST", path, body, Arc::clone(&terms))
            .await;
        (answered, terms.is_repeated())
    }

    async fn kinds_after(&self, seq: i64) -> Vec<String> {
        let (events, _) = self.events_after(seq).await;
        let kinds = events.iter().map(|event| event["event_type"].as_str());
        kinds.map(|kind| kind.unwrap().to_owned()).collect()
    }

    /// The ID and token of a new key of the admin.
    async fn another_key(&self) -> (String, String) {
        let made = self.post("/api_keys", json!({})).await.body();
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }

    /// The path of a new object.
    async fn path_of_new(&self, collection: &str) -> String {
        let sample = self.sample(collection, 1).await;
        let made = self.post(&format!("/{collection}"), sample).await.body();
        format!("/{collection}/{}", made["id"].as_str().unwrap())
    }
}

#[tokio::test]
async fn a_repeated_creation_makes_one_key_and_shows_its_token_for_a_minute() {
    let rig = Rig::start().await;
    let (_, start) = rig.events_after(0).await;
    let body = || json!({"description": "deploys"});
    let (first, is_repeated) = rig.once(&rig.admin, "/api_keys", "k-1", body()).await;
    let first = first.body();
    assert!(!is_repeated && first["token"].is_string());
    rig.clock.advance(Duration::from_secs(59));
    let (again, is_repeated) = rig.once(&rig.admin, "/api_keys", "k-1", body()).await;
    assert!(is_repeated);
    assert_eq!(again.body(), first);
    rig.clock.advance(Duration::from_secs(1));
    let (later, is_repeated) = rig.once(&rig.admin, "/api_keys", "k-1", body()).await;
    let mut without = first.clone();
    without["token"] = Value::Null;
    assert!(is_repeated);
    assert_eq!(later.body(), without);
    assert_eq!(rig.kinds_after(start).await, ["api_key_created.v0"]);
    // The secret is gone with the next sweep, and the answer a day later.
    assert_eq!(rig.control.kernel.prune_answers().await.unwrap(), 1);
    assert_eq!(rig.control.kernel.prune_answers().await.unwrap(), 0);
    rig.clock.advance(Duration::from_secs(86_400));
    let (new, is_repeated) = rig.once(&rig.admin, "/api_keys", "k-1", body()).await;
    assert!(!is_repeated);
    assert_ne!(new.body()["id"], first["id"]);
    rig.clock.advance(Duration::from_secs(86_400));
    assert_eq!(rig.control.kernel.prune_answers().await.unwrap(), 1);
}

#[tokio::test]
async fn a_key_belongs_to_its_caller_its_operation_and_its_request() {
    let rig = Rig::start().await;
    let vault = |name: &str| json!({"name": name, "metadata": ""});
    let (made, _) = rig.once(&rig.admin, "/vaults", "k", vault("a")).await;
    let made = made.body();
    // The order of members is no difference; a value and a query are.
    let other_order = json!({"metadata": "", "name": "a"});
    let (again, is_repeated) = rig.once(&rig.admin, "/vaults", "k", other_order).await;
    assert!(is_repeated);
    assert_eq!(again.body(), made);
    let (other, _) = rig.once(&rig.admin, "/vaults", "k", vault("b")).await;
    assert_eq!(other.code(), Some(262));
    // Of another operation and another key it is another one.
    let (other, is_repeated) = rig.once(&rig.admin, "/ip_policies", "k", json!({})).await;
    assert!(!is_repeated);
    other.body();
    let (_, token) = rig.another_key().await;
    let second = rig.authenticate(&token).await.unwrap();
    let (other, is_repeated) = rig.once(&second, "/vaults", "k", vault("c")).await;
    assert!(!is_repeated);
    other.body();
    // A refused request is not kept: the same one may be corrected.
    let (refused, _) = rig.once(&rig.admin, "/vaults", "k-2", vault("a")).await;
    assert_eq!(refused.code(), Some(23004));
    let (made, is_repeated) = rig.once(&rig.admin, "/vaults", "k-2", vault("d")).await;
    assert!(!is_repeated);
    // What was deleted since stays deleted, and the answer is as it was.
    let made = made.body();
    let path = format!("/vaults/{}", made["id"].as_str().unwrap());
    assert!(matches!(rig.delete(&path).await, Answered::NoContent));
    let (again, is_repeated) = rig.once(&rig.admin, "/vaults", "k-2", vault("d")).await;
    assert!(is_repeated);
    assert_eq!(again.body(), made);
    assert!(rig.get(&path).await.is_absent());
}

#[tokio::test]
async fn many_repeated_requests_at_one_time_have_one_effect() {
    let rig = Arc::new(Rig::start().await);
    let (_, start) = rig.events_after(0).await;
    let mut tasks = JoinSet::new();
    for _ in 0..400 {
        let rig = Arc::clone(&rig);
        tasks.spawn(async move {
            // The name is unique, so a second creation would be refused.
            let body = json!({"name": "one"});
            let (answered, is_repeated) = rig.once(&rig.admin, "/vaults", "k", body).await;
            (answered.body()["id"].clone(), is_repeated)
        });
    }
    let answers = tasks.join_all().await;
    let n_first = answers
        .iter()
        .filter(|(_, is_repeated)| !is_repeated)
        .count();
    assert_eq!(n_first, 1);
    assert!(answers.iter().all(|(id, _)| *id == answers[0].0));
    assert_eq!(rig.kinds_after(start).await, ["vault_created.v0"]);
}

#[tokio::test]
async fn an_answer_needs_the_rights_of_its_request() {
    let rig = Rig::start().await;
    let (id, token) = rig.another_key().await;
    let caller = rig.authenticate(&token).await.unwrap();
    let body = || json!({"name": "one"});
    let (made, _) = rig.once(&caller, "/vaults", "k", body()).await;
    made.body();
    let restrict = async |restrictions: Value| {
        let path = format!("/api_keys/{id}/restrictions");
        rig.patch(&path, restrictions).await.body();
        rig.authenticate(&token).await.unwrap()
    };
    let without_scope = restrict(json!({"scopes": ["endpoints.write"]})).await;
    let (refused, _) = rig.once(&without_scope, "/vaults", "k", body()).await;
    assert_eq!(refused.code(), Some(642));
    let with_less = restrict(json!({"scopes": ["secrets.write"]})).await;
    let (refused, _) = rig.once(&with_less, "/vaults", "k", body()).await;
    assert_eq!(refused.code(), Some(265));
    let lower = Caller {
        role: Role::Member,
        ..caller.clone()
    };
    let (refused, _) = rig.once(&lower, "/vaults", "k", body()).await;
    assert_eq!(refused.code(), Some(265));
    let (again, is_repeated) = rig.once(&caller, "/vaults", "k", body()).await;
    assert!(is_repeated);
    again.body();
}

#[tokio::test]
async fn every_post_with_a_secret_and_every_effect_is_repeated_once() {
    let rig = Rig::start().await;
    let created = |of: &str, field: &str| (of.to_owned(), field.to_owned());
    let key = rig.post("/api_keys", json!({})).await.body();
    let user = json!({"email": "a@example.com", "role": "member"});
    let invited = rig.post("/users", user).await.body();
    let subscription = rig.path_of_new("event_subscriptions").await;
    let rotate = format!("/api_keys/{}/rotate", key["id"].as_str().unwrap());
    let invite = format!("/users/{}/invite", invited["id"].as_str().unwrap());
    let sources = format!("{subscription}/sources");
    let (_, start) = rig.events_after(0).await;
    for ((path, secret), body, n_events) in [
        (created(&rotate, "token"), json!({"overlap": 60}), 2),
        (created(&invite, "invitation_url"), Value::Null, 3),
        (created("/credentials", "token"), json!({}), 1),
        (
            created(&sources, ""),
            json!({"type": "vault_deleted.v0"}),
            1,
        ),
    ] {
        let (_, before) = rig.events_after(start).await;
        let (first, is_first) = rig.once(&rig.admin, &path, "k", body.clone()).await;
        let first = first.body();
        let told = rig.kinds_after(before).await;
        assert_eq!(told.len(), n_events, "{path}: {told:?}");
        let (again, is_repeated) = rig.once(&rig.admin, &path, "k", body.clone()).await;
        assert_eq!((is_first, is_repeated), (false, true), "{path}");
        assert_eq!(again.body(), first, "{path}");
        assert_eq!(rig.kinds_after(before).await.len(), n_events, "{path}");
        if !secret.is_empty() {
            assert!(first[&secret].is_string(), "{path}: {first}");
            rig.clock.advance(Duration::from_secs(61));
            let (later, _) = rig.once(&rig.admin, &path, "k", body).await;
            assert!(later.body()[&secret].is_null(), "{path}");
        }
    }
}

#[tokio::test]
async fn an_effect_outside_of_the_database_is_not_repeated() {
    let rig = Rig::start().await;
    let path = format!("{}/test", rig.path_of_new("event_destinations").await);
    let (_, start) = rig.events_after(0).await;
    let (first, _) = rig.once(&rig.admin, &path, "k", Value::Null).await;
    let first = first.body();
    let (again, is_repeated) = rig.once(&rig.admin, &path, "k", Value::Null).await;
    assert!(is_repeated);
    assert_eq!(again.body(), first);
    assert_eq!(
        rig.kinds_after(start).await,
        ["event_destination_tested.v0"]
    );
    // A refused one leaves nothing behind.
    let missing = "/event_destinations/ed_2h0bXHdzY5W9r3oLUMHCLCbPRUc/test";
    for _ in 0..2 {
        let (absent, is_repeated) = rig.once(&rig.admin, missing, "k-3", Value::Null).await;
        assert!(absent.is_absent() && !is_repeated);
    }
    // Who may not do it claims nothing.
    let reader = Caller {
        role: Role::ReadOnly,
        ..rig.admin.clone()
    };
    let before = rig.store.revision().await.unwrap();
    let (refused, _) = rig.once(&reader, &path, "k-4", Value::Null).await;
    assert_eq!(refused.code(), Some(635));
    assert_eq!(rig.store.revision().await.unwrap(), before);
    // Two at one time: one runs, and the other gets its answer or 409.
    let (one, two) = tokio::join!(
        rig.once(&rig.admin, &path, "k-2", Value::Null),
        rig.once(&rig.admin, &path, "k-2", Value::Null)
    );
    let codes = [one, two].map(|(answered, _)| match answered {
        Answered::Refused(class, code, _) => {
            assert_eq!(class, Class::Running);
            code
        }
        answered => {
            answered.body();
            None
        }
    });
    assert!(codes.iter().all(|code| matches!(code, None | Some(263))));
    let tests = rig.kinds_after(start).await;
    assert_eq!(tests.len(), 2, "{tests:?}");
}

impl Rig {
    /// Fills the part that a key has of its owner's room.
    async fn fill_room_of(&self, by: &Caller) {
        let now = self.clock.now();
        let answer = KeptAnswer {
            id: format!("all of {}", by.key_id),
            owner: format!("{} {}", by.account, by.owner_id),
            key: by.key_id.clone(),
            kept_at: now,
            revision: 0,
            body: "x".repeat(usize::try_from(once::ROOM.bytes / 2).unwrap()),
            secret: None,
        };
        let changes = Changes::keep(answer, now.minus(once::KEPT_FOR), once::ROOM);
        self.store.commit(changes).await.unwrap();
    }
}

#[tokio::test]
async fn one_key_takes_no_room_of_another_key_of_its_owner() {
    let rig = Rig::start().await;
    let (_, token) = rig.another_key().await;
    let narrow = rig.authenticate(&token).await.unwrap();
    rig.fill_room_of(&narrow).await;
    let named = |name: &str| json!({"name": name});
    let (full, _) = rig.once(&narrow, "/vaults", "k", named("a")).await;
    assert_eq!(full.code(), Some(264));
    // What was refused changed nothing, and needs no key.
    let (_, seq) = rig.events_after(0).await;
    rig.call(&narrow, "POST", "/vaults", named("a"))
        .await
        .body();
    assert_eq!(rig.kinds_after(seq).await, ["vault_created.v0"]);
    let (made, _) = rig.once(&rig.admin, "/vaults", "k", named("b")).await;
    let (again, is_repeated) = rig.once(&rig.admin, "/vaults", "k", named("b")).await;
    assert!(is_repeated);
    assert_eq!(again.body(), made.body());
    // A day later there is room again.
    rig.clock.advance(Duration::from_secs(86_400));
    rig.control.kernel.prune_answers().await.unwrap();
    let (made, _) = rig.once(&narrow, "/vaults", "k", named("c")).await;
    made.body();
}

/// Without room, an operation that keeps its answer after its effect succeeds; one that claims its key first has no effect.
#[tokio::test]
async fn a_full_room_hides_no_effect() {
    let rig = Rig::start().await;
    let (_, token) = rig.another_key().await;
    let caller = rig.authenticate(&token).await.unwrap();
    let destination = rig.path_of_new("event_destinations").await;
    let leaked = rig.post("/credentials", json!({})).await.body();
    rig.fill_room_of(&caller).await;
    let (_, seq) = rig.events_after(0).await;
    let report = || json!({"tokens": [{"token": leaked["token"]}]});
    for _ in 0..2 {
        let (done, is_repeated) = rig.once(&caller, "/leaked_tokens", "k", report()).await;
        assert_eq!((done, is_repeated), (Answered::NoContent, false));
    }
    let told = rig.kinds_after(seq).await;
    let n_leaks = told
        .iter()
        .filter(|kind| *kind == "tunnel_credential_leaked.v0");
    assert_eq!(n_leaks.count(), 1, "{told:?}");
    let path = format!("{destination}/test");
    let (refused, _) = rig.once(&caller, &path, "k", Value::Null).await;
    assert_eq!(refused.code(), Some(264));
    let told = rig.kinds_after(seq).await;
    assert!(
        !told
            .iter()
            .any(|kind| kind == "event_destination_tested.v0")
    );
}

#[tokio::test]
async fn a_dry_run_is_not_kept() {
    let rig = Rig::start().await;
    let preview = "/api_keys?dry_run=true";
    for _ in 0..2 {
        let (answered, is_repeated) = rig.once(&rig.admin, preview, "k", json!({})).await;
        assert!(matches!(answered, Answered::Ok(_)) && !is_repeated);
    }
    let (made, _) = rig.once(&rig.admin, "/api_keys", "k", json!({})).await;
    made.body();
    let (refused, _) = rig.once(&rig.admin, preview, "k", json!({})).await;
    assert_eq!(refused.code(), Some(262));
}

#[tokio::test]
async fn of_concurrent_writes_of_one_state_one_is_done() {
    let rig = Arc::new(Rig::start().await);
    let made = rig.post("/ip_policies", json!({})).await.body();
    let path = format!("/ip_policies/{}", made["id"].as_str().unwrap());
    let terms: Arc<Terms> = Arc::default();
    let seen = rig.call_on(&rig.admin, "GET", &path, Value::Null, Arc::clone(&terms));
    seen.await.body();
    let state = terms.shown().unwrap().state;
    let mut tasks = JoinSet::new();
    for n in 0..40 {
        let (rig, path, terms) = (Arc::clone(&rig), path.clone(), if_match(&state));
        tasks.spawn(async move {
            let body = json!({"description": format!("{n}")});
            let written = rig.call_on(&rig.admin, "PATCH", &path, body, terms).await;
            match written {
                Answered::Ok(_) => 1,
                refused => {
                    assert_eq!(refused.code(), Some(266));
                    0
                }
            }
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<i32>(), 1);
    let stale = rig.call_on(&rig.admin, "DELETE", &path, Value::Null, if_match(&state));
    assert_eq!(stale.await.code(), Some(266));
    let terms: Arc<Terms> = Arc::default();
    let seen = rig.call_on(&rig.admin, "GET", &path, Value::Null, Arc::clone(&terms));
    seen.await.body();
    let current = if_match(&terms.shown().unwrap().state);
    let gone = rig.call_on(&rig.admin, "DELETE", &path, Value::Null, current);
    assert!(matches!(gone.await, Answered::NoContent));
}

#[tokio::test]
async fn a_write_below_an_object_has_its_conditions_and_a_creation_has_none() {
    let rig = Rig::start().await;
    let path = rig.path_of_new("event_subscriptions").await;
    let key = rig.path_of_new("api_keys").await;
    let old = || if_match("0000000000000000");
    for (method, path, body) in [
        (
            "POST",
            format!("{path}/sources"),
            json!({"type": "vault_deleted.v0"}),
        ),
        (
            "PATCH",
            format!("{key}/restrictions"),
            json!({"role": "member"}),
        ),
        ("DELETE", format!("{key}/restrictions"), Value::Null),
        ("POST", format!("{key}/rotate"), Value::Null),
    ] {
        let refused = rig.call_on(&rig.admin, method, &path, body, old()).await;
        assert_eq!(refused.code(), Some(266), "{method} {path}");
    }
    let refused = rig.call_on(&rig.admin, "POST", "/vaults", json!({"name": "a"}), old());
    assert_eq!(refused.await.code(), Some(267));
}
