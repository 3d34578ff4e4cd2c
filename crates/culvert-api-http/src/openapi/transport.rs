//! What every operation has besides its own input and output: header fields of requests and responses.

use culvert_resources::operation::{Method, OperationSpec};
use serde_json::{Value, json};

/// Adds the fields of an operation to its description.
pub(super) fn describe(described: &mut Value, operation: &OperationSpec) {
    let mut names = Vec::new();
    if operation.method == Method::Post {
        names.push("IdempotencyKey");
    }
    if operation.has_state() {
        names.extend(["IfMatch", "IfNoneMatch", "IfUnmodifiedSince"]);
    }
    let references = names
        .into_iter()
        .map(|name| json!({"$ref": format!("#/components/parameters/{name}")}));
    if let Some(parameters) = described["parameters"].as_array_mut() {
        parameters.extend(references);
    }
    if operation.method == Method::Get && operation.has_state() {
        described["responses"]["304"] =
            json!({"description": "The client has this response already."});
    }
    if !matches!(operation.name, "create" | "get" | "update") {
        return;
    }
    let of_object = operation.has_state() || operation.name == "create";
    for status in ["200", "201"] {
        let response = described.pointer_mut(&format!("/responses/{status}/headers"));
        if let Some(Value::Object(headers)) = response.filter(|_| of_object) {
            for (field, name) in [("etag", "EntityTag"), ("last-modified", "LastModified")] {
                let reference = json!({"$ref": format!("#/components/headers/{name}")});
                headers.insert(field.to_owned(), reference);
            }
        }
    }
}

/// The parameters that [`describe`] refers to.
pub(super) fn parameters() -> Value {
    let field = |name: &str, description: &str, schema: Value| {
        json!({
            "name": name, "in": "header", "required": false, "description": description,
            "schema": schema,
        })
    };
    json!({
        "IdempotencyKey": field(
            "Idempotency-Key",
            "A request that is repeated with its key has its effect once, and gets its answer again for 24 hours.",
            json!({"type": "string", "minLength": 1, "maxLength": 255}),
        ),
        "IfMatch": field(
            "If-Match",
            "Entity tags of the object, or `*`. 412 if it was written since.",
            json!({"type": "string"}),
        ),
        "IfNoneMatch": field(
            "If-None-Match",
            "Entity tags, or `*`. A read returns 304 if the client has this response; a write 412.",
            json!({"type": "string"}),
        ),
        "IfUnmodifiedSince": field(
            "If-Unmodified-Since",
            "A date of HTTP. 412 if the object was written after it; without effect beside `If-Match`.",
            json!({"type": "string"}),
        ),
    })
}

/// Adds the fields of responses that [`describe`] refers to.
pub(super) fn add_headers(headers: &mut Value) {
    headers["EntityTag"] = json!({
        "description": "A strong entity tag of the response. It fits `If-Match` until the object is written.",
        "schema": {"type": "string"},
    });
    headers["LastModified"] = json!({
        "description": "The time of the last write of the object.",
        "schema": {"type": "string"},
    });
}
