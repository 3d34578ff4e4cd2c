//! Runs: several batches leased and settled together.

use std::time::Duration;

use culvert_base::Clock;

use super::{LEASE, audit, traffic};
use crate::tests::on_both_engines;
use crate::tests::test_database::TestDatabase;
use crate::{DeadLetterReason, Gathering, Lease, Queue, Run};

on_both_engines!(
    a_run_is_taken_when_there_is_enough_or_its_first_is_old,
    a_run_is_settled_whole_and_by_its_holder_only,
    several_are_leased_as_far_as_they_are_due_and_fit,
    a_run_of_a_clock_that_was_ahead_is_taken,
);

const GATHERING: Gathering = Gathering {
    bytes_max: 10,
    age_max: Duration::from_secs(300),
};

async fn run(db: &TestDatabase, queue: &Queue) -> Run {
    queue
        .lease_run("ed_1", "node-1", LEASE, db.clock.now(), GATHERING)
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

async fn a_run_is_taken_when_there_is_enough_or_its_first_is_old(db: &TestDatabase) {
    let queue = db.queue().await;
    let began = db.clock.now();
    assert_eq!(run(db, &queue).await, Run::default());
    queue
        .append(vec![traffic("1234"), traffic("5678")], None)
        .await
        .unwrap();
    let early = run(db, &queue).await;
    assert!(early.leases.is_empty());
    assert_eq!(early.next_at, Some(began.plus(GATHERING.age_max)));

    // A third batch does not fit.
    queue.append(vec![traffic("9012")], None).await.unwrap();
    let full = run(db, &queue).await;
    assert_eq!(bodies(&queue, &full).await, ["1234", "5678"]);
    let behind = run(db, &queue).await;
    assert!(behind.leases.is_empty(), "the line is held back");
    assert_eq!(behind.next_at, Some(began.plus(LEASE)));

    // Audit events have their own queue, which comes first.
    queue.append(vec![audit("a")], None).await.unwrap();
    db.clock.advance(GATHERING.age_max);
    let old = run(db, &queue).await;
    assert_eq!(bodies(&queue, &old).await, ["a"]);
    // Batches that failed are retried at their time, together with all that were added since.
    queue
        .retry_run(&full.leases, db.clock.now(), "why")
        .await
        .unwrap();
    let settled = queue.ack_run(&full.leases).await.unwrap();
    assert_eq!(settled.len(), 0, "lost");
    let again = run(db, &queue).await;
    assert_eq!(bodies(&queue, &again).await, ["1234", "5678"]);
    assert_eq!(again.leases[0].attempt, 2);
    assert_eq!(again.leases[0].why.as_deref(), Some("why"));
    queue.ack_run(&again.leases).await.unwrap();
    assert_eq!(bodies(&queue, &run(db, &queue).await).await, ["9012"]);
}

async fn a_run_is_settled_whole_and_by_its_holder_only(db: &TestDatabase) {
    let queue = db.queue().await;
    queue
        .append(
            vec![traffic("123456"), traffic("7890"), traffic("more")],
            None,
        )
        .await
        .unwrap();
    let first = run(db, &queue).await;
    assert_eq!(first.leases.len(), 2);
    queue.release_owner("node-1").await.unwrap();
    let second = run(db, &queue).await;
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
    assert_eq!(dead_lettered.len(), 0);
    let dead_lettered = queue
        .dead_letter_run(&second.leases, dead_letter)
        .await
        .unwrap();
    assert_eq!(dead_lettered.len(), 2);
    assert_eq!(queue.dead_letters("ed_1", None, 9).await.unwrap().len(), 2);
    assert_eq!(queue.backlog().await.unwrap()[0].batches, 1);
}

async fn a_run_of_a_clock_that_was_ahead_is_taken(db: &TestDatabase) {
    let queue = db.queue().await;
    let true_time = db.clock.now();
    db.clock.advance(100 * GATHERING.age_max);
    queue.append(vec![traffic("1")], None).await.unwrap();
    db.clock.set(true_time);
    assert!(run(db, &queue).await.leases.is_empty());
    assert_eq!(queue.hasten("ed_1", true_time).await.unwrap(), 1);
    let taken = run(db, &queue).await;
    assert_eq!(bodies(&queue, &taken).await, ["1"]);
}

async fn several_are_leased_as_far_as_they_are_due_and_fit(db: &TestDatabase) {
    let queue = db.queue().await;
    let several = async || {
        let now = db.clock.now();
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
    let later = db.clock.now().plus(Duration::from_secs(1));
    queue.ack(&first[0]).await.unwrap();
    queue.retry(&first[1], later, "why").await.unwrap();
    assert_eq!(several().await, []);
    db.clock.advance(Duration::from_secs(1));
    let again = several().await;
    assert_eq!(texts(&again), ["5678", "9012", "3"]);
    assert_eq!((again[0].attempt, again[1].attempt), (2, 1));
    assert_eq!(queue.ack_run(&again).await.unwrap().len(), 3);
}
