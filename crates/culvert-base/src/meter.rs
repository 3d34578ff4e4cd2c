//! Counters for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter, or a gauge that [`Meter::up`] and [`Meter::down`] change.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// Adds 1.
    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts 1.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
