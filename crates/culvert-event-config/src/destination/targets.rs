//! What destinations may be, as the delivery plane decides.

use culvert_base::{Entropy, Refusal, code};
use culvert_destinations::{TargetSettings, target};
use culvert_resources::settings::{CheckedTarget, TargetCheck};
use serde_json::Value;

/// The targets of the delivery plane under these settings.
#[derive(Debug)]
pub struct Targets(pub TargetSettings);

impl TargetCheck for Targets {
    fn check(
        &self,
        target: &str,
        given: &Value,
        entropy: &dyn Entropy,
    ) -> Result<CheckedTarget, Refusal> {
        let ty = target::find(target).ok_or_else(|| Refusal::of(code::TARGET_TYPE_UNKNOWN))?;
        let checked = (ty.check)(given, &self.0, entropy)?;
        Ok(CheckedTarget {
            stored: checked.stored,
            shown_once: checked.shown_once,
        })
    }
}
