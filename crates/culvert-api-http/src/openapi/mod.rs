//! The OpenAPI 3.1 document of the management API, generated from the operation table.
//!
//! Schemas come from the types that read and write the bodies: inputs with the schema for deserialisation, views with
//! that for serialisation, so that a nullable field that is always present is required. A type whose two schemas
//! differ is listed twice, the input with the suffix `Input`. All maps are sorted by name, so the output is
//! deterministic.
//!
//! A method and path has one kind of response for each status, because client generators read one. What a query
//! parameter makes another kind is listed under the path that sets the parameter ([`PRESETS`]). Errors are `4XX` and
//! `5XX` instead of `default`, which some generators take for a success too.

mod plain;
mod schemas;
pub mod tail_parameters;
mod transport;
pub mod version_3_0;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use culvert_resources::access::right::{Right, TAIL_RIGHT};
use culvert_resources::list::page::{Form, Parameter};
use culvert_resources::operation::{Method, OperationSpec, Status};
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::body::BODY_BYTES_MAX;
use crate::route::{PRESETS, Preset, TAIL_PATH};

use self::schemas::Schemas;

const SCHEMAS: &str = "#/components/schemas/";

/// The document for `operations`, with targets of event destinations as `targets` describes them.
pub fn openapi(
    operations: &[OperationSpec],
    targets: impl FnOnce(&mut SchemaGenerator) -> Schema,
) -> Value {
    let mut schemas = Schemas::collect(operations, targets);
    let mut paths: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        let method = name_of(operation.method);
        let body = schemas.inputs.remove(&index);
        let view = schemas.views.remove(&index);
        let preview = schemas.previews.remove(&index);
        let described = described(operation, body, view);
        let preset = PRESETS
            .iter()
            .find(|preset| preset.of == operation.path && preset.method == operation.method);
        if let Some(preset) = preset {
            let described = with_preset(described.clone(), preset, preview);
            paths
                .entry(preset.path)
                .or_default()
                .insert(method, described);
        }
        paths
            .entry(&operation.path)
            .or_default()
            .insert(method, described);
    }
    paths.insert(TAIL_PATH, [("get", tail())].into());

    let tags: BTreeSet<&str> = operations.iter().map(tag).chain(["events"]).collect();
    let tags: Vec<Value> = tags
        .into_iter()
        .map(|name| json!({"name": name, "description": about(operations, name)}))
        .collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "culvert management API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The management API of a culvert installation. Bodies are JSON. Times \
                            are RFC 3339 in UTC. Lists are newest first and paginated by ID.",
            "contact": {"name": "The operator of this installation"},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {"Error": problem_response()},
            "headers": {"OperationId": {
                "description": "Identifies this request in the server's log.",
                "required": true,
                "schema": {"type": "string"},
            }},
            "securitySchemes": {"bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "The token of an API key, shown once when the key is created.",
            }},
        },
    });
    document["components"]["parameters"] = transport::parameters();
    transport::add_headers(&mut document["components"]["headers"]);
    walk::document(&mut document, &plain::rewrite);
    sorted(document)
}

/// The method as a key of a path.
fn name_of(method: Method) -> &'static str {
    match method {
        Method::Get => "get",
        Method::Post => "post",
        Method::Patch => "patch",
        Method::Delete => "delete",
    }
}

/// What a tag is about: what the list of its collection says, or its first operation.
fn about<'a>(operations: &'a [OperationSpec], name: &str) -> &'a str {
    let mut of_tag = operations.iter().filter(|one| tag(one) == name);
    let list = of_tag.clone().find(|one| one.name == "list");
    let doc = list.or_else(|| of_tag.next()).map(|one| one.doc.as_str());
    let doc = doc.unwrap_or_default();
    // After what the operation does, the list says what its objects are.
    doc.split_once("newest first. ")
        .map_or(doc, |(_, about)| about)
}

/// The operation of a preset path, for the description of the one that it calls.
fn with_preset(mut described: Value, preset: &Preset, preview: Option<Value>) -> Value {
    described["operationId"] = preset.id.into();
    described["summary"] = preset.doc.into();
    if let Some(preview) = preview {
        let shown = success("What the object could do.", Some(preview));
        let responses = &mut described["responses"];
        let errors = [responses["4XX"].take(), responses["5XX"].take()];
        described["responses"] = json!({"200": shown, "4XX": errors[0], "5XX": errors[1]});
    } else {
        described["responses"]["200"]["content"] =
            json!({"text/event-stream": {"schema": {"type": "string"}}});
    }
    described
}

/// The tag of an operation.
fn tag(operation: &OperationSpec) -> &str {
    match operation.collection {
        "" => "root",
        collection => collection,
    }
}

/// The sentence about the right that an operation needs.
pub fn needs(right: Right) -> String {
    let scope = match right.scope {
        Some(scope) => format!("the scope `{scope}`"),
        None => "no scope".to_owned(),
    };
    format!("Needs the role `{}` and {scope}.", right.role.name())
}

/// The sentences about the rights that an operation needs: of the caller, and to the object in its path.
pub fn needs_of(operation: &OperationSpec) -> String {
    let caller = needs(operation.right);
    match operation.object.as_ref() {
        None => caller,
        Some(object) => {
            let (right, holders) = object.rights.of(object.access);
            format!("{caller} Needs the right `{right}` to the object: {holders}.")
        }
    }
}

/// Adds the right to the object in the path of an operation, for programs.
fn add_object_right(described: &mut Value, operation: &OperationSpec) {
    described["description"] = needs_of(operation).into();
    let object = operation.object.as_ref();
    let object = object.map(|object| object.rights.of(object.access));
    described["x-culvert-object-right"] = object.map(|(right, _)| right).into();
    described["x-culvert-object-holders"] = object.map(|(_, holders)| holders).into();
}

/// Adds the right that an operation needs: a sentence, and fields that programs read.
fn add_right(described: &mut Value, right: Right) {
    described["description"] = needs(right).into();
    described["x-culvert-role"] = right.role.name().into();
    described["x-culvert-scope"] = right.scope.map(|scope| scope.name()).into();
}

fn described(operation: &OperationSpec, body: Option<Value>, view: Option<Value>) -> Value {
    let query = operation.query.iter().filter(|parameter| {
        !PRESETS.iter().any(|preset| {
            preset.of == operation.path
                && preset.method == operation.method
                && preset.parameter == parameter.name
        })
    });
    let in_path = operation.path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "name": name, "in": "path", "required": true, "schema": {"type": "string"},
        }))
    });
    let parameters: Vec<Value> = in_path.chain(query.map(query_parameter)).collect();
    let (status, said) = match operation.response.status {
        Status::Ok => ("200", "Success."),
        Status::Created => ("201", "Created."),
        Status::NoContent => ("204", "Success, without a body."),
    };
    let mut described = json!({
        "operationId": operation.id(),
        "tags": [tag(operation)],
        "summary": operation.doc,
        "parameters": parameters,
        "responses": {
            status: success(said, view),
            "4XX": {"$ref": "#/components/responses/Error"},
            "5XX": {"$ref": "#/components/responses/Error"},
        },
    });
    if let (Some(spec), Some(schema)) = (&operation.body, body) {
        described["requestBody"] = json!({
            "description": format!("At most {BODY_BYTES_MAX} bytes."),
            "required": spec.required,
            "content": {"application/json": {"schema": schema}},
        });
    }
    add_right(&mut described, operation.right);
    add_object_right(&mut described, operation);
    transport::describe(&mut described, operation);
    described
}

/// A response of a success.
fn success(description: &str, view: Option<Value>) -> Value {
    let mut success = json!({
        "description": description,
        "headers": {"ngrok-operation-id": {"$ref": "#/components/headers/OperationId"}},
    });
    if let Some(view) = view {
        success["content"] = json!({"application/json": {"schema": view}});
    }
    success
}

fn query_parameter(parameter: &Parameter) -> Value {
    let one = match parameter.within {
        Some((least, largest)) => {
            json!({"type": "integer", "minimum": least, "maximum": largest})
        }
        None => match parameter.form {
            Form::Text => json!({"type": "string"}),
            Form::Time => json!({"type": "string", "format": "date-time"}),
            Form::Flag => json!({"type": "boolean"}),
            Form::Choice(values) => json!({"type": "string", "enum": values}),
        },
    };
    let schema = if parameter.repeatable {
        json!({"type": "array", "items": one})
    } else {
        one
    };
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.doc,
        "required": false,
        "schema": schema,
    })
}

fn tail() -> Value {
    let parameters: Vec<Value> = tail_parameters::PARAMETERS
        .iter()
        .map(query_parameter)
        .collect();
    let mut described = json!({
        "operationId": "events_tail",
        "tags": ["events"],
        "summary": "Streams events of all nodes as server-sent events. Traffic events of other \
                    nodes arrive within about a second.",
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "One message per event, with the event as data. A `lost` message \
                                counts the events that a slow reader missed.",
                "headers": {"ngrok-operation-id": {"$ref": "#/components/headers/OperationId"}},
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "4XX": {"$ref": "#/components/responses/Error"},
            "5XX": {"$ref": "#/components/responses/Error"},
        },
    });
    add_right(&mut described, TAIL_RIGHT);
    described
}

fn problem_response() -> Value {
    json!({
        "description": "The error.",
        "headers": {"ngrok-operation-id": {"$ref": "#/components/headers/OperationId"}},
        "content": {"application/json": {"schema": {"$ref": format!("{SCHEMAS}Error")}}},
    })
}

fn problem_schema() -> Value {
    json!({
        "description": "An error response.",
        "type": "object",
        "required": ["status_code", "msg", "details"],
        "properties": {
            "error_code": {
                "description": "The error code; absent if the error has none.",
                "type": "string",
                "pattern": "^ERR_NGROK_[0-9]+$",
            },
            "status_code": {"description": "The HTTP status.", "type": "integer"},
            "msg": {"description": "A human-readable message.", "type": "string"},
            "details": {
                "description": "Additional details; always includes `operation_id`.",
                "type": "object",
                "required": ["operation_id"],
                "properties": {"operation_id": {"type": "string"}},
                "additionalProperties": {"type": "string"},
            },
        },
    })
}

/// Sorts the members of every object by name.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let members: BTreeMap<String, Value> = map
                .into_iter()
                .map(|(name, value)| (name, sorted(value)))
                .collect();
            Value::Object(members.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests;
