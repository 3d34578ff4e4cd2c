//! Who may read captured messages.

use culvert_resources::access::caller::{Caller, Role};

/// The rights of a caller on captured messages.
pub(crate) struct CapturedAccess<'a>(pub(crate) &'a Caller);

impl CapturedAccess<'_> {
    /// Whether the caller may read what these owners' policies captured.
    pub(crate) fn allows(&self, owners: &[String]) -> bool {
        let caller = self.0;
        caller.role == Role::Admin
            || (!owners.is_empty() && owners.iter().all(|owner| *owner == caller.owner_id))
    }
}
