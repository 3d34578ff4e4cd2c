//! The part of an edge's shared state that every module may use: the counters, the recorder, the overload
//! level, the lifecycle phase and the tasks. It knows no connections, endpoints or upstreams; those are in
//! [`EdgeContext`](crate::edge::edge_context::EdgeContext).

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use culvert_base::FairPermits;
use culvert_edge_config::Limits;
use culvert_events::{Record, Recorder};
use culvert_overload::Level;
use culvert_statistics::Traffic;
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::edge::meters::Meters;
use crate::edge::sampled_log::SampledLog;
use crate::recording::refusals::Refusals;

/// Requests and connections that may wait for places at upstreams.
const WAITING_MAX: usize = 16 << 10;

/// State that every module of the edge may use.
pub(crate) struct EdgeState {
    pub(crate) meters: Meters,
    pub(crate) recorder: Arc<dyn Recorder>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) refusals: Refusals,
    /// Bytes that buffered bodies may occupy.
    pub(crate) bodies: FairPermits,
    /// KiB that encoders of responses may occupy.
    pub(crate) encoders: FairPermits,
    /// Requests and connections that may wait for places at upstreams.
    pub(crate) waiting: FairPermits,
    /// Clients that are refused because they have no extended master secret.
    pub(crate) without_ems: SampledLog,
    pub(crate) tasks: TaskTracker,
    phase: AtomicU8,
    level: AtomicU8,
    /// Notified when the overload level changes.
    level_changed: Notify,
    drops_events: AtomicBool,
}

/// The lifecycle phase of the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is served.
    Serving = 0,
    /// Nothing new is accepted, and each response is the last of its connection.
    Parting = 1,
    /// Open requests finish; idle connections close.
    Draining = 2,
    /// Everything ends now.
    Cut = 3,
}

impl EdgeState {
    /// Bodies may occupy the bytes of `limits`, and encoders `encoder_kib_max` KiB.
    pub(crate) fn new(
        recorder: Arc<dyn Recorder>,
        traffic: Arc<Traffic>,
        limits: &Limits,
        encoder_kib_max: usize,
    ) -> Self {
        Self {
            meters: Meters::default(),
            recorder,
            traffic,
            refusals: Refusals::new(limits.refused_whole, limits.refused_events),
            bodies: FairPermits::new(limits.held_bytes),
            encoders: FairPermits::new(encoder_kib_max),
            waiting: FairPermits::new(WAITING_MAX),
            without_ems: SampledLog::default(),
            tasks: TaskTracker::new(),
            phase: AtomicU8::new(Phase::Serving as u8),
            level: AtomicU8::new(Level::Calm as u8),
            level_changed: Notify::new(),
            drops_events: AtomicBool::new(false),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Parting,
            2 => Phase::Draining,
            _ => Phase::Cut,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// The overload level.
    pub(crate) fn level(&self) -> Level {
        Level::of(self.level.load(Ordering::Relaxed))
    }

    /// Sets the overload level, and returns the one before as a number.
    pub(crate) fn set_level(&self, level: Level) -> u8 {
        let before = self.level.swap(level as u8, Ordering::Relaxed);
        if before != level as u8 {
            self.meters.overload_level.set(u64::from(level as u8));
            self.level_changed.notify_waiters();
        }
        before
    }

    /// Whether each response is the last of its connection.
    pub(crate) fn is_closing(&self) -> bool {
        self.phase() != Phase::Serving || self.level() == Level::Full
    }

    /// Waits while the overload level rejects new agents.
    pub(crate) async fn takes_agents(&self) {
        let mut is_held = false;
        loop {
            // Created before the level is read, so that no change is missed.
            let changed = self.level_changed.notified();
            if self.level() < Level::Tight {
                return;
            }
            if !std::mem::replace(&mut is_held, true) {
                self.meters.held_agents.up();
            }
            changed.await;
        }
    }

    pub(crate) fn set_drops_events(&self, drops_events: bool) {
        self.drops_events.store(drops_events, Ordering::Relaxed);
    }

    /// Passes a complete record to the recorder. Drops it if overload requires that.
    pub(crate) fn offer(&self, record: Record) {
        if self.drops_events.load(Ordering::Relaxed) {
            self.meters.shed_events.up();
        } else {
            self.recorder.offer(record);
        }
    }

    /// Runs a task of the edge.
    pub(crate) fn track(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.contain(task));
    }

    /// Makes a panic in a task end it alone, and counts it.
    ///
    /// Combinators, because an `async` block that awaits what it captured holds it twice.
    pub(crate) fn contain<T: Future<Output = ()>>(
        self: &Arc<Self>,
        task: T,
    ) -> impl Future<Output = ()> + use<T> {
        let edge = Arc::clone(self);
        AssertUnwindSafe(task).catch_unwind().map(move |ended| {
            if ended.is_err() {
                edge.meters.panics.up();
                tracing::error!("an edge task panicked");
            }
        })
    }
}

impl fmt::Debug for EdgeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeState")
            .field("meters", &self.meters)
            .finish_non_exhaustive()
    }
}
