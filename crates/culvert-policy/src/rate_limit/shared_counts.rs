//! Counts of rate limits with `scope: cluster`, which nodes exchange.
//!
//! Each node counts the requests that it admits, and sends its changed counts to the others. It decides by its own
//! counts and those received. Nothing here waits for another node, so the nodes together may exceed a limit by the
//! requests that other nodes admit while a count is in transit.
//!
//! Messages contain absolute counts, not differences, so a lost or duplicate message has no lasting effect. A node that
//! reconnects requests all counts from the others.
//!
//! This module is independent of the network: its owner carries messages, at most [`MESSAGE_BYTES_MAX`] bytes each,
//! from [`SharedCounts::outgoing`] of each node to [`SharedCounts::receive`] of all. Windows begin at the same time on all
//! nodes, by a clock that the nodes share.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{Clock, Entropy, Meter};

use crate::rate_limit::fair_table::{Count, FairTable};

/// How often nodes send their changed counts.
pub const TELL_EVERY: Duration = Duration::from_millis(200);
/// Maximum size of a message in bytes.
pub const MESSAGE_BYTES_MAX: usize = 5_800;
/// Maximum number of messages that a node sends at a time.
pub const MESSAGES_MAX: usize = 32;

/// Maximum number of buckets of one action.
pub const BUCKETS_MAX: usize = 65_536;
/// Number of slots of one action, each for displaced and for shared counts.
pub const ASIDE_MAX: usize = 16_384;
/// Maximum number of other nodes in a bucket.
const RUNS_MAX: usize = 64;
/// Maximum number of tables, which other nodes can create here. Each rate limit that has admitted a request on any node
/// has one.
const TABLES_MAX: usize = 4_096;
/// The longest window of a rate limit in seconds.
const WINDOW_SECONDS_MAX: u32 = 86_400;

const VERSION: u8 = 1;
const COUNTS: u8 = 0;
const HELLO: u8 = 1;
const GROUP_BYTES: usize = 22;
const ITEM_BYTES: usize = 36;

/// The requests that one node admitted in a window and in the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WindowCounts {
    window: u64,
    now: u64,
    before: u64,
}

impl WindowCounts {
    /// Both numbers as of a window. Counts of a node whose clock is ahead are included in full.
    fn of(&self, window: u64) -> (u64, u64) {
        if self.window == window {
            (self.now, self.before)
        } else if self.window == window + 1 {
            (self.now.saturating_add(self.before), 0)
        } else if self.window + 1 == window {
            (0, self.now)
        } else {
            (0, 0)
        }
    }

    fn turn_to(&mut self, window: u64) {
        if self.window < window {
            let (now, before) = self.of(window);
            *self = Self {
                window,
                now,
                before,
            };
        }
    }

    fn cover(&mut self, mut other: Self) {
        let window = self.window.max(other.window);
        self.turn_to(window);
        other.turn_to(window);
        self.now = self.now.max(other.now);
        self.before = self.before.max(other.before);
    }
}

/// Requests of one key.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    own: WindowCounts,
    /// The counts of other nodes.
    others: Vec<(u64, WindowCounts)>,
    /// Whether it waits to be sent.
    is_moved: bool,
}

impl Count for Bucket {
    type Now = u64;

    /// A whole window without a request resets the count.
    fn is_over(&self, window: u64) -> bool {
        let mut all = self.others.iter().map(|(_, passed)| passed);
        self.own.window + 1 < window && all.all(|passed| passed.window + 1 < window)
    }

    fn cover(&mut self, other: &Self) {
        self.own.cover(other.own);
        for (run, passed) in &other.others {
            self.merge(*run, *passed);
        }
    }

    fn weight(&self) -> u64 {
        let all = self.others.iter().map(|(_, passed)| passed);
        all.chain([&self.own])
            .map(|passed| passed.now + passed.before)
            .fold(0, u64::saturating_add)
    }
}

impl Bucket {
    /// Admits one request, or returns how long to wait.
    ///
    /// The previous window counts by the share that still overlaps, as if its requests had been
    /// spread evenly.
    pub fn take(&mut self, at: Duration, length: Duration, capacity: u64) -> Result<(), Duration> {
        // A clock that was set back does not reopen an earlier window.
        let window = window_of(at, length).max(self.own.window);
        self.own.turn_to(window);
        let (mut now, mut before) = (self.own.now, self.own.before);
        for (_, passed) in &self.others {
            let (also_now, also_before) = passed.of(window);
            now = now.saturating_add(also_now);
            before = before.saturating_add(also_before);
        }
        let passed = (at.as_secs_f64() / length.as_secs_f64() - window as f64).clamp(0.0, 1.0);
        let weighed = before as f64 * (1.0 - passed) + now as f64;
        if weighed + 1.0 <= capacity as f64 {
            self.own.now += 1;
            return Ok(());
        }
        let left = length.mul_f64(1.0 - passed);
        let excess = weighed + 1.0 - capacity as f64;
        // If only the previous window exceeds the limit, its share falls evenly.
        let fades = (now < capacity && before > 0).then(|| length.mul_f64(excess / before as f64));
        Err(fades.map_or(left, |fades| fades.min(left)))
    }

    /// Records the counts of another node, which never decrease.
    fn merge(&mut self, run: u64, passed: WindowCounts) -> bool {
        if let Some((_, known)) = self.others.iter_mut().find(|(of, _)| *of == run) {
            known.cover(passed);
            return true;
        }
        if self.others.len() >= RUNS_MAX {
            let newest = self.others.iter().map(|(_, passed)| passed.window).max();
            let newest = newest.unwrap_or_default().max(passed.window);
            self.others.retain(|(_, known)| known.window + 1 >= newest);
        }
        let has_room = self.others.len() < RUNS_MAX;
        if has_room {
            self.others.push((run, passed));
        }
        has_room
    }
}

/// The number of the window, of this length, that a time is in.
pub fn window_of(at: Duration, length: Duration) -> u64 {
    u64::try_from(at.as_nanos() / length.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// The buckets of one action, on all nodes.
pub struct SharedTable {
    id: u128,
    window: Duration,
    state: Mutex<State>,
}

struct State {
    buckets: FairTable<Bucket>,
    /// Keys of buckets that wait to be sent, those that have waited longest first.
    moved: VecDeque<u128>,
}

impl SharedTable {
    fn new(id: u128, window: Duration) -> Self {
        Self {
            id,
            window,
            state: Mutex::new(State {
                buckets: FairTable::new(BUCKETS_MAX, ASIDE_MAX),
                moved: VecDeque::new(),
            }),
        }
    }

    /// Writes the changed counts as far as they fit. Returns whether all were written.
    fn write_changes(&self, out: &mut Outgoing) -> bool {
        let mut state = lock(&self.state);
        let State { buckets, moved } = &mut *state;
        while let Some(&key) = moved.front() {
            let Some((bucket, source)) = buckets.get_mut(key) else {
                // The bucket was displaced. Its count is part of the lost counts of its source.
                moved.pop_front();
                continue;
            };
            if !out.put(self, key, source, bucket.own) {
                return false;
            }
            bucket.is_moved = false;
            moved.pop_front();
        }
        true
    }

    fn tell_again(&self) {
        let mut state = lock(&self.state);
        let State { buckets, moved } = &mut *state;
        buckets.each_mut(|key, bucket| {
            if bucket.own.now + bucket.own.before > 0 {
                note_moved(bucket, key, moved);
            }
        });
    }
}

impl fmt::Debug for SharedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable")
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

fn note_moved(bucket: &mut Bucket, key: u128, moved: &mut VecDeque<u128>) {
    // If the list is full, the bucket is added at its next change.
    if !bucket.is_moved && moved.len() < BUCKETS_MAX {
        bucket.is_moved = true;
        moved.push_back(key);
    }
}

/// Counters of the exchange.
#[derive(Debug, Default)]
pub struct CountMeters {
    /// Counts sent to other nodes.
    pub sent: Meter,
    /// Counts received from other nodes.
    pub heard: Meter,
    /// Counts and messages of other nodes that are invalid or do not fit.
    pub refused: Meter,
    /// 1 while the exchange works.
    pub is_up: Meter,
}

/// The counts of rate limits with `scope: cluster`. Clones share them.
#[derive(Clone)]
pub struct SharedCounts(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    /// Identifies this process among all that exchange counts.
    run: u64,
    /// Whether there are other nodes.
    is_joined: AtomicBool,
    /// Whether another node requested all counts.
    is_asked: AtomicBool,
    tables: Mutex<HashMap<u128, Arc<SharedTable>>>,
    /// Number of calls of [`SharedCounts::outgoing`].
    turns: AtomicUsize,
    meters: CountMeters,
}

impl fmt::Debug for SharedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCounts")
            .field("run", &self.0.run)
            .finish_non_exhaustive()
    }
}

impl SharedCounts {
    /// The counts of a node that has sent nothing yet. All nodes use the same `clock`.
    pub fn new(clock: Arc<dyn Clock>, entropy: &dyn Entropy) -> Self {
        Self(Arc::new(Inner {
            clock,
            run: u64::from_le_bytes(entropy.bytes()),
            is_joined: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            tables: Mutex::default(),
            turns: AtomicUsize::new(0),
            meters: CountMeters::default(),
        }))
    }

    /// Counters of the exchange between nodes.
    pub fn meters(&self) -> &CountMeters {
        &self.0.meters
    }

    /// Starts the exchange. The returned message requests all counts from the other nodes.
    pub fn join(&self) -> Vec<u8> {
        self.0.is_joined.store(true, Ordering::Relaxed);
        self.0.is_asked.store(true, Ordering::Relaxed);
        self.head(HELLO)
    }

    /// An empty message, with which the owner checks that messages arrive.
    pub fn beat(&self) -> Vec<u8> {
        self.head(COUNTS)
    }

    fn head(&self, kind: u8) -> Vec<u8> {
        let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
        message.extend([VERSION, kind]);
        message.extend(self.0.run.to_be_bytes());
        message
    }

    /// Messages with the changed counts, for all other nodes. Counts that do not fit wait for the next call.
    pub fn outgoing(&self) -> Vec<Vec<u8>> {
        let mut tables: Vec<Arc<SharedTable>> = {
            let mut tables = lock(&self.0.tables);
            let at = self.now();
            tables.retain(|_, table| {
                // An action in use also holds the table.
                Arc::strong_count(table) > 1
                    || !lock(&table.state)
                        .buckets
                        .is_over(window_of(at, table.window))
            });
            tables.values().cloned().collect()
        };
        if self.0.is_asked.swap(false, Ordering::Relaxed) {
            tables.iter().for_each(|table| table.tell_again());
        }
        let mut out = Outgoing {
            counts: self,
            messages: Vec::new(),
            group: None,
            sent: 0,
        };
        // Each table first gets an equal part. Each call begins with another table.
        let turn = self.0.turns.fetch_add(1, Ordering::Relaxed);
        let begin = turn.checked_rem(tables.len()).unwrap_or(0);
        tables.rotate_left(begin);
        let part = MESSAGES_MAX * (MESSAGE_BYTES_MAX / ITEM_BYTES) / tables.len().max(1);
        let mut left = Vec::new();
        for table in &tables {
            out.group = None;
            out.sent = part.max(1);
            if !table.write_changes(&mut out) {
                left.push(table);
            }
        }
        for table in left {
            out.group = None;
            out.sent = usize::MAX;
            table.write_changes(&mut out);
        }
        out.messages
    }

    /// Processes the message of a node, also of this one. An error in a message ends its processing.
    pub fn receive(&self, message: &[u8]) {
        if self.read(message).is_none() {
            self.0.meters.refused.up();
        }
    }

    fn read(&self, message: &[u8]) -> Option<()> {
        let mut rest = message.get(..MESSAGE_BYTES_MAX.min(message.len()))?;
        let [version, kind] = *take(&mut rest)?;
        let run = u64::from_be_bytes(*take(&mut rest)?);
        if version != VERSION || message.len() > MESSAGE_BYTES_MAX {
            return None;
        }
        if run == self.0.run {
            return Some(());
        }
        if kind == HELLO {
            self.0.is_asked.store(true, Ordering::Relaxed);
            return Some(());
        }
        if kind != COUNTS {
            return None;
        }
        while !rest.is_empty() {
            let id = u128::from_be_bytes(*take(&mut rest)?);
            let seconds = u32::from_be_bytes(*take(&mut rest)?);
            let items = u16::from_be_bytes(*take(&mut rest)?);
            if !(1..=WINDOW_SECONDS_MAX).contains(&seconds) {
                return None;
            }
            let window = Duration::from_secs(seconds.into());
            let table = self.heard_of(id, window)?;
            let current = window_of(self.now(), window);
            let mut state = lock(&table.state);
            for _ in 0..items {
                let key = u128::from_be_bytes(*take(&mut rest)?);
                let source = u64::from_be_bytes(*take(&mut rest)?);
                let number = |rest: &mut &[u8]| Some(u32::from_be_bytes(*take(rest)?).into());
                let passed = WindowCounts {
                    window: number(&mut rest)?,
                    now: number(&mut rest)?,
                    before: number(&mut rest)?,
                };
                // Counts of expired windows have no effect, and counts of windows far ahead would never
                // expire.
                let is_of_now = passed.window + 1 >= current && passed.window <= current + 1;
                if is_of_now && state.buckets.count(key, source, current).merge(run, passed) {
                    self.0.meters.heard.up();
                } else {
                    self.0.meters.refused.up();
                }
            }
        }
        Some(())
    }

    fn heard_of(&self, id: u128, window: Duration) -> Option<Arc<SharedTable>> {
        let mut tables = lock(&self.0.tables);
        match tables.get(&id) {
            Some(table) => (table.window == window).then(|| table.clone()),
            None if tables.len() < TABLES_MAX => {
                let table = Arc::new(SharedTable::new(id, window));
                tables.insert(id, table.clone());
                Some(table)
            }
            None => None,
        }
    }

    /// The buckets of an action. The window is part of the table's id.
    pub fn table(&self, id: u128, window: Duration) -> Arc<SharedTable> {
        let mut tables = lock(&self.0.tables);
        let made = || Arc::new(SharedTable::new(id, window));
        tables.entry(id).or_insert_with(made).clone()
    }

    /// Admits one request of a source for a key, or returns how long to wait.
    pub fn take(
        &self,
        table: &SharedTable,
        key: u128,
        source: u64,
        capacity: u64,
    ) -> Result<(), Duration> {
        let at = self.now();
        let mut state = lock(&table.state);
        let State { buckets, moved } = &mut *state;
        let bucket = buckets.count(key, source, window_of(at, table.window));
        let taken = bucket.take(at, table.window, capacity);
        if taken.is_ok() && self.0.is_joined.load(Ordering::Relaxed) {
            note_moved(bucket, key, moved);
        }
        taken
    }

    fn now(&self) -> Duration {
        let nanos = self.0.clock.now().unix_nanos();
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// Messages that are being written.
struct Outgoing<'c> {
    counts: &'c SharedCounts,
    messages: Vec<Vec<u8>>,
    /// The position of the item count of the current group in the last message.
    group: Option<(usize, u16)>,
    /// How many more items the table may write.
    sent: usize,
}

impl Outgoing<'_> {
    fn put(&mut self, table: &SharedTable, key: u128, source: u64, passed: WindowCounts) -> bool {
        if self.sent == 0 {
            return false;
        }
        let group_bytes = if self.group.is_some() { 0 } else { GROUP_BYTES };
        let wanted = group_bytes + ITEM_BYTES;
        let has_room = |message: &Vec<u8>| message.len() + wanted <= MESSAGE_BYTES_MAX;
        if !self.messages.last().is_some_and(has_room) {
            if self.messages.len() >= MESSAGES_MAX {
                return false;
            }
            self.messages.push(self.counts.head(COUNTS));
            self.group = None;
        }
        let Some(message) = self.messages.last_mut() else {
            return false;
        };
        let (place, items) = self.group.unwrap_or_else(|| {
            message.extend(table.id.to_be_bytes());
            let seconds = u32::try_from(table.window.as_secs()).unwrap_or(u32::MAX);
            message.extend(seconds.to_be_bytes());
            message.extend([0, 0]);
            (message.len() - 2, 0)
        });
        message.extend(key.to_be_bytes());
        message.extend(source.to_be_bytes());
        for number in [passed.window, passed.now, passed.before] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            message.extend(number.to_be_bytes());
        }
        let items = items + 1;
        if let Some(place) = message.get_mut(place..place + 2) {
            place.copy_from_slice(&items.to_be_bytes());
        }
        self.group = Some((place, items));
        self.sent -= 1;
        self.counts.0.meters.sent.up();
        true
    }
}

fn take<'m, const N: usize>(rest: &mut &'m [u8]) -> Option<&'m [u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(taken)
}

/// The shared table of an action, which is created with its first request.
pub type LazyTable = OnceLock<Arc<SharedTable>>;

#[cfg(test)]
mod tests;
