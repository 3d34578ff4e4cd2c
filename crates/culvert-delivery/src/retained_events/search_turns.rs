//! Limits concurrent searches of the retained events, in total and for each owner.
//!
//! Searches of an owner run one after another, and so do its streams. So however many an owner starts, another owner
//! waits for at most two of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent searches; others wait.
const SEARCHES_MAX: usize = 2;

/// Turns of searches. There are at most as many owners as searches that run or wait.
#[derive(Clone, Debug)]
pub(crate) struct SearchTurns {
    all: Arc<Semaphore>,
    owners: Arc<Mutex<HashMap<Searcher, Owner>>>,
}

/// An owner, and whether it searches for a stream.
type Searcher = (Arc<str>, bool);

#[derive(Debug)]
struct Owner {
    turn: Arc<Semaphore>,
    /// Searches that run or wait.
    searches: usize,
}

/// The turn of a search.
#[derive(Debug)]
pub(crate) struct SearchTurn {
    _of_all: OwnedSemaphorePermit,
    _of_owner: OwnedSemaphorePermit,
    _counted: RunningSearch,
}

/// A counted search. Dropping an owner's last one removes the owner.
#[derive(Debug)]
struct RunningSearch {
    turns: SearchTurns,
    searcher: Searcher,
}

impl SearchTurns {
    pub(crate) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(SEARCHES_MAX)),
            owners: Arc::default(),
        }
    }

    /// Waits for the turn of a search, or of a stream's search. `None` if the semaphores are closed, which never
    /// happens.
    pub(crate) async fn take(&self, owner: &str, is_stream: bool) -> Option<SearchTurn> {
        let searcher: Searcher = (owner.into(), is_stream);
        let turn = {
            let mut owners = self.owners();
            let of_owner = owners.entry(searcher.clone()).or_insert_with(|| Owner {
                turn: Arc::new(Semaphore::new(1)),
                searches: 0,
            });
            of_owner.searches += 1;
            Arc::clone(&of_owner.turn)
        };
        let counted = RunningSearch {
            turns: self.clone(),
            searcher,
        };
        let of_owner = turn.acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(SearchTurn {
            _of_all: of_all,
            _of_owner: of_owner,
            _counted: counted,
        })
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<Searcher, Owner>> {
        self.owners
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for RunningSearch {
    fn drop(&mut self) {
        let mut owners = self.turns.owners();
        if let Some(owner) = owners.get_mut(&self.searcher) {
            owner.searches = owner.searches.saturating_sub(1);
            if owner.searches == 0 {
                owners.remove(&self.searcher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn many_searches_of_one_owner_leave_permits_to_others() {
        let turns = SearchTurns::new();
        let first = turns.take("usr_1", false).await.unwrap();
        let mut more = Vec::new();
        for _ in 0..100 {
            let mut waits = Box::pin(turns.take("usr_1", false));
            assert!(matches!(futures_util::poll!(&mut waits), Poll::Pending));
            more.push(waits);
        }
        // The other owner gets the next turn, and the first owner's streams the one after it.
        let other = turns.take("usr_2", false).await.unwrap();
        let mut stream = pin!(turns.take("usr_1", true));
        assert!(matches!(futures_util::poll!(&mut stream), Poll::Pending));
        drop(other);
        assert!(stream.await.is_some());
        drop(first);
        drop(more);
        assert!(turns.owners().is_empty());
    }
}
