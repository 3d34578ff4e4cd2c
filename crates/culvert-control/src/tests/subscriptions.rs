//! Subscriptions: which events reach which destinations, and the operations on sources.

use super::*;

#[tokio::test]
async fn events_of_event_sources_name_their_subscription() {
    let rig = Rig::start().await;
    let made = rig
        .post("/event_subscriptions", json!({"description": "d"}))
        .await
        .body();
    let id = made["id"].as_str().unwrap();
    let one = format!("/event_subscriptions/{id}");
    let (_, start) = rig.events_after(0).await;

    let traffic = "http_request_complete.v0";
    let source = json!({"type": traffic, "fields": ["conn.server_port", "conn.client_ip", "conn.server_port"], "filter": "ev.conn.server_port == 443"});
    let added = rig.post(&format!("{one}/sources"), source).await;
    let Answered::Created(added) = added else {
        panic!("{added:?}");
    };
    let uri = format!("{BASE}/event_subscriptions/{id}/sources/{traffic}");
    let fields = json!(["conn.server_port", "conn.client_ip"]);
    assert_eq!(
        added,
        json!({"type": traffic, "uri": uri, "fields": fields, "filter": "ev.conn.server_port == 443"})
    );
    let path = format!("{one}/sources/{traffic}");
    assert_eq!(rig.get(&path).await.body(), added);
    assert_eq!(rig.patch(&path, Value::Null).await.body(), added);
    let all = rig
        .patch(&path, json!({"type": traffic, "fields": [], "filter": ""}))
        .await
        .body();
    assert_eq!((&all["fields"], &all["filter"]), (&json!([]), &json!("")));
    let list = rig.get(&format!("{one}/sources")).await.body();
    assert_eq!(
        list,
        json!({"sources": [all], "uri": format!("{BASE}{one}/sources")})
    );
    let paged = rig.get(&format!("{one}/sources?limit=1")).await;
    assert_eq!(paged.code(), Some(231));
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    assert_eq!(rig.get(&one).await.body(), made);

    let (reported, _) = rig.events_after(start).await;
    assert_eq!(reported.len(), 4);
    assert!(
        reported
            .iter()
            .all(|event| event["event_type"] == "event_subscription_updated.v0")
    );
    assert_eq!(reported[0]["object"]["sources"], json!([added]));
    assert_eq!(reported[3]["object"]["sources"], json!([]));
}

#[tokio::test]
async fn an_empty_list_leaves_sources_and_clears_destinations() {
    let rig = Rig::start().await;
    let mut ids = Vec::new();
    for n in 0..2 {
        let made = rig.post(
            "/event_destinations",
            rig.sample("event_destinations", n).await,
        );
        ids.push(made.await.body()["id"].clone());
    }
    let body = json!({
        "sources": [{"type": "tcp_connection_closed.v0"}, {"type": "api_key_created.v0", "fields": null}],
        "destination_ids": [ids[1], ids[0], ids[1]],
    });
    let made = rig.post("/event_subscriptions", body).await.body();
    let named: Vec<_> = made["destinations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["id"].clone())
        .collect();
    assert_eq!(named, [ids[1].clone(), ids[0].clone()]);
    let one = format!("/event_subscriptions/{}", made["id"].as_str().unwrap());
    assert_eq!(rig.patch(&one, json!({"sources": []})).await.body(), made);
    let cleared = rig.patch(&one, json!({"destination_ids": []})).await.body();
    assert_eq!(cleared["destinations"], json!([]));
    assert_eq!(cleared["sources"], made["sources"]);
    let replaced = json!({"sources": [{"type": "api_key_deleted.v0"}]});
    let replaced = rig.patch(&one, replaced).await.body();
    assert_eq!(replaced["sources"].as_array().unwrap().len(), 1);
    for id in &ids {
        let path = format!("/event_destinations/{}", id.as_str().unwrap());
        assert_eq!(rig.delete(&path).await, Answered::NoContent);
    }
}

#[tokio::test]
async fn audit_events_are_routed_to_matching_destinations() {
    let rig = Rig::start().await;
    let made = rig.post(
        "/event_destinations",
        rig.sample("event_destinations", 1).await,
    );
    let destination = made.await.body()["id"].as_str().unwrap().to_owned();
    let body = json!({
        "sources": [{"type": "api_key_created.v0"}, {"type": "event_subscription_created.v0"}, {"type": "event_subscription_deleted.v0"}],
        "destination_ids": [destination],
    });
    let made = rig.post("/event_subscriptions", body).await.body();
    let subscription = made["id"].as_str().unwrap().to_owned();
    let key = rig.post("/api_keys", json!({})).await.body();
    let one = format!("/api_keys/{}", key["id"].as_str().unwrap());
    rig.patch(&one, json!({"description": "x"})).await;
    rig.delete(&format!("/event_subscriptions/{subscription}"))
        .await;
    let heard: Vec<_> = rig
        .store
        .outbox_after(0, 100)
        .await
        .unwrap()
        .into_iter()
        .filter(|row| !row.audience.is_empty())
        .map(|row| (row.event.kind, row.audience))
        .collect();
    let audience = vec![(subscription, destination)];
    let expected = [
        "event_subscription_created.v0",
        "api_key_created.v0",
        "event_subscription_deleted.v0",
    ]
    .map(|kind| (kind.to_owned(), audience.clone()));
    assert_eq!(heard, expected);
}

/// A class stands for all of its kinds, so for each write of every resource there is one delivery, and a later version's
/// kinds need no change of the subscription.
#[tokio::test]
async fn a_class_of_events_is_every_kind_of_it_once() {
    let rig = Rig::start().await;
    let sample = rig.sample("event_destinations", 1).await;
    let made = rig.post("/event_destinations", sample).await.body();
    let destination = made["id"].as_str().unwrap().to_owned();
    let body = json!({
        "sources": [{"type": "audit"}, {"type": "traffic"}],
        "destination_ids": [destination],
    });
    let made = rig.post("/event_subscriptions", body).await.body();
    assert_eq!(made["sources"][0]["type"], "audit");
    let id = made["id"].as_str().unwrap().to_owned();
    let path = format!("/event_subscriptions/{id}");
    rig.post("/api_keys", json!({})).await.body();
    rig.post("/vaults", json!({"name": "v"})).await.body();
    // A kind that this version does not know.
    let event = culvert_base::Event {
        id: "ev_later".into(),
        account: rig.admin.account.clone(),
        kind: "of_a_later_version.v0".into(),
        at: rig.clock.now(),
        body: "{}".into(),
    };
    rig.store.commit(Changes::event(event)).await.unwrap();
    let rows = rig.store.outbox_after(0, 100).await.unwrap();
    let of_subscription = rows.into_iter().skip_while(|row| row.audience.is_empty());
    let heard: Vec<String> = of_subscription
        .map(|row| {
            assert_eq!(row.audience, [(id.clone(), destination.clone())]);
            row.event.kind
        })
        .collect();
    let expected = [
        "event_subscription_created.v0",
        "api_key_created.v0",
        "vault_created.v0",
        "of_a_later_version.v0",
    ];
    assert_eq!(heard, expected);

    // Nothing is delivered twice, and what differs by kind needs a kind.
    let sources = format!("{path}/sources");
    for (body, code) in [
        (json!({"type": "audit"}), 5127),
        (json!({"type": "vault_created.v0"}), 5127),
        (json!({"type": "http_request_complete.v0"}), 5127),
    ] {
        let refused = rig.post(&sources, body.clone()).await;
        assert_eq!(refused.code(), Some(code), "{body}");
    }
    for (list, code) in [
        (
            json!([{"type": "vault_created.v0"}, {"type": "audit"}]),
            5127,
        ),
        (json!([{"type": "traffic"}, {"type": "traffic"}]), 5127),
        (
            json!([{"type": "traffic", "fields": ["conn.client_ip"]}]),
            5401,
        ),
        (json!([{"type": "traffic", "filter": "true"}]), 5402),
        (json!([{"type": "audit", "filter": "true"}]), 5402),
    ] {
        let refused = rig.patch(&path, json!({ "sources": list })).await;
        assert_eq!(refused.code(), Some(code), "{list}");
    }
    let renamed = rig.patch(&format!("{sources}/audit"), json!({})).await;
    assert!(matches!(renamed, Answered::Ok(_)), "{renamed:?}");
    let one = rig.delete(&format!("{sources}/traffic")).await;
    assert_eq!(one, Answered::NoContent);
    let body = json!({"type": "http_request_complete.v0", "filter": "ev.conn.server_port == 443"});
    let single = rig.post(&sources, body).await;
    assert!(matches!(single, Answered::Created(_)), "{single:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_updates_of_one_object_lose_nothing() {
    let rig = Arc::new(Rig::start().await);
    let made = rig.post("/event_subscriptions", Value::Null).await.body();
    let one = format!("/event_subscriptions/{}", made["id"].as_str().unwrap());
    let kinds: Vec<String> = catalogue()
        .entries()
        .map(|entry| entry.name().to_owned())
        .take(30)
        .collect();
    let (_, start) = rig.events_after(0).await;
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..40 {
        let (rig, one) = (rig.clone(), one.clone());
        let kind = kinds.get(n).cloned();
        writers.spawn(async move {
            match kind {
                Some(kind) => {
                    let path = format!("{one}/sources");
                    rig.post(&path, json!({ "type": kind })).await
                }
                None => rig.patch(&one, json!({"metadata": format!("{n}")})).await,
            }
        });
    }
    while let Some(answered) = writers.join_next().await {
        let answered = answered.unwrap();
        assert!(
            matches!(answered, Answered::Created(_) | Answered::Ok(_)),
            "{answered:?}"
        );
    }
    let list = rig.get(&format!("{one}/sources")).await.body();
    assert_eq!(list["sources"].as_array().unwrap().len(), kinds.len());
    assert_eq!(rig.events_after(start).await.0.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_join_a_pool_concurrently() {
    let rig = Arc::new(Rig::start().await);
    let body = json!({
        "url": "https://pool.culvert.localhost", "upstream_url": "http://127.0.0.1:9",
        "pooling_enabled": true,
    });
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (rig, body) = (rig.clone(), body.clone());
        writers.spawn(async move { rig.post("/endpoints", body).await });
    }
    while let Some(answered) = writers.join_next().await {
        let answered = answered.unwrap();
        assert!(matches!(answered, Answered::Created(_)), "{answered:?}");
    }
    let list = rig.get("/endpoints").await.body();
    for endpoint in list["endpoints"].as_array().unwrap() {
        let path = format!("/endpoints/{}", endpoint["id"].as_str().unwrap());
        let rig = rig.clone();
        writers.spawn(async move { rig.delete(&path).await });
    }
    while let Some(answered) = writers.join_next().await {
        assert_eq!(answered.unwrap(), Answered::NoContent);
    }
    let mut alone = body;
    alone["pooling_enabled"] = json!(false);
    assert!(matches!(
        rig.post("/endpoints", alone).await,
        Answered::Created(_)
    ));
}
