//! Remote documents that policies need: key sets and metadata of issuers, and the certificates of signers. They are
//! fetched on first use and cached.
//!
//! ```text
//! age of the last good document   its user
//! under 10 minutes                gets it
//! under 15 minutes                gets it, while it is fetched again
//! under 24 hours                  waits for a fetch; if that fails, or failed recently, gets it
//! more, or none                   waits for a fetch; gets an error if that fails
//! ```
//!
//! So an issuer that is down for a day stops no sign-in, and a key that it withdraws ends with the next fetch that
//! succeeds. There is one fetch for a document at a time, and none for a while after one that failed: first a second,
//! then longer, or as long as the source asks for. A token with an unknown key may cause a fetch too, at most every 30 seconds.
//!
//! Each owner has its own documents and a share of the table. URLs that clients choose have a share apart from those
//! that policies name. If the table is full, the largest share loses its least recently used document.
//!
//! A fetch connects where its [`FetchScope`] allows, follows no redirect, and has limits on time and size. A URL that a
//! client has supplied is fetched in [`FetchScope::Public`].

use std::collections::{BTreeSet, HashMap};
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::sync::lock;
use culvert_base::{BoxFuture, FairPermits, Meter, RetryAfter, Share, Timestamp};
use culvert_http::coding;
use hashlink::LinkedHashMap;
use http::header::{ACCEPT, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use tokio::sync::Notify;
use tokio::time::Instant;
use url::Url;

use crate::ports::services::{Call, Cause, Fetch, FetchScope, Spawn};

/// Most cached documents.
const DOCUMENTS_MAX: usize = 256;
/// Largest document, in bytes.
const BYTES_MAX: usize = 64 << 10;
/// The age at which a document is fetched again while it is used.
const REFRESH_AFTER: Duration = Duration::from_secs(10 * 60);
/// The age at which a document is not used without a fetch.
const FRESH_FOR: Duration = Duration::from_secs(15 * 60);
/// How long a document is used if fetches fail.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Most concurrent fetches. One endpoint gets at most half of them.
const FETCHES_MAX: usize = 32;
/// Time limit of a fetch, from the name's lookup to the last byte.
pub const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two fetches of a document for tokens whose keys are unknown.
const COOL_DOWN: Duration = Duration::from_secs(30);
/// Pause after the first fetch that failed. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Longest pause that a source may request.
const PAUSE_ASKED_MAX: Duration = Duration::from_secs(10 * 60);
/// How long a source counts as down after a fetch that failed.
const DOWN_FOR: Duration = Duration::from_secs(2 * 60);
/// Most users that wait for one document. Further ones get the last good one, or an error.
const WAITING_MAX: usize = 1024;

/// The cached documents. Clones are handles to the same cache.
#[derive(Clone, Debug)]
pub struct Documents(Arc<Cache>);

#[derive(Debug)]
struct Cache {
    table: Mutex<Table>,
    /// Whether the cache accepts no more documents.
    is_frozen: AtomicBool,
    fetches: FairPermits,
    failures: Meter,
    began: Instant,
    /// How much later it is, for tests.
    #[cfg(test)]
    later: Mutex<Duration>,
}

/// A time since the cache began.
type Time = Duration;

impl Cache {
    #[cfg(not(test))]
    fn now(&self) -> Time {
        self.began.elapsed()
    }

    #[cfg(test)]
    fn now(&self) -> Time {
        self.began.elapsed() + *lock(&self.later)
    }
}

/// An owner, and whether clients choose the URLs.
type Holder = (u64, FetchScope);

#[derive(Debug, Default)]
struct Table {
    /// By URL, least recently used first. No share is empty.
    shares: HashMap<Holder, LinkedHashMap<String, Arc<Entry>, RandomState>>,
    /// The shares by number of documents.
    by_len: BTreeSet<(usize, Holder)>,
    len: usize,
}

#[derive(Debug)]
struct Entry {
    state: Mutex<State>,
    /// Notified when a fetch ends.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The last good document, and when its fetch began.
    good: Option<(Bytes, Time)>,
    is_fetching: bool,
    waiting: usize,
    /// When the last fetch began.
    tried: Option<Time>,
    /// Fetches that failed since the last good one.
    failed: u32,
    error: Option<Arc<NotFetched>>,
}

/// Why a document is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// A recent one will do.
    Recent,
    /// The cached one lacks a key.
    Newer,
}

/// What a user of a document does.
#[derive(Debug)]
enum Plan {
    /// Use this one.
    Use(Bytes),
    /// Use this one, and begin a fetch.
    UseAndFetch(Bytes),
    /// Wait for the fetch that is in progress.
    Wait,
    /// Begin a fetch and wait for it.
    FetchAndWait,
    /// Do without.
    Fail(Arc<NotFetched>),
}

/// Why a document is unavailable.
#[derive(Clone, Debug, thiserror::Error)]
#[error("fetching {host}: {why}")]
pub struct NotFetched {
    host: String,
    why: String,
    is_limit: bool,
    /// The pause that the source requested.
    retry_after: Option<RetryAfter>,
}

impl NotFetched {
    fn new(url: &Url, why: impl ToString) -> Self {
        Self {
            host: url.host_str().unwrap_or_default().to_owned(),
            why: why.to_string(),
            is_limit: false,
            retry_after: None,
        }
    }

    /// Too many fetches, or too many users that wait.
    fn busy(url: &Url) -> Arc<Self> {
        Arc::new(Self {
            is_limit: true,
            ..Self::new(url, "too many documents are being fetched")
        })
    }

    /// Whether a limit of the cache was reached, which visitors can cause, and not a failure of the source.
    pub fn is_limit(&self) -> bool {
        self.is_limit
    }
}

/// The state of the cache, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DocumentsState {
    /// Documents in it.
    pub documents: u64,
    /// Of these, those that are older than usual because fetches fail.
    pub stale: u64,
    /// Sources of which there is no document because fetches fail.
    pub missing: u64,
    /// Fetches that failed since the start.
    pub failures: u64,
}

impl Default for Documents {
    fn default() -> Self {
        Self::new()
    }
}

impl Documents {
    /// An empty cache.
    pub fn new() -> Self {
        Self(Arc::new(Cache {
            table: Mutex::default(),
            is_frozen: AtomicBool::new(false),
            fetches: FairPermits::new(FETCHES_MAX),
            failures: Meter::default(),
            began: Instant::now(),
            #[cfg(test)]
            later: Mutex::default(),
        }))
    }

    /// The document at an `https` URL. Concurrent calls for one document share a fetch.
    ///
    /// # Errors
    ///
    /// When there is none that may be used.
    pub async fn get(
        &self,
        network: &Arc<dyn Fetch>,
        tasks: &dyn Spawn,
        share: Share,
        scope: FetchScope,
        url: &Url,
    ) -> Result<Bytes, Arc<NotFetched>> {
        let source = Source {
            cache: &self.0,
            network,
            tasks,
            share,
            scope,
            url,
        };
        source.get(Need::Recent).await
    }

    /// The same for a user who needs more than the cached document has: it is fetched again, unless that was done or
    /// tried recently.
    ///
    /// # Errors
    ///
    /// When there is none that may be used.
    pub async fn get_newer(
        &self,
        network: &Arc<dyn Fetch>,
        tasks: &dyn Spawn,
        share: Share,
        scope: FetchScope,
        url: &Url,
    ) -> Result<Bytes, Arc<NotFetched>> {
        let source = Source {
            cache: &self.0,
            network,
            tasks,
            share,
            scope,
            url,
        };
        source.get(Need::Newer).await
    }

    /// Whether the last fetch of this document failed: its source may have a newer one than its users get.
    pub fn has_failed(&self, share: Share, scope: FetchScope, url: &Url) -> bool {
        let table = lock(&self.0.table);
        let documents = table.shares.get(&(share.owner(), scope));
        let entry = documents.and_then(|documents| documents.get(url.as_str()));
        entry.is_some_and(|entry| lock(&entry.state).failed > 0)
    }

    /// Sets whether the cache accepts no more documents; others are then fetched each time.
    pub fn freeze(&self, is_frozen: bool) {
        self.0.is_frozen.store(is_frozen, Ordering::Relaxed);
    }

    /// The state of the cache.
    pub fn state(&self) -> DocumentsState {
        let now = self.0.now();
        let mut found = DocumentsState {
            failures: self.0.failures.get(),
            ..DocumentsState::default()
        };
        let table = lock(&self.0.table);
        for entry in table.shares.values().flat_map(LinkedHashMap::values) {
            let state = lock(&entry.state);
            match state.age(now) {
                Some(age) if age < KEPT_FOR => {
                    found.documents += 1;
                    found.stale += u64::from(age >= FRESH_FOR && state.failed > 0);
                }
                _ => found.missing += u64::from(state.failed > 0),
            }
        }
        found
    }

    /// Puts a document of the installation itself, which has no owner, into the cache.
    pub async fn put(&self, url: &str, document: Bytes) {
        for scope in [FetchScope::Upstreams, FetchScope::Public] {
            let holder = (Share::of_owner("").owner(), scope);
            let entry = lock(&self.0.table).entry(holder, url, false);
            if let Some(entry) = entry {
                lock(&entry.state).good = Some((document.clone(), self.0.now()));
            }
        }
    }
}

/// A document at a URL, for an owner.
#[derive(Clone, Copy)]
struct Source<'s> {
    cache: &'s Arc<Cache>,
    network: &'s Arc<dyn Fetch>,
    tasks: &'s dyn Spawn,
    share: Share,
    scope: FetchScope,
    url: &'s Url,
}

impl Source<'_> {
    async fn get(self, need: Need) -> Result<Bytes, Arc<NotFetched>> {
        let is_frozen = self.cache.is_frozen.load(Ordering::Relaxed);
        let holder = (self.share.owner(), self.scope);
        let entry = lock(&self.cache.table).entry(holder, self.url.as_str(), is_frozen);
        let Some(entry) = entry else {
            return self.fetch_once().await;
        };
        // Registered before the state is read, so that no end is missed.
        let ended = entry.ended.notified();
        let mut ended = std::pin::pin!(ended);
        ended.as_mut().enable();
        let (task, result) = {
            let mut state = lock(&entry.state);
            let (task, result) = match state.plan(need, self.cache.now()) {
                Plan::Use(document) => (None, Some(Ok(document))),
                Plan::Fail(error) => (None, Some(Err(error))),
                // Without a permit the next user tries.
                Plan::UseAndFetch(document) => (self.begin(&entry, &mut state), Some(Ok(document))),
                Plan::FetchAndWait => match self.begin(&entry, &mut state) {
                    None => (None, Some(self.usable(&state))),
                    begun => (begun, None),
                },
                Plan::Wait => (None, None),
            };
            match result {
                None if state.waiting >= WAITING_MAX => (task, Some(self.usable(&state))),
                None => {
                    state.waiting += 1;
                    (task, None)
                }
                found => (task, found),
            }
        };
        // Without the lock: a task that cannot run any more is dropped immediately, and that ends its fetch.
        if let Some(task) = task {
            self.tasks.spawn(task);
        }
        if let Some(result) = result {
            return result;
        }
        let _waiting = Waiting(&entry);
        // The fetch has its own limit; this one holds even if its task is never run.
        let waited = tokio::time::timeout(2 * FETCH_WITHIN, ended).await;
        let state = lock(&entry.state);
        state.usable(self.cache.now(), || match (waited, &state.error) {
            (Ok(()), Some(error)) => Arc::clone(error),
            _ => Arc::new(NotFetched::new(self.url, "it timed out")),
        })
    }

    /// The last good document, or else that too many are being fetched.
    fn usable(self, state: &State) -> Result<Bytes, Arc<NotFetched>> {
        state.usable(self.cache.now(), || NotFetched::busy(self.url))
    }

    /// Begins a fetch, and returns its task, which ends even if all users go away.
    /// `None` if there is no permit.
    fn begin(self, entry: &Arc<Entry>, state: &mut State) -> Option<BoxFuture<'static, ()>> {
        let permit = self.cache.fetches.try_acquire(self.share).ok()?;
        let now = self.cache.now();
        state.is_fetching = true;
        state.tried = Some(now);
        let fetching = Fetching {
            cache: Arc::clone(self.cache),
            entry: Arc::clone(entry),
            began: now,
            result: Err(NotFetched::new(self.url, "it was aborted")),
        };
        let (network, url) = (Arc::clone(self.network), self.url.clone());
        let of = (self.share, self.scope);
        Some(Box::pin(async move {
            let _permit = permit;
            fetching.end(fetch(&*network, of, &url).await);
        }))
    }

    /// A fetch whose result is not kept.
    async fn fetch_once(self) -> Result<Bytes, Arc<NotFetched>> {
        let permit = self.cache.fetches.try_acquire(self.share);
        let _permit = permit.map_err(|_| NotFetched::busy(self.url))?;
        let fetched = fetch(&**self.network, (self.share, self.scope), self.url).await;
        fetched.map_err(|error| {
            self.cache.failures.up();
            Arc::new(error)
        })
    }
}

impl Table {
    /// The entry of a URL, which becomes the most recently used one. A new one if there is none, unless the table is
    /// frozen.
    fn entry(&mut self, holder: Holder, url: &str, is_frozen: bool) -> Option<Arc<Entry>> {
        if let Some(share) = self.shares.get_mut(&holder)
            && let Some(entry) = share.to_back(url)
        {
            return Some(Arc::clone(entry));
        }
        if is_frozen {
            return None;
        }
        if self.len >= DOCUMENTS_MAX {
            self.evict(holder);
        }
        let entry = Arc::new(Entry {
            state: Mutex::default(),
            ended: Notify::new(),
        });
        let share = self.shares.entry(holder).or_default();
        self.by_len.remove(&(share.len(), holder));
        share.insert(url.to_owned(), Arc::clone(&entry));
        self.by_len.insert((share.len(), holder));
        self.len += 1;
        Some(entry)
    }

    /// Removes the least recently used document of the largest share, preferring `own` among equals.
    fn evict(&mut self, own: Holder) {
        let of_own = self.shares.get(&own).map_or(0, LinkedHashMap::len);
        let Some(&(most, largest)) = self.by_len.last() else {
            return;
        };
        let holder = if of_own >= most { own } else { largest };
        let Some(share) = self.shares.get_mut(&holder) else {
            return;
        };
        self.by_len.remove(&(share.len(), holder));
        self.len -= usize::from(share.pop_front().is_some());
        match share.len() {
            0 => drop(self.shares.remove(&holder)),
            len => drop(self.by_len.insert((len, holder))),
        }
    }
}

impl State {
    fn age(&self, now: Time) -> Option<Duration> {
        let (_, since) = self.good.as_ref()?;
        Some(now.saturating_sub(*since))
    }

    /// What a user does now.
    fn plan(&self, need: Need, now: Time) -> Plan {
        let since_try = self.tried.map(|at| now.saturating_sub(at));
        let may_try = since_try.is_none_or(|since| since >= self.pause());
        let is_down = self.failed > 0 && since_try.is_some_and(|since| since < DOWN_FOR);
        let good = match (&self.good, self.age(now)) {
            (Some((document, _)), Some(age)) if age < KEPT_FOR => Some((document.clone(), age)),
            _ => None,
        };
        let wants_newer =
            need == Need::Newer && since_try.is_none_or(|since| since >= COOL_DOWN) && may_try;
        match good {
            Some(_) if need == Need::Newer && self.is_fetching => Plan::Wait,
            Some(_) if wants_newer => Plan::FetchAndWait,
            Some((document, age)) if age < REFRESH_AFTER => Plan::Use(document),
            Some((document, age)) if age < FRESH_FOR || is_down => {
                match may_try && !self.is_fetching {
                    true => Plan::UseAndFetch(document),
                    false => Plan::Use(document),
                }
            }
            _ if self.is_fetching => Plan::Wait,
            _ if may_try => Plan::FetchAndWait,
            Some((document, _)) => Plan::Use(document),
            None => match &self.error {
                Some(error) => Plan::Fail(Arc::clone(error)),
                None => Plan::FetchAndWait,
            },
        }
    }

    /// How long after a fetch the next one may begin.
    fn pause(&self) -> Duration {
        let Some(doublings) = self.failed.checked_sub(1) else {
            return Duration::ZERO;
        };
        let own = PAUSE_MIN.saturating_mul(1 << doublings.min(16));
        let asked = self.error.as_ref().and_then(|error| error.retry_after);
        RetryAfter::wait(asked, own.min(PAUSE_MAX), PAUSE_ASKED_MAX)
    }

    /// The last good document, however old it may be, or else an error.
    fn usable(
        &self,
        now: Time,
        otherwise: impl FnOnce() -> Arc<NotFetched>,
    ) -> Result<Bytes, Arc<NotFetched>> {
        match (&self.good, self.age(now)) {
            (Some((document, _)), Some(age)) if age < KEPT_FOR => Ok(document.clone()),
            _ => Err(otherwise()),
        }
    }
}

/// A user that waits for a fetch.
struct Waiting<'e>(&'e Entry);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.waiting = state.waiting.saturating_sub(1);
    }
}

/// A fetch in progress. Its result takes effect when this is dropped, also if its task is aborted.
struct Fetching {
    cache: Arc<Cache>,
    entry: Arc<Entry>,
    began: Time,
    result: Result<Bytes, NotFetched>,
}

impl Fetching {
    /// Ends the fetch with this result.
    fn end(mut self, result: Result<Bytes, NotFetched>) {
        self.result = result;
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let aborted = Ok(Bytes::new());
        let result = std::mem::replace(&mut self.result, aborted);
        let mut state = lock(&self.entry.state);
        state.is_fetching = false;
        match result {
            Ok(document) => {
                if state.failed > 0 {
                    tracing::info!("a document that policies need is available again");
                }
                state.failed = 0;
                state.error = None;
                // An equal document stays the same object, so that its users need not parse it again.
                let is_same = state.good.as_ref().is_some_and(|(old, _)| *old == document);
                match &mut state.good {
                    Some((_, since)) if is_same => *since = self.began,
                    good => *good = Some((document, self.began)),
                }
            }
            Err(error) => {
                self.cache.failures.up();
                state.failed = state.failed.saturating_add(1);
                if state.failed == 1 {
                    let has_older = state.good.is_some();
                    tracing::warn!(%error, has_older, "a document that policies need cannot be fetched");
                }
                state.error = Some(Arc::new(error));
            }
        }
        drop(state);
        self.entry.ended.notify_waiters();
    }
}

/// Fetches a document within the time limit.
async fn fetch(
    network: &dyn Fetch,
    of: (Share, FetchScope),
    url: &Url,
) -> Result<Bytes, NotFetched> {
    let fetched = tokio::time::timeout(FETCH_WITHIN, fetch_body(network, of, url)).await;
    match fetched {
        Ok(fetched) => fetched.map_err(|(why, retry_after)| NotFetched {
            retry_after,
            ..NotFetched::new(url, why)
        }),
        Err(_) => Err(NotFetched::new(url, "it timed out")),
    }
}

/// Fetches a document. An error has the pause that the source requested.
async fn fetch_body(
    network: &dyn Fetch,
    (share, scope): (Share, FetchScope),
    url: &Url,
) -> Result<Bytes, (Cause, Option<RetryAfter>)> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    let call = Call {
        method: Method::GET,
        url: url.clone(),
        headers,
        body: Bytes::new(),
    };
    let fetched = network.fetch(share, scope, call, BYTES_MAX).await;
    let (head, body) = fetched.map_err(|cause| (cause, None))?;
    if head.status != StatusCode::OK {
        let why = format!("it returned status {}", head.status);
        return Err((why.into(), requested_pause(&head.headers)));
    }
    coding::decode(&head.headers, body, BYTES_MAX).map_err(|error| (error.into(), None))
}

/// The pause that a response requests. A date counts from the date of the response, so it needs no common clock.
fn requested_pause(headers: &HeaderMap) -> Option<RetryAfter> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let sent_at = text(DATE).and_then(Timestamp::parse_http_date);
    RetryAfter::parse(text(RETRY_AFTER)?, sent_at.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http::response;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    fn shown(plan: &Plan) -> &'static str {
        match plan {
            Plan::Use(_) => "use",
            Plan::UseAndFetch(_) => "use and fetch",
            Plan::Wait => "wait",
            Plan::FetchAndWait => "fetch and wait",
            Plan::Fail(_) => "fail",
        }
    }

    /// A state whose last good document has this age, and whose last fetch was as long ago as the second says and failed
    /// for the `failed`th time.
    fn state(age: Option<Duration>, tried: Option<Duration>, failed: u32, now: Time) -> State {
        let url = Url::parse("https://id.example/").unwrap();
        State {
            good: age.map(|age| (Bytes::from_static(b"good"), now - age)),
            tried: tried.map(|ago| now - ago),
            failed,
            error: (failed > 0).then(|| Arc::new(NotFetched::new(&url, "down"))),
            ..State::default()
        }
    }

    #[test]
    fn a_source_only_lengthens_the_pause_before_the_next_fetch() {
        for (failed, retry_after, date, seconds) in [
            (1, "0", "", 1),
            (1, "30", "", 30),
            (3, "2", "", 4),
            (1, "86400", "", 600),
            (
                1,
                "Fri, 20 Nov 2026 19:54:18 GMT",
                "Fri, 20 Nov 2026 19:53:18 GMT",
                60,
            ),
            (
                1,
                "Fri, 20 Nov 2026 19:53:18 GMT",
                "Fri, 20 Nov 2026 19:54:18 GMT",
                1,
            ),
            // Without a date of the response, a date is later than any limit.
            (1, "Fri, 20 Nov 2026 19:53:18 GMT", "", 600),
            (1, "soon", "", 1),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(retry_after));
            if !date.is_empty() {
                headers.insert(DATE, HeaderValue::from_static(date));
            }
            let error = NotFetched {
                retry_after: requested_pause(&headers),
                ..NotFetched::new(&Url::parse("https://id.example/").unwrap(), "429")
            };
            let state = State {
                failed,
                error: Some(Arc::new(error)),
                ..State::default()
            };
            assert_eq!(state.pause(), seconds * SECOND, "{failed} {retry_after}");
        }
    }

    #[test]
    fn the_age_of_a_document_and_failures_decide() {
        let now = 2 * KEPT_FOR;
        let ok = |age: Duration| state(Some(age), Some(age), 0, now);
        for (what, state, recent, newer) in [
            ("none", State::default(), "fetch and wait", "fetch and wait"),
            ("new", ok(SECOND), "use", "use"),
            ("cooled down", ok(30 * SECOND), "use", "fetch and wait"),
            (
                "before its end",
                ok(10 * MINUTE),
                "use and fetch",
                "fetch and wait",
            ),
            ("old", ok(15 * MINUTE), "fetch and wait", "fetch and wait"),
            ("very old", ok(KEPT_FOR), "fetch and wait", "fetch and wait"),
            (
                "failed a moment ago",
                state(Some(12 * MINUTE), Some(SECOND / 2), 1, now),
                "use",
                "use",
            ),
            (
                "failed, and the pause is over",
                state(Some(HOUR), Some(SECOND), 1, now),
                "use and fetch",
                "use and fetch",
            ),
            (
                "failed for the seventh time",
                state(Some(HOUR), Some(59 * SECOND), 7, now),
                "use",
                "use",
            ),
            (
                "failed for the hundredth time",
                state(Some(HOUR), Some(MINUTE), 100, now),
                "use and fetch",
                "fetch and wait",
            ),
            (
                "failed long ago",
                state(Some(HOUR), Some(10 * MINUTE), 3, now),
                "fetch and wait",
                "fetch and wait",
            ),
            (
                "kept too long",
                state(Some(KEPT_FOR), Some(SECOND / 2), 9, now),
                "fail",
                "fail",
            ),
            (
                "never there",
                state(None, Some(SECOND / 2), 1, now),
                "fail",
                "fail",
            ),
            (
                "never there, and the pause is over",
                state(None, Some(SECOND), 1, now),
                "fetch and wait",
                "fetch and wait",
            ),
        ] {
            assert_eq!(shown(&state.plan(Need::Recent, now)), recent, "{what}");
            assert_eq!(shown(&state.plan(Need::Newer, now)), newer, "{what}");
            // Nobody begins a second fetch.
            let fetching = State {
                is_fetching: true,
                ..state
            };
            for need in [Need::Recent, Need::Newer] {
                let plan = fetching.plan(need, now);
                assert!(!shown(&plan).contains("fetch"), "{what}");
            }
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_owner_with_many_documents_evicts_only_its_own() {
        let mut table = Table::default();
        let (greedy, other) = (Share::of_owner("a").owner(), Share::of_owner("b").owner());
        let honest = (other, FetchScope::Upstreams);
        let named = (greedy, FetchScope::Upstreams);
        let chosen = (greedy, FetchScope::Public);
        let key_set = table.entry(honest, "https://b/", false).unwrap();
        let own = table.entry(named, "https://a/", false).unwrap();
        for number in 0..3 * DOCUMENTS_MAX {
            table.entry(chosen, &format!("https://c/{number}"), false);
            assert!(table.len <= DOCUMENTS_MAX);
        }
        assert_eq!(table.len, DOCUMENTS_MAX);
        for (holder, url, entry) in [(honest, "https://b/", key_set), (named, "https://a/", own)] {
            assert!(Arc::ptr_eq(
                &table.entry(holder, url, true).unwrap(),
                &entry
            ));
        }
        assert!(table.entry(chosen, "https://c/0", true).is_none());
        let held: usize = table.shares.values().map(LinkedHashMap::len).sum();
        assert_eq!(held, table.len);
    }

    /// Returns the number of the fetch, once it may.
    #[derive(Debug)]
    struct Counting {
        fetches: AtomicUsize,
        may_end: tokio::sync::Semaphore,
        is_down: AtomicBool,
    }

    impl Fetch for Counting {
        fn fetch(
            &self,
            _: Share,
            _: FetchScope,
            _: Call,
            _: usize,
        ) -> BoxFuture<'_, Result<(response::Parts, Bytes), Cause>> {
            let number = self.fetches.fetch_add(1, Ordering::SeqCst) + 1;
            Box::pin(async move {
                self.may_end.acquire().await?.forget();
                if self.is_down.load(Ordering::SeqCst) {
                    return Err("it is down".into());
                }
                let head = http::Response::new(()).into_parts().0;
                Ok((head, Bytes::from(number.to_string())))
            })
        }
    }

    #[derive(Debug)]
    struct Tasks;

    impl Spawn for Tasks {
        #[allow(
            clippy::disallowed_methods,
            reason = "the runtime of the test ends them"
        )]
        fn spawn(&self, task: BoxFuture<'static, ()>) {
            drop(tokio::spawn(task));
        }
    }

    /// Runs no task, as a server that has ended.
    #[derive(Debug)]
    struct Ended;

    impl Spawn for Ended {
        fn spawn(&self, task: BoxFuture<'static, ()>) {
            drop(task);
        }
    }

    struct Rig {
        counting: Arc<Counting>,
        network: Arc<dyn Fetch>,
        documents: Documents,
        url: Url,
    }

    impl Rig {
        fn new() -> Self {
            let counting = Arc::new(Counting {
                fetches: AtomicUsize::new(0),
                may_end: tokio::sync::Semaphore::new(0),
                is_down: AtomicBool::new(false),
            });
            Self {
                network: Arc::<Counting>::clone(&counting),
                counting,
                documents: Documents::new(),
                url: Url::parse("https://id.example/keys").unwrap(),
            }
        }

        fn fetches(&self) -> usize {
            self.counting.fetches.load(Ordering::SeqCst)
        }

        async fn get(&self, owner: &str) -> Result<Bytes, Arc<NotFetched>> {
            let (share, scope) = (Share::of_owner(owner), FetchScope::Upstreams);
            let (network, url) = (&self.network, &self.url);
            self.documents.get(network, &Tasks, share, scope, url).await
        }

        /// Lets time pass.
        fn later(&self, by: Duration) {
            *lock(&self.documents.0.later) += by;
        }

        /// Changes the state of the document of an owner.
        fn change(&self, owner: &str, change: impl FnOnce(&mut State)) {
            let holder = (Share::of_owner(owner).owner(), FetchScope::Upstreams);
            let entry = lock(&self.documents.0.table).entry(holder, self.url.as_str(), true);
            change(&mut lock(&entry.unwrap().state));
        }
    }

    #[tokio::test]
    async fn many_users_share_one_fetch_and_the_rest_is_refused() {
        let rig = Rig::new();
        let users = WAITING_MAX + 10;
        let asking = futures_of((0..users).map(|_| rig.get("a")));
        let ending = async {
            while rig.fetches() == 0 {
                tokio::task::yield_now().await;
            }
            rig.counting.may_end.add_permits(1);
        };
        let (asked, ()) = tokio::join!(asking, ending);
        let served = asked.iter().filter(|one| one.is_ok()).count();
        assert_eq!((served, rig.fetches()), (WAITING_MAX, 1));
        let refused = asked.iter().filter_map(|one| one.as_ref().err());
        assert!(refused.into_iter().all(|error| error.is_limit()));
        // Another owner has its own document.
        rig.counting.may_end.add_permits(1);
        assert_eq!(rig.get("b").await.unwrap(), "2");
    }

    #[tokio::test]
    async fn a_fetch_whose_task_is_dropped_at_once_has_failed() {
        let rig = Rig::new();
        let (share, scope) = (Share::of_owner("a"), FetchScope::Upstreams);
        for need in [Need::Recent, Need::Newer] {
            let source = Source {
                cache: &rig.documents.0,
                network: &rig.network,
                tasks: &Ended,
                share,
                scope,
                url: &rig.url,
            };
            let error = source.get(need).await.unwrap_err();
            assert!(error.to_string().contains("aborted"), "{error}");
        }
        assert_eq!(rig.fetches(), 0);
        assert_eq!(rig.documents.0.fetches.available(), FETCHES_MAX);
    }

    #[tokio::test]
    async fn the_last_good_document_is_used_while_the_source_is_down() {
        let rig = Rig::new();
        rig.counting.may_end.add_permits(1_000);
        assert_eq!(rig.get("a").await.unwrap(), "1");
        rig.counting.is_down.store(true, Ordering::SeqCst);
        rig.later(FRESH_FOR);
        rig.change("a", |state| {
            state.good = Some((Bytes::from_static(b"old"), Time::ZERO))
        });
        let has_failed = |owner: &str| {
            let (share, scope) = (Share::of_owner(owner), FetchScope::Upstreams);
            rig.documents.has_failed(share, scope, &rig.url)
        };
        assert!(!has_failed("a"));
        for _ in 0..100 {
            assert_eq!(rig.get("a").await.unwrap(), "old");
        }
        assert!(has_failed("a") && !has_failed("b"));
        assert_eq!(rig.fetches(), 2, "no fetch for each request");
        let state = rig.documents.state();
        assert_eq!((state.documents, state.stale, state.failures), (1, 1, 1));
        // A document that was never there fails without a fetch too.
        for _ in 0..100 {
            assert!(rig.get("b").await.is_err());
        }
        assert_eq!(rig.fetches(), 3);
        assert_eq!(rig.documents.state().missing, 1);
        // When the source is back, what it has withdrawn ends.
        rig.counting.is_down.store(false, Ordering::SeqCst);
        rig.later(PAUSE_MAX);
        let mut seen = rig.get("a").await.unwrap();
        while seen == "old" {
            tokio::task::yield_now().await;
            seen = rig.get("a").await.unwrap();
        }
        assert_eq!((seen, rig.fetches()), (Bytes::from_static(b"4"), 4));
        assert_eq!(rig.documents.state().stale, 0);
    }

    /// Runs futures to their ends, in one task.
    async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
        let mut futures: Vec<_> = futures.map(|one| (Box::pin(one), None)).collect();
        std::future::poll_fn(|cx| {
            let mut is_ready = true;
            for (future, output) in &mut futures {
                if output.is_none() {
                    match future.as_mut().poll(cx) {
                        std::task::Poll::Ready(value) => *output = Some(value),
                        std::task::Poll::Pending => is_ready = false,
                    }
                }
            }
            match is_ready {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        futures
            .into_iter()
            .filter_map(|(_, output)| output)
            .collect()
    }
}
