//! The messages that this node stored in the stream and that are not settled, so that those which vanish are counted.
//!
//! A message vanishes if the stream is deleted, loses its disks, or removes it by a limit. A node counts only messages
//! that it stored itself, so nothing is counted twice. It does not see what other nodes settle: where nodes share the
//! stream, a message that is not there any more counts as lost only if that is proven. The stream itself proves it, if
//! it was created again or has a lower sequence number than before. So does the node that holds the head of a
//! destination: no other node may settle its messages meanwhile.
//!
//! A search counts a loss that two looks saw, so a reply of a server that is behind counts nothing. A message that is gone
//! when it should be settled counts immediately.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use culvert_base::sync::lock;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Messages that are remembered. Those beyond are not counted if they vanish. The limits of destinations keep the
/// number far below.
const MESSAGES_MAX: usize = 1 << 18;
/// How long a message that is not in the stream is remembered, in case another node proves that it was lost.
const UNPROVEN_FOR: Duration = Duration::from_secs(120);

/// The state of the stream at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamState {
    /// When it was created, in nanoseconds. It identifies the stream among those of the same name.
    pub(super) created: i64,
    /// The sequence number of its last message.
    pub(super) last: u64,
    /// When the state was requested. Later messages are not in it.
    pub(super) asked_at: Instant,
}

/// What a look found out about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It is in the stream.
    There,
    /// It is not, and another node may have settled it.
    Away,
    /// It is not, and no node settled it.
    Lost,
}

/// Messages by destination.
#[derive(Debug, Default)]
pub(super) struct Outstanding(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: HashMap<String, BTreeMap<u64, Message>>,
    n_messages: usize,
    /// When the stream was created, as of the last look.
    created: i64,
    n_publications: usize,
    /// Messages that were settled before the reply to their publication was read.
    settled_early: HashSet<u64>,
    /// Events that were lost since they were last taken, by destination.
    lost: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    events: u32,
    created: i64,
    stored_at: Instant,
    /// When a look first did not find it, and whether it is proven that no node settled it.
    away: Option<(Instant, bool)>,
}

/// The messages of a node that stopped, in its file.
#[derive(Debug, Deserialize, Serialize)]
struct Saved {
    stream: String,
    created: i64,
    /// Sequence number and events of each message.
    lines: BTreeMap<String, Vec<(u64, u32)>>,
}

/// Messages that are being stored.
#[derive(Debug)]
pub(super) struct Publication<'a>(&'a Outstanding);

impl Publication<'_> {
    /// Notes that the stream has a message.
    pub(super) fn stored(&self, destination: &str, sequence: u64, events: u32) {
        let mut state = self.0.lock();
        if state.settled_early.remove(&sequence) || state.n_messages >= MESSAGES_MAX {
            return;
        }
        let message = Message {
            events,
            created: state.created,
            stored_at: Instant::now(),
            away: None,
        };
        let before = state.insert(destination, sequence, message);
        // The stream lost the message that had the number before, unless another node may have settled it.
        if let Some(before) = before
            && !matches!(before.away, Some((_, false)))
        {
            state.lose(destination, before.events);
        }
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.n_publications = state.n_publications.saturating_sub(1);
        if state.n_publications == 0 {
            state.settled_early.clear();
        }
    }
}

impl State {
    fn insert(&mut self, destination: &str, sequence: u64, message: Message) -> Option<Message> {
        let line = self.lines.entry(destination.to_owned()).or_default();
        let before = line.insert(sequence, message);
        self.n_messages += usize::from(before.is_none());
        before
    }

    fn remove(&mut self, destination: &str, sequence: u64) -> Option<Message> {
        let line = self.lines.get_mut(destination)?;
        let removed = line.remove(&sequence)?;
        if line.is_empty() {
            self.lines.remove(destination);
        }
        self.n_messages = self.n_messages.saturating_sub(1);
        Some(removed)
    }

    fn lose(&mut self, destination: &str, events: u32) {
        let lost = self.lost.entry(destination.to_owned()).or_default();
        *lost = lost.saturating_add(u64::from(events));
    }
}

impl Outstanding {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Begins to store messages.
    pub(super) fn publish(&self) -> Publication<'_> {
        self.lock().n_publications += 1;
        Publication(self)
    }

    /// Notes that this node settled a message.
    pub(super) fn settled(&self, destination: &str, sequence: u64) {
        let mut state = self.lock();
        let is_known = state.remove(destination, sequence).is_some();
        // A number is removed when its publication ends; it cannot be that of a later message.
        if !is_known && state.n_publications > 0 && state.settled_early.len() < MESSAGES_MAX {
            state.settled_early.insert(sequence);
        }
    }

    /// Counts a message as lost that this node had leased and whose body is nowhere any more.
    pub(super) fn lose(&self, destination: &str, sequence: u64, events: u32) {
        let mut state = self.lock();
        state.remove(destination, sequence);
        state.lose(destination, events);
    }

    /// Forgets the messages of a deleted destination.
    pub(super) fn forget(&self, destination: &str) {
        let mut state = self.lock();
        let forgotten = state.lines.remove(destination).map_or(0, |line| line.len());
        state.n_messages = state.n_messages.saturating_sub(forgotten);
    }

    /// The destinations with messages.
    pub(super) fn destinations(&self) -> Vec<String> {
        self.lock().lines.keys().cloned().collect()
    }

    /// Notes the state of the stream. Returns whether it is another stream than at the last look.
    pub(super) fn note(&self, stream: &StreamState) -> bool {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.created, stream.created);
        // Messages that were stored before the first look are of this stream, or are looked for in it.
        before != 0 && before != stream.created
    }

    /// The first message of a destination that is expected in the stream.
    pub(super) fn first(&self, destination: &str, stream: &StreamState) -> Option<u64> {
        let state = self.lock();
        let mut line = state.lines.get(destination)?.iter();
        line.find(|(_, message)| message.created == stream.created)
            .map(|(sequence, _)| *sequence)
    }

    /// Messages that were stored in another stream of the same name, or before the stream was known, and that the
    /// stream may have nevertheless.
    pub(super) fn doubtful(&self, destination: &str, stream: &StreamState) -> Vec<(u64, u32)> {
        let state = self.lock();
        let Some(line) = state.lines.get(destination) else {
            return Vec::new();
        };
        let is_doubtful = |(_, message): &(&u64, &Message)| {
            message.created != stream.created && message.stored_at < stream.asked_at
        };
        let line = line.range(..=stream.last).filter(is_doubtful);
        line.map(|(sequence, message)| (*sequence, message.events))
            .collect()
    }

    /// Notes what a look found: which of the doubtful messages that it searched are in the stream, and its first message
    /// from [`Self::first`] on. A message that is away is lost if `is_proven`, or if it is in a range that a node has
    /// proven to be lost.
    pub(super) fn looked(
        &self,
        destination: &str,
        stream: &StreamState,
        looked_for: &HashMap<u64, bool>,
        first: Option<u64>,
        is_proven: bool,
    ) {
        let now = Instant::now();
        let mut state = self.lock();
        let Some(line) = state.lines.get_mut(destination) else {
            return;
        };
        let mut ended = Vec::new();
        for (sequence, message) in line.iter_mut() {
            if message.stored_at >= stream.asked_at {
                continue;
            }
            let is_doubtful = message.created != stream.created;
            let finding = match is_doubtful {
                true if *sequence > stream.last => Finding::Lost,
                true => match looked_for.get(sequence) {
                    // It was away before the stream was created again: this is a later message with its number.
                    Some(true) if matches!(message.away, Some((_, false))) => Finding::Lost,
                    Some(true) => {
                        message.created = stream.created;
                        Finding::There
                    }
                    // It was stored before the first look, in this stream as far as is known.
                    Some(false) if message.created == 0 && !is_proven => {
                        message.created = stream.created;
                        Finding::Away
                    }
                    Some(false) => Finding::Lost,
                    // A later look searches it.
                    None => continue,
                },
                false if *sequence > stream.last => Finding::Lost,
                false if first.is_none_or(|first| *sequence < first) && is_proven => Finding::Lost,
                false if first.is_none_or(|first| *sequence < first) => Finding::Away,
                false => Finding::There,
            };
            match message.find(finding, now) {
                MessageState::Waits => {}
                MessageState::Lost => ended.push((*sequence, message.events)),
                MessageState::Forgotten => ended.push((*sequence, 0)),
            }
        }
        for (sequence, events) in ended {
            state.remove(destination, sequence);
            if events > 0 {
                state.lose(destination, events);
            }
        }
    }

    /// Notes that a node has proven that no message of this range was settled.
    pub(super) fn prove(&self, destination: &str, created: i64, range: Range<u64>) {
        let now = Instant::now();
        let mut state = self.lock();
        let Some(line) = state.lines.get_mut(destination) else {
            return;
        };
        for (_, message) in line.range_mut(range) {
            if message.created == created {
                let (since, _) = message.away.unwrap_or((now, true));
                message.away = Some((since, true));
            }
        }
    }

    /// Whether another node may have settled a message of a destination.
    pub(super) fn is_any_away(&self, destination: &str) -> bool {
        let state = self.lock();
        let mut line = state.lines.get(destination).into_iter().flatten();
        line.any(|(_, message)| matches!(message.away, Some((_, false))))
    }

    /// Messages that the last look did not find.
    #[cfg(test)]
    pub(super) fn n_away(&self) -> usize {
        let state = self.lock();
        let all = state.lines.values().flat_map(BTreeMap::values);
        all.filter(|message| message.away.is_some()).count()
    }

    /// Takes the numbers of events that were lost.
    pub(super) fn take_lost(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.lock().lost)
    }

    /// Writes the messages to a file, for the next run of this node.
    pub(super) fn save(&self, path: &Path, stream: &str) -> std::io::Result<()> {
        let saved = {
            let state = self.lock();
            let created = state.created;
            let lines = state.lines.iter().map(|(destination, line)| {
                let line = line
                    .iter()
                    .filter(|(_, message)| message.created == created && message.away.is_none());
                let line = line.map(|(sequence, message)| (*sequence, message.events));
                (destination.clone(), line.collect::<Vec<_>>())
            });
            Saved {
                stream: stream.to_owned(),
                created,
                lines: lines.filter(|(_, line)| !line.is_empty()).collect(),
            }
        };
        if saved.lines.is_empty() {
            return Ok(());
        }
        std::fs::write(path, serde_json::to_vec(&saved)?)
    }

    /// Reads the messages of the previous run, and removes the file: after a crash it would list settled messages.
    pub(super) fn load(&self, path: &Path, stream: &str) -> std::io::Result<()> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        std::fs::remove_file(path)?;
        let saved: Saved = serde_json::from_slice(&text)?;
        if saved.stream != stream {
            return Ok(());
        }
        let mut state = self.lock();
        for (destination, line) in saved.lines {
            for (sequence, events) in line {
                if state.n_messages >= MESSAGES_MAX {
                    return Ok(());
                }
                let message = Message {
                    events,
                    created: saved.created,
                    stored_at: Instant::now(),
                    away: None,
                };
                state.insert(&destination, sequence, message);
            }
        }
        Ok(())
    }
}

/// What happens to a message after a look.
enum MessageState {
    Waits,
    Lost,
    Forgotten,
}

impl Message {
    fn find(&mut self, finding: Finding, now: Instant) -> MessageState {
        match (finding, self.away) {
            (Finding::There, _) => {
                self.away = None;
                MessageState::Waits
            }
            (Finding::Lost, None) => {
                self.away = Some((now, true));
                MessageState::Waits
            }
            // It was away before that, so another node may have settled it.
            (Finding::Lost, Some((_, false))) => MessageState::Forgotten,
            (Finding::Lost | Finding::Away, Some((_, true))) => MessageState::Lost,
            (Finding::Away, None) => {
                self.away = Some((now, false));
                MessageState::Waits
            }
            (Finding::Away, Some((since, false))) => {
                match now.duration_since(since) < UNPROVEN_FOR {
                    true => MessageState::Waits,
                    false => MessageState::Forgotten,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(created: i64, last: u64) -> StreamState {
        StreamState {
            created,
            last,
            asked_at: Instant::now(),
        }
    }

    fn three(outstanding: &Outstanding) {
        outstanding.note(&at(1, 0));
        let publication = outstanding.publish();
        for sequence in 1..=3 {
            publication.stored("ed_1", sequence, 10);
        }
    }

    /// Two looks that find this.
    async fn look(
        outstanding: &Outstanding,
        created: i64,
        last: u64,
        first: Option<u64>,
        is_proven: bool,
    ) -> u64 {
        for _ in 0..2 {
            tokio::time::advance(Duration::from_millis(1)).await;
            let stream = at(created, last);
            outstanding.note(&stream);
            let doubtful = outstanding.doubtful("ed_1", &stream).into_iter();
            let looked_for = doubtful.map(|(sequence, _)| (sequence, false)).collect();
            outstanding.looked("ed_1", &stream, &looked_for, first, is_proven);
        }
        outstanding.take_lost().values().sum()
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_proven_counts() {
        for (created, last, first, is_proven, lost) in [
            (1, 3, Some(1), true, 0),
            // A limit removed the first; another node may also have settled it.
            (1, 3, Some(2), true, 10),
            (1, 3, Some(2), false, 0),
            (1, 3, None, true, 30),
            // The stream lost its disks, or was created again.
            (1, 0, None, false, 30),
            (1, 1, Some(1), false, 20),
            (2, 0, None, false, 30),
            (2, 9, None, false, 30),
        ] {
            let outstanding = Outstanding::default();
            three(&outstanding);
            let counted = look(&outstanding, created, last, first, is_proven).await;
            assert_eq!(counted, lost, "{created} {last} {first:?} {is_proven}");
            let again = look(&outstanding, created, last, first, is_proven).await;
            assert_eq!(again, 0, "once");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn settled_messages_are_not_lost() {
        let outstanding = Outstanding::default();
        outstanding.note(&at(1, 0));
        let publication = outstanding.publish();
        // Settled before the reply to the publication was read.
        outstanding.settled("ed_1", 1);
        for sequence in 1..=3 {
            publication.stored("ed_1", sequence, 10);
        }
        drop(publication);
        outstanding.settled("ed_1", 2);
        assert_eq!(look(&outstanding, 1, 3, None, true).await, 10);
        // A number of a stream before.
        outstanding.settled("ed_1", 1);
        outstanding.publish().stored("ed_1", 1, 10);
        assert_eq!(look(&outstanding, 2, 0, None, true).await, 10);
    }

    /// The reply to the first look is read after the first message was stored.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_another_node_settles_before_the_first_look_is_not_lost() {
        for (is_proven, lost) in [(false, 0), (true, 10)] {
            let outstanding = Outstanding::default();
            outstanding.publish().stored("ed_1", 1, 10);
            let counted = look(&outstanding, 1, 1, None, is_proven).await;
            assert_eq!(counted, lost, "proven: {is_proven}");
            assert_eq!(look(&outstanding, 1, 1, None, is_proven).await, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_node_proves_a_loss_also_later() {
        let outstanding = Outstanding::default();
        three(&outstanding);
        assert_eq!(look(&outstanding, 1, 3, Some(3), false).await, 0);
        outstanding.prove("ed_1", 1, 2..3);
        assert_eq!(look(&outstanding, 1, 3, Some(3), false).await, 10);
        // What was away before the stream was deleted may have been settled.
        assert_eq!(look(&outstanding, 2, 0, None, false).await, 10);
    }

    /// A stream that was created again gives the same numbers before the next look.
    #[tokio::test(start_paused = true)]
    async fn a_number_that_is_used_again_is_a_loss() {
        let outstanding = Outstanding::default();
        three(&outstanding);
        three(&outstanding);
        assert_eq!(outstanding.take_lost()["ed_1"], 30);
        assert_eq!(look(&outstanding, 1, 3, Some(1), true).await, 0);
        assert_eq!(look(&outstanding, 1, 3, Some(3), false).await, 0);
        three(&outstanding);
        assert_eq!(
            outstanding.take_lost()["ed_1"],
            10,
            "the others were away before"
        );
    }

    /// The look sees the later message before this node reads the reply to its publication.
    #[tokio::test(start_paused = true)]
    async fn a_number_of_a_settled_message_that_is_used_again_is_no_loss() {
        let outstanding = Outstanding::default();
        three(&outstanding);
        // Another node settled all of them.
        assert_eq!(look(&outstanding, 1, 3, None, false).await, 0);
        let publication = outstanding.publish();
        tokio::time::advance(Duration::from_millis(1)).await;
        let stream = at(2, 1);
        outstanding.note(&stream);
        let looked_for = HashMap::from([(1, true)]);
        outstanding.looked("ed_1", &stream, &looked_for, None, false);
        publication.stored("ed_1", 1, 10);
        drop(publication);
        assert!(outstanding.take_lost().is_empty());
        assert_eq!(look(&outstanding, 2, 1, Some(1), false).await, 0);
        assert_eq!(
            look(&outstanding, 2, 0, None, false).await,
            10,
            "the later one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_counts_nothing() {
        let outstanding = Outstanding::default();
        three(&outstanding);
        tokio::time::advance(Duration::from_millis(1)).await;
        outstanding.looked("ed_1", &at(1, 0), &HashMap::new(), None, true);
        outstanding.looked("ed_1", &at(1, 3), &HashMap::new(), Some(1), true);
        outstanding.looked("ed_1", &at(1, 0), &HashMap::new(), None, true);
        assert!(outstanding.take_lost().is_empty());
    }

    /// The stream was created again, and has the numbers of the messages.
    #[tokio::test(start_paused = true)]
    async fn a_message_that_was_not_searched_is_not_lost() {
        let outstanding = Outstanding::default();
        three(&outstanding);
        let looks = |searched: u64| {
            for _ in 0..2 {
                let stream = at(2, 3);
                outstanding.note(&stream);
                let looked_for = (1..=searched).map(|sequence| (sequence, false)).collect();
                outstanding.looked("ed_1", &stream, &looked_for, None, false);
            }
            outstanding.take_lost().values().sum::<u64>()
        };
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((looks(2), looks(2), looks(3)), (20, 0, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_node_leaves_its_messages_to_its_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stored");
        let before = Outstanding::default();
        three(&before);
        before.save(&path, "culvert").unwrap();
        let after = Outstanding::default();
        after.load(&path, "another stream").unwrap();
        assert!(after.destinations().is_empty());
        before.save(&path, "culvert").unwrap();
        after.load(&path, "culvert").unwrap();
        assert!(!path.exists(), "once");
        assert_eq!(look(&after, 2, 0, None, false).await, 30);
        std::fs::write(&path, b"garbage").unwrap();
        assert!(after.load(&path, "culvert").is_err());
        assert!(after.load(&path, "culvert").is_ok());
    }
}
