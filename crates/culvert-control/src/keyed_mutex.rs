//! Writers of one object take turns, within this process.
//!
//! Without it, of many writers of one object all but one would read, decide and be overtaken, again
//! and again. Writers on other nodes are caught by the revision alone. A turn is not needed for
//! truth, only against waste, so two objects may share one.

use std::hash::{BuildHasher, RandomState};

use tokio::sync::{Mutex, MutexGuard};

const TURNS: usize = 1024;

/// One turn for each object, or nearly, and one for writes that were overtaken all the same.
#[derive(Debug)]
pub(crate) struct KeyedMutex {
    hasher: RandomState,
    turns: Vec<Mutex<()>>,
    again: Mutex<()>,
}

impl KeyedMutex {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            again: Mutex::new(()),
        }
    }

    /// Waits for the turn of the object with this id, in the order of asking. Hold no turn yet.
    pub(crate) async fn of(&self, id: &str) -> Option<MutexGuard<'_, ()>> {
        let hash = usize::try_from(self.hasher.hash_one(id) & 0xFFFF_FFFF).unwrap_or(0);
        match self.turns.get(hash % TURNS) {
            Some(turn) => Some(turn.lock().await),
            None => None,
        }
    }

    /// Waits for the turn of a write that was overtaken: what it shares with others, such as an
    /// address, is no object of its own. Taken after the object's turn, and last.
    pub(crate) async fn again(&self) -> MutexGuard<'_, ()> {
        self.again.lock().await
    }
}
