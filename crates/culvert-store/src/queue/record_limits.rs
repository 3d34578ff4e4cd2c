//! How many pieces of the traffic log a record has, and how many hashes of removed pieces are kept for it.

/// Pieces hashed in one step.
pub(super) const STEP: i64 = 256;
/// Limit of the pieces of a record.
pub(super) const RECORD_MAX: u64 = if cfg!(test) { 100 } else { 16_384 };
/// How many hashes of removed pieces are kept: more than a record has, of which the last step may exceed the limit.
pub(crate) const HASHES_KEPT: i64 = 2 * (RECORD_MAX.cast_signed() + STEP);
