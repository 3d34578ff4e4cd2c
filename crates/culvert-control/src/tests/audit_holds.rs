//! Holds of audit events: what retention keeps because of them, how they end, and who may have them.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use culvert_delivery::PruningHolds;

use super::uses::Database;
use super::*;
use crate::audit_hold::retention::{Cost, HeldEvents, end_holds};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Control and delivery that run, so that events are copied.
struct Running {
    rig: Rig,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    fn of(rig: Rig) -> Self {
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(rig.control.clone().run(cancel.clone()));
        let delivery = rig.control.events.delivery.clone();
        tasks.spawn(delivery.run(cancel.clone()));
        Self { rig, cancel, tasks }
    }

    async fn stop(mut self) -> Rig {
        self.cancel.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.rig
    }

    /// Removes what retention may remove. Returns the position of the last removed event.
    async fn prune(&self) -> i64 {
        let delivery = &self.rig.control.events.delivery;
        let log = self.rig.store.audit_log();
        // Deletions are announced at most once an hour.
        self.rig.clock.advance(Duration::from_secs(3_600));
        eventually("all is copied", async || {
            let last = log.extent().await.unwrap().last;
            delivery.audit_copied_to().await.unwrap() == last
        })
        .await;
        while delivery.prune_audit_log().await.unwrap() > 0 {}
        log.verify(None).await.unwrap();
        log.extent().await.unwrap().anchor.seq
    }

    /// The position of the event of a vault's creation.
    async fn position(&self, vault: &str) -> i64 {
        let rows = self.rig.store.outbox_after(0, 1000).await.unwrap();
        let is_of = |body: &str| {
            let event: Value = serde_json::from_str(body).unwrap();
            event["event_type"] == "vault_created.v0" && event["object"]["name"] == vault
        };
        rows.iter().find(|row| is_of(&row.event.body)).unwrap().seq
    }

    async fn hold(&self, body: Value) -> String {
        let made = self.rig.post("/audit_holds", body).await.body();
        made["id"].as_str().unwrap().to_owned()
    }

    /// The events of holds since the last call.
    async fn reported(&self) -> Vec<Value> {
        let seq = *self.rig.last_seq.lock().unwrap();
        let (events, last) = self.rig.events_after(seq).await;
        *self.rig.last_seq.lock().unwrap() = last;
        let is_of_hold = |event: &Value| {
            event["event_type"]
                .as_str()
                .unwrap()
                .starts_with("audit_hold_")
        };
        events.into_iter().filter(is_of_hold).collect()
    }
}

/// Whatever the retention says, what a hold selects stays, until the hold is deleted or its end is reported.
async fn holds_keep_events(rig: Rig) {
    let running = Running::of(rig);
    let rig = &running.rig;
    for n in 0..9 {
        let made = rig.post("/vaults", json!({"name": format!("v{n}")})).await;
        made.body();
    }
    let (third, sixth) = (running.position("v3").await, running.position("v6").await);
    let of_third = json!({"filter": "event_type == 'vault_created.v0' && ev.name == 'v3'", "reason": "case 1"});
    let of_third = running.hold(of_third).await;
    let until = rig.clock.now().plus(400 * DAY);
    let of_sixth =
        json!({"filter": "ev.name == 'v6'", "reason": "case 2", "until": until.to_string()});
    let of_sixth = running.hold(of_sixth).await;
    // Of no event, and of the events of another account.
    running
        .hold(json!({"filter": "ev.name == 'none'", "reason": "case 3"}))
        .await;
    let stranger = rig.stranger().await;
    let all = json!({"filter": "true", "reason": "theirs"});
    rig.call(&stranger, "POST", "/audit_holds", all)
        .await
        .body();
    assert_eq!(running.prune().await, 0, "nothing is old");

    rig.clock.advance(366 * DAY);
    assert_eq!(running.prune().await, third - 1);
    // A restart of the evaluation, and a change that releases nothing.
    let path = format!("/audit_holds/{of_third}");
    rig.patch(&path, json!({"reason": "case 1, second instance"}))
        .await
        .body();
    assert_eq!(running.prune().await, third - 1);
    running.reported().await;

    // Deleted, it ends, and the next one keeps its own.
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    let [deleted] = &running.reported().await[..] else {
        panic!("one event");
    };
    assert_eq!(deleted["event_type"], "audit_hold_deleted.v0");
    assert_eq!(deleted["object"]["id"], of_third);
    assert_eq!(running.prune().await, sixth - 1);

    // Its time is over. It keeps events until that is in the log.
    rig.clock.advance(35 * DAY);
    assert!(rig.clock.now() > until);
    assert_eq!(running.prune().await, sixth - 1);
    let log = rig.control.server_log();
    end_holds(&log, until.minus(Duration::from_secs(1)))
        .await
        .unwrap();
    assert_eq!(running.reported().await, Vec::<Value>::new());
    for _ in 0..2 {
        end_holds(&log, rig.clock.now()).await.unwrap();
    }
    let [ended] = &running.reported().await[..] else {
        panic!("one event");
    };
    assert_eq!(ended["event_type"], "audit_hold_ended.v0");
    assert_eq!(ended["principal"], Value::Null);
    assert_eq!(ended["object"]["id"], of_sixth);
    assert_eq!(ended["object"]["reason"], "case 2");
    assert!(running.prune().await >= sixth);
    let path = format!("/audit_holds/{of_sixth}");
    let shown = rig.get(&path).await.body();
    assert!(shown["ended_at"].is_string(), "{shown}");
    // It does not begin again, since events are gone.
    let later = rig.clock.now().plus(DAY).to_string();
    for until in [later, String::new()] {
        let again = rig.patch(&path, json!({ "until": until })).await;
        assert_eq!(again.code(), Some(215));
    }
    rig.patch(&path, json!({"reason": "over"})).await.body();
    let rig = running.stop().await;
    rig.store.close().await;
    rig.queue.close().await;
}

#[tokio::test]
async fn holds_keep_events_on_sqlite() {
    holds_keep_events(Rig::start().await).await;
}

#[tokio::test]
async fn holds_keep_events_on_postgres() {
    let Some(database) = Database::new("holds").await else {
        return;
    };
    holds_keep_events(Rig::on(Some(database.url.clone()), None, AGENTS).await).await;
    database.remove().await;
}

/// What cannot be evaluated is kept.
#[tokio::test]
async fn a_hold_that_cannot_be_evaluated_keeps_everything() {
    let running = Running::of(Rig::start().await);
    let rig = &running.rig;
    rig.post("/vaults", json!({"name": "v0"})).await.body();
    let hold = running
        .hold(json!({"filter": "event_id == ''", "reason": "case"}))
        .await;
    let whole = rig.store.get("audit_hold", &hold).await.unwrap().unwrap();
    rig.clock.advance(366 * DAY);
    let put = async |body: &str| {
        let found = rig.store.get("audit_hold", &hold).await.unwrap().unwrap();
        let document = Document {
            body: body.to_owned(),
            ..found
        };
        let reported = AuditEvent::Suppress { reason: "a test" };
        let changes = Changes::replace(document, reported);
        rig.store.commit(changes).await.unwrap();
    };
    for damaged in [
        // A field that this version does not know, and a document of a later one.
        whole.body.replace("event_id == ''", "ev.of_later == 1"),
        whole.body.replace("event_id == ''", "("),
        whole.body.replace("\"format\":1", "\"format\":2"),
        "{}".to_owned(),
    ] {
        assert_ne!(damaged, whole.body);
        put(&damaged).await;
        assert_eq!(running.prune().await, 0, "{damaged}");
        // Its end is not reported, and others are.
        let log = rig.control.server_log();
        end_holds(&log, rig.clock.now().plus(900 * DAY))
            .await
            .unwrap();
        assert_eq!(running.prune().await, 0, "{damaged}");
    }
    put(&whole.body).await;
    assert_eq!(
        rig.delete(&format!("/audit_holds/{hold}")).await,
        Answered::NoContent
    );
    assert!(running.prune().await > 0);
    running.stop().await;
}

/// One call that reaches its limit keeps the rest, and the next one goes on.
#[tokio::test]
async fn dear_filters_do_not_stop_the_retention() {
    let running = Running::of(Rig::start().await);
    let rig = &running.rig;
    for n in 0..9 {
        let made = rig.post("/vaults", json!({"name": format!("v{n}")})).await;
        made.body();
    }
    let numbers = |n: usize| {
        let numbers: Vec<_> = (0..n).map(|n| n.to_string()).collect();
        format!("[{}]", numbers.join(","))
    };
    let all = numbers(20);
    let dear = format!("{all}.all(a, {all}.exists(b, a == b)) && event_id == ''");
    for n in 0..3 {
        running
            .hold(json!({"filter": dear, "reason": format!("case {n}")}))
            .await;
    }
    let last = rig.store.audit_log().extent().await.unwrap().last;
    let one = Cost {
        evaluations: 4,
        ..Cost::MAX
    };
    for max in [
        one,
        Cost {
            units: 1,
            ..Cost::MAX
        },
        Cost {
            bytes: 1,
            ..Cost::MAX
        },
    ] {
        let holds = HeldEvents::new(rig.store.clone(), max);
        let mut position = 0;
        while position < last {
            let released = holds.released(1, last).await.unwrap();
            assert!(!released.is_held);
            assert!((position + 1..=position + 2).contains(&released.up_to));
            position = released.up_to;
        }
    }
    rig.clock.advance(366 * DAY);
    assert_eq!(running.prune().await, last);

    running.stop().await;
}

/// Filters, times and reasons that make no sense, each with its code.
#[tokio::test]
pub(super) async fn senseless_holds_are_refused() {
    let rig = Rig::start().await;
    let good = json!({"filter": "true", "reason": "case"});
    let past = rig.clock.now().to_string();
    let long = format!("event_id == '{}'", "x".repeat(4096));
    let deep = format!("{}true{}", "(".repeat(200), ")".repeat(200));
    for (field, value, code) in [
        ("filter", json!(""), 5404),
        ("filter", json!("event_id"), 5404),
        ("filter", json!("event_id =="), 5404),
        ("filter", json!("ev.nothing == 1"), 5405),
        // What only traffic events have.
        ("filter", json!("ev.http.response.status_code == 1"), 5405),
        ("filter", json!("endpoint_id == 'ep_1'"), 5404),
        ("filter", json!(long), 5404),
        ("filter", json!(deep), 5404),
        ("filter", json!("ev.name.matches('(')"), 5404),
        ("filter", json!("\0"), 5404),
        ("filter", json!(7), 215),
        ("until", json!("tomorrow"), 241),
        ("until", json!(past), 215),
        ("reason", json!(""), 215),
        ("reason", json!(" \n"), 215),
        ("reason", json!("\u{200b} \u{2060}"), 215),
        ("reason", json!("x".repeat(1025)), 215),
        ("ended_at", json!(past), 214),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let refused = rig.post("/audit_holds", body.clone()).await;
        assert_eq!(refused.code(), Some(code), "{field}: {refused:?}");
    }
    let made = rig.post("/audit_holds", good.clone()).await.body();
    let path = format!("/audit_holds/{}", made["id"].as_str().unwrap());
    for (body, code) in [
        (json!({"filter": "false"}), 214),
        (json!({"until": past}), 215),
        (json!({"reason": ""}), 215),
    ] {
        assert_eq!(rig.patch(&path, body).await.code(), Some(code));
    }
    // The limit.
    for _ in 1..100 {
        rig.post("/audit_holds", good.clone()).await.body();
    }
    assert_eq!(
        rig.post("/audit_holds", good.clone()).await.code(),
        Some(5410)
    );
    assert_eq!(rig.delete(&path).await, Answered::NoContent);
    rig.post("/audit_holds", good).await.body();
}

/// Others neither see nor make them, nor read their events.
#[tokio::test]
async fn holds_are_of_admins_alone() {
    let rig = Rig::start().await;
    let good = json!({"filter": "true", "reason": "about someone"});
    let made = rig.post("/audit_holds", good.clone()).await.body();
    let path = format!("/audit_holds/{}", made["id"].as_str().unwrap());
    let member = rig.user("member@x.example", Role::Member, true).await;
    for (method, body) in [
        ("GET", Value::Null),
        ("PATCH", json!({"reason": "mine"})),
        ("DELETE", Value::Null),
    ] {
        let answered = rig.call(&member, method, &path, body).await;
        assert!(answered.is_absent(), "{method} {answered:?}");
    }
    let answered = rig.call(&member, "POST", "/audit_holds", good).await;
    assert_eq!(answered.code(), Some(630));
    let list = rig.call(&member, "GET", "/audit_holds", Value::Null).await;
    assert_eq!(list.body()["audit_holds"], json!([]));
    for kind in ["created", "updated", "deleted", "ended"] {
        let kind = format!("audit_hold_{kind}.v0");
        assert!(event_kinds::is_private(&kind), "{kind}");
    }
}
