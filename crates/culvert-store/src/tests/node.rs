//! Names and time of the nodes that share a database.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_base::{Clock, SystemClock};
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::audit::script;
use super::on_both_engines;
use super::store::document;
use super::test_database::{TestDatabase, run};
use crate::database::dialect::Access;
use crate::database::postgres::Schema;
use crate::{AuditEvent, Changes, Revision, Store, StoreUrl, Touched};

on_both_engines!(
    a_running_process_has_its_name_alone,
    a_process_that_lost_its_name_stops,
    what_a_commit_touched_is_known_to_every_process,
    a_server_without_a_free_connection_is_waited_for,
);

async fn a_running_process_has_its_name_alone(db: &TestDatabase) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let one = db.store().await;
    let first = one.join_as("edge", Arc::clone(&clock)).await.unwrap();
    assert_eq!(first.name, "edge");
    // Both clocks run on this machine, so they agree even if the test is delayed.
    let apart = first.clock.now().unix_seconds() - clock.now().unix_seconds();
    assert!(apart.abs() < 30, "{apart} s");
    if db.is_sqlite() {
        one.close().await;
        return;
    }
    let other = db.store().await;
    let second = other.join_as("edge", Arc::clone(&clock)).await.unwrap();
    assert_eq!(second.name, "edge-2");
    one.close().await;
    let third = db.store().await;
    let heir = third.join_as("edge", clock).await.unwrap();
    assert_eq!(heir.name, "edge", "free again when its process is gone");
    other.close().await;
    third.close().await;
}

async fn a_process_that_lost_its_name_stops(db: &TestDatabase) {
    let StoreUrl::Postgres(url) = &db.url else {
        return;
    };
    let store = db.store().await;
    let node = store.join_as("edge", db.clock.clone()).await.unwrap();
    assert_eq!(node.name, "edge");
    let taken = loop {
        db.end_connections().await;
        let mut other = PgConnection::connect(url).await.unwrap();
        let claim = "SELECT pg_try_advisory_lock(hashtextextended('culvert node edge', 0))";
        let row = sqlx::query(claim).fetch_one(&mut other).await.unwrap();
        // The node may have been faster.
        if row.get::<bool, _>(0) {
            break other;
        }
    };
    let failed = tokio::time::timeout(culvert_testing::PATIENCE, store.supervisor().failure());
    assert_eq!(failed.await.unwrap().name, "store.node_name");
    taken.close().await.unwrap();
    store.close().await;
}

const NOTHING: AuditEvent = AuditEvent::Suppress { reason: "a test" };

fn touched(ids: &[&str]) -> Option<Vec<Touched>> {
    let one = |id: &&str| Touched {
        kind: "item".to_owned(),
        id: (*id).to_owned(),
    };
    Some(ids.iter().map(one).collect())
}

/// The revision this many commits earlier.
fn before(revision: Revision, n_commits: i64) -> Revision {
    Revision {
        number: revision.number - n_commits,
        ..revision
    }
}

/// The documents that `store` knows from the commits after `since`, once it knows of `until`.
async fn known(store: &Store, since: Revision, until: Revision) -> Option<Vec<Touched>> {
    let mut revision = store.watch();
    revision
        .wait_for(|revision| *revision >= until)
        .await
        .unwrap();
    store.touched(since).await.1
}

async fn what_a_commit_touched_is_known_to_every_process(db: &TestDatabase) {
    let one = db.store().await;
    let insert = |id: &str| Changes::insert(document("item", id), NOTHING);
    if db.is_sqlite() {
        // A SQLite file has one process.
        let first = one.commit(insert("a")).await.unwrap();
        assert_eq!(known(&one, before(first, 1), first).await, touched(&["a"]));
        one.close().await;
        return;
    }
    let other = db.store().await;
    let mut last = one.commit(insert("a")).await.unwrap();
    // Until both receive notifications.
    loop {
        let next = one.commit(Changes::default()).await.unwrap();
        let is_known = known(&other, last, next).await.is_some();
        last = next;
        let next = other.commit(Changes::default()).await.unwrap();
        let is_known = is_known && known(&one, last, next).await.is_some();
        last = next;
        if is_known {
            break;
        }
    }
    // Any role may notify a channel that it has seen, and say that the next commits touch nothing.
    let channel = one.shared.state_log.channel.as_ref().unwrap().name();
    let forged = (last.number + 1..last.number + 20).map(|number| {
        let message = format!("[{number},[]]");
        let code = "0".repeat(32);
        format!(
            "SELECT pg_notify('{channel}', '{message}'), pg_notify('{channel}', '{code}{message}')"
        )
    });
    script(&one, &forged.collect::<Vec<_>>().join(";")).await;
    let added = one.commit(insert("b")).await.unwrap();
    assert_eq!(known(&other, last, added).await, touched(&["b"]));
    let head = other.get("item", "a").await.unwrap().unwrap().head;
    let removed = other.commit(Changes::remove(head, NOTHING)).await.unwrap();
    assert_eq!(known(&one, last, removed).await, touched(&["b", "a"]));
    // Both write concurrently.
    for n in 0..50 {
        let ids = [format!("one{n}"), format!("other{n}")];
        let (by_one, by_other) =
            tokio::join!(one.commit(insert(&ids[0])), other.commit(insert(&ids[1])));
        let last = by_one.unwrap().max(by_other.unwrap());
        for store in [&one, &other] {
            let all = known(store, before(last, 2), last).await;
            assert_eq!(all.map(|all| all.len()), Some(2), "{n}");
        }
    }
    // Too large for a notification.
    let last = one.revision().await.unwrap();
    let many = (0..100).map(|n| insert(&format!("many{n}")));
    let many = one
        .commit(many.fold(Changes::default(), Changes::and))
        .await
        .unwrap();
    assert_eq!(known(&other, last, many).await, None);
    assert_eq!(known(&one, last, many).await, None);
    one.close().await;
    other.close().await;
}

async fn a_server_without_a_free_connection_is_waited_for(db: &TestDatabase) {
    // A SQLite file has no such limit.
    let StoreUrl::Postgres(url) = &db.url else {
        return;
    };
    let (base, name) = url.rsplit_once('/').unwrap();
    let role = format!("{name}_one");
    let limited = format!("CREATE ROLE {role} LOGIN PASSWORD 'one' CONNECTION LIMIT 1");
    run(url, limited).await.unwrap();
    let (scheme, server) = base.split_once("://").unwrap();
    let server = server.rsplit_once('@').map_or(server, |(_, server)| server);
    let (address, mut ended, _proxy) = counted(server.to_owned()).await;
    let url_of_role = format!("{scheme}://{role}:one@{address}/{name}");
    let schema = Schema::at(&url_of_role, crate::database::STATE.schema).unwrap();
    let (first, _) = schema.connect(Access::Write).await.unwrap();
    let release = async {
        ended.recv().await.unwrap();
        // The second was refused.
        first.close().await.unwrap();
    };
    let (second, ()) = tokio::join!(schema.connect(Access::Write), release);
    second.unwrap().0.close().await.unwrap();
    run(url, format!("DROP ROLE {role}")).await.unwrap();
}

/// A proxy of the server, and a message for each connection that ended. The proxy lives as long as its task.
async fn counted(server: String) -> (SocketAddr, mpsc::Receiver<()>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = mpsc::channel(8);
    let mut proxy = JoinSet::new();
    proxy.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let (server, end) = (server.clone(), end.clone());
            connections.spawn(async move {
                let mut far = TcpStream::connect(server).await.unwrap();
                drop(copy_bidirectional(&mut near, &mut far).await);
                end.try_send(()).ok();
            });
        }
    });
    (address, ended, proxy)
}
