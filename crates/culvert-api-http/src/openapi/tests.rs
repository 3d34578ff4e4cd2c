use culvert_control::operation_specs as operations;
use culvert_destinations::TYPES;

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
        let n_fields = match (operation.method, operation.object.is_some()) {
            (Method::Post, true) => 4,
            (_, true) => 3,
            (Method::Post, false) => 1,
            (_, false) => 0,
        };
        let n_parameters = operation.path.matches('{').count() + operation.query.len() + n_fields;
        assert_eq!(
            described["parameters"].as_array().unwrap().len(),
            n_parameters
        );
    }
    assert!(!ids.is_empty());
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
