//! The reference pages of the API in Markdown, generated from the operation table and the table of codes.
//!
//! The functions return text. Tests of the binary write the files, and fail if they are out of date.

use std::collections::BTreeSet;
use std::fmt::Write;

use culvert_base::refusal::CODES;
use culvert_resources::operation::OperationSpec;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::openapi::{needs_of, openapi, tail_parameters};
use crate::request::REQUEST_RULES;
use crate::response::problem;
use crate::route::{PRESETS, Preset, TAIL_PATH};

/// `docs/reference/api.md`: all operations with their inputs and responses. `targets` describes targets of event
/// destinations.
pub fn api(
    operations: &[OperationSpec],
    targets: impl FnOnce(&mut SchemaGenerator) -> Schema,
) -> String {
    let document = openapi(operations, targets);
    let mut page = String::from(
        "# Management API\n\nAll operations, generated from the server's route table. `GET \
         /openapi.json` and `culvert openapi` return the OpenAPI 3.1 document, and `GET \
         /openapi-3.0.json` and `culvert openapi --oas 3.0` the same in OpenAPI 3.0.\n",
    );
    line(&mut page, format_args!("\n{}", REQUEST_RULES.trim_end()));
    let mut collection = None;
    for operation in operations {
        if collection != Some(operation.collection) {
            collection = Some(operation.collection);
            let title = match operation.collection {
                "" => "root",
                name => name,
            };
            line(&mut page, format_args!("\n## {title}"));
            rights(&mut page, operation.collection, operations);
        }
        describe(&mut page, operation, &document);
    }
    follow(&mut page, &document);
    types(&mut page, &document);
    page
}

/// `docs/reference/errors.md`: all codes that a caller may see.
pub fn errors() -> String {
    let mut page = String::from(
        "# Error codes\n\nThe `error_code` of an error body, its usual HTTP status and its \
         default message. Some responses carry a more specific message. An error without a code \
         has only a status and a message.\n\n| Code | Status | Meaning |\n|---|---|---|\n",
    );
    for row in CODES {
        let status = problem::status(row.class).as_u16();
        let text = cell(row.text);
        line(
            &mut page,
            format_args!("| `ERR_NGROK_{}` | {status} | {text} |", row.number),
        );
    }
    page
}

/// The rights to the objects of a collection, if it has any.
fn rights(page: &mut String, collection: &str, operations: &[OperationSpec]) {
    let mut of_collection = operations.iter().filter(|it| it.collection == collection);
    let Some(rights) = of_collection.find_map(|it| Some(it.object.as_ref()?.rights)) else {
        return;
    };
    line(page, format_args!("\n| Right | Who has it |\n|---|---|"));
    for (right, holders) in [
        ("see", rights.see.holders()),
        ("use", rights.use_by.holders()),
        ("change", rights.change.holders()),
    ] {
        line(page, format_args!("| `{right}` | {holders} |"));
    }
}

/// Describes the event tail, whose response is a stream and which is not in the operation table.
fn follow(page: &mut String, document: &Value) {
    let described = document
        .pointer("/paths")
        .and_then(|paths| paths.get(TAIL_PATH)?.get("get"));
    let said = |pointer: &str| {
        let text = described.and_then(|described| described.pointer(pointer)?.as_str());
        text.unwrap_or_default().to_owned()
    };
    line(
        page,
        format_args!(
            "\n## events\n\n### `GET {TAIL_PATH}`\n\n{}\n\nOperation `{}`. {}",
            said("/summary"),
            said("/operationId"),
            said("/description")
        ),
    );
    line(page, format_args!("\n| Query | Meaning |\n|---|---|"));
    for parameter in &tail_parameters::PARAMETERS {
        line(
            page,
            format_args!("| `{}` | {} |", parameter.name, cell(parameter.doc)),
        );
    }
    line(
        page,
        format_args!(
            "\nReturns 200 with `text/event-stream`: {}",
            said("/responses/200/description")
        ),
    );
}

fn describe(page: &mut String, operation: &OperationSpec, document: &Value) {
    let method = operation.method.as_str();
    line(
        page,
        format_args!("\n### `{method} {}`\n\n{}", operation.path, operation.doc),
    );
    line(
        page,
        format_args!("\nOperation `{}`. {}", operation.id(), needs_of(operation)),
    );
    if !operation.query.is_empty() {
        line(page, format_args!("\n| Query | Meaning |\n|---|---|"));
        for parameter in operation.query {
            line(
                page,
                format_args!("| `{}` | {} |", parameter.name, cell(parameter.doc)),
            );
        }
    }
    let method = method.to_ascii_lowercase();
    let described = document
        .pointer("/paths")
        .and_then(|paths| paths.get(&operation.path)?.get(&method));
    let Some(described) = described else {
        return;
    };
    if let Some(schema) = described.pointer("/requestBody/content/application~1json/schema") {
        line(page, format_args!("\nTakes:"));
        fields(page, schema, document);
    }
    responses(page, described, document);
    let presets = PRESETS
        .iter()
        .filter(|preset| preset.of == operation.path && preset.method == operation.method);
    for preset in presets {
        let described = document
            .pointer("/paths")
            .and_then(|paths| paths.get(preset.path)?.get(&method));
        let Preset { path, id, doc, .. } = preset;
        line(
            page,
            format_args!(
                "\n### `{} {path}`\n\n{doc} Client generators find it as the operation `{id}`.",
                operation.method.as_str()
            ),
        );
        if let Some(described) = described {
            responses(page, described, document);
        }
    }
}

/// Describes what an operation returns when it succeeds.
fn responses(page: &mut String, described: &Value, document: &Value) {
    let responses = described.get("responses").and_then(Value::as_object);
    for (status, response) in responses.into_iter().flatten() {
        if status.starts_with(['4', '5']) {
            continue;
        }
        if response.pointer("/content/text~1event-stream").is_some() {
            line(
                page,
                format_args!("\nReturns {status} with `text/event-stream`."),
            );
            continue;
        }
        match response.pointer("/content/application~1json/schema") {
            Some(schema) => {
                line(page, format_args!("\nReturns {status}:"));
                fields(page, schema, document);
            }
            None => line(page, format_args!("\nReturns {status}.")),
        }
    }
}

/// Describes the types of fields that are not themselves the body of an operation.
fn types(page: &mut String, document: &Value) {
    let paths = document.get("paths").and_then(Value::as_object);
    let whole: BTreeSet<&str> = paths
        .into_iter()
        .flatten()
        .filter_map(|(_, methods)| methods.as_object())
        .flatten()
        .flat_map(|(_, described)| bodies(described))
        .filter_map(|schema| schema.get("$ref")?.as_str())
        .collect();
    line(page, format_args!("\n## Types"));
    let components = document
        .pointer("/components/schemas")
        .and_then(Value::as_object);
    for (name, schema) in components.into_iter().flatten() {
        if whole
            .iter()
            .any(|target| target.ends_with(&format!("/{name}")))
        {
            continue;
        }
        line(page, format_args!("\n### {name}"));
        if let Some(said) = schema.get("description").and_then(Value::as_str) {
            line(page, format_args!("\n{said}"));
        }
        fields(page, schema, document);
    }
}

/// The schemas of an operation's input and responses.
fn bodies(described: &Value) -> impl Iterator<Item = &Value> {
    let answers = described.get("responses").and_then(Value::as_object);
    described
        .pointer("/requestBody")
        .into_iter()
        .chain(answers.into_iter().flatten().map(|(_, answer)| answer))
        .filter_map(|body| body.pointer("/content/application~1json/schema"))
}

/// Writes a table of the fields of an object.
fn fields(page: &mut String, schema: &Value, document: &Value) {
    let schema = resolved(schema, document);
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        line(page, format_args!("\n{}.", kind(schema)));
        return;
    };
    line(
        page,
        format_args!("\n| Field | Type | Meaning |\n|---|---|---|"),
    );
    for (name, field) in properties {
        let said = field
            .get("description")
            .or_else(|| resolved(field, document).get("description"))
            .and_then(Value::as_str)
            .unwrap_or_default();
        line(
            page,
            format_args!("| `{name}` | {} | {} |", kind(field), cell(said)),
        );
    }
}

/// Resolves a `$ref`, if the schema is one.
fn resolved<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|target| document.pointer(target.strip_prefix('#')?))
        .unwrap_or(schema)
}

/// A type for readers: `text`, `list of text`, `Source or null`.
fn kind(schema: &Value) -> String {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return target.rsplit('/').next().unwrap_or(target).to_owned();
    }
    if let Some(choices) = ["anyOf", "oneOf"]
        .iter()
        .find_map(|key| schema.get(key)?.as_array())
    {
        return choices.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(only) = schema.get("const") {
        return format!("`{}`", cell(only.as_str().unwrap_or("null")));
    }
    if let Some(names) = schema.get("enum").and_then(Value::as_array) {
        let names: Vec<String> = names
            .iter()
            .map(|name| match name.as_str() {
                Some("") => "empty".to_owned(),
                Some(name) => format!("`{}`", cell(name)),
                None => format!("`{name}`"),
            })
            .collect();
        // A cell with all event types is no cell.
        const NAMES_MAX: usize = 40;
        return match &names[..] {
            [first, second, ..] if names.len() > NAMES_MAX => format!(
                "{first}, {second} or one of {} others of the [document](../openapi.json)",
                names.len() - 2
            ),
            _ => names.join(" or "),
        };
    }
    let items = || {
        schema
            .get("items")
            .map_or_else(|| "anything".to_owned(), kind)
    };
    let word = |name: &Value| match name.as_str() {
        Some("string") => "text".to_owned(),
        Some("boolean") => "bool".to_owned(),
        Some("array") => format!("list of {}", items()),
        Some(other) => other.to_owned(),
        None => "anything".to_owned(),
    };
    match schema.get("type") {
        Some(Value::Array(names)) => names.iter().map(word).collect::<Vec<_>>().join(" or "),
        Some(name) => word(name),
        None => "anything".to_owned(),
    }
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use culvert_control::operation_specs as operations;
    use culvert_destinations::TYPES;

    use super::*;

    #[test]
    fn every_operation_and_every_code_has_its_place() {
        let page = api(operations(), |generator| TYPES.schema(generator));
        for operation in operations() {
            let heading = format!("### `{} {}`", operation.method.as_str(), operation.path);
            assert_eq!(page.matches(&heading).count(), 1, "{heading}");
        }
        let page = errors();
        for row in CODES {
            assert!(page.contains(&format!("| `ERR_NGROK_{}` | ", row.number)));
        }
        assert!(page.contains("| `ERR_NGROK_200` | 401 |"));
    }

    #[test]
    fn types_read_as_words() {
        for (schema, expected) in [
            (serde_json::json!({"type": "string"}), "text"),
            (
                serde_json::json!({"type": ["string", "null"]}),
                "text or null",
            ),
            (
                serde_json::json!({"type": "array", "items": {"$ref": "#/components/schemas/Source"}}),
                "list of Source",
            ),
            (
                serde_json::json!({"anyOf": [{"$ref": "#/x/Target"}, {"type": "null"}]}),
                "Target or null",
            ),
            (serde_json::json!({"enum": ["a", ""]}), "`a` or empty"),
            (serde_json::json!(true), "anything"),
        ] {
            assert_eq!(kind(&schema), expected);
        }
    }
}
