//! Dead letters: kept, sent again, displaced and pruned.

use std::collections::HashMap;
use std::time::Duration;

use culvert_base::Clock;

use super::{LEASE, audit, batch, lease};
use crate::database::Database;
use crate::database::dialect::{Access, Arg};
use crate::database::statements::events;
use crate::queue::{DeadLetterBounds, EVENTS};
use crate::tests::on_both_engines;
use crate::tests::test_database::TestDatabase;
use crate::{BatchClass, DEAD_LETTERS_FOR, DeadBatch, DeadLetterReason, Queue, WHY_BYTES_MAX};

on_both_engines!(
    dead_letters_are_kept_redriven_and_pruned,
    dead_letters_displace_only_older_ones_of_their_destination_and_class,
    uncounted_dead_letters_are_counted_when_pruning,
    a_batch_without_its_body_is_dead_lettered,
);

async fn dead_letters_are_kept_redriven_and_pruned(db: &TestDatabase) {
    let queue = db.queue().await;
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
        let lease = lease(db, &queue).await.unwrap();
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
    db.clock.advance(Duration::from_secs(100));
    assert!(queue.redrive(letters[1].id).await.unwrap());
    assert!(!queue.redrive(letters[1].id).await.unwrap());
    let again = lease(db, &queue).await.unwrap();
    assert_eq!((again.attempt, again.first_at), (1, db.clock.now()));
    queue.ack(&again).await.unwrap();
    assert_eq!(queue.prune(db.clock.now()).await.unwrap(), 0);
    let later = db.clock.now().plus(DEAD_LETTERS_FOR);
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
fn dead(db: &TestDatabase, destination: &str, class: BatchClass, body: &str) -> DeadBatch {
    DeadBatch {
        batch: batch(destination, class, body),
        attempts: 1,
        first_at: db.clock.now(),
        why: refused(),
    }
}

/// Fills the dead letters of every destination and class up to a limit, once by number and once by
/// bytes, and adds more to each. Each must keep its own newest ones, regardless of the others.
async fn dead_letters_displace_only_older_ones_of_their_destination_and_class(db: &TestDatabase) {
    const KEPT: i64 = 3;
    let lines = ["ed_1", "ed_2"].into_iter().flat_map(|destination| {
        [BatchClass::Audit, BatchClass::Traffic].map(|class| (destination, class))
    });
    let lines: Vec<(&str, BatchClass)> = lines.collect();
    let bounds = [(KEPT, i64::MAX), (i64::MAX, KEPT * 2)];
    for (round, (letters, bytes)) in bounds.into_iter().enumerate() {
        let within = DeadLetterBounds { letters, bytes };
        let queue = Queue::open_within(&db.url, db.clock.clone(), within);
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
                    .put_dead(dead(db, destination, class, &body))
                    .await
                    .unwrap();
            } else {
                let waiting = batch(destination, class, &body);
                queue.append(vec![waiting], None).await.unwrap();
                let now = db.clock.now();
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
async fn uncounted_dead_letters_are_counted_when_pruning(db: &TestDatabase) {
    let within = DeadLetterBounds {
        letters: 2,
        bytes: i64::MAX,
    };
    let queue = Queue::open_within(&db.url, db.clock.clone(), within);
    let queue = queue.await.unwrap();
    for body in ["1", "2"] {
        let dead = dead(db, "ed_1", BatchClass::Audit, body);
        queue.put_dead(dead).await.unwrap();
    }
    let database = Database::open(&db.url, EVENTS, &*db.clock).await.unwrap();
    let mut other = database.site.connect(Access::Write).await.unwrap();
    for body in ["3", "4", "5"] {
        let [one, crc] = [1, i64::from(crc32fast::hash(body.as_bytes()))].map(Arg::Int);
        let at = Arg::Int(db.clock.now().unix_nanos());
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
    queue.prune(db.clock.now()).await.unwrap();
    assert_eq!(queue.backlog().await.unwrap()[0].dead_lettered, 2);
    let letters = queue.dead_letters("ed_1", None, 9).await.unwrap();
    let bodies: Vec<_> = letters.into_iter().map(|letter| letter.body).collect();
    assert_eq!(bodies, [b"5", b"4"]);
    let later = db.clock.now().plus(DEAD_LETTERS_FOR).plus(LEASE);
    assert_eq!(queue.prune(later).await.unwrap(), 2);
    assert_eq!(queue.backlog().await.unwrap(), []);
}

/// A batch whose body is missing is dead-lettered like one whose body is damaged, and delays no other.
async fn a_batch_without_its_body_is_dead_lettered(db: &TestDatabase) {
    let queue = db.queue().await;
    let batches = ["a1", "a2", "a3"].map(audit);
    queue.append(batches.into(), None).await.unwrap();
    let database = Database::open(&db.url, EVENTS, &*db.clock).await.unwrap();
    let mut connection = database.site.connect(Access::Write).await.unwrap();
    let lose = "DELETE FROM body WHERE id IN (SELECT MIN(id) FROM body)";
    connection.run(lose, &[]).await.unwrap();
    let fault = queue.check().await.unwrap_err();
    assert!(fault.to_string().ends_with("is damaged"), "{fault}");
    let now = db.clock.now();
    let one = lease(db, &queue).await.unwrap();
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
