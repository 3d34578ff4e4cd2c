//! Batches: order, leases, fences, settlements, dead letters.

use std::collections::HashMap;
use std::time::Duration;

use culvert_base::Clock;
use tokio::task::JoinSet;

use super::on_both_engines;
use super::place::Place;
use crate::database::{Database, Part};
use crate::dialect::{Access, Arg};
use crate::queue::{DeadLetterBounds, EVENTS, checksum};
use crate::sqlite::WAL_BYTES_MAX;
use crate::statements::{BEGIN_KEEPING, events, transaction};
use crate::store_url::StoreUrl;
use crate::{
    BatchClass, Body, CursorMove, DEAD_LETTERS_FOR, DeadBatch, DeadLetterReason, Gathering, Lease,
    NewBatch, NewPiece, Queue, QueueError, RetainedTraffic, Run, WHY_BYTES_MAX, migrate,
};

on_both_engines!(
    batches_come_in_order_audit_first,
    a_waiting_batch_holds_back_its_class_only,
    what_waits_can_be_made_due,
    a_lease_runs_out_and_its_holder_has_lost,
    a_settled_lease_is_spent,
    leases_of_a_former_life_are_given_back,
    a_batch_that_is_being_sent_comes_in_as_leased,
    pieces_take_the_place_of_the_whole,
    a_cursor_moves_with_its_batches_or_not_at_all,
    dead_letters_are_kept_redriven_and_pruned,
    dead_letters_displace_only_older_ones_of_their_destination_and_class,
    uncounted_dead_letters_are_counted_when_pruning,
    nodes_note_health_and_tell_tails_of_others,
    backlog_counts_by_destination,
    a_batch_is_leased_once_however_many_ask,
    a_run_is_taken_when_there_is_enough_or_its_first_is_old,
    a_run_is_settled_whole_and_by_its_holder_only,
    several_are_leased_as_far_as_they_are_due_and_fit,
    batches_of_the_format_before_are_carried_over,
    a_batch_without_its_body_is_dead_lettered,
    traffic_is_kept_found_by_time_and_pruned_by_age_and_size,
    everything_survives_reopening,
);

/// Bytes of the queue's write-ahead log.
fn log_bytes(place: &Place) -> u64 {
    let StoreUrl::Sqlite(path) = &place.url else {
        panic!("a SQLite place")
    };
    let log = path.with_file_name("events.db-wal");
    std::fs::metadata(log).map_or(0, |log| log.len())
}

/// The WAL is truncated once no reader blocks it, even without further commits. Tested with a
/// reader and without, during a burst and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_write_ahead_log_is_cut_off_after_a_burst() {
    let place = Place::sqlite();
    let queue = place.queue().await;
    let database = Database::open(&place.url, EVENTS, &*place.clock)
        .await
        .unwrap();
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
    assert!(
        log_bytes(&place) > WAL_BYTES_MAX,
        "the reader is in the way"
    );
    assert!(
        slowest < Duration::from_secs(4),
        "writers do not wait for it: {slowest:?}"
    );
    reader.close().await;
    let began = std::time::Instant::now();
    while log_bytes(&place) > WAL_BYTES_MAX {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{}",
            log_bytes(&place)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(drain(&place, &queue).await.len(), 41);
}

/// Only several nodes can commit in another order than they wrote. A SQLite file has one writer.
#[tokio::test]
async fn the_end_of_the_traffic_log_is_before_what_is_not_committed() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let queue = place.queue().await;
    let database = Database::open(&place.url, EVENTS, &*place.clock);
    let database = database.await.unwrap();
    let now = place.clock.now();
    let keep = async |text: &str| {
        let piece = NewPiece {
            first_at: now,
            last_at: now,
            endpoints: Vec::new(),
            body: text.as_bytes().to_vec(),
        };
        queue.keep_traffic(vec![piece]).await.unwrap();
    };
    let texts = async |last: i64| -> Vec<String> {
        let pieces = queue.traffic_pieces(0, last, 9).await.unwrap();
        let bodies = pieces.into_iter().filter_map(|piece| piece.body);
        bodies
            .map(|body| String::from_utf8(body).unwrap())
            .collect()
    };
    keep("first").await;
    let mut other_node = database.site.connect(Access::Write).await.unwrap();
    other_node.begin().await.unwrap();
    let begin = other_node.spell(BEGIN_KEEPING);
    other_node.row(begin, &[]).await.unwrap();
    let crc = i64::from(crc32fast::hash(b"early"));
    let [first_at, last_at, bytes, crc] = [1, 2, 5, crc].map(Arg::Int);
    let early = [first_at, last_at, bytes, crc, Arg::Blob(b"early")];
    other_node.run(events::KEEP_TRAFFIC, &early).await.unwrap();
    keep("late").await;
    // The other node may hang here; no one waits for it.
    let (_, end) = queue.settled_ends().await.unwrap();
    assert_eq!(texts(end).await, ["first"]);
    assert_eq!(queue.settled_traffic().await.unwrap().last, end);
    assert_eq!(queue.traffic().await.unwrap().last, end + 2);
    other_node.run(transaction::COMMIT, &[]).await.unwrap();
    let (_, end) = queue.settled_ends().await.unwrap();
    assert_eq!(texts(end).await, ["first", "early", "late"]);
}

/// A VACUUM of the table holds this lock, for hours on a slow disk.
#[tokio::test]
async fn the_traffic_log_is_read_during_maintenance() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let queue = place.queue().await;
    let database = Database::open(&place.url, EVENTS, &*place.clock);
    let mut vacuum = database
        .await
        .unwrap()
        .site
        .connect(Access::Write)
        .await
        .unwrap();
    vacuum.begin().await.unwrap();
    let lock = "LOCK TABLE traffic IN SHARE UPDATE EXCLUSIVE MODE";
    vacuum.run(lock, &[]).await.unwrap();
    assert_eq!(queue.settled_ends().await.unwrap(), (1, 0));
    assert_eq!(queue.settled_traffic().await.unwrap().last, 0);
    vacuum.run(transaction::COMMIT, &[]).await.unwrap();
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

async fn lease(place: &Place, queue: &Queue) -> Option<Lease> {
    queue
        .lease("ed_1", "node-1", LEASE, place.clock.now())
        .await
        .unwrap()
}

fn text(lease: Option<&Lease>) -> Option<&str> {
    lease.map(|lease| std::str::from_utf8(&lease.body).unwrap())
}

/// Leases and acknowledges all batches that are due, one by one.
async fn drain(place: &Place, queue: &Queue) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(lease) = lease(place, queue).await {
        bodies.push(String::from_utf8(lease.body.clone()).unwrap());
        queue.ack(&lease).await.unwrap();
    }
    bodies
}

fn is_lost(outcome: Result<(), QueueError>) -> bool {
    matches!(outcome, Err(QueueError::Lost))
}

async fn what_waits_can_be_made_due(place: &Place) {
    let queue = place.queue().await;
    let elsewhere = batch("ed_2", BatchClass::Audit, "b");
    queue
        .append(vec![audit("a"), elsewhere], None)
        .await
        .unwrap();
    let now = place.clock.now();
    let later = now.plus(Duration::from_secs(600));
    let held = lease(place, &queue).await.unwrap();
    queue.retry(&held, later, "401").await.unwrap();
    assert_eq!(lease(place, &queue).await, None);
    assert_eq!(queue.hasten("ed_2", now).await.unwrap(), 0);
    assert_eq!(queue.hasten("ed_1", now).await.unwrap(), 1);
    let again = lease(place, &queue).await.unwrap();
    assert_eq!((again.attempt, again.why.as_deref()), (2, Some("401")));
}

async fn batches_come_in_order_audit_first(place: &Place) {
    let queue = place.queue().await;
    let mut watch = queue.watch();
    assert_eq!(lease(place, &queue).await, None);
    assert_eq!(queue.next_due("ed_1").await.unwrap(), None);
    queue
        .append(vec![traffic("t1"), traffic("t2")], None)
        .await
        .unwrap();
    queue
        .append(vec![audit("a1"), audit("a2")], None)
        .await
        .unwrap();
    queue
        .append(vec![batch("ed_2", BatchClass::Audit, "x")], None)
        .await
        .unwrap();
    assert!(watch.has_changed().unwrap());
    watch.mark_unchanged();
    assert_eq!(
        queue.next_due("ed_1").await.unwrap(),
        Some(place.clock.now())
    );
    let first = lease(place, &queue).await.unwrap();
    assert_eq!(
        (
            first.attempt,
            first.count,
            first.first_at,
            first.why.as_deref()
        ),
        (1, 2, place.clock.now(), None)
    );
    queue.ack(&first).await.unwrap();
    assert_eq!(drain(place, &queue).await, ["a2", "t1", "t2"]);
    assert!(!watch.has_changed().unwrap());
}

async fn a_waiting_batch_holds_back_its_class_only(place: &Place) {
    let queue = place.queue().await;
    queue
        .append(
            vec![audit("a1"), audit("a2"), traffic("t1"), traffic("t2")],
            None,
        )
        .await
        .unwrap();
    let first = lease(place, &queue).await.unwrap();
    // While the first audit batch is leased, the next one waits, but traffic is leased.
    let second = lease(place, &queue).await;
    assert_eq!(text(second.as_ref()), Some("t1"));
    assert_eq!(lease(place, &queue).await, None);
    let due = place.clock.now().plus(Duration::from_secs(10));
    let long = "because ".repeat(100);
    queue.retry(&first, due, &long).await.unwrap();
    queue.ack(&second.unwrap()).await.unwrap();
    assert_eq!(drain(place, &queue).await, ["t2"]);
    assert_eq!(queue.next_due("ed_1").await.unwrap(), Some(due));
    place.clock.advance(Duration::from_secs(10));
    let again = lease(place, &queue).await.unwrap();
    assert_eq!(text(Some(&again)), Some("a1"));
    assert_eq!((again.attempt, again.first_at), (2, first.first_at));
    assert_eq!(again.why.as_deref(), Some(&long[..WHY_BYTES_MAX]));
    assert!(again.fence > first.fence);
}

async fn a_lease_runs_out_and_its_holder_has_lost(place: &Place) {
    let queue = place.queue().await;
    queue.append(vec![audit("a1")], None).await.unwrap();
    let slow = lease(place, &queue).await.unwrap();
    assert_eq!(
        queue.next_due("ed_1").await.unwrap(),
        Some(place.clock.now().plus(LEASE))
    );
    place.clock.advance(LEASE - Duration::from_nanos(1));
    assert_eq!(lease(place, &queue).await, None);
    place.clock.advance(Duration::from_nanos(1));
    let other = queue
        .lease("ed_1", "node-2", LEASE, place.clock.now())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((other.batch, other.attempt), (slow.batch, 2));
    let now = place.clock.now();
    let why = DeadLetterReason {
        class: "permanent".to_owned(),
        code: String::new(),
        text: String::new(),
    };
    assert!(is_lost(queue.ack(&slow).await));
    assert!(is_lost(queue.retry(&slow, now, "late").await));
    assert!(is_lost(queue.replace(&slow, vec![audit("p")], now).await));
    assert!(is_lost(queue.dead_letter(&slow, why).await));
    queue.ack(&other).await.unwrap();
    assert_eq!(queue.backlog().await.unwrap(), []);

    // The lease has expired, but nobody else took the batch, so the holder can still settle it.
    queue.append(vec![audit("a2")], None).await.unwrap();
    let slow = lease(place, &queue).await.unwrap();
    place.clock.advance(2 * LEASE);
    queue.ack(&slow).await.unwrap();
}

async fn a_settled_lease_is_spent(place: &Place) {
    let queue = place.queue().await;
    queue.append(vec![audit("a1")], None).await.unwrap();
    let first = lease(place, &queue).await.unwrap();
    queue
        .retry(&first, place.clock.now(), "once")
        .await
        .unwrap();
    assert!(is_lost(queue.ack(&first).await));
    assert!(is_lost(
        queue.retry(&first, place.clock.now(), "twice").await
    ));
    assert_eq!(drain(place, &queue).await, ["a1"]);
}

async fn a_batch_that_is_being_sent_comes_in_as_leased(place: &Place) {
    let queue = place.queue().await;
    let sending = queue
        .append_leased(traffic("first"), "node-1", LEASE)
        .await
        .unwrap();
    assert_eq!((sending.attempt, sending.count), (1, 2));
    queue.append(vec![traffic("second")], None).await.unwrap();
    // Like every leased batch, it delays its class.
    assert_eq!(lease(place, &queue).await, None);
    queue.ack(&sending).await.unwrap();
    let second = lease(place, &queue).await;
    assert_eq!(text(second.as_ref()), Some("second"));
    queue.ack(&second.unwrap()).await.unwrap();

    // A holder whose lease is taken over loses the batch.
    let sending = queue
        .append_leased(traffic("third"), "node-1", LEASE)
        .await
        .unwrap();
    queue.release_owner("node-1").await.unwrap();
    let third = lease(place, &queue).await;
    assert_eq!(text(third.as_ref()), Some("third"));
    assert_eq!(third.map(|third| third.attempt), Some(2));
    assert!(matches!(queue.ack(&sending).await, Err(QueueError::Lost)));
}

async fn leases_of_a_former_life_are_given_back(place: &Place) {
    let queue = place.queue().await;
    queue
        .append(
            vec![audit("a1"), batch("ed_2", BatchClass::Audit, "x")],
            None,
        )
        .await
        .unwrap();
    let before = lease(place, &queue).await.unwrap();
    let foreign = queue
        .lease("ed_2", "node-2", LEASE, place.clock.now())
        .await
        .unwrap()
        .unwrap();
    queue.release_owner("node-1").await.unwrap();
    assert!(is_lost(queue.ack(&before).await));
    assert_eq!(drain(place, &queue).await, ["a1"]);
    queue.ack(&foreign).await.unwrap();
}

async fn pieces_take_the_place_of_the_whole(place: &Place) {
    let queue = place.queue().await;
    queue
        .append(vec![audit("1234"), audit("5")], None)
        .await
        .unwrap();
    let whole = lease(place, &queue).await.unwrap();
    let now = place.clock.now();
    place.clock.advance(Duration::from_secs(1));
    queue
        .replace(&whole, vec![audit("12"), audit("34")], now)
        .await
        .unwrap();
    // The first half is split again: its parts still go before the second half.
    let half = lease(place, &queue).await.unwrap();
    assert_eq!(text(Some(&half)), Some("12"));
    assert_eq!((half.attempt, half.first_at), (2, whole.first_at));
    let pieces = vec![audit("1"), audit("2"), audit("2b")];
    queue
        .replace(&half, pieces, now.plus(Duration::from_secs(5)))
        .await
        .unwrap();
    assert_eq!(
        lease(place, &queue).await,
        None,
        "pieces wait for their time"
    );
    place.clock.advance(Duration::from_secs(5));
    assert_eq!(drain(place, &queue).await, ["1", "2", "2b", "34", "5"]);
    queue.append(vec![audit("6")], None).await.unwrap();
    let whole = lease(place, &queue).await.unwrap();
    queue.replace(&whole, Vec::new(), now).await.unwrap();
    assert_eq!(queue.backlog().await.unwrap(), []);
}

async fn a_cursor_moves_with_its_batches_or_not_at_all(place: &Place) {
    let queue = place.queue().await;
    let to = |from, to| {
        Some(CursorMove {
            name: "outbox".to_owned(),
            from,
            to,
        })
    };
    assert_eq!(queue.cursor("outbox").await.unwrap(), 0);
    queue.append(vec![audit("a1")], to(0, 3)).await.unwrap();
    queue.append(Vec::new(), to(3, 4)).await.unwrap();
    for stale in [to(0, 5), to(3, 5), to(9, 10)] {
        assert!(is_lost(queue.append(vec![audit("twice")], stale).await));
    }
    assert_eq!(queue.cursor("outbox").await.unwrap(), 4);
    assert_eq!(drain(place, &queue).await, ["a1"]);
}

async fn dead_letters_are_kept_redriven_and_pruned(place: &Place) {
    let queue = place.queue().await;
    let why = |text: &str| DeadLetterReason {
        class: "permanent".to_owned(),
        code: "413".to_owned(),
        text: text.to_owned(),
    };
    queue
        .append(vec![audit("a1"), audit("a2")], None)
        .await
        .unwrap();
    for text in ["too big", &"é".repeat(400)] {
        let lease = lease(place, &queue).await.unwrap();
        queue.dead_letter(&lease, why(text)).await.unwrap();
    }
    let letters = queue.dead_letters("ed_1", None, 10).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[1].body, b"a1");
    assert_eq!(letters[1].why, why("too big"));
    assert_eq!((letters[1].attempts, letters[1].count), (1, 2));
    assert_eq!(letters[0].why.text, "é".repeat(WHY_BYTES_MAX / 2));
    assert_eq!(
        queue
            .dead_letters("ed_1", Some(letters[0].id), 10)
            .await
            .unwrap(),
        letters[1..]
    );
    place.clock.advance(Duration::from_secs(100));
    assert!(queue.redrive(letters[1].id).await.unwrap());
    assert!(!queue.redrive(letters[1].id).await.unwrap());
    let again = lease(place, &queue).await.unwrap();
    assert_eq!((again.attempt, again.first_at), (1, place.clock.now()));
    queue.ack(&again).await.unwrap();
    assert_eq!(queue.prune(place.clock.now()).await.unwrap(), 0);
    let later = place.clock.now().plus(DEAD_LETTERS_FOR);
    assert_eq!(queue.prune(later).await.unwrap(), 1);
    assert_eq!(queue.dead_letters("ed_1", None, 10).await.unwrap(), []);
    queue.check().await.unwrap();
}

fn refused() -> DeadLetterReason {
    DeadLetterReason {
        class: "permanent".to_owned(),
        code: "400".to_owned(),
        text: String::new(),
    }
}

/// A dead letter of two events that did not pass through the queue.
fn dead(place: &Place, destination: &str, class: BatchClass, body: &str) -> DeadBatch {
    DeadBatch {
        batch: batch(destination, class, body),
        attempts: 1,
        first_at: place.clock.now(),
        why: refused(),
    }
}

/// Fills the dead letters of every destination and class up to a limit, once by number and once by
/// bytes, and adds more to each. Each must keep its own newest ones, regardless of the others.
async fn dead_letters_displace_only_older_ones_of_their_destination_and_class(place: &Place) {
    const KEPT: i64 = 3;
    let lines = ["ed_1", "ed_2"].into_iter().flat_map(|destination| {
        [BatchClass::Audit, BatchClass::Traffic].map(|class| (destination, class))
    });
    let lines: Vec<(&str, BatchClass)> = lines.collect();
    let bounds = [(KEPT, i64::MAX), (i64::MAX, KEPT * 2)];
    for (round, (letters, bytes)) in bounds.into_iter().enumerate() {
        let within = DeadLetterBounds { letters, bytes };
        let queue = Queue::open_within(&place.url, place.clock.clone(), within);
        let queue = queue.await.unwrap();
        let mut expected: HashMap<(&str, BatchClass), Vec<String>> = HashMap::new();
        let n_full = i64::try_from(lines.len()).unwrap() * KEPT;
        // First all are filled, then one after the other gets more than its limit.
        for n in 0..4 * n_full {
            let at = usize::try_from(if n < n_full { n % 4 } else { n / n_full }).unwrap();
            let line @ (destination, class) = lines[at % 4];
            let body = format!("{:02}", n % 100);
            if n % 2 == 0 {
                queue
                    .put_dead(dead(place, destination, class, &body))
                    .await
                    .unwrap();
            } else {
                let waiting = batch(destination, class, &body);
                queue.append(vec![waiting], None).await.unwrap();
                let now = place.clock.now();
                let lease = queue
                    .lease(destination, "node-1", LEASE, now)
                    .await
                    .unwrap();
                queue.dead_letter(&lease.unwrap(), refused()).await.unwrap();
            }
            let kept = expected.entry(line).or_default();
            kept.insert(0, body);
            kept.truncate(KEPT.unsigned_abs() as usize);
            for (destination, class) in &lines {
                let letters = queue.dead_letters(destination, None, 100).await.unwrap();
                let found: Vec<String> = letters
                    .into_iter()
                    .filter(|letter| letter.class == *class)
                    .map(|letter| String::from_utf8(letter.body).unwrap())
                    .collect();
                let kept = expected.get(&(*destination, *class)).cloned();
                assert_eq!(found, kept.unwrap_or_default(), "{round} {n} {destination}");
            }
        }
        let backlog = queue.backlog().await.unwrap();
        let dead_lettered: Vec<u64> = backlog.iter().map(|line| line.dead_lettered).collect();
        assert_eq!(dead_lettered, [2 * KEPT.unsigned_abs(); 2]);
        assert!(queue.forgotten(BatchClass::Audit) > 0 && queue.forgotten(BatchClass::Traffic) > 0);
        for destination in ["ed_1", "ed_2"] {
            queue.drop_destination(destination).await.unwrap();
        }
        queue.close().await;
    }
}

/// A node of the previous format stores dead letters without counting them.
async fn uncounted_dead_letters_are_counted_when_pruning(place: &Place) {
    let within = DeadLetterBounds {
        letters: 2,
        bytes: i64::MAX,
    };
    let queue = Queue::open_within(&place.url, place.clock.clone(), within);
    let queue = queue.await.unwrap();
    for body in ["1", "2"] {
        let dead = dead(place, "ed_1", BatchClass::Audit, body);
        queue.put_dead(dead).await.unwrap();
    }
    let database = Database::open(&place.url, EVENTS, &*place.clock)
        .await
        .unwrap();
    let mut other = database.site.connect(Access::Write).await.unwrap();
    for body in ["3", "4", "5"] {
        let [one, crc] = [1, i64::from(crc32fast::hash(body.as_bytes()))].map(Arg::Int);
        let at = Arg::Int(place.clock.now().unix_nanos());
        let (text, body) = (Arg::Text(""), Arg::Blob(body.as_bytes()));
        let arguments = [
            Arg::Text("ed_1"),
            Arg::Int(0),
            one,
            one,
            crc,
            one,
            at,
            at,
            text,
            text,
            text,
            body,
        ];
        other.row(events::PUT_DEAD, &arguments).await.unwrap();
    }
    other.close().await;
    assert_eq!(queue.backlog().await.unwrap()[0].dead_lettered, 2);
    queue.prune(place.clock.now()).await.unwrap();
    assert_eq!(queue.backlog().await.unwrap()[0].dead_lettered, 2);
    let letters = queue.dead_letters("ed_1", None, 9).await.unwrap();
    let bodies: Vec<_> = letters.into_iter().map(|letter| letter.body).collect();
    assert_eq!(bodies, [b"5", b"4"]);
    let later = place.clock.now().plus(DEAD_LETTERS_FOR).plus(LEASE);
    assert_eq!(queue.prune(later).await.unwrap(), 2);
    assert_eq!(queue.backlog().await.unwrap(), []);
}

async fn nodes_note_health_and_tell_tails_of_others(place: &Place) {
    let queue = place.queue().await;
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

    let now = place.clock.now();
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
    let mut n_told = 0;
    while queue
        .tell_tail("tail_1", format!("{n_told}"))
        .await
        .unwrap()
    {
        n_told += 1;
    }
    assert_eq!(n_told, 64, "as much as may wait");
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

async fn backlog_counts_by_destination(place: &Place) {
    let queue = place.queue().await;
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
        .lease("ed_2", "node-1", LEASE, place.clock.now())
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
        (4, 7, Some(place.clock.now()))
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

async fn a_batch_is_leased_once_however_many_ask(place: &Place) {
    let nodes = [place.queue().await, place.queue().await];
    let bodies: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
    nodes[0]
        .append(bodies.iter().map(|body| audit(body)).collect(), None)
        .await
        .unwrap();
    let now = place.clock.now();
    let mut workers = JoinSet::new();
    for n in 0..8 {
        let queue = nodes[n % 2].clone();
        workers.spawn(async move {
            let mut sent = Vec::new();
            while queue.next_due("ed_1").await.unwrap().is_some() {
                let owner = format!("node-{n}");
                if let Some(lease) = queue.lease("ed_1", &owner, LEASE, now).await.unwrap() {
                    assert_eq!(lease.attempt, 1);
                    sent.push(String::from_utf8(lease.body.clone()).unwrap());
                    queue.ack(&lease).await.unwrap();
                }
            }
            sent
        });
    }
    let mut sent: Vec<String> = workers.join_all().await.concat();
    sent.sort_unstable();
    assert_eq!(sent, bodies);
}

async fn everything_survives_reopening(place: &Place) {
    let queue = place.queue().await;
    let cursor = CursorMove {
        name: "outbox".to_owned(),
        from: 0,
        to: 7,
    };
    queue
        .append(vec![audit("a1"), traffic("t1")], Some(cursor))
        .await
        .unwrap();
    let held = lease(place, &queue).await.unwrap();
    queue.close().await;
    let queue = place.queue().await;
    assert_eq!(queue.cursor("outbox").await.unwrap(), 7);
    queue.ack(&held).await.unwrap();
    assert_eq!(drain(place, &queue).await, ["t1"]);
    queue.usable().await.unwrap();
    queue.close().await;
    assert!(queue.usable().await.is_err());
}

const GATHERING: Gathering = Gathering {
    bytes_max: 10,
    age_max: Duration::from_secs(300),
};

async fn run(place: &Place, queue: &Queue) -> Run {
    queue
        .lease_run("ed_1", "node-1", LEASE, place.clock.now(), GATHERING)
        .await
        .unwrap()
}

async fn bodies(queue: &Queue, run: &Run) -> Vec<String> {
    let mut bodies = Vec::new();
    for lease in &run.leases {
        let body = queue.body(lease).await.unwrap().unwrap();
        bodies.push(String::from_utf8(body).unwrap());
    }
    bodies
}

async fn a_run_is_taken_when_there_is_enough_or_its_first_is_old(place: &Place) {
    let queue = place.queue().await;
    let began = place.clock.now();
    assert_eq!(run(place, &queue).await, Run::default());
    queue
        .append(vec![traffic("1234"), traffic("5678")], None)
        .await
        .unwrap();
    let early = run(place, &queue).await;
    assert!(early.leases.is_empty());
    assert_eq!(early.next_at, Some(began.plus(GATHERING.age_max)));

    // A third batch does not fit.
    queue.append(vec![traffic("9012")], None).await.unwrap();
    let full = run(place, &queue).await;
    assert_eq!(bodies(&queue, &full).await, ["1234", "5678"]);
    let behind = run(place, &queue).await;
    assert!(behind.leases.is_empty(), "the line is held back");
    assert_eq!(behind.next_at, Some(began.plus(LEASE)));

    // Audit events have their own queue, which comes first.
    queue.append(vec![audit("a")], None).await.unwrap();
    place.clock.advance(GATHERING.age_max);
    let old = run(place, &queue).await;
    assert_eq!(bodies(&queue, &old).await, ["a"]);
    // Batches that failed are retried at their time, together with all that were added since.
    queue
        .retry_run(&full.leases, place.clock.now(), "why")
        .await
        .unwrap();
    assert_eq!(queue.ack_run(&full.leases).await.unwrap(), 0, "lost");
    let again = run(place, &queue).await;
    assert_eq!(bodies(&queue, &again).await, ["1234", "5678"]);
    assert_eq!(again.leases[0].attempt, 2);
    assert_eq!(again.leases[0].why.as_deref(), Some("why"));
    queue.ack_run(&again.leases).await.unwrap();
    assert_eq!(bodies(&queue, &run(place, &queue).await).await, ["9012"]);
}

async fn a_run_is_settled_whole_and_by_its_holder_only(place: &Place) {
    let queue = place.queue().await;
    queue
        .append(
            vec![traffic("123456"), traffic("7890"), traffic("more")],
            None,
        )
        .await
        .unwrap();
    let first = run(place, &queue).await;
    assert_eq!(first.leases.len(), 2);
    queue.release_owner("node-1").await.unwrap();
    let second = run(place, &queue).await;
    assert_eq!(second.leases.len(), 2);
    assert_eq!(queue.body(&first.leases[0]).await.unwrap(), None);
    let dead_letter = DeadLetterReason {
        class: "config".into(),
        code: "c".into(),
        text: "t".into(),
    };
    let dead_lettered = queue
        .dead_letter_run(&first.leases, dead_letter.clone())
        .await
        .unwrap();
    assert_eq!(dead_lettered, 0);
    let dead_lettered = queue
        .dead_letter_run(&second.leases, dead_letter)
        .await
        .unwrap();
    assert_eq!(dead_lettered, 2);
    assert_eq!(queue.dead_letters("ed_1", None, 9).await.unwrap().len(), 2);
    assert_eq!(queue.backlog().await.unwrap()[0].batches, 1);
}

async fn several_are_leased_as_far_as_they_are_due_and_fit(place: &Place) {
    let queue = place.queue().await;
    let several = async || {
        let now = place.clock.now();
        let leases = queue.lease_several("ed_1", "node-1", LEASE, now, 9).await;
        leases.unwrap()
    };
    let texts = |leases: &[Lease]| -> Vec<String> {
        let text = |lease: &Lease| String::from_utf8(lease.body.clone()).unwrap();
        leases.iter().map(text).collect()
    };
    assert_eq!(several().await, []);
    let batches = ["1234", "5678", "9012", "3"].map(traffic);
    queue.append(batches.into(), None).await.unwrap();
    queue.append(vec![audit("a")], None).await.unwrap();
    assert_eq!(texts(&several().await), ["a"], "one line at a time");
    let first = several().await;
    assert_eq!(texts(&first), ["1234", "5678"]);
    assert_eq!((first[0].attempt, first[0].count), (1, 2));
    assert_eq!(several().await, [], "the line is held back");
    // A postponed batch delays those behind it.
    let later = place.clock.now().plus(Duration::from_secs(1));
    queue.ack(&first[0]).await.unwrap();
    queue.retry(&first[1], later, "why").await.unwrap();
    assert_eq!(several().await, []);
    place.clock.advance(Duration::from_secs(1));
    let again = several().await;
    assert_eq!(texts(&again), ["5678", "9012", "3"]);
    assert_eq!((again[0].attempt, again[1].attempt), (2, 1));
    assert_eq!(queue.ack_run(&again).await.unwrap(), 3);
}

/// Batches that were stored before bodies had their own table are unchanged.
async fn batches_of_the_format_before_are_carried_over(place: &Place) {
    let before = Part {
        steps: &migrate::EVENTS[..2],
        ..EVENTS
    };
    let database = Database::open(&place.url, before, &*place.clock)
        .await
        .unwrap();
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

    let queue = place.queue().await;
    queue.check().await.unwrap();
    assert_eq!(queue.backlog().await.unwrap()[0].bytes, 21);
    queue.append(vec![audit("a4")], None).await.unwrap();
    assert_eq!(drain(place, &queue).await, ["a1", "a2", "a3", "a4"]);
}

/// A batch whose body is missing is dead-lettered like one whose body is damaged, and delays no other.
async fn a_batch_without_its_body_is_dead_lettered(place: &Place) {
    let queue = place.queue().await;
    let batches = ["a1", "a2", "a3"].map(audit);
    queue.append(batches.into(), None).await.unwrap();
    let database = Database::open(&place.url, EVENTS, &*place.clock)
        .await
        .unwrap();
    let mut connection = database.site.connect(Access::Write).await.unwrap();
    let lose = "DELETE FROM body WHERE id IN (SELECT MIN(id) FROM body)";
    connection.run(lose, &[]).await.unwrap();
    let fault = queue.check().await.unwrap_err();
    assert!(fault.to_string().ends_with("is damaged"), "{fault}");
    let now = place.clock.now();
    let one = lease(place, &queue).await.unwrap();
    assert_eq!(one.body, b"a2");
    queue.retry(&one, now, "").await.unwrap();
    connection.run(lose, &[]).await.unwrap();
    let several = queue.lease_several("ed_1", "node-1", LEASE, now, 99).await;
    let several: Vec<_> = several.unwrap().into_iter().map(|one| one.body).collect();
    assert_eq!(several, [b"a3"]);
    let letters = queue.dead_letters("ed_1", None, 9).await.unwrap();
    assert!(letters.iter().all(|letter| letter.why.class == "damaged"));
    assert_eq!(letters.len(), 2);
    connection.close().await;
    database.close().await;
}

async fn traffic_is_kept_found_by_time_and_pruned_by_age_and_size(place: &Place) {
    let queue = place.queue().await;
    let at = |seconds| place.clock.now().plus(Duration::from_secs(seconds));
    assert_eq!(queue.traffic().await.unwrap().bytes, 0);
    assert_eq!(queue.traffic_since(at(0)).await.unwrap(), None);
    let pieces = (0..600u64).map(|n| NewPiece {
        first_at: at(10 * n),
        endpoints: Vec::new(),
        last_at: at(10 * n + 5),
        body: format!("{n:04}").into_bytes(),
    });
    queue.keep_traffic(pieces.collect()).await.unwrap();
    let RetainedTraffic { first, last, bytes } = queue.traffic().await.unwrap();
    assert_eq!((last - first, bytes), (599, 2400));
    let texts = async |after, limit| -> Vec<String> {
        let pieces = queue.traffic_pieces(after, last, limit).await.unwrap();
        let text = |body: Option<Vec<u8>>| String::from_utf8(body.unwrap()).unwrap();
        pieces.into_iter().map(|piece| text(piece.body)).collect()
    };
    assert_eq!(texts(first - 1, 2).await, ["0000", "0001"]);
    assert_eq!(texts(last - 1, 2).await, ["0599"]);
    assert_eq!(queue.traffic_since(at(6)).await.unwrap(), Some(first + 1));
    assert_eq!(queue.traffic_until(at(9)).await.unwrap(), Some(first));

    assert_eq!(queue.prune_traffic(at(16), u64::MAX).await.unwrap(), 2);
    assert_eq!(queue.prune_traffic(at(0), 8).await.unwrap(), 596);
    assert_eq!(texts(0, 9).await, ["0598", "0599"]);
    queue.close().await;
    let queue = place.queue().await;
    assert_eq!(queue.traffic().await.unwrap().bytes, 8);
    assert_eq!(queue.prune_traffic(at(100_000), 8).await.unwrap(), 2);
    assert_eq!(queue.traffic().await.unwrap().bytes, 0);
}
