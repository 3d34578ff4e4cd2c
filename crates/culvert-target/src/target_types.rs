//! The table of target types.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use crate::target_type::TargetType;

/// The types of targets that a program has.
#[derive(Clone, Copy, Debug)]
pub struct TargetTypes(&'static [&'static TargetType]);

impl TargetTypes {
    /// The table with these types, sorted by name.
    pub const fn new(types: &'static [&'static TargetType]) -> Self {
        Self(types)
    }

    /// Every type, sorted by name.
    pub fn all(self) -> &'static [&'static TargetType] {
        self.0
    }

    /// The type of that name.
    pub fn find(self, name: &str) -> Option<&'static TargetType> {
        self.0.iter().copied().find(|ty| ty.name == name)
    }

    /// The JSON Schema of an object with one member: the configuration of a target under the name of its type.
    pub fn schema(self, generator: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({
            "type": "object",
            "additionalProperties": false,
            "minProperties": 1,
            "maxProperties": 1,
            "properties": {},
        });
        let properties: Map<String, Value> = self
            .0
            .iter()
            .map(|ty| {
                let mut schema = (ty.schema)(generator);
                schema.insert("description".to_owned(), ty.doc.into());
                (ty.name.to_owned(), schema.to_value())
            })
            .collect();
        schema.insert("properties".to_owned(), properties.into());
        schema
    }
}
