//! Room for a new stream when all are in use: those that carry nothing end first, of the source with the most.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::code::ErrorCode;
use crate::connection::Connection;
use crate::frame::StreamId;
use crate::stream::{Source, Stream};

/// How long a reader that has data must take none before the stream makes room.
const STALLED: Duration = Duration::from_secs(1);
/// How long received data must wait for a reader that takes some.
const SLOW: Duration = Duration::from_secs(10);
/// How long a stream of a source with more than its share must carry nothing before it makes room.
const IDLE: Duration = Duration::from_secs(10);
/// Number of streams that are visited in a millisecond, at most.
const VISITED_IN_A_MS: usize = 512;

/// The order in which streams make room, the last one first.
type Rank = (bool, bool, usize, Duration);

impl Connection {
    /// Ends one stream in use, if there is one that should end so that `source` gets another.
    ///
    /// A source takes no place from one that has fewer, so a client with many addresses or streams gains nothing by
    /// asking more often.
    pub(super) fn make_room(&mut self, source: Source, now: Instant) {
        if self.make_room_at.is_some_and(|at| now < at) {
            return;
        }
        let visited = Duration::from_millis((self.streams.len() / VISITED_IN_A_MS) as u64);
        self.make_room_at = Some(now + visited);
        if let Some(id) = self.first_to_go(source, now) {
            self.cut += 1;
            self.reset(id, ErrorCode::ENHANCE_YOUR_CALM, now);
        }
    }

    fn first_to_go(&self, source: Source, now: Instant) -> Option<StreamId> {
        let mut counts: BTreeMap<Source, usize> = BTreeMap::from([(source, 0)]);
        for (_, stream) in self.in_use() {
            *counts.entry(stream.source).or_default() += 1;
        }
        let share = (self.limits.streams_max / counts.len()).max(1);
        let has = counts.get(&source).copied().unwrap_or(0);
        let rank = |stream: &Stream| -> Option<Rank> {
            let count = counts.get(&stream.source).copied().unwrap_or(0);
            let is_known = stream.source != Source::default();
            let has_more = is_known && count > share;
            let age = |since| now.saturating_duration_since(since);
            let has_unread = !stream.unread.is_empty();
            let (is_due, waits) = match has_unread {
                true => (
                    age(stream.moved_at) >= STALLED || age(stream.since) >= SLOW,
                    age(stream.since),
                ),
                false => (
                    has_more && age(stream.moved_at) >= IDLE,
                    age(stream.moved_at),
                ),
            };
            let may = match stream.source == source {
                true => has_unread,
                false => count > has,
            };
            (is_due && may).then_some((has_more, has_unread, count, waits))
        };
        let ranked = self
            .in_use()
            .filter_map(|(id, stream)| Some((rank(stream)?, id)));
        ranked.max().map(|(_, id)| id)
    }

    /// Resets the streams in use that got no payload yet. For when the peer does not respond.
    pub fn reset_unanswered(&mut self, code: ErrorCode, now: Instant) {
        let waiting = self.in_use().filter(|(_, stream)| !stream.is_answered);
        let ids: Vec<StreamId> = waiting.map(|(id, _)| id).collect();
        for id in ids {
            self.reset(id, code, now);
        }
    }
}
