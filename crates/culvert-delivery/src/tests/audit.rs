//! The audit log as delivery reads it: replays and retention.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Clock, Fault, Ksuid};
use culvert_store::{Deciding, Range, Revision};
use culvert_testing::until;

use super::bench::{AUDIT_KIND, Bench, Scripted};
use crate::Replay;
use crate::dispatch::replayer::{Replayer, needed_from};
use crate::plane::Plane;
use crate::retained_events::pruning_notice::{PruningHolds, PruningNotice, Released};
use crate::retained_events::retention::prune;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn replay(id: &str, first: i64, last: i64) -> Replay {
    Replay {
        id: format!("replay_{id}"),
        destination: "ed_1".to_owned(),
        account: "ac_1".to_owned(),
        range: Range {
            first,
            last,
            since: None,
            until: None,
        },
        traffic: None,
        kinds: vec![AUDIT_KIND.to_owned()],
        subscriptions: vec![("esb_now".to_owned(), vec![AUDIT_KIND.to_owned()])],
    }
}

fn plane(bench: &Bench) -> Arc<Plane> {
    bench.delivery.plane.clone()
}

async fn dispatch(bench: &Bench) {
    let mut dispatcher = bench.dispatcher();
    while dispatcher.pass().await.unwrap() {}
}

#[tokio::test]
async fn an_interrupted_replay_sends_each_event_once_under_its_id() {
    let bench = Bench::new().await;
    bench.subscribe("esb_1", "ed_1").await;
    bench
        .tell_all((0..300).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    let target = Scripted::new(500);
    bench.publish_replays(&target, &[]);
    let running = bench.run();
    until("the first deliveries", || target.keys().len() == 300).await;
    running.stop().await;

    // Two nodes run it concurrently, then it is cancelled in the middle.
    let wanted = [replay("1", 1, 300)];
    bench.publish_replays(&target, &wanted);
    let (mut one, mut other) = (Replayer::new(plane(&bench)), Replayer::new(plane(&bench)));
    let (a, b) = tokio::join!(one.pass(), other.pass());
    assert_eq!((a.unwrap(), b.unwrap()), (Duration::ZERO, Duration::ZERO));
    let range = wanted[0].range;
    let position = bench.delivery.replayed("replay_1", &range).await.unwrap();
    assert!(position < 300, "{position}");
    let next = bench.next_life().await;
    next.publish_replays(&target, &wanted);
    let running = next.run();
    until("the replayed deliveries", || target.keys().len() >= 600).await;
    assert_eq!(
        next.delivery.replayed("replay_1", &range).await.unwrap(),
        300
    );
    next.publish_replays(&target, &wanted);
    running.stop().await;

    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    let keys = target.keys();
    for key in &keys {
        *times.entry(key.clone()).or_default() += 1;
    }
    assert_eq!(times.len(), 300);
    assert!(times.values().all(|n| *n == 2));
    let again: Vec<String> = (0..300).map(|n| format!("ev_audit{n}:esb_1")).collect();
    assert_eq!(keys[300..], again);
}

#[tokio::test]
async fn a_replay_selects_account_kinds_and_times_and_its_destination() {
    let bench = Bench::new().await;
    let reported = |at: u32| {
        [
            ("ac_1", AUDIT_KIND, at),
            ("ac_2", AUDIT_KIND, at + 1),
            ("ac_1", "vault_created.v0", at + 2),
        ]
    };
    bench.tell_all(reported(0)).await;
    bench.clock.advance(DAY);
    let since = bench.clock.now();
    bench.tell_all(reported(10)).await;
    bench.subscribe("esb_1", "ed_1").await;
    bench.tell_all(reported(20)).await;
    bench.clock.advance(DAY);
    bench.tell_all(reported(30)).await;
    dispatch(&bench).await;

    let target = Scripted::new(500);
    let mut timed = replay("1", 1, 12);
    timed.range.since = Some(since);
    timed.range.until = Some(since);
    timed.kinds.push("vault_created.v0".to_owned());
    let empty = replay("2", 1, 0);
    bench.publish_replays(&target, &[timed, empty]);
    let mut replayer = Replayer::new(plane(&bench));
    while replayer.pass().await.unwrap() == Duration::ZERO {}
    assert_eq!(bench.meters().replayed.get(), 4);
    let running = bench.run();
    until("all deliveries", || target.keys().len() == 6).await;
    running.stop().await;
    assert_eq!(
        target.keys(),
        [
            // The event that was queued before.
            "ev_audit20:esb_1",
            "ev_audit30:esb_1",
            // Without a recipient at that time: for the current subscription, otherwise for the replay.
            "ev_audit10:esb_now",
            "ev_audit12:replay_1",
            "ev_audit20:esb_1",
            "ev_audit22:replay_1",
        ]
    );
}

#[tokio::test]
async fn a_long_replay_waits_for_queue_capacity() {
    let bench = Bench::new().await;
    bench
        .tell_all((0..1500).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    dispatch(&bench).await;
    let target = Scripted::new(500);
    bench.publish_replays(&target, &[replay("1", 1, 1500)]);
    let mut replayer = Replayer::new(plane(&bench));
    let mut n_passes = 0;
    while replayer.pass().await.unwrap() == Duration::ZERO {
        n_passes += 1;
    }
    assert_eq!(n_passes, 8, "1024 of 1500 events");
    assert_eq!(bench.health("ed_1").queued, 1024);
    let running = bench.run();
    until("all deliveries", || target.keys().len() == 1500).await;
    running.stop().await;
}

#[tokio::test]
async fn cursors_of_deleted_replays_are_removed() {
    let bench = Bench::new().await;
    bench.tell(1).await;
    let id = Ksuid::new(bench.clock.now(), [7; 16]);
    let target = Scripted::new(500);
    bench.publish_replays(&target, &[replay(&id.to_string(), 1, 1), replay("2", 1, 1)]);
    let mut replayer = Replayer::new(plane(&bench));
    while replayer.pass().await.unwrap() == Duration::ZERO {}
    let cursors = async || bench.queue.cursors("replay:").await.unwrap().len();
    assert_eq!(cursors().await, 2);
    bench.publish_replays(&target, &[]);
    // One is new: another node may have it in its table before this one.
    Replayer::new(plane(&bench)).pass().await.unwrap();
    assert_eq!(cursors().await, 1);
    bench.clock.advance(DAY);
    Replayer::new(plane(&bench)).pass().await.unwrap();
    assert_eq!(cursors().await, 0);
    dispatch(&bench).await;
    assert_eq!(bench.queue.cursor("outbox").await.unwrap(), 1);
}

/// A notice of everything that may be removed.
#[derive(Debug)]
struct Announced;

impl PruningNotice for Announced {
    fn announce(&self, _: i64, last: i64) -> BoxFuture<'_, Result<i64, Fault>> {
        Box::pin(async move { Ok(last) })
    }
}

/// Holds that keep the events behind a position.
#[derive(Debug)]
struct HeldBehind(i64, Deciding);

impl PruningHolds for HeldBehind {
    fn released(&self, first: i64, last: i64) -> BoxFuture<'_, Result<Released, Fault>> {
        let up_to = last.min(self.0.max(first - 1));
        Box::pin(async move {
            Ok(Released {
                up_to,
                is_held: up_to < last,
                deciding: self.1,
            })
        })
    }
}

const UNHELD: HeldBehind = HeldBehind(
    i64::MAX,
    Deciding {
        kind: "hold",
        as_of: Revision::START,
    },
);

/// Nothing is removed without an event that announces it.
#[tokio::test]
async fn the_log_is_not_pruned_without_a_notice() {
    let bench = Bench::new().await;
    bench.tell(3).await;
    dispatch(&bench).await;
    bench.clock.advance(366 * DAY);
    assert_eq!(prune(&plane(&bench)).await.unwrap(), 0);
}

#[tokio::test]
async fn the_log_is_pruned_by_age_behind_its_readers() {
    let bench = Bench::with(|settings| settings.audit_retention = 30 * DAY).await;
    let plane = plane(&bench);
    bench
        .delivery
        .prune_by(Arc::new(Announced), Arc::new(UNHELD));
    bench
        .tell_all((0..700).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    bench.clock.advance(29 * DAY);
    bench
        .tell_all((700..705).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    dispatch(&bench).await;
    assert_eq!(prune(&plane).await.unwrap(), 0, "nothing is old");
    bench.clock.advance(2 * DAY);
    bench
        .tell_all((705..710).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;

    // A replay that has not read the rows prevents their removal.
    let target = Scripted::new(500);
    bench.publish_replays(&target, &[replay("1", 100, 650)]);
    assert_eq!(needed_from(&plane).await.unwrap(), Some(100));
    assert_eq!(prune(&plane).await.unwrap(), 99);
    assert_eq!(prune(&plane).await.unwrap(), 0);
    let mut replayer = Replayer::new(plane.clone());
    while replayer.pass().await.unwrap() == Duration::ZERO {}
    assert_eq!(needed_from(&plane).await.unwrap(), None);
    assert_eq!(prune(&plane).await.unwrap(), 512);
    assert_eq!(prune(&plane).await.unwrap(), 700 - 99 - 512);
    assert_eq!(prune(&plane).await.unwrap(), 0, "the others are young");

    // Rows that the dispatcher has not copied stay, however old they are.
    bench.clock.advance(365 * DAY);
    assert_eq!(prune(&plane).await.unwrap(), 5);
    assert_eq!(prune(&plane).await.unwrap(), 0);
    dispatch(&bench).await;
    assert_eq!(prune(&plane).await.unwrap(), 5);
    let extent = bench.store.audit_log().verify(None).await.unwrap();
    assert_eq!((extent.anchor.seq, extent.events()), (710, 0));
    assert_eq!(bench.meters().audit_pruned.get(), 710);
}

/// Events that a hold keeps are not removed, nor those behind them, nor any by holds that are out of date.
#[tokio::test]
async fn the_log_is_pruned_up_to_what_a_hold_keeps() {
    for (behind, as_of, n_removed) in [
        (0, Revision::START, 0),
        (7, Revision::START, 7),
        (i64::MAX, Revision::START, 10),
        // Of a history that the database lost.
        (
            i64::MAX,
            Revision {
                epoch: 1,
                number: 0,
            },
            0,
        ),
    ] {
        let bench = Bench::with(|settings| settings.audit_retention = 30 * DAY).await;
        let deciding = Deciding {
            kind: "hold",
            as_of,
        };
        let holds = Arc::new(HeldBehind(behind, deciding));
        bench.delivery.prune_by(Arc::new(Announced), holds);
        bench
            .tell_all((0..10).map(|n| ("ac_1", AUDIT_KIND, n)))
            .await;
        bench.clock.advance(31 * DAY);
        bench.tell(11).await;
        dispatch(&bench).await;
        assert_eq!(prune(&plane(&bench)).await.unwrap(), n_removed);
        assert_eq!(prune(&plane(&bench)).await.unwrap(), 0);
        let extent = bench.store.audit_log().verify(None).await.unwrap();
        assert_eq!(extent.anchor.seq.unsigned_abs(), n_removed);
        let held_from = match behind {
            i64::MAX => 0,
            behind => behind.unsigned_abs() + 1,
        };
        assert_eq!(bench.meters().audit_held_from.get(), held_from);
    }
}

#[tokio::test]
async fn a_running_plane_prunes_and_reports_the_position_of_the_log() {
    let bench = Bench::new().await;
    bench
        .delivery
        .prune_by(Arc::new(Announced), Arc::new(UNHELD));
    bench
        .tell_all((0..3).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    bench.clock.advance(366 * DAY);
    bench.tell(3).await;
    dispatch(&bench).await;
    bench.publish_replays(&Scripted::new(500), &[]);
    let running = bench.run();
    let meters = bench.meters();
    until("the old events are gone", || meters.audit_pruned.get() == 3).await;
    until("the rest is counted", || {
        (meters.audit_events.get(), meters.audit_head.get()) == (1, 4)
    })
    .await;
    running.stop().await;
}

/// A private event is copied with a table that has the rights of its commit, never with an older one.
#[tokio::test]
async fn a_private_event_waits_until_the_rights_of_its_commit_are_known() {
    const PUBLIC: &str = "vault_created.v0";
    let bench = Bench::new().await;
    bench.subscribe("esb_1", "ed_1").await;
    let target = Scripted::new(500);
    bench.publish_entitled(&target, &[], &["esb_1"]);
    let mut dispatcher = bench.dispatcher();
    let copied = async || {
        let waiting = plane(&bench).queue.backlog().await.unwrap();
        waiting.iter().map(|one| one.events).sum::<u64>()
    };
    let revision = async || bench.store.revision().await.unwrap();

    bench.tell_all([("ac_1", AUDIT_KIND, 1)]).await;
    assert!(!dispatcher.pass().await.unwrap());
    assert_eq!(copied().await, 0, "the rights are older than the event");
    // The owner loses the right before the event, which this node learns later.
    bench.publish_entitled(&target, &[], &[]);
    bench.delivery.has_rights_of(revision().await);
    while dispatcher.pass().await.unwrap() {}
    assert_eq!(copied().await, 0, "it is withheld");
    // Later events do not overtake an event that waits.
    bench.publish_entitled(&target, &[], &["esb_1"]);
    bench.tell_all([("ac_1", AUDIT_KIND, 2)]).await;
    assert!(!dispatcher.pass().await.unwrap());
    let first = revision().await;
    bench.tell_all([("ac_1", AUDIT_KIND, 3)]).await;
    bench.delivery.has_rights_of(first);
    while dispatcher.pass().await.unwrap() {}
    assert_eq!(copied().await, 1);
    bench.delivery.has_rights_of(revision().await);
    while dispatcher.pass().await.unwrap() {}
    assert_eq!(copied().await, 2);
    // Public events wait for nothing.
    bench.tell_all([("ac_1", PUBLIC, 4)]).await;
    assert!(dispatcher.pass().await.unwrap());
}

/// Events that wait for a destination are not sent once their reader has lost the right to them.
#[tokio::test]
async fn a_queued_event_is_withheld_when_the_right_is_lost() {
    let bench = Bench::new().await;
    bench.subscribe("esb_1", "ed_1").await;
    bench.subscribe("esb_2", "ed_1").await;
    let target = Scripted::new(500);
    bench.publish_entitled(&target, &[], &["esb_1", "esb_2"]);
    bench
        .tell_all((0..10).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    bench
        .delivery
        .has_rights_of(bench.store.revision().await.unwrap());
    dispatch(&bench).await;
    bench.publish_entitled(&target, &[], &["esb_2"]);
    let running = bench.run();
    until("the deliveries", || target.keys().len() == 10).await;
    until("an empty queue", || bench.health("ed_1").queued == 0).await;
    running.stop().await;
    let keys = target.keys();
    assert_eq!(keys.len(), 10);
    assert!(keys.iter().all(|key| key.ends_with(":esb_2")), "{keys:?}");
    let health = bench.health("ed_1");
    assert_eq!((health.sent, health.dropped), (10, 10));
}

/// A batch of which nothing may be sent is no success: it says nothing about the destination.
#[tokio::test]
async fn a_batch_that_is_withheld_as_a_whole_is_not_sent() {
    let bench = Bench::new().await;
    bench.subscribe("esb_1", "ed_1").await;
    let target = Scripted::new(500);
    bench.publish_entitled(&target, &[], &["esb_1"]);
    bench
        .tell_all((0..10).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    bench
        .delivery
        .has_rights_of(bench.store.revision().await.unwrap());
    dispatch(&bench).await;
    bench.publish_entitled(&target, &[], &[]);
    let running = bench.run();
    until("an empty queue", || bench.health("ed_1").queued == 0).await;
    running.stop().await;
    assert_eq!(target.keys(), [""; 0]);
    let health = bench.health("ed_1");
    assert_eq!((health.sent, health.dropped), (0, 10));
    assert_eq!(health.last_success_at, None);
}

/// A replay sends private events by the rights of its owner, not by those of the current subscriptions.
#[tokio::test]
async fn a_replay_follows_the_rights_of_its_owner() {
    let bench = Bench::new().await;
    bench.subscribe("esb_1", "ed_1").await;
    bench
        .tell_all((0..10).map(|n| ("ac_1", AUDIT_KIND, n)))
        .await;
    let target = Scripted::new(500);
    for (entitled, readers) in [
        (&[][..], None),
        (&["esb_1"][..], None),
        (&["esb_1", "replay_3"][..], Some("esb_1")),
        (&["replay_4"][..], Some("replay_4")),
    ] {
        let id = match readers {
            Some("replay_4") => "4",
            Some(_) => "3",
            None => "1",
        };
        let before = target.keys().len();
        bench.publish_entitled(&target, &[replay(id, 1, 10)], entitled);
        let mut replayer = Replayer::new(plane(&bench));
        while replayer.pass().await.unwrap() == Duration::ZERO {}
        let running = bench.run();
        until("an empty queue", || bench.health("ed_1").queued == 0).await;
        running.stop().await;
        let sent = target.keys().split_off(before);
        assert_eq!(sent.len(), readers.map_or(0, |_| 10), "{entitled:?}");
        let end = format!(":{}", readers.unwrap_or_default());
        assert!(sent.iter().all(|key| key.ends_with(&end)), "{sent:?}");
    }
}
