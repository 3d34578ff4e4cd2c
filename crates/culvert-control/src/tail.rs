//! Following events as they happen.

use crate::event_kinds;
use culvert_base::Refusal;
use culvert_delivery::{Tail, TailSpec};

use crate::caller::{Caller, Role};
use crate::control::Control;

impl Control {
    /// Follows events of the caller's account as they happen. Events about keys and credentials are for
    /// admins alone.
    pub fn tail(&self, caller: &Caller, spec: TailSpec) -> Result<Tail, Refusal> {
        for name in &spec.kinds {
            event_kinds::known(name)?;
        }
        for name in &spec.kinds {
            event_kinds::may_follow(caller, name)?;
        }
        let mut kinds = spec.kinds;
        let is_shaped = !spec.filter.is_empty() || !spec.fields.is_empty();
        // With a filter or fields no kinds means those of traffic.
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
