//! Builds the audit event of a write: the kind from the resource's name, the object from its view.
//!
//! The object of an event is the view in the same order, without the fields that the resource keeps out of
//! events. So an event shows what the API shows, and cannot show anything that is not stored.

use culvert_base::{Fault, Timestamp};
use culvert_events::{EventId, Principal, Reference, encode};
use culvert_store::AuditEvent;
use indexmap::IndexMap;
use serde_json::value::RawValue;

use crate::cx::Cx;
use crate::event_kinds::{Verb, kind_name};
use crate::resource::model::Uri;
use crate::resource::resource_type::ResourceType;

/// The event of a write that creates or updates an object with this view, or removes it.
pub(crate) fn event(
    cx: &Cx<'_>,
    ty: &ResourceType,
    verb: Verb,
    view: &str,
) -> Result<AuditEvent, Fault> {
    // A person who signed in to the console has none.
    let has_key = !cx.caller.key_id.is_empty();
    let principal = Principal {
        id: cx.caller.owner_id.clone(),
        subject: cx.caller.subject.clone(),
        source: if has_key { "API" } else { "Dashboard" },
        credential: has_key.then(|| Reference {
            id: cx.caller.key_id.clone(),
            uri: Uri {
                base: cx.base,
                collection: "api_keys",
                id: &cx.caller.key_id,
            }
            .to_string(),
        }),
    };
    let at = cx.clock.now();
    let id = EventId::new(at, cx.entropy.bytes());
    event_by(
        Some(&principal),
        &id,
        at,
        &cx.caller.account,
        ty,
        verb,
        view,
    )
}

/// The event of a write by the server itself (no principal) or by another principal.
pub(crate) fn event_by(
    principal: Option<&Principal>,
    id: &str,
    at: Timestamp,
    account: &str,
    ty: &ResourceType,
    verb: Verb,
    view: &str,
) -> Result<AuditEvent, Fault> {
    if let Some(why) = ty.silent {
        return Ok(AuditEvent::Suppress { reason: why });
    }
    let unreadable = |error| Fault::new("reading a view for its event", error);
    let kind = kind_name(ty.name, verb);
    let event = if ty.not_in_events.is_empty() {
        let object: &RawValue = serde_json::from_str(view).map_err(unreadable)?;
        encode::audit(&kind, at, id, account, principal, &object)?
    } else {
        let mut object: IndexMap<&str, &RawValue> =
            serde_json::from_str(view).map_err(unreadable)?;
        object.retain(|name, _| !ty.not_in_events.contains(name));
        encode::audit(&kind, at, id, account, principal, &object)?
    };
    Ok(AuditEvent::Emit(event))
}
