//! Batches: order, leases, fences, settlements, dead letters.

mod dead_letters;
mod leases;
mod runs;
mod traffic;

use std::time::Duration;

use culvert_base::Clock;

use super::on_both_engines;
use super::test_database::TestDatabase;
use crate::database::dialect::{Access, Arg};
use crate::database::migrate;
use crate::database::sqlite::WAL_BYTES_MAX;
use crate::database::statements::events;
use crate::database::store_url::StoreUrl;
use crate::database::{Database, DatabasePart};
use crate::queue::{EVENTS, checksum};
use crate::{
    BatchClass, Body, CursorMove, DEAD_LETTERS_FOR, DeadLetterReason, Lease, NewBatch, Queue,
    QueueError,
};

on_both_engines!(
    nodes_note_health_and_tell_tails_of_others,
    backlog_counts_by_destination,
    batches_of_the_format_before_are_carried_over,
    everything_survives_reopening,
);

/// Bytes of the queue's write-ahead log.
fn log_bytes(db: &TestDatabase) -> u64 {
    let StoreUrl::Sqlite(path) = &db.url else {
        panic!("a SQLite place")
    };
    let log = path.with_file_name("events.db-wal");
    std::fs::metadata(log).map_or(0, |log| log.len())
}

/// The WAL is truncated once no reader blocks it, even without further commits. Tested with a
/// reader and without, during a burst and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_write_ahead_log_is_cut_off_after_a_burst() {
    let db = TestDatabase::sqlite();
    let queue = db.queue().await;
    let database = Database::open(&db.url, EVENTS, &*db.clock).await.unwrap();
    queue.append(vec![audit("before")], None).await.unwrap();
    let mut reader = database.site.connect(Access::Read).await.unwrap();
    reader.run("BEGIN", &[]).await.unwrap();
    reader.rows(events::USABLE, &[]).await.unwrap();
    let large = "x".repeat(1 << 20);
    let mut slowest = Duration::ZERO;
    for _ in 0..40 {
        let began = std::time::Instant::now();
        queue.append(vec![traffic(&large)], None).await.unwrap();
        slowest = slowest.max(began.elapsed());
    }
    assert!(log_bytes(&db) > WAL_BYTES_MAX, "the reader is in the way");
    assert!(
        slowest < Duration::from_secs(4),
        "writers do not wait for it: {slowest:?}"
    );
    reader.close().await;
    let began = std::time::Instant::now();
    while log_bytes(&db) > WAL_BYTES_MAX {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{}",
            log_bytes(&db)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(drain(&db, &queue).await.len(), 41);
}

const LEASE: Duration = Duration::from_secs(60);

fn batch(destination: &str, class: BatchClass, body: &str) -> NewBatch {
    NewBatch {
        destination: destination.to_owned(),
        class,
        count: 2,
        body: Body {
            stored: body.as_bytes().to_vec(),
            bytes: body.len() as u64,
        },
    }
}

fn audit(body: &str) -> NewBatch {
    batch("ed_1", BatchClass::Audit, body)
}

fn traffic(body: &str) -> NewBatch {
    batch("ed_1", BatchClass::Traffic, body)
}

async fn lease(db: &TestDatabase, queue: &Queue) -> Option<Lease> {
    queue
        .lease("ed_1", "node-1", LEASE, db.clock.now())
        .await
        .unwrap()
}

fn text(lease: Option<&Lease>) -> Option<&str> {
    lease.map(|lease| std::str::from_utf8(&lease.body).unwrap())
}

/// Leases and acknowledges all batches that are due, one by one.
async fn drain(db: &TestDatabase, queue: &Queue) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(lease) = lease(db, queue).await {
        bodies.push(String::from_utf8(lease.body.clone()).unwrap());
        queue.ack(&lease).await.unwrap();
    }
    bodies
}

fn is_lost(outcome: Result<(), QueueError>) -> bool {
    matches!(outcome, Err(QueueError::Lost))
}

async fn nodes_note_health_and_tell_tails_of_others(db: &TestDatabase) {
    let queue = db.queue().await;
    let note = |destination: &str, body: &str| (destination.to_owned(), body.to_owned());
    let notes = vec![note("ed_1", "a"), note("ed_2", "b")];
    queue.note_healths("node-1", notes).await.unwrap();
    queue
        .note_healths("node-2", vec![note("ed_1", "c")])
        .await
        .unwrap();
    queue
        .note_healths("node-1", vec![note("ed_1", "d")])
        .await
        .unwrap();
    let healths = queue.healths("ed_1").await.unwrap();
    assert_eq!(healths, [note("node-1", "d"), note("node-2", "c")]);
    queue.drop_destination("ed_1").await.unwrap();
    assert_eq!(queue.healths("ed_1").await.unwrap(), []);

    let now = db.clock.now();
    queue
        .open_tail("tail_1", "node-1", "spec", now.plus(LEASE))
        .await
        .unwrap();
    assert_eq!(queue.tails_beside("node-1", now).await.unwrap(), []);
    let tails = queue.tails_beside("node-2", now).await.unwrap();
    assert_eq!((tails.len(), &*tails[0].spec), (1, "spec"));
    assert!(
        !queue
            .tell_tail("tail_0", "nothing".to_owned())
            .await
            .unwrap()
    );
    let mut n_reported = 0;
    while queue
        .tell_tail("tail_1", format!("{n_reported}"))
        .await
        .unwrap()
    {
        n_reported += 1;
    }
    assert_eq!(n_reported, 64, "as much as may wait");
    let pieces = queue.tail_pieces("tail_1", 0).await.unwrap();
    let bodies: Vec<String> = pieces.iter().map(|piece| piece.body.clone()).collect();
    assert_eq!(bodies, (0..64).map(|n| n.to_string()).collect::<Vec<_>>());
    queue
        .drop_tail_pieces("tail_1", pieces[62].id)
        .await
        .unwrap();
    assert!(queue.tell_tail("tail_1", "more".to_owned()).await.unwrap());
    assert_eq!(
        queue
            .tail_pieces("tail_1", pieces[62].id)
            .await
            .unwrap()
            .len(),
        2
    );
    let later = now.plus(LEASE).plus(LEASE);
    assert_eq!(queue.tails_beside("node-2", later).await.unwrap(), []);
    queue.prune(later).await.unwrap();
    assert_eq!(queue.tail_pieces("tail_1", 0).await.unwrap(), []);
    queue.close_tail("tail_1").await.unwrap();
    assert!(!queue.tell_tail("tail_1", "late".to_owned()).await.unwrap());
    queue.prune(now.plus(2 * DEAD_LETTERS_FOR)).await.unwrap();
    assert_eq!(queue.healths("ed_2").await.unwrap(), []);
}

async fn backlog_counts_by_destination(db: &TestDatabase) {
    let queue = db.queue().await;
    queue
        .append(
            vec![
                audit("123"),
                traffic("4567"),
                batch("ed_2", BatchClass::Audit, "x"),
            ],
            None,
        )
        .await
        .unwrap();
    let gone = queue
        .lease("ed_2", "node-1", LEASE, db.clock.now())
        .await
        .unwrap()
        .unwrap();
    let why = DeadLetterReason {
        class: "permanent".to_owned(),
        code: String::new(),
        text: String::new(),
    };
    queue.dead_letter(&gone, why).await.unwrap();
    let backlog = queue.backlog().await.unwrap();
    assert_eq!(backlog.len(), 2);
    let first = &backlog[0];
    assert_eq!(
        (
            first.destination.as_str(),
            first.batches,
            first.dead_lettered
        ),
        ("ed_1", 2, 0)
    );
    assert_eq!(
        (first.events, first.bytes, first.oldest),
        (4, 7, Some(db.clock.now()))
    );
    assert_eq!((first.traffic_events, first.traffic_bytes), (2, 4));
    let second = &backlog[1];
    assert_eq!(
        (
            second.destination.as_str(),
            second.batches,
            second.dead_lettered
        ),
        ("ed_2", 0, 1)
    );
    assert_eq!(queue.drop_destination("ed_1").await.unwrap(), 2);
    assert_eq!(queue.drop_destination("ed_2").await.unwrap(), 1);
    assert_eq!(queue.backlog().await.unwrap(), []);
}

async fn everything_survives_reopening(db: &TestDatabase) {
    let queue = db.queue().await;
    let cursor = CursorMove {
        name: "outbox".to_owned(),
        from: 0,
        to: 7,
    };
    queue
        .append(vec![audit("a1"), traffic("t1")], Some(cursor))
        .await
        .unwrap();
    let held = lease(db, &queue).await.unwrap();
    queue.close().await;
    let queue = db.queue().await;
    assert_eq!(queue.cursor("outbox").await.unwrap(), 7);
    queue.ack(&held).await.unwrap();
    assert_eq!(drain(db, &queue).await, ["t1"]);
    queue.usable().await.unwrap();
    queue.close().await;
    assert!(queue.usable().await.is_err());
}

/// Batches that were stored before bodies had their own table are unchanged.
async fn batches_of_the_format_before_are_carried_over(db: &TestDatabase) {
    let before = DatabasePart {
        steps: &migrate::EVENTS[..2],
        ..EVENTS
    };
    let database = Database::open(&db.url, before, &*db.clock).await.unwrap();
    let mut connection = database.site.connect(Access::Write).await.unwrap();
    for (n, name) in ["a1", "a2", "a3"].into_iter().enumerate() {
        let insert = "INSERT INTO batch (destination, class, place, part, events, bytes, crc, attempt, \
             first_at, due_at, fence, body) VALUES ('ed_1', 0, $1, 0, 2, 7, $2, 0, 5, 5, 0, $3)";
        let arguments = [
            Arg::Int(n as i64),
            Arg::Int(checksum(name.as_bytes())),
            Arg::Blob(name.as_bytes()),
        ];
        connection.run(insert, &arguments).await.unwrap();
    }
    connection.close().await;
    database.close().await;

    let queue = db.queue().await;
    queue.check().await.unwrap();
    assert_eq!(queue.backlog().await.unwrap()[0].bytes, 21);
    queue.append(vec![audit("a4")], None).await.unwrap();
    assert_eq!(drain(db, &queue).await, ["a1", "a2", "a3", "a4"]);
}
