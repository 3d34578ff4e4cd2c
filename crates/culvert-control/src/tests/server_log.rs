//! The events of the server itself: each once, also over restarts and with several nodes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use culvert_events::{Reason, RefusedTraffic};

use culvert_delivery::meters::Dropped;
use culvert_store::{
    AuditError, AuditEvent, Changes, LostCommits, NewPiece, NodeNote, NotedHead, Revision,
    TrafficLog,
};
use sqlx::Connection as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::uses::Database;
use super::*;
use culvert_server_log::destinations::FailingSince;
use culvert_server_log::members::Members;
use culvert_server_log::traffic_log::TrafficRecords;

const DAY: Duration = Duration::from_secs(24 * 3_600);

fn facts(rig: &Rig, node: &str, is_shared: bool) -> RunFacts {
    RunFacts {
        node: node.to_owned(),
        version: "1.2.3".to_owned(),
        roles: vec!["api".to_owned()],
        region: String::new(),
        is_shared,
        started_at: rig.clock.now(),
    }
}

/// The kinds of the events since the last call, without version, and with their reason.
async fn reported(rig: &Rig) -> Vec<String> {
    let seq = *rig.last_seq.lock().unwrap();
    let (events, last) = rig.events_after(seq).await;
    *rig.last_seq.lock().unwrap() = last;
    let name = |event: &Value| {
        let kind = event["event_type"].as_str().unwrap();
        let kind = kind.strip_suffix(".v0").unwrap();
        match event["object"]["reason"].as_str() {
            Some(reason) => format!("{kind} {reason}"),
            None => kind.to_owned(),
        }
    };
    events.iter().map(name).collect()
}

/// The last event.
async fn last(rig: &Rig) -> Value {
    let (events, _) = rig.events_after(0).await;
    events.last().unwrap().clone()
}

async fn starts_and_stops(rig: &Rig, is_shared: bool) {
    reported(rig).await;
    let log = rig.control.server_log();
    let one = facts(rig, "n1", is_shared);
    let with_members = |own: &[&str], members: &[&str]| {
        let all = own.iter().chain(members.iter().filter(|_| is_shared));
        all.map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    log.started(&one, 0).await.unwrap();
    let started = with_members(&["server_started"], &["node_joined"]);
    assert_eq!(reported(rig).await, started);
    let event = last(rig).await;
    assert_eq!(event["principal"], Value::Null);
    assert_eq!(event["account_id"], *rig.admin.account);

    // It is killed, and started again.
    log.started(&one, 0).await.unwrap();
    let expected = match is_shared {
        false => vec!["server_stopped killed", "server_started"],
        true => vec![
            "server_stopped killed",
            "node_left killed",
            "server_started",
            "node_joined",
        ],
    };
    assert_eq!(reported(rig).await, expected);

    // It stops, and is started again.
    log.stopped(&one, StopReason::Asked, None).await;
    let stopped = with_members(&["server_stopped asked"], &["node_left stopped"]);
    assert_eq!(reported(rig).await, stopped);
    log.started(&one, 0).await.unwrap();
    assert_eq!(reported(rig).await, started);
    let task = Some("edge");
    log.stopped(&one, StopReason::TaskFailed, task).await;
    let stopped = with_members(&["server_stopped task_failed"], &["node_left stopped"]);
    assert_eq!(reported(rig).await, stopped);
    // A stop without a start in the log has no event.
    log.stopped(&one, StopReason::Asked, None).await;
    assert_eq!(reported(rig).await, Vec::<String>::new());

    rig.control
        .kernel
        .store
        .audit_log()
        .verify(None)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_start_reports_how_the_process_before_it_ended_on_sqlite() {
    let rig = Rig::start().await;
    starts_and_stops(&rig, false).await;
    // In a database of one process, all other processes with marks were killed.
    let log = rig.control.server_log();
    let (old, new) = (facts(&rig, "old", false), facts(&rig, "new", false));
    log.started(&old, 0).await.unwrap();
    reported(&rig).await;
    log.started(&new, 0).await.unwrap();
    let expected = ["server_stopped killed", "server_started"];
    assert_eq!(reported(&rig).await, expected);
    log.stopped(&new, StopReason::Asked, None).await;
    assert_eq!(reported(&rig).await, ["server_stopped asked"]);
}

#[tokio::test]
async fn a_start_reports_how_the_process_before_it_ended_on_postgres() {
    let Some(database) = Database::new("runs").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    starts_and_stops(&rig, true).await;
    // Another node's mark is its own.
    let log = rig.control.server_log();
    let (one, two) = (facts(&rig, "n1", true), facts(&rig, "n2", true));
    let both = [&one, &two];
    for facts in both {
        log.started(facts, 0).await.unwrap();
        assert_eq!(reported(&rig).await, ["server_started", "node_joined"]);
    }
    nodes_leave(&rig, &one, &two).await;
    rig.store.close().await;
    rig.queue.close().await;
    database.remove().await;
}

/// Two nodes notice that a third one is gone; one of them reports it.
async fn nodes_leave(rig: &Rig, one: &RunFacts, two: &RunFacts) {
    let log = rig.control.server_log();
    let gone = facts(rig, "n3", true);
    log.started(&gone, 0).await.unwrap();
    reported(rig).await;
    let note = |node: &str, at: u64| NodeNote {
        node: node.to_owned(),
        at: rig.clock.now().plus(Duration::from_secs(at)),
        body: String::new(),
    };
    let began = Instant::now();
    let (mut of_one, mut of_two) = (Members::default(), Members::default());
    for seconds in (0..=80).step_by(5) {
        let now = began + Duration::from_secs(seconds);
        let notes = [note("n1", seconds), note("n2", seconds), note("n3", 0)];
        let (first, second) = tokio::join!(
            log.watch_members(one, &mut of_one, &notes, now),
            log.watch_members(two, &mut of_two, &notes, now)
        );
        first.and(second).unwrap();
    }
    assert_eq!(reported(rig).await, ["node_left unreachable"]);
    assert_eq!(last(rig).await["object"]["node"], "n3");
    // It was only cut off.
    let mut of_gone = Members::default();
    log.watch_members(&gone, &mut of_gone, &[], began)
        .await
        .unwrap();
    assert_eq!(reported(rig).await, ["node_joined"]);
    // It was killed: its next start reports both.
    log.started(&gone, 0).await.unwrap();
    let expected = [
        "server_stopped killed",
        "node_left killed",
        "server_started",
        "node_joined",
    ];
    assert_eq!(reported(rig).await, expected);
}

#[tokio::test]
async fn a_restored_backup_and_a_lost_end_of_the_log_are_reported_once() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("state.db");
    log.back_up_state(&copy).await.unwrap();
    let by = AdminCommand {
        user: "ada".to_owned(),
        ..AdminCommand::default()
    };
    log.backup_made(&by, "/backups/1", true).await.unwrap();
    let made = last(&rig).await;
    assert_eq!(made["event_type"], "backup_made.v0");
    assert_eq!(made["principal"]["source"], "CLI");
    assert_eq!(made["principal"]["subject"], "ada");
    assert_eq!(made["object"]["has_key"], true);

    // The source is no backup.
    reported(&rig).await;
    let one = facts(&rig, "n1", false);
    log.started(&one, 0).await.unwrap();
    assert_eq!(reported(&rig).await, ["server_started"]);

    let clock = rig.clock.clone();
    let url = StoreUrl::Sqlite(copy);
    let store = Store::open(&url, clock.clone(), texts()).await.unwrap();
    let restored = ServerLog::new(store.clone(), clock, rig.control.kernel.entropy.clone());
    let kinds = async || {
        let rows = store.outbox_after(0, 1_000).await.unwrap();
        let rows = rows.into_iter().map(|row| row.event);
        let ours = rows.filter(|event| event.kind == "restored.v0");
        ours.map(|event| event.body).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        restored.started(&one, 0).await.unwrap();
        let found = kinds().await;
        assert_eq!(found.len(), 1);
        let event: Value = serde_json::from_str(&found[0]).unwrap();
        assert_eq!(event["object"]["known_by"], "backup");
        assert_ne!(event["object"]["made_at"], Value::Null);
    }
    // The event queue has copied events that the log has lost.
    for _ in 0..2 {
        restored.started(&one, 500).await.unwrap();
        let found = kinds().await;
        assert_eq!(found.len(), 2);
        let event: Value = serde_json::from_str(&found[1]).unwrap();
        assert_eq!(event["object"]["known_by"], "event_queue");
        assert_eq!(event["object"]["known_position"], 500);
    }
    store.audit_log().verify(None).await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn deleted_events_are_announced_before_and_the_chain_holds() {
    let rig = Rig::start().await;
    for n in 0..20 {
        let made = rig.post("/vaults", json!({"name": format!("v{n}")})).await;
        made.body();
    }
    let log = rig.store.audit_log();
    let noted: NotedHead = log
        .extent()
        .await
        .unwrap()
        .head
        .to_string()
        .parse()
        .unwrap();
    log.verify(Some(noted)).await.unwrap();
    let n_old = log.extent().await.unwrap().events();

    let delivery = rig.control.events.delivery.clone();
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    tasks.spawn(delivery.clone().run(cancel.clone()));
    eventually("everything is copied", async || {
        delivery.audit_copied_to().await.unwrap() == i64::try_from(n_old).unwrap()
    })
    .await;
    // Nothing is old enough.
    assert_eq!(delivery.prune_audit_log().await.unwrap(), 0);
    rig.clock.advance(366 * DAY);
    rig.post("/vaults", json!({"name": "young"})).await.body();
    eventually("old events are deleted", async || {
        delivery.prune_audit_log().await.unwrap();
        log.extent().await.unwrap().anchor.seq == i64::try_from(n_old).unwrap()
    })
    .await;
    let pruned = |events: &[Value]| {
        let of_kind = events
            .iter()
            .filter(|event| event["event_type"] == "event_log_pruned.v0");
        of_kind.cloned().collect::<Vec<_>>()
    };
    let (events, _) = rig.events_after(0).await;
    let [event] = &pruned(&events)[..] else {
        panic!("{events:?}");
    };
    assert_eq!(
        event["object"],
        json!({
            "first": 1, "last": n_old, "count": n_old, "reason": "retention",
            "last_hash": log.extent().await.unwrap().anchor.hash.to_string(),
            "unannounced_from": null,
        })
    );
    let beginning = log.verify_beginning().await.unwrap();
    assert_eq!(beginning, culvert_store::Beginning::Announced);
    // The range before is gone, and the chain begins with its last hash.
    log.verify(None).await.unwrap();
    let early: NotedHead = format!("1:{}", noted.hash).parse().unwrap();
    let refused = log.verify(Some(early)).await.unwrap_err();
    assert!(matches!(refused, AuditError::HeadPruned(..)), "{refused}");
    log.verify(Some(noted)).await.unwrap();

    // A deletion soon after waits, so that these events do not cause ever more of them.
    rig.clock.advance(366 * DAY);
    let deleted = async || {
        eventually("all is copied", async || {
            let last = log.extent().await.unwrap().last;
            delivery.audit_copied_to().await.unwrap() == last
        })
        .await;
        delivery.prune_audit_log().await.unwrap()
    };
    assert!(deleted().await > 0);
    rig.clock.advance(400 * DAY);
    assert!(deleted().await > 0, "the event itself is old");
    let (events, _) = rig.events_after(0).await;
    assert_eq!(pruned(&events).len(), 1, "and is deleted with an event");
    log.verify(None).await.unwrap();
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
}

#[tokio::test]
async fn ends_of_keys_are_reported_in_stages_and_unused_keys_once() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    let now = rig.clock.now();
    let unused_after = 90 * DAY;
    let made = rig.post("/api_keys", json!({"description": "ci"})).await;
    let id = made.body()["id"].as_str().unwrap().to_owned();
    let path = format!("/api_keys/{id}/restrictions");
    let end = now.plus(60 * DAY).whole_seconds();
    let body = json!({"expires_at": end.to_string()});
    rig.patch(&path, body).await.body();
    reported(&rig).await;

    let look = async |days: u32| {
        rig.clock.set(now.plus(DAY * days));
        // Two nodes look at the same time, and one of them twice.
        let at = now.plus(DAY * days);
        let (one, two) = tokio::join!(
            log.watch_expiry(at, unused_after),
            log.watch_expiry(at, unused_after)
        );
        one.and(two).unwrap();
        log.watch_expiry(at, unused_after).await.unwrap();
        reported(&rig).await
    };
    assert_eq!(look(29).await, Vec::<String>::new());
    assert_eq!(look(31).await, ["api_key_expiring"]);
    let event = last(&rig).await;
    assert_eq!(event["object"]["id"], id);
    assert_eq!(event["object"]["within_days"], 30);
    assert_eq!(event["object"]["description"], "ci");
    // The clock was set back, and forward again.
    assert_eq!(look(20).await, Vec::<String>::new());
    assert_eq!(look(32).await, Vec::<String>::new());
    assert_eq!(look(54).await, ["api_key_expiring"]);
    assert_eq!(last(&rig).await["object"]["within_days"], 7);
    // A later end begins again.
    let end = now.plus(80 * DAY).whole_seconds();
    rig.patch(&path, json!({"expires_at": end.to_string()}))
        .await
        .body();
    reported(&rig).await;
    assert_eq!(look(55).await, ["api_key_expiring"]);
    assert_eq!(look(79).await, ["api_key_expiring"]);
    assert_eq!(last(&rig).await["object"]["within_days"], 1);

    // The first key was never used, and the other one has expired.
    assert_eq!(look(91).await, ["api_key_unused"]);
    let event = last(&rig).await;
    assert_eq!(event["object"]["id"], *rig.admin.key_id);
    assert_eq!(event["object"]["last_used_at"], Value::Null);
    assert_eq!(look(92).await, Vec::<String>::new());
    // It is used, and then not any more.
    rig.control
        .identity
        .note_key_use(&rig.admin, Ipv4Addr::LOCALHOST.into());
    rig.control.identity.write_key_uses().await.unwrap();
    assert_eq!(look(93).await, Vec::<String>::new());
    assert_eq!(look(183).await, ["api_key_unused"]);
    assert_ne!(last(&rig).await["object"]["last_used_at"], Value::Null);
    // Zero reports none.
    log.watch_expiry(now.plus(DAY * 900), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(reported(&rig).await, Vec::<String>::new());
    // The marks of deleted keys are removed.
    rig.delete(&format!("/api_keys/{id}")).await;
    log.watch_expiry(now.plus(DAY * 183), Duration::ZERO)
        .await
        .unwrap();
    assert!(rig.store.all("expiry_notice").await.unwrap().is_empty());
}

#[tokio::test]
async fn certificates_are_reported_before_they_expire() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    let end = rig.clock.now().plus(60 * DAY).whole_seconds();
    for (n, collection) in [(1, "ssh_host_certificates"), (2, "ssh_user_certificates")] {
        let mut body = rig.sample(collection, n).await;
        body["valid_until"] = json!(end.to_string());
        let made = rig.post(&format!("/{collection}"), body).await.body();
        reported(&rig).await;
        for (days, expected) in [(31, 0), (29, 1), (28, 1), (6, 2), (1, 3)] {
            log.watch_expiry(end.minus(DAY * days), Duration::ZERO)
                .await
                .unwrap();
            let (events, _) = rig.events_after(0).await;
            let of_it = events.iter().filter(|event| {
                event["event_type"] == "certificate_expiring.v0"
                    && event["object"]["id"] == made["id"]
            });
            assert_eq!(of_it.count(), expected, "{collection} {days}");
        }
    }
}

#[tokio::test]
async fn commands_of_the_operator_are_the_cause_of_their_changes() {
    let rig = Rig::start().await;
    let kernel = &rig.control.kernel;
    let bootstrap = Bootstrap {
        ids: &kernel.ids,
        store: &kernel.store,
        clock: &*kernel.clock,
        entropy: &*kernel.entropy,
        pepper: &kernel.pepper,
        base: BASE,
        domain: "culvert.localhost",
        token_form: Default::default(),
    };
    let command = AdminCommand {
        name: "create-key".to_owned(),
        user: "root".to_owned(),
        user_id: 0,
        sudo_user: "ada".to_owned(),
        terminal: "/dev/pts/3".to_owned(),
    };
    let (_, seq) = rig.events_after(0).await;
    bootstrap.admin_key(&command).await.unwrap();
    let (events, seq) = rig.events_after(seq).await;
    let kinds: Vec<_> = events.iter().map(|event| &event["event_type"]).collect();
    assert_eq!(kinds, ["admin_command.v0", "api_key_created.v0"]);
    assert_eq!(
        events[0]["object"],
        json!({"command": "create-key", "user": "root", "user_id": 0, "sudo_user": "ada", "tty": "/dev/pts/3"})
    );
    assert_eq!(events[0]["principal"]["source"], "CLI");
    assert_eq!(events[1]["cause"], events[0]["event_id"]);
    // No restriction is lifted, so nothing changed.
    assert_eq!(bootstrap.lift_api_restriction(&command).await.unwrap(), 0);
    assert_eq!(rig.events_after(seq).await.0, Vec::<Value>::new());

    // Names that the environment chooses are cut.
    let log = rig.control.server_log();
    let long = AdminCommand {
        sudo_user: "ä".repeat(5_000),
        ..command
    };
    let cause = log.commanded(&long).await.unwrap();
    let reencrypted = Reencrypted {
        documents: 3,
        strange: 1,
    };
    log.master_key_rotated(&long, cause.as_deref(), reencrypted)
        .await
        .unwrap();
    let (events, _) = rig.events_after(seq).await;
    let cut = events[0]["object"]["sudo_user"].as_str().unwrap();
    assert_eq!(cut.len(), 256);
    assert_eq!(events[1]["event_type"], "master_key_rotated.v0");
    assert_eq!(events[1]["cause"], events[0]["event_id"]);
    assert_eq!(events[1]["object"], json!({"objects": 3, "unreadable": 1}));
}

#[tokio::test]
async fn a_destination_that_fails_is_reported_once_and_causes_no_more() {
    let rig = Rig::start().await;
    let delivery = rig.control.events.delivery.clone();
    // No resolver knows such a name (RFC 6761 6.4).
    let url = "https://hook.invalid/";
    let body = json!({"format": "json", "target": {"webhook": {"url": url}}});
    let made = rig.post("/event_destinations", body).await.body();
    let id = made["id"].as_str().unwrap().to_owned();
    let sources = json!([
        {"type": "event_subscription_created.v0"},
        {"type": "destination_failing.v0"},
        {"type": "destination_recovered.v0"},
    ]);
    let body = json!({"destination_ids": [id], "sources": sources});
    rig.post("/event_subscriptions", body).await.body();
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    tasks.spawn(delivery.clone().run(cancel.clone()));
    eventually("it is tried", async || {
        let health = delivery.health(&id);
        health.is_some_and(|health| health.last_error_at.is_some())
    })
    .await;
    reported(&rig).await;

    let log = rig.control.server_log();
    let began = Instant::now();
    let (mut of_one, mut of_two) = (FailingSince::default(), FailingSince::default());
    let mut look = async |seconds: u64| {
        let now = began + Duration::from_secs(seconds);
        let (one, two) = tokio::join!(
            log.watch_destinations(&delivery, &mut of_one, now),
            log.watch_destinations(&delivery, &mut of_two, now)
        );
        one.and(two).unwrap();
        reported(&rig).await
    };
    assert_eq!(look(0).await, Vec::<String>::new());
    assert_eq!(look(599).await, Vec::<String>::new());
    assert_eq!(look(600).await, ["destination_failing no_success"]);
    let event = last(&rig).await;
    assert_eq!(event["object"]["id"], id);
    assert_ne!(event["object"]["last_error"], Value::Null);
    // Its own event waits for it too, which changes nothing.
    eventually("the event waits", async || {
        delivery.audit_copied_to().await.unwrap()
            == log.store.audit_log().extent().await.unwrap().last
    })
    .await;
    for seconds in [601, 1_300, 9_000] {
        assert_eq!(look(seconds).await, Vec::<String>::new());
    }
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
}

#[tokio::test]
async fn a_cascade_has_the_deletion_as_its_cause() {
    let rig = Rig::start().await;
    let bot = rig.post("/bot_users", json!({"name": "b"})).await.body();
    for _ in 0..2 {
        let body = json!({"owner_id": bot["id"]});
        rig.post("/api_keys", body).await.body();
    }
    let (_, seq) = rig.events_after(0).await;
    let path = format!("/bot_users/{}", bot["id"].as_str().unwrap());
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    let (events, _) = rig.events_after(seq).await;
    let of = |kind: &str| {
        let of_kind = events.iter().filter(|event| event["event_type"] == kind);
        of_kind.collect::<Vec<_>>()
    };
    let (keys, bots) = (of("api_key_deleted.v0"), of("bot_user_deleted.v0"));
    assert_eq!((keys.len(), bots.len()), (2, 1));
    assert!(bots[0]["cause"].is_null());
    for key in keys {
        assert_eq!(key["cause"], bots[0]["event_id"]);
    }
}

#[tokio::test]
async fn reads_of_events_name_what_was_shown() {
    let rig = Rig::start().await;
    let caller = audit::with_context(rig.admin.clone());
    let (kept, seq) = rig.events_after(0).await;
    let ids: Vec<&str> = kept
        .iter()
        .map(|event| event["event_id"].as_str().unwrap())
        .collect();
    for id in ids.iter().chain(&ids) {
        let path = format!("/events/{id}");
        rig.call(&caller, "GET", &path, Value::Null).await.body();
    }
    rig.control.kernel.report_due(true).await.unwrap();
    let (events, seq) = rig.events_after(seq).await;
    assert_eq!(
        events.len(),
        2,
        "one for the first read, one for the others"
    );
    assert_eq!(events[0]["event_type"], "events_exported.v0");
    assert_eq!(events[0]["object"]["ids"], json!([ids[0]]));
    assert_eq!(events[1]["object"]["count"], 2 * ids.len() - 1);
    assert_eq!(
        events[1]["object"]["ids"].as_array().unwrap().len(),
        ids.len()
    );
    // A list names at most a hundred.
    for n in 0..120 {
        let made = rig.post("/vaults", json!({"name": format!("v{n}")})).await;
        made.body();
    }
    let (_, seq) = rig.events_after(seq).await;
    for _ in 0..2 {
        let path = "/events?limit=100&type=vault_created.v0";
        let page = rig.call(&caller, "GET", path, Value::Null).await.body();
        assert_eq!(page["events"].as_array().unwrap().len(), 100);
    }
    rig.control.kernel.report_due(true).await.unwrap();
    let (events, _) = rig.events_after(seq).await;
    assert_eq!(events.len(), 2);
    for event in &events {
        assert_eq!(event["object"]["ids"].as_array().unwrap().len(), 100);
    }
}

#[tokio::test]
async fn dropped_events_are_reported_when_that_begins_and_while_it_goes_on() {
    let rig = Rig::start().await;
    let watch = ServerWatch::new(
        rig.control.clone(),
        facts(&rig, "n1", false),
        Duration::ZERO,
    );
    reported(&rig).await;
    watch.check(false).await;
    assert_eq!(reported(&rig).await, ["server_started"]);
    let meters = rig.control.events.delivery.meters();
    let account = Arc::<str>::from(&*rig.admin.account);
    meters.drop_offers(&account, 5);
    watch.check(false).await;
    assert_eq!(reported(&rig).await, ["events_dropped offer_full"]);
    let object = last(&rig).await["object"].clone();
    assert_eq!(object["deliveries"], 5);
    assert_eq!(object["class"], "traffic");
    assert_eq!(object["destination_id"], Value::Null);
    // Within ten minutes they are counted. Those of a deleted destination have its event.
    meters.drop_offers(&account, 3);
    meters.dropped.add(Dropped::DestinationDeleted, 7);
    watch.check(false).await;
    assert_eq!(reported(&rig).await, Vec::<String>::new());
    // The others are reported when the server stops.
    watch.check(true).await;
    assert_eq!(reported(&rig).await, ["events_dropped offer_full"]);
    assert_eq!(last(&rig).await["object"]["deliveries"], 3);
    watch.check(true).await;
    assert_eq!(reported(&rig).await, Vec::<String>::new());

    // Each account has its own count.
    let stranger = Arc::<str>::from(rig.stranger().await.account);
    let (_, seq) = rig.events_after(0).await;
    meters.drop_offers(&account, 2);
    meters.drop_offers(&stranger, 11);
    watch.check(true).await;
    let (events, _) = rig.events_after(seq).await;
    let counts = events.iter().map(|event| {
        let count = event["object"]["deliveries"].as_u64().unwrap();
        (event["account_id"].as_str().unwrap(), count)
    });
    let counts: BTreeMap<_, _> = counts.collect();
    assert_eq!(counts, BTreeMap::from([(&*account, 2), (&*stranger, 11)]));
    reported(&rig).await;

    // Reloads that wait are bounded: the last one has the digest that is in force.
    for n in 0..300 {
        watch.reloaded(Reloaded {
            changed: vec!["log.level".to_owned()],
            file_sha256: Some(n.to_string()),
            ..Reloaded::default()
        });
    }
    watch.check(false).await;
    assert_eq!(reported(&rig).await.len(), 100);
    let object = last(&rig).await["object"].clone();
    assert_eq!(object["file_sha256"], "299");
    assert_eq!(object["node"], "n1");
}

const HOUR: Duration = Duration::from_secs(3_600);

async fn keep_piece(rig: &Rig, queue: &Queue, text: &str) {
    let piece = NewPiece {
        first_at: rig.clock.now(),
        last_at: rig.clock.now(),
        endpoints: Vec::new(),
        summary: Vec::new(),
        body: text.as_bytes().to_vec(),
    };
    queue.keep_traffic(vec![piece]).await.unwrap();
}

/// The object of the record that a look makes, or of none. Another node then makes no second one.
async fn recorded(rig: &Rig, records: &TrafficRecords, queue: &Queue) -> Option<Value> {
    let log = rig.control.server_log();
    reported(rig).await;
    let now = rig.clock.now();
    log.record_traffic(records, "n1", queue, (now, false))
        .await
        .unwrap();
    let other = TrafficRecords::default();
    log.record_traffic(&other, "n2", queue, (now, false))
        .await
        .unwrap();
    match reported(rig).await.as_slice() {
        [] => None,
        [one] if one == "traffic_log_hashed" => Some(last(rig).await["object"].clone()),
        others => panic!("{others:?}"),
    }
}

/// Changes the file of events, as who has the disk may.
async fn change_events(rig: &Rig, sql: &str) {
    let file = rig.folder.path().join("events.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut database = sqlx::SqliteConnection::connect_with(&options)
        .await
        .unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(&mut database)
        .await
        .unwrap();
    database.close().await.unwrap();
}

/// The traffic log is recorded when its oldest piece without a record is an hour old, once, and from the beginning in
/// another file of events.
#[tokio::test]
async fn the_traffic_log_is_recorded_each_hour() {
    let rig = Rig::start().await;
    let records = TrafficRecords::default();
    assert_eq!(recorded(&rig, &records, &rig.queue).await, None);
    let began_at = rig.clock.now();
    keep_piece(&rig, &rig.queue, "a").await;
    rig.clock.advance(HOUR / 2);
    keep_piece(&rig, &rig.queue, "b").await;
    assert_eq!(recorded(&rig, &records, &rig.queue).await, None);
    rig.clock.advance(HOUR / 2);
    let object = recorded(&rig, &records, &rig.queue).await;
    let hashed = rig.queue.hash_traffic(0, 2, 9).await.unwrap().unwrap();
    let expected = json!({
        "node": "n1", "first": 1, "last": 2, "count": 2, "is_restarted": false,
        "from": began_at.to_string(), "to": began_at.plus(HOUR / 2).to_string(),
        "sha256": culvert_base::text::hex(&hashed.root.0),
    });
    assert_eq!(object, Some(expected));

    keep_piece(&rig, &rig.queue, "c").await;
    assert_eq!(recorded(&rig, &records, &rig.queue).await, None);
    rig.clock.advance(HOUR);
    let object = recorded(&rig, &records, &rig.queue).await.unwrap();
    assert_eq!((&object["first"], &object["last"]), (&json!(3), &json!(3)));
    // Retention may remove the last recorded piece.
    let end = rig.clock.now();
    assert_eq!(rig.queue.prune_traffic(end, 0).await.unwrap(), 3);
    rig.clock.advance(3 * HOUR);
    keep_piece(&rig, &rig.queue, "d").await;
    rig.clock.advance(HOUR);
    let object = recorded(&rig, &records, &rig.queue).await.unwrap();
    assert_eq!((&object["first"], &object["count"]), (&json!(4), &json!(1)));
    assert_eq!(object["is_restarted"], false);

    let folder = tempfile::tempdir().unwrap();
    let url = StoreUrl::Sqlite(folder.path().join("state.db"));
    let other = Queue::open(&url, rig.clock.clone());
    let other = other.await.unwrap();
    for text in ["d", "e", "f", "g", "h"] {
        keep_piece(&rig, &other, text).await;
    }
    rig.clock.advance(HOUR);
    let object = recorded(&rig, &records, &other).await.unwrap();
    assert_eq!((&object["first"], &object["count"]), (&json!(1), &json!(5)));
    assert_eq!(object["is_restarted"], true);
    other.close().await;
}

/// What someone changes in the events database does not stop the records: they go on, or say that the log was changed.
#[tokio::test]
async fn the_events_database_does_not_stop_the_records() {
    let rig = Rig::start().await;
    let records = TrafficRecords::default();
    keep_piece(&rig, &rig.queue, "a").await;
    rig.clock.advance(HOUR);
    assert!(recorded(&rig, &records, &rig.queue).await.is_some());

    // Times in the future.
    keep_piece(&rig, &rig.queue, "b").await;
    rig.clock.advance(HOUR);
    let future = "UPDATE traffic SET first_at = 4000000000000000000, last_at = 4000000000000000000; \
         UPDATE traffic_hash SET last_at = 4000000000000000000";
    change_events(&rig, future).await;
    let object = recorded(&rig, &records, &rig.queue).await.unwrap();
    assert_eq!((&object["first"], &object["last"]), (&json!(2), &json!(2)));

    // A hash that is none.
    let now = rig.clock.now().unix_nanos();
    let malformed = format!(
        "UPDATE traffic_hash SET last_at = {now}; UPDATE traffic_hash SET hash = 'x' WHERE piece = 2"
    );
    change_events(&rig, &malformed).await;
    keep_piece(&rig, &rig.queue, "c").await;
    rig.clock.advance(HOUR);
    let object = recorded(&rig, &records, &rig.queue).await.unwrap();
    assert_eq!(object["is_restarted"], true);
    // One of a piece that is gone, behind the latest record.
    let lost = "INSERT INTO traffic_hash (piece, last_at, hash) VALUES (4, 1, 'x')";
    change_events(&rig, lost).await;
    assert_eq!(recorded(&rig, &records, &rig.queue).await, None);
    change_events(&rig, "DELETE FROM traffic_hash WHERE piece = 4").await;

    // Anything else is said after two hours, by the clock.
    let break_it = "ALTER TABLE traffic_hash RENAME TO hidden";
    change_events(&rig, break_it).await;
    let log = rig.control.server_log();
    for (hours, is_said) in [(2, false), (1, true)] {
        rig.clock.advance(hours * HOUR);
        let now = rig.clock.now();
        let failed = log.record_traffic(&records, "n1", &rig.queue, (now, false));
        assert!(failed.await.is_err());
        assert_eq!(records.notice().is_some(), is_said, "{hours}");
    }
    assert_eq!(records.behind(), 3 * HOUR);
    change_events(&rig, "ALTER TABLE hidden RENAME TO traffic_hash").await;
    recorded(&rig, &records, &rig.queue).await;
    assert_eq!((records.notice(), records.behind()), (None, Duration::ZERO));
}

/// What cannot be reported does not keep the traffic log from being recorded.
#[tokio::test]
async fn the_traffic_log_is_recorded_though_others_cannot_be_reported() {
    let rig = Rig::start().await;
    let shared = facts(&rig, "n1", true);
    let watch = ServerWatch::new(rig.control.clone(), shared, Duration::ZERO);
    keep_piece(&rig, &rig.queue, "a").await;
    rig.clock.advance(HOUR);
    change_events(&rig, "ALTER TABLE node_note RENAME TO hidden").await;
    reported(&rig).await;
    watch.check(false).await;
    let seen = reported(&rig).await;
    assert!(
        seen.iter().any(|kind| kind == "traffic_log_hashed"),
        "{seen:?}"
    );
}

/// A record without its mark is not continued, and says so.
#[tokio::test]
async fn a_record_of_the_traffic_log_without_its_mark_is_not_continued() {
    let rig = Rig::start().await;
    let records = TrafficRecords::default();
    keep_piece(&rig, &rig.queue, "a").await;
    rig.clock.advance(HOUR);
    assert!(recorded(&rig, &records, &rig.queue).await.is_some());
    let mark = rig.store.all("hashed_traffic").await.unwrap().remove(0);
    let event = AuditEvent::Suppress { reason: "a test" };
    let removal = Changes::remove(mark.head, event);
    rig.store.commit(removal).await.unwrap();
    rig.clock.advance(HOUR);
    let object = recorded(&rig, &records, &rig.queue).await.unwrap();
    assert_eq!(
        (&object["first"], &object["is_restarted"]),
        (&json!(1), &json!(true))
    );
}

/// An orderly stop records the pieces of the last hour.
#[tokio::test]
async fn a_stop_records_the_traffic_log() {
    let rig = Rig::start().await;
    let facts = facts(&rig, "n1", false);
    let watch = ServerWatch::new(rig.control.clone(), facts, Duration::ZERO);
    keep_piece(&rig, &rig.queue, "a").await;
    watch.check(false).await;
    reported(&rig).await;
    watch.check(true).await;
    assert_eq!(reported(&rig).await, ["traffic_log_hashed"]);
    assert_eq!(watch.traffic_notice(), None);
}

/// A backup is made again if a record of the traffic log was made between its two copies.
#[tokio::test]
async fn a_backup_has_the_pieces_of_its_records() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    let records = TrafficRecords::default();
    keep_piece(&rig, &rig.queue, "a").await;
    let folder = tempfile::tempdir().unwrap();
    let mut n_made = 0;
    let (rig, log, records, root) = (&rig, &log, &records, folder.path());
    let is_whole = log.between_traffic_records(|n| {
        n_made += 1;
        Box::pin(async move {
            let to = root.join(n.to_string());
            std::fs::create_dir(&to).unwrap();
            rig.queue.backup(&to.join("events.db")).await?;
            if n == 0 {
                keep_piece(rig, &rig.queue, "b").await;
                rig.clock.advance(HOUR);
                assert!(recorded(rig, records, &rig.queue).await.is_some());
            }
            log.back_up_state(&to.join("state.db")).await
        })
    });
    assert!(is_whole.await.unwrap());
    assert_eq!(n_made, 2);
    let pieces = async |n: &str| {
        let url = StoreUrl::Sqlite(folder.path().join(n).join("state.db"));
        let traffic = TrafficLog::open(&url).await.unwrap().unwrap();
        let ends = traffic.ends().await.unwrap();
        traffic.close().await;
        ends
    };
    assert_eq!((pieces("0").await, pieces("1").await), ((1, 1), (1, 2)));
    // A copy that is always overtaken is said to be.
    let overtaken = log.between_traffic_records(|_| {
        Box::pin(async move {
            keep_piece(rig, &rig.queue, "c").await;
            rig.clock.advance(HOUR);
            assert!(recorded(rig, records, &rig.queue).await.is_some());
            Ok(())
        })
    });
    assert!(!overtaken.await.unwrap());
}

/// Strangers with many networks cause a bounded number of events, which count all refusals.
#[tokio::test]
async fn refused_traffic_of_many_networks_has_few_events() {
    let rig = Rig::start().await;
    let (_, seq) = rig.events_after(0).await;
    let at = rig.clock.now();
    let refused = |network: u32| RefusedTraffic {
        reason: Reason::UnknownHost,
        network: Some(Ipv4Addr::from(network << 8).into()),
        count: 1,
        sampled: 1,
        first_at: at,
        last_at: at,
        sample: None,
    };
    let events = &rig.control.events;
    for round in 0..3 {
        let networks = round * 700..(round + 1) * 700;
        rig.edge.1.lock().unwrap().extend(networks.map(refused));
        events.count_refused_traffic();
        events.report_due_refusals(false).await.unwrap();
    }
    events.report_due_refusals(true).await.unwrap();
    let (reported, _) = rig.events_after(seq).await;
    assert!(reported.len() <= 32, "{}", reported.len());
    let counts = reported
        .iter()
        .map(|event| event["object"]["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 2_100);
}

/// A mark that cannot be read hides no other event, and its own only until the next report.
#[tokio::test]
async fn an_unreadable_mark_stops_no_report() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    let one = facts(&rig, "n1", false);
    let damage = async |kind: &str| {
        let mut marks = rig.store.all(kind).await.unwrap();
        assert!(!marks.is_empty(), "{kind}");
        for mut mark in marks.drain(..) {
            mark.body = "{".to_owned();
            let event = AuditEvent::Suppress { reason: "a test" };
            let changes = Changes::replace(mark, event);
            rig.store.commit(changes).await.unwrap();
        }
    };
    log.started(&one, 0).await.unwrap();
    damage("running_server").await;
    reported(&rig).await;
    log.started(&one, 0).await.unwrap();
    assert_eq!(reported(&rig).await, ["server_started"]);

    // Two keys expire. The mark of one cannot be read: it is reported again, and the other one as usual.
    let now = rig.clock.now();
    let mut ids = Vec::new();
    for days in [60, 90] {
        let made = rig.post("/api_keys", json!({})).await.body();
        let id = made["id"].as_str().unwrap().to_owned();
        let end = now.plus(days * DAY).whole_seconds().to_string();
        let path = format!("/api_keys/{id}/restrictions");
        rig.patch(&path, json!({"expires_at": end})).await.body();
        ids.push(id);
    }
    let look = async |days: u32| {
        log.watch_expiry(now.plus(days * DAY), Duration::ZERO)
            .await
            .unwrap();
    };
    look(31).await;
    damage("expiry_notice").await;
    reported(&rig).await;
    look(61).await;
    let expected = ["api_key_expiring", "api_key_expiring"];
    assert_eq!(reported(&rig).await, expected);
    look(61).await;
    assert_eq!(reported(&rig).await, Vec::<String>::new());
}

/// Nodes report one loss once, and again if one of them knows of more; another loss is another one, whatever the clock says.
#[tokio::test]
async fn losses_of_commits_are_reported_whatever_the_clock_says() {
    let rig = Rig::start().await;
    let log = rig.control.server_log();
    let (_, mut seq) = rig.events_after(0).await;
    let mut notice = async |node: &str, known: i64, found: i64| {
        let revision = |epoch, number| Revision { epoch, number };
        let loss = LostCommits {
            noticed_at: rig.clock.now(),
            known: revision(0, known),
            found: revision(1, found),
        };
        let more = log.event(&rig.admin.account, "commits_lost.v0", None, &json!({}));
        log.report_loss(&rig.admin.account, node, &loss, more.unwrap())
            .await
            .unwrap();
        let (events, last) = rig.events_after(seq).await;
        seq = last;
        let restored = events
            .iter()
            .filter(|event| event["event_type"] == "restored.v0");
        let known = restored.map(|event| event["object"]["known_revision"].as_i64().unwrap());
        known.collect::<Vec<_>>()
    };
    assert_eq!(notice("n1", 105, 100).await, [105]);
    assert_eq!(notice("n2", 105, 100).await, Vec::<i64>::new());
    assert_eq!(notice("n3", 104, 101).await, Vec::<i64>::new());
    // It knew of more.
    assert_eq!(notice("n4", 107, 101).await, [107]);
    assert_eq!(notice("n5", 107, 101).await, Vec::<i64>::new());
    // Another loss within minutes, of fewer commits.
    assert_eq!(notice("n2", 103, 102).await, [103]);
    assert_eq!(notice("n1", 103, 102).await, Vec::<i64>::new());
    // The clock is set back by an hour.
    rig.clock
        .set(rig.clock.now().minus(Duration::from_secs(3_600)));
    assert_eq!(notice("n9", 103, 102).await, [103]);
}
