//! Visits the schemas of a document, and only those: `type` is a keyword of a schema, and also the name of properties.

use serde_json::{Map, Value};

/// Keywords whose value is one schema.
const ONE: [&str; 4] = ["items", "additionalProperties", "propertyNames", "not"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// Changes a schema and all schemas within it, the inner ones first.
pub(super) fn within(schema: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    let Value::Object(schema) = schema else {
        return;
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            within(property, change);
        }
    }
    for keyword in ONE {
        if let Some(one) = schema.get_mut(keyword) {
            within(one, change);
        }
    }
    for keyword in LISTS {
        if let Some(Value::Array(choices)) = schema.get_mut(keyword) {
            for choice in choices {
                within(choice, change);
            }
        }
    }
    change(schema);
}

/// Changes all schemas of a document.
pub(super) fn document(document: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    if let Some(Value::Object(components)) = document.pointer_mut("/components/schemas") {
        for schema in components.values_mut() {
            within(schema, change);
        }
    }
    for part in ["/paths", "/components/headers", "/components/responses"] {
        if let Some(part) = document.pointer_mut(part) {
            outside(part, change);
        }
    }
}

/// Changes the schemas below a part that is no schema: they are the values of `schema`.
fn outside(value: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "schema" => within(value, change),
                    _ => outside(value, change),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| outside(value, change)),
        _ => {}
    }
}

/// Whether the type of a schema is `kind`, or it is among its types.
pub(super) fn has_type(schema: &Map<String, Value>, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
        _ => false,
    }
}
