//! `culvert api <collection> history` and `restore`: the versions of an object, and the way back to one.
//!
//! The events of updates have the changed fields as they were, so the state at an event is the current one with all later
//! updates undone. It is written by the ordinary update, which names that event as its cause.

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use culvert_base::names::escaped;
use culvert_resources::operation::{EVENTS_PATH, OperationSpec};
use http::Method;
use serde_json::{Map, Value, json};

use super::{Failure, body_properties, client_of, path_parameters, say, show, without_form};
use crate::client::Client;
use crate::commands::audit::line_of;

/// The names of the commands.
pub(super) const HISTORY: &str = "history";
pub(super) const RESTORE: &str = "restore";
/// What stands for a secret that an update changed.
const CHANGED_SECRET: &str = "[changed]";
/// What stands for a secret in a shown text.
const REDACTED: &str = "[redacted]";
/// Ends the names of fields with a difference.
const DIFF: &str = "_diff";
/// Events of a page.
const PAGE: usize = 100;
/// Limit of events that are read.
const EVENTS_MAX: usize = 10_000;

/// The commands of a collection whose objects can be updated.
pub(super) fn commands(collection: &str) -> [Command; 2] {
    let id = Arg::new("id").required(true).help("ID of the object");
    [
        Command::new(HISTORY)
            .about("List the events about an object, newest first; each write is a version")
            .arg(id.clone()),
        Command::new(RESTORE)
            .about("Update an object to its state at an earlier event")
            .long_about(format!(
                "Update an object to its state at an earlier event: right after the creation or update that the event \
                 reports. `culvert api {collection} history ID` lists the events. The update is refused if the events do not \
                 have the whole state, or if a secret changed since."
            ))
            .arg(id)
            .arg(
                Arg::new("event")
                    .required(true)
                    .help("ID of the event: `ev_…`"),
            ),
    ]
}

/// Whether the operations of a collection have the ordinary update.
pub(super) fn has_versions(operations: &[&'static OperationSpec]) -> bool {
    update_of(operations).is_some()
}

fn update_of<'a>(operations: &[&'a OperationSpec]) -> Option<&'a OperationSpec> {
    let mut operations = operations.iter();
    let is_update = |operation: &&&OperationSpec| {
        operation.name == "update" && path_parameters(&operation.path) == ["id"]
    };
    operations.find(is_update).copied()
}

/// Runs one of the commands.
pub(super) async fn run(
    operations: &[&'static OperationSpec],
    name: &str,
    given: &ArgMatches,
) -> Result<(), Failure> {
    let text = |name: &str| given.get_one::<String>(name).cloned().unwrap_or_default();
    let id = text("id");
    if name == HISTORY {
        without_form(given, "`history`")?;
    }
    let client = client_of(given)?;
    if name == HISTORY {
        let events = events_about(&client, &id, |_| false).await?;
        if events.is_empty() {
            return Err(Failure::Failed(format!(
                "no kept event about `{}` that you may read",
                escaped(&id)
            )));
        }
        for event in events {
            let event_id = event["event_id"].as_str().unwrap_or_default();
            say(format_args!("{} {}", escaped(event_id), line_of(&event)?))?;
        }
        return Ok(());
    }
    let event = text("event");
    let update = update_of(operations).context("the collection has no update")?;
    let is_it = |one: &Value| one["event_id"] == *event;
    let events = events_about(&client, &id, is_it).await?;
    let undone = undone(&events, &event).map_err(Failure::Failed)?;
    let body = body_properties(update);
    let (changes, kept) = body_for(undone, &body);
    if changes.is_empty() {
        return Err(Failure::Failed(
            "no field that an update can set has changed since that event".into(),
        ));
    }
    let path: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    let path = update.path.replace("{id}", &path);
    let changes = Value::Object(changes);
    let answer = client
        .call_because(Method::PATCH, &path, Some(&changes), Some(&event))
        .await?;
    if answer.status >= 300 {
        return Err(Failure::Failed(answer.refusal()));
    }
    show(given, &answer.body)?;
    if !kept.is_empty() {
        // Standard error: the output is the object.
        eprintln!(
            "culvert: an update cannot set these changed fields: {}",
            kept.join(", ")
        );
    }
    Ok(())
}

/// The events about an object, newest first, up to the one that `is_last` recognises.
async fn events_about(
    client: &Client,
    id: &str,
    is_last: impl Fn(&Value) -> bool,
) -> Result<Vec<Value>, Failure> {
    let mut path = first_page(id);
    let mut found = Vec::new();
    loop {
        let page = client.expect(Method::GET, &path, None).await?;
        for logged in page["events"].as_array().into_iter().flatten() {
            let event = logged["event"].clone();
            let is_end = is_last(&event);
            found.push(event);
            if is_end || found.len() >= EVENTS_MAX {
                return Ok(found);
            }
        }
        match page["next_page_uri"].as_str() {
            Some(next) => next.clone_into(&mut path),
            None => return Ok(found),
        }
    }
}

fn first_page(id: &str) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("object_id", id);
    query.append_pair("type", "audit");
    query.append_pair("limit", &PAGE.to_string());
    format!("{EVENTS_PATH}?{}", query.finish())
}

/// The fields that were changed after an event, as they were at it. `events` are those about the object, newest first.
fn undone(events: &[Value], at: &str) -> Result<Map<String, Value>, String> {
    let place = events.iter().position(|event| event["event_id"] == at);
    let place = place.ok_or_else(|| {
        format!(
            "`{}` is no kept event about this object that you may read",
            escaped(at)
        )
    })?;
    let kind = |event: &Value| event["event_type"].as_str().unwrap_or_default().to_owned();
    let of_version = kind(&events[place]);
    if !(of_version.contains("_created.") || of_version.contains("_updated.")) {
        return Err("choose the event of a creation or an update".into());
    }
    let mut undone = Map::new();
    for event in &events[..place] {
        let id = event["event_id"].as_str().unwrap_or_default();
        if kind(event).contains("_deleted.") {
            return Err(format!("the object was deleted ({id})"));
        }
        if !kind(event).contains("_updated.") {
            continue;
        }
        let Some(previous) = event["previous"].as_object() else {
            return Err(format!(
                "the update {id} does not say how the object was: an earlier version of the server wrote it"
            ));
        };
        let truncated = event["truncated"].as_array().into_iter().flatten();
        let mut truncated = truncated.filter_map(Value::as_str);
        let is_state = |path: &&str| path.starts_with("previous.") && !path.ends_with(DIFF);
        if let Some(path) = truncated.find(is_state) {
            return Err(format!(
                "the old state is not complete: {path} of {id} is missing because of its size"
            ));
        }
        for (name, value) in previous {
            if name.ends_with(DIFF) && previous.contains_key(name.trim_end_matches(DIFF)) {
                continue;
            }
            if value.to_string().contains(REDACTED) {
                return Err(format!(
                    "`{name}` had secrets before {id}, and no event has secrets; set it with an update"
                ));
            }
            if *value == CHANGED_SECRET {
                return Err(format!(
                    "the secret `{name}` was changed by {id}, and no event has secrets; set it with an update"
                ));
            }
            // The oldest update has the value at the event.
            undone.insert(name.clone(), value.clone());
        }
    }
    match undone.is_empty() {
        true => Err("nothing has changed since that event".into()),
        false => Ok(undone),
    }
}

/// The body of the update that sets these fields, and the names of those that it cannot set.
fn body_for(
    fields: Map<String, Value>,
    settable: &Map<String, Value>,
) -> (Map<String, Value>, Vec<String>) {
    let (mut body, mut kept) = (Map::new(), Vec::new());
    for (name, value) in fields {
        let by_id = format!("{name}_id");
        if settable.contains_key(&name) {
            body.insert(name, value);
        } else if settable.contains_key(&by_id) {
            // A reference, which an update names by its ID.
            let id = value.get("id").cloned().unwrap_or(json!(null));
            body.insert(by_id, id);
        } else {
            kept.push(name);
        }
    }
    (body, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, kind: &str, previous: Value, truncated: Value) -> Value {
        json!({"event_id": id, "event_type": kind, "previous": previous, "truncated": truncated})
    }

    #[test]
    fn later_updates_are_undone() {
        let none = Value::Null;
        let update = "endpoint_updated.v0";
        let policy = json!({"traffic_policy": "b", "traffic_policy_diff": "-b\n+c"});
        let events = [
            event(
                "ev_4",
                update,
                policy,
                json!(["previous.traffic_policy_diff"]),
            ),
            event("ev_x", "secret_used.v0", none.clone(), none.clone()),
            event(
                "ev_3",
                update,
                json!({"description": "x", "traffic_policy": "a"}),
                none.clone(),
            ),
            event("ev_2", update, json!({"description": "w"}), none.clone()),
            event("ev_1", "endpoint_created.v0", none.clone(), none.clone()),
        ];
        let at = |id| undone(&events, id).map(Value::Object);
        assert_eq!(
            at("ev_1").unwrap(),
            json!({"traffic_policy": "a", "description": "w"})
        );
        assert_eq!(
            at("ev_2").unwrap(),
            json!({"traffic_policy": "a", "description": "x"})
        );
        assert_eq!(at("ev_3").unwrap(), json!({"traffic_policy": "b"}));
        assert!(at("ev_4").unwrap_err().contains("nothing has changed"));
        assert!(at("ev_x").unwrap_err().contains("creation or an update"));
        assert!(at("ev_9").unwrap_err().contains("no kept event"));
    }

    #[test]
    fn an_incomplete_state_and_a_lost_secret_are_refused() {
        let update = "event_destination_updated.v0";
        let made = event(
            "ev_1",
            "event_destination_created.v0",
            Value::Null,
            Value::Null,
        );
        for (previous, truncated, why) in [
            (
                json!({"a": 1}),
                json!(["previous.metadata"]),
                "not complete",
            ),
            (
                json!({"target": CHANGED_SECRET}),
                Value::Null,
                "the secret `target`",
            ),
            (Value::Null, Value::Null, "does not say how the object was"),
        ] {
            let events = [event("ev_2", update, previous, truncated), made.clone()];
            let refused = undone(&events, "ev_1").unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn references_are_set_by_id_and_computed_fields_are_not_set() {
        let fields = json!({"description": "d", "certificate": {"id": "cert_1", "uri": "u"}, "public_url": "p"});
        let Value::Object(fields) = fields else {
            return;
        };
        let settable = ["description", "certificate_id"].map(|name| (name.to_owned(), json!({})));
        let (body, kept) = body_for(fields, &settable.into_iter().collect());
        assert_eq!(
            Value::Object(body),
            json!({"description": "d", "certificate_id": "cert_1"})
        );
        assert_eq!(kept, ["public_url"]);
    }
}
