//! Who may read captured messages.

use culvert_resources::access::caller::{Caller, Role};

/// The rights of a caller on captured messages.
#[derive(Debug)]
pub struct CapturedAccess<'a>(pub &'a Caller);

impl CapturedAccess<'_> {
    /// Whether the caller may read what these owners' policies captured.
    pub fn allows(&self, owners: &[String]) -> bool {
        let caller = self.0;
        caller.role == Role::Admin
            || (!owners.is_empty() && owners.iter().all(|owner| *owner == caller.owner_id))
    }
}
