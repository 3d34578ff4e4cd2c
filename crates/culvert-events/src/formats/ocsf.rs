//! Events as those of the Open Cybersecurity Schema Framework, as JSON.

use culvert_base::Timestamp;
use serde_json::{Map, Value, json};

use super::table::{Class, OTHER};
use super::{Event, compact};

/// The released version of the schema.
pub(crate) const VERSION: &str = "1.8.0";

/// The methods that the schema knows, with their activity.
const METHODS: [(&str, u64, &str); 9] = [
    ("CONNECT", 1, "Connect"),
    ("DELETE", 2, "Delete"),
    ("GET", 3, "Get"),
    ("HEAD", 4, "Head"),
    ("OPTIONS", 5, "Options"),
    ("POST", 6, "Post"),
    ("PUT", 7, "Put"),
    ("TRACE", 8, "Trace"),
    ("PATCH", 9, "Patch"),
];

/// Appends the event, with the original under `unmapped.culvert`.
pub(super) fn encode(event: &Event<'_>, out: &mut Vec<u8>) {
    let mut fields = base(event);
    fields.extend(of_class(event));
    let mut value = Value::Object(fields);
    compact(&mut value);
    if event.row.class == Class::HttpActivity && value["http_request"].is_null() {
        // Required, even if a subscription selects no field of it.
        value["http_request"] = json!({});
    }
    let text = value.to_string();
    out.extend_from_slice(text.strip_suffix('}').unwrap_or(&text).as_bytes());
    out.extend_from_slice(br#","unmapped":{"culvert":"#);
    out.extend_from_slice(event.envelope.as_bytes());
    out.extend_from_slice(b"}}");
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The fields of every class.
fn base(event: &Event<'_>) -> Map<String, Value> {
    let row = &event.row;
    let (class_uid, class_name) = row.class.id();
    let (category_uid, category_name) = row.class.category();
    let (activity_id, activity_name) = match row.class {
        Class::HttpActivity => activity_of_request(event),
        _ => row.activity,
    };
    let (status_id, status) = match event.succeeded() {
        // Findings have states of their own.
        Some(true) if row.class == Class::DetectionFinding => (4, "Resolved"),
        Some(false) if row.class == Class::DetectionFinding => (1, "New"),
        Some(true) => (1, "Success"),
        Some(false) => (2, "Failure"),
        None => (0, "Unknown"),
    };
    fields(json!({
        "activity_id": activity_id,
        "activity_name": if activity_id == OTHER.0 { &event.kind } else { activity_name },
        "category_name": category_name,
        "category_uid": category_uid,
        "class_name": class_name,
        "class_uid": class_uid,
        "count": event.number_at(&["/object/count"]).and_then(|count| i32::try_from(count).ok()),
        "duration": event.number_at(&["/object/culvert/duration_ms"]),
        "message": event.message(),
        "metadata": {
            "event_code": event.text_at(&["/event_type"]),
            "log_name": if is_traffic(row.class) { "traffic" } else { "audit" },
            "original_time": event.text_at(&["/event_timestamp"]),
            "product": product(),
            "tenant_uid": event.text_at(&["/account_id"]),
            "uid": event.text_at(&["/event_id"]),
            "version": VERSION,
        },
        "severity": row.severity.name(),
        "severity_id": row.severity as u8,
        "status": status,
        "status_detail": event.reason(),
        "status_id": status_id,
        "time": event.at.unix_millis(),
        "type_name": format!("{class_name}: {activity_name}"),
        "type_uid": class_uid * 100 + activity_id,
    }))
}

fn is_traffic(class: Class) -> bool {
    matches!(class, Class::HttpActivity | Class::NetworkActivity)
}

fn product() -> Value {
    json!({"name": "culvert", "vendor_name": "culvert", "version": env!("CARGO_PKG_VERSION")})
}

/// The fields of its class only.
fn of_class(event: &Event<'_>) -> Map<String, Value> {
    let id = event.object_id();
    let name = event.object_name();
    match event.row.class {
        Class::AccountChange => with_source(
            event,
            json!({"user": user(event, id, name.or(event.text_at(&["/object/subject"])))}),
        ),
        Class::ApiActivity => {
            let operation = event.text_at(&["/object/operation"]);
            let request = event.text_at(&[
                "/principal/context/operation_id",
                "/object/sample/operation_id",
            ]);
            with_source(
                event,
                json!({
                    "api": {"operation": operation.unwrap_or(&event.kind), "request": {"uid": request}},
                    "http_request": {"user_agent": event.user_agent()},
                    "resources": [{"uid": id}],
                }),
            )
        }
        Class::ApplicationLifecycle => fields(json!({"app": product()})),
        Class::Authentication => with_source(
            event,
            json!({
                "service": {"name": "culvert"},
                "session": {"uid": id},
                "user": user(event, event.user_id(), event.user_name()),
            }),
        ),
        Class::DetectionFinding => finding(event),
        Class::EntityManagement => with_source(
            event,
            json!({"entity": {
                "name": name.or(id.is_none().then_some("culvert")),
                "type": event.row.resource,
                "type_id": OTHER.0,
                "uid": id,
            }}),
        ),
        Class::HttpActivity => with_source(event, request(event)),
        Class::NetworkActivity => with_source(
            event,
            json!({
                "connection_info": connection(),
                "dst_endpoint": server(event),
                "traffic": {
                    "bytes_in": event.number_at(&["/object/conn/bytes_in"]),
                    "bytes_out": event.number_at(&["/object/conn/bytes_out"]),
                },
            }),
        ),
        Class::UserAccess => with_source(
            event,
            json!({
                "privileges": [event.text_at(&["/object/right"]).unwrap_or("unknown")],
                "resources": [{"uid": event.text_at(&["/object/object_id"])}],
                "user": user(event, event.text_at(&["/object/grantee"]), None),
            }),
        ),
    }
}

/// The finding of an alert, and the object that it is about.
fn finding(event: &Event<'_>) -> Map<String, Value> {
    let time = |pointer: &str| event.time(pointer).map(Timestamp::unix_millis);
    fields(json!({
        "end_time": time("/object/resolved_at"),
        "finding_info": {
            "created_time": time("/object/fired_at"),
            "desc": event.text_at(&["/object/summary"]),
            "title": event.text_at(&["/object/rule_name"]).unwrap_or("alert"),
            "types": [event.text_at(&["/object/condition"])],
            "uid": event.object_id().unwrap_or("unknown"),
        },
        "is_alert": true,
        "resources": [{
            "name": event.text_at(&["/object/subject/name"]),
            "type": event.text_at(&["/object/subject/kind"]),
            "uid": event.text_at(&["/object/subject/id"]),
        }],
        "start_time": time("/object/fired_at"),
    }))
}

/// These fields, with those of the client and the caller.
fn with_source(event: &Event<'_>, of_class: Value) -> Map<String, Value> {
    let mut all = fields(of_class);
    let ip = event.client_ip();
    // Calls have a source, even if it is the server itself.
    let service = (ip.is_none() && event.row.class == Class::ApiActivity).then_some("culvert");
    let port = ip.as_ref().and_then(|_| event.client_port());
    let source = json!({"ip": ip, "port": port, "svc_name": service});
    all.insert("src_endpoint".to_owned(), source);
    if is_traffic(event.row.class) {
        let time = |pointer: &str| event.time(pointer).map(Timestamp::unix_millis);
        all.insert(
            "start_time".to_owned(),
            time("/object/conn/start_ts").into(),
        );
        all.insert("end_time".to_owned(), time("/object/conn/end_ts").into());
    } else {
        all.insert("actor".to_owned(), actor(event));
    }
    all
}

/// Who did it; the product itself if no caller is known.
fn actor(event: &Event<'_>) -> Value {
    if event.user_id().is_none() && event.user_name().is_none() {
        return json!({"app_name": "culvert"});
    }
    let credential = event.text_at(&["/principal/credential/id"]);
    let user = json!({
        "credential_uid": credential, "name": event.user_name(), "uid": event.user_id(),
    });
    json!({"app_name": event.text_at(&["/principal/context/via"]), "user": user})
}

/// A user, who belongs to the account.
fn user(event: &Event<'_>, id: Option<&str>, name: Option<&str>) -> Value {
    json!({"account": {"uid": event.text_at(&["/account_id"])}, "name": name, "uid": id})
}

fn connection() -> Value {
    json!({"direction": "Inbound", "direction_id": 1, "protocol_name": "tcp"})
}

fn server(event: &Event<'_>) -> Value {
    json!({
        "hostname": event.server_name(),
        "ip": event.server_ip(),
        "port": event.server_port(),
        "svc_name": "culvert",
    })
}

fn activity_of_request(event: &Event<'_>) -> (u64, &'static str) {
    let method = method(event);
    method.map_or(OTHER, |(_, number, name)| (number, name))
}

fn method(event: &Event<'_>) -> Option<(&'static str, u64, &'static str)> {
    let given = event.text_at(&["/object/http/request/method"])?;
    METHODS
        .into_iter()
        .find(|(name, ..)| name.eq_ignore_ascii_case(given))
}

fn request(event: &Event<'_>) -> Value {
    let of_url = |part: &str| event.text_at(&[&format!("/object/http/request/url/{part}")]);
    let (raw, path) = (of_url("raw"), of_url("path"));
    // A URL has one of the two.
    let url = (raw.is_some() || path.is_some()).then(|| {
        json!({
            "hostname": of_url("host"),
            "path": path,
            "port": event.server_port(),
            "query_string": of_url("query"),
            "scheme": of_url("scheme"),
            "url_string": raw,
        })
    });
    let status = event.number_at(&["/object/http/response/status_code"]);
    let tls = event.text_at(&["/object/tls/version"]).map(|version| {
        let cipher = event.text_at(&["/object/tls/cipher_suite"]);
        json!({"cipher": cipher, "sni": event.server_name(), "version": version})
    });
    json!({
        "connection_info": connection(),
        "dst_endpoint": server(event),
        "http_request": {
            "body_length": length(event, "/object/http/request/body_length"),
            "http_method": method(event).map(|(name, ..)| name),
            "url": url,
            "user_agent": event.user_agent(),
        },
        "http_response": status.map(|code| json!({
            "body_length": length(event, "/object/http/response/body_length"),
            "code": code,
        })),
        "tls": tls,
    })
}

/// A length within the integers of the schema.
fn length(event: &Event<'_>, pointer: &str) -> Option<i32> {
    i32::try_from(event.number_at(&[pointer])?).ok()
}
