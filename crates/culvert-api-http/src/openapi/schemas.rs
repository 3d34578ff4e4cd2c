//! The schemas of bodies. Those that are read and written differently are listed twice.

use std::collections::{BTreeMap, BTreeSet};

use culvert_resources::operation::OperationSpec;
use culvert_resources::targets::{define_targets, take_definitions};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use super::{SCHEMAS, problem_schema};

/// The schemas of all bodies by the index of their operation, and the components that they reference.
pub(super) struct Schemas {
    pub(super) inputs: BTreeMap<usize, Value>,
    pub(super) views: BTreeMap<usize, Value>,
    pub(super) previews: BTreeMap<usize, Value>,
    pub(super) components: BTreeMap<String, Value>,
}

impl Schemas {
    pub(super) fn collect(
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
pub(super) fn differing(
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

pub(super) fn rename(schema: &mut Value, renamed: &BTreeSet<String>) {
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
