//! Stored form and view of the event destination.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// The types of targets, sorted by name: the names of the table that the program hands in.
pub(crate) const TARGETS: [&str; 27] = [
    "azure_logs_ingestion",
    "clickhouse",
    "cloudwatch_logs",
    "datadog",
    "debug",
    "discord",
    "elasticsearch",
    "eventbridge",
    "file",
    "firehose",
    "kafka",
    "kinesis",
    "loki",
    "nats",
    "ntfy",
    "otlp",
    "pagerduty",
    "postgres",
    "pubsub",
    "rabbitmq",
    "s3",
    "slack",
    "smtp",
    "splunk_hec",
    "sqs",
    "syslog",
    "webhook",
];

/// Keys that every view of a target has, used or not.
pub(crate) const PUBLIC_TARGETS: [&str; 5] = [
    "azure_logs_ingestion",
    "cloudwatch_logs",
    "datadog",
    "firehose",
    "kinesis",
];

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct EventDestination {
    /// Version of the stored form.
    pub version: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the destination is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// As sent: `json`, `ocsf` or `ecs` in any letter case.
    pub format: String,
    /// Where it sends events.
    pub target: StoredTarget,
    /// Whether a subscription or a replay has sent it events about keys and credentials. Some may still be
    /// queued after that has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_private: bool,
}

/// Where a destination sends events, with its secrets encrypted.
#[derive(Debug, Deserialize, Serialize)]
pub struct StoredTarget {
    /// Key of the target, such as `webhook`.
    pub name: String,
    /// The configuration as shown.
    pub shown: Value,
    /// The whole configuration, encrypted.
    pub sealed: String,
}

/// An event destination as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDestination")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    pub(crate) metadata: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    /// Event format: `json`, `ocsf` or `ecs`, in the letter case in which it was set. Empty for callers other than the owner
    /// and admins.
    pub(crate) format: &'a str,
    /// Current target without secrets; the keys of other targets are `null`. Callers other than the owner and admins get
    /// no target and no metadata.
    #[schemars(schema_with = "shown_target_schema")]
    pub(crate) target: ShownTarget<'a>,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
}

#[derive(Debug)]
pub(crate) struct ShownTarget<'a>(Option<&'a StoredTarget>);

impl Serialize for ShownTarget<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let own = self.0.map_or("", |target| &target.name);
        for name in PUBLIC_TARGETS.iter().filter(|name| **name != own) {
            map.serialize_entry(name, &None::<()>)?;
        }
        if let Some(target) = self.0 {
            map.serialize_entry(&target.name, &target.shown)?;
        }
        map.end()
    }
}

/// The schema of the view of a target: the keys of [`PUBLIC_TARGETS`] are always present, and secrets are `null`.
pub(crate) fn shown_target_schema(_: &mut SchemaGenerator) -> Schema {
    let null = || json_schema!({ "type": ["object", "null"] }).to_value();
    let object = || json_schema!({ "type": "object" }).to_value();
    let ours = TARGETS.iter().map(|name| (*name, object()));
    let public = PUBLIC_TARGETS.iter().map(|name| (*name, null()));
    // For a name in both lists, the last entry wins.
    let properties: Map<String, Value> = ours
        .chain(public)
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    json_schema!({
        "type": "object",
        "required": PUBLIC_TARGETS,
        "properties": properties,
    })
}

impl Model for EventDestination {
    const NAME: &'static str = "event_destination";
    const COLLECTION: &'static str = "event_destinations";
    const LIST_FIELD: &'static str = "event_destinations";
    const ID_PREFIX: &'static str = "ed";
    const RIGHTS: Rights = Rights {
        see: See::Outline,
        use_by: Use::Grant,
        change: Change::Owner,
    };
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        // Others need to know which destinations there are, and nothing else.
        let is_whole = base.shows_fields_of(&self.owner_id);
        View {
            id: &head.id,
            metadata: if is_whole { &self.metadata } else { "" },
            created_at: head.created_at,
            description: &self.description,
            format: if is_whole { &self.format } else { "" },
            target: ShownTarget(is_whole.then_some(&self.target)),
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
        }
    }
}
