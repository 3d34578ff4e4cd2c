//! Events of invitations. An invitation is part of its user, so they come beside the events of users.

use culvert_base::{Fault, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_resources::access::user::{Invitation, User};
use culvert_resources::audit;
use culvert_resources::cx::Cx;
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;

/// The kind of the event of an invited person.
pub const INVITATION_CREATED: &str = "invitation_created.v0";
/// The kind of the event of an invitation that ended.
pub const INVITATION_DELETED: &str = "invitation_deleted.v0";

/// The object of these events.
#[derive(Serialize, JsonSchema)]
struct Shown<'a> {
    /// The invited user.
    id: &'a str,
    /// E-mail address of the invited person.
    email: &'a str,
    /// When the invitation expires, or would have expired.
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
    /// Why it ended; null for a new one.
    reason: Option<Ended>,
}

/// Why an invitation ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The person accepted it.
    Accepted,
    /// A new one replaced it.
    Replaced,
    /// Its user was deactivated or deleted.
    Revoked,
    /// It was reported as leaked.
    Leaked,
}

/// The kinds of events about invitations.
pub fn kinds() -> [AuditKind; 2] {
    let schema = audit::schema_of::<Shown<'static>>();
    [
        (INVITATION_CREATED, "A person was invited."),
        (
            INVITATION_DELETED,
            "An invitation was accepted, replaced or revoked; see `reason`. One that expires has no event.",
        ),
    ]
    .map(|(name, doc)| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    })
}

/// The event of a new invitation of the user with this ID.
pub fn created(
    cx: &Cx<'_>,
    (id, email): (&str, &str),
    invitation: &Invitation,
) -> Result<Changes, Fault> {
    let object = Shown {
        id,
        email,
        expires_at: invitation.until,
        reason: None,
    };
    Ok(Changes::event(audit::operation(
        cx,
        INVITATION_CREATED,
        &object,
    )?))
}

/// The event of the end of a user's invitation; none without an invitation.
pub fn ended(cx: &Cx<'_>, (id, user): (&str, &User), reason: Ended) -> Result<Changes, Fault> {
    let Some(invitation) = &user.invitation else {
        return Ok(Changes::default());
    };
    let object = Shown {
        id,
        email: &user.email,
        expires_at: invitation.until,
        reason: Some(reason),
    };
    Ok(Changes::event(audit::operation(
        cx,
        INVITATION_DELETED,
        &object,
    )?))
}
