//! Limits per source, per owner of keys and per account (contract: management API 1.13; limits: reliability 2.1,
//! 4.1).
//!
//! There are three independent limits, whose memory is bounded: failed authentications per source, requests in flight
//! (in total and per owner), and requests per account in a rolling window. The time is an argument, measured from any
//! fixed start.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A source: an IPv4 address or network, or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(u64, bool);

impl Source {
    /// The source of connections from this address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u32::from(address).into(), false),
            IpAddr::V6(address) => {
                let [network, ..] = split_v6(address.to_bits());
                Self(network, true)
            }
        }
    }
}

impl Source {
    /// The source of connections from the network of this address: /24, or /64 for IPv6.
    pub fn network_of(address: IpAddr) -> Self {
        match Self::of(address) {
            Self(address, false) => Self(address & !0xff, false),
            network => network,
        }
    }
}

fn split_v6(bits: u128) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, low @ ..] = bits.to_be_bytes();
    [
        u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        u64::from_be_bytes(low),
    ]
}

/// A rate with a burst.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Long-term rate per second; 0 disables the limit.
    pub per_second: u32,
    /// Maximum burst.
    pub burst: u32,
}

/// Failed authentications, with a token bucket per source; or sign-ins, per owner or network; or reads without a key.
///
/// The table has a fixed size: sources that hash to the same slot share a bucket. So a client can exhaust the buckets
/// of others, who then get 429 instead of 401. Valid keys are not affected.
pub struct Failures {
    // For each slot, the time in nanoseconds when its bucket is full again.
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    interval: u64,
    tolerance: u64,
}

impl Failures {
    const SLOTS: u64 = 16_384;

    /// `None` if the limit is disabled.
    pub fn new(rate: Rate) -> Option<Self> {
        let interval = 1_000_000_000_u64.checked_div(rate.per_second.into())?;
        Some(Self::every(Duration::from_nanos(interval), rate.burst))
    }

    /// One in each interval in the long term, and at most `burst` together.
    pub fn every(interval: Duration, burst: u32) -> Self {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        Self {
            slots: (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            interval,
            tolerance: interval.saturating_mul(burst.saturating_sub(1).into()),
        }
    }

    /// Checks that one failure more is within the limit, without counting it. Above the limit, returns the time until then.
    pub fn check(&self, source: impl Hash, now: Duration) -> Result<(), Duration> {
        let full_at = self.slot(source)?;
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let over = full_at.load(Ordering::Relaxed).saturating_sub(now);
        match over.saturating_sub(self.tolerance) {
            0 => Ok(()),
            wait => Err(Duration::from_nanos(wait)),
        }
    }

    /// Counts one failure. Above the limit, returns the time until the next one is counted.
    pub fn count(&self, source: impl Hash, now: Duration) -> Result<(), Duration> {
        let full_at = self.slot(source)?;
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let from = full_at.max(now);
                (from - now <= self.tolerance).then(|| from.saturating_add(self.interval))
            })
            .map(|_| ())
            .map_err(|full_at| {
                Duration::from_nanos(full_at.saturating_sub(now).saturating_sub(self.tolerance))
            })
    }

    /// The slot of a source. There is one for each; without it nothing is counted, so the source would wait.
    fn slot(&self, source: impl Hash) -> Result<&AtomicU64, Duration> {
        let slot = self.hasher.hash_one(source) % Self::SLOTS;
        let slot = usize::try_from(slot)
            .ok()
            .and_then(|slot| self.slots.get(slot));
        slot.ok_or(Duration::from_nanos(self.interval))
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures").finish_non_exhaustive()
    }
}

/// Requests in flight: in total, per source while the caller is unknown, and per owner of keys, who may have any
/// number of keys. Requests wait for capacity for a short time.
#[derive(Debug)]
pub struct Turnstile {
    all: Arc<Semaphore>,
    /// Room for requests whose caller is not known. Sources that fall on one slot share it.
    sources: Box<[Arc<Semaphore>]>,
    hasher: RandomState,
    owners: Owners,
    per_owner: usize,
    waiting: Duration,
}

/// Owners with requests in flight or waiting, and their semaphores. There are at most as many owners as requests. An
/// owner is removed with its last request, so nothing is ever evicted.
type Owners = Arc<Mutex<HashMap<Arc<str>, Owner>>>;

#[derive(Debug)]
struct Owner {
    places: Arc<Semaphore>,
    /// Requests in flight and waiting.
    requests: usize,
}

/// A counted request of an owner. Dropping an owner's last one removes the owner.
#[derive(Debug)]
struct OwnerRequest {
    owners: Owners,
    owner: Arc<str>,
}

impl Drop for OwnerRequest {
    fn drop(&mut self) {
        let mut owners = locked(&self.owners);
        if let Some(owner) = owners.get_mut(&self.owner) {
            owner.requests = owner.requests.saturating_sub(1);
            if owner.requests == 0 {
                owners.remove(&self.owner);
            }
        }
    }
}

/// The capacity that a request occupies, in total and of its source.
#[derive(Debug)]
pub struct Entered {
    of_all: OwnedSemaphorePermit,
    _of_source: OwnedSemaphorePermit,
}

/// The capacity that a request occupies, in total and of its owner.
#[derive(Debug)]
pub struct OwnerPermit {
    _of_all: OwnedSemaphorePermit,
    of_owner: OwnerShare,
}

impl OwnerPermit {
    /// Returns the capacity in total to others. The rest is of its owner alone.
    pub fn into_share(self) -> OwnerShare {
        self.of_owner
    }
}

/// The capacity that a request occupies of its owner.
#[derive(Debug)]
pub struct OwnerShare {
    _place: OwnedSemaphorePermit,
    _counted: OwnerRequest,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Turnstile {
    const SOURCE_SLOTS: usize = 256;
    /// The share of one slot in all places. The rest is for other sources, however many requests of one wait.
    const SOURCE_SHARE: usize = 4;

    /// Admits this many requests in all and of each owner. Others wait this long.
    pub fn new(in_all: usize, per_owner: usize, waiting: Duration) -> Self {
        let of_source = || Arc::new(Semaphore::new(in_all.div_ceil(Self::SOURCE_SHARE)));
        Self {
            all: Arc::new(Semaphore::new(in_all)),
            sources: (0..Self::SOURCE_SLOTS).map(|_| of_source()).collect(),
            hasher: RandomState::new(),
            owners: Owners::default(),
            per_owner,
            waiting,
        }
    }

    /// Waits for capacity for a request of a source; `None` if none is available in time.
    pub async fn enter(&self, source: Source) -> Option<Entered> {
        let slot = self.hasher.hash_one(source) as usize % Self::SOURCE_SLOTS;
        let of_source = self.wait(&self.sources[slot]).await?;
        Some(Entered {
            of_all: self.wait(&self.all).await?,
            _of_source: of_source,
        })
    }

    /// Waits for capacity of an owner, for a request that already has capacity in total. While it waits, it returns
    /// the total capacity to others.
    pub async fn enter_owner(&self, entered: Entered, owner: &str) -> Option<OwnerPermit> {
        let (counted, places) = self.count(owner);
        let (of_all, of_owner) = match Arc::clone(&places).try_acquire_owned() {
            Ok(permit) => (entered.of_all, permit),
            Err(_) => {
                drop(entered);
                let permit = self.wait(&places).await?;
                (self.wait(&self.all).await?, permit)
            }
        };
        Some(OwnerPermit {
            _of_all: of_all,
            of_owner: OwnerShare {
                _place: of_owner,
                _counted: counted,
            },
        })
    }

    /// Counts a request of an owner and returns the owner's semaphore.
    fn count(&self, owner: &str) -> (OwnerRequest, Arc<Semaphore>) {
        let owner: Arc<str> = owner.into();
        let mut owners = locked(&self.owners);
        let entry = owners.entry(Arc::clone(&owner)).or_insert_with(|| Owner {
            places: Arc::new(Semaphore::new(self.per_owner)),
            requests: 0,
        });
        entry.requests += 1;
        let counted = OwnerRequest {
            owners: Arc::clone(&self.owners),
            owner,
        };
        (counted, Arc::clone(&entry.places))
    }

    async fn wait(&self, places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(places).try_acquire_owned() {
            return Some(permit);
        }
        let acquiring = Arc::clone(places).acquire_owned();
        tokio::time::timeout(self.waiting, acquiring)
            .await
            .ok()?
            .ok()
    }
}

/// Connections per source. The same number again may wait for a place.
#[derive(Debug, Default)]
pub struct PerSource(Sources);

/// Sources with connections, at most one for each of them.
type Sources = Arc<Mutex<HashMap<Source, SourcePlaces>>>;

/// The places of a source, which is removed with its last connection.
#[derive(Debug)]
struct SourcePlaces {
    places: Arc<Semaphore>,
    connections: usize,
    /// Connections that only get 503, which are not counted above.
    refusals: usize,
}

impl SourcePlaces {
    fn new(max: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(max)),
            connections: 0,
            refusals: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.connections == 0 && self.refusals == 0
    }
}

impl PerSource {
    /// Counts a connection. `None` if the source has `max` connections, and as many again that have no place.
    pub fn enter(&self, source: Source, max: usize) -> Option<SourceConnection> {
        let mut sources = locked(&self.0);
        let entry = sources
            .entry(source)
            .or_insert_with(|| SourcePlaces::new(max));
        if entry.connections >= max.saturating_mul(2) {
            return None;
        }
        entry.connections += 1;
        Some(SourceConnection {
            sources: Arc::clone(&self.0),
            source,
            place: Arc::clone(&entry.places).try_acquire_owned().ok(),
            places: Arc::clone(&entry.places),
        })
    }

    /// Counts a connection that only gets 503. `None` if its source has `max` of these, or no other connection.
    pub fn refuse(&self, source: Source, max: usize) -> Option<SourceRefusal> {
        let mut sources = locked(&self.0);
        let entry = sources
            .get_mut(&source)
            .filter(|entry| entry.refusals < max)?;
        entry.refusals += 1;
        Some(SourceRefusal {
            sources: Arc::clone(&self.0),
            source,
        })
    }
}

/// A counted refusal of a connection of a source.
#[derive(Debug)]
pub struct SourceRefusal {
    sources: Sources,
    source: Source,
}

impl Drop for SourceRefusal {
    fn drop(&mut self) {
        leave(&self.sources, self.source, |entry| &mut entry.refusals);
    }
}

/// Counts one connection less, and removes a source without any.
fn leave(sources: &Sources, source: Source, count: impl FnOnce(&mut SourcePlaces) -> &mut usize) {
    let mut sources = locked(sources);
    if let Some(entry) = sources.get_mut(&source) {
        let count = count(entry);
        *count = count.saturating_sub(1);
        if entry.is_empty() {
            sources.remove(&source);
        }
    }
}

/// A counted connection of a source.
#[derive(Debug)]
pub struct SourceConnection {
    sources: Sources,
    source: Source,
    place: Option<OwnedSemaphorePermit>,
    places: Arc<Semaphore>,
}

impl SourceConnection {
    /// Whether the connection has one of the places of its source.
    pub fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// Waits for a place. Returns whether there was one in time.
    pub async fn wait(&mut self, within: Duration) -> bool {
        if self.place.is_none() {
            let acquiring = Arc::clone(&self.places).acquire_owned();
            let acquired = tokio::time::timeout(within, acquiring).await;
            self.place = acquired.ok().and_then(Result::ok);
        }
        self.has_place()
    }
}

impl Drop for SourceConnection {
    fn drop(&mut self) {
        leave(&self.sources, self.source, |entry| &mut entry.connections);
    }
}

/// A maximum number of requests per account in any period of a length.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Maximum number of requests.
    pub requests: usize,
    /// Length of the period.
    pub length: Duration,
}

/// The standing of an account in its window, after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowStanding {
    /// Whether the request is within the limit.
    pub is_admitted: bool,
    /// Maximum number of requests in the window.
    pub requests: usize,
    /// How many more are admitted now.
    pub remaining: usize,
    /// The time until one more is admitted than now.
    pub next_in: Duration,
    /// Length of the window.
    pub length: Duration,
}

impl WindowStanding {
    /// Adds the `RateLimit` fields of the IETF's draft (draft-ietf-httpapi-ratelimit-headers-10).
    pub fn describe(&self, headers: &mut HeaderMap) {
        let (requests, remaining) = (self.requests, self.remaining);
        let (seconds, window) = (whole_seconds(self.next_in), whole_seconds(self.length));
        for (name, value) in [
            (
                RATE_LIMIT_POLICY,
                format!("\"account\";q={requests};w={window}"),
            ),
            (RATE_LIMIT, format!("\"account\";r={remaining};t={seconds}")),
        ] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
}

/// Seconds, rounded up.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Requests per account in a rolling window. The number of accounts is limited, because clients cannot create
/// accounts. Each account stores at most the window's requests.
#[derive(Debug)]
pub struct Rolling {
    window: Window,
    accounts: Mutex<HashMap<String, VecDeque<Instant>>>,
}

impl Rolling {
    /// Nothing is counted yet.
    pub fn new(window: Window) -> Self {
        Self {
            window,
            accounts: Mutex::default(),
        }
    }

    /// Counts a request. Above the limit, the standing says so.
    pub fn count(&self, account: &str, now: Instant) -> WindowStanding {
        let mut accounts = self
            .accounts
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if !accounts.contains_key(account) {
            accounts.insert(account.to_owned(), VecDeque::new());
        }
        let Some(taken) = accounts.get_mut(account) else {
            return self.standing(0, self.window.length, true);
        };
        while taken
            .front()
            .is_some_and(|at| now.duration_since(*at) >= self.window.length)
        {
            taken.pop_front();
        }
        let is_admitted = taken.len() < self.window.requests;
        if is_admitted {
            taken.push_back(now);
        }
        let oldest = taken.front().copied().unwrap_or(now);
        let next_in = (oldest + self.window.length).duration_since(now);
        self.standing(taken.len(), next_in, is_admitted)
    }

    fn standing(&self, taken: usize, next_in: Duration, is_admitted: bool) -> WindowStanding {
        WindowStanding {
            is_admitted,
            requests: self.window.requests,
            remaining: self.window.requests.saturating_sub(taken),
            next_in,
            length: self.window.length,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn a_source_network_is_a_24_or_a_64() {
        let of = |text: &str| Source::network_of(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.254"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.9"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn a_source_is_a_v4_address_or_a_v6_network() {
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("::c000:201:0:0:0:0"), source("192.0.2.1"));
    }

    #[test]
    fn failures_have_a_burst_and_then_a_rate() {
        let failures = Failures::new(Rate {
            per_second: 10,
            burst: 50,
        })
        .unwrap();
        let (bad, other) = (source("192.0.2.1"), source("198.51.100.7"));
        let start = Duration::from_secs(5);
        for _ in 0..50 {
            assert_eq!(failures.count(bad, start), Ok(()));
        }
        let wait = failures.count(bad, start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        assert_eq!(failures.count(other, start), Ok(()));
        assert_eq!(failures.count(bad, start + wait), Ok(()));
        assert!(failures.count(bad, start + wait).is_err());
        let rested = start + Duration::from_secs(60);
        for _ in 0..50 {
            assert_eq!(failures.count(bad, rested), Ok(()));
        }
        assert!(failures.count(bad, rested).is_err());
        assert!(
            Failures::new(Rate {
                per_second: 0,
                burst: 1
            })
            .is_none()
        );
    }

    #[tokio::test]
    async fn a_window_rolls_per_account() {
        let rolling = Rolling::new(Window {
            requests: 3,
            length: Duration::from_secs(60),
        });
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let count = |account, seconds| {
            let standing = rolling.count(account, after(seconds));
            let wait = standing.next_in.as_secs();
            (standing.is_admitted, standing.remaining, wait)
        };
        assert_eq!(count("ac_1", 0), (true, 2, 60));
        assert_eq!(count("ac_1", 10), (true, 1, 50));
        assert_eq!(count("ac_1", 20), (true, 0, 40));
        assert_eq!(count("ac_1", 30), (false, 0, 30));
        assert_eq!(count("ac_2", 30), (true, 2, 60));
        assert_eq!(count("ac_1", 60), (true, 0, 10));
        assert_eq!(count("ac_1", 60), (false, 0, 10));
        let mut headers = HeaderMap::new();
        rolling.count("ac_1", after(60)).describe(&mut headers);
        assert_eq!(headers[RATE_LIMIT], "\"account\";r=0;t=10");
        assert_eq!(headers[RATE_LIMIT_POLICY], "\"account\";q=3;w=60");
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_who_fills_their_places_leaves_room_for_others() {
        let turnstile = Turnstile::new(4, 2, Duration::from_secs(1));
        let enter = async |owner: &str| {
            let entered = turnstile.enter(source("192.0.2.1")).await?;
            turnstile.enter_owner(entered, owner).await
        };
        let first = enter("a").await.unwrap();
        let second = enter("a").await.unwrap();
        // Waiting requests of one owner take no capacity from another.
        let waiting = async { tokio::join!(enter("a"), enter("a"), enter("a"), enter("a")) };
        let another = async {
            tokio::task::yield_now().await;
            let entering = turnstile.enter(source("198.51.100.7"));
            let entered = entering.now_or_never().unwrap().unwrap();
            turnstile.enter_owner(entered, "b").await
        };
        let ((a, b, c, d), another) = tokio::join!(waiting, another);
        assert!([a, b, c, d].iter().all(Option::is_none));
        drop(another.unwrap());
        assert_eq!(turnstile.owners.lock().unwrap().len(), 1);
        drop(first);
        assert!(enter("a").await.is_some());
        drop(second);
        assert!(turnstile.owners.lock().unwrap().is_empty());

        let _all = turnstile.all.clone().acquire_many_owned(4).await.unwrap();
        assert!(turnstile.enter(source("192.0.2.1")).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_whose_callers_are_not_known_yet_leaves_room_for_others() {
        let turnstile = Turnstile::new(8, 8, Duration::from_secs(1));
        let one = source("192.0.2.1");
        let held = [turnstile.enter(one).await, turnstile.enter(one).await];
        assert!(held.iter().all(Option::is_some));
        assert!(turnstile.enter(one).await.is_none());
        // A slot is shared by few.
        let free = (2..=9).filter(|n| {
            let other = source(&format!("192.0.2.{n}"));
            turnstile.enter(other).now_or_never().flatten().is_some()
        });
        assert!(free.count() >= 6);
        // With its caller known a request has left its source.
        let [entered, _other] = held;
        let place = turnstile.enter_owner(entered.unwrap(), "a").await.unwrap();
        assert!(turnstile.enter(one).await.is_some());
        drop(place);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_has_so_many_connections_and_is_forgotten_with_the_last() {
        let sources = PerSource::default();
        let held = sources.enter(source("192.0.2.1"), 1).unwrap();
        assert!(held.has_place());
        // Another one waits; a third one has no room for that.
        let mut waiting = sources.enter(source("192.0.2.1"), 1).unwrap();
        assert!(!waiting.wait(Duration::from_secs(1)).await);
        assert!(sources.enter(source("192.0.2.1"), 1).is_none());
        assert!(sources.enter(source("192.0.2.2"), 1).unwrap().has_place());
        drop(held);
        assert!(waiting.wait(Duration::from_secs(1)).await);
        // It has its own share of the refusals.
        let refused = sources.refuse(source("192.0.2.1"), 1).unwrap();
        assert!(sources.refuse(source("192.0.2.1"), 1).is_none());
        drop(waiting);
        assert!(sources.enter(source("192.0.2.1"), 1).unwrap().has_place());
        drop(refused);
        assert!(sources.0.lock().unwrap().is_empty());
        assert!(sources.refuse(source("192.0.2.1"), 1).is_none());
    }
}
