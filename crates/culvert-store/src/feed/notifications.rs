//! Notifications of commits between the processes on a PostgreSQL database. They list the documents
//! that each commit touched.
//!
//! A commit sends its notification in its transaction, so notifications arrive in the order of
//! commits, and only for commits that succeeded. They only save the other processes a query and its
//! latency. The revision is read from the ledger, and a process that missed a notification queries
//! the database.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::Fault;
use tokio::sync::{Notify, watch};

use crate::commit::revision::Revision;
use crate::commit::state_log::StateLog;
use crate::database::dialect::Site;
use crate::database::pool::Pool;
use crate::feed::{Commit, Touched};
use crate::node::broadcast::{BYTES_MAX, Broadcast, Channel};

/// Delay before a lost connection is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The notifications of a transaction on a channel, as a JSON list of texts.
pub(crate) fn messages(channel: &Channel, commits: &[(i64, Commit)]) -> String {
    let message = |(revision, commit): &(i64, Commit)| {
        let pairs = |touched: &Vec<Touched>| -> Vec<[String; 2]> {
            let pair = |one: &Touched| [one.kind.clone(), one.id.clone()];
            touched.iter().map(pair).collect()
        };
        let whole = serde_json::json!([revision, commit.as_ref().map(pairs)]).to_string();
        match whole.len() <= BYTES_MAX {
            true => whole,
            false => serde_json::json!([revision, null]).to_string(),
        }
    };
    let messages = commits.iter().map(message);
    let messages: Vec<String> = messages.map(|message| channel.sealed(&message)).collect();
    serde_json::json!(messages).to_string()
}

fn read(message: &str) -> Option<(i64, Commit)> {
    let (revision, pairs): (i64, Option<Vec<[String; 2]>>) = serde_json::from_str(message).ok()?;
    let touched = |pairs: Vec<[String; 2]>| {
        let one = |[kind, id]: [String; 2]| Touched { kind, id };
        pairs.into_iter().map(one).collect()
    };
    Some((revision, pairs.map(touched)))
}

/// Listens until closing. `heard` is notified whenever there may be a new revision.
pub(crate) async fn listen(
    site: Site,
    pool: Arc<Pool>,
    state_log: Arc<StateLog>,
    heard: Arc<Notify>,
    mut closing: watch::Receiver<bool>,
) {
    let Some(channel) = state_log.channel.clone() else {
        return;
    };
    let listening = async {
        loop {
            let Err(fault) = listen_once(&site, &pool, &state_log, &heard, &channel).await;
            state_log.feed.lose();
            tracing::debug!(cause = %fault.chain(), "listening for commits of other nodes");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    };
    tokio::select! {
        () = listening => {}
        _ = closing.wait_for(|closing| *closing) => {}
    }
}

async fn listen_once(
    site: &Site,
    pool: &Pool,
    state_log: &StateLog,
    heard: &Notify,
    channel: &Channel,
) -> Result<std::convert::Infallible, Fault> {
    let doing = "listening for commits of other nodes";
    let listener = Listener::new(state_log);
    let mut broadcast = Broadcast::open(site, channel)
        .await?
        .ok_or_else(|| Fault::bare(format!("{doing}: the database has no notifications")))?;
    // Every commit after this sends a notification that is received here.
    let (from, _) = state_log.read_ledger(pool).await?;
    listener.begin(from)?;
    heard.notify_one();
    loop {
        let message = broadcast.receive().await?;
        if listener.take(&message)? {
            heard.notify_one();
        }
    }
}

/// Takes the notifications of one connection. All are of one epoch: the connection may still have those of lost commits when
/// the loss is noticed, and their numbers are used again.
pub(crate) struct Listener<'s> {
    state_log: &'s StateLog,
    /// The epoch before the connection was opened.
    epoch: u64,
}

impl<'s> Listener<'s> {
    const LOST: &'static str = "listening for commits of other nodes: the database lost commits";

    /// For a connection that is opened after this.
    pub(crate) fn new(state_log: &'s StateLog) -> Self {
        let epoch = state_log.history.revision().epoch;
        Self { state_log, epoch }
    }

    /// Begins after this revision, which was read once the connection was open. Fails if commits were lost since before.
    pub(crate) fn begin(&self, from: Revision) -> Result<(), Fault> {
        if from.epoch != self.epoch {
            return Err(Fault::bare(Self::LOST));
        }
        self.state_log.feed.listen(from);
        Ok(())
    }

    /// Adds a notification to the feed. Returns whether it names a new revision.
    pub(crate) fn take(&self, message: &str) -> Result<bool, Fault> {
        let malformed = "listening for commits of other nodes: a notification is malformed";
        let (number, commit) = read(message).ok_or_else(|| Fault::bare(malformed))?;
        let revision = Revision {
            epoch: self.epoch,
            number,
        };
        if !self.state_log.feed.note_remote(revision, commit) {
            return Err(Fault::bare(Self::LOST));
        }
        Ok(revision > self.state_log.history.revision())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_is_read_as_it_was_written() {
        let touched = |n: usize, length: usize| -> Vec<Touched> {
            let one = |n| Touched {
                kind: "endpoint".to_owned(),
                id: format!("{n:0length$}"),
            };
            (0..n).map(one).collect()
        };
        let commits = [
            (1, Some(Vec::new())),
            (2, Some(touched(64, 40))),
            (3, None),
            // Larger than a notification may be.
            (4, Some(touched(64, 200))),
        ];
        let channel = Channel::new("c".to_owned(), "key");
        let written: Vec<String> = serde_json::from_str(&messages(&channel, &commits)).unwrap();
        // The database's limit.
        assert!(written.iter().all(|message| message.len() < 8000));
        let other = Channel::new("c".to_owned(), "another key");
        assert!(
            written
                .iter()
                .all(|message| other.opened(message).is_none())
        );
        for message in ["", "[1,[]]", "é".repeat(40).as_str()] {
            assert_eq!(channel.opened(message), None);
        }
        let opened = written.iter().filter_map(|message| channel.opened(message));
        let heard: Vec<_> = opened.filter_map(read).collect();
        let [one, two, three, _] = commits;
        assert_eq!(heard, [one, two, three, (4, None)]);
        for other in ["", "[]", "[1]", "[1,[[\"a\"]]]", "{}"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
