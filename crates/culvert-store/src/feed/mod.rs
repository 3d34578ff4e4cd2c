//! Documents that recent commits touched, so readers need not query the database.
//!
//! Commits of this process are added before their callers get responses. Those of other nodes arrive as notifications
//! (`notifications.rs`), in the order of their commits, and a reader waits briefly for a notification that is expected.
//! After a lost connection, a large commit, or a commit of an older program, and for a reader that is far behind, the
//! feed is incomplete and reports that. Then the reader queries the database.

pub(crate) mod ledger_watch;
pub(crate) mod notifications;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::commit::changes::Changes;
use crate::commit::revision::Revision;

/// Maximum number of remembered commits.
const COMMITS_MAX: usize = 1024;
/// Maximum number of remembered documents of one commit.
const DOCUMENTS_MAX: usize = 64;
/// How long a reader waits for the notifications of commits up to its revision.
const PATIENCE: Duration = Duration::from_millis(100);

/// A document that a commit wrote or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Its kind.
    pub kind: String,
    /// Its id.
    pub id: String,
}

/// The documents that a commit touched; `None` if they are too many to remember.
pub(crate) type Commit = Option<Vec<Touched>>;

/// The latest commits.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    state: Mutex<State>,
    /// Notified when a notification arrives or notifications are lost.
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The epoch of all that is remembered.
    epoch: u64,
    /// Commits of the open transaction. Revisions ascend.
    pending: Vec<(i64, Commit)>,
    commits: BTreeMap<i64, Commit>,
    /// Notifications are complete after this revision; `None` without a listener.
    heard_from: Option<i64>,
    /// The latest revision that a notification named.
    heard: i64,
    /// Up to this number, a lost commit may have had it too. Its message can be sent again, before that of the commit that has
    /// the number now.
    lost_to: i64,
}

/// The documents that a range of commits touched, if the feed has them.
enum TouchedRange {
    All(Vec<Touched>),
    /// Notifications are expected.
    NotYet,
    Never,
}

impl Feed {
    /// Begins a transaction.
    pub(crate) fn begin(&self) {
        self.lock().pending.clear();
    }

    /// Notes a command of the transaction with its revision.
    pub(crate) fn note(&self, revision: i64, changes: &Changes) {
        let touched: Vec<Touched> = changes.touched().take(DOCUMENTS_MAX + 1).collect();
        let commit = (touched.len() <= DOCUMENTS_MAX).then_some(touched);
        self.lock().pending.push((revision, commit));
    }

    /// The commits of the open transaction so far.
    pub(crate) fn pending(&self) -> Vec<(i64, Commit)> {
        self.lock().pending.clone()
    }

    /// Publishes the commits of the transaction, which is on disk.
    pub(crate) fn commit(&self, epoch: u64) {
        let state = &mut *self.lock();
        for (revision, commit) in std::mem::take(&mut state.pending) {
            // The numbers of an earlier epoch are used again, for other commits.
            if state.epoch == epoch {
                // Certain, unlike what a notification named under this number.
                state.commits.remove(&revision);
                state.put(revision, commit);
            }
        }
    }

    /// Forgets everything, because commits were lost.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        let state = &mut *self.lock();
        // Two tasks may find losses, and report them in another order.
        if epoch <= state.epoch {
            return;
        }
        state.epoch = epoch;
        let last = state.commits.keys().next_back().copied().unwrap_or(0);
        // Other nodes may have heard of more.
        let margin = i64::try_from(COMMITS_MAX).unwrap_or(i64::MAX);
        let lost_to = last.max(state.heard).saturating_add(margin);
        state.lost_to = state.lost_to.max(lost_to);
        state.commits.clear();
        state.heard_from = None;
        state.heard = 0;
        self.moved.notify_waiters();
    }

    /// Notes that notifications are complete after `revision`.
    pub(crate) fn listen(&self, revision: Revision) {
        let state = &mut *self.lock();
        if state.epoch == revision.epoch {
            state.heard_from = Some(revision.number);
            state.heard = revision.number;
        }
    }

    /// Notes that notifications are no longer complete.
    pub(crate) fn lose(&self) {
        self.lock().heard_from = None;
        self.moved.notify_waiters();
    }

    /// Notes the notification of a commit of any node. False if it may be one of an earlier epoch, whose number has another
    /// commit now.
    pub(crate) fn note_remote(&self, revision: Revision, commit: Commit) -> bool {
        let state = &mut *self.lock();
        if state.epoch != revision.epoch {
            return false;
        }
        state.heard = state.heard.max(revision.number);
        let commit = commit.filter(|_| revision.number > state.lost_to);
        state.put(revision.number, commit);
        self.moved.notify_waiters();
        true
    }

    /// Documents that the commits after `since` up to `until` touched, in order. `None` if some of them are unknown
    /// and no notification comes in time.
    pub(crate) async fn between(&self, since: Revision, until: Revision) -> Option<Vec<Touched>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // Registered before the check, so no change between the two is missed.
            moved.as_mut().enable();
            let known = self.lock().between(since, until);
            match known {
                TouchedRange::All(touched) => return Some(touched),
                TouchedRange::NotYet => timeout_at(deadline, moved).await.ok()?,
                TouchedRange::Never => return None,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put(&mut self, revision: i64, commit: Commit) {
        match self.commits.entry(revision) {
            Entry::Vacant(place) => {
                place.insert(commit);
            }
            // A commit of this process may also come as a notification, which has no documents if it would be too long.
            // Two that differ are no knowledge: one of them may be an old message that was sent again.
            Entry::Occupied(mut known) => {
                if commit.is_some() && known.get().is_some() && *known.get() != commit {
                    known.insert(None);
                }
            }
        }
        while self.commits.len() > COMMITS_MAX {
            self.commits.pop_first();
        }
    }

    fn between(&self, since: Revision, until: Revision) -> TouchedRange {
        if since.epoch != self.epoch || until.epoch != self.epoch {
            return TouchedRange::Never;
        }
        let (since, until) = (since.number, until.number);
        if since >= until {
            return TouchedRange::All(Vec::new());
        }
        // The feed cannot have them all.
        if usize::try_from(until.abs_diff(since)).is_ok_and(|n| n > COMMITS_MAX) {
            return TouchedRange::Never;
        }
        // Notifications come in the order of commits.
        let may_come = |revision: i64| {
            self.heard < revision && self.heard_from.is_some_and(|from| revision > from)
        };
        let mut all = Vec::new();
        let mut is_whole = true;
        for revision in since + 1..=until {
            match self.commits.get(&revision) {
                Some(Some(touched)) => all.extend(touched.iter().cloned()),
                None if may_come(revision) => is_whole = false,
                Some(None) | None => return TouchedRange::Never,
            }
        }
        match is_whole {
            true => TouchedRange::All(all),
            false => TouchedRange::NotYet,
        }
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

    fn at(number: i64) -> Revision {
        Revision { epoch: 0, number }
    }

    async fn between(feed: &Feed, since: i64, until: i64) -> Option<Vec<Touched>> {
        feed.between(at(since), at(until)).await
    }

    fn commit(feed: &Feed, revision: i64, id: &str) {
        feed.begin();
        let one = Some(vec![touched(id)]);
        feed.lock().pending.push((revision, one));
        feed.commit(0);
    }

    #[tokio::test]
    async fn a_gap_is_never_bridged() {
        let feed = Feed::default();
        assert_eq!(between(&feed, 0, 0).await, Some(Vec::new()));
        assert_eq!(between(&feed, 0, 1).await, None);
        for (revision, id) in [(1, "a"), (2, "b"), (3, "c")] {
            commit(&feed, revision, id);
        }
        let two = Some(vec![touched("a"), touched("b")]);
        assert_eq!(between(&feed, 0, 2).await, two);
        assert_eq!(between(&feed, 2, 3).await, Some(vec![touched("c")]));
        assert_eq!(between(&feed, 3, 3).await, Some(Vec::new()));
        // Another node committed revision 4.
        assert_eq!(between(&feed, 3, 4).await, None);
        commit(&feed, 5, "e");
        assert_eq!(between(&feed, 3, 5).await, None);
        assert_eq!(between(&feed, 4, 5).await, Some(vec![touched("e")]));
        // A transaction that was undone leaves nothing.
        feed.begin();
        feed.lock().pending.push((6, Some(vec![touched("f")])));
        commit(&feed, 6, "g");
        assert_eq!(between(&feed, 5, 6).await, Some(vec![touched("g")]));
        for revision in 7..2_000 {
            commit(&feed, revision, "h");
        }
        assert_eq!(between(&feed, 6, 1_999).await, None);
        let last = between(&feed, 1_900, 1_999).await;
        assert_eq!(last.map(|touched| touched.len()), Some(99));
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_of_another_node_is_waited_for_while_it_may_come() {
        let feed = Feed::default();
        commit(&feed, 4, "d");
        let began = Instant::now();
        assert_eq!(between(&feed, 3, 5).await, None, "no listener");
        feed.listen(at(4));
        assert_eq!(between(&feed, 2, 4).await, None, "no listener then");
        assert_eq!(began.elapsed(), Duration::ZERO);
        // Its own commits are known before an earlier notification of another node arrives.
        commit(&feed, 6, "f");
        let hearing = async {
            tokio::task::yield_now().await;
            assert!(feed.note_remote(at(5), Some(vec![touched("e")])));
        };
        let (both, ()) = tokio::join!(between(&feed, 4, 6), hearing);
        assert_eq!(both, Some(vec![touched("e"), touched("f")]));
        assert_eq!(began.elapsed(), Duration::ZERO);
        // An older program committed revision 7 without a notification.
        assert_eq!(between(&feed, 6, 7).await, None);
        assert_eq!(began.elapsed(), PATIENCE);
        assert!(feed.note_remote(at(8), Some(Vec::new())));
        assert_eq!(between(&feed, 6, 8).await, None, "7 does not come any more");
        // Too large for a notification.
        assert!(feed.note_remote(at(9), None));
        assert_eq!(between(&feed, 8, 9).await, None);
        let losing = async {
            tokio::task::yield_now().await;
            feed.lose();
        };
        let (lost, ()) = tokio::join!(between(&feed, 9, 10), losing);
        assert_eq!(lost, None);
        assert_eq!(began.elapsed(), PATIENCE);
    }

    /// A role of the database can send the message of a lost commit again, whose number another one has now.
    #[tokio::test]
    async fn the_message_of_a_lost_commit_is_no_knowledge_of_another() {
        let feed = Feed::default();
        feed.listen(at(0));
        for (number, id) in [(1, "a"), (2, "lost")] {
            assert!(feed.note_remote(at(number), Some(vec![touched(id)])));
        }
        let later = |number| Revision { epoch: 1, number };
        feed.begin_epoch(1);
        feed.listen(later(1));
        assert!(feed.note_remote(later(2), Some(vec![touched("lost")])));
        assert_eq!(feed.between(later(1), later(2)).await, None);
        // What this process commits is certain.
        feed.begin();
        let own = Some(vec![touched("b")]);
        feed.lock().pending.push((2, own.clone()));
        feed.commit(1);
        assert_eq!(feed.between(later(1), later(2)).await, own);
        let behind = i64::try_from(COMMITS_MAX).unwrap() + 3;
        assert!(feed.note_remote(later(behind), Some(vec![touched("c")])));
        let one = Some(vec![touched("c")]);
        assert_eq!(feed.between(later(behind - 1), later(behind)).await, one);
    }

    #[tokio::test]
    async fn nothing_is_known_across_epochs() {
        let feed = Feed::default();
        feed.listen(at(0));
        commit(&feed, 1, "a");
        feed.begin();
        feed.lock().pending.push((2, Some(vec![touched("b")])));
        feed.begin_epoch(1);
        feed.commit(0);
        let later = |number| Revision { epoch: 1, number };
        for (since, until) in [(at(0), at(1)), (at(1), later(1)), (later(0), later(2))] {
            assert_eq!(feed.between(since, until).await, None);
        }
        feed.begin();
        feed.lock().pending.push((1, Some(vec![touched("c")])));
        feed.commit(1);
        let one = Some(vec![touched("c")]);
        assert_eq!(feed.between(later(0), later(1)).await, one);
        // The notification of a lost commit comes late, and a loss is reported twice.
        assert!(!feed.note_remote(at(2), Some(vec![touched("b")])));
        feed.begin_epoch(1);
        assert_eq!(feed.between(later(0), later(1)).await, one);
        assert_eq!(feed.between(later(1), later(2)).await, None);
    }
}
