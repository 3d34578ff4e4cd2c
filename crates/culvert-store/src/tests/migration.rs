//! Formats: upgrades with a backup, refusal of newer formats, and files that are not databases.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use culvert_base::Clock;
use sqlx::Connection as _;

use super::on_both_engines;
use super::test_database::{TestDatabase, texts};
use crate::Queue;
use crate::database::dialect::{Access, Arg};
use crate::database::migrate::{self, Step};
use crate::database::statements::{MIGRATION_LOCK_HOLDER, meta};
use crate::database::store_url::StoreUrl;
use crate::database::{Database, DatabasePart};
use crate::store::Store;

on_both_engines!(
    a_step_is_applied_once_and_the_last_two_copies_are_kept,
    a_database_that_needs_a_newer_culvert_is_refused,
    two_nodes_may_start_at_once,
    an_inspection_says_what_a_start_would_do_and_does_nothing,
);

const fn step(format: i64, min_reader: i64, sql: &'static str) -> Step {
    Step {
        format,
        min_reader,
        sql,
    }
}

/// The format this program writes.
const OURS: usize = migrate::STATE.len();

/// The steps of this program, and three later ones.
static LATER: LazyLock<Vec<Step>> = LazyLock::new(|| {
    let format = |n: usize| i64::try_from(OURS + n).unwrap();
    let mut steps = migrate::STATE.to_vec();
    steps.extend([
        step(
            format(1),
            1,
            "CREATE TABLE two (a INTEGER NOT NULL) STRICT;",
        ),
        step(
            format(2),
            1,
            "CREATE TABLE three (a BLOB) STRICT; INSERT INTO two (a) VALUES (3);",
        ),
        step(format(3), format(3), "DROP TABLE two;"),
    ]);
    steps
});

async fn a_step_is_applied_once_and_the_last_two_copies_are_kept(db: &TestDatabase) {
    let store = db.store().await;
    store.meta_set("node", "a").await.unwrap();
    store.close().await;
    if let StoreUrl::Sqlite(path) = &db.url {
        let copy = path.with_file_name(format!("state.db.pre-{OURS}"));
        assert!(!copy.exists(), "a new database has nothing to keep");
    }
    for n in [OURS + 1, OURS + 2, OURS + 2, OURS + 3] {
        let part = DatabasePart {
            steps: &LATER[..n],
            ..crate::database::STATE
        };
        let database = Database::open(&db.url, part, &*db.clock).await.unwrap();
        let row = database
            .pool
            .row("", meta::GET, &[Arg::Text("format")])
            .await
            .unwrap();
        assert_eq!(row.unwrap().get::<String>(0).unwrap(), n.to_string());
        database.close().await;
        if n == OURS + 2 {
            // The program of an older format can still use the database, and does not downgrade it.
            let older = db.store().await;
            assert_eq!(older.meta_get("node").await.unwrap().as_deref(), Some("a"));
            assert_eq!(
                older.meta_get("format").await.unwrap().as_deref(),
                Some(&*n.to_string())
            );
            older.close().await;
        }
    }
    if let StoreUrl::Sqlite(path) = &db.url {
        let exists = |n: usize| path.with_file_name(format!("state.db.pre-{n}")).exists();
        assert_eq!(
            [OURS, OURS + 1, OURS + 2, OURS + 3].map(exists),
            [false, false, true, true]
        );
    }
}

async fn a_database_that_needs_a_newer_culvert_is_refused(db: &TestDatabase) {
    let part = DatabasePart {
        steps: &LATER,
        ..crate::database::STATE
    };
    let newer = Database::open(&db.url, part, &*db.clock).await.unwrap();
    newer.close().await;
    let refused = Store::open(&db.url, db.clock.clone(), texts())
        .await
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "opening the database: it has format {0}, which requires a version that reads format \
             {0}, and this version reads up to {OURS}; start the newer version, or restore the \
             backup made before the upgrade",
            LATER.len()
        )
    );
}

async fn two_nodes_may_start_at_once(db: &TestDatabase) {
    let (one, other) = tokio::join!(db.store(), db.store());
    let format = one.meta_get("format").await.unwrap();
    assert_eq!(format, Some(OURS.to_string()));
    let migrated_at = db.clock.now().to_string();
    assert_eq!(
        other.meta_get("migrated_at").await.unwrap(),
        Some(migrated_at)
    );
}

#[tokio::test]
async fn damage_is_found_before_anything_is_written() {
    let db = TestDatabase::sqlite();
    let StoreUrl::Sqlite(path) = &db.url else {
        panic!("a SQLite place")
    };
    let store = db.store().await;
    store.close().await;
    let mut bytes = std::fs::read(path).unwrap();
    bytes[..16].fill(b'x');
    std::fs::write(path, &bytes).unwrap();
    assert!(
        Store::open(&db.url, db.clock.clone(), texts())
            .await
            .is_err()
    );
    assert_eq!(std::fs::read(path).unwrap(), bytes);
}

#[tokio::test]
async fn a_password_is_never_shown() {
    let db = TestDatabase::sqlite();
    let url: StoreUrl = "postgres://u:hush@127.0.0.1:1/x".parse().unwrap();
    assert!(!format!("{url:?}").contains("hush"));
    let fault = Store::open(&url, db.clock.clone(), texts())
        .await
        .unwrap_err();
    assert!(!fault.chain().contains("hush"), "{}", fault.chain());
    let wrong: StoreUrl = "postgres://u:hush@[bad".parse().unwrap();
    let fault = Store::open(&wrong, db.clock.clone(), texts())
        .await
        .unwrap_err();
    assert!(!fault.chain().contains("hush"), "{}", fault.chain());
}

#[tokio::test]
async fn a_disk_error_is_distinguished_from_a_refusal() {
    let db = TestDatabase::sqlite();
    let store = db.store().await;
    let mut connection = store
        .shared
        .database
        .site
        .connect(Access::Write)
        .await
        .unwrap();
    let health = crate::database::health::Health::good();
    let refused = connection.run("SELECT nothing FROM nowhere", &[]).await;
    health.judge(&refused.unwrap_err(), "reading");
    assert!(health.check().is_ok());
    // The attached file is not a database.
    let garbage = db.folder.path().join("garbage");
    std::fs::write(&garbage, [b'x'; 4096]).unwrap();
    let path = garbage.to_str().unwrap();
    let error = match connection
        .run("ATTACH $1 AS garbage", &[Arg::Text(path)])
        .await
    {
        Err(error) => error,
        Ok(_) => connection
            .rows("SELECT name FROM garbage.sqlite_schema", &[])
            .await
            .unwrap_err(),
    };
    health.judge(&error, "reading");
    assert!(health.check().is_err(), "{error}");
}

async fn an_inspection_says_what_a_start_would_do_and_does_nothing(db: &TestDatabase) {
    let inspect = async || crate::inspect(&db.url, &*db.clock).await.unwrap();
    let [empty, _] = inspect().await;
    assert_eq!((empty.format, empty.is_migrated()), (None, false));
    if let StoreUrl::Sqlite(path) = &db.url {
        assert!(!path.exists(), "an inspection creates nothing");
    }

    db.store().await.close().await;
    let ours = i64::try_from(OURS).unwrap();
    let [current, events] = inspect().await;
    assert_eq!((current.format, current.newest), (Some(ours), ours));
    assert!(current.is_readable() && !current.is_migrated() && !current.excludes_older());
    assert_eq!(events.format, None, "no queue was opened");

    // As a program of format 1 left it.
    let store = db.store().await;
    store.meta_set("format", "1").await.unwrap();
    let [older, _] = inspect().await;
    assert!(older.is_migrated() && !older.excludes_older());
    let [mut again, _] = inspect().await;
    again.clock_ahead_ms = older.clock_ahead_ms;
    assert_eq!(again, older, "an inspection changes nothing");

    // As a newer program left it.
    let newer = (ours + 1).to_string();
    store.meta_set("format", &newer).await.unwrap();
    store.meta_set("min_reader", &newer).await.unwrap();
    let [newer, _] = inspect().await;
    assert!(!newer.is_readable() && !newer.is_migrated());
    store.close().await;
}

/// Every role that may connect can take the lock of migrations. A start then waits, and says for whom.
#[tokio::test]
async fn a_migration_waits_for_its_lock_and_knows_who_has_it() {
    let Some(db) = TestDatabase::postgres().await else {
        return;
    };
    let StoreUrl::Postgres(url) = db.url.clone() else {
        return;
    };
    let mut holder = sqlx::PgConnection::connect(&url).await.unwrap();
    let lock = "SELECT pg_advisory_lock(hashtext('culvert_events'))";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    let mut running = tokio::task::JoinSet::new();
    let (to, clock) = (db.url.clone(), db.clock.clone());
    running.spawn(async move { Queue::open(&to, clock).await.unwrap().close().await });
    let found = sqlx::query_scalar(MIGRATION_LOCK_HOLDER).bind("culvert_events");
    let found: String = found.fetch_one(&mut holder).await.unwrap();
    // It waits again after each time-out.
    let waiting = "SELECT CAST(extract(epoch FROM query_start) * 1000000 AS BIGINT) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event = 'advisory'";
    let mut waits = BTreeSet::<i64>::new();
    while waits.len() < 3 {
        let since: Vec<i64> = sqlx::query_scalar(waiting)
            .fetch_all(&mut holder)
            .await
            .unwrap();
        waits.extend(since);
    }
    let own: String =
        sqlx::query_scalar("SELECT 'process ' || pg_backend_pid() || ' of role ' || session_user")
            .fetch_one(&mut holder)
            .await
            .unwrap();
    assert_eq!(found, own);
    holder.close().await.unwrap();
    running.join_next().await.unwrap().unwrap();
}
