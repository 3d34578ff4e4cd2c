//! Compares the schemas of bodies with the server: the server refuses what a schema refuses, and accepts the
//! values that a schema lists. Generated from the table of operations.

use culvert_destinations::TYPES;
use culvert_resources::resource::Life;
use culvert_resources::targets::{define_targets, take_definitions};
use serde_json::Map;

use crate::operations::resources::ALL;
use crate::tests::*;

/// A step on the path to a value within a body.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Property(String),
    Item,
    /// The value of any key.
    Entry,
}

/// A schema with its path from the body.
pub(super) type Place = (Vec<Step>, Map<String, Value>);

/// All schemas within `schema`, including itself, at every depth.
fn places(schema: &Value, definitions: &Map<String, Value>, way: &[Step], out: &mut Vec<Place>) {
    let Value::Object(schema) = schema else {
        return;
    };
    assert!(way.len() < 10, "{way:?}");
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = name.rsplit_once('/').unwrap().1;
        return places(&definitions[name], definitions, way, out);
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        for one in schema
            .get(choice)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            places(one, definitions, way, out);
        }
    }
    let to = |step: Step| -> Vec<Step> { way.iter().cloned().chain([step]).collect() };
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let way = to(Step::Property(name.clone()));
        places(property, definitions, &way, out);
    }
    if let Some(items) = schema.get("items") {
        places(items, definitions, &to(Step::Item), out);
    }
    if let Some(entry @ Value::Object(_)) = schema.get("additionalProperties") {
        places(entry, definitions, &to(Step::Entry), out);
    }
    out.push((way.to_vec(), schema.clone()));
}

/// `base` with `value` at the end of the path.
pub(super) fn body(base: &Value, way: &[Step], value: Value) -> Value {
    let mut value = value;
    for step in way.iter().skip(1).rev() {
        value = match step {
            Step::Property(name) => json!({ name: value }),
            Step::Item => json!([value]),
            Step::Entry => json!({ "key": value }),
        };
    }
    let mut body = base.clone();
    match way.first() {
        Some(Step::Property(name)) => body[name] = value,
        None => {
            let more = value.as_object().unwrap().clone();
            body.as_object_mut().unwrap().extend(more);
        }
        other => panic!("{other:?}"),
    }
    body
}

/// Values that violate one keyword each, with its name.
fn violations(schema: &Map<String, Value>) -> Vec<(&'static str, Value)> {
    const OTHER: &str = "no such value!";
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
    let size = |keyword: &str| number(keyword).map(|number| usize::try_from(number).unwrap());
    let has_items = schema.contains_key("items");
    let mut found = Vec::new();
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let is_text = values.iter().any(Value::is_string);
        found.push(("enum", if is_text { json!(OTHER) } else { json!(3) }));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        found.push(("pattern", json!(OTHER)));
        if pattern.contains("_[A-Za-z0-9]{1,64}$") {
            found.push(("pattern", json!(format!("zz_{}", "0".repeat(27)))));
        }
    }
    if let Some(max) = size("maxLength") {
        found.push(("maxLength", json!("a".repeat(max + 1))));
    }
    if schema
        .get("format")
        .is_some_and(|format| format == "date-time")
    {
        found.push(("format", json!(OTHER)));
    }
    if size("minProperties") == Some(1) {
        found.push(("minProperties", json!({})));
    }
    if size("minLength") == Some(1) {
        found.push(("minLength", json!("")));
    }
    if let Some(max) = size("maxItems") {
        let item = &schema["items"];
        let listed = item.get("enum").map(|values| values[0].clone());
        let text = if item.get("pattern").is_some() {
            "1"
        } else {
            "*"
        };
        let item = listed.unwrap_or_else(|| json!(text));
        found.push(("maxItems", json!(vec![item; max + 1])));
    }
    if has_items && size("minItems").is_some() {
        found.push(("minItems", json!([])));
    }
    if let Some(max) = size("maxProperties") {
        let many: Map<String, Value> = (0..=max).map(|n| (format!("key{n}"), json!("x"))).collect();
        found.push(("maxProperties", many.into()));
    }
    if let Some(max) = schema
        .get("propertyNames")
        .and_then(|names| names["maxLength"].as_u64())
    {
        let name = "a".repeat(usize::try_from(max).unwrap() + 1);
        found.push(("propertyNames", json!({ name: "x" })));
        found.push(("propertyNames", json!({ "": "x" })));
    }
    if let Some(least) = schema.get("minimum").and_then(Value::as_i64) {
        found.push(("minimum", json!(least - 1)));
    }
    if let Some(most) = schema.get("maximum").and_then(Value::as_i64) {
        found.push(("maximum", json!(most + 1)));
    }
    if schema.get("additionalProperties") == Some(&json!(false)) {
        found.push(("additionalProperties", json!({"nope": 1})));
    }
    found
}

pub(super) fn schema_of(spec: &BodySpec) -> Vec<Place> {
    let mut generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    define_targets(&mut generator, |generator| TYPES.schema(generator));
    let schema = (spec.schema)(&mut generator).to_value();
    let definitions = take_definitions(&mut generator);
    let mut out = Vec::new();
    places(&schema, &definitions, &[], &mut out);
    out
}

/// A valid body for an operation, and its path with the IDs of existing objects.
pub(super) async fn valid(rig: &Rig, operation: &Operation) -> (String, Value) {
    let collection = format!("/{}", operation.collection);
    if operation.name == "create" {
        return (collection, rig.sample(operation.collection, 9).await);
    }
    let base = match operation.name {
        "update" if matches!(operation.collection, "bot_users" | "service_users") => {
            json!({"active": true})
        }
        "update" if operation.collection == "users" => json!({"role": "member"}),
        "update" if operation.collection == "audit_holds" => json!({"reason": "another"}),
        "update" => json!({"description": "changed"}),
        "create_source" => json!({"type": "ip_policy_created.v0"}),
        "replay" => json!({"from": "2027-01-01T00:00:00Z"}),
        _ => json!({}),
    };
    if operation.collection == "events" {
        let page = rig.get("/events?limit=1").await.body();
        let id = page["events"][0]["event"]["event_id"].as_str().unwrap();
        return (operation.path.replace("{id}", id), json!({}));
    }
    if operation.collection == "leaked_tokens" {
        return (operation.path.clone(), json!({"tokens": [{"token": "x"}]}));
    }
    if operation.collection == "api_key_rules" {
        return (operation.path.clone(), json!({"maximum_age_days": 90}));
    }
    if operation.collection.is_empty() {
        // Its operations have no object.
        return (operation.path.clone(), rig.sample("", 8).await);
    }
    let observed = ALL
        .iter()
        .any(|ty| ty.collection == operation.collection && ty.life != Life::Configured);
    let id = if observed {
        "ts_000000000000000000000000000".to_owned()
    } else {
        let sample = rig.sample(operation.collection, 8).await;
        let made = rig.post(&collection, sample.clone()).await;
        match made {
            Answered::Created(made) => made["id"].as_str().unwrap().to_owned(),
            // Another operation has created it.
            _ => {
                let ty = ALL.iter().find(|ty| ty.collection == operation.collection);
                let list = rig.get(&collection).await.body();
                list[ty.unwrap().list_field][0]["id"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
        }
    };
    let path = operation.path.replace("{id}", &id);
    (path.replace("{type}", "api_key_created.v0"), base)
}

#[tokio::test]
async fn values_outside_a_schema_are_refused_and_listed_values_accepted() {
    let rig = Rig::start().await;
    let mut wrong = Vec::new();
    let mut n_violations = 0;
    for operation in operations() {
        let Some(spec) = &operation.body else {
            continue;
        };
        let (path, base) = valid(&rig, operation).await;
        let method = operation.method.as_str();
        let mut refused = Vec::new();
        for (way, schema) in schema_of(spec) {
            let kind = schema.get("type").unwrap_or(&Value::Null);
            let is_object = kind == "object"
                || kind
                    .as_array()
                    .is_some_and(|kinds| kinds.contains(&json!("object")));
            // A traffic policy is text or any object; its own parser checks it.
            let is_policy = kind.to_string().contains("string") && is_object;
            if is_object && !is_policy && !schema.contains_key("additionalProperties") {
                wrong.push(format!("{method} {path} {way:?}: an object that is open"));
            }
            let mut base = base.clone();
            match way.first() {
                Some(Step::Property(name)) if name == "elliptic_curve" => {
                    base["private_key_type"] = json!("ecdsa")
                }
                Some(Step::Property(name)) if name == "key_size" => {
                    base["private_key_type"] = json!("rsa")
                }
                // They are options of a list.
                Some(Step::Property(name))
                    if ["upstream_balancing", "upstream_health", "upstream_retries"]
                        .contains(&name.as_str()) =>
                {
                    base["upstreams"] = json!([{"url": "http://127.0.0.1:9"}]);
                    base["upstream_url"] = json!("");
                }
                _ => {}
            }
            for (keyword, value) in violations(&schema) {
                n_violations += 1;
                let sent = body(&base, &way, value);
                match rig.call(&rig.admin, method, &path, sent).await {
                    Answered::Refused(_, code, message) => {
                        refused.push((
                            base.clone(),
                            way.clone(),
                            schema.clone(),
                            keyword,
                            code,
                            message,
                        ));
                    }
                    taken => wrong.push(format!("{method} {path} {way:?} {keyword}: {taken:?}")),
                }
            }
        }
        // The violation caused the refusal, not the rest of the body.
        // A dry run needs retained traffic.
        let needs_more = ["replay", "dry_run"].contains(&operation.name);
        if !path.contains("ts_0") && !needs_more {
            let answered = rig.call(&rig.admin, method, &path, base).await;
            match answered {
                Answered::Refused(..) => panic!("{method} {path} {answered:?} {wrong:?}"),
                Answered::Created(made) if operation.name == "create" => {
                    let one = format!("{path}/{}", made["id"].as_str().unwrap());
                    assert_eq!(rig.delete(&one).await, Answered::NoContent);
                }
                _ => {}
            }
        }
        for (base, way, schema, keyword, code, message) in refused {
            let fit: Vec<Value> = match keyword {
                "enum" => schema["enum"].as_array().unwrap().clone(),
                "maxLength" if message.contains("long") || message.contains("at most") => {
                    let max = usize::try_from(schema["maxLength"].as_u64().unwrap()).unwrap();
                    vec![json!("a".repeat(max))]
                }
                _ => continue,
            };
            // An update accepts only the type in the path, and an object keeps its target; creates test the
            // other values.
            let is_of_object = match operation.name {
                "update_source" => keyword == "enum",
                "update" => {
                    matches!(way.as_slice(), [Step::Property(name), _, ..] if name == "target")
                }
                _ => false,
            };
            // An overlong key and a key of letters alone have the same error message.
            let is_key = matches!(way.last(), Some(Step::Property(name)) if name == "public_key");
            if is_of_object || is_key {
                continue;
            }
            for value in fit {
                // Generating a key of this size takes long.
                if value == 4096 {
                    continue;
                }
                let text = value
                    .as_str()
                    .filter(|text| !text.is_empty())
                    .unwrap_or("\0")
                    .to_owned();
                let sent = body(&base, &way, value);
                let answered = rig.call(&rig.admin, method, &path, sent).await;
                if let Answered::Refused(_, its_code, its_message) = &answered
                    && *its_code == code
                    && its_message.replace(&text, "") == message.replace("no such value!", "")
                {
                    wrong.push(format!(
                        "{method} {path} {way:?} {keyword} {text}: {its_message}"
                    ));
                }
            }
        }
        if operation.collection == "api_key_rules" {
            // Each listed value was set.
            let off = json!({"maximum_age": "off", "required_end": "off", "admin_networks": "off"});
            rig.patch(&path, off).await.body();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_violations > 300, "{n_violations}");
}

/// An empty object stands for nothing but an object: a client that sends it for a text, a number, a bool or a list has
/// an error, which the server must not hide.
#[tokio::test]
async fn an_empty_object_is_no_text_number_bool_or_list() {
    let rig = Rig::start().await;
    let mut wrong = Vec::new();
    let mut n_sent = 0;
    for operation in operations() {
        let Some(spec) = &operation.body else {
            continue;
        };
        let (path, base) = valid(&rig, operation).await;
        let method = operation.method.as_str();
        for (way, schema) in schema_of(spec) {
            let kinds = match schema.get("type") {
                Some(Value::Array(kinds)) => kinds.clone(),
                Some(kind) => vec![kind.clone()],
                // A choice, whose schemas are places too.
                None => continue,
            };
            if way.is_empty() || kinds.contains(&json!("object")) || kinds == ["null"] {
                continue;
            }
            n_sent += 1;
            let sent = body(&base, &way, json!({}));
            let answered = rig.call(&rig.admin, method, &path, sent).await;
            if !matches!(answered, Answered::Refused(..)) {
                wrong.push(format!("{method} {path} {way:?}: {answered:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_sent > 400, "{n_sent}");
}

/// Views show only the values that their schemas list for a field.
#[tokio::test]
async fn views_show_the_values_that_their_schemas_list() {
    let rig = Rig::start().await;
    for ty in ALL.iter().filter(|ty| ty.life == Life::Configured) {
        let sample = rig.sample(ty.collection, 4).await;
        let made = rig
            .post(&format!("/{}", ty.collection), sample)
            .await
            .body();
        let mut generator = schemars::generate::SchemaSettings::draft2020_12()
            .for_serialize()
            .into_generator();
        let _ = (ty.view_schema)(&mut generator);
        for schema in generator.take_definitions(true).values() {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                let Some(value) = made
                    .get(name)
                    .filter(|_| schema["properties"].get("uri").is_some())
                else {
                    continue;
                };
                if let Some(values) = property.get("enum").and_then(Value::as_array) {
                    assert!(values.contains(value), "{} {name} {value}", ty.name);
                }
                if let Some(values) = property.pointer("/items/enum").and_then(Value::as_array) {
                    let shown = value.as_array().unwrap();
                    assert!(
                        shown.iter().all(|one| values.contains(one)),
                        "{} {name}",
                        ty.name
                    );
                }
            }
        }
    }
}
