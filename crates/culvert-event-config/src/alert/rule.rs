//! Alert rule: for which condition on which objects there are alerts, and who gets them. Only admins see and write them.

use culvert_base::{Description, Ksuid, Metadata, Refusal, Timestamp, code, id, names};
use culvert_resources::access::Referrer;
use culvert_resources::cx::Cx;
use culvert_resources::input::{self, patterns};
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Role};
use culvert_store::{Changes, Head, PageQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::alert::condition::{Condition, ConditionInput, invalid};
use crate::alert::rule_model::{AlertRule, RuleName, Severity};
use crate::destination;
use crate::destination::model::EventDestination;
use crate::subscription::check_destinations;
use culvert_resources::input::period::Period;

/// The row of alert rules in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<AlertRule>();

/// Limit of the rules of an account. Concurrent creations may exceed it by their number.
const RULES_MAX: u32 = 50;
/// Limit of the objects that a rule names.
const OBJECTS_MAX: usize = 100;
/// Limit of the destinations of a rule.
const DESTINATIONS_MAX: usize = 10;
/// The longest time that a condition must be true, and the bounds of the time between two repetitions, in seconds.
const LASTING_MAX: u64 = 30 * 86_400;
const REPEAT_MIN: u64 = 60;
const REPEAT_MAX: u64 = 30 * 86_400;

/// A new alert rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AlertRuleCreate", extend("required" = ["name", "condition"]), transform = input::create_schema)]
pub struct Create {
    /// What alerts call it, at most 255 bytes. Required.
    #[schemars(with = "String", length(min = 1, max = 255))]
    name: RuleName,
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// What must be true of an object. Required.
    condition: ConditionInput,
    /// IDs of the objects to watch, at most 100; empty for all.
    #[schemars(extend("maxItems" = OBJECTS_MAX))]
    object_ids: Vec<String>,
    /// `info`, `warning` (default) or `critical`.
    #[schemars(extend("enum" = SEVERITIES))]
    severity: String,
    /// How long the condition must be true before an alert fires, such as `5m`, at most `30d`; default: `0s`.
    #[serde(rename = "for")]
    #[schemars(extend("pattern" = patterns::DURATION))]
    lasting: String,
    /// How often an alert is repeated while it fires, `1m` to `30d`; default: never.
    #[schemars(extend("pattern" = patterns::DURATION))]
    repeat_every: String,
    /// Until when nothing is sent, an RFC 3339 time, which is shown in UTC; what still fires then is sent.
    #[schemars(extend("format" = "date-time"))]
    silenced_until: String,
    /// Whether it is evaluated; default: true.
    enabled: Option<bool>,
    /// IDs of event destinations, at most 10, that get its alerts without a subscription.
    #[schemars(extend("items" = {"type": "string", "pattern": input::id_pattern(EventDestination::PREFIXES)}))]
    destination_ids: Vec<String>,
}

/// Changes to an alert rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AlertRuleUpdate", transform = input::update_schema)]
pub struct Update {
    /// What alerts call it, at most 255 bytes.
    #[schemars(with = "Option<String>", length(min = 1, max = 255))]
    name: Option<RuleName>,
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Replaces the condition. Open alerts of another condition are resolved.
    condition: Option<ConditionInput>,
    /// Replaces the objects to watch; an empty list watches all.
    #[schemars(extend("maxItems" = OBJECTS_MAX))]
    object_ids: Option<Vec<String>>,
    /// `info`, `warning` or `critical`.
    #[schemars(extend("enum" = SEVERITIES))]
    severity: Option<String>,
    /// How long the condition must be true before an alert fires, such as `5m`, at most `30d`.
    #[serde(rename = "for")]
    #[schemars(extend("pattern" = patterns::DURATION))]
    lasting: Option<String>,
    /// How often an alert is repeated while it fires, `1m` to `30d`; `0s` or empty for never.
    #[schemars(extend("pattern" = patterns::DURATION_OR_EMPTY))]
    repeat_every: Option<String>,
    /// Until when nothing is sent, an RFC 3339 time, which is shown in UTC; empty ends the silence.
    #[schemars(extend("pattern" = patterns::TIME_OR_EMPTY))]
    silenced_until: Option<String>,
    /// Whether it is evaluated. Open alerts of a rule that is not are resolved.
    enabled: Option<bool>,
    /// Replaces the event destinations that get its alerts without a subscription.
    #[schemars(extend("items" = {"type": "string", "pattern": input::id_pattern(EventDestination::PREFIXES)}))]
    destination_ids: Option<Vec<String>>,
}

const SEVERITIES: [&str; 3] = ["info", "warning", "critical"];

impl Resource for AlertRule {
    const DOC: &'static str = "Alert rules: conditions on agents, certificates, event destinations, traffic, keys and sign-ins. \
        While one is true of an object, there is an alert. Only admins see and write them.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        field("name", Shape::Text),
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("enabled", Shape::Flag),
    ]);
    const UNKNOWN: Option<culvert_base::Code> = Some(code::DESTINATION_UNKNOWN);
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        let name = given(input.name)?;
        let condition = input.condition.check()?;
        let object_ids = check_objects(cx, &condition, input.object_ids).await?;
        let id = format!("{}_{id}", Self::ID_PREFIX);
        let (destination_ids, held) = check_targets(cx, &id, input.destination_ids, &[]).await?;
        let rule = Self {
            format: Format,
            name,
            description: input.description,
            metadata: input.metadata,
            condition,
            object_ids,
            severity: severity(&input.severity)?,
            lasting: lasting(&input.lasting)?,
            repeat_every: repetition(&input.repeat_every)?,
            silenced_until: silence(&input.silenced_until)?,
            enabled: input.enabled.unwrap_or(true),
            destination_ids,
            is_default: false,
            error: None,
        };
        check_room(cx).await?;
        Ok(Draft {
            also: held,
            ..Draft::of(rule)
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(name) = input.name {
            self.name = given(name)?;
        }
        let kind = self.condition.kind();
        if let Some(condition) = input.condition {
            self.condition = condition.check()?;
        }
        // Objects may have been deleted since they were named.
        if input.object_ids.is_some() || self.condition.kind() != kind {
            let ids = input.object_ids.unwrap_or(self.object_ids);
            self.object_ids = check_objects(cx, &self.condition, ids).await?;
        }
        if let Some(text) = input.severity {
            self.severity = severity(&text)?;
        }
        if let Some(text) = input.lasting {
            self.lasting = lasting(&text)?;
        }
        if let Some(text) = input.repeat_every {
            self.repeat_every = repetition(&text)?;
        }
        if let Some(text) = input.silenced_until {
            self.silenced_until = silence(&text)?;
        }
        let mut held = Changes::default();
        if let Some(ids) = input.destination_ids {
            (self.destination_ids, held) =
                check_targets(cx, &head.id, ids, &self.destination_ids).await?;
        }
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);
        self.enabled = input.enabled.unwrap_or(self.enabled);
        Ok(Draft {
            also: held,
            ..Draft::of(self)
        })
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        caller.must_be_admin("Only admins may create, change and delete alert rules.")
    }
}

fn value_invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::new(code::BODY_FIELD_INVALID, why)
}

fn given(name: RuleName) -> Result<RuleName, Refusal> {
    let is_shown = |character: char| !character.is_whitespace() && !names::is_deceptive(character);
    match name.chars().any(is_shown) {
        true => Ok(name),
        false => Err(value_invalid("`name` must say what the rule is for.")),
    }
}

fn severity(text: &str) -> Result<Severity, Refusal> {
    if text.is_empty() {
        return Ok(Severity::default());
    }
    let mut all = Severity::ALL.into_iter();
    let found = all.find(|severity| severity.name() == text);
    found.ok_or_else(|| value_invalid("`severity` must be `info`, `warning` or `critical`."))
}

fn lasting(text: &str) -> Result<Period, Refusal> {
    let period = match text {
        "" => Some(Period::of_seconds(0)),
        text => Period::parse(text),
    };
    let period = period.filter(|period| period.seconds() <= LASTING_MAX);
    period.ok_or_else(|| value_invalid("`for` must be a length of time such as `5m`, at most 30d."))
}

fn repetition(text: &str) -> Result<Period, Refusal> {
    let period = match text {
        "" => Some(Period::of_seconds(0)),
        text => Period::parse(text),
    };
    let is_good = |period: &Period| {
        period.seconds() == 0 || (REPEAT_MIN..=REPEAT_MAX).contains(&period.seconds())
    };
    period.filter(is_good).ok_or_else(|| {
        value_invalid(
            "`repeat_every` must be a length of time such as `4h`, from 1m to 30d, or 0s.",
        )
    })
}

fn silence(text: &str) -> Result<Option<Timestamp>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let why = "`silenced_until` must be an RFC 3339 time.";
    let until = Timestamp::parse(text);
    until
        .map(Some)
        .ok_or_else(|| Refusal::new(code::TIME_MALFORMED, why))
}

/// Removes duplicates; refuses objects of other kinds than those of the condition, and those that do not exist (5412).
async fn check_objects(
    cx: &Cx<'_>,
    condition: &Condition,
    ids: Vec<String>,
) -> Result<Vec<String>, Error> {
    if ids.len() > OBJECTS_MAX {
        return Err(invalid(format!("`object_ids` has more than {OBJECTS_MAX} IDs.")).into());
    }
    let prefixes = condition.prefixes();
    let mut known: Vec<String> = Vec::new();
    for (index, given) in ids.into_iter().enumerate() {
        let prefix = id::split(&given).map(|(prefix, _)| prefix);
        let ty = prefix.filter(|prefix| prefixes.contains(prefix));
        let ty = ty.and_then(|prefix| cx.resources.iter().find(|ty| ty.id_prefix == prefix));
        let found = match ty {
            Some(ty) => cx.own(ty.kind, &given).await?,
            None => None,
        };
        if found.is_none() {
            let kind = condition.kind();
            return Err(invalid(format!(
                "`object_ids[{index}]` is no object that a condition of the type `{kind}` is about."
            ))
            .into());
        }
        if !known.contains(&given) {
            known.push(given);
        }
    }
    Ok(known)
}

/// The destinations, with what must be written and hold for them: they get events that only admins may see.
async fn check_targets(
    cx: &Cx<'_>,
    rule_id: &str,
    ids: Vec<String>,
    before: &[String],
) -> Result<(Vec<String>, Changes), Error> {
    if ids.len() > DESTINATIONS_MAX {
        let why = format!("`destination_ids` has more than {DESTINATIONS_MAX} IDs.");
        return Err(value_invalid(why).into());
    }
    let referrer = Referrer {
        owner_id: &cx.caller.owner_id,
        id: rule_id,
    };
    let (ids, held) = check_destinations(cx, referrer, ids, before).await?;
    let noted = destination::note_private(cx, &ids).await?;
    Ok((ids, noted.and(held)))
}

/// Refuses more rules than the limit (5411).
async fn check_room(cx: &Cx<'_>) -> Result<(), Error> {
    let query = PageQuery {
        kind: AlertRule::KIND.to_owned(),
        account: cx.caller.account.clone(),
        before: None,
        limit: RULES_MAX,
        refs_to: None,
    };
    if cx.store.page(&query).await?.len() >= RULES_MAX as usize {
        let why = format!("There are {RULES_MAX} alert rules, which is the limit.");
        return Err(Refusal::new(code::ALERT_RULES_TOO_MANY, why).into());
    }
    Ok(())
}
