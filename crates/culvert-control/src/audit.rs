//! From a write to its audit event: the kind from the resource's name, the object from its view.
//!
//! The object of an event is the view without the fields the resource keeps out of events, in the
//! order of the view. So an event shows what the API shows, and cannot show what is not stored.

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_events::catalogue::AuditKind;
use culvert_events::{EventId, Principal, Reference, encode};
use culvert_store::Told;
use indexmap::IndexMap;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cx::Cx;
use crate::resource::{self, ResourceType, Uri};
use crate::{Caller, Role, gate};

/// What was done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Created,
    Updated,
    Deleted,
}

impl Verb {
    const ALL: [Self; 3] = [Self::Created, Self::Updated, Self::Deleted];

    const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

/// What is told of a write that leaves (or, for a removal, left) an object with this view.
pub(crate) fn told(cx: &Cx<'_>, ty: &ResourceType, verb: Verb, view: &str) -> Result<Told, Fault> {
    let principal = Principal {
        id: cx.caller.owner_id.clone(),
        subject: cx.caller.subject.clone(),
        source: "API",
        credential: Some(Reference {
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
    told_by(
        Some(&principal),
        &id,
        at,
        &cx.caller.account,
        ty,
        verb,
        view,
    )
}

/// The same for what the server does itself, or for another principal.
pub(crate) fn told_by(
    principal: Option<&Principal>,
    id: &str,
    at: Timestamp,
    account: &str,
    ty: &ResourceType,
    verb: Verb,
    view: &str,
) -> Result<Told, Fault> {
    if let Some(why) = ty.silent {
        return Ok(Told::Nothing { why });
    }
    let unreadable = |error| Fault::new("reading a view for its event", error);
    let kind = kind_name(ty, verb);
    let event = if ty.not_in_events.is_empty() {
        let object: &RawValue = serde_json::from_str(view).map_err(unreadable)?;
        encode::audit(&kind, at, id, account, principal, &object)?
    } else {
        let mut object: IndexMap<&str, &RawValue> =
            serde_json::from_str(view).map_err(unreadable)?;
        object.retain(|name, _| !ty.not_in_events.contains(name));
        encode::audit(&kind, at, id, account, principal, &object)?
    };
    Ok(Told::Event(event))
}

/// `api_key_created.v0`.
pub(crate) fn kind_name(ty: &ResourceType, verb: Verb) -> String {
    format!("{}_{}.v0", ty.name, verb.name())
}

/// Whether an audit event of this kind exists.
pub(crate) fn is_kind(name: &str) -> bool {
    names().any(|kind| kind == name)
}

/// Whether events of this kind are about keys or credentials, which exist for their owners and for admins
/// alone. Those of agents' sessions name the credential.
pub(crate) fn is_private(name: &str) -> bool {
    let mut private = resource::ALL.iter().filter(|ty| ty.is_private);
    private.any(|ty| Verb::ALL.iter().any(|verb| kind_name(ty, *verb) == name))
        || gate::NAMES.contains(&name)
}

/// Refuses events about keys and credentials to anybody but admins (630).
pub(crate) fn may_follow(caller: &Caller, name: &str) -> Result<(), Refusal> {
    if caller.role == Role::Admin || !is_private(name) {
        return Ok(());
    }
    let why = format!(
        "Events of the type `{name}` tell about keys and credentials of every owner; only admins follow \
         and subscribe to them."
    );
    Err(Refusal::new(code::NOT_ADMIN, why))
}

/// The name of every kind of audit event.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let audited = resource::ALL.iter().filter(|ty| ty.silent.is_none());
    audited
        .flat_map(|ty| Verb::ALL.map(|verb| kind_name(ty, verb)))
        .chain(gate::NAMES.map(str::to_owned))
}

/// Every kind of audit event, with the schema of its object.
pub(crate) fn kinds() -> Vec<AuditKind> {
    let audited = resource::ALL.iter().filter(|ty| ty.silent.is_none());
    audited
        .flat_map(|ty| {
            let schema = object_schema(ty);
            Verb::ALL.map(|verb| AuditKind {
                name: kind_name(ty, verb),
                doc: doc(ty, verb),
                schema: schema.clone(),
            })
        })
        .chain(gate::kinds())
        .collect()
}

fn doc(ty: &ResourceType, verb: Verb) -> String {
    let object = ty.with_article();
    let behind = object.strip_prefix('a').unwrap_or(&object);
    format!("A{behind} was {}.", verb.name())
}

fn object_schema(ty: &ResourceType) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator();
    let mut schema = (ty.view_schema)(&mut generator).to_value();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| !ty.not_in_events.contains(&name.as_str()));
    }
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| {
            !ty.not_in_events
                .contains(&name.as_str().unwrap_or_default())
        });
    }
    schema
}
