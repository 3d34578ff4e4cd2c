//! Overload: how much of its resources the process uses, and what the edge sheds (reliability 5).
//!
//! The highest of four measures counts: memory, open files, scheduling delay of tasks, write latency of the store.
//! The store alone never makes the edge reject traffic, which needs no store.
//!
//! A level is entered as soon as its threshold is reached. It drops by one when usage was ten points below the
//! threshold for two seconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How often usage is measured.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long usage must be lower before the level drops.
const CALM_FOR: Duration = Duration::from_secs(2);
/// Points below its threshold at which a level may drop.
const CALM_BELOW: u64 = 10;
/// Measurements in which tasks must have waited: a single delay is no overload.
const LOOKS_RECENT: usize = 10;
/// The highest percentage of a slow store, below [`Level::Full`].
const STORE_PERCENT_MAX: u64 = 94;
/// How long usage is [`Level::Full`] before events are dropped.
const DROPS_AFTER: Duration = Duration::from_secs(1);
/// How long memory is [`Level::Full`] before the exchange that holds most memory ends, and the pause before the next.
const ENDS_AFTER: Duration = Duration::from_secs(2);
const ENDS_EVERY: Duration = Duration::from_secs(1);
/// How long a TLS handshake waits for its turn at [`Level::Tight`].
pub const TURN_WHEN_TIGHT: Duration = Duration::from_secs(1);

/// The overload level, and what the edge sheds at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is shed.
    Calm = 0,
    /// Half as many idle connections to upstreams are kept. Nothing new is compressed or cached.
    Busy = 1,
    /// Idle connections close as necessary, the oldest of the source with the most connections first. Events lack header
    /// maps and policy logs, TLS handshakes wait only briefly, and new agents wait until the level drops.
    Tight = 2,
    /// New requests get 503, and new connections are closed. After some time events are dropped, and exchanges end, those
    /// that hold most memory first.
    Full = 3,
}

impl Level {
    const ALL: [(Self, u64); 4] = [
        (Self::Calm, 0),
        (Self::Busy, 70),
        (Self::Tight, 85),
        (Self::Full, 95),
    ];

    /// The level with this number. Numbers above the highest mean the highest.
    pub fn of(number: u8) -> Self {
        match number {
            0 => Self::Calm,
            1 => Self::Busy,
            2 => Self::Tight,
            _ => Self::Full,
        }
    }

    /// The percentage at which it is entered.
    fn entry(self) -> u64 {
        Self::ALL
            .iter()
            .find(|(level, _)| *level == self)
            .map_or(0, |(_, entry)| *entry)
    }

    /// The highest level of a percentage.
    fn at(percent: u64) -> Self {
        Self::ALL
            .iter()
            .rev()
            .find(|(_, entry)| *entry <= percent)
            .map_or(Self::Calm, |(level, _)| *level)
    }
}

/// The level over time.
#[derive(Debug)]
pub struct Pressure {
    level: Level,
    /// When usage became low enough for the level to drop.
    calm_since: Option<Instant>,
    /// When usage, and that of memory alone, reached [`Level::Full`].
    full_since: Option<Instant>,
    memory_full_since: Option<Instant>,
    /// When an exchange was ended.
    ended_at: Option<Instant>,
}

/// The decision after a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The level from now on.
    pub level: Level,
    /// Whether events are dropped.
    pub drops_events: bool,
    /// Whether an exchange is to end for its memory.
    pub ends_one: bool,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            level: Level::Calm,
            calm_since: None,
            full_since: None,
            memory_full_since: None,
            ended_at: None,
        }
    }
}

impl Pressure {
    /// Decides after a measurement.
    pub fn observe(&mut self, shares: Shares, now: Instant) -> Decision {
        let level = self.level(shares.largest(), now);
        let since = |since: &mut Option<Instant>, percent| {
            let is_full = percent >= Level::Full.entry();
            *since = is_full.then(|| since.unwrap_or(now));
            since.map(|since| now.saturating_duration_since(since))
        };
        let full = since(&mut self.full_since, shares.largest());
        let memory_full = since(&mut self.memory_full_since, shares.memory);
        let was_now = |at: Instant| now.saturating_duration_since(at) < ENDS_EVERY;
        let ends_one = memory_full.is_some_and(|full| full >= ENDS_AFTER)
            && !self.ended_at.is_some_and(was_now);
        if ends_one {
            self.ended_at = Some(now);
        }
        Decision {
            level,
            drops_events: full.is_some_and(|full| full >= DROPS_AFTER),
            ends_one,
        }
    }

    fn level(&mut self, percent: u64, now: Instant) -> Level {
        let reached = Level::at(percent);
        if reached > self.level {
            self.level = reached;
        }
        let is_calm = percent + CALM_BELOW <= self.level.entry();
        if !is_calm {
            self.calm_since = None;
            return self.level;
        }
        let since = *self.calm_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= CALM_FOR {
            self.level = Level::of((self.level as u8).saturating_sub(1));
            self.calm_since = None;
        }
        self.level
    }
}

/// Returns the current write latency of the store.
pub type WriteDelay = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Usage in percent of the limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shares {
    /// Of the memory.
    pub memory: u64,
    /// Of the open files.
    pub files: u64,
    /// Of the time that tasks may wait before they run.
    pub run_queue: u64,
    /// Of the time that a write to the store may take.
    pub store: u64,
}

impl Shares {
    /// The usage of memory and files, of `memory_bytes` and `files`. The kernel holds `kernel_bytes` for this process
    /// beside its memory. A value that the system does not report counts as 0.
    pub fn of_process(memory_bytes: u64, kernel_bytes: u64, files: u64) -> Self {
        let percent = |used: Option<u64>, of| used.map_or(0, |used| percent(used.into(), of));
        Self {
            memory: percent(
                memory().map(|bytes| bytes.saturating_add(kernel_bytes)),
                memory_bytes.into(),
            ),
            files: percent(open_files(), files.into()),
            ..Self::default()
        }
    }

    /// Adds the scheduling delay of tasks and the write latency, each with its limit.
    pub fn and_waits(
        self,
        (run_queue, run_queue_max): (Duration, Duration),
        (store, store_max): (Duration, Duration),
    ) -> Self {
        let percent = |took: Duration, of: Duration| percent(took.as_nanos(), of.as_nanos());
        Self {
            run_queue: percent(run_queue, run_queue_max),
            store: percent(store, store_max).min(STORE_PERCENT_MAX),
            ..self
        }
    }

    /// The highest.
    pub fn largest(self) -> u64 {
        let Self {
            memory,
            files,
            run_queue,
            store,
        } = self;
        memory.max(files).max(run_queue).max(store)
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            memory,
            files,
            run_queue,
            store,
        } = self;
        write!(
            f,
            "memory {memory} %, files {files} %, run queue {run_queue} %, store {store} %"
        )
    }
}

fn percent(used: u128, of: u128) -> u64 {
    u64::try_from(used.saturating_mul(100) / of.max(1)).unwrap_or(u64::MAX)
}

/// A connection that is idle.
#[derive(Clone, Copy, Debug)]
pub struct IdleConnection {
    /// Its source.
    pub source: IpAddr,
    /// When it became idle.
    pub since: Instant,
}

/// What determines how many idle connections close.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Open files, and their limit.
    pub files: (u64, u64),
    /// Percent of the memory in use.
    pub memory: u64,
    /// Whether the level is at least [`Level::Tight`]: then fewer connections may stay.
    pub is_tight: bool,
    /// Open connections, and their limit.
    pub connections: (usize, usize),
}

impl Demand {
    /// The number that lets the level of files drop, or that leaves capacity for new connections if the limit is near.
    /// For memory, some at a time until the next measurement.
    pub fn excess(self) -> usize {
        let (open, most) = self.files;
        let (entry, left) = (Level::Tight.entry(), Level::Tight.entry() - CALM_BELOW);
        let from = if self.is_tight { left + 1 } else { entry };
        let files = if percent(open.into(), most.into()) < from {
            0
        } else {
            open.saturating_sub(most / 100 * left)
        };
        let (open, most) = self.connections;
        let connections = if open < most - most / 32 {
            0
        } else {
            open.saturating_sub(most - most / 16)
        };
        let memory = if self.memory < entry {
            0
        } else {
            (open / 100).max(16)
        };
        usize::try_from(files)
            .unwrap_or(usize::MAX)
            .max(connections)
            .max(memory)
    }
}

/// The `count` idle connections that close: repeatedly the one that is idle longest, of the source with the most
/// connections. `held` has the number of connections of each source.
pub fn victims(idle: &[IdleConnection], held: &HashMap<IpAddr, usize>, count: usize) -> Vec<usize> {
    let mut by_source: HashMap<IpAddr, Vec<usize>> = HashMap::new();
    for (at, one) in idle.iter().enumerate() {
        by_source.entry(one.source).or_default().push(at);
    }
    let since = |at: &usize| idle.get(*at).map(|one| one.since);
    let oldest = |own: &[usize]| Reverse(own.last().and_then(since));
    let mut greediest = BinaryHeap::new();
    for (source, own) in &mut by_source {
        // The oldest last.
        own.sort_by_key(|at| Reverse(since(at)));
        let holds = held.get(source).copied().unwrap_or_default();
        greediest.push((holds.max(own.len()), oldest(own), *source));
    }
    let mut chosen = Vec::new();
    while chosen.len() < count
        && let Some((holds, _, source)) = greediest.pop()
    {
        let Some(own) = by_source.get_mut(&source) else {
            continue;
        };
        chosen.extend(own.pop());
        if !own.is_empty() {
            greediest.push((holds - 1, oldest(own), source));
        }
    }
    chosen
}

/// The scheduling delay of tasks, on the slowest thread: the minimum of the last second, so that only a standing queue
/// counts.
#[derive(Debug)]
pub struct RunQueue {
    probes: Vec<Probe>,
    recent: VecDeque<Duration>,
}

/// A task that records when it runs.
#[derive(Debug)]
struct Probe {
    sent: Instant,
    waited: Waited,
}

/// Records how long a probe waited.
#[derive(Clone, Debug, Default)]
pub struct Waited(Arc<AtomicU64>);

impl Waited {
    /// The probe runs.
    pub fn ran(&self, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanos.max(1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        let nanos = self.0.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

impl RunQueue {
    /// Creates the measurement for this number of threads.
    pub fn new(threads: usize, now: Instant) -> Self {
        let ran = |_| {
            let waited = Waited::default();
            waited.ran(Duration::ZERO);
            Probe { sent: now, waited }
        };
        Self {
            probes: (0..threads).map(ran).collect(),
            recent: VecDeque::with_capacity(LOOKS_RECENT),
        }
    }

    /// The current delay. Sends the next probes, one to each thread.
    pub fn measure(&mut self, now: Instant, send: impl Fn(usize, Waited)) -> Duration {
        let mut longest = Duration::ZERO;
        for (thread, probe) in self.probes.iter_mut().enumerate() {
            let so_far = now.saturating_duration_since(probe.sent);
            longest = longest.max(probe.waited.get().unwrap_or(so_far));
            if probe.waited.get().is_some() {
                *probe = Probe {
                    sent: now,
                    waited: Waited::default(),
                };
                send(thread, probe.waited.clone());
            }
        }
        if self.recent.len() == LOOKS_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(longest);
        if self.recent.len() < LOOKS_RECENT {
            return Duration::ZERO;
        }
        self.recent.iter().min().copied().unwrap_or_default()
    }
}

/// Private memory of the process.
fn memory() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared).saturating_mul(PAGE_BYTES))
}

/// The number of open files, if the system reports it.
pub fn open_files() -> Option<u64> {
    Some(std::fs::metadata("/proc/self/fd").ok()?.len())
}

/// The limit of open files: four fifths of the system's limit, the rest is a reserve.
pub fn files_max() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|soft| soft.parse::<u64>().ok());
    soft.map_or(u64::MAX, |soft| soft / 5 * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_levels_rise_immediately_and_fall_one_by_one() {
        let start = Instant::now();
        let mut pressure = Pressure::default();
        let mut look =
            |percent, millis| pressure.level(percent, start + Duration::from_millis(millis));
        assert_eq!(look(69, 0), Level::Calm);
        assert_eq!(look(70, 100), Level::Busy);
        assert_eq!(look(96, 200), Level::Full);
        // Not low enough, or not long enough.
        assert_eq!(look(86, 300), Level::Full);
        assert_eq!(look(85, 400), Level::Full);
        assert_eq!(look(86, 2_000), Level::Full);
        assert_eq!(look(10, 3_000), Level::Full);
        assert_eq!(look(10, 4_999), Level::Full);
        assert_eq!(look(10, 5_000), Level::Tight);
        assert_eq!(look(10, 6_000), Level::Tight);
        assert_eq!(look(10, 8_000), Level::Busy);
        assert_eq!(look(10, 8_100), Level::Busy);
        assert_eq!(look(10, 10_100), Level::Calm);
        assert_eq!(look(10, 60_000), Level::Calm);
    }

    #[test]
    fn sustained_pressure_drops_events_then_ends_exchanges() {
        let start = Instant::now();
        let mut pressure = Pressure::default();
        let mut look = |memory, files, millis| {
            let shares = Shares {
                memory,
                files,
                ..Shares::default()
            };
            let decision = pressure.observe(shares, start + Duration::from_millis(millis));
            (decision.drops_events, decision.ends_one)
        };
        for (memory, files, millis, sheds) in [
            (95, 0, 0, (false, false)),
            (95, 0, 999, (false, false)),
            (95, 0, 1_000, (true, false)),
            (95, 0, 1_999, (true, false)),
            (95, 0, 2_000, (true, true)),
            // One exchange after another ends.
            (95, 0, 2_100, (true, false)),
            (95, 0, 3_000, (true, true)),
            // After a moment below, the time starts again.
            (94, 0, 3_100, (false, false)),
            (95, 0, 3_200, (false, false)),
            (95, 0, 5_200, (true, true)),
            // Ending an exchange frees memory only, so other measures do not cause it.
            (94, 95, 6_200, (true, false)),
            (94, 95, 9_200, (true, false)),
        ] {
            assert_eq!(look(memory, files, millis), sheds, "{millis}");
        }
    }

    #[test]
    fn connections_are_closed_oldest_first_from_the_largest_source() {
        let start = Instant::now();
        let (greedy, modest, lone) = (
            IpAddr::from([192, 0, 2, 1]),
            IpAddr::from([192, 0, 2, 2]),
            IpAddr::from([192, 0, 2, 3]),
        );
        let idle = |source, age: u64| IdleConnection {
            source,
            since: start + Duration::from_secs(100 - age),
        };
        // The oldest of all is the only one of its source.
        let mut all = vec![idle(lone, 99), idle(modest, 50), idle(modest, 60)];
        all.extend((0..5).map(|age| idle(greedy, age)));
        let held = HashMap::from([(greedy, 7), (modest, 2), (lone, 1)]);
        assert_eq!(victims(&all, &held, 0), [0; 0]);
        assert_eq!(victims(&all, &held, 3), [7, 6, 5]);
        // Two active ones of the greedy source stay, so that both sources have two in the end.
        assert_eq!(victims(&all, &held, 5), [7, 6, 5, 4, 3]);
        let all_of_them = victims(&all, &held, 100);
        assert_eq!(all_of_them.len(), all.len());
        // Of two sources with as many, the one with the older connection.
        assert_eq!(all_of_them[5..], [2, 0, 1]);
    }

    #[test]
    fn idle_connections_are_closed_down_to_the_threshold() {
        let files = |open| Demand {
            files: (open, 16_000),
            memory: 0,
            is_tight: false,
            connections: (0, 16_384),
        };
        assert_eq!(files(12_000).excess(), 0);
        assert_eq!(files(13_599).excess(), 0);
        assert_eq!(files(13_600).excess(), 1_600);
        assert_eq!(files(15_000).excess(), 3_000);
        let is_tight = |open| Demand {
            is_tight: true,
            ..files(open)
        };
        assert_eq!(is_tight(12_159).excess(), 0);
        assert_eq!(is_tight(12_160).excess(), 160);
        let connections = |open, most| Demand {
            files: (0, u64::MAX),
            memory: 0,
            is_tight: false,
            connections: (open, most),
        };
        assert_eq!(connections(15_871, 16_384).excess(), 0);
        assert_eq!(connections(15_872, 16_384).excess(), 512);
        assert_eq!(connections(16_384, 16_384).excess(), 1_024);
        assert_eq!(connections(2, 2).excess(), 0);
        assert_eq!(connections(0, 0).excess(), 0);
        let memory = |memory| Demand {
            files: (0, u64::MAX),
            memory,
            is_tight: false,
            connections: (10_000, 16_384),
        };
        assert_eq!(memory(84).excess(), 0);
        assert_eq!(memory(85).excess(), 100);
    }

    #[test]
    fn memory_and_open_files_of_the_process_are_measured() {
        // If the system reports nothing, nothing is shed.
        if std::path::Path::new("/proc/self/statm").exists() {
            assert!(memory().is_some_and(|bytes| bytes > 0));
            assert!(files_max() < u64::MAX);
        }
        assert_eq!(Shares::of_process(u64::MAX, 0, u64::MAX).largest(), 0);
        assert!(Shares::of_process(1, 0, u64::MAX).largest() >= 100);
        if memory().is_some() {
            let kernel_bytes = u64::MAX / 2;
            let shares = Shares::of_process(u64::MAX, kernel_bytes, u64::MAX);
            assert!(shares.memory >= 49, "{shares}");
        }
    }

    #[test]
    fn the_largest_share_sets_the_level_and_a_slow_store_refuses_no_request() {
        let second = Duration::from_secs(1);
        let (none, some) = ((Duration::ZERO, second), (second / 2, second));
        let shares = |run_queue, store| {
            let shares = Shares {
                memory: 40,
                files: 30,
                ..Shares::default()
            };
            shares.and_waits(run_queue, store).largest()
        };
        assert_eq!(shares(none, none), 40);
        assert_eq!(shares(some, none), 50);
        assert_eq!(shares(none, some), 50);
        assert_eq!(shares((2 * second, second), none), 200);
        let stuck = shares(none, (100 * second, second));
        assert_eq!(Level::at(stuck), Level::Tight);
    }

    #[test]
    fn only_a_standing_run_queue_is_pressure() {
        let start = Instant::now();
        let at = |look: u64| start + Duration::from_millis(100 * look);
        let sent = std::cell::RefCell::new(Vec::new());
        let send = |thread, waited| sent.borrow_mut().push((thread, waited));
        let mut queue = RunQueue::new(2, start);
        // The first thread runs its probes immediately, the second no longer runs any.
        for look in 0..10 {
            queue.measure(at(look), send);
            for (thread, waited) in sent.borrow_mut().drain(..) {
                let waited: Waited = waited;
                if thread == 0 {
                    waited.ran(Duration::from_micros(5));
                }
            }
        }
        // Of ten looks the first saw the second thread wait for nothing.
        assert_eq!(queue.measure(at(10), send), Duration::from_millis(100));
        assert_eq!(queue.measure(at(30), send), Duration::from_millis(200));

        // A thread that is blocked once, for long.
        let mut queue = RunQueue::new(1, start);
        for look in 0..30 {
            let waits = if look == 15 { 5_000 } else { 1 };
            let waited = queue.measure(at(look), |_, waited| {
                waited.ran(Duration::from_millis(waits));
            });
            assert!(waited <= Duration::from_millis(1), "{look}");
        }
    }
}
