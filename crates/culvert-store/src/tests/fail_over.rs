//! Servers that change their role: read only, a standby, and a fail-over.

use std::time::Duration;

use culvert_testing::{PATIENCE, Postgres};

use super::proxy::{Proxy, Server};
use super::store::document;
use super::test_database::{TestDatabase, run, texts};
use crate::database::trouble::{self, Trouble};
use crate::{AuditEvent, BatchClass, Body, Changes, CommitError, NewBatch, Queue, Store, StoreUrl};

const NOTHING: AuditEvent = AuditEvent::Suppress { reason: "a test" };

fn insert(id: &str) -> Changes {
    Changes::insert(document("item", id), NOTHING)
}

fn batch() -> NewBatch {
    NewBatch {
        destination: "ed_1".to_owned(),
        class: BatchClass::Traffic,
        count: 1,
        body: Body {
            stored: b"one".to_vec(),
            bytes: 1,
        },
    }
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

/// A setting of the database makes all its new sessions read only; nothing is restarted when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_succeed_again_after_the_database_was_read_only() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let StoreUrl::Postgres(url) = &db.url else {
        panic!("a PostgreSQL place")
    };
    let (_, name) = url.rsplit_once('/').unwrap();
    let (store, queue) = (db.store().await, db.queue().await);
    let set = async |to: &str| {
        let sql = format!(
            "BEGIN; SET LOCAL transaction_read_only = off; \
             ALTER DATABASE {name} SET default_transaction_read_only = {to}; COMMIT"
        );
        run(url, sql).await.unwrap();
    };
    store.commit(insert("before")).await.unwrap();
    set("on").await;
    db.end_connections().await;
    for _ in 0..3 {
        let refused = store.commit(insert("refused")).await.unwrap_err();
        let CommitError::Fault(fault) = refused else {
            panic!("{refused}")
        };
        assert!(fault.is_passing(), "{}", fault.chain());
        let refused = queue.append(vec![batch()], None).await.unwrap_err();
        assert!(
            refused.to_string().contains("nothing was written"),
            "{refused}"
        );
    }
    assert!(store.get("item", "before").await.unwrap().is_some());
    assert!(store.usable().await.is_err() && queue.usable().await.is_err());
    assert_eq!(store.trouble().as_deref(), Some("read only"));
    set("off").await;
    eventually("both are written again", async || {
        let queued = queue.append(vec![batch()], None).await;
        queued.is_ok() && store.commit(Changes::default()).await.is_ok()
    })
    .await;
    assert!(store.usable().await.is_ok() && queue.usable().await.is_ok());
    assert_eq!(store.trouble(), None);
    store.close().await;
    queue.close().await;
}

/// A lock that another session holds is named, and ends without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_commit_says_so() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let store = db.store().await;
    store.commit(insert("before")).await.unwrap();
    let site = &store.shared.database.site;
    let mut other = site
        .connect(crate::database::dialect::Access::Write)
        .await
        .unwrap();
    other
        .script(
            "SET idle_in_transaction_session_timeout = 0; BEGIN; \
             LOCK TABLE ledger IN EXCLUSIVE MODE"
                .to_owned(),
        )
        .await
        .unwrap();
    eventually("the store is not usable", async || {
        let is_refused = store.commit(insert("refused")).await.is_err();
        is_refused && store.usable().await.is_err()
    })
    .await;
    let trouble = store.trouble().unwrap();
    assert!(trouble.starts_with("no commit for "), "{trouble}");
    other.close().await;
    eventually("it commits", async || store.usable().await.is_ok()).await;
    assert_eq!(store.trouble(), None);
    store.close().await;
}

/// As a paused process, or one whose machine is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_in_the_middle_of_a_commit_makes_no_other_fail() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let store = db.store().await;
    store.commit(insert("before")).await.unwrap();
    let site = &store.shared.database.site;
    let mut stopped = site
        .connect(crate::database::dialect::Access::Write)
        .await
        .unwrap();
    stopped
        .script("BEGIN; LOCK TABLE ledger IN EXCLUSIVE MODE".to_owned())
        .await
        .unwrap();
    store.commit(insert("during")).await.unwrap();
    store.commit(insert("after")).await.unwrap();
    // The stopped one learns of it as of a lost connection, so that its commit is repeated and no caller gets a 500.
    let ended = stopped.script("SELECT 1".to_owned()).await.unwrap_err();
    assert!(trouble::ends_transaction(&ended), "{ended}");
    assert_eq!(Trouble::of(&ended), Some(Trouble::Unreachable), "{ended}");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_loses_commits_is_noticed() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let Some(primary) = tokio::task::block_in_place(|| Postgres::start(folders[0].path())) else {
        return;
    };
    let standby = tokio::task::block_in_place(|| primary.standby(folders[1].path()));
    let proxy = Proxy::to(Server::Socket(primary.socket())).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port);
    let url = StoreUrl::Postgres(url);
    let db = TestDatabase::sqlite();
    let store = Store::open(&url, db.clock.clone(), texts()).await.unwrap();
    let queue = Queue::open(&url, db.clock.clone()).await.unwrap();
    store.commit(insert("kept")).await.unwrap();
    eventually("the standby has it", async || {
        let sql = "DO $$ BEGIN ASSERT (SELECT count(*) FROM culvert.document) = 1; END $$";
        run(&standby.url(), sql.to_owned()).await.is_ok()
    })
    .await;
    // Not in one message, whose statements would be one transaction.
    for sql in [
        "ALTER SYSTEM SET primary_conninfo = ''",
        "SELECT pg_reload_conf()",
    ] {
        run(&standby.url(), sql.to_owned()).await.unwrap();
    }
    eventually("replication ends", async || {
        let sql = "DO $$ BEGIN ASSERT (SELECT count(*) FROM pg_stat_wal_receiver) = 0; END $$";
        run(&standby.url(), sql.to_owned()).await.is_ok()
    })
    .await;
    for id in ["lost_1", "lost_2", "lost_3"] {
        store.commit(insert(id)).await.unwrap();
    }
    let known = store.revision().await.unwrap();

    // The address leads to the standby, which is behind.
    proxy.switch(&standby.socket());
    let read = store.get("item", "lost_1").await;
    let fault = read.expect_err("a standby is not read");
    assert!(
        fault.is_passing() && fault.chain().contains("standby"),
        "{}",
        fault.chain()
    );
    assert!(store.commit(insert("refused")).await.is_err());
    assert!(store.usable().await.is_err() && queue.usable().await.is_err());
    assert_eq!(
        store.trouble().as_deref(),
        Some("a standby, which is read only")
    );
    assert!(store.find("item", "name", "x").await.is_err());

    tokio::task::block_in_place(|| {
        primary.stop();
        standby.promote();
    });
    let mut next = None;
    eventually("the new primary takes commits", async || {
        next = store.commit(insert("next")).await.ok();
        next.is_some()
    })
    .await;
    let next = next.unwrap();
    assert!(next > known && next.number < known.number, "{next:?}");
    assert_eq!(store.touched(known).await.1, None);
    assert_eq!(store.lost_commits().unwrap().known, known);
    assert!(store.get("item", "lost_1").await.unwrap().is_none());
    eventually("it is usable", async || store.usable().await.is_ok()).await;
    queue.append(vec![batch()], None).await.unwrap();
    store.close().await;
    queue.close().await;
}

/// What transactions need does not depend on the defaults of the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_isolation_of_transactions_is_their_own() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let StoreUrl::Postgres(url) = &db.url else {
        panic!("a PostgreSQL place")
    };
    let (_, name) = url.rsplit_once('/').unwrap();
    let strict =
        format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'");
    run(url, strict).await.unwrap();
    let (stores, queues) = (
        [db.store().await, db.store().await],
        [db.queue().await, db.queue().await],
    );
    let mut writers = tokio::task::JoinSet::new();
    for (node, (store, queue)) in stores.iter().zip(&queues).enumerate() {
        for n in 0..40 {
            let (store, queue) = (store.clone(), queue.clone());
            writers.spawn(async move {
                store
                    .commit(insert(&format!("item_{node}_{n}")))
                    .await
                    .unwrap();
                queue.append(vec![batch()], None).await.unwrap();
            });
        }
    }
    writers.join_all().await;
    assert_eq!(stores[0].count("item").await.unwrap(), 80);
    for (store, queue) in stores.iter().zip(&queues) {
        store.close().await;
        queue.close().await;
    }
}

/// Transactions that wait for each other are repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_refuses_nothing() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let (store, queue) = (db.store().await, db.queue().await);
    queue.append(vec![batch()], None).await.unwrap();
    let site = &store.shared.database.site;
    let mut other = site
        .connect(crate::database::dialect::Access::Write)
        .await
        .unwrap();
    let lock = "BEGIN; LOCK TABLE culvert_events.batch IN EXCLUSIVE MODE";
    other.script(lock.to_owned()).await.unwrap();
    let mut appending = tokio::task::JoinSet::new();
    appending.spawn({
        let queue = queue.clone();
        async move {
            let cursor = crate::CursorMove {
                name: "a".to_owned(),
                from: 0,
                to: 1,
            };
            queue.append(vec![batch()], Some(cursor)).await
        }
    });
    // The append has its cursor and waits for the table.
    let StoreUrl::Postgres(url) = &db.url else {
        panic!("a PostgreSQL place")
    };
    eventually("the append waits", async || {
        let waits = "DO $$ BEGIN ASSERT EXISTS (SELECT 1 FROM pg_locks \
             WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())); END $$";
        run(url, waits.to_owned()).await.is_ok()
    })
    .await;
    // The server ends the transaction of one of the two: of the queue's, if this is within a second.
    let crossing = "INSERT INTO culvert_events.cursor (name, value) VALUES ('a', 7) ON CONFLICT DO NOTHING; ROLLBACK";
    drop(other.script(crossing.to_owned()).await);
    other.close().await;
    let appended = appending.join_next().await.unwrap();
    appended.unwrap().unwrap();
    assert_eq!(queue.cursor("a").await.unwrap(), 1);
    store.close().await;
    queue.close().await;
}

/// A pooler loses the settings of a session, in one way or another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_behind_pgbouncer_is_refused() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let StoreUrl::Postgres(url) = &db.url else {
        panic!("a PostgreSQL place")
    };
    for (mode, ignored) in [
        ("session", ""),
        ("session", "options"),
        ("transaction", "options"),
    ] {
        let Some(bouncer) = PgBouncer::start(url, mode, ignored).await else {
            return;
        };
        let through = StoreUrl::Postgres(bouncer.url.clone());
        let refused = Store::open(&through, db.clock.clone(), texts()).await;
        let why = refused.unwrap_err();
        assert!(!why.is_passing(), "no start is tried again");
        let why = why.chain();
        assert!(
            why.contains("connect to PostgreSQL directly"),
            "{mode} {ignored}: {why}"
        );
        let public = "DO $$ BEGIN ASSERT (SELECT count(*) FROM pg_tables WHERE schemaname = 'public') = 0; END $$";
        run(url, public.to_owned()).await.unwrap();
    }
}

/// PgBouncer in front of a server.
struct PgBouncer {
    url: String,
    process: tokio::process::Child,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// `None`, reported as ignored, without the program.
    async fn start(url: &str, mode: &str, ignored: &str) -> Option<Self> {
        let (base, name) = url.rsplit_once('/').unwrap();
        let (_, server) = base.split_once("://").unwrap();
        let (_, server) = server.rsplit_once('@').unwrap_or(("", server));
        let (host, port) = server.rsplit_once(':').unwrap_or((server, "5432"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let folder = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={port} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {mode}\nignore_startup_parameters = {ignored}\n",
            address.port()
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = tokio::process::Command::new("pgbouncer");
        command.arg(&settings);
        if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0 {
            // It does not run as root.
            command.uid(65_534).gid(65_534);
        }
        let null = std::process::Stdio::null;
        command.stdout(null()).stderr(null());
        command.kill_on_drop(true);
        let Ok(mut process) = command.spawn() else {
            culvert_testing::ignore("PgBouncer is not here");
            return None;
        };
        loop {
            if tokio::net::TcpStream::connect(address).await.is_ok() {
                break;
            }
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "PgBouncer does not start: {ended:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let url = format!("postgres://postgres@{address}/{name}?sslmode=disable");
        Some(Self {
            url,
            process,
            _folder: folder,
        })
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.process.start_kill());
    }
}
