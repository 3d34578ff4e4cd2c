//! Deadlines, and resets of streams whose data stays unread for too long.

use std::time::{Duration, Instant};

use crate::code::ErrorCode;
use crate::connection::Connection;
use crate::frame::StreamId;

/// The interval of checks while unread data exceeds the limit. A check visits each stream.
const RELIEVE_EVERY: Duration = Duration::from_millis(100);
/// When unread data is at the burst limit, streams are reset only if their data has waited this long, because
/// their readers may not have been scheduled yet.
const FRESH: Duration = Duration::from_millis(100);

impl Connection {
    /// When [`Connection::expire`] should be called next, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ending.is_some() {
            return None;
        }
        let lingering = self.lingering.front().map(|(until, _)| *until);
        self.relieve_at.into_iter().chain(lingering).min()
    }

    /// Resets streams that hold too much unread data for too long, and streams whose peer does not finish in
    /// time.
    pub fn expire(&mut self, now: Instant) {
        if self.relieve_at.is_some_and(|at| at <= now) {
            self.relieve_at = None;
            self.relieve(now);
        }
        while self.ending.is_none()
            && let Some((until, id)) = self.lingering.front().copied()
            && until <= now
        {
            self.lingering.pop_front();
            if self.streams.get(&id).is_some_and(|stream| stream.lingers) {
                self.reset(id, ErrorCode::STREAM_CANCELLED, now);
                self.remove(id);
            }
        }
    }

    /// Schedules a check if unread data exceeds the limit, or runs it immediately at the burst limit.
    pub(super) fn watch_held(&mut self, now: Instant) {
        if self.held < self.limits.held_bytes_max || self.ending.is_some() {
            return;
        }
        match self.relieve_at {
            None if self.held >= self.limits.burst_bytes_max => self.relieve(now),
            None => self.relieve_at = Some(now + RELIEVE_EVERY),
            Some(_) => {}
        }
    }

    /// Resets streams, by the product of unread bytes and waiting time, until a quarter of the limit is free.
    /// A check visits all streams. It either frees enough or waits before it repeats, so a peer with many
    /// streams cannot make checks more frequent.
    pub(super) fn relieve(&mut self, now: Instant) {
        let is_full = self.held >= self.limits.burst_bytes_max;
        let patience = if is_full {
            FRESH.min(self.limits.unread_after)
        } else {
            self.limits.unread_after
        };
        if self.held >= self.limits.held_bytes_max {
            let holding = self.streams.values().filter(|it| !it.unread.is_empty());
            // Skips streams below half of the average, because the remaining streams hold more than half of
            // the data.
            let little = self.held / holding.count().max(1) / 2;
            let mut holding: Vec<(u128, StreamId)> = self
                .streams
                .iter()
                .filter(|(_, stream)| stream.unread.len() > little)
                .filter_map(|(id, stream)| {
                    let waits = now.saturating_duration_since(stream.since);
                    let weight = stream.unread.len() as u128 * waits.as_micros();
                    (waits >= patience).then_some((weight, *id))
                })
                .collect();
            holding.sort_unstable();
            let enough = self.limits.held_bytes_max - self.limits.held_bytes_max / 4;
            while self.held > enough
                && let Some((_, id)) = holding.pop()
            {
                self.cut += 1;
                self.reset(id, ErrorCode::ENHANCE_YOUR_CALM, now);
            }
        }
        if self.held >= self.limits.held_bytes_max {
            self.relieve_at = Some(now + RELIEVE_EVERY);
        }
    }
}
