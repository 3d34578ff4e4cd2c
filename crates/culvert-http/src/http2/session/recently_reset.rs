//! Streams that ended before their client ended them.

use std::collections::VecDeque;

use super::By;

/// Maximum number of streams. Frames that were sent before the client knew may still arrive for them.
const STREAMS_MAX: usize = 256;

/// A stream that ended before its client ended it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResetStream {
    pub(super) id: u32,
    /// Which side reset it.
    pub(super) by: By,
    /// The rest of its receive window.
    pub(super) receive_window: u32,
}

/// The last streams that were reset. A frame for any stream takes about ten comparisons in a full table.
#[derive(Debug, Default)]
pub(super) struct RecentlyReset {
    /// By ID. The lowest, which belongs to the oldest stream, gives way.
    streams: VecDeque<ResetStream>,
}

impl RecentlyReset {
    pub(super) fn get(&self, id: u32) -> Option<&ResetStream> {
        self.streams.get(self.position(id).ok()?)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut ResetStream> {
        let place = self.position(id).ok()?;
        self.streams.get_mut(place)
    }

    pub(super) fn insert(&mut self, stream: ResetStream) {
        match self.position(stream.id) {
            Ok(known) => self.streams[known] = stream,
            Err(place) if self.streams.len() < STREAMS_MAX => self.streams.insert(place, stream),
            Err(place) => {
                self.streams.pop_front();
                self.streams.insert(place.saturating_sub(1), stream);
            }
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Ok(place) = self.position(id) {
            self.streams.remove(place);
        }
    }

    fn position(&self, id: u32) -> Result<usize, usize> {
        self.streams.binary_search_by(|stream| {
            #[cfg(test)]
            tests::COMPARED.set(tests::COMPARED.get() + 1);
            stream.id.cmp(&id)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    fn stream(id: u32) -> ResetStream {
        ResetStream {
            id,
            by: By::Us,
            receive_window: id,
        }
    }

    #[test]
    fn a_full_table_costs_a_few_comparisons() {
        for held in [0, STREAMS_MAX / 2, STREAMS_MAX, 10 * STREAMS_MAX] {
            let mut table = RecentlyReset::default();
            for nth in 0..held {
                table.insert(stream(2 * nth as u32 + 1));
            }
            let capacity = table.streams.capacity();
            for id in 0..2 * held as u32 + 3 {
                COMPARED.set(0);
                table.get(id);
                assert!(COMPARED.get() <= 11, "{held}: {}", COMPARED.get());
            }
            COMPARED.set(0);
            table.insert(stream(u32::MAX));
            assert!(COMPARED.get() <= 11, "{held}: {}", COMPARED.get());
            assert!(table.streams.len() <= STREAMS_MAX);
            if held >= STREAMS_MAX {
                assert_eq!(table.streams.capacity(), capacity, "nothing is allocated");
            }
        }
    }

    #[test]
    fn the_oldest_stream_gives_way() {
        let mut table = RecentlyReset::default();
        for nth in 0..STREAMS_MAX as u32 {
            // In no order.
            table.insert(stream((nth * 77 % STREAMS_MAX as u32) * 2 + 1));
        }
        assert!(table.get(1).is_some());
        table.insert(stream(1_001));
        assert!(table.get(1).is_none());
        for id in [3, 511, 1_001] {
            assert_eq!(table.get(id).map(|it| it.receive_window), Some(id));
        }
        table.get_mut(3).unwrap().receive_window = 7;
        assert_eq!(table.get(3).map(|it| it.receive_window), Some(7));
        table.remove(3);
        assert!(table.get(3).is_none());
        // Below all others, a stream is remembered too.
        table.insert(stream(1));
        assert!(table.get(1).is_some());
    }
}
