//! Recent requests and their responses, recorded for users of the agent. Memory and work are limited:
//! exchanges above the rate limit are only counted.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use culvert_base::{Clock, Timestamp};
use culvert_http::http1::follow;

use super::endpoint::Endpoint;

/// Maximum number of recorded exchanges.
const KEPT_MAX: usize = 500;
/// The interval between recorded exchanges after a burst of [`KEPT_MAX`]: 200 per second.
const KEPT_EVERY: Duration = Duration::from_millis(5);
/// Maximum size of all heads and bodies, including those of open exchanges, in bytes.
const BYTES_MAX: usize = 8 << 20;
/// The size above which the oldest exchanges are dropped.
const BYTES_USUAL: usize = 4 << 20;
/// The initial buffer of a body. It doubles when it is full.
const BODY_BYTES_MIN: usize = 1 << 10;
/// Maximum recorded size of one body, in bytes.
const BODY_BYTES_MAX: usize = 256 << 10;

/// The recent exchanges of all endpoints of an agent.
#[derive(Debug)]
pub struct Exchanges {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    bytes: Arc<AtomicUsize>,
    pace: KeepRate,
    not_kept: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    /// The highest id that [`Exchanges::clear`] removed.
    cleared_id: u64,
    /// Oldest first.
    kept: VecDeque<Arc<Exchange>>,
}

/// A request and its response.
#[derive(Debug)]
pub struct Exchange {
    /// The id, starting at one.
    pub id: u64,
    /// Public URL of the endpoint.
    pub url: String,
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// `ip:port` of the client.
    pub client: String,
    /// When the first byte of the request arrived.
    pub started_at: Timestamp,
    /// Time from there to the last byte of the response.
    pub took: Duration,
    /// The method, as sent.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The request.
    pub request: Message,
    /// Status of the response; `None` without a response.
    pub status: Option<u16>,
    /// The response.
    pub response: Message,
    /// The exchange that this one replays.
    pub replay_of: Option<u64>,
    /// Why there is no complete response. `None` if it is complete.
    pub error: Option<String>,
}

impl Exchange {
    /// The status that the client got: that of the response, or 502 from the server if the service did not respond.
    /// `None` if the client left before that.
    pub fn shown_status(&self) -> Option<u16> {
        self.status.or(self.error.as_ref().map(|_| 502))
    }
}

/// A head and the recorded part of its body, as transmitted.
#[derive(Debug, Default)]
pub struct Message {
    /// First line and fields, including the empty line at the end.
    pub head: Vec<u8>,
    /// The recorded part of the body, including chunk lines if it is chunked.
    pub body: Vec<u8>,
    /// The total size of the body in this form.
    pub body_bytes: u64,
    kept: Option<HeldBytes>,
}

impl Message {
    /// Whether the body is recorded completely.
    pub fn is_whole(&self) -> bool {
        self.body.len() as u64 == self.body_bytes
    }

    /// The recorded part of the body without chunk lines.
    pub fn plain_body(&self) -> Vec<u8> {
        match follow::is_chunked(&self.head) {
            true => follow::without_chunk_lines(&self.body),
            false => self.body.clone(),
        }
    }

    pub(crate) fn begin(&mut self, head: Vec<u8>, all: &Exchanges) {
        let kept = self.kept.get_or_insert_with(|| HeldBytes {
            bytes: 0,
            all: Arc::clone(&all.bytes),
        });
        kept.always(head.len());
        self.head = head;
    }

    pub(crate) fn append(&mut self, body: &[u8]) {
        let follows = self.is_whole();
        self.body_bytes += body.len() as u64;
        let room = BODY_BYTES_MAX
            .saturating_sub(self.body.len())
            .min(body.len());
        if follows && self.reserve(room) {
            self.body.extend_from_slice(&body[..room]);
        }
    }

    /// Reserves space for more of the body. The whole capacity counts, not only the used part.
    fn reserve(&mut self, more: usize) -> bool {
        let (had, needed) = (self.body.capacity(), self.body.len() + more);
        if needed <= had {
            return true;
        }
        let wanted = needed.max(2 * had).clamp(BODY_BYTES_MIN, BODY_BYTES_MAX);
        let Some(kept) = &mut self.kept else {
            return false;
        };
        if !kept.take(wanted - had) {
            return false;
        }
        self.body.reserve_exact(wanted - self.body.len());
        true
    }

    /// Releases unused capacity.
    fn shrink(&mut self) {
        let had = self.body.capacity();
        self.body.shrink_to_fit();
        if let Some(kept) = &mut self.kept {
            kept.give(had.saturating_sub(self.body.capacity()));
        }
    }
}

/// A reservation of bytes, released when dropped.
#[derive(Debug)]
struct HeldBytes {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl HeldBytes {
    /// `false` if there is no space left.
    fn take(&mut self, bytes: usize) -> bool {
        if self.all.load(Ordering::Relaxed) + bytes > BYTES_MAX {
            return false;
        }
        self.always(bytes);
        true
    }

    fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.all.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }

    fn always(&mut self, bytes: usize) {
        self.all.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Selects the exchanges to record: a burst up to the limit, and then an even rate.
#[derive(Debug)]
struct KeepRate {
    began: Instant,
    /// When all selected exchanges would have come at the even rate, in nanoseconds since `began`.
    even_at: AtomicU64,
}

impl KeepRate {
    fn new(began: Instant) -> Self {
        Self {
            began,
            even_at: AtomicU64::new(0),
        }
    }

    fn lets_through(&self, now: Instant) -> bool {
        const GAP: u64 = KEPT_EVERY.as_nanos() as u64;
        let since = now.saturating_duration_since(self.began).as_nanos();
        let now = u64::try_from(since).unwrap_or(u64::MAX / 2);
        let latest = now + GAP * (KEPT_MAX as u64 - 1);
        self.even_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |even_at| {
                (even_at <= latest).then(|| even_at.max(now) + GAP)
            })
            .is_ok()
    }
}

/// Number of exchanges since the last clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Exchanges that have ended or are not recorded.
    pub seen: u64,
    /// Exchanges among them above the rate limit.
    pub not_kept: u64,
}

/// Why a request was not replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// It is not recorded, or no longer.
    Unknown,
    /// Its body is recorded only in part.
    Cut,
    /// It switched to another protocol.
    Upgraded,
    /// It was changed into something that is not a valid request, for this reason.
    Invalid(&'static str),
    /// The service did not respond, for this reason.
    Away(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the request is no longer kept"),
            Self::Cut => f.write_str("the body was too long to keep"),
            Self::Upgraded => f.write_str("a request that switched protocols cannot be replayed"),
            Self::Invalid(why) => write!(f, "the edited request is invalid: {why}"),
            Self::Away(why) => write!(f, "the service did not respond: {why}"),
        }
    }
}

impl std::error::Error for ReplayError {}

impl Exchanges {
    /// Creates an empty record.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            bytes: Arc::default(),
            pace: KeepRate::new(Instant::now()),
            not_kept: AtomicU64::new(0),
        }
    }

    /// The sustained rate limit of recorded exchanges, per second.
    pub const fn kept_per_second() -> u64 {
        1_000 / KEPT_EVERY.as_millis() as u64
    }

    /// The number of exchanges.
    pub fn counts(&self) -> Counts {
        let not_kept = self.not_kept.load(Ordering::Relaxed);
        let state = self.lock();
        Counts {
            seen: state.last_id - state.cleared_id + not_kept,
            not_kept,
        }
    }

    /// The recorded exchanges, newest first.
    pub fn recent(&self) -> Vec<Arc<Exchange>> {
        self.newest(usize::MAX, |_| true)
    }

    /// The newest `limit` recorded exchanges that `wanted` accepts, newest first.
    pub fn newest(
        &self,
        limit: usize,
        mut wanted: impl FnMut(&Exchange) -> bool,
    ) -> Vec<Arc<Exchange>> {
        let state = self.lock();
        let kept = state.kept.iter().rev();
        kept.filter(|it| wanted(it)).take(limit).cloned().collect()
    }

    /// A recorded exchange by id.
    pub fn get(&self, id: u64) -> Option<Arc<Exchange>> {
        let state = self.lock();
        let at = state
            .kept
            .binary_search_by_key(&id, |exchange| exchange.id)
            .ok()?;
        state.kept.get(at).cloned()
    }

    /// Removes all recorded exchanges.
    pub fn clear(&self) {
        let mut state = self.lock();
        let forgotten = std::mem::take(&mut state.kept);
        state.cleared_id = state.last_id;
        self.not_kept.store(0, Ordering::Relaxed);
        drop(state);
        drop(forgotten);
    }

    /// Whether to record a new exchange. Counts it if not.
    pub(crate) fn takes(&self, now: Instant) -> bool {
        let takes = self.pace.lets_through(now);
        if !takes {
            self.not_kept.fetch_add(1, Ordering::Relaxed);
        }
        takes
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Records a finished exchange and assigns its id.
    pub(crate) fn keep(&self, mut exchange: Exchange) -> u64 {
        exchange.request.shrink();
        exchange.response.shrink();
        let mut state = self.lock();
        state.last_id += 1;
        exchange.id = state.last_id;
        state.kept.push_back(Arc::new(exchange));
        while state.kept.len() > KEPT_MAX
            || (state.kept.len() > 1 && self.bytes.load(Ordering::Relaxed) > BYTES_USUAL)
        {
            state.kept.pop_front();
        }
        state.last_id
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::ManualClock;

    use super::*;

    fn exchange(all: &Exchanges, body: usize) -> Exchange {
        let mut request = Message::default();
        request.begin(b"POST / HTTP/1.1\r\n\r\n".to_vec(), all);
        for piece in vec![b'x'; body].chunks(1000) {
            request.append(piece);
        }
        Exchange {
            id: 0,
            url: String::new(),
            endpoint: Arc::new(Endpoint::for_tests()),
            client: String::new(),
            started_at: all.now(),
            took: Duration::ZERO,
            method: "POST".into(),
            path: "/".into(),
            request,
            status: None,
            response: Message::default(),
            replay_of: None,
            error: None,
        }
    }

    #[test]
    fn the_newest_are_kept_and_memory_has_an_end() {
        let all = Exchanges::new(Arc::new(ManualClock::at(Timestamp::from_unix_seconds(0))));
        for _ in 0..KEPT_MAX + 10 {
            all.keep(exchange(&all, 100));
        }
        let recent = all.recent();
        assert_eq!(
            (recent.len(), recent[0].id),
            (KEPT_MAX, KEPT_MAX as u64 + 10)
        );
        assert!(all.get(10).is_none());
        assert_eq!(all.get(11).unwrap().id, 11);
        drop(recent);

        for _ in 0..KEPT_MAX {
            all.keep(exchange(&all, BODY_BYTES_MAX));
            assert!(all.bytes.load(Ordering::Relaxed) <= BYTES_MAX);
        }
        assert!(all.recent().len() < 100);
        assert!(all.recent()[0].request.is_whole());
        // Many open exchanges use no more, however they grow.
        let open: Vec<Exchange> = (0..2 * KEPT_MAX).map(|_| exchange(&all, 65_000)).collect();
        let taken: usize = open.iter().map(|it| it.request.body.capacity()).sum();
        assert!(taken <= BYTES_MAX, "{taken}");
        drop(open);
        all.clear();
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn as_many_as_can_be_shown_are_kept_at_once_and_then_some_of_each_second() {
        let all = Exchanges::new(Arc::new(ManualClock::at(Timestamp::from_unix_seconds(0))));
        let began = Instant::now();
        let takes = |n: u64, at: Duration| (0..n).filter(|_| all.takes(began + at)).count();
        assert_eq!(takes(2_000, Duration::ZERO), KEPT_MAX);
        let not_kept = 2_000 - KEPT_MAX as u64;
        let seen = not_kept;
        assert_eq!(all.counts(), Counts { seen, not_kept });
        // At an even rate, however many come.
        let mut kept = 0;
        for millis in 0..1_000 {
            kept += takes(30, Duration::from_millis(millis));
        }
        assert!((199..=201).contains(&kept), "{kept}");
        // After a pause, the full burst is available again, and no more.
        assert_eq!(takes(2_000, Duration::from_secs(60)), KEPT_MAX);
        // Everything is recorded if it comes slowly.
        let mut at = Duration::from_secs(120);
        for _ in 0..5_000 {
            assert_eq!(takes(1, at), 1);
            at += KEPT_EVERY;
        }
        all.clear();
        let (seen, not_kept) = (0, 0);
        assert_eq!(all.counts(), Counts { seen, not_kept });
    }

    #[test]
    fn a_long_body_is_cut_and_says_so() {
        let all = Exchanges::new(Arc::new(ManualClock::at(Timestamp::from_unix_seconds(0))));
        let cut = exchange(&all, BODY_BYTES_MAX + 1);
        assert!(!cut.request.is_whole());
        assert_eq!(cut.request.body.len(), BODY_BYTES_MAX);
        assert_eq!(cut.request.body_bytes, BODY_BYTES_MAX as u64 + 1);
    }
}
