//! circuit-breaker: stops sending requests to an upstream that fails.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::code;
use culvert_base::sync::lock;
use culvert_policy::action_type::ActionType;
use culvert_policy::event_slots;
use culvert_policy::policy::context::GoDuration;
use culvert_policy::policy::exchange::{Exchange, Watch};
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::problem::Problem;
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

/// Parts of the window. The window advances by one part at a time.
const BUCKETS: u32 = 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "circuit-breaker",
    doc: "Rejects requests with 503 while the upstream fails. The breaker opens when, within the window, at least `volume_threshold` requests were sent and the share of failures (status 500 and above, or no valid response) reaches `error_threshold`. After `tripped_duration` it lets one request at a time through; a success closes the breaker, a failure opens it again. Each node counts separately.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        let spans = GoDuration::seconds(1)..=GoDuration::seconds(120);
        let settings = Settings {
            error_threshold: config.error_threshold.unwrap_or(0.5),
            volume_threshold: config.volume_threshold.unwrap_or(10),
            window: config.window_duration.unwrap_or(GoDuration::seconds(10)).0,
            tripped: config.tripped_duration.unwrap_or(GoDuration::seconds(10)).0,
            enforce: config.enforce.unwrap_or(true),
        };
        site.within("error_threshold", settings.error_threshold, 0.0..=1.0)?;
        site.within(
            "volume_threshold",
            settings.volume_threshold,
            1..=2_000_000_000,
        )?;
        site.within(
            "window_duration",
            GoDuration(settings.window),
            spans.clone(),
        )?;
        site.within("tripped_duration", GoDuration(settings.tripped), spans)?;
        if config.num_buckets.is_some_and(|buckets| buckets != BUCKETS) {
            return Err(site.refuse(code::POLICY_NUMBER_OUT_OF_RANGE, "`num_buckets` must be 10"));
        }
        Ok(Box::new(CircuitBreaker {
            shared: Arc::new(Breaker {
                settings,
                began: Instant::now(),
                state: Mutex::default(),
            }),
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CircuitBreaker")]
struct Config {
    /// Share of failures: 0 to 1; default 0.5. At 0 only the volume matters.
    #[serde(default)]
    error_threshold: Option<f64>,
    /// Minimum number of requests in the window; default 10.
    #[serde(default)]
    volume_threshold: Option<u64>,
    /// Length of the window: 1s to 2m; default 10s.
    #[serde(default)]
    window_duration: Option<GoDuration>,
    /// How long an open breaker rejects all requests: 1s to 2m; default 10s.
    #[serde(default)]
    tripped_duration: Option<GoDuration>,
    /// 10.
    #[serde(default)]
    num_buckets: Option<u32>,
    /// Whether requests are rejected; default true.
    #[serde(default)]
    enforce: Option<bool>,
}

#[derive(Debug)]
struct CircuitBreaker {
    shared: Arc<Breaker>,
}

#[derive(Debug)]
struct Breaker {
    settings: Settings,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    error_threshold: f64,
    volume_threshold: u64,
    window: Duration,
    tripped: Duration,
    enforce: bool,
}

/// ```text
/// Closed ──too many failures──▶ Open ──tripped_duration──▶ Half-open ──success──▶ Closed
///                                ▲──────────failure────────────┘
/// ```
#[derive(Debug)]
enum State {
    Closed(Window),
    /// Open until this time since the breaker was created; afterwards half open.
    Open {
        until: Duration,
        is_probed: bool,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed(Window::default())
    }
}

/// The counts of each part of the last window.
#[derive(Debug, Default)]
struct Window {
    /// Number of the newest part.
    newest: u128,
    parts: [Part; BUCKETS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    requests: u64,
    failures: u64,
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Sent,
    Probe,
    Refused { wait: Duration },
}

impl Window {
    fn count(&mut self, at: Duration, window: Duration, failed: bool) -> Part {
        let part = (window / BUCKETS).as_nanos().max(1);
        let now = at.as_nanos() / part;
        let ahead = now.saturating_sub(self.newest).min(u128::from(BUCKETS));
        for step in 1..=ahead {
            if let Some(part) = self.part(self.newest + step) {
                *part = Part::default();
            }
        }
        self.newest = self.newest.max(now);
        if let Some(part) = self.part(now) {
            part.requests += 1;
            part.failures += u64::from(failed);
        }
        self.parts.iter().fold(Part::default(), |sum, part| Part {
            requests: sum.requests + part.requests,
            failures: sum.failures + part.failures,
        })
    }

    fn part(&mut self, number: u128) -> Option<&mut Part> {
        let index = usize::try_from(number % u128::from(BUCKETS)).unwrap_or(0);
        self.parts.get_mut(index)
    }
}

impl State {
    fn admit(&mut self, at: Duration) -> Admission {
        match self {
            Self::Closed(_) => Admission::Sent,
            Self::Open { until, .. } if at < *until => Admission::Refused { wait: *until - at },
            Self::Open {
                is_probed: true, ..
            } => Admission::Refused {
                wait: Duration::from_secs(1),
            },
            Self::Open { is_probed, .. } => {
                *is_probed = true;
                Admission::Probe
            }
        }
    }

    /// Counts the result of a request that was sent while the breaker was closed.
    fn answered(&mut self, settings: &Settings, at: Duration, failed: bool) {
        let Self::Closed(window) = self else { return };
        let sum = window.count(at, settings.window, failed);
        let share = sum.failures as f64 / sum.requests.max(1) as f64;
        if sum.requests >= settings.volume_threshold && share >= settings.error_threshold {
            *self = Self::Open {
                until: at + settings.tripped,
                is_probed: false,
            };
        }
    }

    /// Counts the result of a probe. Without a response of the upstream, another probe may be sent.
    fn probed(&mut self, settings: &Settings, at: Duration, failed: Option<bool>) {
        let Self::Open { until, is_probed } = self else {
            return;
        };
        match failed {
            None => *is_probed = false,
            Some(false) => *self = Self::default(),
            Some(true) => {
                *until = at + settings.tripped;
                *is_probed = false;
            }
        }
    }
}

/// A request that was sent to the upstream.
#[derive(Debug)]
struct Pending {
    breaker: Arc<Breaker>,
    is_probe: bool,
    failed: Option<bool>,
}

impl Watch for Pending {
    fn answered(&mut self, status: Option<StatusCode>) {
        self.failed = Some(status.is_none_or(|status| status.is_server_error()));
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let breaker = &self.breaker;
        let (at, settings) = (breaker.began.elapsed(), &breaker.settings);
        let mut state = lock(&breaker.state);
        match (self.is_probe, self.failed) {
            (true, failed) => state.probed(settings, at, failed),
            (false, Some(failed)) => state.answered(settings, at, failed),
            (false, None) => {}
        }
    }
}

impl Action for CircuitBreaker {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let breaker = &self.shared;
        let slot = event_slots::CIRCUIT_BREAKER_DECISION;
        if !breaker.settings.enforce {
            x.set_field(slot, "allow");
            return Flow::Continue.into();
        }
        let admission = lock(&breaker.state).admit(breaker.began.elapsed());
        if let Admission::Refused { wait } = admission {
            x.set_field(slot, "block");
            let mut flow = x.refuse(Problem::BreakerOpen);
            if let Flow::Reply(answer) = &mut flow {
                let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
                answer
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            return flow.into();
        }
        let is_probe = admission == Admission::Probe;
        x.set_field(
            slot,
            if is_probe {
                "allow_while_open"
            } else {
                "allow"
            },
        );
        x.memory.watch(Box::new(Pending {
            breaker: Arc::clone(breaker),
            is_probe,
            failed: None,
        }));
        Flow::Continue.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        error_threshold: 0.5,
        volume_threshold: 4,
        window: Duration::from_secs(10),
        tripped: Duration::from_secs(5),
        enforce: true,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_circuit_breaker_opens_probes_and_closes() {
        let mut state = State::default();
        for failed in [false, true, false] {
            state.answered(&SETTINGS, at(1), failed);
            assert_eq!(state.admit(at(1)), Admission::Sent);
        }
        state.answered(&SETTINGS, at(2), true);
        assert_eq!(state.admit(at(3)), Admission::Refused { wait: at(4) });
        // Requests that were in flight when it opened do not count.
        state.answered(&SETTINGS, at(3), true);
        assert_eq!(state.admit(at(7)), Admission::Probe);
        assert_eq!(state.admit(at(7)), Admission::Refused { wait: at(1) });
        // A probe without a response lets another be sent.
        state.probed(&SETTINGS, at(7), None);
        assert_eq!(state.admit(at(7)), Admission::Probe);
        state.probed(&SETTINGS, at(8), Some(true));
        assert_eq!(state.admit(at(12)), Admission::Refused { wait: at(1) });
        assert_eq!(state.admit(at(13)), Admission::Probe);
        state.probed(&SETTINGS, at(13), Some(false));
        for _ in 0..3 {
            state.answered(&SETTINGS, at(13), true);
        }
        assert_eq!(state.admit(at(13)), Admission::Sent);
    }

    #[test]
    fn responses_older_than_the_window_do_not_count() {
        let mut state = State::default();
        for second in 0..3 {
            state.answered(&SETTINGS, at(second), true);
        }
        state.answered(&SETTINGS, at(11), true);
        assert_eq!(state.admit(at(11)), Admission::Sent);
        state.answered(&SETTINGS, at(11), true);
        assert_eq!(state.admit(at(11)), Admission::Sent);
        state.answered(&SETTINGS, at(11), false);
        assert_ne!(state.admit(at(11)), Admission::Sent);
    }
}
