//! Follows events live.

use culvert_base::Refusal;
use culvert_delivery::{Tail, TailSpec};
use culvert_resources::access::caller::{Caller, Role};
use culvert_resources::access::right::TAIL_RIGHT;

use crate::EventConfig;
use crate::event_kinds::AskedKinds;

impl EventConfig {
    /// Follows events of the caller's account live. Only admins receive events about keys and credentials.
    pub fn tail(&self, caller: &Caller, spec: TailSpec) -> Result<Tail, Refusal> {
        caller.check_scope(TAIL_RIGHT)?;
        let is_shaped = !spec.filter.is_empty() || !spec.fields.is_empty();
        // With a filter or fields, an empty list of kinds means the traffic kinds.
        let is_all = spec.kinds.is_empty() && (is_shaped || caller.role == Role::Admin);
        let kinds = match is_all {
            true => Vec::new(),
            false => AskedKinds::of(caller, &spec.kinds)?.readable,
        };
        self.delivery.tail(TailSpec {
            account: caller.account.clone(),
            owner: caller.owner_id.clone(),
            kinds,
            ..spec
        })
    }
}
