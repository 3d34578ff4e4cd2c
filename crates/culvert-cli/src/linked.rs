//! What the program that links the commands tells them of the control plane, on which this crate does not depend.

use std::sync::OnceLock;

use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_events::catalogue::Catalogue;
use culvert_installation::config::Settings;
use culvert_resources::access::policy_misuse::PolicyMisuse;
use culvert_resources::operation::OperationSpec;
use culvert_resources::stored::seal::Seal;
use culvert_store::StoreUrl;

/// The control plane of the program, as far as commands need it.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    /// The operations of the management API, by collection.
    pub operations: fn() -> &'static [OperationSpec],
    /// The purpose of a collection, in one or two sentences.
    pub collection_doc: fn(&str) -> &'static str,
    /// Every kind of event.
    pub catalogue: fn() -> &'static Catalogue,
    /// Lists the traffic policies of an installation that may not use their secrets, or may echo them.
    pub policy_misuses: PolicyMisuses,
    /// Opens what a server with these settings would open at its start, and returns what it would log and go on with.
    pub check_settings: fn(&Settings) -> anyhow::Result<Vec<String>>,
}

/// Reads the traffic policies of a database without a server, and lists those that misuse secrets at this time.
pub type PolicyMisuses =
    fn(StoreUrl, Seal, Timestamp) -> BoxFuture<'static, Result<Vec<PolicyMisuse>, Fault>>;

static LINKED: OnceLock<Linked> = OnceLock::new();

impl Linked {
    /// Makes it known to the commands. The first one counts.
    pub(crate) fn announce(self) {
        LINKED.get_or_init(|| self);
    }

    /// That of the program, which names it to get the commands ([`crate::commands::of`]).
    pub(crate) fn get() -> &'static Self {
        LINKED.get_or_init(Self::default)
    }
}

#[cfg(not(test))]
impl Default for Linked {
    /// One without operations and events.
    fn default() -> Self {
        static NO_KINDS: OnceLock<Catalogue> = OnceLock::new();
        Self {
            operations: || &[],
            collection_doc: |_| "",
            catalogue: || NO_KINDS.get_or_init(|| Catalogue::new(Vec::new())),
            policy_misuses: |_, _, _| Box::pin(std::future::ready(Ok(Vec::new()))),
            check_settings: |_| Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
impl Default for Linked {
    fn default() -> Self {
        Self {
            operations: culvert_control::operation_specs,
            collection_doc: culvert_control::collection_doc,
            catalogue: culvert_control::catalogue,
            policy_misuses: |_, _, _| Box::pin(std::future::ready(Ok(Vec::new()))),
            check_settings: |_| Ok(Vec::new()),
        }
    }
}
