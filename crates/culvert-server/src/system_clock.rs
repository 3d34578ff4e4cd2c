//! The system's clock, as the times of a process follow it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::{Clock, SteadyClock, SystemClock};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads the system's clock every second until stopped, and logs when it was set.
pub(crate) async fn follow(clock: Arc<SteadyClock>, stop: CancellationToken) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = stop.cancelled() => return,
        }
        if let Some(notice) = clock.observe(SystemClock.now(), Instant::now()).notice() {
            tracing::warn!(clock = "system", "{notice}");
        }
    }
}
