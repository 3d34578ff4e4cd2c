//! Every kind of audit event there is, and which of them only admins follow.

use culvert_base::{Refusal, code};
use culvert_events::catalogue::{AuditKind, Catalogue};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::audit::{Verb, kind_name};
use crate::caller::{Caller, Role};
use crate::resource::resource_type::ResourceType;
use crate::{agents, resource};

/// Whether an audit event of this kind exists.
pub(crate) fn is_kind(name: &str) -> bool {
    names().any(|kind| kind == name)
}

/// Whether events of this kind are about keys or credentials, which exist for their owners and for admins
/// alone. Those of agents' sessions name the credential.
pub(crate) fn is_private(name: &str) -> bool {
    let mut private = resource::ALL.iter().filter(|ty| ty.is_private);
    private.any(|ty| Verb::ALL.iter().any(|verb| kind_name(ty, *verb) == name))
        || agents::NAMES.contains(&name)
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
        .chain(agents::NAMES.map(str::to_owned))
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
        .chain(agents::kinds())
        .collect()
}

pub(crate) fn doc(ty: &ResourceType, verb: Verb) -> String {
    let object = ty.with_article();
    let behind = object.strip_prefix('a').unwrap_or(&object);
    format!("A{behind} was {}.", verb.name())
}

pub(crate) fn object_schema(ty: &ResourceType) -> Value {
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

/// Every kind of event there is: those of traffic and those of the resources.
pub fn catalogue() -> &'static Catalogue {
    static CATALOGUE: std::sync::OnceLock<Catalogue> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| Catalogue::new(kinds()))
}
