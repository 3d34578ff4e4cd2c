//! Rotations with an overlap: who still uses the token before, and the events at the end of the overlap.

use std::time::Duration;

use super::*;
use crate::signed_tokens;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const HERE: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A key with an overlap: its ID, and its tokens before and after the rotation.
struct Rotated {
    path: String,
    id: String,
    old: String,
    new: String,
}

fn token_of(made: &Value) -> String {
    made["token"].as_str().unwrap().to_owned()
}

impl Rotated {
    async fn new(rig: &Rig, body: Value) -> Self {
        let made = rig
            .post("/api_keys", json!({"description": "ci"}))
            .await
            .body();
        let id = made["id"].as_str().unwrap().to_owned();
        let path = format!("/api_keys/{id}");
        let rotated = rig.post(&format!("{path}/rotate"), body).await.body();
        Self {
            path,
            id,
            old: token_of(&made),
            new: token_of(&rotated),
        }
    }

    async fn uses(&self, rig: &Rig, token: &str, address: [u8; 4]) {
        let caller = rig.authenticate(token).await.unwrap();
        assert_eq!(caller.key_id, self.id);
        rig.control.identity.note_key_use(&caller, address.into());
    }

    async fn usage(&self, rig: &Rig) -> Value {
        let both = format!("{}?include=usage,restrictions", self.path);
        rig.get(&both).await.body()
    }
}

impl Rig {
    /// The kinds and objects of the events about overlaps since the last call.
    async fn overlap_events(&self) -> Vec<(String, Value)> {
        let after = *self.last_seq.lock().unwrap();
        let (events, last) = self.events_after(after).await;
        *self.last_seq.lock().unwrap() = last;
        let mut found = Vec::new();
        for event in events {
            let kind = event["event_type"].as_str().unwrap();
            if kind.contains("_overlap_") || kind.contains("rotation_unused") {
                found.push((kind.to_owned(), event));
            }
        }
        found
    }

    async fn watch_overlaps(&self) -> Vec<(String, Value)> {
        let (one, two) = tokio::join!(
            // Two nodes look at the same time.
            self.control.identity.watch_overlaps(self.clock.now()),
            self.control.identity.watch_overlaps(self.clock.now())
        );
        one.and(two).unwrap();
        self.overlap_events().await
    }
}

fn kinds(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(kind, _)| kind.as_str()).collect()
}

#[tokio::test]
async fn an_overlap_is_a_duration_or_a_time_within_a_week() {
    let rig = Rig::start().await;
    let key = Rotated::new(&rig, json!({})).await;
    let rotate = format!("{}/rotate", key.path);
    let now = rig.clock.now();
    for (body, expected) in [
        (json!({}), Ok(None)),
        (json!({"overlap": 60}), Ok(Some(Duration::from_secs(60)))),
        (json!({"overlap_until": "3d"}), Ok(Some(3 * DAY))),
        (json!({"overlap_until": "7d"}), Ok(Some(7 * DAY))),
        (
            json!({"overlap_until": now.plus(HOUR).to_string()}),
            Ok(Some(HOUR)),
        ),
        (json!({"overlap_until": "8d"}), Err(215)),
        (json!({"overlap_until": "2027-01-01"}), Err(215)),
        (json!({"overlap_until": "soon"}), Err(241)),
        (json!({"overlap_until": 5}), Err(215)),
        (json!({"overlap": 604_801}), Err(215)),
        (json!({"overlap": 60, "overlap_until": "1h"}), Err(215)),
    ] {
        let before = key.usage(&rig).await;
        let answered = rig.post(&rotate, body.clone()).await;
        let shown = key.usage(&rig).await;
        match expected {
            Ok(length) => {
                assert!(matches!(answered, Answered::Created(_)), "{body}");
                let until = length.map(|length: Duration| json!(now.plus(length).to_string()));
                let shown = &shown["previous_token_expires_at"];
                assert_eq!(*shown, until.unwrap_or(Value::Null), "{body}");
            }
            Err(code) => {
                assert_eq!(answered.code(), Some(code), "{body} {answered:?}");
                assert_eq!(shown, before, "{body}");
            }
        }
    }
}

#[tokio::test]
async fn each_token_shows_its_last_use() {
    let rig = Rig::start().await;
    let key = Rotated::new(&rig, json!({})).await;
    key.uses(&rig, &key.new, [192, 0, 2, 1]).await;
    rig.control.identity.write_key_uses().await.unwrap();
    let first = rig.clock.now().whole_seconds().to_string();
    let rotate = format!("{}/rotate", key.path);
    rig.clock.advance(HOUR);
    let rotated = rig.post(&rotate, json!({"overlap": 7200})).await.body();
    let newest = token_of(&rotated);

    let shown = key.usage(&rig).await;
    assert_eq!(shown["rotated_at"], rig.clock.now().to_string());
    assert_eq!(shown["token_last_used_at"], Value::Null);
    assert_eq!(shown["token_last_used_from"], "");
    assert_eq!(shown["previous_token_last_used_at"], first);
    assert_eq!(shown["previous_token_last_used_from"], "192.0.2.1");
    assert_eq!(shown["last_used_at"], first);

    rig.clock.advance(HOUR / 2);
    key.uses(&rig, &newest, [192, 0, 2, 2]).await;
    // One token is known from the store, the other one from this node.
    for _ in 0..2 {
        let shown = key.usage(&rig).await;
        let now = rig.clock.now().whole_seconds().to_string();
        assert_eq!(shown["token_last_used_at"], now);
        assert_eq!(shown["token_last_used_from"], "192.0.2.2");
        assert_eq!(shown["previous_token_last_used_at"], first);
        let below = rig.get(&format!("{}/restrictions", key.path)).await.body();
        for field in ["token_last_used_at", "previous_token_last_used_from"] {
            assert_eq!(below[field], shown[field], "{field}");
        }
        rig.control.identity.write_key_uses().await.unwrap();
    }
    let filter = "/api_keys?filter=obj.previous_token_last_used_at%20!=%20null";
    let list = rig.get(filter).await.body();
    assert_eq!(list["keys"].as_array().unwrap().len(), 1);
    assert_eq!(list["keys"][0].as_object().unwrap().len(), 7);
    // A token that works no more is not shown.
    rig.clock.advance(2 * HOUR);
    let shown = key.usage(&rig).await;
    assert_eq!(shown["previous_token_last_used_at"], Value::Null);
    assert_eq!(shown["previous_token_expires_at"], Value::Null);
}

/// The token before and the new one, used or not × the end of the overlap.
#[tokio::test]
async fn the_end_of_an_overlap_is_reported_once() {
    for (uses_old, uses_new) in [(true, false), (false, true), (true, true), (false, false)] {
        let rig = Rig::start().await;
        let key = Rotated::new(&rig, json!({"overlap_until": "4d"})).await;
        rig.clock.advance(DAY);
        // A use in the first half is none of a program that was forgotten.
        key.uses(&rig, &key.old, [192, 0, 2, 1]).await;
        if uses_new {
            key.uses(&rig, &key.new, [192, 0, 2, 2]).await;
        }
        rig.control.identity.write_key_uses().await.unwrap();
        rig.overlap_events().await;
        rig.clock.advance(2 * DAY);
        assert!(rig.watch_overlaps().await.is_empty());
        if uses_old {
            key.uses(&rig, &key.old, [192, 0, 2, 3]).await;
            let events = rig.watch_overlaps().await;
            assert_eq!(kinds(&events), ["api_key_overlap_ending.v0"]);
            let object = &events[0].1["object"];
            assert_eq!(object["id"], key.id);
            assert_eq!(object["previous_token_last_used_from"], "192.0.2.3");
            assert_eq!(object["token_last_used_at"].is_null(), !uses_new);
            assert_eq!(object["owner_id"], *rig.admin.owner_id);
            assert_eq!(events[0].1["principal"], Value::Null);
        }
        assert!(rig.watch_overlaps().await.is_empty());
        rig.clock.advance(DAY);
        assert_eq!(rig.authenticate(&key.old).await.err(), Some(Some(203)));
        // Other nodes write the last uses within a minute.
        assert!(rig.watch_overlaps().await.is_empty());
        rig.clock.advance(Duration::from_secs(120));
        let events = rig.watch_overlaps().await;
        let expected: &[&str] = match uses_new {
            true => &["api_key_overlap_ended.v0"],
            false => &["api_key_overlap_ended.v0", "api_key_rotation_unused.v0"],
        };
        assert_eq!(kinds(&events), expected);
        assert!(rig.watch_overlaps().await.is_empty());
        assert!(rig.store.all("key_overlap").await.unwrap().is_empty());
        // The clock is set back: the token stays dead.
        rig.clock.set(rig.clock.now().minus(2 * DAY));
        assert_eq!(rig.authenticate(&key.old).await.err(), Some(Some(203)));
        rig.authenticate(&key.new).await.unwrap();
    }
}

#[tokio::test]
async fn an_overlap_can_be_ended_early() {
    let rig = Rig::start().await;
    let key = Rotated::new(&rig, json!({"overlap_until": "2d"})).await;
    let end = format!("{}/previous_token", key.path);
    let old = rig.authenticate(&key.old).await.unwrap();
    let (cookie, _) = rig.control.identity.sign_in(old, HERE).await.unwrap();
    rig.overlap_events().await;
    assert_eq!(rig.delete(&end).await, Answered::NoContent);
    let events = rig.overlap_events().await;
    assert_eq!(kinds(&events), ["api_key_overlap_ended.v0"]);
    let ended = &events[0].1;
    assert_eq!(ended["principal"]["id"], *rig.admin.owner_id);
    assert_eq!(ended["object"]["ends_at"], rig.clock.now().to_string());
    assert_eq!(rig.authenticate(&key.old).await.err(), Some(Some(203)));
    let session = rig.control.identity.console_session(cookie.reveal(), HERE);
    assert!(session.await.is_err());
    // There is none any more.
    assert!(rig.delete(&end).await.is_absent());
    // No program has used the new token: that is reported, once uses of other nodes are known.
    assert!(rig.watch_overlaps().await.is_empty());
    rig.clock.advance(Duration::from_secs(120));
    let events = rig.watch_overlaps().await;
    assert_eq!(kinds(&events), ["api_key_rotation_unused.v0"]);
    assert!(rig.store.all("key_overlap").await.unwrap().is_empty());
}

/// The last way in: its new token may be lost, unless it was used.
#[tokio::test]
async fn the_last_way_in_keeps_a_token_that_is_known_to_work() {
    let rig = Rig::start().await;
    let path = format!("/api_keys/{}", rig.admin.key_id);
    let rotate = format!("{path}/rotate");
    let rotated = rig.post(&rotate, json!({"overlap": 3600})).await.body();
    let end = format!("{path}/previous_token");
    assert_eq!(rig.delete(&end).await.code(), Some(660));
    let new = rig.authenticate(&token_of(&rotated)).await.unwrap();
    rig.control.identity.note_key_use(&new, HERE);
    assert_eq!(rig.delete(&end).await, Answered::NoContent);
    let rotated = rig.post(&rotate, json!({"overlap": 3600})).await.body();
    let forced = format!("{end}?force=true");
    assert_eq!(rig.delete(&forced).await, Answered::NoContent);
    rig.authenticate(&token_of(&rotated)).await.unwrap();
}

/// Rotation × a second rotation, a report of the old or new token, the deletion and the restriction of the key.
#[tokio::test]
async fn what_ends_an_overlap_otherwise_is_not_reported_as_its_end() {
    let rig = Rig::start().await;
    let report = async |token: &str| {
        let found = json!([{"token": token}]).to_string();
        let tokens = signed_tokens(found.as_bytes()).unwrap();
        rig.control
            .identity
            .report_leaks(None, &tokens)
            .await
            .unwrap();
    };
    let overlap = json!({"overlap_until": "1d"});
    let again = Rotated::new(&rig, overlap.clone()).await;
    let rotate = format!("{}/rotate", again.path);
    rig.post(&rotate, json!({})).await.body();
    let deleted = Rotated::new(&rig, overlap.clone()).await;
    rig.delete(&deleted.path).await;
    let old_leaked = Rotated::new(&rig, overlap.clone()).await;
    report(&old_leaked.old).await;
    assert_eq!(
        rig.authenticate(&old_leaked.old).await.err(),
        Some(Some(203))
    );
    let end = format!("{}/previous_token", old_leaked.path);
    assert!(rig.delete(&end).await.is_absent());
    let new_leaked = Rotated::new(&rig, overlap.clone()).await;
    report(&new_leaked.new).await;
    // The old one still works, until its end.
    rig.authenticate(&new_leaked.old).await.unwrap();
    let restricted = Rotated::new(&rig, overlap).await;
    let restrictions = format!("{}/restrictions", restricted.path);
    rig.patch(&restrictions, json!({"role": "read_only"}))
        .await
        .body();
    let old = rig.authenticate(&restricted.old).await.unwrap();
    assert_eq!(old.role, Role::ReadOnly);
    restricted.uses(&rig, &restricted.new, [192, 0, 2, 1]).await;
    rig.overlap_events().await;

    rig.clock.advance(DAY + Duration::from_secs(120));
    let mut events: Vec<_> = rig
        .watch_overlaps()
        .await
        .into_iter()
        .map(|(kind, event)| (event["object"]["id"].as_str().unwrap().to_owned(), kind))
        .collect();
    events.sort();
    let mut expected = [
        (&old_leaked.id, "api_key_rotation_unused.v0"),
        (&new_leaked.id, "api_key_overlap_ended.v0"),
        (&restricted.id, "api_key_overlap_ended.v0"),
    ]
    .map(|(id, kind)| (id.clone(), kind.to_owned()));
    expected.sort();
    assert_eq!(events, expected);
    assert!(rig.store.all("key_overlap").await.unwrap().is_empty());
}

/// One that cannot be read hides no other.
#[tokio::test]
async fn an_unreadable_overlap_keeps_no_other_from_its_report() {
    let rig = Rig::start().await;
    let damaged = Rotated::new(&rig, json!({"overlap": 60})).await;
    for mut document in rig.store.all("key_overlap").await.unwrap() {
        document.body = "{".to_owned();
        let event = AuditEvent::Suppress { reason: "a test" };
        rig.store
            .commit(Changes::replace(document, event))
            .await
            .unwrap();
    }
    Rotated::new(&rig, json!({"overlap": 60})).await;
    rig.overlap_events().await;
    rig.clock.advance(HOUR);
    let events = rig.watch_overlaps().await;
    let expected = ["api_key_overlap_ended.v0", "api_key_rotation_unused.v0"];
    assert_eq!(kinds(&events), expected);
    assert_eq!(rig.authenticate(&damaged.old).await.err(), Some(Some(203)));
}
