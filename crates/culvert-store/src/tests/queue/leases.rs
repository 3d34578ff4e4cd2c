//! Order, leases, fences and settlements.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, ManualClock};
use tokio::task::JoinSet;

use super::{LEASE, audit, batch, drain, is_lost, lease, text, traffic};
use crate::tests::on_both_engines;
use crate::tests::test_database::TestDatabase;
use crate::{BatchClass, CursorMove, DeadLetterReason, QueueError, WHY_BYTES_MAX};

on_both_engines!(
    batches_come_in_order_audit_first,
    a_waiting_batch_holds_back_its_class_only,
    what_waits_can_be_made_due,
    batches_are_due_by_the_clock_that_the_queue_follows,
    leases_that_are_too_long_are_bounded,
    a_lease_runs_out_and_its_holder_has_lost,
    a_settled_lease_is_spent,
    leases_of_a_former_life_are_given_back,
    a_batch_that_is_being_sent_comes_in_as_leased,
    pieces_take_the_place_of_the_whole,
    a_cursor_moves_with_its_batches_or_not_at_all,
    a_batch_is_leased_once_however_many_ask,
    a_lease_that_no_worker_received_is_given_back,
);

async fn what_waits_can_be_made_due(db: &TestDatabase) {
    let queue = db.queue().await;
    let elsewhere = batch("ed_2", BatchClass::Audit, "b");
    queue
        .append(vec![audit("a"), elsewhere], None)
        .await
        .unwrap();
    let now = db.clock.now();
    let later = now.plus(Duration::from_secs(600));
    let held = lease(db, &queue).await.unwrap();
    queue.retry(&held, later, "401").await.unwrap();
    assert_eq!(lease(db, &queue).await, None);
    assert_eq!(queue.hasten("ed_2", now).await.unwrap(), 0);
    assert_eq!(queue.hasten("ed_1", now).await.unwrap(), 1);
    let again = lease(db, &queue).await.unwrap();
    assert_eq!((again.attempt, again.why.as_deref()), (2, Some("401")));
}

async fn batches_are_due_by_the_clock_that_the_queue_follows(db: &TestDatabase) {
    let queue = db.queue().await;
    let shared = db.clock.now().minus(Duration::from_secs(3600));
    queue.follow_clock(Arc::new(ManualClock::at(shared)));
    queue.append(vec![audit("a")], None).await.unwrap();
    assert_eq!(queue.next_due("ed_1").await.unwrap(), Some(shared));
    let leased = queue.lease("ed_1", "node-1", LEASE, shared).await.unwrap();
    assert_eq!(leased.unwrap().first_at, shared);
}

async fn leases_that_are_too_long_are_bounded(db: &TestDatabase) {
    let queue = db.queue().await;
    queue.append(vec![audit("a")], None).await.unwrap();
    let now = db.clock.now();
    let ahead = now.plus(Duration::from_secs(86_400));
    let held = queue.lease("ed_1", "node-2", LEASE, ahead).await.unwrap();
    let latest = now.plus(LEASE);
    assert_eq!(queue.bound_leases(latest).await.unwrap(), 1);
    assert_eq!(queue.next_due("ed_1").await.unwrap(), Some(latest));
    assert_eq!(queue.bound_leases(latest).await.unwrap(), 0);
    // Its holder still settles it.
    queue.ack(&held.unwrap()).await.unwrap();
}

async fn batches_come_in_order_audit_first(db: &TestDatabase) {
    let queue = db.queue().await;
    let mut watch = queue.watch();
    assert_eq!(lease(db, &queue).await, None);
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
    assert_eq!(queue.next_due("ed_1").await.unwrap(), Some(db.clock.now()));
    let first = lease(db, &queue).await.unwrap();
    assert_eq!(
        (
            first.attempt,
            first.count,
            first.first_at,
            first.why.as_deref()
        ),
        (1, 2, db.clock.now(), None)
    );
    queue.ack(&first).await.unwrap();
    assert_eq!(drain(db, &queue).await, ["a2", "t1", "t2"]);
    assert!(!watch.has_changed().unwrap());
}

async fn a_waiting_batch_holds_back_its_class_only(db: &TestDatabase) {
    let queue = db.queue().await;
    queue
        .append(
            vec![audit("a1"), audit("a2"), traffic("t1"), traffic("t2")],
            None,
        )
        .await
        .unwrap();
    let first = lease(db, &queue).await.unwrap();
    // While the first audit batch is leased, the next one waits, but traffic is leased.
    let second = lease(db, &queue).await;
    assert_eq!(text(second.as_ref()), Some("t1"));
    assert_eq!(lease(db, &queue).await, None);
    let due = db.clock.now().plus(Duration::from_secs(10));
    let long = "because ".repeat(100);
    queue.retry(&first, due, &long).await.unwrap();
    queue.ack(&second.unwrap()).await.unwrap();
    assert_eq!(drain(db, &queue).await, ["t2"]);
    assert_eq!(queue.next_due("ed_1").await.unwrap(), Some(due));
    db.clock.advance(Duration::from_secs(10));
    let again = lease(db, &queue).await.unwrap();
    assert_eq!(text(Some(&again)), Some("a1"));
    assert_eq!((again.attempt, again.first_at), (2, first.first_at));
    assert_eq!(again.why.as_deref(), Some(&long[..WHY_BYTES_MAX]));
    assert!(again.fence > first.fence);
}

async fn a_lease_runs_out_and_its_holder_has_lost(db: &TestDatabase) {
    let queue = db.queue().await;
    queue.append(vec![audit("a1")], None).await.unwrap();
    let slow = lease(db, &queue).await.unwrap();
    assert_eq!(
        queue.next_due("ed_1").await.unwrap(),
        Some(db.clock.now().plus(LEASE))
    );
    db.clock.advance(LEASE - Duration::from_nanos(1));
    assert_eq!(lease(db, &queue).await, None);
    db.clock.advance(Duration::from_nanos(1));
    let other = queue
        .lease("ed_1", "node-2", LEASE, db.clock.now())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((other.batch, other.attempt), (slow.batch, 2));
    let now = db.clock.now();
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

    // The lease has expired, but no other worker leased the batch, so the holder can still settle it.
    queue.append(vec![audit("a2")], None).await.unwrap();
    let slow = lease(db, &queue).await.unwrap();
    db.clock.advance(2 * LEASE);
    queue.ack(&slow).await.unwrap();
}

async fn a_settled_lease_is_spent(db: &TestDatabase) {
    let queue = db.queue().await;
    queue.append(vec![audit("a1")], None).await.unwrap();
    let first = lease(db, &queue).await.unwrap();
    queue.retry(&first, db.clock.now(), "once").await.unwrap();
    assert!(is_lost(queue.ack(&first).await));
    assert!(is_lost(queue.retry(&first, db.clock.now(), "twice").await));
    assert_eq!(drain(db, &queue).await, ["a1"]);
}

async fn a_batch_that_is_being_sent_comes_in_as_leased(db: &TestDatabase) {
    let queue = db.queue().await;
    let sending = queue
        .append_leased(traffic("first"), "node-1", LEASE)
        .await
        .unwrap();
    assert_eq!((sending.attempt, sending.count), (1, 2));
    queue.append(vec![traffic("second")], None).await.unwrap();
    // Like every leased batch, it delays its class.
    assert_eq!(lease(db, &queue).await, None);
    queue.ack(&sending).await.unwrap();
    let second = lease(db, &queue).await;
    assert_eq!(text(second.as_ref()), Some("second"));
    queue.ack(&second.unwrap()).await.unwrap();

    // A holder whose lease is taken over loses the batch.
    let sending = queue
        .append_leased(traffic("third"), "node-1", LEASE)
        .await
        .unwrap();
    queue.release_owner("node-1").await.unwrap();
    let third = lease(db, &queue).await;
    assert_eq!(text(third.as_ref()), Some("third"));
    assert_eq!(third.map(|third| third.attempt), Some(2));
    assert!(matches!(queue.ack(&sending).await, Err(QueueError::Lost)));
}

async fn leases_of_a_former_life_are_given_back(db: &TestDatabase) {
    let queue = db.queue().await;
    queue
        .append(
            vec![audit("a1"), batch("ed_2", BatchClass::Audit, "x")],
            None,
        )
        .await
        .unwrap();
    let before = lease(db, &queue).await.unwrap();
    let foreign = queue
        .lease("ed_2", "node-2", LEASE, db.clock.now())
        .await
        .unwrap()
        .unwrap();
    queue.release_owner("node-1").await.unwrap();
    assert!(is_lost(queue.ack(&before).await));
    assert_eq!(drain(db, &queue).await, ["a1"]);
    queue.ack(&foreign).await.unwrap();
}

async fn pieces_take_the_place_of_the_whole(db: &TestDatabase) {
    let queue = db.queue().await;
    queue
        .append(vec![audit("1234"), audit("5")], None)
        .await
        .unwrap();
    let whole = lease(db, &queue).await.unwrap();
    let now = db.clock.now();
    db.clock.advance(Duration::from_secs(1));
    queue
        .replace(&whole, vec![audit("12"), audit("34")], now)
        .await
        .unwrap();
    // The first half is split again: its parts still go before the second half.
    let half = lease(db, &queue).await.unwrap();
    assert_eq!(text(Some(&half)), Some("12"));
    assert_eq!((half.attempt, half.first_at), (2, whole.first_at));
    let pieces = vec![audit("1"), audit("2"), audit("2b")];
    queue
        .replace(&half, pieces, now.plus(Duration::from_secs(5)))
        .await
        .unwrap();
    assert_eq!(lease(db, &queue).await, None, "pieces wait for their time");
    db.clock.advance(Duration::from_secs(5));
    assert_eq!(drain(db, &queue).await, ["1", "2", "2b", "34", "5"]);
    queue.append(vec![audit("6")], None).await.unwrap();
    let whole = lease(db, &queue).await.unwrap();
    queue.replace(&whole, Vec::new(), now).await.unwrap();
    assert_eq!(queue.backlog().await.unwrap(), []);
}

async fn a_cursor_moves_with_its_batches_or_not_at_all(db: &TestDatabase) {
    let queue = db.queue().await;
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
    assert_eq!(drain(db, &queue).await, ["a1"]);
}

async fn a_batch_is_leased_once_however_many_ask(db: &TestDatabase) {
    let nodes = [db.queue().await, db.queue().await];
    let bodies: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
    nodes[0]
        .append(bodies.iter().map(|body| audit(body)).collect(), None)
        .await
        .unwrap();
    let now = db.clock.now();
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

/// The worker ends after its lease was sent to it and before it reads it.
async fn a_lease_that_no_worker_received_is_given_back(db: &TestDatabase) {
    let queue = db.queue().await;
    queue.append(vec![audit("a")], None).await.unwrap();
    let mut leasing = Box::pin(queue.lease("ed_1", "node-1", LEASE, db.clock.now()));
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(leasing.as_mut().poll(cx)));
    assert!(first.await.is_pending());
    // Written after the lease, whose answer was sent before.
    queue
        .append(vec![batch("ed_2", BatchClass::Audit, "b")], None)
        .await
        .unwrap();
    drop(leasing);
    let began = std::time::Instant::now();
    let again = loop {
        match lease(db, &queue).await {
            Some(lease) => break lease,
            None => assert!(began.elapsed() < Duration::from_secs(30), "it is held"),
        }
    };
    assert_eq!((text(Some(&again)), again.attempt), (Some("a"), 2));
}
