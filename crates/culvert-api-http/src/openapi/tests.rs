use culvert_control::operation_specs as operations;
use culvert_destinations::TYPES;

use super::schemas::{differing, rename};
use super::version_3_0::openapi_3_0;
use super::*;

/// The published schema of OpenAPI 3.1 documents (The Linux Foundation, Apache-2.0), without the dialect part.
/// Schemas inside the document are validated against JSON Schema 2020-12 below.
const OAS: &str = include_str!("oas-3.1.schema.json");

fn document() -> Value {
    openapi(operations(), |generator| TYPES.schema(generator))
}

#[test]
fn the_document_is_openapi_and_its_schemas_are_json_schema() {
    let document = document();
    let meta: Value = serde_json::from_str(OAS).unwrap();
    let validator = jsonschema::validator_for(&meta).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(!validator.is_valid(&json!({"openapi": "3.1.0"})));

    let mut n_schemas = 0;
    each(&document, &mut |key, value| {
        if key == "schema" {
            n_schemas += 1;
            jsonschema::draft202012::meta::validate(value).unwrap();
        }
    });
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        n_schemas += 1;
        if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
            panic!("{name}: {error}");
        }
    }
    assert!(n_schemas > operations().len());
}

#[test]
fn every_operation_is_there_once() {
    let document = document();
    let mut ids = BTreeSet::new();
    for operation in operations() {
        let method = operation.method.as_str().to_ascii_lowercase();
        let described = &document["paths"][&operation.path][&method];
        let id = described["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{id} is there twice");
        assert_eq!(described["summary"], operation.doc);
        assert_eq!(described["x-culvert-role"], operation.right.role.name());
        let scope = operation.right.scope.map(culvert_control::Scope::name);
        assert_eq!(described["x-culvert-scope"], json!(scope));
        let object = operation.object.as_ref();
        let object = object.map(|object| object.rights.of(object.access).0);
        assert_eq!(described["x-culvert-object-right"], json!(object));
        assert_eq!(
            object.is_some(),
            operation.path.contains("{id}") && operation.collection != "events"
        );
        assert_eq!(
            described.get("requestBody").is_some(),
            operation.body.is_some()
        );
        let n_preset = PRESETS
            .iter()
            .filter(|it| it.of == operation.path && it.method == operation.method)
            .count();
        // What can be changed has entity tags and takes conditions.
        assert!(operation.has_state() || operation.method != Method::Patch);
        let n_fields = match (operation.method, operation.has_state()) {
            (Method::Post, true) => 4,
            (_, true) => 3,
            (Method::Post, false) => 1,
            (_, false) => 0,
        };
        let n_query = operation.query.len() - n_preset;
        let n_parameters = operation.path.matches('{').count() + n_query + n_fields;
        assert_eq!(
            described["parameters"].as_array().unwrap().len(),
            n_parameters
        );
    }
    assert!(!ids.is_empty());
    for preset in &PRESETS {
        let described = &document["paths"][preset.path][name_of(preset.method)];
        assert_eq!(described["operationId"], preset.id);
        assert!(ids.insert(preset.id.to_owned()));
        let of = &document["paths"][preset.of][name_of(preset.method)];
        assert_eq!(described["parameters"], of["parameters"]);
        assert_ne!(described["responses"], of["responses"]);
    }
    assert_eq!(
        document["paths"][TAIL_PATH]["get"]["operationId"],
        "events_tail"
    );
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut n_references = 0;
    each(&document, &mut |key, value| {
        if key == "$ref"
            && let Some(target) = value.as_str()
        {
            n_references += 1;
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    });
    assert!(n_references > 0);
}

#[test]
fn the_same_table_makes_the_same_bytes_in_order() {
    let text = document().to_string();
    assert_eq!(text, document().to_string());
    let names: Vec<String> = document()["paths"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert!(names.is_sorted(), "{names:?}");
}

#[test]
fn a_type_that_reads_and_writes_differently_is_listed_twice() {
    let both = |b: Value| -> BTreeMap<String, Value> {
        [
            (
                "A".to_owned(),
                json!({"properties": {"b": {"$ref": format!("{SCHEMAS}B")}}}),
            ),
            ("B".to_owned(), b),
            ("C".to_owned(), json!({"type": "string"})),
        ]
        .into()
    };
    let read = both(json!({"type": "object"}));
    let written = both(json!({"type": "object", "required": ["x"]}));
    let differing = differing(&read, &written);
    assert_eq!(differing, ["A".to_owned(), "B".to_owned()].into());
    let mut schema = json!([{"$ref": format!("{SCHEMAS}B")}, {"$ref": format!("{SCHEMAS}C")}]);
    rename(&mut schema, &differing);
    assert_eq!(
        schema,
        json!([{"$ref": format!("{SCHEMAS}BInput")}, {"$ref": format!("{SCHEMAS}C")}])
    );
}

/// The schemas of a document, with their paths.
fn schemas(document: &Value) -> Vec<Map<String, Value>> {
    let found = std::cell::RefCell::new(Vec::new());
    walk::document(&mut document.clone(), &|schema| {
        found.borrow_mut().push(schema.clone());
    });
    found.into_inner()
}

#[test]
fn schemas_are_written_as_generators_know_them() {
    let mut n_texts = 0;
    for document in [document(), openapi_3_0(document())] {
        let is_old = document["openapi"] == "3.0.3";
        for schema in schemas(&document) {
            let said = || json!(schema).to_string();
            let kinds = schema.get("type").and_then(Value::as_array);
            if walk::has_type(&schema, "array") {
                assert!(schema.contains_key("items"), "{}", said());
            }
            if walk::has_type(&schema, "object") {
                let is_described = ["properties", "additionalProperties", "allOf"]
                    .iter()
                    .any(|keyword| schema.contains_key(*keyword));
                assert!(is_described, "{}", said());
            }
            let format = schema.get("format").and_then(Value::as_str);
            let known = ["date-time", "email", "int32", "int64", "double"];
            assert!(format.is_none_or(|it| known.contains(&it)), "{}", said());
            n_texts += usize::from(walk::has_type(&schema, "string"));
            let older = ["prefixItems", "const", "propertyNames"];
            let is_plain = |keyword: &&str| !schema.contains_key(*keyword);
            assert!(is_plain(&"prefixItems"), "{}", said());
            if is_old {
                assert!(older.iter().all(is_plain), "{}", said());
                assert!(
                    kinds.is_none() && !walk::has_type(&schema, "null"),
                    "{}",
                    said()
                );
                assert!(
                    !schema.contains_key("$ref") || schema.len() == 1,
                    "{}",
                    said()
                );
                assert!(!schema.contains_key("oneOf"), "{}", said());
            }
        }
    }
    assert!(n_texts > 1_000, "{n_texts}");
}

#[test]
fn an_operation_has_one_kind_of_response() {
    for (path, methods) in document()["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let responses = described["responses"].as_object().unwrap();
            let successes: Vec<&Value> = responses
                .iter()
                .filter(|(status, _)| status.starts_with('2'))
                .map(|(_, response)| response)
                .collect();
            let [success] = successes[..] else {
                panic!("{method} {path}: {} successes", successes.len());
            };
            let n_kinds = success["content"].as_object().map_or(0, Map::len);
            assert!(n_kinds <= 1, "{method} {path}");
        }
    }
}

#[test]
fn the_older_document_says_the_same_in_its_words() {
    for (newer, older) in [
        (
            json!({"type": ["string", "null"], "enum": ["a", null]}),
            json!({"type": "string", "nullable": true, "enum": ["a", null]}),
        ),
        (
            json!({"description": "d", "anyOf": [{"$ref": "#/components/schemas/R"}, {"type": "null"}]}),
            json!({
                "description": "d", "type": "string", "nullable": true,
                "allOf": [{"$ref": "#/components/schemas/R"}],
            }),
        ),
        (
            json!({"$ref": "#/a", "description": "d"}),
            json!({"allOf": [{"$ref": "#/a"}], "description": "d"}),
        ),
        (json!({"$ref": "#/a"}), json!({"$ref": "#/a"})),
        (
            json!({"type": ["string", "object", "null"], "additionalProperties": true}),
            json!({"anyOf": [
                {"type": "string", "nullable": true},
                {"type": "object", "nullable": true, "additionalProperties": true},
            ]}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {}}}),
            json!({"type": "object", "properties": {"b": {}}}),
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 1}),
            json!({"type": "number", "minimum": 1, "exclusiveMinimum": true}),
        ),
        (
            json!({"oneOf": [
                {"type": "object", "required": ["k", "a"], "properties": {"k": {"const": "x"}, "a": {}}},
                {"type": "object", "required": ["k"], "properties": {"k": {"const": "y"}, "b": {}}},
            ]}),
            json!({"type": "object", "required": ["k"], "properties": {
                "k": {"enum": ["x", "y"]}, "a": {}, "b": {},
            }}),
        ),
    ] {
        let other = json!({"type": "string"});
        let document =
            json!({"info": {}, "components": {"schemas": {"R": other, "S": {"items": newer}}}});
        let made = openapi_3_0(document);
        assert_eq!(made["components"]["schemas"]["S"]["items"], older);
    }
}

fn each(value: &Value, seen: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                seen(key, value);
                each(value, seen);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| each(value, seen)),
        _ => {}
    }
}
