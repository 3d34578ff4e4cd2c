//! Returns freed memory to the system, even if the server is idle.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(2);
const COLLECTED_EVERY: Duration = Duration::from_secs(10);
/// The allocator collects a thread's memory at every ten thousandth allocation that is not small.
const ALLOCATIONS: usize = 10_000;
const ALLOCATION_BYTES: usize = 2 << 10;
/// How long a thread is kept busy, so that another one wakes for the next task.
const BUSY: Duration = Duration::from_millis(1);

/// How often threads were to collect.
static COLLECTIONS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The collection that this thread did last.
    static COLLECTED: Cell<u32> = const { Cell::new(0) };
}

/// Ends a thread at intervals, until `stop`.
///
/// The allocator returns memory that was freed at least a second ago when a thread ends or needs fresh pages. An idle
/// server does neither, so it would keep the memory of its start or its last peak.
pub async fn give_back(stop: CancellationToken) {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        // The allocator only knows threads that have allocated.
        let ends = || drop(black_box(Vec::<u8>::with_capacity(1)));
        let thread = std::thread::Builder::new().name("give-back".to_owned());
        if let Err(error) = thread.spawn(ends) {
            tracing::debug!(%error, "freed memory is handed back later");
        }
    }
}

/// Has the threads of the runtime collect at intervals when they are idle, and wakes those that are, until `stop`.
///
/// Waking blocks each thread for a millisecond. An agent can afford it; a server, which would delay requests, does not
/// run this.
pub async fn collect_idle_threads(stop: CancellationToken) {
    let mut ticks = tokio::time::interval(COLLECTED_EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        COLLECTIONS.fetch_add(1, Ordering::Relaxed);
        let mut busy = JoinSet::new();
        for _ in 0..2 * Handle::current().metrics().num_workers() {
            busy.spawn(async { std::thread::sleep(BUSY) });
        }
        busy.join_all().await;
    }
}

/// Collects what other threads freed of this thread's memory, once for each time that this is due. The runtime calls
/// it when a thread becomes idle.
///
/// Memory that another thread frees stays with the thread that allocated it until that one allocates more. After a
/// crowd, a thread may not do so for hours.
pub fn collect() {
    let due = COLLECTIONS.load(Ordering::Relaxed);
    if COLLECTED.replace(due) != due {
        for _ in 0..ALLOCATIONS {
            drop(black_box(Vec::<u8>::with_capacity(ALLOCATION_BYTES)));
        }
    }
}
