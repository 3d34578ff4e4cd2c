//! The document in OpenAPI 3.0, which many client generators read and 3.1 they do not.
//!
//! It says the same, in the words of 3.0: `null` is `nullable`, a constant is an enumeration of one value, and a
//! reference with a description is in an `allOf`. The names of keys of maps (`propertyNames`) have no rule in 3.0, and
//! objects that a constant tells apart are one object: generators for 3.0 try them one after the other, do not look at
//! the constant, and find that several fit. Enumerations have no names: some generators make constants of their values
//! that are global.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{SCHEMAS, walk};

/// Writes the 3.1 document that [`openapi`](super::openapi) returns as 3.0.
pub fn openapi_3_0(mut document: Value) -> Value {
    document["openapi"] = "3.0.3".into();
    if let Value::Object(document) = &mut document {
        document.remove("jsonSchemaDialect");
    }
    if let Some(Value::Object(license)) = document.pointer_mut("/info/license") {
        // 3.0 has no identifiers of licences.
        license.remove("identifier");
        let url = "https://www.apache.org/licenses/LICENSE-2.0";
        license.insert("url".to_owned(), url.into());
    }
    let enumerations = take_enumerations(&mut document);
    let kinds = kinds_of_components(&document);
    walk::document(&mut document, &|schema| {
        let target = schema.get("$ref").and_then(Value::as_str);
        if let Some(named) = target.and_then(|target| enumerations.get(target)) {
            schema.remove("$ref");
            for (keyword, value) in named {
                schema.entry(keyword).or_insert_with(|| value.clone());
            }
        }
        rewrite(schema, &kinds);
    });
    document
}

/// Takes the components that are enumerations out of a document. Their references are the keys.
fn take_enumerations(document: &mut Value) -> BTreeMap<String, Map<String, Value>> {
    let mut taken = BTreeMap::new();
    if let Some(Value::Object(components)) = document.pointer_mut("/components/schemas") {
        components.retain(|name, schema| match schema {
            Value::Object(schema) if schema.contains_key("enum") => {
                taken.insert(format!("{SCHEMAS}{name}"), schema.clone());
                false
            }
            _ => true,
        });
    }
    taken
}

/// The types of the components by their references.
type Kinds = BTreeMap<String, Value>;

fn kinds_of_components(document: &Value) -> Kinds {
    let components = document.pointer("/components/schemas");
    let components = components.and_then(Value::as_object);
    let components = components.into_iter().flatten();
    components
        .map(|(name, schema)| {
            let kind = schema.get("type").cloned();
            // A choice of objects becomes an object.
            let kind = kind.unwrap_or_else(|| "object".into());
            (format!("{SCHEMAS}{name}"), kind)
        })
        .collect()
}

/// Rewrites one schema, whose inner schemas are rewritten already.
fn rewrite(schema: &mut Map<String, Value>, components: &Kinds) {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        // A field that is only there to be `null`; 3.0 has no such type.
        properties.retain(|_, property| property.get("type").is_none_or(|kind| kind != "null"));
    }
    schema.remove("propertyNames");
    unite(schema);
    if let Some(only) = schema.remove("const") {
        schema.insert("enum".to_owned(), json!([only]));
    }
    if schema.get("additionalProperties") == Some(&json!({})) {
        schema.insert("additionalProperties".to_owned(), true.into());
    }
    bound(schema, "exclusiveMinimum", "minimum");
    bound(schema, "exclusiveMaximum", "maximum");
    kinds(schema);
    choices(schema, components);
    reference(schema);
}

/// Makes one object of a choice of objects. It needs what all of them need.
fn unite(schema: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = schema.get("oneOf") else {
        return;
    };
    let parts = |choice: &Value| {
        let properties = choice.get("properties")?.as_object()?.clone();
        let needed = choice.get("required").and_then(Value::as_array);
        let needed = needed.into_iter().flatten().filter_map(Value::as_str);
        let needed: BTreeSet<String> = needed.map(str::to_owned).collect();
        Some((properties, needed))
    };
    let parts: Option<Vec<_>> = choices.iter().map(parts).collect();
    let Some(parts) = parts else {
        return;
    };
    let mut needed: Option<BTreeSet<String>> = None;
    let mut all = Map::new();
    for (properties, its) in parts {
        needed = Some(match needed {
            None => its,
            Some(needed) => needed.intersection(&its).cloned().collect(),
        });
        for (name, property) in properties {
            match all.get_mut(&name) {
                None => {
                    all.insert(name, property);
                }
                Some(known) => extend(known, property),
            }
        }
    }
    schema.remove("oneOf");
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), all.into());
    schema.insert("required".to_owned(), json!(needed.unwrap_or_default()));
}

/// Adds the values of another enumeration, whose other keywords are the same.
fn extend(known: &mut Value, other: Value) {
    let more = other.get("enum").and_then(Value::as_array);
    let values = known.get_mut("enum").and_then(Value::as_array_mut);
    if let (Some(values), Some(more)) = (values, more) {
        values.extend(more.iter().cloned());
    }
}

/// An exclusive bound is a number in 3.1, and a flag beside the bound in 3.0.
fn bound(schema: &mut Map<String, Value>, exclusive: &str, inclusive: &str) {
    if let Some(bound) = schema.remove(exclusive) {
        schema.insert(inclusive.to_owned(), bound);
        schema.insert(exclusive.to_owned(), true.into());
    }
}

/// A schema has one type.
fn kinds(schema: &mut Map<String, Value>) {
    let Some(Value::Array(kinds)) = schema.get("type") else {
        return;
    };
    let n_kinds = kinds.len();
    let mut kinds: Vec<Value> = kinds
        .iter()
        .filter(|kind| *kind != "null")
        .cloned()
        .collect();
    let is_nullable = kinds.len() < n_kinds;
    if kinds.len() == 1 {
        schema.insert("type".to_owned(), kinds.remove(0));
        if is_nullable {
            schema.insert("nullable".to_owned(), true.into());
        }
    } else {
        schema.remove("type");
        // `nullable` stands beside a type.
        let open = |kind: Value| {
            let mut one = json!({ "type": kind });
            if kind == "object" {
                one["additionalProperties"] = true.into();
            }
            if is_nullable {
                one["nullable"] = true.into();
            }
            one
        };
        let kinds: Vec<Value> = kinds.into_iter().map(open).collect();
        schema.remove("additionalProperties");
        schema.insert("anyOf".to_owned(), kinds.into());
    }
}

/// A choice between a schema and `null` is the schema, which is nullable.
fn choices(schema: &mut Map<String, Value>, components: &Kinds) {
    let Some(Value::Array(choices)) = schema.get("anyOf") else {
        return;
    };
    let is_null = |choice: &Value| choice.get("type").is_some_and(|kind| kind == "null");
    let n_choices = choices.len();
    let mut choices: Vec<Value> = choices.iter().filter(|c| !is_null(c)).cloned().collect();
    if choices.len() == n_choices {
        return;
    }
    if choices.len() > 1 {
        for choice in &mut choices {
            choice["nullable"] = true.into();
        }
        schema.insert("anyOf".to_owned(), choices.into());
        return;
    }
    schema.remove("anyOf");
    schema.insert("nullable".to_owned(), true.into());
    match choices.pop() {
        Some(Value::Object(only)) if !only.contains_key("$ref") => {
            for (keyword, value) in only {
                schema.entry(keyword).or_insert(value);
            }
        }
        Some(only) => {
            let target = only.get("$ref").and_then(Value::as_str);
            // `nullable` stands beside a type.
            if let Some(kind) = target.and_then(|target| components.get(target)) {
                schema.insert("type".to_owned(), kind.clone());
            }
            schema.insert("allOf".to_owned(), json!([only]));
        }
        None => {}
    }
}

/// What stands beside a reference is ignored in 3.0.
fn reference(schema: &mut Map<String, Value>) {
    if schema.len() > 1
        && let Some(target) = schema.remove("$ref")
    {
        schema.insert("allOf".to_owned(), json!([{ "$ref": target }]));
    }
}
