//! Settings of statistics.

use std::time::Duration;

use culvert_resources::settings::StatisticsSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Invalid, Span};

/// Statistics of endpoints, destinations, agents and nodes, for the console and the API.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Statistics {
    /// Retention of statistics at a resolution of 10 s; at least `1h`.
    pub detail_retention: Span,
    /// Retention of statistics at a resolution of 5 min; at least `1h`.
    pub retention: Span,
    /// Maximum size of statistics on disk in bytes; the oldest of the finer resolution are deleted
    /// first. At least 1 MiB.
    pub bytes_max: u64,
    /// Maximum number of endpoints that each node counts separately. The traffic of further
    /// endpoints counts only towards the total. An endpoint without traffic needs no place.
    pub endpoints_max: u32,
}

impl Default for Statistics {
    fn default() -> Self {
        let defaults = StatisticsSettings::default();
        Self {
            detail_retention: Span(defaults.detail_retention),
            retention: Span(defaults.retention),
            bytes_max: defaults.bytes_max,
            endpoints_max: 10_000,
        }
    }
}

impl Statistics {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let hour = Duration::from_secs(60 * 60);
        if self.detail_retention.0 < hour || self.retention.0 < hour {
            return Err(Invalid(
                "`statistics.detail_retention` and `statistics.retention` must be at least `1h`"
                    .into(),
            ));
        }
        if self.bytes_max < 1 << 20 {
            return Err(Invalid(
                "`statistics.bytes_max` must be at least 1048576".into(),
            ));
        }
        Ok(())
    }

    /// The settings for control.
    pub fn of_control(&self) -> StatisticsSettings {
        StatisticsSettings {
            detail_retention: self.detail_retention.0,
            retention: self.retention.0,
            bytes_max: self.bytes_max,
        }
    }
}
