//! Stored form and view of the hold.

use culvert_base::{Bounded, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// At most 1024 bytes.
pub(crate) type Reason = Bounded<1024>;

/// The stored form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct AuditHold {
    pub(crate) format: Format<1>,
    /// A condition on audit events, as in `GET /events`.
    pub(crate) filter: String,
    /// When it ends; `None` for when it is deleted.
    pub(crate) until: Option<Timestamp>,
    pub(crate) reason: Reason,
    /// When its end was reported. Until then it keeps events, also after `until`.
    pub(crate) ended_at: Option<Timestamp>,
}

/// A hold as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditHold")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    updated_at: Timestamp,
    /// CEL condition; the events that it selects are kept.
    filter: &'a str,
    /// When the hold ends; `null` for when it is deleted.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    until: Option<Timestamp>,
    reason: &'a str,
    /// When it ended because of its time; `null` while it keeps events.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    ended_at: Option<Timestamp>,
}

impl Model for AuditHold {
    const NAME: &'static str = "audit_hold";
    const COLLECTION: &'static str = "audit_holds";
    const LIST_FIELD: &'static str = "audit_holds";
    const ID_PREFIX: &'static str = "ah";
    const RIGHTS: Rights = Rights {
        see: See::Owner,
        use_by: Use::Nothing,
        change: Change::Admins,
    };
    const OWNED_BY: Option<&'static str> = None;
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            updated_at: head.updated_at,
            filter: &self.filter,
            until: self.until,
            reason: &self.reason,
            ended_at: self.ended_at,
        }
    }
}
