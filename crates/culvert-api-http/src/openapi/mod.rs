//! The OpenAPI 3.1 document of the management API, generated from the operation table.
//!
//! Schemas come from the types that read and write the bodies: inputs with the schema for deserialisation, views with
//! that for serialisation, so that a nullable field that is always present is required. A type whose two schemas
//! differ is listed twice, the input with the suffix `Input`. All maps are sorted by name, so the output is
//! deterministic.

pub mod tail_parameters;
mod transport;

use std::collections::{BTreeMap, BTreeSet};

use culvert_resources::access::right::{Right, TAIL_RIGHT};
use culvert_resources::list::page::Parameter;
use culvert_resources::operation::{EVENTS_PATH, Method, OperationSpec, Status};
use culvert_resources::targets::{define_targets, take_definitions};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::body::BODY_BYTES_MAX;
use crate::route::TAIL_PATH;

const SCHEMAS: &str = "#/components/schemas/";

/// The document for `operations`, with targets of event destinations as `targets` describes them.
pub fn openapi(
    operations: &[OperationSpec],
    targets: impl FnOnce(&mut SchemaGenerator) -> Schema,
) -> Value {
    let mut schemas = Schemas::collect(operations, targets);
    let mut paths: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        let method = match operation.method {
            Method::Get => "get",
            Method::Post => "post",
            Method::Patch => "patch",
            Method::Delete => "delete",
        };
        let body = schemas.inputs.remove(&index);
        let view = schemas.views.remove(&index);
        let mut described = described(operation, body, view);
        if let Some(preview) = schemas.previews.remove(&index) {
            described["responses"]["200"] = success("What the object could do.", Some(preview));
        }
        paths
            .entry(&operation.path)
            .or_default()
            .insert(method, described);
    }
    let listed = paths
        .get_mut(EVENTS_PATH)
        .and_then(|path| path.get_mut("get"));
    if let Some(listed) = listed {
        // With `follow`.
        listed["responses"]["200"]["content"]["text/event-stream"] =
            json!({"schema": {"type": "string"}});
    }
    paths.insert(TAIL_PATH, [("get", tail())].into());

    let tags: BTreeSet<&str> = operations.iter().map(tag).chain(["events"]).collect();
    let tags: Vec<Value> = tags.into_iter().map(|name| json!({"name": name})).collect();
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "culvert management API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The management API of a culvert installation. Bodies are JSON. Times \
                            are RFC 3339 in UTC. Lists are newest first and paginated by ID.",
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
    sorted(document)
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
    let in_path = operation.path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "name": name, "in": "path", "required": true, "schema": {"type": "string"},
        }))
    });
    let parameters: Vec<Value> = in_path
        .chain(operation.query.iter().map(query_parameter))
        .collect();
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
            "default": {"$ref": "#/components/responses/Error"},
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
        None => json!({"type": "string"}),
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
            "default": {"$ref": "#/components/responses/Error"},
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

/// The schemas of all bodies by the index of their operation, and the components that they reference.
struct Schemas {
    inputs: BTreeMap<usize, Value>,
    views: BTreeMap<usize, Value>,
    previews: BTreeMap<usize, Value>,
    components: BTreeMap<String, Value>,
}

impl Schemas {
    fn collect(
        operations: &[OperationSpec],
        targets: impl FnOnce(&mut SchemaGenerator) -> Schema,
    ) -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        let mut reading = settings.clone().into_generator();
        define_targets(&mut reading, targets);
        let mut writing = settings.for_serialize().into_generator();
        let mut inputs = BTreeMap::new();
        let mut views = BTreeMap::new();
        let mut previews = BTreeMap::new();
        for (index, operation) in operations.iter().enumerate() {
            if let Some(spec) = &operation.body {
                inputs.insert(index, Value::from((spec.schema)(&mut reading)));
            }
            if let Some(schema) = operation.preview {
                previews.insert(index, Value::from(schema(&mut writing)));
            }
            if let Some(schema) = operation.response.schema {
                views.insert(index, Value::from(schema(&mut writing)));
            }
        }
        let read = definitions(reading);
        let mut components = definitions(writing);
        let renamed = differing(&read, &components);
        for schema in inputs.values_mut() {
            rename(schema, &renamed);
        }
        for (name, mut schema) in read {
            rename(&mut schema, &renamed);
            let name = if renamed.contains(&name) {
                format!("{name}Input")
            } else {
                name
            };
            components.insert(name, schema);
        }
        components.insert("Error".into(), problem_schema());
        Self {
            inputs,
            views,
            previews,
            components,
        }
    }
}

fn definitions(mut generator: SchemaGenerator) -> BTreeMap<String, Value> {
    take_definitions(&mut generator).into_iter().collect()
}

/// Components whose input and output schemas differ, directly or through a reference.
fn differing(
    read: &BTreeMap<String, Value>,
    written: &BTreeMap<String, Value>,
) -> BTreeSet<String> {
    let mut differing: BTreeSet<String> = read
        .iter()
        .filter(|(name, schema)| written.get(*name).is_some_and(|other| other != *schema))
        .map(|(name, _)| name.clone())
        .collect();
    loop {
        let more: Vec<String> = read
            .iter()
            .filter(|(name, schema)| {
                written.contains_key(*name)
                    && !differing.contains(*name)
                    && references(schema)
                        .iter()
                        .any(|name| differing.contains(*name))
            })
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            return differing;
        }
        differing.extend(more);
    }
}

/// The names of the components that a schema references.
fn references(schema: &Value) -> Vec<&str> {
    match schema {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match value {
                Value::String(target) if key == "$ref" => {
                    target.strip_prefix(SCHEMAS).into_iter().collect()
                }
                value => references(value),
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

fn rename(schema: &mut Value, renamed: &BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(target) if key == "$ref" => {
                        let name = target.strip_prefix(SCHEMAS);
                        if name.is_some_and(|name| renamed.contains(name)) {
                            target.push_str("Input");
                        }
                    }
                    value => rename(value, renamed),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, renamed)),
        _ => {}
    }
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
