//! Locks that serialise the writers of an object within this process.
//!
//! Without them, all but one of many concurrent writers of an object would read, decide and fail to commit,
//! again and again. Writers on other nodes are detected by the revision alone. The locks only save work and
//! are not needed for correctness, so two objects may share one.
//!
//! Because objects share locks, work that takes a second lock may wait for itself. So work takes all of its locks
//! together, in one order, and takes no others while it holds them.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Mutex, MutexGuard};

const LOCKS: usize = 1024;

tokio::task_local! {
    /// Exists while the current work holds locks; whether the lock of retried writes is one of them.
    static HELD: Cell<bool>;
}

/// A lock per object, shared by hash, and one for writes that failed to commit nevertheless.
#[derive(Debug)]
pub struct KeyedMutex {
    hasher: RandomState,
    locks: Vec<Mutex<()>>,
    retries: Mutex<()>,
}

impl Default for KeyedMutex {
    /// As many locks as a server needs.
    fn default() -> Self {
        Self::of_size(LOCKS)
    }
}

impl KeyedMutex {
    /// With this many locks. With one, all objects share it.
    pub fn of_size(count: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            locks: (0..count).map(|_| Mutex::new(())).collect(),
            retries: Mutex::new(()),
        }
    }

    /// Does the work while it holds the locks of the objects with these IDs, for which it waits in order of arrival.
    /// The work must not lock again: debug builds panic, and others do that part without its locks.
    pub async fn with<T>(&self, ids: &[&str], work: impl Future<Output = T>) -> T {
        let is_nested = HELD.try_with(|_| ()).is_ok();
        debug_assert!(
            !is_nested,
            "the locks of {ids:?} are requested by work that holds others"
        );
        if is_nested {
            tracing::error!("work that holds locks requested others; it continues without them");
            return work.await;
        }
        let mut numbers: Vec<usize> = ids.iter().map(|id| self.number_of(id)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut guards = Vec::with_capacity(numbers.len());
        for lock in numbers
            .into_iter()
            .filter_map(|number| self.locks.get(number))
        {
            guards.push(lock.lock().await);
        }
        HELD.scope(Cell::new(false), work).await
    }

    /// Waits for the lock of retried writes. These conflict on something that is not an object,
    /// such as an address. Taken once, by work that runs in [`Self::with`], so always last.
    pub async fn retry(&self) -> MutexGuard<'_, ()> {
        let is_first = HELD.try_with(|has_retried| !has_retried.replace(true));
        debug_assert_eq!(
            is_first,
            Ok(true),
            "the lock of retried writes is not taken once, after those of objects"
        );
        self.retries.lock().await
    }

    fn number_of(&self, id: &str) -> usize {
        let hash = usize::try_from(self.hasher.hash_one(id) & 0xFFFF_FFFF).unwrap_or(0);
        hash % self.locks.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn keys_that_share_a_lock_are_taken_together() {
        let locks = KeyedMutex::of_size(1);
        assert_eq!(locks.with(&["a", "b", "a"], async { 7 }).await, 7);
        assert_eq!(locks.with(&[], async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn sets_of_keys_in_any_order_do_not_wait_for_each_other() {
        let locks = Arc::new(KeyedMutex::of_size(8));
        let mut tasks = JoinSet::new();
        for n in 0..200 {
            let locks = Arc::clone(&locks);
            tasks.spawn(async move {
                let (a, b) = ((n % 40).to_string(), ((n * 7 + 3) % 40).to_string());
                locks.with(&[&a, &b], tokio::task::yield_now()).await;
            });
        }
        let done = tokio::time::timeout(culvert_testing::PATIENCE, tasks.join_all());
        assert_eq!(done.await.map(|done| done.len()), Ok(200));
    }

    #[tokio::test]
    #[should_panic(expected = "requested by work that holds others")]
    async fn a_second_lock_while_one_is_held_panics() {
        let locks = KeyedMutex::of_size(1024);
        locks.with(&["a"], locks.with(&["b"], async {})).await;
    }

    #[tokio::test]
    #[should_panic(expected = "not taken once")]
    async fn the_lock_of_retries_is_taken_once() {
        let locks = KeyedMutex::default();
        let twice = async {
            let _first = locks.retry().await;
            let _second = locks.retry().await;
        };
        locks.with(&["a"], twice).await;
    }
}
