//! Content that a destination permanently rejects: found with few requests, logged once.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use culvert_base::Clock;
use culvert_store::BatchClass;
use culvert_target::failure::FailureClass;
use culvert_target::{Outcome, Verdict};

use super::bench::{Bench, Scripted, failure};
use crate::worker::{Step, Worker};

/// Steps until nothing waits.
async fn drain(bench: &Bench, worker: &mut Worker) {
    loop {
        match worker.step().await.unwrap() {
            Step::Idle(None) => return,
            Step::Idle(Some(at)) => bench.clock.advance(at.since(bench.clock.now())),
            _ => {}
        }
    }
}

async fn one_batch(bench: &Bench, class: BatchClass, events: usize) {
    let ids: Vec<String> = (0..events).map(|n| format!("ev_{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    bench.append("ed_1", class, &ids).await;
}

/// The rejected events become dead letters, and all others are accepted once. If all are rejected, few requests are
/// needed.
#[tokio::test]
async fn halving_finds_refused_audit_events_and_stops_if_all_are_refused() {
    halving_finds_what_is_refused(BatchClass::Audit).await;
}

#[tokio::test]
async fn halving_finds_refused_traffic_events_and_stops_if_all_are_refused() {
    halving_finds_what_is_refused(BatchClass::Traffic).await;
}

async fn halving_finds_what_is_refused(class: BatchClass) {
    for events in [2usize, 9, 100, 500] {
        let all: BTreeSet<usize> = (0..events).collect();
        let only = |keep: &dyn Fn(usize) -> bool| -> BTreeSet<usize> {
            all.iter().copied().filter(|n| keep(*n)).collect()
        };
        let patterns = [
            only(&|n| n == events / 2),
            only(&|n| n == 0 || n == events - 1),
            only(&|n| n % 2 == 0),
            only(&|n| n < 9),
            only(&|n| n < 9 || n == events * 3 / 4),
            only(&|n| n != events - 1),
            all.clone(),
        ];
        for (pattern, bad) in patterns.iter().enumerate() {
            let bench = Bench::new().await;
            let target = Scripted::new(500);
            for n in bad {
                target.refuse(&format!("ev_{n}"), failure(FailureClass::Permanent, "400"));
            }
            bench.publish(Vec::new(), &[("ed_1", &target)]);
            one_batch(&bench, class, events).await;
            let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
            drain(&bench, &mut worker).await;
            let case = format!("{class:?} {events} pattern {pattern}");
            let letters = bench.queue.dead_letters("ed_1", None, 1000).await.unwrap();
            let n_dead: u32 = letters.iter().map(|letter| letter.count).sum();
            let taken = target.taken().len();
            assert_eq!(taken + n_dead as usize, events, "{case}");
            assert_eq!(bench.queue.backlog().await.unwrap()[0].batches, 0, "{case}");
            let requests = target.sizes().len();
            if bad.len() == events {
                // The requests for halving down to eight single events, and a few for each remaining part.
                let depth = events.ilog2() as usize + 1;
                assert!(requests <= 4 * depth + 20, "{case}: {requests} requests");
            } else if pattern != 5 {
                // A single valid event among hundreds may be dead-lettered with them.
                let good = all.difference(bad).count();
                assert_eq!(taken, good, "{case}");
            }
        }
    }
}

/// A target that returns a result for each event.
#[tokio::test]
async fn refused_events_make_one_dead_letter_per_reason() {
    let bench = Bench::new().await;
    let target = Scripted::new(500);
    let refused = |code: &str| Outcome::Failed(failure(FailureClass::Permanent, code));
    target.script([
        Verdict::Partial(vec![
            refused("400"),
            refused("422"),
            refused("400"),
            Outcome::Delivered,
        ]),
        Verdict::Partial(vec![refused("400"), refused("400"), refused("400")]),
    ]);
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    bench
        .append(
            "ed_1",
            BatchClass::Traffic,
            &["ev_1", "ev_2", "ev_3", "ev_4"],
        )
        .await;
    bench
        .append("ed_1", BatchClass::Traffic, &["ev_5", "ev_6", "ev_7"])
        .await;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    drain(&bench, &mut worker).await;
    let letters = bench.queue.dead_letters("ed_1", None, 10).await.unwrap();
    let letters: Vec<(u32, &str)> = letters
        .iter()
        .map(|letter| (letter.count, letter.why.code.as_str()))
        .collect();
    assert_eq!(letters, [(3, "400"), (1, "422"), (2, "400")]);
    assert_eq!(target.sizes(), [4, 3]);
    assert_eq!(bench.meters().dead_lettered.get(), 6);
}

/// What was logged.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn state_changes_are_logged_once_and_events_are_not() {
    let log = Log::default();
    let dispatch = |log: Log| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || log.clone())
            .finish();
        tracing::Dispatch::new(subscriber)
    };
    // With only one subscriber, tracing caches the interest of a log line by the first thread that reaches it. If that
    // thread has no subscriber, the line is then disabled for all threads.
    let _second = dispatch(Log::default());
    let _guard = tracing::dispatcher::set_default(&dispatch(log.clone()));
    tracing::callsite::rebuild_interest_cache();
    let bench = Bench::new().await;
    let target = Scripted::new(1);
    target.otherwise(Verdict::Failed(failure(FailureClass::Permanent, "400")));
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    for n in 0..100 {
        bench
            .append("ed_1", BatchClass::Traffic, &[&format!("ev_{n}")])
            .await;
    }
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    drain(&bench, &mut worker).await;
    assert_eq!(bench.meters().dead_lettered.get(), 100);
    target.otherwise(Verdict::Delivered);
    bench.clock.advance(std::time::Duration::from_secs(120));
    bench
        .append("ed_1", BatchClass::Traffic, &["ev_good"])
        .await;
    drain(&bench, &mut worker).await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let about: Vec<&str> = log.lines().filter(|line| line.contains("ed_1")).collect();
    // The first dead letter, unhealthy after twenty, recovered, and the total.
    assert_eq!(about.len(), 4, "{log}");
    let last = about.last().unwrap();
    assert!(last.contains("100 events became dead letters"), "{log}");
}
