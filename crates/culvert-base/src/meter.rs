//! Counters that others may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, or a gauge moved by [`Meter::up`] and [`Meter::down`].
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// One more.
    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// `amount` more.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Is `value` now.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
