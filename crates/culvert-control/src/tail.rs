//! Follows events live.

use crate::event_kinds;
use culvert_base::Refusal;
use culvert_delivery::{Tail, TailSpec};

use crate::caller::{Caller, Role};
use crate::control::Control;

impl Control {
    /// Follows events of the caller's account live. Only admins receive events about keys and credentials.
    pub fn tail(&self, caller: &Caller, spec: TailSpec) -> Result<Tail, Refusal> {
        for name in &spec.kinds {
            event_kinds::known(name)?;
        }
        for name in &spec.kinds {
            event_kinds::may_follow(caller, name)?;
        }
        let mut kinds = spec.kinds;
        let is_shaped = !spec.filter.is_empty() || !spec.fields.is_empty();
        // With a filter or fields, an empty list of kinds means the traffic kinds.
        if kinds.is_empty() && !is_shaped && caller.role != Role::Admin {
            kinds = event_kinds::event_types();
            kinds.retain(|name| !event_kinds::is_private(name));
        }
        self.delivery.tail(TailSpec {
            account: caller.account.clone(),
            owner: caller.owner_id.clone(),
            kinds,
            ..spec
        })
    }
}
