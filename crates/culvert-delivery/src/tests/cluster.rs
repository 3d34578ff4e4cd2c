//! Two nodes on one database: each returns the results of both.

use std::time::Duration;

use culvert_base::Clock;
use culvert_store::BatchClass;
use culvert_target::Verdict;
use culvert_target::failure::FailureClass;

use super::bench::{Bench, Scripted, failure, record, source};
use super::until;
use crate::health::DestinationState;
use crate::plane::cluster::Sharing;
use crate::{Tail, TailSpec, Tailed};

/// Two planes on the same files.
async fn two() -> [Bench; 2] {
    let one = Bench::with(|settings| {
        settings.node = "one".to_owned();
        settings.is_shared = true;
    })
    .await;
    let other = one
        .beside(|settings| {
            settings.node = "other".to_owned();
            settings.is_shared = true;
        })
        .await;
    [one, other]
}

#[tokio::test]
async fn every_node_shows_the_health_of_all_nodes() {
    let nodes = two().await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Auth, "401")));
    let up = Scripted::new(500);
    let sources = || vec![source("esb_1", &["ed_1", "ed_2"])];
    nodes[0].publish(sources(), &[("ed_1", &up), ("ed_2", &down)]);
    nodes[1].publish(sources(), &[("ed_1", &up), ("ed_2", &down)]);
    let running = nodes.each_ref().map(Bench::run);
    // Each node has its own traffic.
    for (node, n_events) in nodes.iter().zip([3, 4]) {
        for n in 0..n_events {
            node.delivery.recorder().offer(record(node, n));
        }
    }
    for asked in &nodes {
        let delivery = &asked.delivery;
        let began = std::time::Instant::now();
        loop {
            let well = delivery.cluster_health("ed_1").await.unwrap();
            let ill = delivery.cluster_health("ed_2").await.unwrap();
            if well.health.sent == 7 && ill.health.state == DestinationState::Unhealthy {
                assert_eq!(well.health.state, DestinationState::Ok);
                let names: Vec<&str> = well.nodes.iter().map(|node| &*node.node).collect();
                assert_eq!(names, ["one", "other"]);
                let sent: Vec<u64> = well.nodes.iter().map(|node| node.health.sent).collect();
                assert_eq!(sent.iter().sum::<u64>(), 7);
                assert_eq!(ill.health.last_error.unwrap().code, "401");
                break;
            }
            assert!(
                began.elapsed() < culvert_testing::PATIENCE,
                "{well:?} {ill:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for running in running {
        running.abandon();
    }
}

/// A node also reports failures of sends by other nodes.
#[tokio::test]
async fn a_failure_on_one_node_is_shown_by_an_idle_node() {
    let [one, other] = two().await;
    let down = Scripted::new(500);
    down.otherwise(Verdict::Failed(failure(FailureClass::Config, "404")));
    one.publish(Vec::new(), &[("ed_1", &down)]);
    one.append("ed_1", BatchClass::Audit, &["ev_1"]).await;
    let running = one.run();
    let began = std::time::Instant::now();
    loop {
        let shown = other.delivery.cluster_health("ed_1").await.unwrap();
        if shown.health.state == DestinationState::Unhealthy {
            assert_eq!(shown.health.last_error.unwrap().code, "404");
            let attempts = other.delivery.attempts("ed_1").await.unwrap();
            let (node, newest) = &attempts[0];
            assert_eq!((node.as_str(), newest.outcome.as_str()), ("one", "config"));
            assert_eq!(newest.event_id.as_deref(), Some("ev_1"));
            break;
        }
        assert!(began.elapsed() < culvert_testing::PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.abandon();
}

async fn next(tail: &mut Tail) -> Tailed {
    let next = tokio::time::timeout(culvert_testing::PATIENCE, tail.next());
    next.await.expect("something for the tail")
}

#[tokio::test]
async fn a_tail_shows_traffic_of_every_node_and_ends_on_all() {
    let [one, other] = two().await;
    let running = [one.run(), other.run()];
    let spec = |account: &str| TailSpec {
        account: account.to_owned(),
        filter: "ev.conn.server_port >= 100".to_owned(),
        ..TailSpec::default()
    };
    let mut tail = one.delivery.tail(spec("ac_1")).unwrap();
    let _stranger = one.delivery.tail(spec("ac_2")).unwrap();
    until("the other node follows too", || {
        other.delivery.plane.tails.captures().len() >= 2
    })
    .await;
    for port in [7, 100, 101] {
        other.delivery.recorder().offer(record(&other, port));
    }
    for port in ["100", "101"] {
        let Tailed::Event(line) = next(&mut tail).await else {
            panic!("nothing was lost")
        };
        assert!(line.contains(&format!("\"server_port\":{port}")), "{line}");
    }
    one.delivery.recorder().offer(record(&one, 102));
    let Tailed::Event(line) = next(&mut tail).await else {
        panic!("nothing was lost")
    };
    assert!(line.contains("102"), "{line}");
    drop(tail);
    drop(_stranger);
    until("the other node follows no more", || {
        other.delivery.plane.tails.captures().is_empty()
    })
    .await;
    for running in running {
        running.stop().await;
    }
}

/// A tail that was announced before the clock was set forward is announced again, before the other node looks.
#[tokio::test]
async fn a_tail_goes_on_while_the_clock_jumps_both_ways() {
    let [one, other] = two().await;
    let _tail = one.delivery.tail(TailSpec::default()).unwrap();
    let mut announcing = Sharing::new(one.delivery.plane.clone());
    announcing.pass().await.unwrap();
    let start = one.clock.now();
    let hour = Duration::from_secs(3600);
    for now in [
        start.plus(hour),
        start.minus(hour),
        start.plus(24 * hour),
        start,
    ] {
        one.clock.set(now);
        announcing.pass().await.unwrap();
        // A node that starts now looks immediately.
        let mut following = Sharing::new(other.delivery.plane.clone());
        following.pass().await.unwrap();
        let followed = other.delivery.plane.tails.captures();
        assert!(!followed.is_empty(), "at {now:?}");
    }
}
