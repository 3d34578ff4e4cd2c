//! Freed memory goes back to the system, also when nothing happens any more.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(2);

/// Ends a thread now and then, until `stop`.
///
/// The allocator hands back what was freed a second ago or longer when a thread ends, or needs fresh
/// pages. A server at rest does neither: it would hold what its start or its last peak took.
pub(crate) async fn give_back(stop: CancellationToken) {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        // Only a thread that allocated is known to the allocator.
        let ends = || drop(std::hint::black_box(Vec::<u8>::with_capacity(1)));
        let thread = std::thread::Builder::new().name("give-back".to_owned());
        if let Err(error) = thread.spawn(ends) {
            tracing::debug!(%error, "freed memory is handed back later");
        }
    }
}
