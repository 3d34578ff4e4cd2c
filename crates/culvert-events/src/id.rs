//! Identifiers of events: `ev_` and a KSUID with the event's time in seconds.

use std::ops::Deref;
use std::sync::Arc;

use culvert_base::{Entropy, Ksuid, Timestamp};

/// The identifier of one event, equal in every subscription, destination and attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId([u8; EventId::LENGTH]);

impl EventId {
    /// Length of an event's id in characters.
    pub const LENGTH: usize = 30;

    /// The id of an event that happened `at`, made unique by 16 random bytes.
    pub fn new(at: Timestamp, random: [u8; 16]) -> Self {
        let mut text = *b"ev_000000000000000000000000000";
        text[3..].copy_from_slice(&Ksuid::new(at, random).text());
        Self(text)
    }

    /// Its characters, which are ASCII.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl Deref for EventId {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base62 is ASCII")
    }
}

/// Generates ids. It reads randomness once for every 64 events.
#[derive(Debug)]
pub struct EventIds {
    entropy: Arc<dyn Entropy>,
    random: [[u8; 16]; 64],
    left: usize,
}

impl EventIds {
    /// A generator that has read no randomness yet.
    pub fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self {
            entropy,
            random: [[0; 16]; 64],
            left: 0,
        }
    }

    /// The id of an event that happened `at`.
    pub fn next(&mut self, at: Timestamp) -> EventId {
        if self.left == 0 {
            self.entropy.fill(self.random.as_flattened_mut());
            self.left = self.random.len();
        }
        self.left -= 1;
        EventId::new(at, self.random[self.left])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use culvert_base::SeededEntropy;

    use super::*;

    #[test]
    fn ids_carry_the_second_of_the_event_and_never_repeat() {
        let mut ids = EventIds::new(Arc::new(SeededEntropy::new(1)));
        let at = Timestamp::parse("2026-11-20T19:53:18.737Z").unwrap();
        let mut seen = HashSet::new();
        for _ in 0..200 {
            let id = ids.next(at);
            let body: Ksuid = id.strip_prefix("ev_").unwrap().parse().unwrap();
            assert_eq!(body.at(), at.whole_seconds());
            assert!(seen.insert(id));
        }
    }

    #[test]
    fn the_id_of_the_contract_is_the_second_of_its_event() {
        let body: Ksuid = "3MNwake7NlaYWxjRh9bXOmHaq4T".parse().unwrap();
        assert!(body.at() > Timestamp::parse("2026-01-01T00:00:00Z").unwrap());
    }
}
