//! Commits whose answer is lost: each is asked for, and happens once.

use std::time::Duration;

use culvert_base::Clock;

use super::proxy::{Cut, Proxy, Server};
use super::store::document;
use super::test_database::{TestDatabase, texts};
use crate::{
    AuditEvent, BatchClass, Body, Changes, DeadBatch, DeadLetterReason, Document, Lease, NewBatch,
    NewPiece, Queue, Store, StoreUrl,
};

const NOTHING: AuditEvent = AuditEvent::Suppress { reason: "a test" };
const COMMIT: &[u8] = b"COMMIT";

/// A proxy of the database's server, and the URL through it.
async fn proxied(db: &TestDatabase) -> (Proxy, StoreUrl) {
    let StoreUrl::Postgres(url) = &db.url else {
        panic!("a PostgreSQL place")
    };
    let (base, name) = url.rsplit_once('/').unwrap();
    let (scheme, server) = base.split_once("://").unwrap();
    let (user, server) = server.rsplit_once('@').unwrap_or(("postgres", server));
    let proxy = Proxy::to(Server::Address(server.to_owned())).await;
    let url = format!(
        "{scheme}://{user}@127.0.0.1:{}/{name}?sslmode=disable",
        proxy.port
    );
    (proxy, StoreUrl::Postgres(url))
}

fn batch(body: &str) -> NewBatch {
    NewBatch {
        destination: "ed_1".to_owned(),
        class: BatchClass::Traffic,
        count: 1,
        body: Body {
            stored: body.into(),
            bytes: 1,
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_documents_happens_once() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let (proxy, url) = proxied(&db).await;
    let store = Store::open(&url, db.clock.clone(), texts()).await.unwrap();
    let mut last = store.revision().await.unwrap();
    for (n, cut) in [Cut::Answer, Cut::Commit, Cut::Answer]
        .into_iter()
        .enumerate()
    {
        proxy.cut(cut, COMMIT);
        let one: Document = document("item", &format!("item_{n}"));
        let revision = store.commit(Changes::insert(one, NOTHING)).await.unwrap();
        assert!(proxy.has_cut(), "{cut:?}");
        assert_eq!(revision.epoch, 0, "nothing was lost");
        assert_eq!(revision.number, last.number + 1);
        assert!(*store.watch().borrow() >= revision);
        let touched = store.touched(last).await.1;
        assert_eq!(touched.map(|touched| touched.len()), Some(1), "{cut:?}");
        last = revision;
    }
    assert_eq!(store.count("item").await.unwrap(), 3);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_knows_what_it_leased_and_settled() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let (proxy, url) = proxied(&db).await;
    let queue = Queue::open(&url, db.clock.clone()).await.unwrap();
    let lease = async || -> Lease {
        let minute = Duration::from_secs(60);
        let leased = queue.lease("ed_1", "a", minute, db.clock.now()).await;
        leased.unwrap().expect("a batch is due")
    };
    for cut in [Cut::Answer, Cut::Commit] {
        proxy.cut(cut, COMMIT);
        queue.append(vec![batch("one")], None).await.unwrap();
        assert!(proxy.has_cut());
        proxy.cut(cut, COMMIT);
        let first = lease().await;
        assert!(proxy.has_cut());
        // Settled by one statement, without a transaction.
        proxy.cut(cut, b"UPDATE batch");
        queue.retry(&first, db.clock.now(), "again").await.unwrap();
        let again = lease().await;
        assert_eq!((again.batch, again.attempt), (first.batch, 2));
        proxy.cut(cut, b"DELETE FROM batch");
        queue.ack(&again).await.unwrap();
        assert_eq!(queue.backlog().await.unwrap(), [], "appended once");
    }
    // Pieces of the traffic log and dead letters are written once.
    for n in 1..3 {
        let at = db.clock.now();
        proxy.cut(Cut::Answer, COMMIT);
        let piece = NewPiece {
            first_at: at,
            last_at: at,
            endpoints: Vec::new(),
            summary: Vec::new(),
            body: vec![1],
        };
        queue.keep_traffic(vec![piece]).await.unwrap();
        proxy.cut(Cut::Answer, COMMIT);
        let dead = DeadBatch {
            batch: batch("dead"),
            attempts: 1,
            first_at: at,
            why: DeadLetterReason {
                class: String::new(),
                code: String::new(),
                text: String::new(),
            },
        };
        queue.put_dead(dead).await.unwrap();
        assert!(proxy.has_cut());
        let dead = queue.dead_letters("ed_1", None, 9).await.unwrap();
        assert_eq!(dead.len(), n);
        assert_eq!(queue.traffic_pieces(0, i64::MAX, 9).await.unwrap().len(), n);
    }
    queue.close().await;
}

/// A lease whose caller has given up is free again immediately, not when it expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_received_is_given_back() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let (proxy, url) = proxied(&db).await;
    let queue = Queue::open(&url, db.clock.clone()).await.unwrap();
    queue.append(vec![batch("one")], None).await.unwrap();
    let minute = Duration::from_secs(60);
    let now = db.clock.now();
    proxy.cut(Cut::Answer, COMMIT);
    proxy.leave_after_cut();
    {
        let mut leasing = std::pin::pin!(queue.lease("ed_1", "a", minute, now));
        // The caller gives up once the answer is lost, and before it is asked for.
        while !proxy.has_cut() {
            let some_time = Duration::from_millis(1);
            let leased = tokio::time::timeout(some_time, &mut leasing).await;
            assert!(leased.is_err(), "the answer is lost");
        }
    }
    proxy.come_back();
    let patience = culvert_testing::PATIENCE;
    let again = tokio::time::timeout(patience, async {
        loop {
            if let Some(lease) = queue.lease("ed_1", "a", minute, now).await.unwrap() {
                return lease;
            }
        }
    });
    let again = again.await.unwrap();
    assert_eq!(again.attempt, 2);
    queue.ack(&again).await.unwrap();
    queue.close().await;
}
