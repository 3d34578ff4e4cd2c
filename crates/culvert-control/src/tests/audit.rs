//! What calls leave in the audit log: an event for each object that is written, for each operation that reveals
//! something, and for refusals.

use culvert_base::{Class, Refusal, code};
use culvert_resources::audit::trace::Trace;
use culvert_resources::audit::verb::{Verb, kind_name};
use culvert_resources::operation::shown_id;

use super::*;
use crate::operations::resources;
use crate::{CallContext, Origin};

/// What a successful call leaves in the log: the event of the object that it writes, or of the operation, and those that
/// follow it; before the event of a removal, those of its parts. The five operations of each resource are not here if
/// their event has its name, and is the only one.
const TRACES: [(&str, &[&str]); 53] = [
    (
        "agent_ingresses_check_certificate",
        &["certificate_checked"],
    ),
    (
        "agent_ingresses_retry_certificate_management",
        &["agent_ingress_updated", "certificate_retried"],
    ),
    ("api_key_rules_get", &[]),
    ("api_key_rules_update", &["api_key_rules_updated"]),
    (
        "api_keys_delete_restrictions",
        &["api_key_updated", "api_key_unrestricted"],
    ),
    (
        "api_keys_end_overlap",
        &["api_key_updated", "api_key_overlap_ended"],
    ),
    ("api_keys_get_restrictions", &[]),
    ("api_keys_rotate", &["api_key_updated", "api_key_rotated"]),
    (
        "api_keys_update_restrictions",
        &["api_key_updated", "api_key_restricted"],
    ),
    ("endpoints_dry_run", &["policy_dry_run"]),
    ("endpoints_get_health", &[]),
    ("endpoints_list_upstreams", &[]),
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
    ("events_get_terms", &[]),
    ("events_list", &["events_exported"]),
    ("events_replay", &["request_replayed"]),
    ("kubernetes_operators_list_bound_endpoints", &[]),
    (
        "leaked_tokens_report",
        &["api_key_updated", "api_key_leaked"],
    ),
    ("nodes_list", &[]),
    ("referrers", &[]),
    (
        "reserved_domains_check_certificate",
        &["certificate_checked"],
    ),
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
    ("search", &[]),
    ("search_objects", &[]),
    ("self", &[]),
    ("statistics_get", &[]),
    ("statistics_get_top", &[]),
    ("traffic_policy_analysis", &[]),
    ("tunnel_sessions_restart", &["agent_session_commanded"]),
    ("tunnel_sessions_stop", &["agent_session_commanded"]),
    ("tunnel_sessions_update_agent", &["agent_session_commanded"]),
    ("users_create", &["user_created", "invitation_created"]),
    ("users_delete", &["invitation_deleted", "user_deleted"]),
    (
        "users_invite",
        &["user_updated", "invitation_deleted", "invitation_created"],
    ),
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
            Trace::Objects => assert!(!kinds.is_empty(), "{id}"),
            Trace::Also(kind) => assert_eq!(kinds[1..], [kind.name], "{id}"),
            Trace::Each(kind) | Trace::Hourly(kind) | Trace::HourlyList(kind, _) => {
                assert_eq!(kinds, [kind.name], "{id}");
            }
        }
        // An analysis of a text stores nothing.
        let writes = operation.method != Method::Get && id != "traffic_policy_analysis";
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

pub(super) fn context() -> CallContext {
    CallContext {
        client_ip: Some("192.0.2.7".parse().unwrap()),
        client_port: Some(40_000),
        user_agent: "test/1".to_owned(),
        operation_id: "op_1".to_owned(),
        node: "n1".to_owned(),
        via: None,
    }
}

/// The position of the last event, once all that was counted is reported.
pub(super) async fn end_of_log(rig: &Rig) -> i64 {
    rig.control.kernel.report_due(true).await.unwrap();
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

/// The caller, whose next call has its own operation ID and network.
pub(super) fn with_own_context(caller: Caller) -> Caller {
    static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    let n = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let network = u128::from(n) << 64;
    let first = std::net::Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 7);
    let address = std::net::Ipv6Addr::from(u128::from(first) | network);
    Caller {
        context: Some(Arc::new(CallContext {
            client_ip: Some(address.into()),
            operation_id: format!("op_own{n}"),
            ..context()
        })),
        ..caller
    }
}

/// A call whose trace is checked.
pub(super) struct Traced<'a> {
    /// As [`with_own_context`] returns it.
    pub(super) caller: &'a Caller,
    pub(super) operation: &'a Operation,
    /// The ID in the path, if it has one.
    pub(super) id: Option<&'a str>,
    pub(super) body: &'a Value,
    pub(super) answered: &'a Answered,
    /// What an admin saw before it; null for operations without an object.
    pub(super) before: &'a Value,
    /// Whether the object exists, and is in the account of the caller.
    pub(super) is_of_account: bool,
    /// How many such calls were refused since the position in the log.
    pub(super) n_refused: u64,
}

impl Traced<'_> {
    fn about(&self) -> String {
        let (id, by) = (self.operation.id(), &self.caller.subject);
        format!("{id} by {by}: {:?}", self.answered)
    }

    /// The principal of every event of the call.
    fn principal(&self) -> Value {
        let (caller, context) = (self.caller, self.caller.context.as_ref().unwrap());
        json!({
            "id": caller.owner_id,
            "subject": caller.subject,
            "source": "API",
            "credential": {
                "id": caller.key_id,
                "uri": format!("{BASE}/api_keys/{}", caller.key_id),
            },
            "context": {
                "client_ip": context.client_ip,
                "client_port": context.client_port,
                "user_agent": context.user_agent,
                "operation_id": context.operation_id,
                "node": context.node,
                "via": null,
            },
        })
    }
}

/// Checks the events of a call after `seq`: those of its row, in their order, and no other.
pub(super) async fn check_trace(rig: &Rig, call: &Traced<'_>, seq: i64) {
    let about = call.about();
    let (events, seq) = rig.events_after(seq).await;
    rig.control.kernel.report_due(true).await.unwrap();
    let (counted, _) = rig.events_after(seq).await;
    let all: Vec<_> = events.iter().chain(&counted).collect();
    for event in &all {
        assert_eq!(event["principal"], call.principal(), "{about} {event}");
        assert_eq!(event["account_id"], *call.caller.account, "{about} {event}");
        let kind = event["event_type"].as_str().unwrap();
        let is_update = kind.ends_with("_updated.v0");
        assert_eq!(event["previous"].is_object(), is_update, "{about} {event}");
        assert_eq!(
            event.get("previous").is_some(),
            is_update,
            "{about} {event}"
        );
    }
    let kinds: Vec<_> = all.iter().map(|event| &event["event_type"]).collect();
    let expected = match call.answered {
        Answered::Refused(class, code, _) => {
            assert_eq!(events, Vec::<Value>::new(), "{about}");
            let is_refusal = match class {
                Class::Forbidden => true,
                // What does not exist is an error of the caller.
                Class::NotFound => call.is_of_account,
                _ => false,
            };
            for event in &counted {
                check_refusal(call, *class, *code, &event["object"]);
            }
            vec!["request_refused.v0".to_owned(); usize::from(is_refusal)]
        }
        Answered::Created(_) | Answered::Ok(_) | Answered::NoContent => {
            assert_eq!(counted, Vec::<Value>::new(), "{about}");
            check_events(call, &events);
            expected(call.operation).expect("every operation has a row")
        }
    };
    assert_eq!(kinds, expected.iter().collect::<Vec<_>>(), "{about}");
}

/// Checks the objects of the events of a call that was not refused.
fn check_events(call: &Traced<'_>, events: &[Value]) {
    let about = call.about();
    let (operation, id) = (call.operation, call.id.unwrap_or_default());
    let made = match call.answered {
        Answered::Created(made) if operation.name == "create" => made["id"].as_str(),
        _ => None,
    };
    // One event is the cause of the others: the first, or that of the removal.
    let root = match operation.method {
        Method::Delete => events.iter().find(|event| event.get("cause").is_none()),
        Method::Get | Method::Post | Method::Patch => events.first(),
    };
    let root = root.map(|event| &event["event_id"]);
    for event in events {
        let cause = root.filter(|root| **root != event["event_id"]);
        assert_eq!(event.get("cause"), cause, "{about} {event}");
        let object = &event["object"];
        let of_list = matches!(operation.trace, Trace::HourlyList(..));
        let named = if of_list { "" } else { made.unwrap_or(id) };
        assert_eq!(object["id"], named, "{about} {event}");
        let is_operation = operation.trace.kind().map(|kind| json!(kind.name));
        if is_operation.as_ref() == Some(&event["event_type"]) {
            assert_eq!(object["operation"], operation.id(), "{about}");
            assert_eq!(object["count"], 1, "{about}");
        }
        // Exactly the fields that the call changed, as they were.
        if operation.name == "update" {
            let changed = call.body.as_object().unwrap();
            let mut before = serde_json::Map::new();
            for (field, value) in changed {
                if call.before[field] != *value {
                    before.insert(field.clone(), call.before[field].clone());
                }
            }
            let mut previous = event["previous"].clone();
            for time in ["updated_at", "last_updated_by"] {
                previous.as_object_mut().unwrap().remove(time);
            }
            assert_eq!(previous, Value::Object(before), "{about} {event}");
        }
    }
}

/// Checks the object of the event of refused calls.
fn check_refusal(call: &Traced<'_>, class: Class, code: Option<u16>, object: &Value) {
    let about = call.about();
    let context = call.caller.context.as_ref().unwrap();
    // Above 50 groups, those of an owner are counted together.
    let is_together = object["status"] == 0;
    let status = if class == Class::Forbidden { 403 } else { 404 };
    let operation = call.operation.id();
    let expected = json!({
        "operation": if is_together { "" } else { &operation },
        "code": code.filter(|_| !is_together),
        "status": if is_together { 0 } else { status },
        "network": null,
        "count": call.n_refused,
        "first_at": object["last_at"],
        "last_at": object["last_at"],
        "sample": {
            "client_ip": context.client_ip,
            "client_port": context.client_port,
            "user_agent": context.user_agent,
            "operation_id": context.operation_id,
            "object_id": call.id,
        },
    });
    assert_eq!(*object, expected, "{about}");
    assert!(object["last_at"].is_string(), "{about}");
}

/// Checks that the repetition of a read has no event, and within the hour one for all repetitions.
pub(super) async fn check_repetition(
    rig: &Rig,
    call: &Traced<'_>,
    again: impl AsyncFn() -> Answered,
) {
    if !matches!(
        call.operation.trace,
        Trace::Hourly(_) | Trace::HourlyList(..)
    ) {
        return;
    }
    let about = call.about();
    let seq = end_of_log(rig).await;
    for _ in 0..2 {
        again().await.body();
    }
    let (events, seq) = rig.events_after(seq).await;
    assert_eq!(events, Vec::<Value>::new(), "{about}");
    rig.control.kernel.report_due(true).await.unwrap();
    let (events, _) = rig.events_after(seq).await;
    let kinds: Vec<_> = events.iter().map(|event| &event["event_type"]).collect();
    let kind = call.operation.trace.kind().map(|kind| json!(kind.name));
    assert_eq!(kinds, kind.iter().collect::<Vec<_>>(), "{about}");
    assert_eq!(events[0]["object"]["count"], 2, "{about}");
    assert_eq!(events[0]["principal"], call.principal(), "{about}");
}

/// A resource that is added has its prefixes there.
#[test]
fn only_ids_of_ours_are_shown() {
    for ty in resources::ALL {
        for prefix in ty.prefixes {
            let id = format!("{prefix}_{}", "0".repeat(27));
            assert_eq!(shown_id(&id), Some(&*id));
        }
    }
    for token in ["ghp_aaaaaaaaaaaaaaaaaaaa", "ghp", "xoxb_1", "ak_a_b"] {
        assert_eq!(shown_id(token), None, "{token}");
    }
}

/// An owner of many keys cannot hide the refusals of others among its own.
#[tokio::test]
async fn refusals_of_an_owner_with_many_keys_hide_no_others() {
    let rig = Rig::start().await;
    let (_, seq) = rig.events_after(0).await;
    let refusal = Refusal::of(code::NOT_ADMIN);
    let caller = |owner: &str, key: usize| {
        with_context(Caller {
            owner_id: owner.to_owned(),
            key_id: format!("ak_{key}"),
            subject: format!("{owner}@example.com"),
            ..rig.admin.clone()
        })
    };
    let refuse = |caller: &Caller, operation: &str| {
        let called = (operation, None);
        rig.control.note_refused(caller, called, &refusal);
    };
    for key in 0..24 {
        let many = caller("usr_many", key);
        for operation in 0..175 {
            refuse(&many, &format!("operation_{operation}"));
        }
    }
    refuse(&caller("usr_honest", 0), "users_delete");
    rig.control.kernel.report_due(false).await.unwrap();
    let (reported, _) = rig.events_after(seq).await;
    let of = |owner: &str| {
        let of_owner = reported
            .iter()
            .filter(|event| event["principal"]["id"] == owner);
        of_owner.map(|event| &event["object"]).collect::<Vec<_>>()
    };
    let honest = of("usr_honest");
    assert_eq!(honest.len(), 1, "{honest:?}");
    assert_eq!(honest[0]["operation"], "users_delete");
    assert_eq!(honest[0]["code"], code::NOT_ADMIN.number());
    // Fifty one by one, and the rest with its principal.
    let many = of("usr_many");
    assert_eq!((many.len(), reported.len()), (51, 52));
    let rest = many.iter().find(|object| object["operation"] == "");
    assert_eq!(rest.unwrap()["count"], 24 * 175 - 50);
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
        rig.control
            .note_refusal(&origin, ("api_keys_list", None), &refusal);
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
    rig.control
        .note_refusal(&origin, ("api_keys_list", None), &refusal);
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

    // A list shows it too, and its event names the endpoints.
    rig.get("/endpoints").await.body();
    let (reported, seq) = rig.events_after(seq).await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    let read = &reported[0];
    assert_eq!(read["event_type"], "policy_read_with_secrets.v0");
    assert_eq!(read["object"]["operation"], "endpoints_list");
    assert_eq!(read["object"]["ids"], json!([made["id"]]));

    // Each that it has not shown before has an event, also within the hour.
    let other = json!({"url": "https://b.culvert.localhost", "upstream_url": "http://192.0.2.1",
        "traffic_policy": policy("plain")});
    let other = rig.post("/endpoints", other).await.body();
    let (_, seq) = rig.events_after(seq).await;
    for _ in 0..2 {
        rig.get("/endpoints").await.body();
        let (reported, _) = rig.events_after(seq).await;
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert_eq!(reported[0]["event_type"], "policy_read_with_secrets.v0");
        assert_eq!(
            reported[0]["object"]["ids"],
            json!([other["id"], made["id"]])
        );
    }
    let (_, seq) = rig.events_after(seq).await;

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
            .note_refusal(&origin, (&format!("operation_{n}"), None), &refusal);
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
    // 30 of the strangers' networks, the others together, and the reader.
    assert_eq!(events.len(), 32);
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

/// 100,000 refused calls, of callers and strangers who choose everything that they can, make at most 1,032 events in a
/// minute: those without a valid key 30 and one for the others, those with keys 1,000 and one for the others.
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
            .note_refusal(&origin, (&format!("operation_{n}"), None), &refusal);
        let caller = with_context(Caller {
            owner_id: format!("usr_{n}"),
            key_id: format!("ak_{n}"),
            ..rig.admin.clone()
        });
        rig.control
            .note_refused(&caller, ("vaults_create", None), &refusal);
    }
    for _ in 0..3 {
        rig.control.kernel.report_due(false).await.unwrap();
    }
    let rows = rig.store.outbox_after(seq, 5_000).await.unwrap();
    assert_eq!(rows.len(), 1_001 + 31);
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
