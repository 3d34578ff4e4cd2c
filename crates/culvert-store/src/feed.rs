//! What the latest commits of this process touched, so that a reader need not ask the database.
//!
//! The feed is complete for the revisions it holds, and says so when it does not hold all: after a commit
//! of another node, and for a reader that is far behind. Then the reader asks the database.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::changes::Changes;

/// Commits that are remembered.
const COMMITS_MAX: usize = 1024;
/// Documents of one commit that are remembered; a reader asks the database about a larger one.
const DOCUMENTS_MAX: usize = 64;

/// A document that a commit wrote or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Its kind.
    pub kind: String,
    /// Its id.
    pub id: String,
}

/// The commits of this process that were not overtaken by another node's.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the transaction that is open. Revisions ascend.
    pending: Vec<(i64, Vec<Touched>)>,
    /// Without gaps: each revision is that of the entry before plus one.
    commits: VecDeque<(i64, Vec<Touched>)>,
}

impl Feed {
    /// A transaction begins.
    pub(crate) fn begin(&self) {
        self.lock().pending.clear();
    }

    /// An entry of the transaction was applied and got this revision.
    pub(crate) fn note(&self, revision: i64, changes: &Changes) {
        self.lock()
            .pending
            .push((revision, changes.touched().collect()));
    }

    /// The transaction is on disk.
    pub(crate) fn commit(&self) {
        let state = &mut *self.lock();
        for (revision, touched) in state.pending.drain(..) {
            let follows = state
                .commits
                .back()
                .is_none_or(|(last, _)| last + 1 == revision);
            if !follows || touched.len() > DOCUMENTS_MAX {
                state.commits.clear();
            }
            if touched.len() <= DOCUMENTS_MAX {
                state.commits.push_back((revision, touched));
            }
        }
        while state.commits.len() > COMMITS_MAX {
            state.commits.pop_front();
        }
    }

    /// What the commits after `since` up to `until` touched, in their order. `None` if not all of them
    /// are known.
    pub(crate) fn between(&self, since: i64, until: i64) -> Option<Vec<Touched>> {
        if since >= until {
            return Some(Vec::new());
        }
        let state = self.lock();
        let (first, last) = (state.commits.front()?.0, state.commits.back()?.0);
        if first > since + 1 || last < until {
            return None;
        }
        let wanted = state
            .commits
            .iter()
            .rev()
            .skip_while(|(revision, _)| *revision > until)
            .take_while(|(revision, _)| *revision > since);
        let wanted: Vec<&Vec<Touched>> = wanted.map(|(_, touched)| touched).collect();
        Some(wanted.into_iter().rev().flatten().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(id: &str) -> Touched {
        Touched {
            kind: "k".into(),
            id: id.into(),
        }
    }

    fn commit(feed: &Feed, revision: i64, id: &str) {
        feed.begin();
        feed.lock().pending.push((revision, vec![touched(id)]));
        feed.commit();
    }

    #[test]
    fn a_gap_is_never_bridged() {
        let feed = Feed::default();
        assert_eq!(feed.between(0, 0), Some(Vec::new()));
        assert_eq!(feed.between(0, 1), None);
        for (revision, id) in [(1, "a"), (2, "b"), (3, "c")] {
            commit(&feed, revision, id);
        }
        assert_eq!(feed.between(0, 2), Some(vec![touched("a"), touched("b")]));
        assert_eq!(feed.between(2, 3), Some(vec![touched("c")]));
        assert_eq!(feed.between(3, 3), Some(Vec::new()));
        // Another node made revision 4.
        assert_eq!(feed.between(3, 4), None);
        commit(&feed, 5, "e");
        assert_eq!(feed.between(3, 5), None);
        assert_eq!(feed.between(4, 5), Some(vec![touched("e")]));
        // A transaction that was undone leaves nothing.
        feed.begin();
        feed.lock().pending.push((6, vec![touched("f")]));
        commit(&feed, 6, "g");
        assert_eq!(feed.between(5, 6), Some(vec![touched("g")]));
        for revision in 7..2_000 {
            commit(&feed, revision, "h");
        }
        assert_eq!(feed.between(6, 1_999), None);
        assert_eq!(
            feed.between(1_900, 1_999).map(|touched| touched.len()),
            Some(99)
        );
    }
}
