//! The streams this side reset last. Their peer did not know yet when it sent what now arrives for
//! them, so that is dropped without an answer.

use std::collections::{BTreeMap, VecDeque};

use crate::StreamId;

/// Beyond it the oldest is forgotten; late data for it is then answered like data for a stream that
/// never was.
const REMEMBERED_MAX: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// With the turn of each. What was removed stays here until it is the oldest.
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

    /// The id is in use again, which the protocol does not forbid.
    pub(crate) fn remove(&mut self, id: StreamId) {
        self.known.remove(&id);
    }
}
