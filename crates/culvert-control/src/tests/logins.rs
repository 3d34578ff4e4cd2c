//! Sign-ins that the edge reports: users and sessions are created, used, ended and removed.

use std::time::Duration;

use culvert_login::{Ending, JournalEntry, Noted, Person, Sighting};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;

/// Control that writes the reported sign-ins.
struct JournalRig {
    rig: Rig,
    /// The edge's sender of entries.
    journal: mpsc::Sender<JournalEntry>,
    _running: JoinSet<()>,
}

impl JournalRig {
    async fn start() -> Self {
        let rig = Rig::start().await;
        drop(rig.entries.lock().unwrap().take());
        let (journal, entries) = mpsc::channel(8);
        let mut running = JoinSet::new();
        let stop = CancellationToken::new();
        running.spawn(
            rig.control
                .identity
                .clone()
                .keep_logins(entries, stop.clone()),
        );
        running.spawn(rig.control.clone().run(stop));
        Self {
            rig,
            journal,
            _running: running,
        }
    }

    fn sighting(&self, session: u32, user: &str) -> Sighting {
        self.sighting_of(&self.rig.admin.owner_id, session, user)
    }

    fn sighting_of(&self, owner: &str, session: u32, user: &str) -> Sighting {
        let now = self.rig.clock.now();
        Sighting {
            session: session_id(session),
            account: self.rig.admin.account.as_str().into(),
            owner: owner.into(),
            endpoint: "ep_1".to_owned(),
            public_url: "https://app.culvert.localhost".to_owned(),
            provider: "id.example".to_owned(),
            provider_url: "https://id.example/".to_owned(),
            person: Person {
                provider_user_id: user.to_owned(),
                username: String::new(),
                email: format!("{user}@x.example"),
                name: user.to_owned(),
            },
            user_agent: "curl/8".to_owned(),
            ip_address: "192.0.2.1".to_owned(),
            started_at: now,
            seen_at: now,
            expires_at: now.plus(Duration::from_secs(3600)),
        }
    }

    async fn tell(&self, sighting: Sighting) -> Noted {
        let (answer, noted) = oneshot::channel();
        let entry = JournalEntry::SignedIn(Box::new(sighting), answer);
        self.journal.send(entry).await.unwrap();
        noted.await.unwrap()
    }

    async fn list(&self, collection: &str, field: &str) -> Vec<Value> {
        let list = self
            .rig
            .get(&format!("/{collection}?limit=100"))
            .await
            .body();
        list[field].as_array().unwrap().clone()
    }

    async fn sessions(&self) -> Vec<Value> {
        self.list("app/sessions", "application_sessions").await
    }
}

fn session_id(number: u32) -> String {
    format!("as_{number:027}")
}

/// The use of a session is written once a minute, so it has no event.
#[tokio::test]
async fn the_use_of_a_session_has_no_event() {
    let kept = JournalRig::start().await;
    let (_, seq) = kept.rig.events_after(0).await;
    let first = kept.sighting(1, "ann");
    kept.tell(first.clone()).await;
    let kinds = |reported: Vec<Value>| -> Vec<String> {
        let kinds = reported.iter().map(|event| event["event_type"].as_str());
        kinds.map(|kind| kind.unwrap().to_owned()).collect()
    };
    let (reported, seq) = kept.rig.events_after(seq).await;
    let begun = [
        "application_user_created.v0",
        "application_session_created.v0",
    ];
    assert_eq!(kinds(reported), begun);
    let used = Sighting {
        seen_at: first.seen_at.plus(Duration::from_secs(90)),
        expires_at: first.expires_at.plus(Duration::from_secs(90)),
        ..first.clone()
    };
    kept.tell(used.clone()).await;
    assert_eq!(kept.rig.events_after(seq).await.0, Vec::<Value>::new());
    let renamed = Sighting {
        person: Person {
            name: "Ann".to_owned(),
            ..used.person.clone()
        },
        ..used
    };
    kept.tell(renamed).await;
    let (reported, _) = kept.rig.events_after(seq).await;
    assert_eq!(reported[0]["previous"], json!({"name": "ann"}));
    assert_eq!(kinds(reported), ["application_user_updated.v0"]);
}

#[tokio::test]
async fn sign_ins_are_listed_and_updated() {
    let kept = JournalRig::start().await;
    let first = kept.sighting(1, "ann");
    let Noted::Stored(user_id) = kept.tell(first.clone()).await else {
        panic!("it is not noted");
    };
    let users = kept.list("app/users", "application_users").await;
    assert_eq!(users.len(), 1);
    assert_eq!(users[0]["id"], *user_id);
    assert_eq!(
        users[0]["identity_provider"],
        json!({"name": "id.example", "url": "https://id.example/"})
    );
    assert_eq!(users[0]["email"], "ann@x.example");
    let sessions = kept.sessions().await;
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0]["id"], *session_id(1));
    assert_eq!(sessions[0]["application_user"]["id"], *user_id);
    assert_eq!(sessions[0]["endpoint"]["id"], "ep_1");
    assert_eq!(
        sessions[0]["browser_session"]["user_agent"]["raw"],
        "curl/8"
    );

    // The session is used again, and the user's name has changed.
    let later = Duration::from_secs(100);
    kept.rig.clock.advance(later);
    let mut again = kept.sighting(1, "ann");
    again.started_at = first.started_at;
    again.person.name = "Ann".to_owned();
    assert_eq!(kept.tell(again).await, Noted::Stored(user_id.clone()));
    let users = kept.list("app/users", "application_users").await;
    assert_eq!(users[0]["name"], "Ann");
    assert_eq!(users[0]["last_active"], kept.rig.clock.now().to_string());
    assert_eq!(users[0]["last_login"], first.started_at.to_string());
    assert_eq!(
        kept.sessions().await[0]["last_active"],
        kept.rig.clock.now().to_string()
    );
    // Another browser of the same user, and another user.
    assert_eq!(
        kept.tell(kept.sighting(2, "ann")).await,
        Noted::Stored(user_id.clone())
    );
    assert_ne!(
        kept.tell(kept.sighting(3, "bob")).await,
        Noted::Stored(user_id)
    );
    assert_eq!(kept.sessions().await.len(), 3);
}

#[tokio::test]
async fn an_ended_application_session_is_not_restored() {
    let kept = JournalRig::start().await;
    let (one, two) = (kept.sighting(1, "ann"), kept.sighting(2, "ann"));
    let Noted::Stored(user_id) = kept.tell(one.clone()).await else {
        panic!("it is not noted");
    };
    kept.tell(two.clone()).await;
    let path = format!("/app/sessions/{}", session_id(1));
    assert_eq!(kept.rig.delete(&path).await, Answered::NoContent);
    assert_eq!(kept.tell(one.clone()).await, Noted::Ended);
    assert_eq!(kept.tell(two.clone()).await, Noted::Stored(user_id.clone()));

    // The user signs out of the other session.
    let ending = Ending {
        session: two.session.clone(),
        account: two.account.clone(),
        user: two.user(),
        until: two.expires_at,
    };
    kept.journal
        .send(JournalEntry::Ended(Box::new(ending)))
        .await
        .unwrap();
    let gone = async {
        while !kept.sessions().await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(culvert_testing::PATIENCE, gone)
        .await
        .unwrap();
    assert_eq!(kept.tell(two).await, Noted::Ended);

    // Removing the user ends all sessions, and a new sign-in creates a new user.
    let three = kept.sighting(3, "ann");
    assert_eq!(
        kept.tell(three.clone()).await,
        Noted::Stored(user_id.clone())
    );
    let path = format!("/app/users/{user_id}");
    assert_eq!(kept.rig.delete(&path).await, Answered::NoContent);
    assert!(kept.sessions().await.is_empty());
    assert_eq!(kept.tell(three).await, Noted::Ended);
    kept.rig.clock.advance(Duration::from_secs(1));
    let Noted::Stored(new_id) = kept.tell(kept.sighting(4, "ann")).await else {
        panic!("it is not noted");
    };
    assert_ne!(new_id, user_id);
}

/// How a session ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// Through the API.
    Alone,
    /// With its user, through the API.
    WithUser,
    /// By the user, who signs out.
    SignedOut,
}

/// A session that ended accepts no request again, whichever way the clock is set before and after its end. Nodes whose
/// clocks differ are the same case.
#[tokio::test]
async fn an_ended_application_session_stays_ended_when_the_clock_is_set() {
    const DAY: u64 = 24 * 3600;
    let kept = JournalRig::start().await;
    let clock = &kept.rig.clock;
    let start = clock.now();
    let by = |seconds: i64| {
        let by = Duration::from_secs(seconds.unsigned_abs());
        clock.set(match seconds < 0 {
            true => clock.now().minus(by),
            false => clock.now().plus(by),
        });
    };
    let far = i64::try_from(400 * DAY).unwrap();
    let steps = [0, 3600, -3600, far, -far];
    let id_at = |at: Timestamp, number: u32| {
        let mut random = [0; 16];
        random[..4].copy_from_slice(&number.to_be_bytes());
        format!("as_{}", culvert_base::Ksuid::new(at, random))
    };
    let mut number = 0;
    for ends in [Ends::Alone, Ends::WithUser, Ends::SignedOut] {
        for before in steps {
            for after in steps {
                let case = format!("{ends:?} {before} {after}");
                clock.set(start);
                number += 1;
                let user = format!("user{number}");
                let mut session = kept.sighting(number, &user);
                session.session = id_at(start, number);
                let Noted::Stored(user_id) = kept.tell(session.clone()).await else {
                    panic!("{case}: it is not noted");
                };
                kept.rig.control.identity.clean_logins().await.unwrap();
                by(before);
                match ends {
                    Ends::Alone => {
                        let path = format!("/app/sessions/{}", session.session);
                        assert_eq!(kept.rig.delete(&path).await, Answered::NoContent);
                    }
                    Ends::WithUser => {
                        let path = format!("/app/users/{user_id}");
                        assert_eq!(kept.rig.delete(&path).await, Answered::NoContent);
                    }
                    Ends::SignedOut => {
                        let ending = Ending {
                            session: session.session.clone(),
                            account: session.account.clone(),
                            user: session.user(),
                            until: session.expires_at,
                        };
                        let ending = JournalEntry::Ended(Box::new(ending));
                        kept.journal.send(ending).await.unwrap();
                        eventually("it is gone", async || {
                            let path = format!("/app/sessions/{}", session.session);
                            !matches!(kept.rig.get(&path).await, Answered::Ok(_))
                        })
                        .await;
                    }
                }
                assert_eq!(kept.tell(session.clone()).await, Noted::Ended, "{case}");
                by(after);
                kept.rig.control.identity.clean_logins().await.unwrap();
                // Another end of the user's sessions at that time.
                let mut other = kept.sighting(100_000 + number, &user);
                other.session = id_at(clock.now(), 100_000 + number);
                if let Noted::Stored(user_id) = kept.tell(other).await {
                    let path = format!("/app/users/{user_id}");
                    assert_eq!(kept.rig.delete(&path).await, Answered::NoContent);
                }
                clock.set(start);
                kept.rig.control.identity.clean_logins().await.unwrap();
                assert_eq!(kept.tell(session).await, Noted::Ended, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn application_sessions_of_a_user_are_limited() {
    let kept = JournalRig::start().await;
    let oldest = kept.sighting(0, "ann");
    for number in 0..52 {
        let noted = kept.tell(kept.sighting(number, "ann")).await;
        assert!(matches!(noted, Noted::Stored(_)), "{number}");
    }
    assert_eq!(kept.sessions().await.len(), 50);
    assert_eq!(kept.tell(oldest).await, Noted::Ended);
}

#[tokio::test]
async fn expired_application_sessions_are_deleted() {
    let kept = JournalRig::start().await;
    kept.tell(kept.sighting(1, "ann")).await;
    kept.rig.clock.advance(Duration::from_secs(3600 + 599));
    kept.rig.control.identity.clean_logins().await.unwrap();
    assert_eq!(kept.sessions().await.len(), 1);
    kept.rig.clock.advance(Duration::from_secs(2));
    kept.rig.control.identity.clean_logins().await.unwrap();
    assert!(kept.sessions().await.is_empty());
}

/// The same person at the endpoints of two owners is two application users, each of which only its owner sees and ends.
#[tokio::test]
async fn application_users_and_sessions_are_their_owners() {
    let kept = JournalRig::start().await;
    let rig = &kept.rig;
    let ann = rig.user("ann@x.example", Role::Member, true).await;
    let bob = rig.user("bob@x.example", Role::Member, true).await;
    let mut ids = Vec::new();
    for (number, owner) in [(1, &ann), (2, &bob)] {
        let sighting = kept.sighting_of(&owner.owner_id, number, "carol");
        let Noted::Stored(user) = kept.tell(sighting).await else {
            panic!("it is not noted");
        };
        ids.push(user);
    }
    assert_ne!(ids[0], ids[1]);
    let owners = [&ann, &bob];
    for (n, owner) in owners.into_iter().enumerate() {
        for (m, user) in ids.iter().enumerate() {
            let session = session_id(u32::try_from(m).unwrap() + 1);
            for (collection, field, id) in [
                ("app/users", "application_users", user),
                ("app/sessions", "application_sessions", &session),
            ] {
                let one = format!("/{collection}/{id}");
                let all = format!("/{collection}");
                let list = rig.call(owner, "GET", &all, Value::Null).await.body();
                let listed = list[field].as_array().unwrap();
                assert_eq!(listed.len(), 1, "{collection}");
                assert_eq!(listed[0]["id"] == **id, n == m, "{collection}");
                let shown = rig.call(owner, "GET", &one, Value::Null).await;
                assert_eq!(shown.is_absent(), n != m, "{one}");
                if n != m {
                    let removed = rig.call(owner, "DELETE", &one, Value::Null).await;
                    assert!(removed.is_absent(), "{one}");
                }
                assert!(!rig.get(&one).await.is_absent(), "an admin sees {one}");
            }
        }
    }
    // Ending one leaves the session at the other owner's endpoint.
    let path = format!("/app/users/{}", ids[0]);
    let removed = rig.call(&ann, "DELETE", &path, Value::Null).await;
    assert_eq!(removed, Answered::NoContent);
    let again = kept.sighting_of(&ann.owner_id, 1, "carol");
    assert_eq!(kept.tell(again).await, Noted::Ended);
    let other = kept.sighting_of(&bob.owner_id, 2, "carol");
    assert_eq!(kept.tell(other).await, Noted::Stored(ids[1].clone()));
}

/// Former versions recorded no owner. Policies may know the ID of such a user.
#[tokio::test]
async fn an_application_user_without_an_owner_is_of_admins_until_the_next_sign_in() {
    let kept = JournalRig::start().await;
    let rig = &kept.rig;
    let ann = rig.user("ann@x.example", Role::Member, true).await;
    let Noted::Stored(user) = kept.tell(kept.sighting_of("", 1, "carol")).await else {
        panic!("it is not noted");
    };
    let path = format!("/app/users/{user}");
    assert!(rig.call(&ann, "GET", &path, Value::Null).await.is_absent());
    assert!(!rig.get(&path).await.is_absent());
    let again = kept.sighting_of(&ann.owner_id, 2, "carol");
    assert_eq!(kept.tell(again).await, Noted::Stored(user));
    assert!(!rig.call(&ann, "GET", &path, Value::Null).await.is_absent());
}

#[tokio::test]
async fn sign_in_policies_are_validated() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let other = json!({"domain": "theirs.example"});
    rig.call(&stranger, "POST", "/reserved_domains", other)
        .await
        .body();
    for domain in ["a.b.ours.example", "b.ours.example", "sub.theirs.example"] {
        let caller = match domain.contains("theirs") {
            true => &stranger,
            false => &rig.admin,
        };
        let made = rig.call(
            caller,
            "POST",
            "/reserved_domains",
            json!({"domain": domain}),
        );
        made.await.body();
    }
    let write = async |caller: &Caller, host: &str, change: Value| {
        let mut config = json!({"provider": "google", "client_id": "me", "client_secret": "hush"});
        for (name, value) in change.as_object().unwrap() {
            config[name] = value.clone();
        }
        let action = json!({"type": "oauth", "config": config});
        let body = json!({
            "url": format!("https://{host}"), "upstream_url": "http://127.0.0.1:9",
            "pooling_enabled": true,
            "traffic_policy": {"on_http_request": [{"actions": [action]}]},
        });
        match rig.call(caller, "POST", "/endpoints", body).await {
            Answered::Created(shown) => {
                let policy = shown["traffic_policy"].as_str().unwrap();
                assert!(policy.contains("hush"), "{policy}");
                None
            }
            refused => refused.code(),
        }
    };
    let admin = &rig.admin;
    assert_eq!(write(admin, "a.b.ours.example", json!({})).await, None);
    for (host, domain, code) in [
        ("a.b.ours.example", "a.b.ours.example", None),
        ("a.b.ours.example", "b.ours.example", None),
        // Domains that the account has not reserved.
        ("a.b.ours.example", "ours.example", Some(2204)),
        ("a.b.ours.example", "example", Some(2204)),
        ("a.b.ours.example", "other.example", Some(2204)),
        ("a.b.ours.example", "*.ours.example", Some(2204)),
        ("x.culvert.localhost", "culvert.localhost", Some(2204)),
    ] {
        let change = json!({"auth_cookie_domain": domain});
        assert_eq!(write(admin, host, change).await, code, "{domain}");
    }
    let change = json!({"auth_cookie_domain": "theirs.example"});
    assert_eq!(write(&stranger, "sub.theirs.example", change).await, None);
    // Cookies of a sign-in are kept only at https.
    let action = json!({"type": "oauth", "config": {"provider": "google", "client_id": "a", "client_secret": "b"}});
    for (url, code) in [
        ("http://a.b.ours.example", Some(2205)),
        ("http://a.internal", None),
        ("https://a.internal", None),
    ] {
        let body = json!({
            "url": url, "upstream_url": "http://127.0.0.1:9", "pooling_enabled": true,
            "traffic_policy": {"on_http_request": [{"actions": [action]}]},
        });
        let found = match rig.post("/endpoints", body).await {
            Answered::Created(_) => None,
            refused => refused.code(),
        };
        assert_eq!(found, code, "{url}");
    }
}
