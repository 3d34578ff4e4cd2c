//! The mark of replays, and the state that the connection of a replay has instead of a client.

use std::sync::OnceLock;

use culvert_base::{Entropy, Timestamp};
use culvert_events::EventId;
use culvert_policy::problem::REPLAY_OF_NAME;
use http::header::HeaderName;

/// The field that marks a replay, with the id of the original event.
pub const REPLAY_OF: HeaderName = HeaderName::from_static(REPLAY_OF_NAME);

/// The event of a replay.
#[derive(Debug)]
pub(crate) struct ReplayState {
    random: [u8; 16],
    event: OnceLock<EventId>,
}

impl ReplayState {
    pub(crate) fn new(entropy: &dyn Entropy) -> Self {
        Self {
            random: entropy.bytes(),
            event: OnceLock::new(),
        }
    }

    /// The id of the event of an exchange that ends now.
    pub(crate) fn event_id(&self, at: Timestamp) -> EventId {
        *self.event.get_or_init(|| EventId::new(at, self.random))
    }

    /// The id of the event, once the exchange has ended.
    pub(crate) fn event(&self) -> Option<EventId> {
        self.event.get().copied()
    }
}
