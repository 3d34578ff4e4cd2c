//! What this plane counts. How it is exported is for others to say.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts of a [`super::Server`].
#[derive(Debug, Default)]
pub struct Meters {
    /// Connections accepted.
    pub accepted: Meter,
    /// Of them, those for which another that had not said who it is was closed.
    pub turned_away: Meter,
    /// Handshakes of TLS that failed or took too long.
    pub handshakes_failed: Meter,
    /// Agents that were let in, returning ones among them.
    pub admitted: Meter,
    /// Agents that were not.
    pub refused: Meter,
    /// Endpoints granted, returning ones among them.
    pub bound: Meter,
    /// Calls of agents that were refused.
    pub calls_refused: Meter,
}
