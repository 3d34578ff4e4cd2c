//! Alert rules: each condition against what really is, and what follows: once, repeated, silenced, resolved, over restarts
//! and with two evaluators.

use std::collections::HashMap;
use std::time::Duration;

use culvert_base::Refusal;
use culvert_statistics::{Field, Frame, Key, Point, SubjectKind};
use culvert_store::{NodeNote, StatisticFrame};
use culvert_tunnel::server::EndReason;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agents::{Open, hello};
use super::uses::Database;
use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn settings(defaults: bool) -> AlertSettings {
    AlertSettings {
        defaults,
        interval: Duration::from_secs(10),
        is_shared: false,
    }
}

/// An evaluator as after a start, without default rules.
fn evaluator(rig: &Rig) -> AlertEvaluator {
    AlertEvaluator::new(rig.control.clone(), settings(false))
}

fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap().to_owned()
}

impl Rig {
    /// Makes a rule with this condition, and what `more` has.
    async fn alert_rule(&self, condition: Value, more: Value) -> String {
        let mut body = json!({"name": "A rule", "condition": condition});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let made = self.post("/alert_rules", body).await.body();
        text(&made, "id")
    }

    /// The events of alerts since the last call: kind, ID of the subject, and repetition. Each is valid by its schema.
    async fn alerted(&self) -> Vec<(String, String, u64)> {
        let seen = self.alert_events().await;
        let row = |event: Value| {
            let object = &event["object"];
            let kind = text(&event, "event_type");
            let kind = kind.strip_suffix(".v0").unwrap().to_owned();
            let subject = text(&object["subject"], "id");
            (kind, subject, object["repetition"].as_u64().unwrap())
        };
        seen.into_iter().map(row).collect()
    }

    async fn alert_events(&self) -> Vec<Value> {
        let seq = *self.last_seq.lock().unwrap();
        let (events, last) = self.events_after(seq).await;
        *self.last_seq.lock().unwrap() = last;
        let is_of_alert = |event: &Value| {
            let kind = event["event_type"].as_str().unwrap();
            kind.starts_with("alert_fired") || kind.starts_with("alert_resolved")
        };
        let events: Vec<Value> = events.into_iter().filter(is_of_alert).collect();
        for event in &events {
            assert_eq!(event["principal"], Value::Null);
        }
        events
    }

    async fn alerts(&self) -> Vec<Value> {
        let shown = self.get("/alerts").await.body();
        shown["alerts"].as_array().unwrap().clone()
    }

    /// Writes what the edge counted of an endpoint in the step before now.
    async fn counts(&self, endpoint: &str, point: Point) {
        let mut frame = Frame::default();
        let account = &self.admin.account;
        frame.add(Key::new(SubjectKind::Endpoint, account, endpoint), &point);
        let at = self.clock.now().unix_seconds();
        let frame = StatisticFrame {
            step: 10,
            at: at - at.rem_euclid(10) - 10,
            node: "a node".to_owned(),
            body: frame.encode(),
        };
        let written = self.queue.put_statistics(vec![frame], Vec::new(), None);
        written.await.unwrap();
    }

    async fn made(&self, collection: &str, n: u32) -> String {
        let sample = self.sample(collection, n).await;
        let made = self.post(&format!("/{collection}"), sample).await.body();
        text(&made, "id")
    }

    async fn key_until(&self, end: Timestamp) -> String {
        let made = self.post("/api_keys", json!({"description": "ends"})).await;
        let id = text(&made.body(), "id");
        let path = format!("/api_keys/{id}/restrictions");
        let body = json!({"expires_at": end.to_string()});
        self.patch(&path, body).await.body();
        id
    }
}

fn fired(id: &str) -> (String, String, u64) {
    ("alert_fired".to_owned(), id.to_owned(), 0)
}

fn resolved(id: &str) -> (String, String, u64) {
    ("alert_resolved".to_owned(), id.to_owned(), 0)
}

#[tokio::test]
async fn an_agent_that_left_is_alerted_after_the_time_and_resolved_when_it_returns() {
    let open = Open::start().await;
    let rig = &open.rig;
    let (credential, token) = open.credential(json!(["bind:*"])).await;
    open.credential(json!(["bind:*"])).await;
    let rule = json!({"type": "agent_offline", "for": "5m"});
    rig.alert_rule(rule, json!({})).await;
    let alerts = evaluator(rig);
    let session = open.authorize(hello(&token)).await.unwrap();
    alerts.tick().await;
    rig.clock.advance(10 * MINUTE);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [], "it is connected");

    open.end(session, EndReason::Closed).await;
    open.until_empty("tunnel_sessions").await;
    alerts.tick().await;
    rig.clock.advance(5 * MINUTE - Duration::from_secs(1));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [], "not for so long");
    // A restart does not begin the time again.
    let alerts = evaluator(rig);
    rig.clock.advance(Duration::from_secs(1));
    for _ in 0..3 {
        alerts.tick().await;
    }
    assert_eq!(rig.alerted().await, [fired(&credential)]);
    let [alert] = &rig.alerts().await[..] else {
        panic!("one alert");
    };
    assert_eq!(
        (alert["value"].as_f64(), alert["threshold"].as_f64()),
        (Some(300.0), Some(300.0))
    );
    assert_eq!(alert["subject"]["kind"], "tunnel_credential");
    assert_eq!(alert["state"], "firing");

    open.authorize(hello(&token)).await.unwrap();
    for alerts in [&alerts, &evaluator(rig)] {
        alerts.tick().await;
    }
    assert_eq!(rig.alerted().await, [resolved(&credential)]);
    assert_eq!(rig.alerts().await[0]["reason"], "recovered");
}

#[tokio::test]
async fn a_deleted_credential_ends_its_alert() {
    let open = Open::start().await;
    let rig = &open.rig;
    let (credential, token) = open.credential(json!(["bind:*"])).await;
    rig.alert_rule(json!({"type": "agent_offline", "for": "30s"}), json!({}))
        .await;
    let alerts = evaluator(rig);
    let session = open.authorize(hello(&token)).await.unwrap();
    alerts.tick().await;
    open.end(session, EndReason::Closed).await;
    open.until_empty("tunnel_sessions").await;
    alerts.tick().await;
    rig.clock.advance(MINUTE);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&credential)]);
    let path = format!("/credentials/{credential}");
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [resolved(&credential)]);
    assert_eq!(rig.alerts().await[0]["reason"], "subject_deleted");
    assert_eq!(rig.store.all("watched_agent").await.unwrap().len(), 0);
}

#[tokio::test]
async fn certificates_and_keys_are_alerted_before_their_end() {
    let rig = Rig::start().await;
    let end = rig.clock.now().plus(60 * DAY).whole_seconds();
    let mut body = rig.sample("ssh_host_certificates", 1).await;
    body["valid_until"] = json!(end.to_string());
    let made = rig.post("/ssh_host_certificates", body).await.body();
    let certificate = text(&made, "id");
    let key = rig.key_until(end).await;
    rig.made("api_keys", 3).await;
    rig.alert_rule(
        json!({"type": "certificate_expiring", "within": "14d"}),
        json!({}),
    )
    .await;
    rig.alert_rule(json!({"type": "key_expiring", "within": "7d"}), json!({}))
        .await;
    let alerts = evaluator(&rig);
    let at = async |before: Duration| {
        rig.clock.set(end.minus(before));
        for _ in 0..2 {
            alerts.tick().await;
        }
        rig.alerted().await
    };
    let second = Duration::from_secs(1);
    assert_eq!(at(14 * DAY + second).await, []);
    assert_eq!(at(14 * DAY).await, [fired(&certificate)]);
    assert_eq!(at(7 * DAY + second).await, []);
    assert_eq!(at(7 * DAY).await, [fired(&key)]);
    let shown = rig.alerts().await;
    assert_eq!(shown[0]["value"].as_f64(), Some(7.0 * 86_400.0));
    // A later end is a recovery.
    let path = format!("/api_keys/{key}/restrictions");
    let later = json!({"expires_at": end.plus(30 * DAY).to_string()});
    rig.patch(&path, later).await.body();
    assert_eq!(at(6 * DAY).await, [resolved(&key)]);
    assert_eq!(at(Duration::ZERO).await, []);
    rig.clock.set(end.plus(8 * DAY));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [resolved(&certificate)], "long ago");
}

/// A key that lives a day is not about to expire when it is made.
#[tokio::test]
async fn what_lives_shortly_is_watched_in_its_last_part() {
    let rig = Rig::start().await;
    let key = rig.key_until(rig.clock.now().plus(DAY)).await;
    rig.alert_rule(json!({"type": "key_expiring", "within": "7d"}), json!({}))
        .await;
    let alerts = evaluator(&rig);
    rig.clock.advance(DAY / 2 - Duration::from_secs(1));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, []);
    rig.clock.advance(Duration::from_secs(1));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);
}

/// The age of a token ends it like the end of its key, whichever comes first.
#[tokio::test]
async fn a_maximum_age_is_an_end_of_a_key() {
    let rig = Rig::start().await;
    let start = rig.clock.now();
    let key = rig.key_until(start.plus(300 * DAY)).await;
    let sooner = rig.key_until(start.plus(90 * DAY)).await;
    let ids = json!({"object_ids": [key, sooner]});
    let condition = json!({"type": "key_expiring", "within": "7d"});
    rig.alert_rule(condition, ids).await;
    let strict = json!({"maximum_age": "refuse", "maximum_age_days": 100});
    rig.patch("/api_key_rules", strict).await.body();
    let alerts = evaluator(&rig);
    let at = async |days: u32, less: u64| {
        rig.clock
            .set(start.plus(days * DAY).minus(Duration::from_secs(less)));
        for _ in 0..2 {
            alerts.tick().await;
        }
        rig.alerted().await
    };
    assert_eq!(at(83, 1).await, []);
    assert_eq!(at(83, 0).await, [fired(&sooner)]);
    assert_eq!(at(93, 1).await, []);
    assert_eq!(at(93, 0).await, [fired(&key)]);
    // A rule that only warns ends no token.
    let warns = json!({"maximum_age": "warn"});
    rig.patch("/api_key_rules", warns).await.body();
    assert_eq!(at(94, 0).await, [resolved(&key)]);
}

#[tokio::test]
async fn a_key_is_alerted_while_it_is_not_used() {
    let rig = Rig::start().await;
    let key = rig.made("api_keys", 1).await;
    let rule = json!({"type": "key_unused", "for": "30d"});
    rig.alert_rule(rule, json!({"object_ids": [key]})).await;
    let alerts = evaluator(&rig);
    rig.clock.advance(30 * DAY - Duration::from_secs(1));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, []);
    rig.clock.advance(Duration::from_secs(1));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);

    let mut caller = rig.admin.clone();
    caller.key_id.clone_from(&key);
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    rig.control.identity.note_key_use(&caller, address);
    let stop = CancellationToken::new();
    stop.cancel();
    rig.control.identity.clone().keep_key_uses(stop).await;
    rig.clock.advance(MINUTE);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [resolved(&key)]);
}

/// A destination really cannot be reached.
#[tokio::test]
async fn a_destination_is_alerted_while_it_accepts_nothing() {
    let rig = Rig::start().await;
    let delivery = rig.control.events.delivery.clone();
    // No resolver knows such a name (RFC 6761 6.4).
    let webhook = json!({"url": "https://hook.invalid/"});
    let body = json!({"format": "json", "target": {"webhook": webhook}});
    let made = rig.post("/event_destinations", body).await.body();
    let id = text(&made, "id");
    let body = json!({"destination_ids": [id], "sources": [{"type": "vault_created.v0"}]});
    rig.post("/event_subscriptions", body).await.body();
    let rule = json!({"type": "destination_failing", "for": "10m"});
    rig.alert_rule(rule, json!({})).await;
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    tasks.spawn(delivery.clone().run(cancel.clone()));
    let alerts = evaluator(&rig);
    alerts.tick().await;
    rig.made("vaults", 1).await;
    eventually("it is tried", async || {
        let health = delivery.health(&id);
        health.is_some_and(|health| health.last_error_at.is_some())
    })
    .await;
    alerts.tick().await;
    rig.clock.advance(10 * MINUTE - Duration::from_secs(1));
    alerts.tick().await;
    assert_eq!(rig.alerted().await, []);
    rig.clock.advance(Duration::from_secs(1));
    for _ in 0..2 {
        alerts.tick().await;
    }
    assert_eq!(rig.alerted().await, [fired(&id)]);
    assert_eq!(rig.alerts().await[0]["value"].as_f64(), Some(600.0));
    cancel.cancel();
    while tasks.join_next().await.is_some() {}

    // After a restart of the evaluation, nothing changes.
    evaluator(&rig).tick().await;
    assert_eq!(rig.alerted().await, []);
    assert_eq!(
        rig.delete(&format!("/event_destinations/{id}"))
            .await
            .code(),
        Some(5112)
    );
}

/// Nine of ten requests succeed, then eight.
#[tokio::test]
async fn errors_are_alerted_above_the_share_and_with_enough_requests() {
    let rig = Rig::start().await;
    let endpoint = rig.made("endpoints", 1).await;
    let quiet = rig.made("endpoints", 2).await;
    let condition = json!({"type": "error_rate", "above": 0.1, "over": "1m", "min_requests": 100});
    rig.alert_rule(condition, json!({})).await;
    let alerts = evaluator(&rig);
    let requests = |good: u64, bad: u64, lost: u64| {
        let mut point = Point::default();
        point.add(Field::Status2xx, good);
        point.add(Field::Status5xx, bad);
        point.add(Field::Aborted, lost);
        point
    };
    let step = async |point: Point| {
        rig.clock.advance(Duration::from_secs(10));
        rig.counts(&endpoint, point).await;
        for _ in 0..2 {
            alerts.tick().await;
        }
        rig.alerted().await
    };
    rig.clock.set(Timestamp::from_unix_seconds(1_800_000_000));
    rig.counts(&quiet, requests(0, 99, 0)).await;
    assert_eq!(
        step(requests(9, 90, 0)).await,
        [],
        "99 requests are too few"
    );
    rig.clock.advance(2 * MINUTE);
    assert_eq!(
        step(requests(90, 5, 5)).await,
        [],
        "a tenth is not above a tenth"
    );
    assert_eq!(step(requests(89, 6, 5)).await, [fired(&endpoint)]);
    let [alert] = &rig.alerts().await[..] else {
        panic!("one alert");
    };
    assert_eq!(alert["value"].as_f64(), Some(21.0 / 200.0));
    assert_eq!(alert["subject"]["name"], "https://e1.culvert.localhost");
    let summary = text(alert, "summary");
    assert!(
        summary.contains("10.5 %") && summary.contains("10.0 %"),
        "{summary}"
    );
    // Less traffic is no recovery; other traffic is.
    rig.clock.advance(MINUTE);
    assert_eq!(step(requests(0, 1, 0)).await, []);
    assert_eq!(step(requests(9, 0, 0)).await, [resolved(&endpoint)]);
}

/// Responses of the policy say nothing about the upstream, and the end of traffic is no recovery.
#[tokio::test]
async fn an_endpoint_is_without_upstream_until_a_request_reaches_one() {
    let rig = Rig::start().await;
    let endpoint = rig.made("endpoints", 1).await;
    let other = rig.made("endpoints", 2).await;
    let condition = json!({"type": "endpoint_without_upstream", "over": "1m", "min_requests": 3});
    rig.alert_rule(condition, json!({})).await;
    let alerts = evaluator(&rig);
    let counts = |values: &[(Field, u64)]| {
        let mut point = Point::default();
        for (field, count) in values {
            point.add(*field, *count);
        }
        point
    };
    let step = async |values: &[(Field, u64)]| {
        rig.clock.advance(Duration::from_secs(10));
        rig.counts(&endpoint, counts(values)).await;
        alerts.tick().await;
        rig.alerted().await
    };
    rig.clock.set(Timestamp::from_unix_seconds(1_800_000_000));
    let one_works = [(Field::Unreached, 9), (Field::Reached, 1)];
    rig.counts(&other, counts(&one_works)).await;
    let two = [(Field::Status4xx, 50), (Field::Unreached, 2)];
    assert_eq!(step(&two).await, []);
    assert_eq!(step(&[(Field::Unreached, 1)]).await, [fired(&endpoint)]);
    let [alert] = &rig.alerts().await[..] else {
        panic!("one alert");
    };
    let (value, threshold) = (alert["value"].as_f64(), alert["threshold"].as_f64());
    assert_eq!((value, threshold), (Some(3.0), Some(3.0)));
    rig.clock.advance(2 * MINUTE);
    assert_eq!(step(&[]).await, []);
    assert_eq!(step(&[(Field::Status4xx, 5)]).await, []);
    assert_eq!(
        step(&[(Field::Connections, 1)]).await,
        [resolved(&endpoint)]
    );
}

#[tokio::test]
async fn slow_requests_are_alerted_by_their_percentile() {
    let rig = Rig::start().await;
    let endpoint = rig.made("endpoints", 1).await;
    let rule = |quantile: &str| json!({"type": "latency", "quantile": quantile, "above_ms": 500, "over": "1m", "min_requests": 50});
    rig.alert_rule(rule("p99"), json!({})).await;
    rig.alert_rule(rule("p50"), json!({})).await;
    let alerts = evaluator(&rig);
    let mut point = Point::default();
    point.add(Field::Status2xx, 100);
    for n in 0..100 {
        point.record(Duration::from_millis(if n < 5 { 2_000 } else { 20 }));
    }
    rig.clock.advance(Duration::from_secs(10));
    rig.counts(&endpoint, point).await;
    alerts.tick().await;
    assert_eq!(
        rig.alerted().await,
        [fired(&endpoint)],
        "only the p99 is slow"
    );
    let value = rig.alerts().await[0]["value"].as_f64().unwrap();
    assert!((1_500.0..=2_500.0).contains(&value), "{value}");
    rig.clock.advance(2 * MINUTE);
    alerts.tick().await;
    assert_eq!(
        rig.alerted().await,
        [resolved(&endpoint)],
        "nothing is slow any more"
    );
}

#[tokio::test]
async fn refused_sign_ins_are_alerted_until_the_window_is_clear() {
    let rig = Rig::start().await;
    let account = rig.admin.account.clone();
    let rule = json!({"type": "sign_ins_failed", "count": 3, "over": "5m"});
    rig.alert_rule(rule, json!({})).await;
    let alerts = evaluator(&rig);
    alerts.tick().await;
    let refuse = async |n: u8| {
        let context = Arc::new(audit::context());
        let origin = Origin {
            address: std::net::Ipv4Addr::new(192, 0, n, 1).into(),
            context: Some(context),
        };
        let refusal = Refusal::of(code::API_KEY_INVALID);
        rig.control.note_failed_sign_in(&origin, &refusal);
        rig.control.kernel.report_due(true).await.unwrap();
    };
    refuse(1).await;
    refuse(2).await;
    alerts.tick().await;
    assert_eq!(rig.alerted().await, []);
    rig.clock.advance(2 * MINUTE);
    refuse(3).await;
    for _ in 0..2 {
        alerts.tick().await;
    }
    let events = rig.alert_events().await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["object"]["value"].as_f64(), Some(3.0));
    assert!(text(&events[0], "cause").starts_with("ev_"));
    // Two of them are old, and one is left.
    rig.clock.advance(4 * MINUTE);
    let restarted = evaluator(&rig);
    restarted.tick().await;
    assert_eq!(rig.alerted().await, []);
    rig.clock.advance(2 * MINUTE);
    restarted.tick().await;
    assert_eq!(rig.alerted().await, [resolved(&account)]);
}

/// Repetition, silence, the time that a condition must last, and the changes of a rule.
#[tokio::test]
async fn a_rule_repeats_is_silenced_and_ends_its_alerts() {
    let rig = Rig::start().await;
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let condition = json!({"type": "key_expiring", "within": "30d"});
    let more = json!({"for": "10m", "repeat_every": "1h", "severity": "critical"});
    let rule = rig.alert_rule(condition, more).await;
    let path = format!("/alert_rules/{rule}");
    let alerts = evaluator(&rig);
    let after = async |time: Duration| {
        rig.clock.advance(time);
        for _ in 0..2 {
            alerts.tick().await;
        }
        rig.alerted().await
    };
    let again = |n: u64| [("alert_fired".to_owned(), key.clone(), n)];
    assert_eq!(after(71 * DAY).await, []);
    assert_eq!(after(9 * MINUTE).await, [], "it must last");
    assert_eq!(after(MINUTE).await, again(0));
    let id = text(&rig.alerts().await[0], "id");
    assert_eq!(after(59 * MINUTE).await, []);
    assert_eq!(after(MINUTE).await, again(1));

    let until = rig.clock.now().plus(DAY).to_string();
    rig.patch(&path, json!({"silenced_until": until}))
        .await
        .body();
    assert_eq!(after(DAY - MINUTE).await, []);
    assert_eq!(after(MINUTE).await, again(2), "the silence is over");
    assert_eq!(text(&rig.alerts().await[0], "id"), id);
    assert_eq!(
        rig.control.alerts.by_severity().last(),
        Some(("critical", 1))
    );

    // What ends in a silence is sent afterwards.
    let until = rig.clock.now().plus(DAY).to_string();
    let body = json!({"silenced_until": until, "repeat_every": ""});
    rig.patch(&path, body).await.body();
    rig.patch(&path, json!({"enabled": false})).await.body();
    assert_eq!(after(MINUTE).await, []);
    assert_eq!(rig.alerts().await[0]["state"], "resolved");
    let [end] = &after(DAY).await[..] else {
        panic!("one event");
    };
    assert_eq!((&*end.0, &*end.1), ("alert_resolved", &*key));
    assert_eq!(rig.alerts().await[0]["reason"], "rule_disabled");

    // An alert that begins in a silence has no event yet.
    let until = rig.clock.now().plus(DAY).to_string();
    let body = json!({"silenced_until": until, "enabled": true, "for": "0s"});
    rig.patch(&path, body).await.body();
    assert_eq!(after(MINUTE).await, []);
    assert_eq!(rig.alerts().await[0]["state"], "firing");
    assert_eq!(rig.alerts().await[0]["sent_at"], Value::Null);
    rig.patch(&path, json!({"silenced_until": ""})).await.body();
    assert_eq!(after(MINUTE).await, again(0));
    let other = json!({"type": "key_unused", "for": "366d"});
    rig.patch(&path, json!({"condition": other})).await.body();
    assert_eq!(after(MINUTE).await, [resolved(&key)]);
    assert_eq!(rig.alerts().await[0]["reason"], "rule_changed");

    let condition = json!({"type": "key_expiring", "within": "30d"});
    rig.patch(&path, json!({"condition": condition}))
        .await
        .body();
    assert_eq!(after(MINUTE).await, again(0));
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    assert_eq!(after(MINUTE).await, [resolved(&key)]);
    assert_eq!(rig.alerts().await[0]["reason"], "rule_deleted");
    assert_eq!(rig.alerts().await.len(), 3);
    assert_eq!(after(8 * DAY).await, []);
    assert_eq!(rig.alerts().await.len(), 0, "old alerts are forgotten");
}

async fn two_evaluators_fire_once(rig: Rig) {
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let condition = json!({"type": "key_expiring", "within": "30d"});
    rig.alert_rule(condition, json!({"repeat_every": "1h"}))
        .await;
    let (one, two) = (
        AlertEvaluator::new(rig.control.clone(), settings(true)),
        AlertEvaluator::new(rig.control.clone(), settings(true)),
    );
    let both = async || {
        tokio::join!(one.tick(), two.tick());
        tokio::join!(two.tick(), one.tick());
        rig.alerted().await
    };
    assert_eq!(both().await, []);
    let rules = rig.get("/alert_rules").await.body();
    assert_eq!(rules["alert_rules"].as_array().unwrap().len(), 8, "{rules}");
    rig.clock.advance(80 * DAY);
    assert_eq!(both().await, [fired(&key)]);
    rig.clock.advance(Duration::from_secs(3_600));
    let repeated = both().await;
    assert_eq!(repeated, [("alert_fired".to_owned(), key.clone(), 1)]);
    assert_eq!(
        rig.delete(&format!("/api_keys/{key}")).await,
        Answered::NoContent
    );
    let [end] = &both().await[..] else {
        panic!("one event");
    };
    assert_eq!(end.0, "alert_resolved");
    rig.store.close().await;
    rig.queue.close().await;
}

#[tokio::test]
async fn two_evaluators_fire_once_on_sqlite() {
    two_evaluators_fire_once(Rig::start().await).await;
}

#[tokio::test]
async fn two_evaluators_fire_once_on_postgres() {
    let Some(database) = Database::new("alerts").await else {
        return;
    };
    two_evaluators_fire_once(Rig::on(Some(database.url.clone()), None, AGENTS).await).await;
    database.remove().await;
}

/// The first node by name evaluates whose passes go on. When they end, the next one continues.
#[tokio::test]
async fn one_node_evaluates_and_another_takes_over() {
    let rig = Rig::start().await;
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let condition = json!({"type": "key_expiring", "within": "30d"});
    rig.alert_rule(condition, json!({})).await;
    rig.clock.advance(80 * DAY);
    let note = async |node: &str, body: &str| {
        let note = NodeNote {
            node: node.to_owned(),
            at: rig.clock.now(),
            body: body.to_owned(),
        };
        rig.queue.note_node(note).await.unwrap();
    };
    let passes = r#"{"alert_passes":7}"#;
    for node in ["a first node", "b"] {
        note(node, passes).await;
    }
    let shared = AlertSettings {
        is_shared: true,
        ..settings(false)
    };
    let alerts = AlertEvaluator::new(rig.control.clone(), shared);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, []);
    // It goes on describing itself, and its evaluator hangs. Another one has none, such as that of an earlier version.
    rig.clock.advance(MINUTE);
    note("a first node", passes).await;
    note("a node of before", "{}").await;
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);
}

/// A node whose clock is wrong keeps its turn: the others see that its passes go on.
#[tokio::test]
async fn a_node_with_another_clock_keeps_its_turn() {
    let rig = Rig::start().await;
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let condition = json!({"type": "key_expiring", "within": "30d"});
    rig.alert_rule(condition, json!({})).await;
    let shared = AlertSettings {
        is_shared: true,
        ..settings(false)
    };
    let alerts = AlertEvaluator::new(rig.control.clone(), shared);
    rig.clock.advance(80 * DAY);
    let note = async |passes: u32| {
        let note = NodeNote {
            node: "a first node".to_owned(),
            at: rig.clock.now().plus(passes * DAY),
            body: json!({"alert_passes": passes}).to_string(),
        };
        rig.queue.note_node(note).await.unwrap();
    };
    note(0).await;
    alerts.tick().await;
    for passes in 1..4 {
        rig.clock.advance(MINUTE);
        note(passes).await;
        alerts.tick().await;
        assert_eq!(rig.alerted().await, []);
    }
    let alone = evaluator(&rig);
    alone.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);
}

/// An object that cannot be read, such as one of a later version, keeps its alert.
#[tokio::test]
async fn the_alert_of_an_unreadable_object_stays() {
    let Some(database) = Database::new("alerts_unreadable").await else {
        return;
    };
    let rig = Rig::on(Some(database.url.clone()), None, AGENTS).await;
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let condition = json!({"type": "key_expiring", "within": "30d"});
    rig.alert_rule(condition, json!({})).await;
    rig.clock.advance(80 * DAY);
    evaluator(&rig).tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);
    let body = |body: &str| format!("UPDATE culvert.document SET body = {body} WHERE id = '{key}'");
    database.run(&body("'[' || body || ']'")).await;
    evaluator(&rig).tick().await;
    assert_eq!(rig.alerted().await, []);
    database.run(&body("trim(body, '[]')")).await;
    evaluator(&rig).tick().await;
    assert_eq!(rig.alerted().await, []);
    rig.store.close().await;
    rig.queue.close().await;
    database.remove().await;
}

#[tokio::test]
async fn default_rules_are_made_once_and_switched_off_together() {
    let rig = Rig::start().await;
    let off = evaluator(&rig);
    off.tick().await;
    assert_eq!(
        rig.get("/alert_rules").await.body()["alert_rules"],
        json!([])
    );
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let on = AlertEvaluator::new(rig.control.clone(), settings(true));
    on.tick().await;
    let rules = rig.get("/alert_rules").await.body()["alert_rules"].clone();
    let mut kinds: Vec<String> = rules
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| text(&rule["condition"], "type"))
        .collect();
    kinds.sort_unstable();
    let expected = [
        "agent_offline",
        "certificate_expiring",
        "destination_failing",
        "endpoint_without_upstream",
        "error_rate",
        "key_expiring",
        "sign_ins_failed",
    ];
    assert_eq!(kinds, expected);
    let (events, _) = rig.events_after(0).await;
    let made = events
        .iter()
        .filter(|event| event["event_type"] == "alert_rule_created.v0");
    assert_eq!(made.count(), 7);
    // A deleted one does not come back.
    for rule in rules.as_array().unwrap() {
        if rule["condition"]["type"] == "error_rate" {
            let path = format!("/alert_rules/{}", text(rule, "id"));
            assert_eq!(rig.delete(&path).await, Answered::NoContent);
        }
    }
    let on = AlertEvaluator::new(rig.control.clone(), settings(true));
    rig.clock.advance(95 * DAY);
    on.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);
    let rules = rig.get("/alert_rules").await.body()["alert_rules"].clone();
    assert_eq!(rules.as_array().unwrap().len(), 6);
    off.tick().await;
    assert_eq!(rig.alerted().await, [resolved(&key)]);
}

/// Objects beyond the limit have one alert together.
#[tokio::test]
async fn open_alerts_are_limited_and_the_rest_is_counted() {
    let rig = Rig::start().await;
    for _ in 0..103 {
        rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    }
    rig.alert_rule(json!({"type": "key_expiring", "within": "30d"}), json!({}))
        .await;
    rig.clock.advance(80 * DAY);
    rig.alerted().await;
    let alerts = evaluator(&rig);
    for _ in 0..2 {
        alerts.tick().await;
    }
    let seen = rig.alerted().await;
    assert_eq!(seen.len(), 101);
    let others = rig
        .get("/alerts?filter=obj.state == 'firing'%26%26 obj.condition == 'key_expiring'")
        .await;
    let others = others.body()["alerts"].clone();
    let others = others.as_array().unwrap().iter();
    let others: Vec<_> = others
        .filter(|one| text(&one["subject"], "id").starts_with("others_"))
        .collect();
    assert_eq!(others.len(), 1);
    assert_eq!(others[0]["value"].as_f64(), Some(3.0));

    // The objects of another owner have their share, although the rule is full.
    let member = rig.user("member@x.example", Role::Member, true).await;
    let made = rig.call(&member, "POST", "/api_keys", json!({})).await;
    let key = text(&made.body(), "id");
    let end = rig.clock.now().plus(60 * DAY);
    let path = format!("/api_keys/{key}/restrictions");
    let body = json!({"expires_at": end.to_string()});
    rig.patch(&path, body).await.body();
    rig.clock.advance(40 * DAY);
    rig.alerted().await;
    alerts.tick().await;
    assert!(rig.alerted().await.contains(&fired(&key)));
}

/// A destination of a rule gets the alerts of this rule without a subscription, and nothing else.
#[tokio::test]
async fn destinations_of_a_rule_get_its_alerts_only() {
    let rig = Rig::start().await;
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let (ours, theirs) = (
        rig.made("event_destinations", 1).await,
        rig.made("event_destinations", 2).await,
    );
    let condition = json!({"type": "key_expiring", "within": "30d"});
    let rule = rig
        .alert_rule(condition.clone(), json!({"destination_ids": [ours]}))
        .await;
    rig.alert_rule(condition, json!({"destination_ids": [theirs]}))
        .await;
    let delivery = rig.control.events.delivery.clone();
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(rig.control.clone().run(cancel.clone()));
    tasks.spawn(delivery.clone().run(cancel.clone()));
    rig.clock.advance(80 * DAY);
    let alerts = evaluator(&rig);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key), fired(&key)]);
    let sent = |id: &str| delivery.health(id).map_or(0, |health| health.sent);
    let both = |n: u64| sent(&ours) == n && sent(&theirs) == n;
    eventually("both have theirs", async || both(1)).await;
    let rows = rig.store.outbox_after(0, 1_000).await.unwrap();
    for row in rows
        .iter()
        .filter(|row| row.event.kind.starts_with("alert_fired"))
    {
        let event: Value = serde_json::from_str(&row.event.body).unwrap();
        let is_ours = event["object"]["rule_id"] == rule;
        let to = if is_ours { &ours } else { &theirs };
        assert_eq!(row.audience, [(text(&event["object"], "id"), to.clone())]);
    }
    // It is in use, and its target is for admins to change.
    let path = format!("/event_destinations/{ours}");
    assert_eq!(rig.delete(&path).await.code(), Some(5112));
    assert_eq!(
        rig.delete(&format!("/alert_rules/{rule}")).await,
        Answered::NoContent
    );
    alerts.tick().await;
    eventually("the end arrives", async || sent(&ours) == 2).await;
    assert_eq!(sent(&theirs), 1);
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
}

/// The destination that got the beginning of an alert gets its end too, and the new one of the rule gets another alert.
#[tokio::test]
async fn a_changed_destination_ends_the_alert_at_the_former_one() {
    let rig = Rig::start().await;
    let key = rig.key_until(rig.clock.now().plus(100 * DAY)).await;
    let (former, new) = (
        rig.made("event_destinations", 1).await,
        rig.made("event_destinations", 2).await,
    );
    let condition = json!({"type": "key_expiring", "within": "30d"});
    let rule = rig
        .alert_rule(condition, json!({"destination_ids": [former]}))
        .await;
    let alerts = evaluator(&rig);
    rig.clock.advance(80 * DAY);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&key)]);
    let path = format!("/alert_rules/{rule}");
    rig.patch(&path, json!({"destination_ids": [new]}))
        .await
        .body();
    for _ in 0..3 {
        alerts.tick().await;
    }
    assert_eq!(rig.alerted().await, [resolved(&key), fired(&key)]);
    let rows = rig.store.outbox_after(0, 1_000).await.unwrap();
    let rows = rows.iter().filter(|row| {
        let kind = &row.event.kind;
        kind.starts_with("alert_fired") || kind.starts_with("alert_resolved")
    });
    let to: Vec<&str> = rows.map(|row| &*row.audience[0].1).collect();
    assert_eq!(to, [&*former, &*former, &*new]);
}

/// An end that a silence withheld comes before what began since.
#[tokio::test]
async fn the_last_word_after_a_silence_is_the_state() {
    let rig = Rig::start().await;
    let end = |days: u32| rig.clock.now().plus(days * DAY);
    let (one, other) = (rig.key_until(end(100)).await, rig.key_until(end(115)).await);
    let condition = json!({"type": "key_expiring", "within": "30d"});
    let rule = rig.alert_rule(condition, json!({})).await;
    let path = format!("/alert_rules/{rule}");
    let alerts = evaluator(&rig);
    rig.clock.advance(80 * DAY);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&one)]);
    let until = end(10).to_string();
    rig.patch(&path, json!({"silenced_until": until}))
        .await
        .body();
    rig.delete(&format!("/api_keys/{one}")).await;
    alerts.tick().await;
    rig.clock.advance(11 * DAY);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [resolved(&one), fired(&other)]);
}

/// Objects that are made and deleted again and again make few events.
#[tokio::test]
async fn new_alerts_of_an_owner_are_limited_by_the_hour() {
    let rig = Rig::start().await;
    rig.alert_rule(json!({"type": "key_expiring", "within": "30d"}), json!({}))
        .await;
    let alerts = evaluator(&rig);
    let mut n_fired = 0;
    for _ in 0..4 {
        let mut keys = Vec::new();
        for _ in 0..40 {
            keys.push(rig.key_until(rig.clock.now().plus(MINUTE)).await);
        }
        rig.clock.advance(MINUTE);
        alerts.tick().await;
        for key in keys {
            rig.delete(&format!("/api_keys/{key}")).await;
        }
        alerts.tick().await;
        let alerted = rig.alerted().await;
        let fired = alerted.iter().filter(|(kind, ..)| kind == "alert_fired");
        n_fired += fired.filter(|(_, id, _)| !id.starts_with("others")).count();
    }
    assert_eq!(n_fired, 100);
}

/// Nor does the alert about the objects beyond the limit come and go all the time.
#[tokio::test]
async fn the_alert_about_further_objects_is_limited_by_the_hour() {
    let rig = Rig::start().await;
    rig.alert_rule(json!({"type": "key_expiring", "within": "30d"}), json!({}))
        .await;
    let alerts = evaluator(&rig);
    let mut n_fired = 0;
    for n_keys in std::iter::once(101).chain([1; 14]) {
        let mut keys = Vec::new();
        for _ in 0..n_keys {
            keys.push(rig.key_until(rig.clock.now().plus(MINUTE)).await);
        }
        rig.clock.advance(MINUTE);
        alerts.tick().await;
        for key in keys {
            rig.delete(&format!("/api_keys/{key}")).await;
        }
        alerts.tick().await;
        let alerted = rig.alerted().await;
        let fired = alerted.iter().filter(|(kind, ..)| kind == "alert_fired");
        n_fired += fired.filter(|(_, id, _)| id.starts_with("others")).count();
    }
    assert_eq!(n_fired, 10);
    // In the next hour it begins again.
    rig.clock.advance(60 * MINUTE);
    rig.key_until(rig.clock.now().plus(MINUTE)).await;
    rig.clock.advance(MINUTE);
    alerts.tick().await;
    assert_eq!(rig.alerted().await.len(), 1);
}

/// Many alerts of many rules make the count of none forgotten.
#[tokio::test]
async fn alerts_of_many_rules_are_limited_by_the_hour_too() {
    let rig = Rig::start().await;
    for _ in 0..11 {
        rig.alert_rule(json!({"type": "key_expiring", "within": "30d"}), json!({}))
            .await;
    }
    let alerts = evaluator(&rig);
    let mut fired: HashMap<String, usize> = HashMap::new();
    for _ in 0..2 {
        let mut keys = Vec::new();
        for _ in 0..100 {
            keys.push(rig.key_until(rig.clock.now().plus(MINUTE)).await);
        }
        rig.clock.advance(MINUTE);
        alerts.tick().await;
        for key in keys {
            rig.delete(&format!("/api_keys/{key}")).await;
        }
        for _ in 0..3 {
            alerts.tick().await;
        }
        loop {
            let seq = *rig.last_seq.lock().unwrap();
            for event in rig.alert_events().await {
                let object = &event["object"];
                let is_one = !text(&object["subject"], "id").starts_with("others");
                if object["state"] == "firing" && is_one {
                    *fired.entry(text(object, "rule_id")).or_default() += 1;
                }
            }
            if *rig.last_seq.lock().unwrap() == seq {
                break;
            }
        }
    }
    assert_eq!(fired.len(), 11);
    assert!(fired.values().all(|n| *n <= 100), "{fired:?}");
}

/// An alert is seen by the owner of its object and by admins; rules, by admins.
#[tokio::test]
async fn an_alert_is_seen_by_the_owner_of_its_object() {
    let rig = Rig::start().await;
    let owner = rig.user("owner@x.example", Role::Member, true).await;
    let other = rig.user("other@x.example", Role::Member, true).await;
    let stranger = rig.stranger().await;
    let made = rig.call(&owner, "POST", "/api_keys", json!({})).await;
    let key = text(&made.body(), "id");
    let rule = json!({"type": "key_unused", "for": "1h"});
    let rule = rig.alert_rule(rule, json!({"object_ids": [key]})).await;
    rig.clock.advance(DAY);
    evaluator(&rig).tick().await;
    let id = text(&rig.alerts().await[0], "id");
    for (caller, sees_alert, sees_rule) in [
        (&rig.admin, true, true),
        (&owner, true, false),
        (&other, false, false),
        (&stranger, false, false),
    ] {
        let path = format!("/alerts/{id}");
        let one = rig.call(caller, "GET", &path, Value::Null).await;
        assert_eq!(!one.is_absent(), sees_alert, "{}", caller.subject);
        let list = rig.call(caller, "GET", "/alerts", Value::Null).await.body();
        assert_eq!(
            list["alerts"].as_array().unwrap().len(),
            usize::from(sees_alert)
        );
        let path = format!("/alert_rules/{rule}");
        let one = rig.call(caller, "GET", &path, Value::Null).await;
        assert_eq!(!one.is_absent(), sees_rule, "{}", caller.subject);
        if !sees_rule {
            let silence = json!({"enabled": false});
            let refused = rig.call(caller, "PATCH", &path, silence).await;
            assert!(refused.is_absent(), "{refused:?}");
        }
    }
}

/// A rule that cannot be evaluated says why, and its alerts stay.
#[tokio::test]
async fn a_rule_that_cannot_be_evaluated_changes_nothing_and_says_so() {
    let rig = Rig::start().await;
    let endpoint = rig.made("endpoints", 1).await;
    let condition = json!({"type": "error_rate", "above": 0.1, "over": "1m", "min_requests": 1});
    let rule = rig.alert_rule(condition, json!({})).await;
    let mut point = Point::default();
    point.add(Field::Status5xx, 5);
    rig.clock.advance(Duration::from_secs(10));
    rig.counts(&endpoint, point).await;
    let alerts = evaluator(&rig);
    alerts.tick().await;
    assert_eq!(rig.alerted().await, [fired(&endpoint)]);
    rig.queue.close().await;
    rig.clock.advance(10 * MINUTE);
    for _ in 0..2 {
        alerts.tick().await;
    }
    assert_eq!(rig.alerted().await, []);
    assert_eq!(rig.alerts().await[0]["state"], "firing");
    let shown = rig.get(&format!("/alert_rules/{rule}")).await.body();
    let error = text(&shown, "error");
    assert!(error.contains("statistics"), "{error}");
    assert!(rig.control.alerts.errors.get() >= 2);
}

#[tokio::test]
pub(super) async fn senseless_rules_are_refused() {
    let rig = Rig::start().await;
    let endpoint = rig.made("endpoints", 1).await;
    let condition = json!({"type": "key_expiring", "within": "7d"});
    let good = json!({"name": "A rule", "condition": condition});
    for condition in [
        json!({"type": "weather"}),
        json!({"type": "key_expiring"}),
        json!({"type": "key_expiring", "within": "7"}),
        json!({"type": "key_expiring", "within": "1m"}),
        json!({"type": "key_expiring", "within": "367d"}),
        json!({"type": "key_expiring", "within": "7d", "for": "1h"}),
        json!({"type": "agent_offline", "for": "1s"}),
        json!({"type": "destination_failing", "within": "7d"}),
        json!({"type": "error_rate", "above": 0.0, "over": "5m"}),
        json!({"type": "error_rate", "above": 1.0, "over": "5m"}),
        json!({"type": "error_rate", "above": -0.5, "over": "5m"}),
        json!({"type": "error_rate", "above": 0.1, "over": "2h"}),
        json!({"type": "error_rate", "above": 0.1, "over": "5m", "min_requests": 0}),
        json!({"type": "latency", "quantile": "p90", "above_ms": 5, "over": "5m"}),
        json!({"type": "latency", "quantile": "p99", "above_ms": 0, "over": "5m"}),
        json!({"type": "sign_ins_failed", "count": 0, "over": "5m"}),
    ] {
        let body = json!({"name": "A rule", "condition": condition});
        let refused = rig.post("/alert_rules", body.clone()).await;
        assert_eq!(refused.code(), Some(5412), "{body}: {refused:?}");
    }
    let absent = format!("ak_{}", "0".repeat(27));
    let many: Vec<String> = (0..101).map(|n| format!("ak_{n}")).collect();
    for (field, value, code) in [
        ("name", json!(" "), 215),
        ("name", json!("x".repeat(256)), 215),
        ("condition", json!("key_expiring"), 215),
        (
            "condition",
            json!({"type": "key_expiring", "until": "7d"}),
            214,
        ),
        ("object_ids", json!([endpoint]), 5412),
        ("object_ids", json!([absent]), 5412),
        ("object_ids", json!(["x"]), 5412),
        ("object_ids", json!(many), 5412),
        ("severity", json!("worst"), 215),
        ("for", json!("31d"), 215),
        ("repeat_every", json!("1s"), 215),
        ("silenced_until", json!("tomorrow"), 241),
        (
            "destination_ids",
            json!([format!("ed_{}", "0".repeat(27))]),
            5103,
        ),
        ("is_default", json!(true), 214),
        ("error", json!("x"), 214),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let refused = rig.post("/alert_rules", body).await;
        assert_eq!(refused.code(), Some(code), "{field}: {refused:?}");
    }
    let member = rig.user("m@x.example", Role::Member, true).await;
    let refused = rig
        .call(&member, "POST", "/alert_rules", good.clone())
        .await;
    assert_eq!(refused.code(), Some(630));
    for _ in 0..50 {
        rig.post("/alert_rules", good.clone()).await.body();
    }
    assert_eq!(rig.post("/alert_rules", good).await.code(), Some(5411));
}
