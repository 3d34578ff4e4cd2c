//! Searches of kept events by hostile callers: what a weak key may find, and when its streams end.

use std::time::{Duration, Instant};

use culvert_testing::PATIENCE;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Backend, Harness, backends, cluster};
use crate::kept_events::{Stream, ask};
use crate::nodes::beside;

/// A bot, with a key: its id, and the key with its token.
async fn bot(culvert: &Harness, name: &str) -> (String, Value) {
    let bot = culvert.create("bot_users", json!({"name": name})).await;
    let id = bot["id"].as_str().unwrap().to_owned();
    let key = culvert.create("api_keys", json!({"owner_id": id})).await;
    (id, key)
}

fn token(key: &Value) -> &str {
    key["token"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_searches_are_refused_or_empty() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        let (_, key) = bot(&culvert, "weak").await;
        let max = i64::MAX;
        let long = "x".repeat(5000);
        for (query, status) in [
            ("object_id=%00".to_owned(), 400),
            ("actor_id=a%00b".to_owned(), 400),
            ("follow=true&object_id=%00".to_owned(), 400),
            (format!("object_id={long}"), 400),
            ("object_id=%ed%a0%80".to_owned(), 400),
            ("type=%00".to_owned(), 400),
            ("filter=%00".to_owned(), 400),
            (format!("filter={long}"), 400),
            (format!("filter={}", "(".repeat(4000)), 400),
            ("filter=event_id%3D%3D%22%00%22".to_owned(), 200),
            (format!("cursor=n{max}-{max}-{}", u32::MAX), 200),
            (
                format!("order=oldest&cursor=o{max}-{max}-{}", u32::MAX),
                200,
            ),
            ("cursor=n0-0-0".to_owned(), 200),
            ("cursor=n-1-0-0".to_owned(), 400),
            (format!("cursor=n{max}0-0-0"), 400),
            ("cursor=o1-1-1".to_owned(), 400),
            ("from=9999-12-31T23:59:59Z".to_owned(), 400),
            ("from=2262-04-11T23:47:16.854775807Z".to_owned(), 200),
            ("to=1677-09-21T00:12:44Z".to_owned(), 200),
            ("limit=-1".to_owned(), 400),
        ] {
            let (found, body) = ask(&culvert, token(&key), &format!("?{query}")).await;
            assert_eq!(found, status, "{query}: {body}");
        }
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_finds_no_event_about_keys_with_any_cursor() {
    let culvert = Harness::start(&Backend::Sqlite).await;
    let (_, weak) = bot(&culvert, "weak").await;
    for n in 0..5 {
        bot(&culvert, &format!("other{n}")).await;
        culvert
            .create("vaults", json!({"name": format!("v{n}")}))
            .await;
    }
    let read = async |token: &str, query: &str| -> Value {
        let (status, body) = ask(&culvert, token, query).await;
        assert_eq!(status, 200, "{query}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    let types = |page: &Value| -> Vec<String> {
        let events = page["events"].as_array().unwrap().iter();
        let of = |one: &Value| one["event"]["event_type"].as_str().unwrap().to_owned();
        events.map(of).collect()
    };
    let all = read(&culvert.token, "?type=audit").await;
    assert!(types(&all).contains(&"api_key_created.v0".to_owned()));
    assert_eq!(all["withheld_types"], json!([]));
    // An admin's cursor, and cursors made by hand, at every position.
    for position in 0..20 {
        for query in [
            format!("?cursor=n{position}-0-0"),
            format!("?type=audit&cursor=n{position}-0-0&limit=1"),
            format!("?order=oldest&cursor=o{position}-0-0"),
            format!("?filter=true&cursor=n{position}-9-9"),
        ] {
            let page = read(token(&weak), &query).await;
            let types = types(&page);
            assert!(
                types.iter().all(|one| ["vault", "user", "bot_user"]
                    .map(|name| format!("{name}_created.v0"))
                    .contains(one)),
                "{types:?}"
            );
            let withheld = page["withheld_types"].as_array().unwrap();
            assert!(withheld.contains(&json!("api_key_created.v0")));
        }
    }
    // A page about another owner's key does not tell whether it exists.
    let key = weak["id"].as_str().unwrap();
    let existing = read(token(&weak), &format!("?object_id={key}")).await;
    let absent = read(token(&weak), "?object_id=ak_0000000000000000000000000000").await;
    assert_eq!(existing, absent);
    culvert.stop().await;
}

/// How long after a change the stream of a key ends. Without a check of its rights it would not end at all.
async fn ends(mut stream: Stream, changed_at: Instant) -> Duration {
    while stream.try_line().await.is_some() {}
    changed_at.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_soon_after_its_key_loses_its_rights() {
    for backend in backends().await {
        let culvert = Harness::start(&backend).await;
        // The key is deleted.
        let (_, key) = bot(&culvert, "deleted").await;
        let stream = Stream::open_as(&culvert, token(&key), "", None).await;
        let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
        let at = Instant::now();
        assert_eq!(culvert.call(Method::DELETE, &path, None).await.status, 204);
        let took = ends(stream, at).await;
        assert!(took < PATIENCE, "{took:?}");
        // Its owner is deactivated.
        let (owner, key) = bot(&culvert, "disabled").await;
        let stream = Stream::open_as(&culvert, token(&key), "", None).await;
        let body = json!({"active": false});
        let at = Instant::now();
        let path = format!("/bot_users/{owner}");
        let patched = culvert.call(Method::PATCH, &path, Some(body)).await;
        assert_eq!(patched.status, 200, "{}", patched.body);
        let took = ends(stream, at).await;
        assert!(took < PATIENCE, "{took:?}");
        culvert.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_soon_after_another_node_deletes_its_key() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let one = Harness::start(&backend).await;
    let other = beside(&one).await;
    let (_, key) = bot(&one, "deleted").await;
    let stream = Stream::open_as(&other, token(&key), "", None).await;
    let path = format!("/api_keys/{}", key["id"].as_str().unwrap());
    let at = Instant::now();
    assert_eq!(one.call(Method::DELETE, &path, None).await.status, 204);
    let took = ends(stream, at).await;
    assert!(took < PATIENCE, "{took:?}");
    other.stop().await;
    one.stop().await;
}
