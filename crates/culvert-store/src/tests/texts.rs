//! The text index finds the same documents as a scan, regardless of which version of the server
//! wrote them.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::on_both_engines;
use super::store::document;
use super::test_database::{TestDatabase, texts};
use crate::database::dialect::Access;
use crate::database::migrate::STATE;
use crate::store::Store;
use crate::{AuditEvent, Changes, Document, Like, PageQuery, TextField, TextQuery, Texts};

on_both_engines!(
    every_text_finds_what_a_look_at_all_of_them_finds,
    rows_follow_their_documents,
    what_an_older_program_wrote_is_made_up_for,
    documents_of_an_older_format_are_indexed_by_the_first_start,
    other_fields_are_indexed_anew,
);

const NOTHING: AuditEvent = AuditEvent::Suppress { reason: "a test" };

fn item(n: usize, name: &str, note: &str) -> Document {
    Document {
        body: json!({"name": name, "note": note, "other": "o"}).to_string(),
        ..document("item", &format!("item_{n:04}"))
    }
}

async fn insert(store: &Store, documents: impl IntoIterator<Item = Document>) {
    let changes = documents
        .into_iter()
        .fold(Changes::default(), |changes, one| {
            changes.and(Changes::insert(one, NOTHING))
        });
    store.commit(changes).await.unwrap();
}

/// Waits until every document has its rows.
async fn indexed(store: &Store) {
    while !store.has_all_texts().await.unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn ids(store: &Store, field: &str, like: Like) -> Vec<String> {
    let query = TextQuery {
        kind: "item",
        account: "ac_1",
        field,
        like: &like,
    };
    store.ids_by_text(query, 5000).await.unwrap().unwrap()
}

async fn named(store: &Store, name: &str) -> Vec<String> {
    ids(store, "name", Like::OneOf(vec![name.to_owned()])).await
}

/// Few words, so that texts share prefixes and parts; with quotes, escapes, the characters that
/// rows escape, and values that are abridged in rows.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("a".to_owned()),
        Just("ab".to_owned()),
        Just("\"\\".to_owned()),
        Just("\u{e9}".to_owned()),
        Just("\0".to_owned()),
        Just("\u{1}".to_owned()),
        Just("\u{10ffff}".to_owned()),
        Just("%_'".to_owned()),
        Just("long \u{e9} ".repeat(30)),
        "[a-c]{1,3}",
    ];
    vec(word, 0..5).prop_map(|words| words.concat())
}

async fn every_text_finds_what_a_look_at_all_of_them_finds(db: &TestDatabase) {
    let store = db.store().await;
    let mut runner = TestRunner::deterministic();
    let names = vec(text(), 300).new_tree(&mut runner).unwrap().current();
    insert(
        &store,
        names.iter().enumerate().map(|(n, name)| item(n, name, "")),
    )
    .await;
    let foreign = Document {
        head: crate::Head {
            account: "ac_2".to_owned(),
            ..document("item", "item_9999").head
        },
        ..item(9999, "a", "a")
    };
    insert(&store, [foreign, document("user", "usr_1")]).await;
    assert!(store.has_all_texts().await.unwrap());
    let wanted = |holds: &dyn Fn(&str) -> bool| {
        let all = names.iter().enumerate().rev();
        all.filter(|(_, name)| !name.is_empty() && holds(name))
            .map(|(n, _)| format!("item_{n:04}"))
            .collect::<Vec<_>>()
    };
    for _ in 0..150 {
        let (one, other) = (text(), text()).new_tree(&mut runner).unwrap().current();
        if one.is_empty() || other.is_empty() {
            continue;
        }
        let of = vec![one.clone(), other.clone()];
        let found = ids(&store, "name", Like::OneOf(of)).await;
        assert_eq!(found, wanted(&|name| name == one || name == other));
        // For an abridged value, the index may return more documents than match.
        let store_of = &store;
        let whole = |found: Vec<String>| async move {
            let documents = store_of.get_many(&found).await.unwrap();
            let name = |body: &str| {
                let body: serde_json::Value = serde_json::from_str(body).unwrap();
                body["name"].as_str().unwrap().to_owned()
            };
            documents
                .into_iter()
                .map(|one| (name(&one.body), one.head.id))
                .collect::<Vec<_>>()
        };
        let begun = whole(ids(&store, "name", Like::Begins(one.clone())).await).await;
        let begun = begun.into_iter().filter(|(name, _)| name.starts_with(&one));
        let begun: Vec<_> = begun.map(|(_, id)| id).collect();
        assert_eq!(begun, wanted(&|name| name.starts_with(&one)), "{one:?}");
        let having = whole(ids(&store, "name", Like::Contains(one.clone())).await).await;
        let having = having.into_iter().filter(|(name, _)| name.contains(&one));
        let having: Vec<_> = having.map(|(_, id)| id).collect();
        assert_eq!(having, wanted(&|name| name.contains(&one)), "{one:?}");
    }
    // In pages, and no more than requested.
    let common = "a".to_owned();
    let all = wanted(&|name| name == common);
    assert!(all.len() > 3, "{all:?}");
    let mut seen = Vec::new();
    loop {
        let query = PageQuery {
            kind: "item".to_owned(),
            account: "ac_1".to_owned(),
            before: seen.last().cloned(),
            limit: 2,
            refs_to: None,
        };
        let page = store.page_by_text(&query, "name", &common).await.unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 2);
        seen.extend(page.into_iter().map(|document| document.head.id));
    }
    assert_eq!(seen, all);
    let query = TextQuery {
        kind: "item",
        account: "ac_1",
        field: "name",
        like: &Like::OneOf(vec![common]),
    };
    assert_eq!(store.ids_by_text(query, 2).await.unwrap(), None);
}

async fn rows_follow_their_documents(db: &TestDatabase) {
    let store = db.store().await;
    insert(&store, [item(1, "old", "kept"), item(2, "old", "")]).await;
    let mut first = store.get("item", "item_0001").await.unwrap().unwrap();
    first.body = json!({"name": "new", "note": "kept"}).to_string();
    store
        .commit(Changes::replace(first, NOTHING))
        .await
        .unwrap();
    assert_eq!(named(&store, "old").await, ["item_0002"]);
    assert_eq!(named(&store, "new").await, ["item_0001"]);
    let kept = Like::OneOf(vec!["kept".to_owned()]);
    assert_eq!(ids(&store, "note", kept.clone()).await, ["item_0001"]);
    let first = store.get("item", "item_0001").await.unwrap().unwrap();
    store
        .commit(Changes::remove(first.head, NOTHING))
        .await
        .unwrap();
    assert!(ids(&store, "note", kept).await.is_empty());
    // Refused commits leave no rows.
    let twice = insert_twice(3);
    assert!(store.commit(twice).await.is_err());
    assert!(named(&store, "refused").await.is_empty());
    assert!(store.has_all_texts().await.unwrap());
    store.check().await.unwrap();
}

fn insert_twice(n: usize) -> Changes {
    let one = item(n, "refused", "");
    Changes::insert(one.clone(), NOTHING).and(Changes::insert(one, NOTHING))
}

async fn what_an_older_program_wrote_is_made_up_for(db: &TestDatabase) {
    let store = db.store().await;
    insert(&store, [item(1, "one", ""), item(2, "two", "")]).await;
    // A store without texts leaves the ledger as a program of an older format does.
    let older = Store::open(&db.url, db.clock.clone(), Texts::default())
        .await
        .unwrap();
    assert!(!older.has_all_texts().await.unwrap());
    let mut first = older.get("item", "item_0001").await.unwrap().unwrap();
    first.body = json!({"name": "two", "note": ""}).to_string();
    let changes =
        Changes::replace(first, NOTHING).and(Changes::insert(item(3, "two", ""), NOTHING));
    older.commit(changes).await.unwrap();
    indexed(&store).await;
    let all = ["item_0003", "item_0002", "item_0001"];
    assert_eq!(named(&store, "two").await, all);
    // Both programs commit in turns.
    for n in 10..20 {
        insert(&older, [item(n, "ten", "")]).await;
        insert(&store, [item(n + 10, "ten", "")]).await;
    }
    indexed(&store).await;
    assert_eq!(named(&store, "ten").await.len(), 20);
    older.close().await;
}

async fn documents_of_an_older_format_are_indexed_by_the_first_start(db: &TestDatabase) {
    const N: usize = 1200;
    let part = crate::database::DatabasePart {
        steps: &STATE[..3],
        ..crate::database::STATE
    };
    let older = crate::database::Database::open(&db.url, part, &*db.clock)
        .await
        .unwrap();
    // Most are written by one commit each, many by a single commit.
    let mut connection = older.site.connect(Access::Write).await.unwrap();
    let rows: Vec<String> = (0..N)
        .map(|n| {
            let revision = if n < 700 { n + 1 } else { 701 };
            let body = json!({"name": format!("name {}", n % 7)});
            format!(
                "('item_{n:04}', 'item', 'ac_1', {revision}, 0, 0, \
                 '{{\"keys\":[],\"refs\":[],\"topics\":[]}}', '{body}')"
            )
        })
        .collect();
    let script = format!(
        "INSERT INTO document (id, kind, account, revision, created_at, updated_at, links, body) \
         VALUES {}; UPDATE ledger SET revision = 701;",
        rows.join(", ")
    );
    connection.script(script).await.unwrap();
    connection.close().await;
    older.close().await;

    let store = db.store().await;
    assert_eq!(
        store.meta_get("format").await.unwrap(),
        Some(STATE.len().to_string())
    );
    // The store opens immediately, and accepts writes while it indexes.
    insert(&store, [item(5000, "name 3", "")]).await;
    indexed(&store).await;
    assert_eq!(
        named(&store, "name 3").await.len(),
        (0..N).filter(|n| n % 7 == 3).count() + 1
    );
    assert_eq!(
        ids(&store, "name", Like::Begins("name".to_owned()))
            .await
            .len(),
        N + 1
    );
}

async fn other_fields_are_indexed_anew(db: &TestDatabase) {
    let store = db.store().await;
    insert(&store, [item(1, "name", "note")]).await;
    let other = TextField {
        name: "other",
        within: None,
    };
    let fields = || [("item", other)].into_iter().collect::<Texts>();
    let newer = Store::open(&db.url, db.clock.clone(), fields())
        .await
        .unwrap();
    indexed(&newer).await;
    let other = || Like::OneOf(vec!["o".to_owned()]);
    assert_eq!(ids(&newer, "other", other()).await, ["item_0001"]);
    assert!(
        !store.has_all_texts().await.unwrap(),
        "they are not its own"
    );
    insert(&store, [item(2, "name", "note")]).await;
    indexed(&newer).await;
    assert_eq!(ids(&newer, "other", other()).await.len(), 2);
    newer.close().await;
    // The previous program is used again.
    let older = Store::open(&db.url, db.clock.clone(), texts())
        .await
        .unwrap();
    indexed(&older).await;
    assert_eq!(named(&older, "name").await.len(), 2);
}
