//! What the subject holds.

use std::sync::Arc;

use culvert_certificates::CertificateManager;
use culvert_identity::Identity;
use culvert_resources::Kernel;
use culvert_tunnel::nodes::Nodes;

use crate::state::Agents;

/// Authorizes agents and decides what each may serve.
#[derive(Debug)]
pub struct AgentControl {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) certificates: Arc<CertificateManager>,
    /// The connections of agents, if this process accepts them.
    pub agents: Option<Agents>,
    /// Connections to agents of other nodes, if there can be any.
    pub nodes: Option<Arc<Nodes>>,
}

impl AgentControl {
    /// The subject. `agents` is `None` in a process that accepts no agents, `nodes` where agents are at no other node.
    pub fn new(
        kernel: Arc<Kernel>,
        identity: Arc<Identity>,
        certificates: Arc<CertificateManager>,
        agents: Option<Agents>,
        nodes: Option<Arc<Nodes>>,
    ) -> Self {
        Self {
            kernel,
            identity,
            certificates,
            agents,
            nodes,
        }
    }
}

impl AsRef<Kernel> for AgentControl {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}
