//! The counters of tunnels. Their export is elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that only increases.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The counters of a [`super::Server`].
#[derive(Debug, Default)]
pub struct Meters {
    /// Accepted connections.
    pub accepted: Meter,
    /// Accepted connections that were closed as unauthenticated, or that displaced another unauthenticated
    /// one.
    pub turned_away: Meter,
    /// Failed or timed-out TLS handshakes.
    pub handshakes_failed: Meter,
    /// Authenticated connections, including those of resumed sessions.
    pub admitted: Meter,
    /// Refused connections.
    pub refused: Meter,
    /// Granted endpoints, including those granted again.
    pub bound: Meter,
    /// Refused calls of agents.
    pub calls_refused: Meter,
}
