//! Positions in the history of a store.

use std::fmt;

/// A position in the commits that this process knows of.
///
/// A database may lose commits, as in a fail-over to a standby that did not have them. Its numbers then repeat, with
/// other contents. Each such loss begins another epoch, so a revision of a later epoch is above all of an earlier
/// one, and what was read in an earlier epoch is out of date. Epochs are counted by each process for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// How often this process found that commits were lost.
    pub epoch: u64,
    /// The number of commits before and including this one.
    pub number: i64,
}

impl Revision {
    /// Before the first commit.
    pub const START: Self = Self {
        epoch: 0,
        number: 0,
    };
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}
