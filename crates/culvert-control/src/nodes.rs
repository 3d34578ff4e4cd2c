//! Node identity: the certificate that a node presents to other nodes, issued by the installation's authority
//! for nodes.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, Entropy, Fault, Timestamp};
use culvert_store::Store;
use culvert_tunnel::nodes::Identity;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::control::Control;
use crate::{Seal, authority};

/// Interval of checks whether to renew the certificate.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// Creates a certificate and key for this process. Returns them with the authority that it trusts, and when
/// to renew them.
///
/// # Errors
/// The store fails, or its authority was encrypted with another key.
pub async fn node_identity(
    store: &Store,
    seal: &Seal,
    clock: &dyn Clock,
    entropy: &dyn Entropy,
) -> Result<(Identity, Timestamp), Fault> {
    authority::sign_node(store, seal, clock, entropy).await
}

impl Control {
    /// Renews the certificate for other nodes before it expires, until cancelled.
    pub async fn keep_identity(
        self: Arc<Self>,
        mut renew_at: Timestamp,
        cancel: CancellationToken,
    ) {
        let Some(nodes) = &self.nodes else {
            return cancel.cancelled().await;
        };
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = cancel.cancelled() => return,
            }
            if self.clock.now() < renew_at {
                continue;
            }
            match node_identity(&self.store, &self.seal, &*self.clock, &*self.entropy).await {
                Ok((identity, at)) => {
                    nodes.show(identity.key);
                    renew_at = at;
                }
                Err(fault) => {
                    error!(cause = %fault.chain(), "renewing the node certificate failed; keeping the previous certificate");
                }
            }
        }
    }
}
