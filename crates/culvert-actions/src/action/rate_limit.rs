//! rate-limit: limits the number of requests in a period.

use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use culvert_base::code;
use culvert_base::sync::lock;
use culvert_cel::{Resolver, Slot, Value, ValueRef};
use culvert_policy::action_type::ActionType;
use culvert_policy::conn::{source, source_number};
use culvert_policy::fair_table::FairTable;
use culvert_policy::policy::context::GoDuration;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::expression::Expression;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::values::text;
use culvert_policy::policy::variables;
use culvert_policy::problem::Problem;
use culvert_policy::reply::Rejection;
use culvert_policy::shared_counts::{ASIDE_MAX, BUCKETS_MAX, Bucket, LazyTable, window_of};
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

const NAME_BYTES_MAX: usize = 1023;
const KEYS_MAX: usize = 10;
/// Maximum bytes of a bucket's key that are used; longer keys with the same beginning share a bucket.
const KEY_BYTES_MAX: usize = 1 << 10;
/// The window must be a multiple of this.
const STEP: Duration = Duration::from_secs(10);

pub(crate) static TYPE: ActionType = ActionType {
    name: "rate-limit",
    doc: "Allows `capacity` requests per bucket in each window of `rate`, counted in a sliding window. Other requests get 429 with `retry-after`. With `scope: node` the limit applies to each node. With `scope: cluster` all nodes share it, approximately: a bucket exceeds its limit by at most the requests that the other nodes admit in 200 ms plus the time of a message through the database, and never by more than (N - 1) times `capacity` with N nodes. A node that cannot reach the others continues with its own counts and those it has received; one that serves from its copy of the configuration, after a start without the database, refuses the request with 503.",
    phases: &[Phase::Request],
    ends: Ends::Sometimes,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        site.length(
            "name",
            config.name.as_deref().unwrap_or_default(),
            NAME_BYTES_MAX,
        )?;
        if config.algorithm.as_deref().unwrap_or("sliding_window") != "sliding_window" {
            return Err(site.refuse(
                code::POLICY_VALUE_NOT_ALLOWED,
                "`algorithm` must be `sliding_window`",
            ));
        }
        site.within("capacity", config.capacity, 1..=2_000_000_000)?;
        let rate = config.rate;
        site.within(
            "rate",
            rate,
            GoDuration::seconds(60)..=GoDuration::seconds(86_400),
        )?;
        if !rate.0.as_nanos().is_multiple_of(STEP.as_nanos()) {
            return Err(site.refuse(
                code::POLICY_NUMBER_OUT_OF_RANGE,
                "`rate` must be a multiple of 10s",
            ));
        }
        site.count("bucket_key", config.bucket_key.len(), KEYS_MAX)?;
        let key = config
            .bucket_key
            .iter()
            .enumerate()
            .map(|(index, source)| site.expression(&format!("bucket_key[{index}]"), source));
        Ok(Box::new(RateLimit {
            enforce: config.enforce.unwrap_or(true),
            capacity: config.capacity,
            window: rate.0,
            key: key.collect::<Result<_, _>>()?,
            counts: match config.scope {
                Scope::Node => Counts::of_node(),
                Scope::Cluster => Counts::Cluster {
                    fingerprint: site.fingerprint(),
                    place: LazyTable::new(),
                },
            },
        }))
    },
    guards: true,
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RateLimit")]
struct Config {
    /// Label of the rule or action.
    #[serde(default)]
    name: Option<String>,
    /// Whether requests over the limit are rejected; default true.
    #[serde(default)]
    enforce: Option<bool>,
    /// `sliding_window` (default).
    #[serde(default)]
    algorithm: Option<String>,
    /// Number of requests per window: 1 to 2000000000.
    #[schemars(range(min = 1, max = 2_000_000_000))]
    capacity: u64,
    /// Length of the window: a multiple of 10s, from 60s to 24h.
    rate: GoDuration,
    /// 1 to 10 expressions whose values identify the bucket. Here `conn.client_ip` of an IPv6 client is its /64.
    bucket_key: Vec<String>,
    /// Nodes that share the limit. `node` (default): each node counts its own requests, so N nodes admit up to N times
    /// `capacity`. `cluster`: nodes exchange their counts several times per second. With one node both are the same.
    #[serde(default)]
    scope: Scope,
}

/// Where requests are counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Scope {
    #[default]
    Node,
    Cluster,
}

#[derive(Debug)]
struct RateLimit {
    enforce: bool,
    capacity: u64,
    window: Duration,
    key: Vec<Expression>,
    counts: Counts,
}

#[derive(Debug)]
enum Counts {
    /// Counts of this node. Keys are hashed so that clients cannot predict their buckets.
    Node {
        began: Instant,
        buckets: Box<Mutex<FairTable<Bucket>>>,
        hashers: [RandomState; 2],
    },
    /// Counts of all nodes, which use the same hashes.
    Cluster {
        fingerprint: [u8; 32],
        place: LazyTable,
    },
}

impl Counts {
    fn of_node() -> Self {
        Self::Node {
            began: Instant::now(),
            buckets: Box::new(Mutex::new(FairTable::new(BUCKETS_MAX, ASIDE_MAX))),
            hashers: [RandomState::new(), RandomState::new()],
        }
    }
}

impl RateLimit {
    fn is_of_cluster(&self) -> bool {
        matches!(self.counts, Counts::Cluster { .. })
    }

    fn take(&self, key: &str, x: &Exchange<'_>) -> Result<(), Duration> {
        let client = source_number(x.conn.info.client.ip());
        match &self.counts {
            Counts::Node { began, .. } => self.take_at(key, client, began.elapsed()),
            Counts::Cluster { fingerprint, place } => {
                let counts = &x.conn.services.counts;
                let id = hash(&[x.endpoint.id.as_bytes(), fingerprint]);
                let table = place.get_or_init(|| counts.table(id, self.window));
                let key = hash(&[&id.to_be_bytes(), key.as_bytes()]);
                counts.take(table, key, client, self.capacity)
            }
        }
    }

    fn take_at(&self, key: &str, source: u64, at: Duration) -> Result<(), Duration> {
        let Counts::Node {
            buckets, hashers, ..
        } = &self.counts
        else {
            return Ok(());
        };
        let [high, low] = hashers;
        let key = u128::from(high.hash_one(key)) << 64 | u128::from(low.hash_one(key));
        let mut buckets = lock(buckets);
        let bucket = buckets.count(key, source, window_of(at, self.window));
        bucket.take(at, self.window, self.capacity)
    }
}

/// The first half of SHA-256, so that clients cannot find two keys with the same bucket.
fn hash(parts: &[&[u8]]) -> u128 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let half = hash.first_chunk().copied();
    u128::from_be_bytes(half.unwrap_or_default())
}

/// Resolves the expressions of a key. The client's address is that of its /64, because one client may use all
/// of it.
struct ByBlock<'k, 'x> {
    x: &'k Exchange<'x>,
    /// The address of the client's /64, if it uses IPv6.
    block: Option<String>,
}

impl<'k, 'x> ByBlock<'k, 'x> {
    fn new(x: &'k Exchange<'x>) -> Self {
        let client = x.conn.info.client.ip();
        let block = client.is_ipv6().then(|| source(client).to_string());
        Self { x, block }
    }
}

impl Resolver for ByBlock<'_, '_> {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        static CLIENT_IP: LazyLock<Slot> = LazyLock::new(|| variables::slot("conn.client_ip"));
        match &self.block {
            Some(block) if slot == *CLIENT_IP => Some(ValueRef::String(block)),
            _ => self.x.value(slot),
        }
    }
}

const REJECTION: Rejection = Rejection {
    text: "Too many requests\n",
    message: "The rate limit of this site is reached.",
    advice: "Wait a minute before you try again.",
    owner_help: "Raise `capacity` of `rate-limit` in the traffic policy of the endpoint, or add an expression to `bucket_key`.",
};

impl Action for RateLimit {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let mut key = String::new();
        for expression in &self.key {
            // Requests whose key cannot be computed share a bucket.
            if let Ok(value) = expression.value(x, &ByBlock::new(x)) {
                key.push_str(&text(value.borrow()));
            }
            key.push('\0');
        }
        key.truncate(key.floor_char_boundary(KEY_BYTES_MAX));
        // Alone, this node would admit the share of the others too.
        if self.enforce && self.is_of_cluster() && x.conn.services.is_from_copy {
            return x.refuse(Problem::NeedsDatabase).into();
        }
        let taken = self.take(&key, x);
        let error = x.error();
        if x.wants_results() {
            let shown = key.trim_end_matches('\0').replace('\0', ",");
            x.result(
                "rate_limit",
                vec![
                    ("bucket_key", Value::from(shown.as_str())),
                    ("limited", Value::Bool(taken.is_err())),
                    error,
                ],
            );
        }
        match taken {
            Err(wait) if self.enforce => {
                let mut flow = x.reject(StatusCode::TOO_MANY_REQUESTS, &REJECTION);
                if let Flow::Reply(answer) = &mut flow {
                    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
                    let after = HeaderValue::from(seconds);
                    answer.headers_mut().insert(RETRY_AFTER, after);
                }
                flow.into()
            }
            _ => Flow::Continue.into(),
        }
    }

    fn slots(&self) -> Vec<Slot> {
        let keys = self.key.iter();
        keys.flat_map(|expression| expression.slots().iter().copied())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_windows_slide() {
        let minute = Duration::from_secs(60);
        let at = Duration::from_secs_f64;
        let mut bucket = Bucket::default();
        for _ in 0..4 {
            assert_eq!(bucket.take(at(30.0), minute, 4), Ok(()));
        }
        assert_eq!(bucket.take(at(45.0), minute, 4), Err(at(15.0)));
        // A quarter into the next window, three quarters of the four requests still count.
        assert_eq!(bucket.take(at(75.0), minute, 4), Ok(()));
        let wait = bucket.take(at(75.0), minute, 4).unwrap_err();
        assert!((14.9..15.1).contains(&wait.as_secs_f64()), "{wait:?}");
        assert_eq!(bucket.take(at(90.1), minute, 4), Ok(()));
        // After two windows without requests nothing counts any more.
        for _ in 0..4 {
            assert_eq!(bucket.take(at(300.0), minute, 4), Ok(()));
        }
        assert!(bucket.take(at(300.0), minute, 4).is_err());
    }

    fn limit(capacity: u64) -> RateLimit {
        RateLimit {
            enforce: true,
            capacity,
            window: Duration::from_secs(60),
            key: Vec::new(),
            counts: Counts::of_node(),
        }
    }

    fn places(limit: &RateLimit) -> usize {
        match &limit.counts {
            Counts::Node { buckets, .. } => lock(buckets).n_keys(),
            Counts::Cluster { .. } => 0,
        }
    }

    #[test]
    fn a_client_with_many_keys_affects_no_other_client() {
        let (limit, at) = (limit(2), Duration::from_secs);
        for _ in 0..2 {
            assert_eq!(limit.take_at("victim", 2, at(1)), Ok(()));
            assert_eq!(limit.take_at("greedy", 1, at(1)), Ok(()));
        }
        let keys = 3 * BUCKETS_MAX;
        let mut refused = 0;
        for key in 0..keys {
            refused += usize::from(limit.take_at(&key.to_string(), 1, at(2)).is_err());
        }
        assert_eq!(places(&limit), BUCKETS_MAX);
        // No limit is reset, for this source or others, and once the table is full its new keys are rejected.
        assert!(limit.take_at("victim", 2, at(3)).is_err());
        assert!(limit.take_at("greedy", 1, at(3)).is_err());
        assert!(limit.take_at("greedy", 9, at(3)).is_err());
        assert!(refused > keys / 2, "{refused}");
        // Other clients with new keys get their full limit.
        for source in 10..1_000 {
            let key = format!("honest {source}");
            for _ in 0..2 {
                assert_eq!(limit.take_at(&key, source, at(3)), Ok(()), "{source}");
            }
            assert!(limit.take_at(&key, source, at(3)).is_err());
        }
        // After two windows everything has expired.
        assert_eq!(limit.take_at("late", 1, at(181)), Ok(()));
        assert_eq!(limit.take_at("victim", 2, at(181)), Ok(()));
    }

    #[test]
    fn cluster_buckets_have_one_hash_on_every_node() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
        let known = 127_758_177_345_770_750_612_842_648_274_318_026_135;
        assert_eq!(hash(&[b"ab", b"c"]), known);
    }
}
