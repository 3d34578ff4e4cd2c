//! Calls of the system about files that others name, on threads for blocking work.
//!
//! A file system that hangs, such as one of a dead server, keeps the thread of each call for as long as it likes. So few calls run at a
//! time, and those about one place leave others to the rest. Without this, they would take the threads that lookups of names need.

use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use culvert_base::{FairPermits, Share};

/// How many calls run at a time.
const CALLS_MAX: usize = 64;
/// Waits for a place: the first, and the longest.
const WAIT: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(50);

static CALLS: LazyLock<FairPermits> = LazyLock::new(|| FairPermits::new(CALLS_MAX));

/// Runs a call in a share of its place, such as the path that the operator allowed. Waits while the share is used up; the caller limits
/// the time. A call that has begun keeps its part of the share until it ends, also if nothing waits for it.
///
/// # Errors
///
/// The call panicked.
pub async fn run<T: Send + 'static>(
    share: Share,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let mut wait = WAIT;
    let permit = loop {
        if let Ok(permit) = CALLS.try_acquire(share) {
            break permit;
        }
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(WAIT_MAX);
    };
    let running = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        call()
    });
    running.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn calls_that_hang_leave_places_to_others() {
        let (release, hangs) = mpsc::channel::<()>();
        let hangs = std::sync::Arc::new(std::sync::Mutex::new(hangs));
        let mut hanging = tokio::task::JoinSet::new();
        for _ in 0..2 * CALLS_MAX {
            let hangs = std::sync::Arc::clone(&hangs);
            let call = move || {
                let _ended = hangs.lock().unwrap().recv();
            };
            hanging.spawn(run(Share::of_owner("/dead"), call));
        }
        while CALLS.try_acquire(Share::of_owner("/dead")).is_ok() {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            assert_eq!(run(Share::of_owner("/alive"), || 1).await.unwrap(), 1);
        }
        drop(release);
        while hanging.join_next().await.is_some() {}
    }
}
