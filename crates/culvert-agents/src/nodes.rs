//! Node identity: the certificate that a node presents to other nodes, issued by the installation's authority
//! for nodes.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Clock, Entropy, Fault, Timestamp};
use culvert_certificates::authority;
use culvert_resources::stored::seal::Seal;
use culvert_store::Store;
use culvert_tunnel::nodes::Identity;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::AgentControl;

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

impl AgentControl {
    /// Renews the certificate for other nodes before it expires, until cancelled.
    pub async fn keep_identity(
        self: Arc<Self>,
        mut renew_at: Timestamp,
        cancel: CancellationToken,
    ) {
        let Some(nodes) = &self.nodes else {
            return cancel.cancelled().await;
        };
        let mut issued_at = self.kernel.clock.now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = cancel.cancelled() => return,
            }
            let now = self.kernel.clock.now();
            if !is_due(now, issued_at, renew_at) {
                continue;
            }
            match node_identity(
                &self.kernel.store,
                &self.kernel.seal,
                &*self.kernel.clock,
                &*self.kernel.entropy,
            )
            .await
            {
                Ok((identity, at)) => {
                    nodes.show(identity.key);
                    (issued_at, renew_at) = (now, at);
                }
                Err(fault) => {
                    error!(cause = %fault.chain(), "renewing the node certificate failed; keeping the previous certificate");
                }
            }
        }
    }
}

/// Whether to renew a certificate. One of a clock that was ahead may not be valid yet, and would be renewed too late.
fn is_due(now: Timestamp, issued_at: Timestamp, renew_at: Timestamp) -> bool {
    now < issued_at || renew_at <= now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_in_time_and_after_a_clock_was_ahead() {
        let at = Timestamp::from_unix_seconds;
        let (issued_at, renew_at) = (at(1_000), at(2_000));
        for (now, due) in [
            (1_000, false),
            (1_999, false),
            (2_000, true),
            (9_000, true),
            (999, true),
        ] {
            assert_eq!(is_due(at(now), issued_at, renew_at), due, "{now}");
        }
    }
}
