//! What traffic policies may use of this process.

use std::sync::Arc;

use culvert_base::Fault;
use culvert_login::Logins;
use culvert_policy::{IpDatabases, OnExpressionError};
use culvert_resources::cx::Cx;
use culvert_resources::cx::policy_service::PolicyService;

/// What traffic policies may use of this process.
#[derive(Clone, Debug)]
pub struct PolicyRuntime {
    /// State that sign-ins share.
    pub logins: Arc<Logins>,
    /// The operator's databases about IP addresses (`edge.geo_database` and similar).
    pub ip_data: IpDatabases,
    /// What follows if an expression of a traffic policy fails, for dry runs.
    pub on_expression_error: OnExpressionError,
}

impl PolicyRuntime {
    /// It without its type, for the kernel.
    pub fn service(&self) -> PolicyService {
        PolicyService::new(self.clone())
    }

    /// That of the process.
    ///
    /// # Errors
    /// The kernel was made with another type. Then no policy can be written.
    pub(crate) fn of<'a>(cx: &Cx<'a>) -> Result<&'a Self, Fault> {
        cx.policies
            .get()
            .ok_or_else(|| Fault::bare("checking a traffic policy: the kernel has another runtime"))
    }
}
