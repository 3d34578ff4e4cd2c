//! Events as those of the Elastic Common Schema, as JSON with nested objects.

use serde_json::{Value, json};

use super::table::Class;
use super::{Event, compact};

/// The released version of the schema.
pub(crate) const VERSION: &str = "9.4.0";

/// Milliseconds as nanoseconds, within 63 bits.
fn nanos(millis: u64) -> Option<i64> {
    i64::try_from(millis).ok()?.checked_mul(1_000_000)
}

/// Appends the event, with the original as text in `event.original`.
pub(super) fn encode(event: &Event<'_>, out: &mut Vec<u8>) {
    let mut value = fields(event);
    compact(&mut value);
    out.extend_from_slice(value.to_string().as_bytes());
}

fn fields(event: &Event<'_>) -> Value {
    let row = &event.row;
    let is_http = row.class == Class::HttpActivity;
    let is_traffic = is_http || row.class == Class::NetworkActivity;
    let of_url = |part: &str| event.text_at(&[&format!("/object/http/request/url/{part}")]);
    let duration = event.number_at(&["/object/culvert/duration_ms"]);
    let client = event.client_ip();
    let time = |pointer: &str| event.time(pointer).and_then(|_| event.text_at(&[pointer]));
    let target = match row.class {
        Class::AccountChange => json!({"id": event.object_id(), "name": event.object_name()}),
        Class::UserAccess => json!({"id": event.text_at(&["/object/grantee"])}),
        _ => Value::Null,
    };
    json!({
        "@timestamp": event.text_at(&["/event_timestamp"]),
        "destination": {
            "bytes": event.number_at(&["/object/conn/bytes_out"]),
            "domain": event.server_name(),
            "ip": event.server_ip(),
            "port": event.server_port(),
        },
        "ecs": {"version": VERSION},
        "event": {
            "action": event.kind,
            "category": row.categories,
            "code": event.text_at(&["/event_type"]),
            "dataset": if is_traffic { "culvert.traffic" } else { "culvert.audit" },
            "duration": duration.and_then(nanos),
            "end": time("/object/conn/end_ts"),
            "id": event.text_at(&["/event_id"]),
            "kind": if row.class == Class::DetectionFinding { "alert" } else { "event" },
            "module": "culvert",
            "original": event.envelope,
            "outcome": match event.succeeded() {
                Some(true) => "success",
                Some(false) => "failure",
                None => "unknown",
            },
            "provider": "culvert",
            "reason": event.reason(),
            "severity": row.severity as u8,
            "start": time("/object/conn/start_ts"),
            "type": row.types,
        },
        "http": {
            "request": {
                "body": {"bytes": event.number_at(&["/object/http/request/body_length"])},
                "id": event.text_at(&["/principal/context/operation_id"]),
                "method": event.text_at(&["/object/http/request/method"]),
            },
            "response": {
                "body": {"bytes": event.number_at(&["/object/http/response/body_length"])},
                "status_code": event.number_at(&["/object/http/response/status_code"]),
            },
        },
        "message": event.message(),
        "network": if is_traffic {
            json!({"protocol": is_http.then_some("http"), "transport": "tcp"})
        } else {
            Value::Null
        },
        "observer": {"product": "culvert", "type": "proxy", "vendor": "culvert"},
        "organization": {"id": event.text_at(&["/account_id"])},
        "related": {"ip": [client.clone()], "user": [event.user_id(), event.user_name()]},
        "source": {
            "bytes": event.number_at(&["/object/conn/bytes_in"]),
            "ip": client,
            "port": event.client_port(),
        },
        "tls": {
            "cipher": event.text_at(&["/object/tls/cipher_suite"]),
            "version": event.text_at(&["/object/tls/version"]),
        },
        "trace": {"id": event.text_at(&["/object/culvert/trace_id"])},
        "url": {
            "domain": of_url("host"),
            "original": of_url("raw"),
            "path": of_url("path"),
            "query": of_url("query"),
            "scheme": of_url("scheme"),
        },
        "user": {"id": event.user_id(), "name": event.user_name(), "target": target},
        "user_agent": {"original": event.user_agent()},
    })
}
