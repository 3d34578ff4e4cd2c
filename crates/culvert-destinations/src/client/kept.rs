//! Connections of brokers and databases that are kept between sends.
//!
//! A connection that is always in use would never end, and the name of its host would never be resolved again. So each
//! is used for a limited time and a limited number of sends. A send ends with the confirmation of everything that it
//! sent, so nothing is under way when a connection is replaced between two sends.

use std::time::Duration;

use culvert_target::net::CONNECTION_LIFE;
use tokio::time::Instant;

/// Sends that a connection is used for.
pub(crate) const SENDS_MAX: u32 = 1000;
/// How long a replaced connection may take to close.
pub(crate) const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// A connection, and what it was used for.
#[derive(Debug)]
pub(crate) struct Kept<C> {
    pub(crate) connection: C,
    opened: Instant,
    sends: u32,
}

impl<C> Kept<C> {
    /// A connection that was opened for the send that begins now.
    pub(crate) fn opened(connection: C) -> Self {
        Self {
            connection,
            opened: Instant::now(),
            sends: 1,
        }
    }

    /// The connection for one more send. The error is one that was used for long enough, for the caller to close.
    pub(crate) fn again(mut self) -> Result<Self, C> {
        if self.opened.elapsed() >= CONNECTION_LIFE || self.sends >= SENDS_MAX {
            return Err(self.connection);
        }
        self.sends += 1;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_a_life_and_a_number_of_sends() {
        let mut kept = Kept::opened("old");
        for _ in 1..SENDS_MAX {
            kept = kept.again().unwrap();
        }
        assert_eq!(kept.again().unwrap_err(), "old");
        let mut kept = Kept::opened("older");
        for _ in 0..2 {
            tokio::time::advance(CONNECTION_LIFE / 3).await;
            kept = kept.again().unwrap();
        }
        tokio::time::advance(CONNECTION_LIFE / 3).await;
        assert_eq!(kept.again().unwrap_err(), "older");
    }
}
