//! Documents, references, topics, the outbox, group commit.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use culvert_base::{Event, Timestamp};
use tokio::task::JoinSet;

use super::test_database::{TestDatabase, texts};
use super::{UNDECIDED, on_both_engines};
use crate::commit::commit_error::CommitError;
use crate::database::dialect::{Access, Arg};
use crate::database::statements::{state, transaction};
use crate::database::store_url::StoreUrl;
use crate::store::Store;
use crate::{AuditEvent, Changes, Document, Expired, Head, Key, OnDelete, PageQuery, Ref, Topic};

on_both_engines!(
    a_document_comes_back_as_it_went,
    keys_are_unique_and_free_again,
    references_hold_at_both_ends,
    a_parent_goes_with_its_children_in_any_order,
    stale_writes_are_refused,
    conditions_hold_at_the_commit,
    what_is_refused_leaves_nothing,
    events_go_to_those_who_wanted_them_then,
    pages_are_newest_first,
    many_documents_are_read_in_pages,
    many_at_once_keep_their_own_outcome,
    the_outbox_is_in_commit_order_over_two_nodes,
    many_lookups_at_once_each_get_their_own,
    settings_and_pruning,
    a_copy_opens_and_holds_everything,
    a_blocked_store_refuses_in_time_and_recovers,
    closed_connections_fail_no_commit_and_no_read,
    closed_means_closed,
);

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_seconds(1_800_000_000 + seconds)
}

pub(super) fn document(kind: &str, id: &str) -> Document {
    Document {
        head: Head {
            id: id.to_owned(),
            kind: kind.to_owned(),
            account: "ac_1".to_owned(),
            revision: 0,
            created_at: at(0),
            updated_at: at(0),
        },
        body: format!(r#"{{"n":"{id}"}}"#),
        keys: Vec::new(),
        refs: Vec::new(),
        topics: Vec::new(),
    }
}

pub(super) fn event(kind: &str, id: &str) -> Event {
    Event {
        id: id.to_owned(),
        kind: kind.to_owned(),
        at: at(1),
        account: "ac_1".to_owned(),
        body: format!(r#"{{"event_id":"{id}"}}"#),
    }
}

const SILENT: AuditEvent = AuditEvent::Suppress {
    reason: "the test does not look at events",
};

fn insert(document: Document) -> Changes {
    Changes::insert(document, SILENT)
}

fn key(kind: &str, id: &str, value: &str) -> Document {
    Document {
        keys: vec![Key::new("token", value)],
        ..document(kind, id)
    }
}

fn child(id: &str, of: &str, on_delete: OnDelete) -> Document {
    Document {
        refs: vec![Ref::new("owner_id", of, on_delete)],
        ..document("child", id)
    }
}

async fn head(store: &Store, kind: &str, id: &str) -> Head {
    store.get(kind, id).await.unwrap().unwrap().head
}

async fn closed_connections_fail_no_commit_and_no_read(db: &TestDatabase) {
    let store = db.store().await;
    let id = |n: usize| format!("item_{n}");
    store
        .commit(insert(document("item", &id(0))))
        .await
        .unwrap();
    // One commit alone, then several that the writer combines.
    for some in [1..2, 2..30] {
        db.end_connections().await;
        let mut commits = JoinSet::new();
        for n in some {
            let (store, document) = (store.clone(), document("item", &id(n)));
            commits.spawn(async move { store.commit(insert(document)).await });
        }
        while let Some(committed) = commits.join_next().await {
            committed.unwrap().unwrap();
        }
        db.end_connections().await;
        assert!(store.get("item", &id(1)).await.unwrap().is_some());
    }
    assert_eq!(store.all("item").await.unwrap().len(), 30);
}

async fn a_document_comes_back_as_it_went(db: &TestDatabase) {
    let store = db.store().await;
    store
        .commit(insert(document("user", "usr_1")))
        .await
        .unwrap();
    let mut full = Document {
        body: "{\"text\":\"ünï ' \\u0000 ☃\"}".to_owned(),
        keys: vec![Key::new("token", "a"), Key::new("name", "b")],
        refs: vec![Ref::new("owner_id", "usr_1", OnDelete::Block)],
        topics: vec![Topic {
            kind: "api_key_created.v0".to_owned(),
            destination: "ed_1".to_owned(),
        }],
        ..document("api_key", "ak_1")
    };
    full.head.created_at = Timestamp::from_unix_nanos(1_800_000_000_123_456_789);
    let revision = store.commit(insert(full.clone())).await.unwrap();
    full.head.revision = revision.number;
    assert_eq!(
        store.get("api_key", "ak_1").await.unwrap(),
        Some(full.clone())
    );
    assert_eq!(
        store.find("api_key", "name", "b").await.unwrap(),
        Some(full.clone())
    );
    assert_eq!(store.all("api_key").await.unwrap(), [full]);
    assert_eq!(
        store.get("user", "ak_1").await.unwrap(),
        None,
        "another kind"
    );
    assert_eq!(store.get("api_key", "ak_2").await.unwrap(), None);
    assert_eq!(store.find("user", "name", "b").await.unwrap(), None);
    assert_eq!(*store.watch().borrow(), revision);
    assert_eq!(store.revision().await.unwrap(), revision);
    store.usable().await.unwrap();
    store.check().await.unwrap();
}

async fn keys_are_unique_and_free_again(db: &TestDatabase) {
    let store = db.store().await;
    store
        .commit(insert(key("api_key", "ak_1", "x")))
        .await
        .unwrap();
    match store.commit(insert(key("api_key", "ak_2", "x"))).await {
        Err(CommitError::Duplicate { kind, name }) => {
            assert_eq!((kind.as_str(), name.as_str()), ("api_key", "token"));
        }
        other => panic!("{other:?}"),
    }
    match store.commit(insert(key("api_key", "ak_1", "y"))).await {
        Err(CommitError::Duplicate { name, .. }) => assert_eq!(name, "id"),
        other => panic!("{other:?}"),
    }
    store
        .commit(insert(key("other", "ot_1", "x")))
        .await
        .unwrap();
    // A replacement frees the value, so another document may take it in the same write.
    let mut moved = key("api_key", "ak_1", "z");
    moved.head = head(&store, "api_key", "ak_1").await;
    store
        .commit(Changes::replace(moved, SILENT).and(insert(key("api_key", "ak_2", "x"))))
        .await
        .unwrap();
    assert_eq!(
        store
            .find("api_key", "token", "x")
            .await
            .unwrap()
            .unwrap()
            .head
            .id,
        "ak_2"
    );
    assert_eq!(
        store
            .find("api_key", "token", "z")
            .await
            .unwrap()
            .unwrap()
            .head
            .id,
        "ak_1"
    );
    // Any text is a valid value.
    for (id, value) in [("bot_1", "\0"), ("bot_2", "\u{1}0"), ("bot_3", "\u{1}")] {
        store.commit(insert(key("bot", id, value))).await.unwrap();
        let found = store.find("bot", "token", value).await.unwrap().unwrap();
        assert_eq!((&*found.head.id, &*found.keys[0].value), (id, value));
    }
    let gone = head(&store, "api_key", "ak_2").await;
    store.commit(Changes::remove(gone, SILENT)).await.unwrap();
    assert_eq!(store.find("api_key", "token", "x").await.unwrap(), None);
    store
        .commit(insert(key("api_key", "ak_3", "x")))
        .await
        .unwrap();
}

async fn references_hold_at_both_ends(db: &TestDatabase) {
    let store = db.store().await;
    match store
        .commit(insert(child("ch_1", "usr_1", OnDelete::Block)))
        .await
    {
        Err(CommitError::Missing { field, to }) => {
            assert_eq!((field.as_str(), to.as_str()), ("owner_id", "usr_1"));
        }
        other => panic!("{other:?}"),
    }
    store
        .commit(insert(document("user", "usr_1")))
        .await
        .unwrap();
    store
        .commit(insert(child("ch_1", "usr_1", OnDelete::Block)))
        .await
        .unwrap();
    store
        .commit(insert(child("ch_2", "usr_1", OnDelete::Cascade)))
        .await
        .unwrap();
    let user = head(&store, "user", "usr_1").await;
    match store.commit(Changes::remove(user.clone(), SILENT)).await {
        Err(CommitError::InUse { id, by_kind, by }) => assert_eq!(
            (id.as_str(), by_kind.as_str(), by.as_str()),
            ("usr_1", "child", "ch_1")
        ),
        other => panic!("{other:?}"),
    }
    // A replacement without the reference detaches.
    let mut detached = document("child", "ch_1");
    detached.head = head(&store, "child", "ch_1").await;
    store
        .commit(Changes::replace(detached, SILENT))
        .await
        .unwrap();
    // The cascade must be part of the changes; otherwise the reference counts as added after the
    // caller looked.
    let refused = store.commit(Changes::remove(user.clone(), SILENT)).await;
    assert!(matches!(refused, Err(CommitError::Stale)), "{refused:?}");
    let mut dangling = child("ch_1", "usr_9", OnDelete::Block);
    dangling.head = head(&store, "child", "ch_1").await;
    let refused = store.commit(Changes::replace(dangling, SILENT)).await;
    assert!(
        matches!(refused, Err(CommitError::Missing { .. })),
        "{refused:?}"
    );
    let last = head(&store, "child", "ch_2").await;
    store
        .commit(Changes::remove(last, SILENT).and(Changes::remove(user, SILENT)))
        .await
        .unwrap();
    store.check().await.unwrap();
}

async fn a_parent_goes_with_its_children_in_any_order(db: &TestDatabase) {
    let store = db.store().await;
    // In one write, a document may come before the target of its reference.
    let family =
        insert(child("ch_1", "usr_1", OnDelete::Cascade)).and(insert(document("user", "usr_1")));
    store.commit(family).await.unwrap();
    let user = head(&store, "user", "usr_1").await;
    let child = head(&store, "child", "ch_1").await;
    assert_eq!(user.revision, child.revision);
    store
        .commit(Changes::remove(user, SILENT).and(Changes::remove(child, SILENT)))
        .await
        .unwrap();
    assert_eq!(store.all("user").await.unwrap(), []);
    assert_eq!(store.all("child").await.unwrap(), []);
}

async fn stale_writes_are_refused(db: &TestDatabase) {
    let store = db.store().await;
    store
        .commit(insert(document("user", "usr_1")))
        .await
        .unwrap();
    let seen = store.get("user", "usr_1").await.unwrap().unwrap();
    let mut newer = seen.clone();
    newer.body = "{\"a\":1}".to_owned();
    newer.head.updated_at = at(5);
    let revision = store.commit(Changes::replace(newer, SILENT)).await.unwrap();
    let stored = store.get("user", "usr_1").await.unwrap().unwrap();
    assert_eq!(
        (stored.head.revision, stored.head.updated_at),
        (revision.number, at(5))
    );
    for late in [
        Changes::replace(seen.clone(), SILENT),
        Changes::remove(seen.head.clone(), SILENT),
        Changes::remove(document("user", "usr_2").head, SILENT),
    ] {
        let refused = store.commit(late).await;
        assert!(matches!(refused, Err(CommitError::Stale)), "{refused:?}");
    }
    assert_eq!(store.get("user", "usr_1").await.unwrap(), Some(stored));
    assert_eq!(store.revision().await.unwrap(), revision);
}

async fn conditions_hold_at_the_commit(db: &TestDatabase) {
    // Two stores on one database. Each learns of the other's commits only later.
    let (here, there) = (db.store().await, db.store().await);
    let since = here
        .commit(insert(key("host", "hst_1", "*.a.example")))
        .await
        .unwrap();
    let mut n = 0;
    let mut commit = async |condition: Changes| {
        n += 1;
        let id = format!("usr_{n}");
        let is_made = match here
            .commit(condition.and(insert(document("user", &id))))
            .await
        {
            Ok(_) => true,
            Err(CommitError::Stale) => false,
            Err(error) => panic!("{error}"),
        };
        let stored = here.get("user", &id).await.unwrap();
        assert_eq!(stored.is_some(), is_made, "it leaves nothing");
        is_made
    };
    let values = |values: &[&str]| values.iter().map(|one| (*one).to_owned()).collect();
    let unwritten = |names: &[&str]| Changes::unless_written("host", "token", values(names), since);
    let below = |end: &str| Changes::unless_written_below("host", "token", end.to_owned(), since);
    let seen = head(&here, "host", "hst_1").await;
    assert!(commit(Changes::while_at(&seen)).await);
    assert!(commit(Changes::unless_referred("hst_1")).await);
    assert!(commit(unwritten(&["*.a.example", "*.b.example"])).await);
    assert!(commit(below(".example")).await);
    // Documents that the condition does not name have no effect on it.
    for (id, name) in [("hst_2", "x.b.example"), ("hst_3", "*.c.example")] {
        there.commit(insert(key("host", id, name))).await.unwrap();
    }
    let other = key("other", "oth_1", "*.b.example");
    there.commit(insert(other)).await.unwrap();
    assert!(commit(unwritten(&["*.a.example", "*.b.example"])).await);
    assert!(commit(below(".a.example")).await);
    assert!(!commit(below(".b.example")).await);
    assert!(!commit(unwritten(&["*.b.example", "*.c.example"])).await);
    assert!(!commit(unwritten(&["*.a.example"]).and(below(".example"))).await);
    // A changed revision, a new reference, and a removal.
    let first = key("host", "hst_1", "*.a.example");
    let again = Document {
        head: seen.clone(),
        ..first
    };
    there.commit(Changes::replace(again, SILENT)).await.unwrap();
    assert!(!commit(Changes::while_at(&seen)).await);
    assert!(!commit(unwritten(&["*.a.example"])).await);
    let referrers = |kind: &str, since| Changes::while_referrers_at(kind, "hst_1", since);
    assert!(commit(referrers("child", since)).await);
    there
        .commit(insert(child("chd_1", "hst_1", OnDelete::Block)))
        .await
        .unwrap();
    assert!(!commit(Changes::unless_referred("hst_1")).await);
    assert!(!commit(referrers("child", since)).await);
    assert!(commit(referrers("other", since)).await);
    let since = there.revision().await.unwrap();
    assert!(commit(referrers("child", since)).await);
    let gone = head(&here, "host", "hst_2").await;
    there
        .commit(Changes::remove(gone.clone(), SILENT))
        .await
        .unwrap();
    assert!(!commit(Changes::while_at(&gone)).await);
    assert!(
        commit(below(".b.example")).await,
        "what is gone is in nobody's way"
    );
    let found = here.find_ending("host", "token", ".example").await.unwrap();
    let found: Vec<&str> = found.iter().map(|one| one.head.id.as_str()).collect();
    assert_eq!(found, ["hst_1", "hst_3"]);
    let found = here.find_ending("host", "token", "a.example").await;
    assert_eq!(found.unwrap().len(), 1);
    let longer = "a longer text than any name here, *.a.example";
    let found = here.find_ending("host", "token", longer).await;
    assert_eq!(found.unwrap(), []);
}

async fn what_is_refused_leaves_nothing(db: &TestDatabase) {
    let store = db.store().await;
    store
        .commit(insert(key("api_key", "ak_1", "x")))
        .await
        .unwrap();
    let emitted = |id: &str| AuditEvent::Emit(event("k.v0", id));
    let refused = store
        .commit(
            Changes::insert(document("user", "usr_1"), emitted("ev_1"))
                .and(Changes::event(event("k.v0", "ev_2")))
                .and(Changes::insert(
                    key("api_key", "ak_2", "x"),
                    emitted("ev_3"),
                )),
        )
        .await;
    assert!(
        matches!(refused, Err(CommitError::Duplicate { .. })),
        "{refused:?}"
    );
    assert_eq!(store.get("user", "usr_1").await.unwrap(), None);
    assert_eq!(store.outbox_after(0, 10).await.unwrap(), []);
    // An event is stored once, even if it is emitted again.
    store
        .commit(Changes::event(event("k.v0", "ev_1")))
        .await
        .unwrap();
    let again = store.commit(Changes::event(event("k.v0", "ev_1"))).await;
    assert!(
        matches!(again, Err(CommitError::Duplicate { .. })),
        "{again:?}"
    );
    let rows = store.outbox_after(0, 10).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].seq, &rows[0].event), (1, &event("k.v0", "ev_1")));
}

async fn events_go_to_those_who_wanted_them_then(db: &TestDatabase) {
    let store = db.store().await;
    let wants = |id: &str, kinds: &[&str], destination: &str| Document {
        topics: kinds
            .iter()
            .map(|kind| Topic {
                kind: (*kind).to_owned(),
                destination: destination.to_owned(),
            })
            .collect(),
        ..document("event_subscription", id)
    };
    const LIFE: &[&str] = &["made.v0", "changed.v0", "gone.v0"];
    let emitted = |kind: &str, id: &str| AuditEvent::Emit(event(kind, id));
    let foreign = Document {
        head: Head {
            account: "ac_2".to_owned(),
            ..document("event_subscription", "es_9").head
        },
        ..wants("es_9", LIFE, "ed_9")
    };
    store.commit(insert(foreign)).await.unwrap();
    store
        .commit(insert(wants("es_1", LIFE, "ed_1")))
        .await
        .unwrap();
    // A subscription receives the events of its creation, of the change that adds a topic, and of
    // its removal.
    store
        .commit(Changes::insert(
            wants("es_2", &["made.v0"], "ed_2"),
            emitted("made.v0", "ev_1"),
        ))
        .await
        .unwrap();
    let mut more = wants("es_2", LIFE, "ed_3");
    more.head = head(&store, "event_subscription", "es_2").await;
    store
        .commit(Changes::replace(more, emitted("changed.v0", "ev_2")))
        .await
        .unwrap();
    let last = head(&store, "event_subscription", "es_2").await;
    store
        .commit(Changes::remove(last, emitted("gone.v0", "ev_3")))
        .await
        .unwrap();
    store
        .commit(Changes::event(event("gone.v0", "ev_4")))
        .await
        .unwrap();
    store
        .commit(Changes::event(event("unwanted.v0", "ev_5")))
        .await
        .unwrap();
    let rows = store.outbox_after(0, 10).await.unwrap();
    let heard: Vec<(&str, Vec<(&str, &str)>)> = rows
        .iter()
        .map(|row| {
            let audience = row.audience.iter().map(|(s, d)| (s.as_str(), d.as_str()));
            (row.event.id.as_str(), audience.collect())
        })
        .collect();
    assert_eq!(
        heard,
        [
            ("ev_1", vec![("es_1", "ed_1"), ("es_2", "ed_2")]),
            ("ev_2", vec![("es_1", "ed_1"), ("es_2", "ed_3")]),
            ("ev_3", vec![("es_1", "ed_1"), ("es_2", "ed_3")]),
            ("ev_4", vec![("es_1", "ed_1")]),
            ("ev_5", vec![]),
        ]
    );
    assert_eq!(store.outbox_after(3, 1).await.unwrap()[0].event.id, "ev_4");
}

async fn pages_are_newest_first(db: &TestDatabase) {
    let store = db.store().await;
    store
        .commit(insert(document("user", "usr_1")))
        .await
        .unwrap();
    // Byte order: digits, capitals, small letters, regardless of the database's collation.
    for id in ["ch_a", "ch_B", "ch_1", "ch_Z", "ch_b"] {
        store
            .commit(insert(child(id, "usr_1", OnDelete::Cascade)))
            .await
            .unwrap();
    }
    store
        .commit(insert(document("child", "ch_c")))
        .await
        .unwrap();
    let ids = async |before: Option<&str>, limit: u32, refs_to: Option<&str>| {
        let query = PageQuery {
            kind: "child".to_owned(),
            account: "ac_1".to_owned(),
            before: before.map(str::to_owned),
            limit,
            refs_to: refs_to.map(str::to_owned),
        };
        let page = store.page(&query).await.unwrap();
        page.into_iter()
            .map(|document| document.head.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(None, 3, None).await, ["ch_c", "ch_b", "ch_a"]);
    assert_eq!(ids(Some("ch_a"), 9, None).await, ["ch_Z", "ch_B", "ch_1"]);
    assert_eq!(ids(None, 2, Some("usr_1")).await, ["ch_b", "ch_a"]);
    assert_eq!(ids(Some("ch_Z"), 9, Some("usr_1")).await, ["ch_B", "ch_1"]);
    assert_eq!(ids(None, 9, Some("usr_2")).await, Vec::<String>::new());
    let foreign = PageQuery {
        kind: "child".to_owned(),
        account: "ac_2".to_owned(),
        before: None,
        limit: 9,
        refs_to: None,
    };
    assert_eq!(store.page(&foreign).await.unwrap(), []);
}

/// More documents than one read returns, many of them of one commit.
async fn many_documents_are_read_in_pages(db: &TestDatabase) {
    let store = db.store().await;
    let ids: Vec<String> = (0..2_300).rev().map(|n| format!("usr_{n:04}")).collect();
    let mut revisions = Vec::new();
    for some in ids.chunks(1_150) {
        let inserts = some.iter().map(|id| insert(document("user", id)));
        let all = inserts.fold(Changes::default(), Changes::and);
        revisions.push(store.commit(all).await.unwrap());
    }
    let changed = store.changed("user", 0).await.unwrap();
    assert!(changed.is_sorted_by_key(|one| one.head.revision));
    assert_eq!(changed.len(), ids.len());
    let all = store.all("user").await.unwrap();
    let read: Vec<&str> = all.iter().map(|one| &*one.head.id).collect();
    assert!(
        read.iter()
            .copied()
            .eq(ids.iter().rev().map(String::as_str))
    );
    let later = store.changed("user", revisions[0].number).await.unwrap();
    assert_eq!(later.len(), 1_150);
}

async fn many_at_once_keep_their_own_outcome(db: &TestDatabase) {
    let store = db.store().await;
    let mut writers = JoinSet::new();
    for n in 0..200 {
        let store = store.clone();
        writers.spawn(async move {
            // Every value is requested twice.
            let wanted = key("api_key", &format!("ak_{n:03}"), &format!("v{}", n / 2));
            let emitted = AuditEvent::Emit(event("k.v0", &format!("ev_{n:03}")));
            (n, store.commit(Changes::insert(wanted, emitted)).await)
        });
    }
    let mut revisions = BTreeSet::new();
    let mut committed = BTreeSet::new();
    for (n, outcome) in writers.join_all().await {
        match outcome {
            Ok(revision) => {
                assert!(revisions.insert(revision), "a revision was given twice");
                committed.insert(format!("ak_{n:03}"));
                assert!(
                    store
                        .get("api_key", &format!("ak_{n:03}"))
                        .await
                        .unwrap()
                        .is_some()
                );
            }
            Err(CommitError::Duplicate { .. }) => {
                assert_eq!(
                    store.get("api_key", &format!("ak_{n:03}")).await.unwrap(),
                    None
                );
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(revisions.iter().map(|revision| revision.number).eq(1..=100));
    assert_eq!(store.watch().borrow().number, 100);
    let rows = store.outbox_after(0, 1000).await.unwrap();
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
    let emitted: BTreeSet<String> = rows
        .iter()
        .map(|row| row.event.id.replace("ev_", "ak_"))
        .collect();
    assert_eq!(emitted, committed);
    store.check().await.unwrap();
}

async fn the_outbox_is_in_commit_order_over_two_nodes(db: &TestDatabase) {
    let nodes = [db.store().await, db.store().await];
    let mut writers = JoinSet::new();
    for n in 0..120 {
        let store = nodes[n % 2].clone();
        writers.spawn(async move {
            let id = format!("ev_{n:03}");
            let emitted = AuditEvent::Emit(event("k.v0", &id));
            let made = document("user", &format!("usr_{n:03}"));
            (
                store.commit(Changes::insert(made, emitted)).await.unwrap(),
                id,
            )
        });
    }
    let mut by_revision = writers.join_all().await;
    by_revision.sort_unstable();
    let rows = nodes[0].outbox_after(0, 1000).await.unwrap();
    let by_seq: Vec<&String> = rows.iter().map(|row| &row.event.id).collect();
    assert_eq!(
        by_seq,
        by_revision.iter().map(|(_, id)| id).collect::<Vec<_>>()
    );
    assert_eq!(rows.last().unwrap().seq, 120);
    // Each node learns of the other's commits.
    for store in &nodes {
        let mut watch = store.watch();
        let heard = watch.wait_for(|revision| revision.number == 120);
        tokio::time::timeout(Duration::from_secs(5), heard)
            .await
            .unwrap()
            .unwrap();
    }
}

async fn many_lookups_at_once_each_get_their_own(db: &TestDatabase) {
    let store = db.store().await;
    let family = (0..50).fold(Changes::default(), |all, n| {
        all.and(insert(document("user", &format!("usr_{n}"))))
    });
    store.commit(family).await.unwrap();
    let mut readers = JoinSet::new();
    for n in 0..600 {
        let store = store.clone();
        readers.spawn(async move {
            let id = format!("usr_{}", n % 60);
            let found = store.get("user", &id).await.unwrap();
            assert_eq!(
                found.map(|found| found.head.id),
                (n % 60 < 50).then_some(id)
            );
        });
    }
    readers.join_all().await;
}

async fn settings_and_pruning(db: &TestDatabase) {
    let store = db.store().await;
    assert_eq!(store.meta_get("node").await.unwrap(), None);
    store.meta_set("node", "a").await.unwrap();
    store.meta_set("node", "b").await.unwrap();
    assert_eq!(store.meta_get("node").await.unwrap().as_deref(), Some("b"));
    // In a commit, with all of it or not at all.
    let set = |value: &str| Changes::meta("node", value.to_owned());
    store.commit(set("c")).await.unwrap();
    assert_eq!(store.meta_get("node").await.unwrap().as_deref(), Some("c"));
    let head = Head {
        id: "none".to_owned(),
        kind: "kind".to_owned(),
        account: "a".to_owned(),
        revision: 1,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    };
    let stale = set("d").and(Changes::while_at(&head));
    assert!(store.commit(stale).await.is_err());
    assert_eq!(store.meta_get("node").await.unwrap().as_deref(), Some("c"));
    for n in 1..=3 {
        store
            .commit(Changes::event(event("k.v0", &format!("ev_{n}"))))
            .await
            .unwrap();
    }
    assert_eq!(store.prune_outbox(Expired(2), UNDECIDED).await.unwrap(), 2);
    assert_eq!(store.prune_outbox(Expired(3), UNDECIDED).await.unwrap(), 1);
    // Positions are never assigned twice, even when all rows have been removed.
    store
        .commit(Changes::event(event("k.v0", "ev_4")))
        .await
        .unwrap();
    assert_eq!(store.outbox_after(0, 9).await.unwrap()[0].seq, 4);
    assert_eq!(store.revision().await.unwrap().number, 5);
}

async fn a_copy_opens_and_holds_everything(db: &TestDatabase) {
    let store = db.store().await;
    let queue = db.queue().await;
    let emitted = AuditEvent::Emit(event("k.v0", "ev_1"));
    store
        .commit(Changes::insert(document("user", "usr_1"), emitted))
        .await
        .unwrap();
    let copy = db.folder.path().join("copy/state.db");
    std::fs::create_dir(copy.parent().unwrap()).unwrap();
    if !db.is_sqlite() {
        assert!(store.backup(&copy, &[("a", "b")]).await.is_err());
        return;
    }
    queue
        .backup(&copy.with_file_name("events.db"))
        .await
        .unwrap();
    store.backup(&copy, &[("a", "b")]).await.unwrap();
    store
        .commit(insert(document("user", "usr_2")))
        .await
        .unwrap();
    // Again, over the first backup.
    store.backup(&copy, &[("a", "b")]).await.unwrap();
    store.close().await;

    let url = StoreUrl::Sqlite(copy.clone());
    let copied = Store::open(&url, db.clock.clone(), texts()).await.unwrap();
    copied.check().await.unwrap();
    assert_eq!(copied.all("user").await.unwrap().len(), 2);
    assert_eq!(copied.outbox_after(0, 9).await.unwrap().len(), 1);
    copied
        .commit(insert(document("user", "usr_3")))
        .await
        .unwrap();
    for path in [&copy, &copy.with_file_name("state.db-wal")] {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    copied.close().await;
    // The original opens again unchanged.
    let reopened = db.store().await;
    assert_eq!(reopened.revision().await.unwrap().number, 2);
}

async fn a_blocked_store_refuses_in_time_and_recovers(db: &TestDatabase) {
    let store = db.store().await;
    let mut other = store
        .shared
        .database
        .site
        .connect(Access::Write)
        .await
        .unwrap();
    if let StoreUrl::Postgres(_) = &db.url {
        // Else the database ends an idle transaction before the time limit of a commit.
        let endless = "SET idle_in_transaction_session_timeout = 0";
        other.script(endless.to_owned()).await.unwrap();
    }
    other.begin().await.unwrap();
    let nobody = [Arg::Text(""), Arg::Text("")];
    other.run(state::LOCK, &nobody).await.unwrap();

    let asked_at = Instant::now();
    let emitted = AuditEvent::Emit(event("k.v0", "ev_1"));
    let blocked = Changes::insert(document("user", "usr_1"), emitted);
    let refused = store.commit(blocked.clone()).await;
    let CommitError::Fault(fault) = refused.unwrap_err() else {
        panic!("a fault, since nothing is wrong with the change")
    };
    assert!(asked_at.elapsed() < Duration::from_millis(5_500));
    assert!(fault.to_string().contains("nothing was written"), "{fault}");
    assert_eq!(
        store.get("user", "usr_1").await.unwrap(),
        None,
        "reading goes on"
    );

    other.run(transaction::ROLLBACK, &[]).await.unwrap();
    store.commit(blocked).await.unwrap();
    assert_eq!(store.outbox_after(0, 9).await.unwrap().len(), 1);
    other.close().await;
}

async fn closed_means_closed(db: &TestDatabase) {
    let store = db.store().await;
    let committed = store.commit(insert(document("user", "usr_1")));
    committed.await.unwrap();
    store.close().await;
    assert!(
        store
            .commit(insert(document("user", "usr_2")))
            .await
            .is_err()
    );
    assert!(store.get("user", "usr_1").await.is_err());
    assert!(store.all("user").await.is_err());
    assert!(store.usable().await.is_err());
    store.close().await;
}
