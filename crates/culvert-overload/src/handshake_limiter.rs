//! Permits for the CPU time of TLS handshakes.
//!
//! A handshake costs more CPU time than anything else that an unauthenticated client can ask for. A few
//! handshakes compute concurrently and the others queue, so that requests run between them, however many have
//! arrived. A handshake that waits for its client holds no permit: clients that never finish their handshakes
//! delay no other client.
//!
//! Sources are hashed into queues. Each queue passes only [`PERMITS_PER_SOURCE`] handshakes to the common
//! queue, so a source that begins thousands of handshakes delays mostly itself.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Concurrent handshakes per serving thread. The second one covers the time between the release of a permit
/// and the wake-up of the next.
const PERMITS_PER_THREAD: usize = 2;
/// Number of queues for sources. A source cannot predict its queue.
const SOURCES: usize = 256;
/// Handshakes of each of these queues in the common queue.
const PERMITS_PER_SOURCE: usize = 4;

/// Permits for handshakes. Memory use does not depend on the number of waiting handshakes.
#[derive(Debug)]
pub struct HandshakeLimiter {
    common: Semaphore,
    by_source: Box<[Semaphore]>,
    hasher: RandomState,
}

/// A permit to compute, until dropped.
struct HandshakePermit<'a> {
    _source: SemaphorePermit<'a>,
    _common: SemaphorePermit<'a>,
}

/// No permit became free within the limit.
#[derive(Debug)]
pub struct NoTurn;

impl HandshakeLimiter {
    /// Creates permits for this number of serving threads.
    pub fn new(threads: usize) -> Self {
        let source = || Semaphore::new(PERMITS_PER_SOURCE);
        Self {
            common: Semaphore::new(threads.max(1) * PERMITS_PER_THREAD),
            by_source: (0..SOURCES).map(|_| source()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Runs a handshake of `source`, which is polled only while it holds a permit.
    ///
    /// # Errors
    ///
    /// It waited longer than `patience` for a permit.
    pub async fn run<F: Future>(
        &self,
        source: u64,
        patience: Duration,
        handshake: F,
    ) -> Result<F::Output, NoTurn> {
        let mut handshake = pin!(handshake);
        loop {
            let turn = tokio::time::timeout(patience, self.take(source));
            let turn = turn.await.map_err(|_| NoTurn)?;
            let step = poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
            drop(turn);
            match step {
                Poll::Ready(output) => return Ok(output),
                Poll::Pending => woken().await,
            }
        }
    }

    async fn take(&self, source: u64) -> HandshakePermit<'_> {
        let queue = self.hasher.hash_one(source) as usize % SOURCES;
        let closed = "the semaphores are never closed";
        HandshakePermit {
            _source: self.by_source[queue].acquire().await.expect(closed),
            _common: self.common.acquire().await.expect(closed),
        }
    }

    /// Takes all free permits of the common queue, for tests: no handshake computes until they are dropped.
    pub async fn hold_all(&self) -> SemaphorePermit<'_> {
        let all = self.common.available_permits() as u32;
        self.common
            .acquire_many(all)
            .await
            .expect("the semaphores are never closed")
    }
}

/// Waits until the task is woken. The future that was polled last has registered the waker.
async fn woken() {
    let mut was_polled = false;
    poll_fn(|_| match std::mem::replace(&mut was_polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;
    use tokio::task::JoinSet;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Handshakes of a source's queue that are in the common queue.
    fn queued(limiter: &HandshakeLimiter, source: u64) -> usize {
        let queue = limiter.hasher.hash_one(source) as usize % SOURCES;
        PERMITS_PER_SOURCE - limiter.by_source[queue].available_permits()
    }

    #[tokio::test]
    async fn handshakes_waiting_for_their_client_hold_no_permit() {
        let limiter = Arc::new(HandshakeLimiter::new(1));
        let mut clients = Vec::new();
        let mut waiting = JoinSet::new();
        for _ in 0..1_000 {
            let (client, finished) = oneshot::channel::<()>();
            clients.push(client);
            let limiter = Arc::clone(&limiter);
            waiting.spawn(async move {
                limiter.run(1, PATIENCE, finished).await.unwrap().unwrap();
            });
        }
        // Of the same source and of another, while a thousand wait.
        for source in [1, 2] {
            limiter.run(source, PATIENCE, async {}).await.unwrap();
        }
        for client in clients {
            client.send(()).unwrap();
        }
        waiting.join_all().await;
    }

    #[tokio::test]
    async fn a_source_with_many_handshakes_delays_only_itself() {
        let limiter = Arc::new(HandshakeLimiter::new(1));
        let done = Arc::new(AtomicUsize::new(0));
        let all = limiter.hold_all().await;
        let mut tasks = JoinSet::new();
        for _ in 0..1_000 {
            let (limiter, done) = (Arc::clone(&limiter), Arc::clone(&done));
            tasks.spawn(async move {
                let step = async { done.fetch_add(1, Ordering::SeqCst) };
                limiter.run(1, PATIENCE, step).await.unwrap();
            });
        }
        while limiter
            .by_source
            .iter()
            .all(|queue| queue.available_permits() > 0)
        {
            tokio::task::yield_now().await;
        }
        // A source with another queue.
        let other = (2..).find(|&source| queued(&limiter, source) == 0).unwrap();
        let late = {
            let (limiter, done) = (Arc::clone(&limiter), Arc::clone(&done));
            async move {
                let step = async { done.load(Ordering::SeqCst) };
                limiter.run(other, PATIENCE, step).await.unwrap()
            }
        };
        let mut late_task = JoinSet::new();
        late_task.spawn(late);
        while queued(&limiter, other) == 0 {
            tokio::task::yield_now().await;
        }
        drop(all);
        let before = late_task.join_next().await.unwrap().unwrap();
        assert!(before <= 2 * PERMITS_PER_SOURCE, "{before} came first");
        tasks.join_all().await;
    }

    #[tokio::test]
    async fn a_wait_for_a_permit_times_out() {
        let limiter = HandshakeLimiter::new(1);
        let _all = limiter.hold_all().await;
        assert!(limiter.run(1, Duration::ZERO, async {}).await.is_err());
    }
}
