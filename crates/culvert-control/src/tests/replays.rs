//! Replays of audit events: permissions, requests and the stored form.

use super::*;

async fn destination(rig: &Rig) -> String {
    let sample = rig.sample("event_destinations", 1).await;
    let made = rig.post("/event_destinations", sample).await.body();
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn refused_replays_have_codes_and_change_nothing() {
    let rig = Rig::start().await;
    let id = destination(&rig).await;
    let path = format!("/event_destinations/{id}/replay");
    let (events, _) = rig.events_after(0).await;
    let first = events[0]["event_id"].as_str().unwrap();
    let last = events.last().unwrap()["event_id"].as_str().unwrap();
    let kinds = json!(["api_key_created.v0"]);
    let future = "2031-01-01T00:00:00Z";
    for (body, code) in [
        (Value::Null, 215),
        (json!({"event_types": kinds}), 215),
        (json!({"from": 5}), 215),
        (
            json!({"from": "2020-01-01T00:00:00Z", "event_types": "x"}),
            215,
        ),
        (json!({"from": "2020-01-01T00:00:00Z", "kinds": kinds}), 214),
        (json!({"from": "yesterday", "event_types": kinds}), 241),
        (json!({"from": "2020-01-01", "event_types": kinds}), 241),
        (
            json!({"from": first, "to": "ak_0", "event_types": kinds}),
            241,
        ),
        (
            json!({"from": "ev_000000000000000000000000000", "event_types": kinds}),
            5140,
        ),
        (
            json!({"from": first, "to": "ev_000000000000000000000000000", "event_types": kinds}),
            5140,
        ),
        (
            json!({"from": last, "to": first, "event_types": kinds}),
            5140,
        ),
        (
            json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z", "event_types": kinds}),
            5140,
        ),
        (json!({"from": future, "event_types": kinds}), 5140),
        (json!({"from": first, "event_types": ["nothing.v0"]}), 238),
        (
            json!({"from": first, "event_types": ["http_request_complete.v0"]}),
            5140,
        ),
        // The destination has no subscription.
        (json!({"from": first}), 5140),
    ] {
        let answered = rig.post(&path, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let good = json!({"from": first, "event_types": kinds});
    let absent = format!("/event_destinations/ed_{}/replay", "0".repeat(27));
    assert!(rig.post(&absent, good.clone()).await.is_absent());
    assert!(rig.get(&path).await.is_absent());
    let stranger = rig.stranger().await;
    for method in ["GET", "POST"] {
        let body = if method == "POST" {
            good.clone()
        } else {
            Value::Null
        };
        let answered = rig.call(&stranger, method, &path, body).await;
        assert!(answered.is_absent(), "{answered:?}");
    }
    for (role, code) in [(Role::ReadOnly, 635), (Role::Member, 630)] {
        let caller = rig.user(&format!("{code}@x.example"), role, true).await;
        let answered = rig.call(&caller, "POST", &path, good.clone()).await;
        assert_eq!(answered.code(), Some(code));
    }
    // An event of another account counts as absent.
    let foreign = rig
        .call(&stranger, "POST", "/api_keys", json!({}))
        .await
        .body();
    let (events, _) = rig.events_after(0).await;
    let event = events
        .iter()
        .find(|event| event["object"]["id"] == foreign["id"]);
    let body = json!({"from": event.unwrap()["event_id"], "event_types": kinds});
    assert_eq!(rig.post(&path, body).await.code(), Some(5140));
    assert_eq!(rig.store.all(replay::KIND).await.unwrap(), []);
}

#[tokio::test]
async fn one_replay_runs_and_repeated_requests_return_it() {
    let rig = Rig::start().await;
    let id = destination(&rig).await;
    let path = format!("/event_destinations/{id}/replay");
    let subscription = json!({
        "destination_ids": [id],
        "sources": [{"type": "vault_created.v0"}, {"type": "http_request_complete.v0"}, {"type": "api_key_created.v0"}],
    });
    rig.post("/event_subscriptions", subscription).await.body();
    let (_, before) = rig.events_after(0).await;
    let body = json!({"from": "2020-01-01T00:00:00Z"});
    let made = rig.post(&path, body.clone()).await.body();
    assert_eq!(made["destination"]["id"], *id);
    assert_eq!(made["uri"], format!("{BASE}{path}"));
    assert_eq!(
        made["event_types"],
        json!(["api_key_created.v0", "vault_created.v0"])
    );
    assert_eq!(
        (&made["state"], &made["percent"]),
        (&json!("running"), &json!(0))
    );
    assert_eq!((&made["from"], &made["to"]), (&body["from"], &Value::Null));

    assert_eq!(rig.post(&path, body).await.body(), made);
    let other = json!({"from": "2020-01-02T00:00:00Z"});
    assert_eq!(rig.post(&path, other.clone()).await.code(), Some(5140));
    assert_eq!(rig.get(&path).await.body(), made);

    // It is compiled for delivery. When the cursor has passed the range, the replay is done and another may
    // start.
    let stored = rig.store.all(replay::KIND).await.unwrap();
    let (replay, owner_id) = replay::compile(&stored[0]).unwrap();
    assert_eq!(owner_id, rig.admin.owner_id);
    assert_eq!((replay.range.first, replay.range.last), (1, before));
    assert_eq!(replay.kinds, ["api_key_created.v0", "vault_created.v0"]);
    let wanted = &replay.subscriptions[0].1;
    assert!(wanted.iter().all(|kind| replay.kinds.contains(kind)) && wanted.len() == 2);
    let cursor = culvert_store::CursorMove {
        name: format!("replay:{}", replay.id),
        from: 0,
        to: before,
    };
    rig.queue.append(Vec::new(), Some(cursor)).await.unwrap();
    let done = rig.get(&path).await.body();
    assert_eq!(
        (&done["state"], &done["percent"]),
        (&json!("done"), &json!(100))
    );
    let next = rig.post(&path, other).await.body();
    assert_ne!(next["id"], made["id"]);
    assert_eq!(rig.store.all(replay::KIND).await.unwrap().len(), 1);

    // Each call has an event, and replays are removed with their destination.
    let (reported, _) = rig.events_after(before).await;
    let replayed = |event: &Value| event["event_type"] == "event_destination_replayed.v0";
    assert!(!reported.is_empty() && reported.iter().all(replayed));
    assert!(reported[0]["object"]["asked"].is_object());
    for list in ["event_subscriptions", "event_destinations"] {
        let objects = rig.get(&format!("/{list}")).await.body();
        let one = objects[list][0]["id"].as_str().unwrap();
        assert_eq!(
            rig.delete(&format!("/{list}/{one}")).await,
            Answered::NoContent
        );
    }
    assert_eq!(rig.store.all(replay::KIND).await.unwrap(), []);
}

#[tokio::test]
async fn an_empty_replay_completes_immediately() {
    let rig = Rig::start().await;
    let id = destination(&rig).await;
    rig.clock.advance(std::time::Duration::from_secs(60));
    let body = json!({"from": "2027-01-15T08:00:30Z", "event_types": ["vault_created.v0"]});
    let path = format!("/event_destinations/{id}/replay");
    let made = rig.post(&path, body).await.body();
    assert_eq!(
        (&made["state"], &made["percent"]),
        (&json!("done"), &json!(100))
    );
}

/// A condition on the destination holds when the replay is committed, and not only when it was read.
#[tokio::test]
async fn a_replay_is_of_the_state_that_its_condition_names() {
    let rig = Rig::start().await;
    let id = destination(&rig).await;
    let path = format!("/event_destinations/{id}");
    let mut n_replayed = 0;
    for round in 0..60 {
        let terms: Arc<Terms> = Arc::default();
        let read = rig.call_on(&rig.admin, "GET", &path, Value::Null, Arc::clone(&terms));
        read.await.body();
        let state = terms.shown().unwrap().state;
        let kinds = json!([if round % 2 == 0 {
            "vault_created.v0"
        } else {
            "vault_deleted.v0"
        }]);
        let body = json!({"from": "2020-01-01T00:00:00Z", "event_types": kinds});
        let replay = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            let terms = idempotency::if_match(&state);
            rig.call_on(&rig.admin, "POST", &format!("{path}/replay"), body, terms)
                .await
        };
        let write = rig.patch(&path, json!({"metadata": format!("{round}")}));
        let (replayed, written) = tokio::join!(replay, write);
        written.body();
        match replayed {
            Answered::Created(_) => {
                n_replayed += 1;
                let destination = rig
                    .store
                    .get("event_destination", &id)
                    .await
                    .unwrap()
                    .unwrap();
                let replay = rig.store.all(replay::KIND).await.unwrap().remove(0);
                assert!(
                    replay.head.revision < destination.head.revision,
                    "{round}: the replay came after the write that its condition excludes"
                );
                let event = AuditEvent::Suppress { reason: "a test" };
                rig.store
                    .commit(Changes::remove(replay.head, event))
                    .await
                    .unwrap();
            }
            refused => assert_eq!(refused.code(), Some(266), "{round}"),
        }
    }
    assert!(n_replayed < 60, "no write came first");
}
