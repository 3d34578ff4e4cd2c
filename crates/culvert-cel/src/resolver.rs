//! What an evaluation asks of its caller: the values of variables, and the offsets of time zones.

use crate::value::ValueRef;

/// The number that identifies a variable to a [`Resolver`].
pub type Slot = u16;

/// Returns the offset of a time zone from UTC in seconds, for the name of the zone and a time in Unix seconds. Not
/// called for `UTC` and for fixed offsets such as `+02:00`.
pub type Zones = fn(&str, i64) -> Option<i32>;

/// Provides the values of variables during an evaluation.
pub trait Resolver {
    /// The value of `slot`, of its declared type. With `None`, reading the variable is an error and `has` is `false`.
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>>;
}
