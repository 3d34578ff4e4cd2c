//! The port to the targets of event destinations.
//!
//! Control stores configurations of targets and does not depend on the crate of the targets. The program that has both
//! hands in the checks as a [`TargetCheck`], and their schemas with [`define_targets`].

use std::fmt::Debug;

use culvert_base::{Entropy, Refusal};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

/// Decides what destinations may be.
pub trait TargetCheck: Debug + Send + Sync {
    /// Checks the configuration of a target of this type, such as `webhook`, without network, and generates its secrets.
    ///
    /// # Errors
    ///
    /// The refusal of the configuration, or of the type.
    fn check(
        &self,
        target: &str,
        given: &Value,
        entropy: &dyn Entropy,
    ) -> Result<CheckedTarget, Refusal>;

    /// Copies stored secrets (first) into a new configuration (second) that omits them. The result is checked again.
    ///
    /// # Errors
    ///
    /// The refusal of the type.
    fn merge(&self, target: &str, stored: &Value, given: Value) -> Result<Value, Refusal>;
}

/// The configuration of a target that passed its check.
#[derive(Debug)]
pub struct CheckedTarget {
    /// The whole configuration, with secrets.
    pub stored: Value,
    /// The configuration without secrets.
    pub shown: Value,
    /// Fields with secrets that are shown only now.
    pub shown_once: Option<Value>,
}

/// The name of the definition from which [`target_schema`] copies.
const DEFINITION: &str = "EventTarget";

/// Makes the schemas that `generator` generates afterwards describe targets by `schema`.
pub fn define_targets(
    generator: &mut SchemaGenerator,
    schema: impl FnOnce(&mut SchemaGenerator) -> Schema,
) {
    let schema = schema(generator).to_value();
    generator
        .definitions_mut()
        .insert(DEFINITION.to_owned(), schema);
}

/// The schema of a field whose value is a target: that of [`define_targets`], or any object with one member.
pub fn target_schema(generator: &mut SchemaGenerator) -> Schema {
    let defined = generator.definitions().get(DEFINITION).cloned();
    defined
        .and_then(|schema| Schema::try_from(schema).ok())
        .unwrap_or_else(|| json_schema!({"type": "object", "minProperties": 1, "maxProperties": 1}))
}

/// The definitions that the schemas of `generator` refer to.
pub fn take_definitions(generator: &mut SchemaGenerator) -> Map<String, Value> {
    generator.definitions_mut().remove(DEFINITION);
    generator.take_definitions(true)
}
