//! Rights that end at a time, while the clock is set forward and back: each kind of right with each pair of steps.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::rights::Cast;
use super::*;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
/// By how many seconds the clock is set, and in which direction.
const STEPS: [(bool, u64); 6] = [
    (true, MINUTE),
    (false, MINUTE),
    (true, HOUR),
    (false, HOUR),
    (true, 400 * 24 * HOUR),
    (false, 400 * 24 * HOUR),
];
/// The configuration is compiled without a commit at least this often. Rights end earlier.
const PASS_EVERY: Duration = Duration::from_secs(60);

fn step(rig: &Rig, (is_forward, seconds): (bool, u64)) {
    let (now, by) = (rig.clock.now(), Duration::from_secs(seconds));
    rig.clock.set(match is_forward {
        true => now.plus(by),
        false => now.minus(by),
    });
}

/// Whether a right that ends at this time is in force.
fn is_live(rig: &Rig, end: Timestamp) -> bool {
    rig.clock.now() < end
}

#[tokio::test]
async fn grants_end_by_the_clock_that_was_set() {
    let cast = Cast::start().await;
    let rig = &cast.rig;
    let (owner, other) = (&cast.callers[1], &cast.callers[2]);
    let cancel = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(Arc::clone(&rig.control).run(cancel.clone()));
    let id = |made: Value| made["id"].as_str().unwrap().to_owned();
    let to = json!({"url": "http://a.internal", "upstream_url": "http://127.0.0.1:9"});
    let to = id(rig.call(owner, "POST", "/endpoints", to).await.body());
    let computed = json!({"on_http_request": [{"actions": [{
        "type": "forward-internal", "config": {"url": "http://${req.headers['x'][0]}.internal"}}]}]});
    let from =
        json!({"url": "https://from.culvert.localhost", "traffic_policy": computed.to_string()});
    let from = id(rig.call(other, "POST", "/endpoints", from).await.body());
    let start = rig.clock.now();
    for first in STEPS {
        for second in STEPS {
            rig.clock.set(start);
            let end = start.plus(Duration::from_secs(30 * MINUTE));
            let grant = json!({"object_id": to, "grantee": from, "expires_at": end.to_string()});
            let grant = id(rig.call(owner, "POST", "/grants", grant).await.body());
            let follows = async |case: &str| {
                let may = is_live(rig, end);
                let follows = eventually(case, async || {
                    let snapshot = rig.edge.0.borrow();
                    let one = |id: &str| snapshot.as_ref()?.endpoints().find(|one| one.id == id);
                    let (Some(from), Some(to)) = (one(&from), one(&to)) else {
                        return false;
                    };
                    let snapshot = snapshot.as_ref().unwrap();
                    snapshot.may_forward(from, "a.internal", to) == may
                });
                let soon = tokio::time::timeout(PASS_EVERY / 2, follows).await;
                soon.unwrap_or_else(|_| panic!("{case}: not soon"));
            };
            follows("given").await;
            for (nth, by) in [first, second].into_iter().enumerate() {
                step(rig, by);
                follows(&format!("{first:?} {second:?} {nth}")).await;
            }
            rig.clock.set(start);
            let path = format!("/grants/{grant}?force=true");
            assert_eq!(rig.delete(&path).await, Answered::NoContent);
        }
    }
    cancel.cancel();
    running.join_all().await;
}

#[tokio::test]
async fn api_keys_end_by_the_clock_that_was_set() {
    let rig = Rig::start().await;
    let start = rig.clock.now();
    for first in STEPS {
        for second in STEPS {
            rig.clock.set(start);
            let end = start.plus(Duration::from_secs(30 * MINUTE));
            let made = rig.post("/api_keys", json!({})).await.body();
            let path = format!("/api_keys/{}/restrictions", made["id"].as_str().unwrap());
            let body = json!({"expires_at": end.to_string()});
            rig.patch(&path, body).await.body();
            let rotated = rig.post("/api_keys", json!({})).await.body();
            let path = format!("/api_keys/{}/rotate", rotated["id"].as_str().unwrap());
            let new = rig
                .post(&path, json!({"overlap": 30 * MINUTE}))
                .await
                .body();
            let token = |made: &Value| made["token"].as_str().unwrap().to_owned();
            for by in [first, second] {
                step(&rig, by);
                let case = format!("{first:?} {second:?}");
                let is_live = is_live(&rig, end);
                for one in [&made, &rotated] {
                    let seen = rig.authenticate(&token(one)).await;
                    assert_eq!(seen.is_ok(), is_live, "{case}");
                }
                // What outlives the call that started it has no more rights.
                if let Ok(caller) = rig.authenticate(&token(&made)).await {
                    let now = rig.clock.now();
                    rig.clock.set(end);
                    let address = "192.0.2.1".parse().unwrap();
                    let again = rig.control.identity.caller_again(&caller, address).await;
                    assert!(again.is_err(), "{case}");
                    rig.clock.set(now);
                }
                assert!(rig.authenticate(&token(&new)).await.is_ok(), "{case}");
            }
        }
    }
}

/// The age of a token, and reminders of it, follow the clock that was set; no step makes an old token young when the clock is right again.
#[tokio::test]
async fn tokens_age_by_the_clock_that_was_set() {
    let rig = Rig::start().await;
    let start = rig.clock.now();
    let strict = json!({"maximum_age": "refuse", "maximum_age_days": 1});
    rig.patch("/api_key_rules?force=true", strict).await.body();
    let made = rig.post("/api_keys", json!({})).await.body();
    let token = made["token"].as_str().unwrap();
    let end = start.plus(Duration::from_secs(24 * HOUR));
    for first in STEPS {
        for second in STEPS {
            rig.clock.set(start);
            for by in [first, second] {
                step(&rig, by);
                let case = format!("{first:?} {second:?}");
                let judged = rig.authenticate(token).await;
                match is_live(&rig, end) {
                    true => assert!(judged.is_ok(), "{case}: {judged:?}"),
                    false => assert_eq!(judged.unwrap_err(), Some(640), "{case}"),
                }
                // A key that is made at this time breaks no rule, whatever the time of others.
                rig.control
                    .identity
                    .watch_key_rules(rig.clock.now())
                    .await
                    .unwrap();
            }
        }
    }
    // A token that is issued while the clock is ahead is not too old when the clock is right again.
    rig.clock
        .set(start.plus(Duration::from_secs(400 * 24 * HOUR)));
    let ahead = rig.post("/api_keys", json!({})).await.body();
    rig.clock.set(start);
    let ahead = ahead["token"].as_str().unwrap();
    assert!(rig.authenticate(ahead).await.is_ok());
}
