//! The streams that this side reset most recently. Their peer may not have known when it sent data that arrives now,
//! so that data is dropped without a response.

use std::collections::{BTreeMap, VecDeque};

use crate::frame::StreamId;

/// Maximum number of remembered streams. The oldest is forgotten first; late data for it is then treated like data
/// for an unknown stream.
const REMEMBERED_MAX: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Streams with their sequence numbers. Removed streams stay here until they are the oldest.
    order: VecDeque<(StreamId, u64)>,
    known: BTreeMap<StreamId, u64>,
    turn: u64,
}

impl Retired {
    pub(crate) fn insert(&mut self, id: StreamId) {
        if self.known.contains_key(&id) {
            return;
        }
        self.turn += 1;
        self.known.insert(id, self.turn);
        self.order.push_back((id, self.turn));
        if self.order.len() > REMEMBERED_MAX
            && let Some((oldest, turn)) = self.order.pop_front()
            && self.known.get(&oldest) == Some(&turn)
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, id: StreamId) -> bool {
        self.known.contains_key(&id)
    }

    /// The id is used again, which the protocol permits.
    pub(crate) fn remove(&mut self, id: StreamId) {
        self.known.remove(&id);
    }
}
