//! Returns freed memory to the system, even if the server is idle.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(2);

/// Ends a thread at intervals, until `stop`.
///
/// The allocator returns memory that was freed at least a second ago when a thread ends or needs fresh pages. An idle
/// server does neither, so it would keep the memory of its start or its last peak.
pub(crate) async fn give_back(stop: CancellationToken) {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        // The allocator only knows threads that have allocated.
        let ends = || drop(std::hint::black_box(Vec::<u8>::with_capacity(1)));
        let thread = std::thread::Builder::new().name("give-back".to_owned());
        if let Err(error) = thread.spawn(ends) {
            tracing::debug!(%error, "freed memory is handed back later");
        }
    }
}
