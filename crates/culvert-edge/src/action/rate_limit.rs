//! rate-limit: so many requests in so much time.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::{Code, LimitTable};
use culvert_cel::{Program, Value};
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::{ActionType, Ends};
use crate::downstream::lock;
use crate::http::reply;
use crate::policy::template::text;
use crate::policy::{Action, Exchange, Flow, GoDuration, Phase, Run};

const NAME_BYTES_MAX: usize = 1023;
const KEYS_MAX: usize = 10;
/// Buckets of one action, and those that all further keys share while every one of the others counts.
const BUCKETS_MAX: usize = 65_536;
const SHARED_MAX: usize = 16_384;
/// Bytes of a bucket's key; what is longer is told apart by its beginning.
const KEY_BYTES_MAX: usize = 1 << 10;
/// A whole number of these is a window.
const STEP: Duration = Duration::from_secs(10);

pub(crate) static TYPE: ActionType = ActionType {
    name: "rate-limit",
    doc: "Lets `capacity` requests of a bucket pass in each window of `rate`, counted by a sliding window on this node. Others get 429 with `retry-after`.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        const NOT_KNOWN: Code = Code::new(2222);
        const OUT_OF_RANGE: Code = Code::new(2215);
        const EXPRESSION: Code = Code::new(2200);
        let config: Config = site.config()?;
        site.length(
            "name",
            config.name.as_deref().unwrap_or_default(),
            NAME_BYTES_MAX,
        )?;
        if config.algorithm.as_deref().unwrap_or("sliding_window") != "sliding_window" {
            return Err(site.refuse(NOT_KNOWN, "`algorithm` must be `sliding_window`"));
        }
        site.within("capacity", config.capacity, 1..=2_000_000_000)?;
        let rate = config.rate;
        site.within(
            "rate",
            rate,
            GoDuration::seconds(60)..=GoDuration::seconds(86_400),
        )?;
        if !rate.0.as_nanos().is_multiple_of(STEP.as_nanos()) {
            return Err(site.refuse(OUT_OF_RANGE, "`rate` must be a multiple of 10s"));
        }
        site.count("bucket_key", config.bucket_key.len(), KEYS_MAX)?;
        let key = config.bucket_key.iter().enumerate().map(|(index, source)| {
            site.env().compile(source).map_err(|error| {
                site.refuse(EXPRESSION, &format!("`bucket_key[{index}]`: {error}"))
            })
        });
        Ok(Box::new(RateLimit {
            enforce: config.enforce.unwrap_or(true),
            capacity: config.capacity,
            window: rate.0,
            key: key.collect::<Result<_, _>>()?,
            began: Instant::now(),
            buckets: Mutex::new(LimitTable::new(BUCKETS_MAX, SHARED_MAX)),
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RateLimit")]
struct Config {
    /// A label.
    #[serde(default)]
    name: Option<String>,
    /// Whether requests beyond the limit are refused; true by default.
    #[serde(default)]
    enforce: Option<bool>,
    /// `sliding_window`, also by default.
    #[serde(default)]
    algorithm: Option<String>,
    /// Requests in a window, from 1 to 2000000000.
    #[schemars(range(min = 1, max = 2_000_000_000))]
    capacity: u64,
    /// Length of a window: a multiple of 10s, from 60s to 24h.
    rate: GoDuration,
    /// Expressions whose values together name the bucket, 1 to 10.
    bucket_key: Vec<String>,
}

#[derive(Debug)]
struct RateLimit {
    enforce: bool,
    capacity: u64,
    window: Duration,
    key: Vec<Program>,
    began: Instant,
    buckets: Mutex<LimitTable<Box<str>, Bucket>>,
}

/// Requests of the window that runs, and of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    window: u64,
    now: u64,
    before: u64,
}

impl Bucket {
    /// Takes one request, or says how long to wait.
    ///
    /// The window before counts by the part of it that is not over yet, as if its requests had been
    /// spread evenly.
    fn take(&mut self, at: Duration, length: Duration, capacity: u64) -> Result<(), Duration> {
        let window = window_of(at, length);
        match window - self.window.min(window) {
            0 => {}
            1 => (self.before, self.now) = (self.now, 0),
            _ => (self.before, self.now) = (0, 0),
        }
        self.window = window;
        let passed = at.as_secs_f64() / length.as_secs_f64() - window as f64;
        let weighed = self.before as f64 * (1.0 - passed) + self.now as f64;
        if weighed + 1.0 <= capacity as f64 {
            self.now += 1;
            return Ok(());
        }
        let left = length.mul_f64((1.0 - passed).clamp(0.0, 1.0));
        let excess = weighed + 1.0 - capacity as f64;
        // While only the window before is in the way, it fades evenly.
        let fades = (self.now < capacity && self.before > 0)
            .then(|| length.mul_f64(excess / self.before as f64));
        Err(fades.map_or(left, |fades| fades.min(left)))
    }
}

fn window_of(at: Duration, length: Duration) -> u64 {
    u64::try_from(at.as_nanos() / length.as_nanos().max(1)).unwrap_or(u64::MAX)
}

impl RateLimit {
    fn take(&self, key: String) -> Result<(), Duration> {
        self.take_at(key, self.began.elapsed())
    }

    fn take_at(&self, key: String, at: Duration) -> Result<(), Duration> {
        let current = window_of(at, self.window);
        let mut buckets = lock(&self.buckets);
        // After a whole window without a request nothing counts.
        let bucket = buckets.state(key.into(), |bucket| bucket.window + 1 < current);
        bucket.take(at, self.window, self.capacity)
    }
}

impl Action for RateLimit {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a> {
        let mut key = String::new();
        for program in &self.key {
            // A key that cannot be computed is a bucket too.
            match program.eval(&*x) {
                Ok(value) => key.push_str(&text(value.borrow())),
                Err(error) => x.failed(&error),
            }
            key.push('\0');
        }
        key.truncate(key.floor_char_boundary(KEY_BYTES_MAX));
        let shown = key.trim_end_matches('\0').replace('\0', ",");
        let taken = self.take(key);
        let error = x.error();
        x.result(
            "rate_limit",
            vec![
                ("bucket_key", Value::from(shown.as_str())),
                ("limited", Value::Bool(taken.is_err())),
                error,
            ],
        );
        match taken {
            Err(wait) if self.enforce => {
                let mut answer = reply::plain(StatusCode::TOO_MANY_REQUESTS, "Too many requests\n");
                let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
                answer
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from(seconds));
                Flow::Reply(Box::new(answer)).into()
            }
            _ => Flow::Continue.into(),
        }
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        let keys = self.key.iter();
        keys.flat_map(|program| program.slots().iter().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_slide() {
        let minute = Duration::from_secs(60);
        let at = Duration::from_secs_f64;
        let mut bucket = Bucket::default();
        for _ in 0..4 {
            assert_eq!(bucket.take(at(30.0), minute, 4), Ok(()));
        }
        assert_eq!(bucket.take(at(45.0), minute, 4), Err(at(15.0)));
        // A quarter into the next window three quarters of the four still count.
        assert_eq!(bucket.take(at(75.0), minute, 4), Ok(()));
        let wait = bucket.take(at(75.0), minute, 4).unwrap_err();
        assert!((14.9..15.1).contains(&wait.as_secs_f64()), "{wait:?}");
        assert_eq!(bucket.take(at(90.1), minute, 4), Ok(()));
        // After two windows of silence nothing counts.
        for _ in 0..4 {
            assert_eq!(bucket.take(at(300.0), minute, 4), Ok(()));
        }
        assert!(bucket.take(at(300.0), minute, 4).is_err());
    }
    #[test]
    fn no_number_of_keys_resets_a_bucket_or_costs_more() {
        let window = Duration::from_secs(60);
        let limit = RateLimit {
            enforce: true,
            capacity: 2,
            window,
            key: Vec::new(),
            began: Instant::now(),
            buckets: Mutex::new(LimitTable::new(BUCKETS_MAX, SHARED_MAX)),
        };
        let at = Duration::from_secs;
        let victim = || "victim".to_owned();
        for _ in 0..2 {
            assert_eq!(limit.take_at(victim(), at(1)), Ok(()));
        }
        let others = 3 * u32::try_from(BUCKETS_MAX).unwrap();
        let mut refused = 0;
        for other in 0..others {
            refused += u32::from(limit.take_at(other.to_string(), at(2)).is_err());
        }
        assert!(limit.take_at(victim(), at(3)).is_err());
        assert_eq!(lock(&limit.buckets).len(), BUCKETS_MAX);
        // Those beyond share what there is for them, which is used up in the end.
        assert!(refused > 0 && refused < others / 3 * 2, "{refused}");
        // Two windows later all is forgotten.
        assert_eq!(limit.take_at("late".to_owned(), at(181)), Ok(()));
        assert_eq!(limit.take_at(victim(), at(181)), Ok(()));
    }
}
