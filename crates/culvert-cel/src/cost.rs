//! The meter of one evaluation. A unit is a node visited or 64 bytes touched.
//!
//! Not here: what an expression may cost at most before it runs, which `check` adds up in the same unit.

use crate::error::EvalErrorKind;
use crate::limits::Limits;

/// What one evaluation may still spend.
#[derive(Debug)]
pub struct Meter<'l> {
    units_left: u64,
    bytes_left: u64,
    limits: &'l Limits,
}

impl<'l> Meter<'l> {
    #[inline]
    pub(crate) fn new(limits: &'l Limits) -> Self {
        Self {
            units_left: limits.cost_max,
            bytes_left: limits.memory_bytes_max,
            limits,
        }
    }

    /// Units not spent.
    pub(crate) fn units_left(&self) -> u64 {
        self.units_left
    }

    /// Pays units.
    ///
    /// # Errors
    /// When there are not as many left.
    #[inline]
    pub fn spend(&mut self, units: u64) -> Result<(), EvalErrorKind> {
        match self.units_left.checked_sub(units) {
            Some(left) => {
                self.units_left = left;
                Ok(())
            }
            None => {
                self.units_left = 0;
                Err(EvalErrorKind::CostExceeded)
            }
        }
    }

    /// Pays for reading `bytes`.
    ///
    /// # Errors
    /// When there are not enough units left.
    #[inline]
    pub fn touch(&mut self, bytes: usize) -> Result<(), EvalErrorKind> {
        self.spend(units_of(bytes))
    }

    /// Pays for searching a text of `bytes` with a pattern of that weight.
    #[inline]
    pub(crate) fn search(&mut self, bytes: usize, weight: u64) -> Result<(), EvalErrorKind> {
        if bytes > self.limits.subject_bytes_max {
            return Err(EvalErrorKind::MemoryExceeded);
        }
        self.spend(units_of_search(bytes, weight))
    }

    /// Pays for a string or byte string of `bytes`, before it is made.
    ///
    /// # Errors
    /// When it is longer than one may be, or the memory or the units are spent.
    pub fn make_string(&mut self, bytes: usize) -> Result<(), EvalErrorKind> {
        if bytes > self.limits.string_bytes_max {
            return Err(EvalErrorKind::MemoryExceeded);
        }
        self.make(bytes)
    }

    /// Pays for a list or map of `items`, before it is made.
    ///
    /// # Errors
    /// When it is longer than one may be, or the memory or the units are spent.
    pub fn make_list(&mut self, items: usize) -> Result<(), EvalErrorKind> {
        if items > self.limits.list_items_max {
            return Err(EvalErrorKind::MemoryExceeded);
        }
        self.make(items.saturating_mul(BYTES_PER_ITEM))
    }

    fn make(&mut self, bytes: usize) -> Result<(), EvalErrorKind> {
        self.touch(bytes)?;
        match self.bytes_left.checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => Err(EvalErrorKind::MemoryExceeded),
        }
    }
}

/// What touching `bytes` costs.
#[inline]
pub(crate) fn units_of(bytes: usize) -> u64 {
    bytes as u64 / BYTES_PER_UNIT
}

/// What searching a text of `bytes` costs, by the weight of the pattern: a byte read by an automaton is dearer than
/// one that is compared.
#[inline]
pub(crate) fn units_of_search(bytes: usize, weight: u64) -> u64 {
    (bytes as u64 / BYTES_PER_SEARCH_UNIT)
        .saturating_add(1)
        .saturating_mul(weight)
        - 1
}

/// Compiling a pattern that is not in the text, when it is not in the cache.
pub(crate) const PATTERN_UNITS: u64 = 1_000;
const BYTES_PER_UNIT: u64 = 64;
const BYTES_PER_SEARCH_UNIT: u64 = 16;
const BYTES_PER_ITEM: usize = 32;
