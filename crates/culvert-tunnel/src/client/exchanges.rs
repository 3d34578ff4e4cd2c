//! Recent requests and their responses, kept for whoever looks, within a limit of memory and of work: those
//! that come faster than anybody reads are counted instead.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use culvert_base::{Clock, Timestamp};
use culvert_http::http1::follow;

/// Exchanges that are kept.
const KEPT_MAX: usize = 500;
/// Between two that are kept, where more than [`KEPT_MAX`] came at once: 200 a second.
const KEPT_EVERY: Duration = Duration::from_millis(5);
/// Bytes that heads and bodies take, those of exchanges that are still going on included.
const BYTES_MAX: usize = 8 << 20;
/// Beyond it the oldest are forgotten.
const BYTES_USUAL: usize = 4 << 20;
/// The first memory of a body, which doubles when it is full.
const BODY_BYTES_MIN: usize = 1 << 10;
/// Bytes of one body that are kept.
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
    /// Of those that were forgotten on demand.
    cleared_id: u64,
    /// Oldest first.
    kept: VecDeque<Arc<Exchange>>,
}

/// A request and what came back.
#[derive(Debug)]
pub struct Exchange {
    /// Counts from one.
    pub id: u64,
    /// Public URL of the endpoint.
    pub url: String,
    /// Which of the agent's endpoints it is.
    pub(crate) endpoint: usize,
    /// `ip:port` of the client.
    pub client: String,
    /// When its first byte came.
    pub started_at: Timestamp,
    /// From there to the last byte of the response.
    pub took: Duration,
    /// Value as sent.
    pub method: String,
    /// With its query.
    pub path: String,
    /// The request.
    pub request: Message,
    /// Of the response; `None` if none came.
    pub status: Option<u16>,
    /// What came back.
    pub response: Message,
    /// The exchange whose request was sent again.
    pub replay_of: Option<u64>,
    /// Why the service gave no whole response. `None` for a response that arrived whole.
    pub error: Option<String>,
}

/// A head and as much of its body as is kept, as they travelled.
#[derive(Debug, Default)]
pub struct Message {
    /// First line and fields, with the empty line at the end.
    pub head: Vec<u8>,
    /// Beginning of the body, with the lines of its chunks if it came in chunks.
    pub body: Vec<u8>,
    /// How long that was altogether.
    pub body_bytes: u64,
    kept: Option<HeldBytes>,
}

impl Message {
    /// Whether all of the body is there.
    pub fn is_whole(&self) -> bool {
        self.body.len() as u64 == self.body_bytes
    }

    /// The kept part of the body without the lines of chunks.
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

    /// Makes room for more of the body. The whole memory counts, and not only the bytes in it.
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

    /// Gives back memory that nothing is in.
    fn shrink(&mut self) {
        let had = self.body.capacity();
        self.body.shrink_to_fit();
        if let Some(kept) = &mut self.kept {
            kept.give(had.saturating_sub(self.body.capacity()));
        }
    }
}

/// Bytes that count until they are dropped.
#[derive(Debug)]
struct HeldBytes {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl HeldBytes {
    /// `false` if there is no room for as many.
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

/// Says which of many are kept: as many at once as there is room for, and then one at a time, evenly.
#[derive(Debug)]
struct KeepRate {
    began: Instant,
    /// Nanoseconds from there to when all that were let through would have come one at a time.
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

/// How many exchanges there were since the last time that all were forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that are over, and those that are not kept.
    pub seen: u64,
    /// Those of them that came too fast to be kept.
    pub not_kept: u64,
}

/// Why a request was not sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// It is not kept, or not any more.
    Unknown,
    /// Only the beginning of its body was kept.
    Cut,
    /// It began something that is no exchange of messages.
    Upgraded,
    /// The service did not answer; why.
    Away(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the request is no longer kept"),
            Self::Cut => f.write_str("the body was too long to keep"),
            Self::Upgraded => f.write_str("a request that switched protocols cannot be replayed"),
            Self::Away(why) => write!(f, "the service did not respond: {why}"),
        }
    }
}

impl std::error::Error for ReplayError {}

impl Exchanges {
    /// None so far.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            bytes: Arc::default(),
            pace: KeepRate::new(Instant::now()),
            not_kept: AtomicU64::new(0),
        }
    }

    /// How many of them are kept at most of each second, if it goes on for long.
    pub const fn kept_per_second() -> u64 {
        1_000 / KEPT_EVERY.as_millis() as u64
    }

    /// How many there were.
    pub fn counts(&self) -> Counts {
        let not_kept = self.not_kept.load(Ordering::Relaxed);
        let state = self.lock();
        Counts {
            seen: state.last_id - state.cleared_id + not_kept,
            not_kept,
        }
    }

    /// Those that are kept, newest first.
    pub fn recent(&self) -> Vec<Arc<Exchange>> {
        self.lock().kept.iter().rev().cloned().collect()
    }

    /// One of them.
    pub fn get(&self, id: u64) -> Option<Arc<Exchange>> {
        let state = self.lock();
        let at = state
            .kept
            .binary_search_by_key(&id, |exchange| exchange.id)
            .ok()?;
        state.kept.get(at).cloned()
    }

    /// Forgets them all.
    pub fn clear(&self) {
        let mut state = self.lock();
        let forgotten = std::mem::take(&mut state.kept);
        state.cleared_id = state.last_id;
        self.not_kept.store(0, Ordering::Relaxed);
        drop(state);
        drop(forgotten);
    }

    /// Whether one that begins is to be kept. It is counted if not.
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

    /// Keeps one that is over, and gives it its number.
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
            endpoint: 0,
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
        // Many that go on together take no more, however they grow.
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
        // Evenly, however many come.
        let mut kept = 0;
        for millis in 0..1_000 {
            kept += takes(30, Duration::from_millis(millis));
        }
        assert!((199..=201).contains(&kept), "{kept}");
        // After a rest there is room for all again, and for no more.
        assert_eq!(takes(2_000, Duration::from_secs(60)), KEPT_MAX);
        // Nothing is left out of what comes slowly.
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
