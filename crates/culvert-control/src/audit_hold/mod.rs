//! Hold: keeps the audit events that its filter selects beyond the retention (contract: audit 4).
//!
//! `retention` evaluates the holds before anything is deleted, and reports ends by time.

pub(crate) mod model;
pub(crate) mod retention;

use culvert_base::{Ksuid, Refusal, Timestamp, code, names};
use culvert_events::LogFilter;
use culvert_resources::cx::Cx;
use culvert_resources::input;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Draft, Resource, ResourceType};
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, Role};
use culvert_store::{Head, PageQuery};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::audit_hold::model::{AuditHold, Reason};
use crate::catalogue::catalogue;

/// The row of holds in the table of resources.
pub(crate) static TYPE: ResourceType = ResourceType::of::<AuditHold>();

/// Limit of the holds of an account, with those that ended. Concurrent creations may exceed it by their number.
const HOLDS_MAX: u32 = 100;

/// A new hold.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AuditHoldCreate", extend("required" = ["filter", "reason"]), transform = input::create_schema)]
pub(crate) struct Create {
    /// CEL condition, as in `GET /events`, at most 4096 bytes, without fields that only traffic events have: audit events that
    /// it selects are kept, and those for which it has no result because of a limit, a wrong type or their size. Required.
    #[schemars(length(min = 1, max = 4096))]
    filter: String,
    /// When the hold ends, an RFC 3339 time in the future, which is shown in UTC; by default when it is deleted.
    #[schemars(extend("format" = "date-time"))]
    until: String,
    /// Why events are kept, at most 1024 bytes. Required.
    #[schemars(with = "String", length(min = 1, max = 1024))]
    reason: Reason,
}

/// Changes to a hold.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AuditHoldUpdate", transform = input::update_schema)]
pub(crate) struct Update {
    /// When the hold ends, an RFC 3339 time in the future, which is shown in UTC; empty for when it is deleted. Not for a hold that ended.
    #[schemars(extend("pattern" = input::patterns::TIME_OR_EMPTY))]
    until: Option<String>,
    /// Why events are kept, at most 1024 bytes.
    #[schemars(with = "Option<String>", length(min = 1, max = 1024))]
    reason: Option<Reason>,
}

impl Resource for AuditHold {
    const DOC: &'static str = "Audit holds: legal holds, which keep audit events beyond the retention. Retention deletes \
        events from the oldest on, and stops before the first one that a hold keeps. Only admins see them.";
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        field("reason", Shape::Text),
    ]);
    const CREATE_NEEDS_BODY: bool = true;
    const WRITERS: Role = Role::Admin;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, _id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        LogFilter::compile_for_audit(catalogue(), &input.filter)?;
        let hold = Self {
            format: Format,
            filter: input.filter,
            until: end(cx, &input.until)?,
            reason: given(input.reason)?,
            ended_at: None,
        };
        check_room(cx).await?;
        Ok(Draft::of(hold))
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        _head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        if let Some(until) = input.until {
            if self.ended_at.is_some() {
                let why = "The hold ended, and events may be gone; create another one.";
                return Err(Refusal::new(code::BODY_FIELD_INVALID, why).into());
            }
            self.until = end(cx, &until)?;
        }
        if let Some(reason) = input.reason {
            self.reason = given(reason)?;
        }
        Ok(Draft::of(self))
    }

    fn permit(caller: &Caller) -> Result<(), Refusal> {
        caller.must_be_admin("Only admins may create, change and delete holds of audit events.")
    }
}

/// When a hold ends. Codes 215 and 241.
fn end(cx: &Cx<'_>, text: &str) -> Result<Option<Timestamp>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let end = Timestamp::parse(text);
    let end =
        end.ok_or_else(|| Refusal::new(code::TIME_MALFORMED, "`until` must be an RFC 3339 time."))?;
    if end <= cx.clock.now() {
        let why = "`until` must be in the future; delete the hold to end it now.";
        return Err(Refusal::new(code::BODY_FIELD_INVALID, why));
    }
    Ok(Some(end))
}

fn given(reason: Reason) -> Result<Reason, Refusal> {
    let is_shown = |character: char| !character.is_whitespace() && !names::is_deceptive(character);
    match !reason.chars().any(is_shown) {
        true => Err(Refusal::new(
            code::BODY_FIELD_INVALID,
            "`reason` must say why events are kept.",
        )),
        false => Ok(reason),
    }
}

/// Refuses more holds than the limit (5410).
async fn check_room(cx: &Cx<'_>) -> Result<(), Error> {
    let query = PageQuery {
        kind: AuditHold::KIND.to_owned(),
        account: cx.caller.account.clone(),
        before: None,
        limit: HOLDS_MAX,
        refs_to: None,
    };
    let n_holds = cx.store.page(&query).await?.len();
    if n_holds >= HOLDS_MAX as usize {
        let why =
            format!("There are {HOLDS_MAX} holds, which is the limit; delete those that ended.");
        return Err(Refusal::new(code::AUDIT_HOLDS_TOO_MANY, why).into());
    }
    Ok(())
}
