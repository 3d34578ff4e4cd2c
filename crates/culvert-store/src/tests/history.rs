//! Commits that the database lost, as after a fail-over to a standby that did not have them.

use std::time::Duration;

use super::audit::script;
use super::on_both_engines;
use super::store::{document, event};
use super::test_database::TestDatabase;
use crate::feed::Touched;
use crate::feed::notifications::{Listener, messages};
use crate::node::broadcast::Channel;
use crate::{AuditEvent, Changes, CommitError, Revision, Store};

on_both_engines!(
    lost_commits_begin_an_epoch,
    a_condition_on_lost_commits_is_stale,
    a_store_of_the_format_before_has_no_epoch,
    notifications_of_lost_commits_are_not_taken,
);

const NOTHING: AuditEvent = AuditEvent::Suppress { reason: "a test" };

fn insert(id: &str) -> Changes {
    let event = event("item_created.v0", &format!("ev_{id}"));
    Changes::insert(document("item", id), AuditEvent::Emit(event))
}

/// Takes back all commits after the first `n`, each of which was an insertion.
async fn lose_all_after(store: &Store, n: i64) {
    let lost = format!(
        "DELETE FROM document WHERE revision > {n}; DELETE FROM outbox WHERE seq > {n}; \
         UPDATE writer SET revision = {n} WHERE revision > {n}; \
         UPDATE ledger SET revision = {n}, outbox = {n}, written = {n}, chained = {n}, \
           texts = {n}, head = (SELECT hash FROM outbox WHERE seq = {n})"
    );
    script(store, &lost).await;
}

async fn until(store: &Store, reached: impl Fn(Revision) -> bool) -> Revision {
    let mut watch = store.watch();
    let watched = watch.wait_for(|revision| reached(*revision));
    let reached = tokio::time::timeout(Duration::from_secs(60), watched).await;
    *reached.unwrap().unwrap()
}

async fn lost_commits_begin_an_epoch(db: &TestDatabase) {
    let store = db.store().await;
    for id in ["a", "b", "c", "d"] {
        store.commit(insert(id)).await.unwrap();
    }
    let known = store.revision().await.unwrap();
    assert_eq!((known.epoch, known.number), (0, 4));
    assert_eq!(store.lost_commits(), None);
    lose_all_after(&store, 2).await;

    // The next commit has the number of a lost one, and is above all that were known.
    let next = store.commit(insert("e")).await.unwrap();
    assert_eq!((next.epoch, next.number), (1, 3));
    assert!(next > known);
    assert_eq!(until(&store, |revision| revision >= next).await, next);
    assert_eq!(store.touched(known).await, (next, None));
    let loss = store.lost_commits().unwrap();
    assert_eq!((loss.known, loss.found.number), (known, 2));
    // From then on the feed is complete again, and the audit log is one chain.
    let last = store.commit(insert("f")).await.unwrap();
    let touched = store.touched(next).await.1.unwrap();
    assert_eq!((touched.len(), &*touched[0].id), (1, "f"));
    assert_eq!((last.epoch, last.number), (1, 4));
    store.audit_log().verify(None).await.unwrap();

    // A reader notices without a commit.
    lose_all_after(&store, 1).await;
    let found = until(&store, |revision| revision.epoch > 1).await;
    assert_eq!((found.epoch, found.number), (2, 1));
    store.close().await;
    // A new process knows of no other history.
    let store = db.store().await;
    assert_eq!(store.revision().await.unwrap().epoch, 0);
    store.close().await;
}

/// A handler that read a state which is lost decides again.
async fn a_condition_on_lost_commits_is_stale(db: &TestDatabase) {
    let store = db.store().await;
    for id in ["a", "b"] {
        store.commit(insert(id)).await.unwrap();
    }
    let since = store.revision().await.unwrap();
    lose_all_after(&store, 1).await;
    let decided = || {
        let values = vec!["name".to_owned()];
        let unless = Changes::unless_written("item", "name", values, since);
        insert("c").and(unless)
    };
    for _ in 0..2 {
        let refused = store.commit(decided()).await;
        assert!(matches!(refused, Err(CommitError::Stale)), "{refused:?}");
    }
    store.close().await;
}

/// Commits of a program that does not name itself are no loss.
async fn a_store_of_the_format_before_has_no_epoch(db: &TestDatabase) {
    let store = db.store().await;
    store.commit(insert("a")).await.unwrap();
    for n in 2..5 {
        let older = format!(
            "INSERT INTO document (id, kind, account, revision, created_at, updated_at, links, body) \
             VALUES ('older_{n}', 'item', 'ac_1', {n}, 0, 0, '{{\"keys\":[],\"refs\":[],\"topics\":[]}}', '{{}}'); \
             UPDATE ledger SET revision = {n}"
        );
        script(&store, &older).await;
        let known = until(&store, |revision| revision.number == n).await;
        assert_eq!(known.epoch, 0);
    }
    let next = store
        .commit(Changes::insert(document("item", "b"), NOTHING))
        .await
        .unwrap();
    assert_eq!((next.epoch, next.number), (0, 5));
    assert_eq!(store.lost_commits(), None);
    store.close().await;
}

/// A connection may still have the notifications of lost commits when the loss is noticed. Their numbers are used again.
async fn notifications_of_lost_commits_are_not_taken(db: &TestDatabase) {
    let store = db.store().await;
    for id in ["a", "b", "c"] {
        store.commit(insert(id)).await.unwrap();
    }
    let listening = Listener::new(&store.shared.state_log);
    let document = |id: &str| Touched {
        kind: "item".to_owned(),
        id: id.to_owned(),
    };
    let channel = Channel::new("c".to_owned(), "key");
    let lost = messages(&channel, &[(3, Some(vec![document("c")]))]);
    let [lost]: [String; 1] = serde_json::from_str(&lost).unwrap();
    let lost = channel.opened(&lost).unwrap();
    lose_all_after(&store, 2).await;
    let found = until(&store, |revision| revision.epoch == 1).await;
    while store.touched(found).await.1.is_none() {
        tokio::task::yield_now().await;
    }

    // The connection was opened before the loss, and the ledger was read after it.
    listening.begin(found).unwrap_err();
    listening.take(lost).unwrap_err();
    let next = store.commit(insert("d")).await.unwrap();
    assert_eq!((next.epoch, next.number), (1, 3));
    assert_eq!(
        store.touched(found).await,
        (next, Some(vec![document("d")]))
    );
    store.close().await;
}
