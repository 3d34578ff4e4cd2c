//! Admission by address: enforces IP restrictions.

use std::net::IpAddr;

use culvert_access::ip::restrictions::Restriction;
use culvert_base::net::plain_address;
use culvert_base::{Code, Refusal, code};
use culvert_resources::Caller;

use crate::Identity;

impl Identity {
    /// Refuses a call from an address that an enforced IP restriction of the caller's account does not allow
    /// (220), or that is outside of the networks of its key (641). `address` is the caller's own, not a proxy's.
    pub fn admit(&self, caller: &Caller, address: IpAddr) -> Result<(), Refusal> {
        if let Some(restrictions) = &caller.restrictions {
            restrictions.check_address(address)?;
        }
        let restrictions = self.restrictions.load();
        let restriction = restrictions.api.get(&caller.account);
        judge(
            restriction,
            address,
            &caller.key_id,
            code::CALLER_ADDRESS_RESTRICTED,
        )
    }

    /// Refuses an agent at an address that an enforced IP restriction of its account does not allow (115).
    pub fn admit_agent(&self, agent: &Caller, address: IpAddr) -> Result<(), Refusal> {
        let restrictions = self.restrictions.load();
        let restriction = restrictions.agents.get(&agent.account);
        judge(
            restriction,
            address,
            &agent.key_id,
            code::AGENT_ADDRESS_RESTRICTED,
        )
    }
}

pub(crate) fn judge(
    restriction: Option<&Restriction>,
    address: IpAddr,
    key_id: &str,
    code: Code,
) -> Result<(), Refusal> {
    let Some(restriction) = restriction else {
        return Ok(());
    };
    if restriction.admitted.contains(address) {
        return Ok(());
    }
    let client = plain_address(address);
    if restriction.enforced {
        return Err(Refusal::new(
            code,
            format!(
                "The IP restriction `{}` blocks the address {client}.",
                restriction.id
            ),
        ));
    }
    tracing::info!(
        restriction.id,
        %client,
        key.id = key_id,
        "an IP restriction that is not enforced would block this caller"
    );
    Ok(())
}
