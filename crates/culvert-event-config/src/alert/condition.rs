//! The conditions of rules: what must be true of an object, with the bounds of their values.

use std::ops::RangeInclusive;

use culvert_base::{Refusal, code};
use culvert_resources::input::{self, patterns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use culvert_resources::input::period::Period;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Bounds of the time that something must last.
const LASTS: RangeInclusive<u64> = 30..=30 * DAY;
/// Bounds of the time before an end, and of the time without a use.
const AHEAD: RangeInclusive<u64> = HOUR..=366 * DAY;
/// Bounds of windows over statistics and sign-ins. Statistics have steps of ten seconds.
const WINDOW: RangeInclusive<u64> = MINUTE..=HOUR;
/// Bounds of numbers of requests and sign-ins.
const NUMBERS: RangeInclusive<u64> = 1..=1_000_000_000;
/// Bounds of latencies in milliseconds.
const LATENCIES: RangeInclusive<u64> = 1..=3_600_000;
/// The requests below which a window says nothing, by default.
const REQUESTS: u64 = 100;
const UNREACHED: u64 = 5;

/// A percentile of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
#[allow(missing_docs, reason = "comments without the schema's descriptions")]
pub enum Quantile {
    P50,
    P95,
    P99,
}

impl Quantile {
    const ALL: [Self; 3] = [Self::P50, Self::P95, Self::P99];

    /// As in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
        }
    }

    /// The share of durations that are below it.
    pub const fn share(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P95 => 0.95,
            Self::P99 => 0.99,
        }
    }
}

/// What must be true of an object.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AlertCondition")]
pub enum Condition {
    /// No agent is connected with a credential that agents were connected with.
    AgentOffline {
        /// For how long.
        #[serde(rename = "for")]
        #[schemars(with = "String")]
        lasting: Period,
    },
    /// A certificate expires soon. One that lives shorter than twice the time is watched in the last half of its life; one
    /// that the installation renews, in the last half of the third in which it is renewed.
    CertificateExpiring {
        /// Within which time.
        #[schemars(with = "String")]
        within: Period,
    },
    /// An event destination accepts nothing.
    DestinationFailing {
        /// For how long.
        #[serde(rename = "for")]
        #[schemars(with = "String")]
        lasting: Period,
    },
    /// No request or connection to an endpoint reaches an upstream. While there are none, an alert stays.
    EndpointWithoutUpstream {
        /// The window.
        #[schemars(with = "String")]
        over: Period,
        /// Fewer requests and connections in the window say nothing.
        min_requests: u64,
    },
    /// A share of the requests of an endpoint fail: responses with status 5xx, and requests without a response.
    ErrorRate {
        /// The share above which it is true, from 0 to 1.
        above: f64,
        /// The window.
        #[schemars(with = "String")]
        over: Period,
        /// Fewer requests in the window say nothing.
        min_requests: u64,
    },
    /// The requests of an endpoint take long.
    Latency {
        /// The percentile of the durations.
        quantile: Quantile,
        /// The duration above which it is true, in milliseconds.
        above_ms: u64,
        /// The window.
        #[schemars(with = "String")]
        over: Period,
        /// Fewer requests in the window say nothing.
        min_requests: u64,
    },
    /// An API key expires soon: its own end, or the maximum age of its token by the rules of the account.
    KeyExpiring {
        /// Within which time.
        #[schemars(with = "String")]
        within: Period,
    },
    /// An API key is not used.
    KeyUnused {
        /// For how long.
        #[serde(rename = "for")]
        #[schemars(with = "String")]
        lasting: Period,
    },
    /// Sign-ins to the console are refused.
    SignInsFailed {
        /// How many.
        count: u64,
        /// The window.
        #[schemars(with = "String")]
        over: Period,
    },
}

/// The kinds of conditions.
pub const KINDS: [&str; 9] = [
    "agent_offline",
    "certificate_expiring",
    "destination_failing",
    "endpoint_without_upstream",
    "error_rate",
    "key_expiring",
    "key_unused",
    "latency",
    "sign_ins_failed",
];

impl Condition {
    /// Its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::AgentOffline { .. } => "agent_offline",
            Self::CertificateExpiring { .. } => "certificate_expiring",
            Self::DestinationFailing { .. } => "destination_failing",
            Self::EndpointWithoutUpstream { .. } => "endpoint_without_upstream",
            Self::ErrorRate { .. } => "error_rate",
            Self::Latency { .. } => "latency",
            Self::KeyExpiring { .. } => "key_expiring",
            Self::KeyUnused { .. } => "key_unused",
            Self::SignInsFailed { .. } => "sign_ins_failed",
        }
    }

    /// The prefixes of the IDs of the objects that it is about; none if it is about the account.
    pub(super) fn prefixes(&self) -> &'static [&'static str] {
        match self {
            Self::AgentOffline { .. } => &["cr", "sshcr"],
            Self::CertificateExpiring { .. } => &["cert", "ca", "shcrt", "sucrt"],
            Self::DestinationFailing { .. } => &["ed"],
            Self::EndpointWithoutUpstream { .. }
            | Self::ErrorRate { .. }
            | Self::Latency { .. } => &["ep"],
            Self::KeyExpiring { .. } | Self::KeyUnused { .. } => &["ak"],
            Self::SignInsFailed { .. } => &[],
        }
    }
}

/// A condition as it is sent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "AlertConditionCreate", extend("required" = ["type"]), transform = input::create_schema)]
pub(super) struct ConditionInput {
    /// `agent_offline` (with `for`), `certificate_expiring` (`within`), `destination_failing` (`for`),
    /// `endpoint_without_upstream` (`over`, `min_requests`), `error_rate` (`above`, `over`, `min_requests`), `key_expiring`
    /// (`within`), `key_unused` (`for`), `latency` (`quantile`, `above_ms`, `over`, `min_requests`) or `sign_ins_failed`
    /// (`count`, `over`). Other fields are refused.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = KINDS))]
    kind: String,
    /// How long an agent is offline or a destination fails, `30s` to `30d`, or a key is not used, `1h` to `366d`.
    #[serde(rename = "for")]
    #[schemars(extend("pattern" = patterns::DURATION))]
    lasting: Option<String>,
    /// How long before the end, `1h` to `366d`.
    #[schemars(extend("pattern" = patterns::DURATION))]
    within: Option<String>,
    /// The window of requests or sign-ins, `1m` to `1h`.
    #[schemars(extend("pattern" = patterns::DURATION))]
    over: Option<String>,
    /// Share of requests that fail, more than 0 and less than 1: 0.1 for 10 %.
    above: Option<f64>,
    /// Duration of requests in milliseconds, 1 to 3600000.
    above_ms: Option<u64>,
    /// `p50`, `p95` or `p99`.
    #[schemars(extend("pattern" = "^p(50|95|99)$"))]
    quantile: Option<String>,
    /// Requests of the window without which it says nothing; default: 100, and 5 for `endpoint_without_upstream`.
    min_requests: Option<u64>,
    /// Number of refused sign-ins.
    count: Option<u64>,
}

impl ConditionInput {
    /// Checks the fields of its type (5412).
    pub(super) fn check(mut self) -> Result<Condition, Refusal> {
        let condition = match &*std::mem::take(&mut self.kind) {
            "agent_offline" => Condition::AgentOffline {
                lasting: period("for", self.lasting.take(), LASTS)?,
            },
            "certificate_expiring" => Condition::CertificateExpiring {
                within: period("within", self.within.take(), AHEAD)?,
            },
            "destination_failing" => Condition::DestinationFailing {
                lasting: period("for", self.lasting.take(), LASTS)?,
            },
            "endpoint_without_upstream" => Condition::EndpointWithoutUpstream {
                over: period("over", self.over.take(), WINDOW)?,
                min_requests: self.requests(UNREACHED)?,
            },
            "error_rate" => Condition::ErrorRate {
                above: share(self.above.take())?,
                over: period("over", self.over.take(), WINDOW)?,
                min_requests: self.requests(REQUESTS)?,
            },
            "key_expiring" => Condition::KeyExpiring {
                within: period("within", self.within.take(), AHEAD)?,
            },
            "key_unused" => Condition::KeyUnused {
                lasting: period("for", self.lasting.take(), AHEAD)?,
            },
            "latency" => Condition::Latency {
                quantile: quantile(self.quantile.take())?,
                above_ms: number("above_ms", self.above_ms.take(), LATENCIES)?,
                over: period("over", self.over.take(), WINDOW)?,
                min_requests: self.requests(REQUESTS)?,
            },
            "sign_ins_failed" => Condition::SignInsFailed {
                count: number("count", self.count.take(), NUMBERS)?,
                over: period("over", self.over.take(), WINDOW)?,
            },
            _ => {
                let kinds = KINDS.join("`, `");
                return Err(invalid(format!(
                    "`condition.type` must be one of `{kinds}`."
                )));
            }
        };
        match self.unread() {
            None => Ok(condition),
            Some(name) => Err(invalid(format!(
                "A condition of the type `{}` has no `{name}`.",
                condition.kind()
            ))),
        }
    }

    fn requests(&mut self, default: u64) -> Result<u64, Refusal> {
        let given = self.min_requests.take().unwrap_or(default);
        number("min_requests", Some(given), NUMBERS)
    }

    /// A field that was given and is of other types.
    fn unread(&self) -> Option<&'static str> {
        [
            ("for", self.lasting.is_some()),
            ("within", self.within.is_some()),
            ("over", self.over.is_some()),
            ("above", self.above.is_some()),
            ("above_ms", self.above_ms.is_some()),
            ("quantile", self.quantile.is_some()),
            ("min_requests", self.min_requests.is_some()),
            ("count", self.count.is_some()),
        ]
        .into_iter()
        .find_map(|(name, is_given)| is_given.then_some(name))
    }
}

pub(super) fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::new(code::ALERT_CONDITION_INVALID, why)
}

fn period(
    name: &str,
    given: Option<String>,
    bounds: RangeInclusive<u64>,
) -> Result<Period, Refusal> {
    let period = given.as_deref().and_then(Period::parse);
    let period = period.filter(|period| bounds.contains(&period.seconds()));
    period.ok_or_else(|| {
        let (least, most) = bounds.into_inner();
        let (least, most) = (Period::of_seconds(least), Period::of_seconds(most));
        invalid(format!(
            "`condition.{name}` must be a length of time such as `90s`, `5m` or `14d`, from {least} to {most}."
        ))
    })
}

fn number(name: &str, given: Option<u64>, bounds: RangeInclusive<u64>) -> Result<u64, Refusal> {
    given
        .filter(|number| bounds.contains(number))
        .ok_or_else(|| {
            let (least, most) = bounds.into_inner();
            invalid(format!(
                "`condition.{name}` must be a number from {least} to {most}."
            ))
        })
}

fn share(given: Option<f64>) -> Result<f64, Refusal> {
    let given = given.filter(|share| *share > 0.0 && *share < 1.0);
    given.ok_or_else(|| {
        invalid("`condition.above` must be a share of requests, more than 0 and less than 1, such as 0.1 for 10 %.")
    })
}

fn quantile(given: Option<String>) -> Result<Quantile, Refusal> {
    let mut all = Quantile::ALL.into_iter();
    let found = all.find(|one| Some(one.name()) == given.as_deref());
    found.ok_or_else(|| invalid("`condition.quantile` must be `p50`, `p95` or `p99`."))
}
