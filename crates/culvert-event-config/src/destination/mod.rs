//! Event destination: one remote system that receives events (contract: management API 2.4).
//!
//! `crates/culvert-destinations` defines the fields and allowed values of each target and runs it. A configuration is
//! stored twice: as shown, without secrets, and whole and encrypted.

pub mod model;
pub mod operations;
pub mod targets;

use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, Secret, code};
use culvert_events::EventFormat;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Extra, Resource, ResourceType, Reveal};
use culvert_resources::stored::seal::Seal;
use culvert_resources::stored::{self, Format};
use culvert_resources::targets::target_schema;
use culvert_resources::{Error, Role};
use culvert_store::{AuditEvent, Changes, Document, Head};
use culvert_target::{TargetType, TargetTypes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::destination::model::{EventDestination, PUBLIC_TARGETS, StoredTarget, TARGETS};
use crate::subscription::model::EventSubscription;
use crate::{EventConfig, replay, subscription};

/// The row of event destinations in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<EventDestination>();

/// A new event destination.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventDestinationCreate", extend("required" = ["format", "target"]), transform = input::create_schema)]
pub struct Create {
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Event format: `json`, `ocsf` (Open Cybersecurity Schema Framework) or `ecs` (Elastic Common Schema). Required.
    #[schemars(extend("pattern" = input::caseless_pattern(&EventFormat::NAMES)))]
    format: String,
    /// Target of the events; exactly one. Required.
    #[schemars(schema_with = "target_schema")]
    target: Map<String, Value>,
}

/// Changes to an event destination.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventDestinationUpdate", transform = input::update_schema)]
pub struct Update {
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Event format: `json`, `ocsf` or `ecs`. Queued events are sent in the new one.
    #[schemars(extend("pattern" = input::caseless_pattern(&EventFormat::NAMES)))]
    format: Option<String>,
    /// New configuration of the same target type. Omitted secrets are unchanged.
    #[schemars(schema_with = "target_schema")]
    target: Option<Map<String, Value>>,
}

pub(crate) const OPERATIONS: &[Extra<EventConfig>] = &{
    let [replay, get_replay] = replay::OPERATIONS;
    let [test, health, attempts, letters, redrive] = operations::OPERATIONS;
    [replay, get_replay, test, health, attempts, letters, redrive]
};

impl Resource for EventDestination {
    const DOC: &'static str = "Event destinations: remote systems that receive events.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
    ]);
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::DELIVERY_VALUE_INVALID),
        ("metadata", code::DELIVERY_VALUE_INVALID),
    ];
    const IN_USE: Option<Code> = Some(code::DESTINATION_IN_USE);
    const CREATE_NEEDS_BODY: bool = true;
    const ADMIN_OPERATIONS: &'static [&'static str] = &["replay"];

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        check_format(&input.format)?;
        let (name, given) = only(input.target)?;
        let id = format!("{}_{id}", Self::ID_PREFIX);
        let (target, reveal) = StoredTarget::check(cx, &id, name, &given)?;
        Ok(Draft {
            reveal,
            ..Draft::of(Self {
                version: Format,
                owner_id: cx.caller.owner_id.clone(),
                description: input.description,
                metadata: input.metadata,
                format: input.format,
                target,
                has_private: false,
            })
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        const SECRETS_AGAIN: &str = "The address in `target` changed; send its secrets again. A stored secret is only used with its original address.";
        const SIGNS_ANY_TEXT: &str =
            "With `body_template`, the stored secrets would sign any text; send `secrets` again.";
        if let Some(format) = input.format {
            check_format(&format)?;
            self.format = format;
        }
        if input.target.is_some() && cx.caller.role != Role::Admin {
            self.may_redirect(cx, head).await?;
        }
        if let Some(target) = input.target {
            let (name, given) = only(target)?;
            if name != self.target.name {
                return Err(Refusal::of(code::TARGET_TYPE_CHANGED).into());
            }
            let stored = self.target.open(cx.seal, &head.id)?;
            let merged = cx.settings.targets.merge(name, &stored, given.clone())?;
            // Generated secrets are only shown on creation.
            (self.target, _) = StoredTarget::check(cx, &head.id, name, &merged)?;
            let after = self.target.open(cx.seal, &head.id)?;
            let is_moved = addresses(name, &after) != addresses(name, &stored);
            if is_moved && sent(&merged) != sent(&given) {
                return Err(Refusal::new(code::BODY_FIELD_INVALID, SECRETS_AGAIN).into());
            }
            let begins_template = !has_template(&stored) && has_template(&after);
            if begins_template && secrets(&merged) != secrets(&given) {
                return Err(Refusal::new(code::BODY_FIELD_INVALID, SIGNS_ANY_TEXT).into());
            }
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        Ok(Draft::of(self))
    }

    fn changed_secrets(&self, after: &Self) -> Vec<&'static str> {
        // Secrets are not in the shown configuration.
        let (before, after) = (&self.target, &after.target);
        let is_hidden = before.shown == after.shown && before.sealed != after.sealed;
        Vec::from_iter(is_hidden.then_some("target"))
    }

    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        Ok(replay::removal_with(cx, head).await?)
    }
}

/// The write that records that events about keys and credentials go to these destinations. It changes their
/// documents. If a change of target and the first such event are concurrent, the later one is decided again.
pub(crate) async fn note_private(cx: &Cx<'_>, ids: &[String]) -> Result<Changes, Error> {
    let reason = "the visible part of the destination does not change";
    let mut changes = Changes::default();
    for id in ids {
        let Some(document) = cx.own(TYPE.kind, id).await? else {
            continue;
        };
        let mut destination: EventDestination = stored::read(&document)?;
        if destination.has_private {
            continue;
        }
        destination.has_private = true;
        let body = stored::write(&destination)?;
        let noted = Changes::replace(
            Document { body, ..document },
            AuditEvent::Suppress { reason },
        );
        changes = changes.and(noted);
    }
    Ok(changes)
}

impl EventDestination {
    /// Refuses a new target for a destination that receives, or has received, events about keys and
    /// credentials (630), because the new target would receive them. Admins may change it.
    async fn may_redirect(&self, cx: &Cx<'_>, head: &Head) -> Result<(), Error> {
        let mut has_private = self.has_private;
        // Subscriptions stored before this was recorded.
        for document in cx.referring(EventSubscription::KIND, head).await? {
            has_private |= subscription::is_private(&document)?;
        }
        if has_private {
            let why = "This destination receives or received events about keys and credentials; only admins may change its target.";
            return Err(Refusal::new(code::NOT_ADMIN, why).into());
        }
        Ok(())
    }

    /// The form of its events. `None` if this build does not have it.
    pub fn event_format(&self) -> Option<EventFormat> {
        EventFormat::find(&self.format)
    }

    /// The type of its target, one of `types`, and the decrypted configuration, for sending.
    pub fn target(
        &self,
        types: TargetTypes,
        seal: &Seal,
        head: &Head,
    ) -> Result<(&'static TargetType, Value), Fault> {
        let ty = types.find(&self.target.name).ok_or_else(|| {
            Fault::bare(format!(
                "opening destination {}: this build has no target {}",
                head.id, self.target.name
            ))
        })?;
        Ok((ty, self.target.open(seal, &head.id)?))
    }
}

impl StoredTarget {
    /// Checks a configuration. Also returns the secrets to show once.
    fn check(
        cx: &Cx<'_>,
        id: &str,
        name: &str,
        given: &Value,
    ) -> Result<(Self, Option<Reveal>), Error> {
        let checked = cx.settings.targets.check(name, given, cx.entropy)?;
        let mut shown = checked.shown;
        show_as_sent(&mut shown, &checked.stored, given);
        let reveal = checked.shown_once.map(|once| {
            let mut revealed = shown.clone();
            if let (Value::Object(revealed), Value::Object(once)) = (&mut revealed, once) {
                revealed.extend(once);
            }
            Reveal {
                pointer: format!("/target/{name}"),
                json: Secret::new(revealed.to_string()),
            }
        });
        let target = Self {
            name: name.to_owned(),
            shown,
            sealed: cx.seal.seal(cx.entropy, id, &checked.stored.to_string())?,
        };
        Ok((target, reveal))
    }

    fn open(&self, seal: &Seal, id: &str) -> Result<Value, Fault> {
        let text = seal.open(id, &self.sealed)?;
        serde_json::from_str(text.reveal())
            .map_err(|_| Fault::bare(format!("reading the encrypted target of {id}")))
    }
}

/// Replaces texts that the check has spelled in its own way, such as durations and hosts, by those that were sent: clients
/// compare them. What differs from the stored form is redacted, and stays so.
fn show_as_sent(shown: &mut Value, stored: &Value, sent: &Value) {
    match (shown, stored, sent) {
        (Value::String(shown), Value::String(stored), Value::String(sent))
            if shown == stored && !sent.is_empty() =>
        {
            shown.clone_from(sent);
        }
        (Value::Array(shown), Value::Array(stored), Value::Array(sent))
            if shown.len() == stored.len() && shown.len() == sent.len() =>
        {
            for ((shown, stored), sent) in shown.iter_mut().zip(stored).zip(sent) {
                show_as_sent(shown, stored, sent);
            }
        }
        (Value::Object(shown), Value::Object(stored), Value::Object(sent)) => {
            for (name, shown) in shown {
                if let (Some(stored), Some(sent)) = (stored.get(name), sent.get(name)) {
                    show_as_sent(shown, stored, sent);
                }
            }
        }
        _ => {}
    }
}

fn check_format(format: &str) -> Result<(), Refusal> {
    let known = EventFormat::find(format).map(drop);
    known.ok_or_else(|| Refusal::of(code::TARGET_FORMAT_UNKNOWN))
}

/// The single target of a body, and its configuration.
fn only(given: Map<String, Value>) -> Result<(&'static str, Value), Refusal> {
    let mut found = None;
    for (name, value) in given {
        let known = TARGETS.into_iter().find(|known| *known == name);
        let is_public = PUBLIC_TARGETS.contains(&name.as_str());
        match (known, is_public) {
            (None, true) if value.is_null() => {}
            (None, _) => {
                let name: String = name.chars().take(64).collect();
                return Err(Refusal::new(
                    code::TARGET_TYPE_UNKNOWN,
                    format!(
                        "This build of culvert does not support the target `{name}`; supported targets: {}.",
                        TARGETS.join(", ")
                    ),
                ));
            }
            (Some(_), _) if value.is_null() => {}
            (Some(known), _) => {
                if found.replace((known, value)).is_some() {
                    return Err(Refusal::of(code::TARGET_NOT_SINGLE));
                }
            }
        }
    }
    found.ok_or_else(|| Refusal::of(code::TARGET_MISSING))
}

/// A target without the secrets that only sign our events and are never sent. A template writes any text, so its signature
/// counts as sent.
fn sent(target: &Value) -> Value {
    let mut target = target.clone();
    let is_unsent = !has_template(&target) || secrets(&target).is_none();
    if let Some(fields) = target.as_object_mut().filter(|_| is_unsent) {
        fields.remove("secrets");
    }
    target
}

fn secrets(target: &Value) -> Option<&Value> {
    target.get("secrets").filter(|secrets| !secrets.is_null())
}

fn has_template(target: &Value) -> bool {
    let template = target.get("body_template").and_then(Value::as_str);
    template.is_some_and(|text| !text.is_empty())
}

/// The fields of a stored target that decide where it sends, and how well that is protected, in its objects too. A stored
/// secret is kept only while they are unchanged: it must not be sent to an address, or in a way, that it was not given for.
/// An absent field counts as `null`.
fn addresses<'a>(name: &str, target: &'a Value) -> Vec<(&'a String, &'a Value)> {
    const MARKS: [&str; 12] = [
        "url",
        "uri",
        "endpoint",
        "broker",
        "site",
        "host",
        "port",
        "addr",
        "server",
        "tls",
        "security",
        "mechanism",
    ];
    /// Fields that only look like one: Splunk's `host` is metadata of each event.
    const OTHERS: [(&str, &str); 1] = [("splunk_hec", "host")];
    let fields = target.as_object().into_iter().flatten();
    let fields = fields
        .filter(|(field, value)| !value.is_null() && !OTHERS.contains(&(name, field.as_str())));
    let of_field =
        fields.flat_map(
            |(field, value)| match MARKS.iter().any(|mark| field.contains(mark)) {
                true => vec![(field, value)],
                false => addresses(name, value),
            },
        );
    of_field.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_names_are_those_of_the_table() {
        let table = culvert_destinations::TYPES.all().iter();
        assert_eq!(Vec::from_iter(table.map(|ty| ty.name)), TARGETS);
    }

    #[test]
    fn a_target_is_shown_as_it_was_sent_without_its_secrets() {
        let stored = json!({"url": "https://a.example/", "wait": "1h30m", "list": ["a", "b"], "token": "secret",
            "user_url": "https://u:p@a.example/", "n": 5, "default": "x", "of": {"wait": "1m"}});
        let mut shown = json!({"url": "https://a.example/", "wait": "1h30m", "list": ["a", "b"], "token": null,
            "user_url": "https://a.example/", "n": 5, "default": "x", "of": {"wait": "1m"}});
        let sent = json!({"url": "https://A.example", "wait": "90m", "list": ["A", "b"], "token": "secret",
            "user_url": "https://u:p@A.example/", "n": 5, "default": "", "of": {"wait": "60s"}});
        show_as_sent(&mut shown, &stored, &sent);
        assert_eq!(
            shown,
            json!({"url": "https://A.example", "wait": "90m", "list": ["A", "b"], "token": null,
                "user_url": "https://a.example/", "n": 5, "default": "x", "of": {"wait": "60s"}})
        );
    }

    #[test]
    fn metadata_of_events_is_no_address() {
        let of = |name, field: &str| {
            let target = json!({field: "a", "table": "t"});
            addresses(name, &target).len()
        };
        assert_eq!(of("splunk_hec", "host"), 0);
        assert_eq!(of("splunk_hec", "url"), 1);
        assert_eq!(of("another", "host"), 1);
        assert_eq!(of("smtp", "port"), 1);
    }

    #[test]
    fn a_weaker_protection_is_another_address() {
        let of = |target: Value| addresses("kafka", &target).len();
        let stored = json!({"brokers": ["a"], "tls": true, "client_id": null, "server_name": null,
            "sasl": {"mechanism": "scram-sha-256", "username": "u", "password": "p"}});
        assert_eq!(of(stored), 3);
        assert_eq!(of(json!({"brokers": ["a"]})), 1);
    }
}
