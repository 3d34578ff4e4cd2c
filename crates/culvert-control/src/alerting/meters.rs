//! Metrics of alerts.

use culvert_base::Meter;
use culvert_event_config::alert::rule_model::Severity;

/// Metrics of alerts. Only the node that evaluates has open alerts.
#[derive(Debug, Default)]
pub struct AlertMeters {
    /// Open alerts, by severity, in the order of [`Severity::ALL`].
    pub open: [Meter; Severity::ALL.len()],
    /// Passes that did not fail, with or without an evaluation, which is the turn of one node.
    pub passes: Meter,
    /// Evaluations of all rules.
    pub evaluations: Meter,
    /// Evaluations that failed, of one rule or of all.
    pub errors: Meter,
}

impl AlertMeters {
    /// Open alerts, each number with the name of its severity.
    pub fn by_severity(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = Severity::ALL.iter().map(|severity| severity.name());
        names.zip(self.open.iter().map(Meter::get))
    }
}
