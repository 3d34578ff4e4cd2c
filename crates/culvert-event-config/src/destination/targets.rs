//! What destinations may be, as the types of targets decide.

use culvert_base::{Entropy, Refusal, code};
use culvert_resources::targets::{CheckedTarget, TargetCheck};
use culvert_target::{TargetSettings, TargetType, TargetTypes};
use serde_json::Value;

/// The types of targets under the settings of the server.
#[derive(Debug)]
pub struct Targets {
    /// The types.
    pub types: TargetTypes,
    /// The settings.
    pub settings: TargetSettings,
}

impl Targets {
    fn find(&self, target: &str) -> Result<&'static TargetType, Refusal> {
        let found = self.types.find(target);
        found.ok_or_else(|| Refusal::of(code::TARGET_TYPE_UNKNOWN))
    }
}

impl TargetCheck for Targets {
    fn check(
        &self,
        target: &str,
        given: &Value,
        entropy: &dyn Entropy,
    ) -> Result<CheckedTarget, Refusal> {
        let ty = self.find(target)?;
        let checked = (ty.check)(given, &self.settings, entropy)?;
        Ok(CheckedTarget {
            shown: (ty.redact)(&checked.stored),
            stored: checked.stored,
            shown_once: checked.shown_once,
        })
    }

    fn merge(&self, target: &str, stored: &Value, given: Value) -> Result<Value, Refusal> {
        Ok((self.find(target)?.merge)(stored, given))
    }
}
