//! What the subject holds.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Refusal, code};
use culvert_certificates::CertificateManager;
use culvert_identity::Identity;
use culvert_resources::{Error, Kernel};
use culvert_store::Revision;
use culvert_tunnel::nodes::Nodes;
use tracing::error;

use crate::state::Agents;

/// Time limit for a binding to reach the edge.
const REACHED_WITHIN: Duration = Duration::from_secs(15);

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

    /// Waits until the edge of this process, if there is one, has applied a revision.
    pub(crate) async fn reaches_edge(&self, revision: Revision) -> Result<(), Refusal> {
        match self.kernel.applied.reach(revision, REACHED_WITHIN).await {
            true => Ok(()),
            false => Err(Refusal::of(code::AGENT_REQUEST_TIMED_OUT)),
        }
    }

    /// How long names stay reserved after their session ended.
    pub(crate) fn names_kept(&self) -> Option<Duration> {
        self.agents
            .as_ref()
            .map(|agents| agents.settings.names_kept)
    }
}

impl AsRef<Kernel> for AgentControl {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}

/// The error for an agent: a refusal unchanged, an internal fault as one sentence.
pub(crate) fn answered<T>(result: Result<T, Error>) -> Result<T, Refusal> {
    result.map_err(|error| match error {
        Error::Refused(refusal) => refusal,
        Error::Faulted(fault) => {
            error!(cause = %fault.chain(), "agent request failed");
            Refusal::new(
                code::AGENT_REQUEST_TIMED_OUT,
                "Internal error; see the server log. Try again.",
            )
        }
    })
}
