//! The kept answer to a repeated request.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::on_both_engines;
use super::store::{at, document};
use super::test_database::TestDatabase;
use crate::commit::commit_error::CommitError;
use crate::store::Store;
use crate::{AnswerRoom, AuditEvent, Changes, KeptAnswer};

on_both_engines!(
    an_answer_is_kept_with_its_write_or_not_at_all,
    of_repeated_writes_on_two_nodes_one_is_committed,
    an_owner_has_limited_room,
    a_key_takes_half_of_the_room_of_its_owner,
    a_begun_request_is_completed_or_forgotten,
    old_answers_and_secrets_are_removed,
);

const SILENT: AuditEvent = AuditEvent::Suppress {
    reason: "the test does not look at events",
};
const ROOM: AnswerRoom = AnswerRoom {
    answers: 100,
    bytes: 1 << 20,
};

fn answer(id: &str, seconds: i64) -> KeptAnswer {
    KeptAnswer {
        id: id.to_owned(),
        owner: "ac_1 usr_1".to_owned(),
        key: format!("ak_{id}"),
        kept_at: at(seconds),
        revision: 0,
        body: format!("the answer {id}"),
        secret: Some("sealed".to_owned()),
    }
}

/// Keeps an answer unless there is one from the day before it.
fn keep(answer: KeptAnswer, room: AnswerRoom) -> Changes {
    let since = answer.kept_at.minus(Duration::from_secs(86_400));
    Changes::keep(answer, since, room)
}

async fn kept(store: &Store, id: &str) -> Option<KeptAnswer> {
    store.kept_answer(id).await.unwrap()
}

async fn an_answer_is_kept_with_its_write_or_not_at_all(db: &TestDatabase) {
    let store = db.store().await;
    assert_eq!(kept(&store, "a").await, None);
    let write = |id: &str| Changes::insert(document("item", id), SILENT);
    let revision = store
        .commit(keep(answer("a", 0), ROOM).and(write("item_1")))
        .await
        .unwrap();
    let expected = KeptAnswer {
        revision: revision.number,
        ..answer("a", 0)
    };
    assert_eq!(kept(&store, "a").await, Some(expected));
    // The answer is there, so the write is not repeated.
    let again = keep(answer("a", 1), ROOM).and(write("item_2"));
    assert!(matches!(store.commit(again).await, Err(CommitError::Kept)));
    assert!(store.get("item", "item_2").await.unwrap().is_none());
    // The write is refused, so there is no answer.
    let refused = keep(answer("b", 1), ROOM).and(write("item_1"));
    let refused = store.commit(refused).await;
    assert!(matches!(refused, Err(CommitError::Duplicate { .. })));
    assert_eq!(kept(&store, "b").await, None);
    // An old one counts as absent, whether or not it is removed yet.
    let late = keep(answer("a", 86_400), ROOM).and(write("item_3"));
    store.commit(late).await.unwrap();
    assert_eq!(kept(&store, "a").await.unwrap().kept_at, at(86_400));
    store.close().await;
}

async fn of_repeated_writes_on_two_nodes_one_is_committed(db: &TestDatabase) {
    let nodes = [db.store().await, db.store().await].map(Arc::new);
    let mut tasks = JoinSet::new();
    for n in 0..60 {
        let store = nodes[n % 2].clone();
        tasks.spawn(async move {
            let write = Changes::insert(document("item", &format!("item_{n}")), SILENT);
            match store.commit(keep(answer("a", 0), ROOM).and(write)).await {
                Ok(_) => 1,
                Err(CommitError::Kept) => 0,
                Err(error) => panic!("{error}"),
            }
        });
    }
    let n_committed: usize = tasks.join_all().await.into_iter().sum();
    assert_eq!(n_committed, 1);
    assert_eq!(nodes[0].count("item").await.unwrap(), 1);
    let seen = [kept(&nodes[0], "a").await, kept(&nodes[1], "a").await];
    assert!(seen[0].is_some() && seen[0] == seen[1]);
    for node in nodes {
        node.close().await;
    }
}

async fn an_owner_has_limited_room(db: &TestDatabase) {
    let store = db.store().await;
    let few = AnswerRoom { answers: 2, ..ROOM };
    for id in ["a", "b"] {
        store.commit(keep(answer(id, 0), few)).await.unwrap();
    }
    let full = store.commit(keep(answer("c", 0), few)).await;
    assert!(matches!(full, Err(CommitError::NoRoom)), "{full:?}");
    assert_eq!(kept(&store, "c").await, None);
    // It is found without room.
    let again = store.commit(keep(answer("a", 0), few)).await;
    assert!(matches!(again, Err(CommitError::Kept)), "{again:?}");
    let other = KeptAnswer {
        owner: "ac_1 usr_2".to_owned(),
        ..answer("c", 0)
    };
    store.commit(keep(other, few)).await.unwrap();
    // Two have 36 bytes, and this one 18.
    let small = AnswerRoom { bytes: 50, ..ROOM };
    let full = store.commit(keep(answer("d", 0), small)).await;
    assert!(matches!(full, Err(CommitError::NoRoom)), "{full:?}");
    store.close().await;
}

async fn a_key_takes_half_of_the_room_of_its_owner(db: &TestDatabase) {
    let store = db.store().await;
    let of = |id: &str, owner: &str, key: &str| KeptAnswer {
        owner: owner.to_owned(),
        key: key.to_owned(),
        ..answer(id, 0)
    };
    let few = AnswerRoom { answers: 4, ..ROOM };
    let kept = async |answer| match store.commit(keep(answer, few)).await {
        Ok(_) => true,
        Err(CommitError::NoRoom) => false,
        Err(error) => panic!("{error}"),
    };
    assert!(kept(of("a", "usr_1", "ak_1")).await);
    assert!(kept(of("b", "usr_1", "ak_1")).await);
    assert!(!kept(of("c", "usr_1", "ak_1")).await);
    // The other keys of the owner have the rest, and other owners their own room.
    assert!(kept(of("c", "usr_1", "ak_2")).await);
    assert!(kept(of("d", "usr_1", "")).await);
    assert!(!kept(of("e", "usr_1", "ak_3")).await);
    for (n, owner) in ["usr_", "usr_10", "usr_1 ", "usr_2"]
        .into_iter()
        .enumerate()
    {
        assert!(kept(of(&format!("f{n}"), owner, "ak_1")).await, "{owner}");
    }
    // By size too: each has 18 bytes.
    let small = AnswerRoom { bytes: 50, ..ROOM };
    for (id, key, is_kept) in [
        ("g", "ak_1", true),
        ("h", "ak_1", false),
        ("h", "ak_2", true),
    ] {
        let written = store.commit(keep(of(id, "usr_3", key), small)).await;
        assert_eq!(written.is_ok(), is_kept, "{id} {key}");
    }
    store.close().await;
}

async fn a_begun_request_is_completed_or_forgotten(db: &TestDatabase) {
    let store = db.store().await;
    for id in ["a", "b"] {
        store.commit(keep(answer(id, 0), ROOM)).await.unwrap();
    }
    let complete = |at| Changes::complete_answer("a", at, "done".to_owned());
    // That of another time is another request.
    store.commit(complete(at(1))).await.unwrap();
    assert_eq!(kept(&store, "a").await.unwrap().body, "the answer a");
    store.commit(complete(at(0))).await.unwrap();
    assert_eq!(kept(&store, "a").await.unwrap().body, "done");
    store
        .commit(Changes::forget_answer("b", at(1)))
        .await
        .unwrap();
    assert!(kept(&store, "b").await.is_some());
    store
        .commit(Changes::forget_answer("b", at(0)))
        .await
        .unwrap();
    assert!(kept(&store, "b").await.is_none());
    store.close().await;
}

async fn old_answers_and_secrets_are_removed(db: &TestDatabase) {
    let store = db.store().await;
    for (id, seconds) in [("a", 0), ("b", 50), ("c", 100)] {
        store.commit(keep(answer(id, seconds), ROOM)).await.unwrap();
    }
    let revision = store.revision().await.unwrap();
    assert_eq!(store.prune_answers(at(-1), at(-1)).await.unwrap(), 0);
    assert_eq!(store.prune_answers(at(0), at(50)).await.unwrap(), 2);
    assert_eq!(kept(&store, "a").await, None);
    assert_eq!(kept(&store, "b").await.unwrap().secret, None);
    assert!(kept(&store, "c").await.unwrap().secret.is_some());
    assert_eq!(store.prune_answers(at(0), at(50)).await.unwrap(), 0);
    assert_eq!(
        store.revision().await.unwrap(),
        revision,
        "no document changed"
    );
    store.close().await;
}
