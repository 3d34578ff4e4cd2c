//! The ids that a target may need of its destination.

/// Whose target it is.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// Id of the destination.
    pub destination: &'a str,
    /// Id of its account.
    pub account: &'a str,
}
