//! The signals that stop a process: SIGTERM and SIGINT.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::failure::Failure;

/// A signal that comes so soon after the first is the same: `timeout` and other wrappers send two.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// Receives signals from its creation on.
#[derive(Debug)]
pub struct StopSignals {
    term: Signal,
    interrupt: Signal,
    first_at: Option<Instant>,
}

impl StopSignals {
    /// Begins to receive them.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            first_at: None,
        })
    }

    /// Waits for the first signal, or for one that comes at least a second after the first.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.term.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            if self.is_another(Instant::now()) {
                return;
            }
        }
    }

    fn is_another(&mut self, now: Instant) -> bool {
        match self.first_at {
            Some(first_at) => now.duration_since(first_at) >= SAME_WITHIN,
            None => {
                self.first_at = Some(now);
                true
            }
        }
    }

    /// After the first signal: waits for `stopping`, or fails with another signal.
    ///
    /// # Errors
    /// If another signal comes first.
    pub async fn or_stop_at_once<T>(
        mut self,
        stopping: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        tokio::select! {
            outcome = stopping => Ok(outcome),
            () = self.next() => {
                Err(Failure::Failed("stopped immediately by a second signal".into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_signal_within_a_second_is_the_first() {
        let mut signals = StopSignals::new().unwrap();
        let began = Instant::now();
        assert!(signals.is_another(began));
        assert!(!signals.is_another(began));
        assert!(!signals.is_another(began + Duration::from_millis(999)));
        assert!(signals.is_another(began + SAME_WITHIN));
    }
}
