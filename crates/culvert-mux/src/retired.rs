//! The streams this side reset last. Their peer did not know yet when it sent what now arrives for
//! them, so that is dropped without an answer.

use std::collections::{BTreeSet, VecDeque};

use crate::StreamId;

/// Beyond it the oldest is forgotten; late data for it is then answered like data for a stream that
/// never was.
const REMEMBERED_MAX: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Retired {
    order: VecDeque<StreamId>,
    known: BTreeSet<StreamId>,
}

impl Retired {
    pub(crate) fn insert(&mut self, id: StreamId) {
        if !self.known.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn contains(&self, id: StreamId) -> bool {
        self.known.contains(&id)
    }

    /// The id is in use again, which the protocol does not forbid.
    pub(crate) fn remove(&mut self, id: StreamId) {
        if self.known.remove(&id) {
            self.order.retain(|other| *other != id);
        }
    }
}
