//! What calls leave in the audit log: an event for each object that is written, for each operation that reveals
//! something, and for refusals.

use culvert_base::{Class, Refusal, code};
use culvert_resources::audit::trace::Trace;
use culvert_resources::audit::verb::{Verb, kind_name};

use super::*;
use crate::operations::resources;
use crate::{CallContext, Origin};

/// What a successful call leaves in the log: the event of the object that it writes, or of the operation, and those that
/// follow it. The five operations of each resource are not here, because their events have its name.
const TRACES: [(&str, &[&str]); 39] = [
    (
        "agent_ingresses_retry_certificate_management",
        &["agent_ingress_updated", "certificate_retried"],
    ),
    (
        "api_keys_delete_restrictions",
        &["api_key_updated", "api_key_unrestricted"],
    ),
    ("api_keys_get_restrictions", &[]),
    ("api_keys_rotate", &["api_key_updated", "api_key_rotated"]),
    (
        "api_keys_update_restrictions",
        &["api_key_updated", "api_key_restricted"],
    ),
    ("endpoints_dry_run", &["policy_dry_run"]),
    ("endpoints_get_health", &[]),
    ("event_destinations_get_health", &[]),
    ("event_destinations_get_replay", &[]),
    ("event_destinations_list_attempts", &[]),
    ("event_destinations_list_dead_letters", &["events_exported"]),
    (
        "event_destinations_redrive",
        &["event_destination_redriven"],
    ),
    ("event_destinations_replay", &["event_destination_replayed"]),
    ("event_destinations_test", &["event_destination_tested"]),
    (
        "event_subscriptions_create_source",
        &["event_subscription_updated"],
    ),
    (
        "event_subscriptions_delete_source",
        &["event_subscription_updated"],
    ),
    ("event_subscriptions_get_health", &[]),
    ("event_subscriptions_get_source", &[]),
    ("event_subscriptions_list_sources", &[]),
    (
        "event_subscriptions_update_source",
        &["event_subscription_updated"],
    ),
    ("events_get", &["events_exported"]),
    ("events_get_proof", &["events_exported"]),
    ("events_get_messages", &["captured_message_read"]),
    ("events_list", &["events_exported"]),
    ("events_replay", &["request_replayed"]),
    ("kubernetes_operators_list_bound_endpoints", &[]),
    ("nodes_list", &[]),
    ("reserved_domains_delete_certificate", &["domain_updated"]),
    (
        "reserved_domains_delete_certificate_management_policy",
        &["domain_updated"],
    ),
    (
        "reserved_domains_retry_certificate_management",
        &["domain_updated", "certificate_retried"],
    ),
    ("root", &[]),
    ("self", &[]),
    ("statistics_get", &[]),
    ("statistics_get_top", &[]),
    ("tunnel_sessions_restart", &["agent_session_commanded"]),
    ("tunnel_sessions_stop", &["agent_session_commanded"]),
    ("tunnel_sessions_update_agent", &["agent_session_commanded"]),
    ("users_invite", &["user_updated"]),
    ("vaults_list_secrets", &[]),
];

/// What a successful call of an operation leaves; `None` if that is not written down.
fn expected(operation: &Operation) -> Option<Vec<String>> {
    let id = operation.id();
    let of_it = TRACES.iter().find(|(other, _)| *other == id);
    if let Some((_, kinds)) = of_it {
        return Some(kinds.iter().map(|kind| format!("{kind}.v0")).collect());
    }
    let mut types = resources::ALL.iter();
    let ty = types.find(|ty| ty.collection == operation.collection)?;
    let verb = match operation.name {
        "get" | "list" => return Some(Vec::new()),
        "create" => Verb::Created,
        "update" => Verb::Updated,
        "delete" => Verb::Deleted,
        _ => return None,
    };
    Some(vec![kind_name(ty.name, verb)])
}

/// An operation that is added says here what it leaves.
#[test]
fn what_each_operation_leaves_is_written_down() {
    let mut unknown = Vec::new();
    for operation in operations() {
        let Some(kinds) = expected(operation) else {
            unknown.push(operation.id());
            continue;
        };
        let id = operation.id();
        match operation.trace {
            Trace::Nothing => assert!(kinds.is_empty(), "{id}"),
            Trace::Objects => assert_eq!(kinds.len(), 1, "{id}"),
            Trace::Also(kind) => assert_eq!(kinds[1..], [kind.name], "{id}"),
            Trace::Each(kind) | Trace::Hourly(kind) | Trace::HourlyList(kind, _) => {
                assert_eq!(kinds, [kind.name], "{id}");
            }
        }
        let writes = operation.method != Method::Get;
        assert!(!writes || !kinds.is_empty(), "{id} leaves no trace");
        let exists = |kind: &String| catalogue().find(kind).is_some();
        assert!(kinds.iter().all(exists), "{id} {kinds:?}");
    }
    assert_eq!(unknown, Vec::<String>::new());
    for (id, _) in TRACES {
        assert!(operations().iter().any(|one| one.id() == id), "{id}");
    }
}

/// The caller, whose calls come from this address.
pub(super) fn with_context(caller: Caller) -> Caller {
    Caller {
        context: Some(Arc::new(context())),
        ..caller
    }
}

fn context() -> CallContext {
    CallContext {
        client_ip: Some("192.0.2.7".parse().unwrap()),
        client_port: Some(40_000),
        user_agent: "test/1".to_owned(),
        operation_id: "op_1".to_owned(),
        node: "n1".to_owned(),
        via: None,
    }
}

/// The position of the last event.
pub(super) async fn end_of_log(rig: &Rig) -> i64 {
    let mut seq = *rig.last_seq.lock().unwrap();
    loop {
        let (events, last) = rig.events_after(seq).await;
        seq = last;
        if events.is_empty() {
            *rig.last_seq.lock().unwrap() = seq;
            return seq;
        }
    }
}

/// Checks what a call left in the log after `seq`. The same call about an absent object came before it.
pub(super) async fn check_trace(
    rig: &Rig,
    (caller, is_of_account): (&Caller, bool),
    operation: &Operation,
    (id, answered): (&str, &Answered),
    seq: i64,
) {
    let about = format!("{} by {}: {answered:?}", operation.id(), caller.owner_id);
    let (events, seq) = rig.events_after(seq).await;
    rig.control.kernel.report_due(true).await.unwrap();
    let (refusals, _) = rig.events_after(seq).await;
    let of_caller = |event: &Value| event["principal"]["id"] == *caller.owner_id;
    match answered {
        Answered::Refused(class @ (Class::Forbidden | Class::NotFound), code, _) => {
            assert_eq!(events, Vec::<Value>::new(), "{about}");
            // A missing scope refuses both calls. An absent object is no refusal.
            let is_reported = *class == Class::Forbidden || is_of_account && *code != Some(5409);
            assert_eq!(
                refusals.len(),
                usize::from(is_reported),
                "{about} {refusals:?}"
            );
            for event in &refusals {
                let object = &event["object"];
                assert_eq!(event["event_type"], "request_refused.v0", "{about}");
                assert!(of_caller(event), "{about} {event}");
                assert_eq!(object["operation"], operation.id(), "{about}");
                assert_eq!(object["code"], json!(code), "{about}");
                assert_eq!(object["sample"]["object_id"], id, "{about}");
                assert_eq!(object["sample"]["client_ip"], "192.0.2.7", "{about}");
            }
        }
        Answered::Refused(..) => {
            assert_eq!((events, refusals), (Vec::new(), Vec::new()), "{about}");
        }
        Answered::Created(_) | Answered::Ok(_) | Answered::NoContent => {
            assert_eq!(refusals, Vec::<Value>::new(), "{about}");
            assert!(events.iter().all(of_caller), "{about} {events:?}");
            let context = |event: &Value| event["principal"]["context"]["user_agent"] == "test/1";
            assert!(events.iter().all(context), "{about} {events:?}");
            let kinds: Vec<_> = events.iter().map(|event| &event["event_type"]).collect();
            // One event is the cause of all others.
            let expected = expected(operation).expect("every operation has a row");
            let (followers, roots): (Vec<_>, Vec<_>) =
                events.iter().partition(|event| event["cause"].is_string());
            let of_roots: Vec<_> = roots.iter().map(|event| &event["event_type"]).collect();
            let first: Vec<_> = expected.iter().take(1).map(|kind| json!(kind)).collect();
            assert_eq!(of_roots, first.iter().collect::<Vec<_>>(), "{about}");
            assert!(
                expected.iter().all(|kind| kinds.contains(&&json!(kind))),
                "{about} {kinds:?}"
            );
            for event in &followers {
                assert_eq!(event["cause"], roots[0]["event_id"], "{about} {event}");
            }
            match operation.trace {
                Trace::Nothing | Trace::Objects | Trace::Also(_) => {}
                Trace::HourlyList(..) => {
                    assert_eq!(roots[0]["object"]["operation"], operation.id());
                }
                Trace::Each(_) | Trace::Hourly(_) => {
                    assert_eq!(roots[0]["object"]["id"], id, "{about}");
                    assert_eq!(roots[0]["object"]["operation"], operation.id());
                }
            }
        }
    }
}

#[tokio::test]
async fn refusals_of_unknown_callers_are_reported_by_network() {
    let rig = Rig::start().await;
    let (_, seq) = rig.events_after(0).await;
    let refusal = Refusal::of(code::API_KEY_INVALID);
    for n in 0..2_000_u32 {
        let address = std::net::Ipv4Addr::from(0xC000_0200 + n);
        let origin = Origin {
            address: address.into(),
            context: Some(Arc::new(context())),
        };
        rig.control.note_refusal(&origin, "api_keys_list", &refusal);
        rig.control.note_failed_sign_in(&origin, &refusal);
    }
    rig.control.kernel.report_due(false).await.unwrap();
    let (reported, seq) = rig.events_after(seq).await;
    // 2,000 addresses are eight networks.
    assert_eq!(reported.len(), 16);
    for event in &reported {
        assert_eq!(event["principal"], Value::Null);
        assert_eq!(event["object"]["status"], 401);
        assert!(event["object"]["count"].as_u64().unwrap() <= 256);
        assert!(
            event["object"]["network"]
                .as_str()
                .unwrap()
                .ends_with(".0/24")
        );
    }
    let failed = |event: &&Value| event["event_type"] == "sign_in_failed.v0";
    assert_eq!(reported.iter().filter(failed).count(), 8);
    // Those that follow within the minute wait.
    let origin = Origin {
        address: std::net::Ipv4Addr::new(192, 0, 2, 1).into(),
        context: Some(Arc::new(context())),
    };
    rig.control.note_refusal(&origin, "api_keys_list", &refusal);
    rig.control.kernel.report_due(false).await.unwrap();
    assert_eq!(rig.events_after(seq).await.0, Vec::<Value>::new());
}

#[tokio::test]
async fn a_policy_with_secrets_reports_their_use_and_each_hour_their_reader() {
    let rig = Rig::start().await;
    let vault = rig.post("/vaults", json!({"name": "v"})).await.body();
    let secret = json!({"vault_id": vault["id"], "name": "s", "value": "hush hush"});
    let secret = rig.post("/vault_secrets", secret).await.body();
    let policy = |value: &str| {
        json!({"on_http_request": [{"actions": [{"type": "basic-auth", "config": {"credentials": ["u:12345678"]}},
            {"type": "add-headers", "config": {"headers": {"x": value}}}]}]})
    };
    let (_, seq) = rig.events_after(0).await;
    let made = json!({"url": "https://a.culvert.localhost", "upstream_url": "http://192.0.2.1",
        "traffic_policy": policy("${secrets.get('v', 's')}")});
    let made = rig.post("/endpoints", made).await.body();
    let (reported, seq) = rig.events_after(seq).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    assert_eq!(kinds, ["endpoint_created.v0", "secret_used.v0"]);
    assert_eq!(
        reported[1]["object"],
        json!({"id": secret["id"], "endpoint_id": made["id"]})
    );
    assert!(
        !reported[0].to_string().contains("12345678"),
        "{}",
        reported[0]
    );

    let path = format!("/endpoints/{}", made["id"].as_str().unwrap());
    // A change of another field shows the policy too.
    rig.patch(&path, json!({"description": "a"})).await.body();
    let (reported, seq) = rig.events_after(seq).await;
    let kinds: Vec<_> = reported.iter().map(|event| &event["event_type"]).collect();
    assert_eq!(
        kinds,
        ["endpoint_updated.v0", "policy_read_with_secrets.v0"]
    );
    assert_eq!(reported[1]["object"]["id"], made["id"]);
    // The first read by each operation is reported immediately, those after it are counted.
    for _ in 0..3 {
        rig.get(&path).await.body();
    }
    let (reported, seq) = rig.events_after(seq).await;
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["object"]["operation"], "endpoints_get");
    assert_eq!(reported[0]["object"]["count"], 1);
    rig.control.kernel.report_due(true).await.unwrap();
    let (reported, seq) = rig.events_after(seq).await;
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["object"]["count"], 2);

    // An update shows the policy before it, with a difference, and uses no other secret.
    let changed = json!({"traffic_policy": policy("${secrets.get('v', 's')}-2")});
    rig.patch(&path, changed).await.body();
    let (reported, _) = rig.events_after(seq).await;
    assert_eq!(reported[0]["event_type"], "endpoint_updated.v0");
    let previous = &reported[0]["previous"];
    assert!(
        previous["traffic_policy"]
            .as_str()
            .unwrap()
            .contains("'s')}\"")
    );
    assert!(
        previous["traffic_policy_diff"]
            .as_str()
            .unwrap()
            .contains("@@")
    );
    assert!(!reported[0].to_string().contains("12345678"));
}

#[tokio::test]
async fn a_token_in_the_path_of_a_refused_call_is_not_repeated() {
    let rig = Rig::start().await;
    let (_, seq) = rig.events_after(0).await;
    let restrictions = KeyRestrictions {
        scopes: [Scope::EventsRead].into_iter().collect(),
        ..KeyRestrictions::default()
    };
    let caller = with_context(Caller {
        restrictions: Some(Arc::new(restrictions)),
        ..rig.admin.clone()
    });
    for wrong in [rig.token.reveal(), &"a_".repeat(8_000)] {
        let path = format!("/api_keys/{wrong}");
        let refused = rig.call(&caller, "GET", &path, Value::Null).await;
        assert_eq!(refused.code(), Some(642));
    }
    rig.control.kernel.report_due(true).await.unwrap();
    let (reported, _) = rig.events_after(seq).await;
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["object"]["count"], 2);
    assert_eq!(reported[0]["object"]["sample"]["object_id"], Value::Null);
}

#[tokio::test]
async fn strangers_do_not_hide_the_refusals_of_known_callers() {
    let rig = Rig::start().await;
    let reader = with_context(rig.user("reader@x.example", Role::ReadOnly, true).await);
    let (_, seq) = rig.events_after(0).await;
    let refusal = Refusal::of(code::API_KEY_INVALID);
    for n in 0..5_000_u32 {
        let origin = Origin {
            address: std::net::Ipv4Addr::from(n << 8).into(),
            context: Some(Arc::new(context())),
        };
        rig.control
            .note_refusal(&origin, &format!("operation_{n}"), &refusal);
    }
    let refused = rig
        .call(&reader, "POST", "/vaults", json!({"name": "v"}))
        .await;
    assert_eq!(refused.code(), Some(635));
    rig.control.kernel.report_due(false).await.unwrap();
    let rows = rig.store.outbox_after(seq, 5_000).await.unwrap();
    let events: Vec<Value> = rows
        .iter()
        .map(|row| serde_json::from_str(&row.event.body).unwrap())
        .collect();
    // The strangers' networks that fit, the others together, and the reader.
    assert_eq!(events.len(), 1_002);
    let known: Vec<_> = events
        .iter()
        .filter(|event| !event["principal"].is_null())
        .collect();
    assert_eq!(known.len(), 1);
    assert_eq!(known[0]["principal"]["id"], *reader.owner_id);
    assert_eq!(known[0]["object"]["operation"], "vaults_create");
    let counts = events
        .iter()
        .map(|event| event["object"]["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 5_001);
}

/// 100,000 refused calls, of callers and strangers who choose everything that they can, make at most two times 1,001 events
/// in a minute: 1,000 groups of each kind, and one for the others.
#[tokio::test]
async fn a_flood_of_refused_calls_makes_a_bounded_number_of_events() {
    let rig = Rig::start().await;
    let (_, seq) = rig.events_after(0).await;
    let refusal = Refusal::of(code::NOT_ADMIN);
    for n in 0..50_000_u32 {
        let origin = Origin {
            address: std::net::Ipv4Addr::from(n << 8).into(),
            context: Some(Arc::new(context())),
        };
        rig.control
            .note_refusal(&origin, &format!("operation_{n}"), &refusal);
        let caller = with_context(Caller {
            key_id: format!("ak_{n}"),
            ..rig.admin.clone()
        });
        rig.control.note_refused(&caller, "vaults_create", &refusal);
    }
    for _ in 0..3 {
        rig.control.kernel.report_due(false).await.unwrap();
    }
    let rows = rig.store.outbox_after(seq, 5_000).await.unwrap();
    assert_eq!(rows.len(), 2 * 1_001);
    let counted = rows.iter().map(|row| {
        let event: Value = serde_json::from_str(&row.event.body).unwrap();
        event["object"]["count"].as_u64().unwrap()
    });
    assert_eq!(counted.sum::<u64>(), 100_000);
}

#[tokio::test]
async fn a_read_from_elsewhere_with_the_same_key_has_an_event_with_its_address() {
    let rig = Rig::start().await;
    let here = with_context(rig.admin.clone());
    let elsewhere = Caller {
        context: Some(Arc::new(CallContext {
            client_ip: Some("203.0.113.9".parse().unwrap()),
            ..context()
        })),
        ..rig.admin.clone()
    };
    let (_, seq) = rig.events_after(0).await;
    for caller in [&here, &here, &elsewhere] {
        rig.call(caller, "GET", "/events?limit=1", Value::Null)
            .await
            .body();
    }
    let (reported, _) = rig.events_after(seq).await;
    let from: Vec<_> = reported
        .iter()
        .map(|event| &event["principal"]["context"]["client_ip"])
        .collect();
    assert_eq!(from, ["192.0.2.7", "203.0.113.9"]);
}

#[tokio::test]
async fn an_operation_whose_caller_left_is_reported() {
    let rig = Rig::start().await;
    let path = rig
        .post(
            "/event_destinations",
            rig.sample("event_destinations", 1).await,
        )
        .await;
    let path = format!(
        "/event_destinations/{}/test",
        path.body()["id"].as_str().unwrap()
    );
    let (_, seq) = rig.events_after(0).await;
    let caller = with_context(rig.admin.clone());
    tokio::select! {
        biased;
        _ = rig.call(&caller, "POST", &path, json!({})) => panic!("it ended at once"),
        () = std::future::ready(()) => {}
    }
    rig.control.kernel.report_due(false).await.unwrap();
    let (reported, _) = rig.events_after(seq).await;
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0]["event_type"], "event_destination_tested.v0");
    assert_eq!(reported[0]["principal"]["id"], *caller.owner_id);
}
