//! `culvert audit who`: who did what to an object.

use culvert_base::Timestamp;
use culvert_base::names::escaped;
use culvert_store::{AuditLog, Bound};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ROWS, failed, range_of};
use crate::commands::Failure;

/// Fields that every change sets.
const STAMPS: [&str; 2] = ["updated_at", "last_updated_by"];

/// The part of an event that a line shows.
#[derive(Deserialize)]
struct Recorded {
    event_type: String,
    event_timestamp: String,
    principal: Option<Actor>,
    object: Map<String, Value>,
    #[serde(default)]
    previous: Map<String, Value>,
    /// The event that it follows.
    #[serde(default)]
    cause: Option<String>,
}

#[derive(Deserialize)]
struct Actor {
    subject: String,
    source: String,
    credential: Option<Credential>,
    #[serde(default)]
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Credential {
    id: String,
}

#[derive(Deserialize)]
struct Context {
    client_ip: Option<String>,
    via: Option<String>,
}

impl Recorded {
    /// Whether the event is about the object, or names it beside another.
    fn is_about(&self, id: &str) -> bool {
        let sample = self.object.get("sample").and_then(Value::as_object);
        let fields = self.object.iter().chain(sample.into_iter().flatten());
        fields
            .filter(|(name, _)| *name == "id" || name.ends_with("_id"))
            .any(|(_, value)| value == id)
    }

    /// The event in one line: when, what, who, from where, and which fields changed.
    fn line(&self) -> String {
        let mut line = format!("{} {}", self.event_timestamp, self.event_type);
        match &self.principal {
            None => line.push_str(" by the server"),
            Some(actor) => {
                line.push_str(&format!(" by {} ({}", actor.subject, actor.source));
                if let Some(credential) = &actor.credential {
                    line.push_str(&format!(", {}", credential.id));
                }
                line.push(')');
                let context = actor.context.as_ref();
                if let Some(address) = context.and_then(|context| context.client_ip.as_ref()) {
                    line.push_str(&format!(" from {address}"));
                }
                if let Some(via) = context.and_then(|context| context.via.as_ref()) {
                    line.push_str(&format!(" via {via}"));
                }
            }
        }
        if let Some(operation) = self.object.get("operation").and_then(Value::as_str) {
            line.push_str(&format!(": {operation}"));
        }
        // When and by whom are said already, and the time is no change if two fall into one second.
        let names = self.previous.keys().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| !STAMPS.contains(name)).collect();
        if !names.is_empty() {
            line.push_str(&format!(": {}", names.join(", ")));
        }
        if let Some(cause) = &self.cause {
            line.push_str(&format!(", after {cause}"));
        }
        // Names and addresses are input of callers.
        escaped(&line).into_owned()
    }
}

/// An event in one line.
pub(crate) fn line_of(event: &Value) -> Result<String, Failure> {
    let recorded = Recorded::deserialize(event);
    let recorded =
        recorded.map_err(|error| Failure::Failed(format!("an event is not readable ({error})")))?;
    Ok(recorded.line())
}

/// Prints the events about an object, the oldest first.
pub(super) async fn run(
    log: &AuditLog,
    id: &str,
    (from, to): (Option<&Bound>, Option<&Bound>),
) -> Result<(), Failure> {
    let range = range_of(log, from, to).await?;
    let mut after = range.first.saturating_sub(1);
    let mut found = false;
    loop {
        let rows = log.rows(after, range.last, ROWS).await.map_err(failed)?;
        let Some(last) = rows.last() else {
            break;
        };
        after = last.seq;
        let mut text = String::new();
        for row in rows.iter().filter(|row| row.body.contains(id)) {
            if !range.holds(Timestamp::from_unix_nanos(row.happened_at)) {
                continue;
            }
            let recorded: Recorded = serde_json::from_str(&row.body).map_err(|error| {
                let seq = row.seq;
                Failure::Failed(format!(
                    "event {seq} of the audit log is not readable ({error}); run `culvert audit verify`"
                ))
            })?;
            if recorded.is_about(id) {
                text.push_str(&recorded.line());
                text.push('\n');
            }
        }
        found |= !text.is_empty();
        culvert_command::print(text.as_bytes())?;
    }
    match found {
        true => Ok(()),
        false => Err(Failure::Failed(format!(
            "the audit log has no event about `{}`",
            escaped(id)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_says_who_changed_what_from_where() {
        let event = |principal: Value, object: Value| -> Recorded {
            serde_json::from_value(json!({
                "event_type": "endpoint_updated.v0", "event_timestamp": "2026-11-28T23:00:00.000Z",
                "principal": principal, "object": object, "previous": {"traffic_policy": "", "traffic_policy_diff": "", "updated_at": ""},
            }))
            .unwrap()
        };
        let principal = json!({
            "id": "usr_1", "subject": "ada@x.example\n", "source": "API",
            "credential": {"id": "ak_1", "uri": "u"},
            "context": {"client_ip": "192.0.2.7", "via": "cli", "node": "n"},
        });
        let one = event(principal, json!({"id": "ep_1"}));
        assert!(one.is_about("ep_1") && !one.is_about("ep_2"));
        assert_eq!(
            one.line(),
            "2026-11-28T23:00:00.000Z endpoint_updated.v0 by ada@x.example\\u{a} (API, ak_1) from 192.0.2.7 via cli: \
             traffic_policy, traffic_policy_diff"
        );
        let refused = json!({"operation": "endpoints_delete", "sample": {"object_id": "ep_1"}});
        let refused = event(Value::Null, refused);
        assert!(refused.is_about("ep_1"));
        assert!(refused.line().contains(" by the server: endpoints_delete"));
    }
}
