//! Locks that serialise the writers of an object within this process.
//!
//! Without them, all but one of many concurrent writers of an object would read, decide and fail to commit,
//! again and again. Writers on other nodes are detected by the revision alone. The locks only save work and
//! are not needed for correctness, so two objects may share one.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Mutex, MutexGuard};

const LOCKS: usize = 1024;

/// A lock per object, shared by hash, and one for writes that failed to commit nevertheless.
#[derive(Debug)]
pub(crate) struct KeyedMutex {
    hasher: RandomState,
    locks: Vec<Mutex<()>>,
    retries: Mutex<()>,
}

impl KeyedMutex {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            retries: Mutex::new(()),
        }
    }

    /// Waits for the lock of the object with this ID, in order of arrival. The caller must hold no other
    /// lock.
    pub(crate) async fn of(&self, id: &str) -> Option<MutexGuard<'_, ()>> {
        let hash = usize::try_from(self.hasher.hash_one(id) & 0xFFFF_FFFF).unwrap_or(0);
        match self.locks.get(hash % LOCKS) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// Waits for the lock of retried writes. These conflict on something that is not an object,
    /// such as an address. Must be taken last, after the lock of the object.
    pub(crate) async fn retry(&self) -> MutexGuard<'_, ()> {
        self.retries.lock().await
    }
}
