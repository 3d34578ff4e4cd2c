//! Stored form and view of the alert rule.

use culvert_base::{Bounded, Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alert::condition::Condition;
use crate::destination::model::EventDestination;
use culvert_resources::input::period::Period;

/// At most 255 bytes.
pub type RuleName = Bounded<255>;

/// How serious an alert is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "comments without the schema's descriptions")]
pub enum Severity {
    Info,
    #[default]
    Warning,
    Critical,
}

impl Severity {
    /// All of them, from the least.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// As in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// The stored form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AlertRule {
    /// Version of the stored form.
    pub format: Format<1>,
    /// What alerts call it.
    pub name: RuleName,
    /// What it is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// What must be true of an object.
    pub condition: Condition,
    /// The objects that it watches; empty for all.
    pub object_ids: Vec<String>,
    /// Of its alerts.
    pub severity: Severity,
    /// How long the condition must be true.
    #[serde(rename = "for")]
    pub lasting: Period,
    /// How often an alert is repeated while it fires; zero for never.
    pub repeat_every: Period,
    /// Until when its alerts have no events.
    pub silenced_until: Option<Timestamp>,
    /// Whether it is evaluated.
    pub enabled: bool,
    /// Destinations that get its alerts without a subscription.
    pub destination_ids: Vec<String>,
    /// Whether it is one of the default rules, which the setting `alerts.defaults` switches off.
    #[serde(default)]
    pub is_default: bool,
    /// Why it could not be evaluated last.
    #[serde(default)]
    pub error: Option<String>,
}

/// An alert rule as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AlertRule")]
pub struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    updated_at: Timestamp,
    name: &'a str,
    description: &'a str,
    metadata: &'a str,
    condition: &'a Condition,
    /// IDs of the objects that it watches; empty for all.
    object_ids: &'a [String],
    severity: Severity,
    /// How long the condition must be true before an alert fires, such as `5m`.
    #[serde(rename = "for")]
    #[schemars(with = "String")]
    lasting: Period,
    /// How often an alert is repeated while it fires; `0s` for never.
    #[schemars(with = "String")]
    repeat_every: Period,
    /// Until when nothing is sent; `null` if it is not silenced.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    silenced_until: Option<Timestamp>,
    enabled: bool,
    /// Destinations that get its alerts without a subscription.
    destinations: Vec<Reference<'a>>,
    /// Whether it is one of the default rules, which the setting `alerts.defaults` switches off.
    is_default: bool,
    /// Why it could not be evaluated last; `null` if it was. While it cannot be evaluated, its alerts do not change.
    error: Option<&'a str>,
}

impl Model for AlertRule {
    const NAME: &'static str = "alert_rule";
    const COLLECTION: &'static str = "alert_rules";
    const LIST_FIELD: &'static str = "alert_rules";
    const ID_PREFIX: &'static str = "arl";
    const RIGHTS: Rights = Rights {
        see: See::Owner,
        use_by: Use::Nothing,
        change: Change::Admins,
    };
    const OWNED_BY: Option<&'static str> = None;
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let destinations = self.destination_ids.iter();
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            updated_at: head.updated_at,
            name: &self.name,
            description: &self.description,
            metadata: &self.metadata,
            condition: &self.condition,
            object_ids: &self.object_ids,
            severity: self.severity,
            lasting: self.lasting,
            repeat_every: self.repeat_every,
            silenced_until: self.silenced_until,
            enabled: self.enabled,
            destinations: destinations
                .map(|id| Reference::to(base, EventDestination::COLLECTION, id))
                .collect(),
            is_default: self.is_default,
            error: self.error.as_deref(),
        }
    }

    fn links(&self, _head: &Head) -> Links {
        let destinations = self.destination_ids.iter();
        Links {
            refs: destinations
                .map(|id| Ref::new("destination_ids", id, OnDelete::Block))
                .collect(),
            ..Links::default()
        }
    }
}
