//! The cost meter of one evaluation. One unit is a visited node or 64 bytes of data.
//!
//! The static estimate, in the same unit, is in `check`.

use crate::error::EvalErrorKind;
use crate::limits::Limits;

/// The remaining budget of one evaluation.
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

    /// The remaining units.
    pub(crate) fn units_left(&self) -> u64 {
        self.units_left
    }

    /// Charges units.
    ///
    /// # Errors
    /// If fewer units are left.
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

    /// Charges for reading `bytes`.
    ///
    /// # Errors
    /// If too few units are left.
    #[inline]
    pub fn touch(&mut self, bytes: usize) -> Result<(), EvalErrorKind> {
        self.spend(units_of(bytes))
    }

    /// Charges for searching a text of `bytes` with a pattern of this weight.
    #[inline]
    pub(crate) fn search(&mut self, bytes: usize, weight: u64) -> Result<(), EvalErrorKind> {
        if bytes > self.limits.subject_bytes_max {
            return Err(EvalErrorKind::MemoryExceeded);
        }
        self.spend(units_of_search(bytes, weight))
    }

    /// Charges for a string or byte string of `bytes` before it is created.
    ///
    /// # Errors
    /// If it exceeds the maximum length, or the budget of memory or units is exhausted.
    pub fn make_string(&mut self, bytes: usize) -> Result<(), EvalErrorKind> {
        if bytes > self.limits.string_bytes_max {
            return Err(EvalErrorKind::MemoryExceeded);
        }
        self.make(bytes)
    }

    /// Charges for a list or map of `items` before it is created.
    ///
    /// # Errors
    /// If it exceeds the maximum length, or the budget of memory or units is exhausted.
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

/// The cost of reading `bytes`, in units.
#[inline]
pub(crate) fn units_of(bytes: usize) -> u64 {
    bytes as u64 / BYTES_PER_UNIT
}

/// The cost of searching a text of `bytes`, by the weight of the pattern. An automaton reads a byte more slowly than
/// a comparison does.
#[inline]
pub(crate) fn units_of_search(bytes: usize, weight: u64) -> u64 {
    (bytes as u64 / BYTES_PER_SEARCH_UNIT)
        .saturating_add(1)
        .saturating_mul(weight)
        - 1
}

/// Cost of compiling a computed pattern that is not in the cache.
pub(crate) const PATTERN_UNITS: u64 = 1_000;
/// Units of each large class in it.
pub(crate) const CLASS_UNITS: u64 = 10_000;
const BYTES_PER_UNIT: u64 = 64;
const BYTES_PER_SEARCH_UNIT: u64 = 16;
const BYTES_PER_ITEM: usize = 32;
