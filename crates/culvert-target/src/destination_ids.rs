//! The ids that a target may need of its destination.

/// The destination that a target belongs to.
#[derive(Clone, Copy, Debug)]
pub struct DestinationIds<'a> {
    /// Id of the destination.
    pub destination: &'a str,
    /// Id of its account.
    pub account: &'a str,
}
