//! What refused calls leave in the audit log: every operation of the table, over HTTP, by callers who may not.

use culvert_control::Scope;

use super::access::restricted;
use super::harness::{Harness, TestResponse, Wire};
use super::*;

/// A caller that every operation refuses, and how.
#[derive(Clone, Copy)]
struct Refused<'a> {
    headers: &'a [&'a str],
    token: Option<&'a str>,
    /// `ak_…`; `None` for an unknown caller.
    key_id: Option<&'a str>,
    status: u16,
    code: u16,
}

/// The events after the last ones, with those that are due later.
async fn reported(harness: &Harness, seq: &mut i64) -> Vec<Value> {
    let over = CancellationToken::new();
    over.cancel();
    Arc::clone(&harness.api.control).report_refusals(over).await;
    let rows = harness.store.outbox_after(*seq, 1_000).await.unwrap();
    *seq = rows.last().map_or(*seq, |row| row.seq);
    let events = rows.iter().map(|row| serde_json::from_str(&row.event.body));
    events.collect::<Result<_, _>>().unwrap()
}

/// Checks the one event of a refused call: that of its response.
fn check(
    refused: &Refused<'_>,
    (operation, object_id): (&str, Option<&str>),
    answer: &TestResponse,
    events: &[Value],
) {
    let about = format!("{operation} {} {}", refused.status, refused.code);
    let got = (answer.status, answer.code());
    assert_eq!(got, (refused.status, Some(refused.code)), "{about}");
    let [event] = events else {
        panic!("{about}: {events:?}");
    };
    let (object, principal) = (&event["object"], &event["principal"]);
    let response = answer.header("ngrok-operation-id").unwrap();
    assert_eq!(event["event_type"], "request_refused.v0", "{about}");
    // Above 30 events a minute, those of unknown callers are counted together, and above 50 groups those of an owner.
    let is_together = object["status"] == 0;
    if is_together {
        assert_eq!(object["operation"], "", "{about}");
    } else {
        assert_eq!(object["operation"], operation, "{about}");
        assert_eq!(object["status"], refused.status, "{about}");
        assert_eq!(object["code"], refused.code, "{about}");
    }
    assert_eq!(object["count"], 1, "{about}");
    let sample = &object["sample"];
    assert_eq!(sample["operation_id"], response, "{about}");
    assert_eq!(sample["object_id"], json!(object_id), "{about}");
    assert_eq!(sample["client_ip"], "127.0.0.1", "{about}");
    match refused.key_id {
        None => {
            assert_eq!(*principal, Value::Null, "{about}");
            assert!(
                is_together || object["network"] == "127.0.0.0/24",
                "{about}"
            );
        }
        Some(key_id) => {
            assert_eq!(principal["credential"]["id"], key_id, "{about}");
            assert_eq!(principal["context"]["operation_id"], response, "{about}");
            assert_eq!(object["network"], Value::Null, "{about}");
        }
    }
    assert!(event.get("previous").is_none() && event.get("cause").is_none());
}

#[tokio::test]
async fn every_operation_leaves_one_event_of_each_refused_call() {
    let mut settings = Settings::default();
    // No limit of failures: each call is refused for its own reason.
    settings.limits.failed_authentications.per_second = 0;
    let harness = Harness::start(settings).await;
    let (events_id, events) = restricted(&harness, json!({"scopes": ["events.write"]})).await;
    let (vaults_id, vaults) = restricted(&harness, json!({"scopes": ["secrets.write"]})).await;
    let elsewhere = json!({"networks": ["192.0.2.0/24"]});
    let (elsewhere_id, elsewhere) = restricted(&harness, elsewhere).await;
    let mut seq = 0;
    reported(&harness, &mut seq).await;
    let object_id = format!("ep_{}", "0".repeat(27));
    let mut wire = Wire::to(&harness).await;
    for operation in operations() {
        let is_of_events =
            Scope::of(operation.collection).is_some_and(|(_, write)| write == Scope::EventsWrite);
        // One that has the scopes of another family.
        let (key_id, token) = match is_of_events {
            true => (&vaults_id, &vaults),
            false => (&events_id, &events),
        };
        let unknown = Refused {
            headers: &[],
            token: None,
            key_id: None,
            status: 401,
            code: 200,
        };
        let mut callers = vec![
            Refused {
                headers: &["Authorization: nonsense of two"],
                code: 201,
                ..unknown
            },
            Refused {
                token: Some("wrong"),
                code: 202,
                ..unknown
            },
            Refused {
                token: Some(&elsewhere),
                key_id: Some(&elsewhere_id),
                status: 403,
                code: 641,
                ..unknown
            },
        ];
        if operation.right.scope.is_some() {
            callers.push(Refused {
                token: Some(token),
                key_id: Some(key_id),
                status: 403,
                code: 642,
                ..unknown
            });
        }
        callers.push(unknown);
        let path = operation.path.replace("{id}", &object_id);
        let path = path.replace("{type}", "vault_created.v0");
        let named = operation.path.contains("{id}").then_some(&*object_id);
        for refused in &callers {
            let method = operation.method.as_str();
            let asked = wire.ask(method, &path, refused.token, refused.headers, NO_BODY);
            let answer = asked.await;
            let events = reported(&harness, &mut seq).await;
            check(refused, (&operation.id(), named), &answer, &events);
        }
    }
}

/// Above the limits, the calls of unknown callers and of an account are counted with the status 429.
#[tokio::test]
async fn calls_above_a_limit_leave_events() {
    let mut settings = Settings::default();
    settings.limits.failed_authentications = Rate {
        per_second: 1,
        burst: 1,
    };
    settings.limits.account_window = Some(Window {
        requests: 1,
        length: Duration::from_secs(600),
    });
    let harness = Harness::start(settings).await;
    let mut wire = Wire::to(&harness).await;
    let mut seq = 0;
    let token = harness.token.clone();
    let first = wire.ask("GET", "/self", Some(&token), &[], NO_BODY).await;
    assert_eq!(first.status, 200, "{first:?}");
    let key_id = first.body["api_key"]["id"].as_str().unwrap();
    reported(&harness, &mut seq).await;
    let path = format!("/vaults/vault_{}", "0".repeat(27));
    let answer = wire.ask("GET", &path, Some(&token), &[], NO_BODY).await;
    assert_eq!(answer.status, 429);
    let events = reported(&harness, &mut seq).await;
    let sample = &events[0]["object"]["sample"];
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["object"]["status"], 429);
    assert_eq!(events[0]["principal"]["credential"]["id"], key_id);
    assert_eq!(
        sample["operation_id"],
        *answer.header("ngrok-operation-id").unwrap()
    );
    assert_eq!(sample["object_id"], path["/vaults/".len()..]);
    // The second of two wrong keys, at the latest the one after it.
    let limited = async {
        loop {
            let answer = wire.ask("GET", &path, Some("wrong"), &[], NO_BODY).await;
            if answer.status == 429 {
                break answer;
            }
        }
    };
    let answer = limited.await;
    let events = reported(&harness, &mut seq).await;
    let of_limit: Vec<_> = events
        .iter()
        .filter(|event| event["object"]["status"] == 429)
        .collect();
    assert_eq!(of_limit.len(), 1, "{events:?}");
    let sample = &of_limit[0]["object"]["sample"];
    assert_eq!(
        sample["operation_id"],
        *answer.header("ngrok-operation-id").unwrap()
    );
}
