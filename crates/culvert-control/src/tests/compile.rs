//! Compilation: from a commit to the edge and delivery.

use culvert_resources::stored::informer_cache::InformerCache;
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test]
async fn a_commit_reaches_the_edge_and_delivery() {
    let rig = Rig::start().await;
    let cancel = CancellationToken::new();
    let mut snapshots = rig.edge.0.subscribe();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));

    let made = rig
        .post("/endpoints", rig.sample("endpoints", 1).await)
        .await
        .body();
    let has_one = |snapshot: &Option<culvert_edge_config::Snapshot>| {
        snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.len() == 1)
    };
    let deadline = culvert_testing::PATIENCE;
    tokio::time::timeout(deadline, snapshots.wait_for(has_one))
        .await
        .unwrap()
        .unwrap();
    rig.delete(&format!("/endpoints/{}", made["id"].as_str().unwrap()))
        .await;
    let is_empty = |snapshot: &Option<culvert_edge_config::Snapshot>| {
        snapshot
            .as_ref()
            .is_some_and(culvert_edge_config::Snapshot::is_empty)
    };
    tokio::time::timeout(deadline, snapshots.wait_for(is_empty))
        .await
        .unwrap()
        .unwrap();

    let destination = rig.post(
        "/event_destinations",
        rig.sample("event_destinations", 1).await,
    );
    let destination = destination.await.body()["id"].as_str().unwrap().to_owned();
    let kind = &culvert_events::HTTP_REQUEST_COMPLETE;
    let recorder = rig.control.events.delivery.recorder();
    assert!(recorder.capture(kind).is_none());
    let body = json!({
        "sources": [{"type": kind.name, "fields": ["conn.server_port"], "filter": "ev.conn.client_ip != ''"}],
        "destination_ids": [destination],
    });
    rig.post("/event_subscriptions", body).await.body();
    let is_captured = async || !recorder.capture(kind).is_none();
    eventually("the fields are captured", is_captured).await;
    cancel.cancel();
    tokio::time::timeout(deadline, tasks.join_next())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_tail_of_unknown_kinds_is_refused() {
    let rig = Rig::start().await;
    let spec = |kind: &str| TailSpec {
        kinds: vec![kind.to_owned()],
        ..TailSpec::default()
    };
    assert!(
        rig.control
            .events
            .tail(&rig.admin, spec("api_key_created.v0"))
            .is_ok()
    );
    let refused = rig
        .control
        .events
        .tail(&rig.admin, spec("nope.v0"))
        .unwrap_err();
    assert_eq!(refused.code, Some(code::EVENT_TYPE_UNKNOWN));
}

#[tokio::test]
async fn the_informer_cache_compiles_changed_documents_only() {
    let rig = Rig::start().await;
    let mut mirror = InformerCache::of("ip_policy");
    let made = std::cell::Cell::new(0);
    let mut refreshed = async || {
        made.set(0);
        let description = |document: Document| {
            made.set(made.get() + 1);
            let policy: Value = serde_json::from_str(&document.body).unwrap();
            policy["description"].as_str().unwrap().to_owned()
        };
        mirror.refresh(&rig.store, description).await.unwrap();
        let all: Vec<String> = mirror.values().cloned().collect();
        (made.get(), all.join(" "))
    };
    let post = async |description: &str| {
        let body = json!({ "description": description });
        let made = rig.post("/ip_policies", body).await.body();
        format!("/ip_policies/{}", made["id"].as_str().unwrap())
    };
    assert_eq!(refreshed().await, (0, String::new()));
    let (a, b) = (post("a").await, post("b").await);
    assert_eq!(refreshed().await, (2, "a b".to_owned()));
    assert_eq!(refreshed().await, (0, "a b".to_owned()));
    let change = json!({"description": "c"});
    rig.patch(&a, change).await.body();
    assert_eq!(refreshed().await, (1, "c b".to_owned()));
    // One is removed and one is added, so the count stays.
    rig.delete(&b).await;
    post("d").await;
    assert_eq!(refreshed().await, (1, "c d".to_owned()));
    rig.delete(&a).await;
    assert_eq!(refreshed().await, (0, "d".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_is_added_during_a_refresh_hides_no_removed_one() {
    let rig = Rig::start().await;
    let body = json!({"description": "first"});
    let first = rig.post("/ip_policies", body).await.body();
    let id = first["id"].as_str().unwrap();
    let like = rig.store.get("ip_policy", id).await.unwrap().unwrap();
    let quiet = AuditEvent::Suppress { reason: "a test" };
    let another = |n: usize| {
        let mut one = like.clone();
        one.keys = Vec::new();
        one.head.id = format!("{}{n:06}", &id[..id.len() - 6]);
        Changes::insert(one, quiet.clone())
    };
    let mut cache = InformerCache::of("ip_policy");
    cache.refresh(&rig.store, |_| ()).await.unwrap();
    assert!(cache.contains(id));

    // A commit with more documents than notifications name.
    let removal = Changes::remove(like.head.clone(), quiet.clone());
    let large = (0..100).map(another).fold(removal, Changes::and);
    rig.store.commit(large).await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let mut is_first = true;
    let changes = cache.refresh(&rig.store, |_| {
        if std::mem::take(&mut is_first) {
            let later = rig.store.commit(another(100));
            tokio::task::block_in_place(|| runtime.block_on(later)).unwrap();
        }
    });
    let changes = changes.await.unwrap();
    assert!(!is_first, "the refresh read the new documents");
    assert!(changes.iter().any(|(changed, _)| changed == id));
    assert!(!cache.contains(id));
    // The next refresh has the later one.
    cache.refresh(&rig.store, |_| ()).await.unwrap();
    assert_eq!(cache.count(), 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_is_removed_while_all_are_read_does_not_stay() {
    let rig = Rig::start().await;
    let ids = async |description: &str| {
        let body = json!({ "description": description });
        let made = rig.post("/ip_policies", body).await.body();
        made["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (ids("a").await, ids("b").await);
    let doomed = rig.store.get("ip_policy", &second).await.unwrap().unwrap();
    let quiet = AuditEvent::Suppress { reason: "a test" };
    let mut cache = InformerCache::of("ip_policy");
    let runtime = tokio::runtime::Handle::current();
    let changes = cache.refresh(&rig.store, |document: Document| {
        // The second was read together with the first.
        if document.head.id == first {
            let removal = Changes::remove(doomed.head.clone(), quiet.clone());
            let removal = rig.store.commit(removal);
            tokio::task::block_in_place(|| runtime.block_on(removal)).unwrap();
        }
    });
    let changes = changes.await.unwrap();
    assert_eq!(cache.count(), 1);
    assert!(cache.contains(&first));
    // What was made of it is reported, so that it can be dropped.
    assert!(changes.contains(&(second, None)));
}

#[tokio::test]
async fn a_change_reads_one_document_however_many_there_are() {
    let rig = Rig::start().await;
    let body = json!({"description": "first"});
    let first = rig.post("/ip_policies", body).await.body();
    let id = first["id"].as_str().unwrap();
    let mut cache = InformerCache::of("ip_policy");
    let made = std::cell::Cell::new(0);
    let mut refreshed = async || {
        made.set(0);
        let count = |_: Document| made.set(made.get() + 1);
        cache.refresh(&rig.store, count).await.unwrap();
        (made.get(), cache.count())
    };
    let like = rig.store.get("ip_policy", id).await.unwrap().unwrap();
    let quiet = AuditEvent::Suppress { reason: "a test" };
    let mut there = 1;
    for count in [10, 100, 1_000, 5_000] {
        // In parts, because a busy machine does not write thousands within the limit of one commit.
        for from in (there..count).step_by(250) {
            let mut added = Changes::default();
            for n in from..count.min(from + 250) {
                let mut one = like.clone();
                one.keys = Vec::new();
                one.head.id = format!("{}{n:06}", &id[..id.len() - 6]);
                added = added.and(Changes::insert(one, quiet.clone()));
            }
            rig.store.commit(added).await.unwrap();
        }
        refreshed().await;
        there = count;
        rig.patch(
            &format!("/ip_policies/{id}"),
            json!({"description": format!("of {count}")}),
        )
        .await
        .body();
        assert_eq!(refreshed().await, (1, count));
        assert_eq!(refreshed().await, (0, count));
    }
}

#[tokio::test]
async fn timeouts_of_an_endpoint_are_stored_and_compiled() {
    let none = json!({
        "connect": null, "first_byte": null, "idle": null, "write": null, "request": null,
    });
    let rig = Rig::start().await;
    let body = json!({"url": "https://x.culvert.localhost", "upstream_url": "http://127.0.0.1:9"});
    let made = rig.post("/endpoints", body.clone()).await.body();
    assert_eq!(made["timeouts"], none);
    let one = format!("/endpoints/{}", made["id"].as_str().unwrap());

    let mut set = none.clone();
    set["idle"] = json!("1h30m");
    set["connect"] = json!("250ms");
    let given = json!({"idle": "1h30m", "connect": "250ms", "write": null, "request": ""});
    let changed = rig.patch(&one, json!({"timeouts": given})).await.body();
    assert_eq!(changed["timeouts"], set);
    // Other changes keep the timeouts, and so does null.
    for body in [
        json!({"description": "x"}),
        json!({"timeouts": null, "metadata": "y"}),
    ] {
        assert_eq!(rig.patch(&one, body).await.body()["timeouts"], set);
    }
    assert_eq!(rig.get(&one).await.body()["timeouts"], set);
    // An update replaces all timeouts; an empty object removes them.
    let mut write = none.clone();
    write["write"] = json!("10m");
    let changed = rig.patch(&one, json!({"timeouts": {"write": "10m"}})).await;
    assert_eq!(changed.body()["timeouts"], write);
    let changed = rig.patch(&one, json!({"timeouts": {}})).await;
    assert_eq!(changed.body()["timeouts"], none);

    let mut other = body;
    other["url"] = json!("https://y.culvert.localhost");
    other["timeouts"] = json!({"first_byte": "168h", "request": "1s"});
    let made = rig.post("/endpoints", other).await.body();
    assert_eq!(made["timeouts"]["first_byte"], "168h");
    assert_eq!(made["timeouts"]["request"], "1s");
}
