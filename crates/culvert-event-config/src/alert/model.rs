//! Stored form and view of the alert, and the object of its events.

use culvert_base::Timestamp;
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alert::rule_model::Severity;
use crate::event_kinds::{ALERT_FIRED, ALERT_RESOLVED};

/// Name of the unique key: a rule has one open alert about an object.
pub const OPEN: &str = "open";

/// Whether an alert goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "comments without the schema's descriptions")]
pub enum State {
    Firing,
    Resolved,
}

/// Why an alert is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
#[allow(missing_docs, reason = "comments without the schema's descriptions")]
pub enum Reason {
    // The condition is not true any more.
    Recovered,
    // The object is gone.
    SubjectDeleted,
    // The condition or the objects of the rule changed.
    RuleChanged,
    RuleDisabled,
    RuleDeleted,
}

/// The object that an alert is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Subject {
    /// The kind of the object, such as `endpoint`.
    pub kind: String,
    /// ID of the object. `others`, or `others_` and the ID of their owner, for those beyond the limit of open alerts.
    pub id: String,
    /// What people call it: its description, URL or names, or its ID.
    pub name: String,
}

/// The stored form.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Alert {
    /// Version of the stored form.
    pub format: Format<1>,
    /// ID of the rule.
    pub rule_id: String,
    /// Name of the rule.
    pub rule_name: String,
    /// The kind of its condition.
    pub condition: String,
    /// As the rule says.
    pub severity: Severity,
    /// Whether it goes on.
    pub state: State,
    /// One sentence.
    pub summary: String,
    /// What it is about.
    pub subject: Subject,
    /// ID of the owner of the object; empty if it belongs to the admins.
    pub owner_id: String,
    /// What was measured.
    pub value: f64,
    /// The bound of the condition.
    pub threshold: f64,
    /// When it fired.
    pub fired_at: Timestamp,
    /// When it was resolved.
    pub resolved_at: Option<Timestamp>,
    /// Why it was resolved.
    pub reason: Option<Reason>,
    /// How often it was repeated.
    pub repetition: u32,
    /// When its last event was written; `None` before the first, because the rule is silenced.
    pub sent_at: Option<Timestamp>,
    /// Whether the event of its end waits for the end of a silence.
    #[serde(default)]
    pub owes_end: bool,
    /// Destinations that get its events without a subscription.
    pub destination_ids: Vec<String>,
}

/// An alert as its events and the API show it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AlertObject<'a> {
    /// ID of the alert, the same until it is resolved.
    id: &'a str,
    /// ID of the rule, which may be gone.
    rule_id: &'a str,
    /// Name of the rule.
    rule_name: &'a str,
    /// The kind of the rule's condition, such as `error_rate`.
    condition: &'a str,
    severity: Severity,
    state: State,
    /// One sentence: what, which object, the measured value and the bound.
    summary: &'a str,
    /// The object that it is about.
    subject: &'a Subject,
    /// What was measured last: seconds, a share, milliseconds or a count, as the condition has it.
    value: f64,
    /// The bound, in the same unit.
    threshold: f64,
    /// When it fired.
    #[schemars(with = "String", extend("format" = "date-time"))]
    fired_at: Timestamp,
    /// When it was resolved; null while it fires.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    resolved_at: Option<Timestamp>,
    /// Why it was resolved; null while it fires.
    reason: Option<Reason>,
    /// How often it was repeated; 0 for the first event.
    repetition: u32,
}

/// An alert in the API.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Alert")]
pub struct View<'a> {
    #[schemars(with = "String")]
    uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    #[serde(flatten)]
    alert: AlertObject<'a>,
    /// When its last event was written; `null` if a silence withholds the first one.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    sent_at: Option<Timestamp>,
}

impl Alert {
    /// The object of its events.
    pub fn object<'a>(&'a self, id: &'a str) -> AlertObject<'a> {
        AlertObject {
            id,
            rule_id: &self.rule_id,
            rule_name: &self.rule_name,
            condition: &self.condition,
            severity: self.severity,
            state: self.state,
            summary: &self.summary,
            subject: &self.subject,
            value: self.value,
            threshold: self.threshold,
            fired_at: self.fired_at,
            resolved_at: self.resolved_at,
            reason: self.reason,
            repetition: self.repetition,
        }
    }

    /// The kind of the event of its state.
    pub fn event_kind(&self) -> &'static str {
        match self.state {
            State::Firing => ALERT_FIRED,
            State::Resolved => ALERT_RESOLVED,
        }
    }
}

impl Model for Alert {
    const NAME: &'static str = "alert";
    const COLLECTION: &'static str = "alerts";
    const LIST_FIELD: &'static str = "alerts";
    const ID_PREFIX: &'static str = "alr";
    const RIGHTS: Rights = Rights {
        see: See::Owner,
        use_by: Use::Nothing,
        change: Change::Admins,
    };
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            alert: self.object(&head.id),
            sent_at: self.sent_at,
        }
    }

    /// An open alert has a unique key, so that two nodes cannot both fire it. Its destinations get all events about it.
    fn links(&self, head: &Head) -> Links {
        let (rule, subject) = (&self.rule_id, &self.subject);
        let key = Key::new(OPEN, format!("{rule} {} {}", subject.kind, subject.id));
        let topics = self.destination_ids.iter().map(|destination| Topic {
            kind: Topic::about(&head.id),
            destination: destination.clone(),
        });
        Links {
            keys: Vec::from_iter((self.state == State::Firing).then_some(key)),
            refs: Vec::new(),
            topics: topics.collect(),
        }
    }
}
