//! What the subject holds.

use std::sync::Arc;

use culvert_base::Timestamp;
use culvert_resources::Kernel;

use crate::traffic_policy::runtime::PolicyRuntime;

/// Decides what endpoints may be and refer to.
#[derive(Debug)]
pub struct EndpointConfig {
    pub(crate) kernel: Arc<Kernel>,
    /// What traffic policies may use of this process.
    pub policies: PolicyRuntime,
    /// Until when policies of earlier versions may echo secrets.
    pub secret_echo_until: Timestamp,
}

impl EndpointConfig {
    /// The subject. Policies of earlier versions may echo secrets until `secret_echo_until`.
    pub fn new(kernel: Arc<Kernel>, policies: PolicyRuntime, secret_echo_until: Timestamp) -> Self {
        Self {
            kernel,
            policies,
            secret_echo_until,
        }
    }
}

impl AsRef<Kernel> for EndpointConfig {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}
