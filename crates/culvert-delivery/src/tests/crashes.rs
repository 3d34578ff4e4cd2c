//! Delivery under crashes: for every seed, nothing is lost, and each crash repeats at most one
//! batch.

use std::collections::HashMap;
use std::time::Duration;

use culvert_base::{Clock, Entropy, SeededEntropy};
use culvert_store::BatchClass;
use culvert_target::Verdict;
use culvert_target::failure::FailureClass;

use super::bench::{Bench, Scripted, failure};
use crate::worker::{Step, Worker};

const SEEDS: u64 = 25;
const BATCHES: usize = 8;
const EVENTS: usize = 5;

#[tokio::test]
async fn a_crash_loses_nothing_and_repeats_at_most_one_batch() {
    for seed in 0..SEEDS {
        one_run(seed).await;
    }
}

/// The fate of the next send.
enum Fate {
    /// The batch is accepted and settled.
    Fine,
    /// The destination fails.
    Fails,
    /// The process dies after the destination accepted the batch, before it is settled. Its leases
    /// are released at the next start.
    DiesAndComesBack,
    /// Like [`Self::DiesAndComesBack`], but another node takes over when the lease has expired.
    DiesForGood,
}

async fn one_run(seed: u64) {
    let chance = SeededEntropy::new(seed);
    let chance: &dyn Entropy = &chance;
    let bench = Bench::new().await;
    // A batch is sent as it was appended.
    let target = Scripted::new(u32::try_from(EVENTS).unwrap());
    bench.publish(Vec::new(), &[("ed_1", &target)]);
    let mut wanted = Vec::new();
    for batch in 0..BATCHES {
        let ids: Vec<String> = (0..EVENTS).map(|n| format!("ev_{batch}x{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        bench.append("ed_1", BatchClass::Audit, &ids).await;
        wanted.extend(ids.iter().map(|id| format!("{id}:esb_1")));
    }
    let mut crashes = 0;
    let mut failures = 0;
    let mut worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
    loop {
        let [roll] = chance.bytes::<1>();
        let fate = match roll {
            0..=139 => Fate::Fine,
            140..=199 => Fate::Fails,
            200..=229 => Fate::DiesAndComesBack,
            _ => Fate::DiesForGood,
        };
        match fate {
            Fate::Fine => {}
            Fate::Fails => {
                target.script([Verdict::Failed(failure(FailureClass::Retryable, "503"))])
            }
            Fate::DiesAndComesBack | Fate::DiesForGood => target.gate(),
        }
        let sent_before = target.sizes().len();
        let step = {
            let mut step = Box::pin(worker.step());
            loop {
                tokio::select! {
                    biased;
                    step = &mut step => break Some(step.unwrap()),
                    () = tokio::task::yield_now() => {
                        let is_taken = target.sizes().len() > sent_before;
                        if is_taken && matches!(fate, Fate::DiesAndComesBack | Fate::DiesForGood) {
                            break None;
                        }
                    }
                }
            }
        };
        target.open_gate();
        match step {
            None => {
                crashes += 1;
                // Dropping the worker also drops its state.
                worker = Worker::new(bench.delivery.plane.clone(), "ed_1".into());
                match fate {
                    Fate::DiesAndComesBack => {
                        bench.queue.release_owner("culvert").await.unwrap();
                    }
                    _ => bench.clock.advance(Duration::from_secs(60)),
                }
            }
            Some(Step::Idle(None)) => break,
            Some(Step::Idle(Some(at))) => bench.clock.advance(at.since(bench.clock.now())),
            Some(Step::Failed) => failures += 1,
            Some(_) => {}
        }
    }
    let sent = target.keys();
    let mut times: HashMap<&str, usize> = HashMap::new();
    for key in &sent {
        *times.entry(key).or_default() += 1;
    }
    let repeated = sent.len() - wanted.len();
    assert!(
        wanted.iter().all(|key| times.contains_key(key.as_str())),
        "seed {seed}: lost"
    );
    assert!(
        repeated <= (crashes + failures) * EVENTS,
        "seed {seed}: {repeated} repeated by {crashes} crashes and {failures} failures"
    );
    // By first send, the events are in commit order.
    let mut seen = std::collections::HashSet::new();
    let firsts: Vec<&String> = sent.iter().filter(|key| seen.insert(*key)).collect();
    assert_eq!(
        firsts,
        wanted.iter().collect::<Vec<_>>(),
        "seed {seed}: order"
    );
    assert_eq!(bench.queue.backlog().await.unwrap(), [], "seed {seed}");
}
