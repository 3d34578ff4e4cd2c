//! The membership of this process among the nodes of its installation, as the settings describe it.

use std::sync::Arc;

use anyhow::Result;
use culvert_command::with_causes;
use culvert_control::Seal;
use culvert_edge::Dial;
use culvert_installation::config::Role;
use culvert_tunnel::server::Bindings;

use crate::nodes::cluster::Membership;
use crate::nodes::to_agents::ToAgents;
use crate::server::opened::Opened;

/// The membership of this process, if there may be other nodes and this one has agents or asks them.
pub(crate) async fn membership(opened: &Opened, seal: &Seal) -> Result<Membership> {
    let takes_agents = opened.takes_agents();
    let asks_agents = takes_agents || opened.has(Role::Edge) || opened.has(Role::Api);
    if !opened.is_shared() || !asks_agents {
        return Ok(Membership::default());
    }
    let (clock, entropy) = (&*opened.clock, &*opened.entropy);
    let identity = culvert_control::node_identity(&opened.store, seal, clock, entropy);
    let (identity, renew_at) = identity.await.map_err(with_causes)?;
    Membership::new(
        &opened.settings,
        identity,
        renew_at,
        takes_agents,
        &opened.inherited,
    )
    .await
}

/// How the edge reaches agents, of this process and of other nodes.
pub(crate) fn dial(
    bindings: Option<&Arc<Bindings>>,
    membership: &Membership,
) -> Option<Arc<dyn Dial>> {
    (bindings.is_some() || membership.nodes.is_some()).then(|| {
        let to_agents = ToAgents {
            here: bindings.cloned(),
            elsewhere: membership.nodes.clone(),
        };
        Arc::new(to_agents) as Arc<dyn Dial>
    })
}
