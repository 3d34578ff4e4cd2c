//! How many requests and connections of an endpoint may be in flight, and how many more wait.

use std::time::Duration;

use culvert_base::Refusal;
use culvert_edge_config::InFlightLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::endpoint::timeouts::{PATTERN, parse};
use crate::endpoint::upstreams::{invalid, time};

const IN_FLIGHT_MAX: u32 = 1_000_000;
const QUEUE_MAX: u32 = 10_000;

/// Limits of requests and connections in flight, on each node. Values that are absent, `null` or empty are the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointUpstreamLimits", extend("additionalProperties" = false))]
pub(crate) struct GivenLimits {
    /// How many requests and connections of the endpoint may be in flight: 1 to 1000000. By default, any number.
    #[schemars(range(max = IN_FLIGHT_MAX))]
    in_flight_max: Option<u32>,
    /// How many more wait for one of them, or for an upstream with `in_flight_max`, to end: 0 to 10000, default 100. All others
    /// are refused.
    #[schemars(range(max = QUEUE_MAX))]
    queue_max: Option<u32>,
    /// How long a request or connection waits: 100ms to 10m, default 10s.
    #[schemars(extend("pattern" = PATTERN))]
    wait_max: Option<String>,
}

impl GivenLimits {
    /// Checks the limits; `None` if none is given.
    ///
    /// # Errors
    ///
    /// 18014, with the field and its bounds.
    pub(crate) fn check(mut self) -> Result<Option<Self>, Refusal> {
        in_flight("upstream_limits.in_flight_max", self.in_flight_max)?;
        if self.queue_max.is_some_and(|most| most > QUEUE_MAX) {
            return Err(invalid(format!(
                "`upstream_limits.queue_max` must be at most {QUEUE_MAX}."
            )));
        }
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(600));
        time("upstream_limits.wait_max", &mut self.wait_max, least..=most)?;
        Ok((self != Self::default()).then_some(self))
    }

    /// Compiles the limits for the edge.
    pub(crate) fn compile(&self) -> InFlightLimits {
        let default = InFlightLimits::default();
        InFlightLimits {
            in_flight_max: self.in_flight_max,
            queue_max: self.queue_max.unwrap_or(default.queue_max),
            wait_max: self
                .wait_max
                .as_deref()
                .and_then(parse)
                .unwrap_or(default.wait_max),
        }
    }
}

/// Checks how many may be in flight.
///
/// # Errors
///
/// 18014, with the field and its bounds.
pub(crate) fn in_flight(field: &str, most: Option<u32>) -> Result<(), Refusal> {
    match most {
        Some(most) if !(1..=IN_FLIGHT_MAX).contains(&most) => Err(invalid(format!(
            "`{field}` must be from 1 to {IN_FLIGHT_MAX}."
        ))),
        _ => Ok(()),
    }
}
