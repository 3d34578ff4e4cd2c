//! Reserved addresses, and the TCP endpoints on them.

use super::agents::{Open, again};
use super::names::{Kind, LIMITS, Owner, wanted};
use super::rights::Cast;
use super::*;

fn addr(made: &Value) -> String {
    made["addr"].as_str().unwrap().to_owned()
}

fn path(collection: &str, made: &Value) -> String {
    format!("/{collection}/{}", made["id"].as_str().unwrap())
}

impl Rig {
    async fn reserve(&self) -> Value {
        self.post("/reserved_addrs", Value::Null).await.body()
    }

    async fn tcp(&self, url: &str) -> Answered {
        let body = json!({"url": url, "upstream_url": "tcp://127.0.0.1:9"});
        self.post("/endpoints", body).await
    }
}

#[tokio::test]
pub(super) async fn invalid_addresses_are_refused_with_codes() {
    let rig = Rig::start().await;
    for (body, code) in [
        (json!({"region": "mars"}), 500),
        (json!({"region": "global"}), 500),
        (json!({"region": "US"}), 500),
        (json!({"region": "eu"}), 503),
        (json!({"region": 1}), 215),
        (json!({"description": "x".repeat(256)}), 504),
        (json!({"metadata": "x".repeat(4097)}), 505),
        (json!({"addr": "1.tcp.culvert.localhost:20000"}), 214),
        (json!({"endpoint_configuration_id": "ec_1"}), 214),
    ] {
        let answered = rig.post("/reserved_addrs", body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let made = rig
        .post("/reserved_addrs", json!({"region": "us"}))
        .await
        .body();
    assert_eq!(made["region"], "us");
    let one = path("reserved_addrs", &made);
    for (body, code) in [
        (Value::Null, 506),
        (json!({}), 506),
        (json!({"description": "x".repeat(256)}), 504),
        (json!({"metadata": "x".repeat(4097)}), 505),
        (json!({"region": "us"}), 214),
        (json!({"addr": made["addr"]}), 214),
    ] {
        let answered = rig.patch(&one, body.clone()).await;
        assert_eq!(answered.code(), Some(code), "{body}");
    }
    let changed = rig.patch(&one, json!({"metadata": "m"})).await.body();
    assert_eq!(
        (&changed["addr"], &changed["metadata"]),
        (&made["addr"], &json!("m"))
    );
}

#[tokio::test]
async fn an_address_belongs_to_one_account() {
    let rig = Rig::start().await;
    let stranger = rig.stranger().await;
    let make = || rig.reserve();
    let theirs = rig.call(&stranger, "POST", "/reserved_addrs", Value::Null);
    // Concurrent requests: the pool of these tests has three addresses.
    let (a, b, theirs) = tokio::join!(make(), make(), theirs);
    let theirs = theirs.body();
    let mut given = [addr(&a), addr(&b), addr(&theirs)];
    given.sort();
    let expected = [20000, 20001, 20002].map(|port| format!("1.tcp.culvert.localhost:{port}"));
    assert_eq!(given, expected);
    let none_left = rig.post("/reserved_addrs", Value::Null).await;
    assert_eq!(none_left.code(), Some(503));
    assert_eq!(rig.tcp("tcp://").await.code(), Some(18014));

    let foreign = rig.tcp(&format!("tcp://{}", addr(&theirs))).await;
    assert_eq!(foreign.code(), Some(18006));
    let made = rig.tcp(&format!("TCP://{}", addr(&a))).await.body();
    let one = path("reserved_addrs", &a);
    assert_eq!(
        made["tcp_addr"],
        json!({"id": a["id"], "uri": format!("{BASE}{one}")})
    );
    assert_eq!(made["hostport"], a["addr"]);
    assert_eq!(
        made["url"],
        *format!("TCP://{}", addr(&a)),
        "as it was sent"
    );
}

#[tokio::test]
async fn released_addresses_are_reused_last() {
    let rig = Rig::start().await;
    let first = rig.reserve().await;
    let (_, start) = rig.events_after(0).await;
    assert_eq!(
        rig.delete(&path("reserved_addrs", &first)).await,
        Answered::NoContent
    );
    let (reported, _) = rig.events_after(start).await;
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["event_type"], "tcp_address_deleted.v0");
    assert_eq!(reported[0]["object"], first);

    // The two unused addresses are assigned first, to any caller; then the one released longest ago.
    let second = rig.reserve().await;
    let third = rig.tcp("tcp://").await.body();
    let released = addr(&first);
    assert!(addr(&second) != released && third["hostport"] != *released);
    assert_eq!(
        rig.delete(&path("endpoints", &third)).await,
        Answered::NoContent
    );
    assert_eq!(
        rig.delete(&path("reserved_addrs", &second)).await,
        Answered::NoContent
    );
    let again = [
        rig.reserve().await,
        rig.reserve().await,
        rig.reserve().await,
    ];
    assert_eq!(
        again.map(|made| addr(&made)),
        [
            released,
            third["hostport"].as_str().unwrap().to_owned(),
            addr(&second)
        ]
    );
    assert_eq!(
        rig.post("/reserved_addrs", Value::Null).await.code(),
        Some(503)
    );
}

#[tokio::test]
pub(super) async fn an_address_in_use_stays_reserved() {
    let rig = Rig::start().await;
    let (a, b) = (rig.reserve().await, rig.reserve().await);
    let url = |made: &Value| format!("tcp://{}", addr(made));
    let endpoint = rig.tcp(&url(&a)).await.body();
    let endpoint = path("endpoints", &endpoint);
    let (_, start) = rig.events_after(0).await;
    let (a_path, b_path) = (path("reserved_addrs", &a), path("reserved_addrs", &b));
    assert_eq!(rig.delete(&a_path).await.code(), Some(446));
    assert_eq!(rig.get(&a_path).await.body(), a);
    assert!(rig.events_after(start).await.0.is_empty());

    // A pool of endpoints is on one address, and an endpoint can move to another.
    assert_eq!(rig.tcp(&url(&a)).await.code(), Some(18017));
    let moved = rig.patch(&endpoint, json!({"url": url(&b)})).await.body();
    assert_eq!(moved["tcp_addr"]["id"], b["id"]);
    assert_eq!(rig.delete(&b_path).await.code(), Some(446));
    assert_eq!(rig.delete(&a_path).await, Answered::NoContent);
    let back = rig.patch(&endpoint, json!({"url": url(&a)})).await;
    assert_eq!(back.code(), Some(18006));
    assert_eq!(rig.delete(&endpoint).await, Answered::NoContent);
    assert_eq!(rig.delete(&b_path).await, Answered::NoContent);
}

#[tokio::test]
async fn an_unreserved_address_belongs_to_its_endpoint_until_deletion() {
    let rig = Rig::start().await;
    let made = rig.tcp("tcp://").await.body();
    assert_eq!(made["tcp_addr"], Value::Null);
    let one = path("endpoints", &made);
    // Clients repeat the URL of the object that they change.
    let same = json!({"url": made["url"], "description": "d", "pooling_enabled": true});
    let changed = rig.patch(&one, same).await.body();
    assert_eq!(
        (&changed["url"], &changed["description"]),
        (&made["url"], &json!("d"))
    );
    let beside = rig.tcp(made["url"].as_str().unwrap()).await;
    assert_eq!(beside.code(), Some(18006));

    let reserved = [rig.reserve().await, rig.reserve().await];
    assert!(
        reserved
            .iter()
            .all(|other| other["addr"] != made["hostport"])
    );
    let url = format!("tcp://{}", addr(&reserved[0]));
    let moved = rig.patch(&one, json!({"url": url})).await.body();
    assert_eq!(moved["tcp_addr"]["id"], reserved[0]["id"]);
    assert_eq!(rig.reserve().await["addr"], made["hostport"]);
}

#[tokio::test]
async fn an_address_is_not_deleted_while_an_endpoint_takes_it() {
    let rig = Rig::start().await;
    for _ in 0..4 {
        let made = rig.reserve().await;
        let (url, one) = (
            format!("tcp://{}", addr(&made)),
            path("reserved_addrs", &made),
        );
        let (came, went) = tokio::join!(rig.tcp(&url), rig.delete(&one));
        match (came, went) {
            (Answered::Created(endpoint), went) => {
                assert_eq!(went.code(), Some(446));
                rig.delete(&path("endpoints", &endpoint)).await;
                assert_eq!(rig.delete(&one).await, Answered::NoContent);
            }
            (came, went) => {
                assert_eq!((came.code(), went), (Some(18006), Answered::NoContent));
            }
        }
    }
}

/// Concurrent requests of an owner who may have two of the three addresses.
#[tokio::test]
async fn concurrent_reservations_obey_the_limit_of_their_owner() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    for _ in 0..20 {
        let take = || rig.call(&cast.callers[1], "POST", "/reserved_addrs", Value::Null);
        let (a, b, c) = tokio::join!(take(), take(), take());
        let made: Vec<Value> = [a, b, c]
            .into_iter()
            .filter(|answered| matches!(answered, Answered::Created(_)))
            .map(Answered::body)
            .collect();
        assert_eq!(made.len(), 2);
        for made in made {
            assert_eq!(
                rig.delete(&path("reserved_addrs", &made)).await,
                Answered::NoContent
            );
        }
    }
}

/// Addresses kept for agents of an owner count: an owner who connects and disconnects holds at most half.
#[tokio::test]
async fn addresses_kept_for_agents_count_toward_their_owners_limit() {
    let open = Open::with(LIMITS).await;
    let owner = Owner::bot(&open, "owner").await;
    let other = Owner::bot(&open, "other").await;
    let take = async || {
        let want = wanted("tcp://");
        let bound = open.bind(&owner.grant, want.clone()).await?;
        Ok::<_, u16>(again(&want, &bound))
    };
    let mut had = Vec::new();
    for _ in 0..6 {
        let want = take().await.unwrap();
        owner.give_up(&open, Kind::Agent, &want.id).await;
        had.push(want);
    }
    let of_other = other.take(&open, Kind::Agent, "tcp://").await.unwrap();
    // It gets one that it had and one that is free; then it has two.
    take().await.unwrap();
    take().await.unwrap();
    assert!(take().await.is_err());
    let mut urls = std::collections::BTreeSet::new();
    for want in &had {
        if let Ok(bound) = open.bind(&owner.grant, want.clone()).await {
            urls.insert(bound.url);
        }
    }
    assert!(urls.len() <= 2, "{urls:?}");
    let endpoints = open.collection("endpoints").await;
    assert_eq!(endpoints.len(), 3, "{endpoints:?}");
    assert!(endpoints.iter().any(|one| one["id"] == *of_other));
    // An admin has no limit.
    let admin = Owner::of(&open, open.rig.admin.clone()).await;
    other.give_up(&open, Kind::Agent, &of_other).await;
    assert!(
        admin.take(&open, Kind::Agent, "tcp://").await.is_err(),
        "it is kept"
    );
    open.rig.clock.advance(std::time::Duration::from_secs(181));
    admin.take(&open, Kind::Agent, "tcp://").await.unwrap();
}
