//! The catalogue of events: every kind with the schema of its object.

use culvert_events::catalogue::{AuditKind, Catalogue};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::event_kinds::{Verb, kind_name};
use crate::resource::resource_type::ResourceType;
use crate::{agents, lost_commits, resource};

/// Every kind of audit event, with the schema of its object.
pub(crate) fn kinds() -> Vec<AuditKind> {
    let audited = resource::ALL.iter().filter(|ty| ty.silent.is_none());
    audited
        .flat_map(|ty| {
            let schema = object_schema(ty);
            Verb::ALL.map(|verb| AuditKind {
                name: kind_name(ty.name, verb),
                doc: doc(ty, verb),
                schema: schema.clone(),
            })
        })
        .chain(agents::kinds())
        .chain(lost_commits::kinds())
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

/// All kinds of events: those of traffic and those of resources.
pub fn catalogue() -> &'static Catalogue {
    static CATALOGUE: std::sync::OnceLock<Catalogue> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| Catalogue::new(kinds()))
}
