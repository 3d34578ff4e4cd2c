//! Writes schemas as client generators know them, without a change of what they allow.

use serde_json::{Map, Value, json};

use super::walk::has_type;

/// The largest integer of the format `int32`.
const INT32_MAX: u64 = i32::MAX as u64;

/// Rewrites one schema, whose inner schemas are rewritten already.
pub(super) fn rewrite(schema: &mut Map<String, Value>) {
    // That a field is not given is no value of its type.
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    enumerate(schema);
    number(schema);
    tuple(schema);
    // An empty list has items too, of which generators make a type.
    if has_type(schema, "array") && !schema.contains_key("items") {
        schema.insert("items".to_owned(), json!({"type": "string"}));
    }
    if has_type(schema, "object") && !schema.contains_key("properties") {
        schema
            .entry("additionalProperties")
            .or_insert_with(|| true.into());
    }
}

/// Replaces a choice of constants by an enumeration. Their sentences go to `x-enum-descriptions`.
fn enumerate(schema: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = schema.get("oneOf") else {
        return;
    };
    let constants: Option<Vec<(Value, Value)>> = choices
        .iter()
        .map(|choice| {
            let said = choice.get("description").cloned();
            let only = choice.get("const").filter(|only| only.is_string())?;
            Some((only.clone(), said.unwrap_or_default()))
        })
        .collect();
    let Some(constants) = constants else {
        return;
    };
    let (values, sentences): (Vec<Value>, Vec<Value>) = constants.into_iter().unzip();
    schema.remove("oneOf");
    schema.insert("type".to_owned(), "string".into());
    schema.insert("enum".to_owned(), values.into());
    schema.insert("x-enum-descriptions".to_owned(), sentences.into());
}

/// Replaces the formats of unsigned integers, for which generators take 32 bits with a sign, by a larger one.
fn number(schema: &mut Map<String, Value>) {
    let Some(format) = schema.get("format").and_then(Value::as_str) else {
        return;
    };
    let most = match format {
        "uint8" => u64::from(u8::MAX),
        "uint16" => u64::from(u16::MAX),
        "uint32" => u64::from(u32::MAX),
        "uint64" | "uint" => u64::MAX,
        _ => return,
    };
    let format = if most <= INT32_MAX { "int32" } else { "int64" };
    schema.insert("format".to_owned(), format.into());
    if format == "int64" && most < u64::MAX {
        schema.entry("maximum").or_insert_with(|| most.into());
    }
}

/// Lists with a type for each position become lists whose items have any of these types.
fn tuple(schema: &mut Map<String, Value>) {
    let Some(Value::Array(mut kinds)) = schema.remove("prefixItems") else {
        return;
    };
    kinds.dedup();
    let items = match kinds.len() {
        1 => kinds.remove(0),
        _ => json!({"anyOf": kinds}),
    };
    schema.insert("items".to_owned(), items);
}
