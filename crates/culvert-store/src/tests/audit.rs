//! The audit log: its chain, detection of tampering, pruning, ranges, and logs of format 1.

use std::io::Write;
use std::time::Duration;

use tokio::task::JoinSet;

use super::store::{at, document, event};
use super::test_database::TestDatabase;
use super::{UNDECIDED, on_both_engines};
use crate::audit_log::chain::Link;
use crate::commit::commit_error::CommitError;
use crate::database::dialect::Access;
use crate::database::migrate;
use crate::database::{Database, DatabasePart};
use crate::store::Store;
use crate::{
    AuditError, AuditEvent, AuditLog, Beginning, Bound, Changes, Damage, Deciding, Expired,
    NotedHead, RangeError, Revision,
};

on_both_engines!(
    commits_of_two_nodes_make_one_chain,
    every_tampering_is_found,
    a_log_made_anew_is_found_by_a_head_noted_before,
    pruning_leaves_an_anchor,
    nothing_is_removed_if_what_decides_was_written_since,
    removals_without_an_event_are_found,
    a_log_of_format_1_is_chained,
    what_an_older_program_writes_is_chained_by_the_next_commit,
    ranges_by_time_and_event,
    reading_makes_nothing,
);

/// Rows without hashes, as a program of format 1 writes them; valid SQL for both engines.
const FORMAT_1: &str = include_str!("format-1.sql");
/// Its head, computed by the program of docs/how-to/audit.md.
const HEAD_OF_FORMAT_1: &str = "3:faa5ce511b5a90b9df3d5bef601537d9a1d31e4d007cb3d01c638619d19de4b2";

pub(super) async fn script(store: &Store, sql: &str) {
    let site = &store.shared.database.site;
    let mut connection = site.connect(Access::Write).await.unwrap();
    connection.script(sql.to_owned()).await.unwrap();
    connection.close().await;
}

async fn tell(store: &Store, n: u32) {
    let event = event("k.v0", &format!("ev_{n}"));
    store.commit(Changes::event(event)).await.unwrap();
}

/// A store with five events, and its log.
async fn five(db: &TestDatabase) -> (Store, AuditLog) {
    let store = db.store().await;
    for n in 1..=5 {
        tell(&store, n).await;
    }
    let log = store.audit_log();
    (store, log)
}

async fn commits_of_two_nodes_make_one_chain(db: &TestDatabase) {
    let nodes = [db.store().await, db.store().await];
    let mut writers = JoinSet::new();
    for n in 0..120 {
        let store = nodes[n % 2].clone();
        writers.spawn(async move {
            let id = format!("usr_{}", n / 3);
            // Two of three are refused, after their event was hashed.
            let emitted = AuditEvent::Emit(event("k.v0", &format!("ev_{n}")));
            store
                .commit(Changes::insert(document("user", &id), emitted))
                .await
                .is_ok()
        });
    }
    let n_written = writers
        .join_all()
        .await
        .into_iter()
        .filter(|ok| *ok)
        .count();
    assert_eq!(n_written, 40);
    let log = nodes[0].audit_log();
    let extent = log.verify(None).await.unwrap();
    assert_eq!(
        (extent.anchor, extent.head.seq, extent.last),
        (Link::START, 40, 40)
    );
    assert_eq!(extent.events(), 40);
    for node in &nodes {
        node.check().await.unwrap();
        assert_eq!(node.audit_log().extent().await.unwrap(), extent);
    }
}

async fn every_tampering_is_found(db: &TestDatabase) {
    const AGAIN: &str = "UPDATE outbox SET seq = 99 WHERE seq = 3; \
         UPDATE outbox SET seq = 3 WHERE seq = 4; UPDATE outbox SET seq = 4 WHERE seq = 99;";
    // The change, how to undo it, and the first wrong position.
    let mut tamperings = vec![
        (AGAIN.to_owned(), AGAIN.to_owned(), 3),
        (
            "UPDATE outbox SET seq = 6 WHERE seq = 2".to_owned(),
            "UPDATE outbox SET seq = 2 WHERE seq = 6".to_owned(),
            2,
        ),
        (
            "UPDATE outbox SET seq = 6 WHERE seq = 1".to_owned(),
            "UPDATE outbox SET seq = 1 WHERE seq = 6".to_owned(),
            1,
        ),
        (
            "UPDATE outbox SET seq = 7 WHERE seq = 5".to_owned(),
            "UPDATE outbox SET seq = 5 WHERE seq = 7".to_owned(),
            5,
        ),
        (
            "INSERT INTO outbox (seq, id, account, kind, happened_at, audience, body, hash) \
             SELECT 6, 'ev_6', account, kind, happened_at, audience, body, hash FROM outbox \
             WHERE seq = 5"
                .to_owned(),
            "DELETE FROM outbox WHERE seq = 6".to_owned(),
            6,
        ),
        (
            "UPDATE outbox SET seq = 7 WHERE seq = 5; UPDATE outbox SET seq = 8 WHERE seq = 4; \
             INSERT INTO outbox (seq, id, account, kind, happened_at, audience, body, hash) \
             SELECT 4, 'ev_x', account, kind, happened_at, audience, body, hash FROM outbox \
             WHERE seq = 8; UPDATE outbox SET seq = 5 WHERE seq = 8; \
             UPDATE outbox SET seq = 6 WHERE seq = 7;"
                .to_owned(),
            "DELETE FROM outbox WHERE seq = 4; UPDATE outbox SET seq = 4 WHERE seq = 5; \
             UPDATE outbox SET seq = 5 WHERE seq = 6;"
                .to_owned(),
            4,
        ),
        (
            "UPDATE ledger SET chained = 4".to_owned(),
            "UPDATE ledger SET chained = 5".to_owned(),
            4,
        ),
        (
            "UPDATE ledger SET outbox = 4".to_owned(),
            "UPDATE ledger SET outbox = 5".to_owned(),
            5,
        ),
        (
            "UPDATE ledger SET anchor = 1".to_owned(),
            "UPDATE ledger SET anchor = 0".to_owned(),
            2,
        ),
    ];
    for (column, other, mended) in [
        ("id", "'ev_x'", "'ev_3'"),
        ("account", "'ac_2'", "'ac_1'"),
        ("kind", "'l.v0'", "'k.v0'"),
        ("happened_at", "happened_at + 1", "happened_at - 1"),
        ("audience", "'[[]]'", "'[]'"),
        ("body", "body || ' '", "trim(body)"),
        ("hash", "NULL", "(SELECT hash FROM saved)"),
        (
            "hash",
            "(SELECT hash FROM outbox WHERE seq = 2)",
            "(SELECT hash FROM saved)",
        ),
    ] {
        let set = |value: &str| format!("UPDATE outbox SET {column} = {value} WHERE seq = 3");
        tamperings.push((set(other), set(mended), 3));
    }
    let (store, log) = five(db).await;
    let whole = log.verify(None).await.unwrap();
    script(&store, "CREATE TABLE saved (hash TEXT NOT NULL)").await;
    script(
        &store,
        "INSERT INTO saved SELECT hash FROM outbox WHERE seq = 3",
    )
    .await;
    let n_tamperings = tamperings.len();
    for (done, undone, seq) in tamperings {
        script(&store, &done).await;
        match log.verify(None).await {
            Err(AuditError::Damaged(Damage { seq: found, .. })) => assert_eq!(found, seq, "{done}"),
            other => panic!("{done}: {other:?}"),
        }
        script(&store, &undone).await;
        assert_eq!(log.verify(None).await.unwrap(), whole, "{undone}");
    }
    let mut said = std::io::stdout();
    writeln!(
        said,
        "R21 audit verify: {n_tamperings} tamperings, found {n_tamperings}"
    )
    .unwrap();
}

async fn a_log_made_anew_is_found_by_a_head_noted_before(db: &TestDatabase) {
    let (store, log) = five(db).await;
    let head = log.extent().await.unwrap().head;
    let noted: NotedHead = head.to_string().parse().unwrap();
    let alone: NotedHead = head.hash.to_string().parse().unwrap();
    for noted in [noted, alone] {
        assert_eq!(log.verify(Some(noted)).await.unwrap().head, head);
    }
    // The last row is deleted and the ledger changed accordingly. The log is consistent, but does
    // not match the noted head.
    let fourth = log.hash_at(4).await.unwrap().unwrap();
    script(
        &store,
        &format!(
            "DELETE FROM outbox WHERE seq = 5; \
             UPDATE ledger SET outbox = 4, chained = 4, head = '{fourth}'"
        ),
    )
    .await;
    assert_eq!(log.verify(None).await.unwrap().events(), 4);
    for noted in [noted, alone] {
        let refused = log.verify(Some(noted)).await;
        assert!(
            matches!(refused, Err(AuditError::HeadMissing(_))),
            "{refused:?}"
        );
    }
    // Later rows do not repair it.
    tell(&store, 6).await;
    assert_eq!(log.verify(None).await.unwrap().events(), 5);
    assert!(log.verify(Some(noted)).await.is_err());
}

async fn pruning_leaves_an_anchor(db: &TestDatabase) {
    let (store, log) = five(db).await;
    let third = log.hash_at(3).await.unwrap().unwrap();
    let second: NotedHead = format!("2:{}", log.hash_at(2).await.unwrap().unwrap())
        .parse()
        .unwrap();
    assert_eq!(store.prune_outbox(Expired(3), UNDECIDED).await.unwrap(), 3);
    let extent = log.verify(None).await.unwrap();
    assert_eq!(extent.anchor.to_string(), format!("3:{third}"));
    assert_eq!(extent.events(), 2);
    assert_eq!(log.hash_at(3).await.unwrap(), Some(third.clone()));
    let noted: NotedHead = format!("3:{third}").parse().unwrap();
    assert_eq!(log.verify(Some(noted)).await.unwrap(), extent);
    let refused = log.verify(Some(second)).await;
    assert!(
        matches!(refused, Err(AuditError::HeadPruned(..))),
        "{refused:?}"
    );
    // Pruning again changes nothing, and all rows may be pruned.
    assert_eq!(store.prune_outbox(Expired(3), UNDECIDED).await.unwrap(), 0);
    assert_eq!(log.extent().await.unwrap(), extent);
    assert_eq!(
        store
            .prune_outbox(Expired(i64::MAX), UNDECIDED)
            .await
            .unwrap(),
        2
    );
    let empty = log.verify(None).await.unwrap();
    assert_eq!((empty.events(), empty.anchor), (0, extent.head));
    tell(&store, 6).await;
    let extent = log.verify(None).await.unwrap();
    assert_eq!((extent.events(), extent.head.seq), (1, 6));
    // The ages of the oldest rows.
    assert_eq!(log.expired(at(1), 9, 9).await.unwrap(), None);
    assert_eq!(log.expired(at(2), 9, 9).await.unwrap(), Some(Expired(6)));
    assert_eq!(log.expired(at(2), 5, 9).await.unwrap(), None);
}

/// A document that is written after the decision may decide otherwise.
async fn nothing_is_removed_if_what_decides_was_written_since(db: &TestDatabase) {
    let (store, log) = five(db).await;
    let prune = async |as_of| {
        let deciding = Deciding {
            kind: "hold",
            as_of,
        };
        store.prune_outbox(Expired(1), deciding).await.unwrap()
    };
    let reported = || AuditEvent::Suppress { reason: "a test" };
    let before = store.revision().await.unwrap();
    let hold = document("hold", "ah_1");
    store
        .commit(Changes::insert(hold, reported()))
        .await
        .unwrap();
    assert_eq!(prune(before).await, 0, "it is new");
    let before = store.revision().await.unwrap();
    let found = store.get("hold", "ah_1").await.unwrap().unwrap();
    store
        .commit(Changes::replace(found, reported()))
        .await
        .unwrap();
    assert_eq!(prune(before).await, 0, "it was changed");
    let other = document("other", "o_1");
    let now = store.revision().await.unwrap();
    store
        .commit(Changes::insert(other, reported()))
        .await
        .unwrap();
    let later = Revision { epoch: 1, ..now };
    assert_eq!(prune(later).await, 0, "it may be lost");
    assert_eq!(log.extent().await.unwrap().anchor.seq, 0);
    assert_eq!(prune(now).await, 1);
}

/// Writes the event of a removal, as the server does before it.
async fn announce(store: &Store, id: u32, object: &str) {
    let mut event = event("event_log_pruned.v0", &format!("ev_{id}"));
    event.body = format!(r#"{{"event_id":"ev_{id}","object":{object}}}"#);
    store.commit(Changes::event(event)).await.unwrap();
}

/// Removes the oldest rows with access to the database alone.
async fn remove_to(store: &Store, seq: i64) {
    let hash = store.audit_log().hash_at(seq).await.unwrap().unwrap();
    let sql = format!(
        "DELETE FROM outbox WHERE seq <= {seq}; \
         UPDATE ledger SET anchor = {seq}, anchor_hash = '{hash}'"
    );
    script(store, &sql).await;
}

async fn removals_without_an_event_are_found(db: &TestDatabase) {
    let (store, log) = five(db).await;
    let unannounced = async || match log.verify_beginning().await {
        Err(AuditError::Unannounced { first, last }) => Some((first, last)),
        _ => None,
    };
    assert_eq!(log.verify_beginning().await.unwrap(), Beginning::Whole);
    let second = log.hash_at(2).await.unwrap().unwrap();
    // Rows 1 and 2 are announced by row 6, and removed one by one.
    announce(
        &store,
        6,
        &format!(r#"{{"first":1,"last":2,"last_hash":"{second}"}}"#),
    )
    .await;
    for seq in 1..=2 {
        assert_eq!(
            store.prune_outbox(Expired(seq), UNDECIDED).await.unwrap(),
            1
        );
        assert_eq!(log.verify_beginning().await.unwrap(), Beginning::Announced);
        assert_eq!(log.unannounced_from().await.unwrap(), None);
    }
    // One row more is removed. Its chain fits together.
    remove_to(&store, 3).await;
    log.verify(None).await.unwrap();
    assert_eq!(unannounced().await, Some((1, 3)));
    assert_eq!(log.unannounced_from().await.unwrap(), Some(3));
    // The next event of the server says so, and does not account for it.
    let fourth = log.hash_at(4).await.unwrap().unwrap();
    let object = format!(r#"{{"first":4,"last":4,"last_hash":"{fourth}","unannounced_from":3}}"#);
    announce(&store, 7, &object).await;
    store.prune_outbox(Expired(4), UNDECIDED).await.unwrap();
    assert_eq!(unannounced().await, Some((3, 3)));
    // An event that hides it leaves a gap between the ranges.
    script(
        &store,
        "UPDATE outbox SET body = replace(body, 'unannounced_from', 'x') WHERE seq = 7",
    )
    .await;
    assert_eq!(unannounced().await, Some((3, 3)));
    // Without the event before, the ranges fit, until the hash is another one.
    remove_to(&store, 6).await;
    assert_eq!(unannounced().await, Some((1, 6)));
    announce(&store, 8, r#"{"first":5,"last":6}"#).await;
    assert_eq!(log.verify_beginning().await.unwrap(), Beginning::Unbound);
    announce(&store, 9, r#"{"first":7,"last":7,"last_hash":"00"}"#).await;
    store.prune_outbox(Expired(7), UNDECIDED).await.unwrap();
    let refused = log.verify_beginning().await;
    assert!(
        matches!(refused, Err(AuditError::Damaged(Damage { seq: 7, .. }))),
        "{refused:?}"
    );
    // All rows are removed.
    remove_to(&store, 9).await;
    log.verify(None).await.unwrap();
    assert_eq!(unannounced().await, Some((1, 9)));
    // A server without a tree over the log announced nothing.
    script(
        &store,
        "DELETE FROM audit_tile; UPDATE audit_tree SET base = 9, size = 0",
    )
    .await;
    assert_eq!(log.verify_beginning().await.unwrap(), Beginning::Unknown);
    assert_eq!(log.unannounced_from().await.unwrap(), None);
}

/// The database as a program of format 1 leaves it.
async fn format_1(db: &TestDatabase) {
    let part = DatabasePart {
        steps: &migrate::STATE[..1],
        ..crate::database::STATE
    };
    let database = Database::open(&db.url, part, &*db.clock).await.unwrap();
    let mut connection = database.site.connect(Access::Write).await.unwrap();
    connection.script(FORMAT_1.to_owned()).await.unwrap();
    connection.close().await;
    database.close().await;
}

async fn a_log_of_format_1_is_chained(db: &TestDatabase) {
    format_1(db).await;
    // Opening for reading does not migrate.
    let refused = AuditLog::open(&db.url).await.unwrap_err();
    assert!(
        refused.chain().contains("culvert serve"),
        "{}",
        refused.chain()
    );
    let store = db.store().await;
    let log = store.audit_log();
    let extent = log.verify(None).await.unwrap();
    assert_eq!(extent.head.to_string(), HEAD_OF_FORMAT_1);
    assert_eq!(
        store
            .get("user", "usr_1")
            .await
            .unwrap()
            .unwrap()
            .head
            .revision,
        2
    );
    tell(&store, 4).await;
    let noted: NotedHead = HEAD_OF_FORMAT_1.parse().unwrap();
    assert_eq!(log.verify(Some(noted)).await.unwrap().head.seq, 4);
    store.close().await;
    let again = db.store().await;
    assert_eq!(
        again
            .audit_log()
            .verify(Some(noted))
            .await
            .unwrap()
            .head
            .seq,
        4
    );
}

async fn what_an_older_program_writes_is_chained_by_the_next_commit(db: &TestDatabase) {
    let (store, log) = five(db).await;
    let before = log.verify(None).await.unwrap();
    // More rows than one commit chains in addition to its own.
    let mut older = String::new();
    for seq in 6..=205 {
        older.push_str(&format!(
            "INSERT INTO outbox (seq, id, account, kind, happened_at, audience, body) \
             VALUES ({seq}, 'ev_{seq}', 'ac_1', 'k.v0', 1, '[]', '{{}}');"
        ));
    }
    script(&store, &format!("{older} UPDATE ledger SET outbox = 205;")).await;
    let extent = log.verify(None).await.unwrap();
    assert_eq!((extent.head, extent.last), (before.head, 205));
    tell(&store, 206).await;
    let extent = log.verify(None).await.unwrap();
    assert!(extent.head.seq < extent.last, "{extent:?}");
    tell(&store, 207).await;
    tell(&store, 208).await;
    let extent = log.verify(None).await.unwrap();
    assert_eq!((extent.head.seq, extent.last), (208, 208));
    // A row that was deleted before it was chained is reported as missing, and does not block the
    // rest.
    script(&store, "UPDATE ledger SET outbox = 209").await;
    tell(&store, 210).await;
    store.close().await;
    let store = db.store().await;
    tell(&store, 211).await;
    let refused = store.audit_log().verify(None).await;
    let Err(AuditError::Damaged(damage)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(damage.seq, 209);
}

async fn ranges_by_time_and_event(db: &TestDatabase) {
    let store = db.store().await;
    // The clocks of nodes differ: the third event has an earlier time than the second.
    for (n, seconds) in [(1, 10), (2, 30), (3, 20), (4, 40)] {
        let mut emitted = event("k.v0", &format!("ev_{n}"));
        emitted.at = at(seconds);
        store.commit(Changes::event(emitted)).await.unwrap();
    }
    let log = store.audit_log();
    let seqs = async |from: Option<Bound>, to: Option<Bound>| {
        let range = log
            .range(from.as_ref(), to.as_ref(), Some("ac_1"))
            .await
            .unwrap();
        let rows = log.rows(range.first - 1, range.last, 9).await.unwrap();
        rows.iter()
            .filter(|row| range.holds(culvert_base::Timestamp::from_unix_nanos(row.happened_at)))
            .map(|row| row.seq)
            .collect::<Vec<_>>()
    };
    let time = |seconds| Some(Bound::At(at(seconds)));
    let id = |n| Some(Bound::Event(format!("ev_{n}")));
    assert_eq!(seqs(None, None).await, [1, 2, 3, 4]);
    assert_eq!(seqs(time(20), None).await, [2, 3, 4]);
    assert_eq!(seqs(time(21), time(39)).await, [2]);
    assert_eq!(seqs(time(10), time(20)).await, [1, 3]);
    assert_eq!(seqs(id(2), id(3)).await, [2, 3]);
    assert_eq!(seqs(id(3), id(2)).await, [0; 0]);
    assert_eq!(seqs(time(41), None).await, [0; 0]);
    assert_eq!(seqs(None, time(9)).await, [0; 0]);
    for (from, account) in [("ev_9", None), ("ev_1", Some("ac_2"))] {
        let from = Bound::Event(from.to_owned());
        let refused = log.range(Some(&from), None, account).await;
        assert!(
            matches!(refused, Err(RangeError::Unknown(_))),
            "{refused:?}"
        );
    }
    // A refused commit leaves no gap.
    let again = store.commit(Changes::event(event("k.v0", "ev_1"))).await;
    assert!(matches!(again, Err(CommitError::Duplicate { .. })));
    tell(&store, 5).await;
    assert_eq!(log.verify(None).await.unwrap().head.seq, 5);
}

async fn reading_makes_nothing(db: &TestDatabase) {
    assert!(AuditLog::open(&db.url).await.is_err());
    if let crate::database::store_url::StoreUrl::Sqlite(path) = &db.url {
        assert!(!path.exists());
    }
    let (store, _) = five(db).await;
    // While a store runs, and after it has closed.
    let log = AuditLog::open(&db.url).await.unwrap();
    let mut writing = JoinSet::new();
    let writer = store.clone();
    writing.spawn(async move {
        for n in 6..60 {
            tell(&writer, n).await;
            if n % 10 == 0 {
                writer
                    .prune_outbox(Expired(i64::from(n) - 5), UNDECIDED)
                    .await
                    .unwrap();
            }
        }
    });
    while !writing.is_empty() {
        log.verify(None).await.unwrap();
        drop(tokio::time::timeout(Duration::from_millis(1), writing.join_next()).await);
    }
    store.close().await;
    let extent = log.verify(None).await.unwrap();
    assert_eq!((extent.anchor.seq, extent.head.seq), (45, 59));
    log.close().await;
}
