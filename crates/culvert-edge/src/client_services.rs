//! Services of policies for requests that no policy sends, in a process that may have no edge: sign-ins to the console.

use std::sync::Arc;

use culvert_base::{BoxFuture, Clock, FairPermits, Fault};
use culvert_policy::documents::Documents;
use culvert_policy::services::{CALLS_MAX, PolicyServices, Spawn};
use culvert_policy::shared_counts::SharedCounts;
use culvert_upstream::Network;

use crate::settings::Settings;

/// Services whose requests may go where those of policies may, with the settings of the edge.
///
/// # Errors
///
/// A certificate of the settings is invalid.
pub fn client_services(
    settings: Settings,
    clock: Arc<dyn Clock>,
) -> Result<Arc<PolicyServices>, Fault> {
    let network = Arc::new(Network::new(settings.dialer()?, Vec::new()));
    Ok(Arc::new(PolicyServices {
        counts: SharedCounts::new(Arc::clone(&clock), &*settings.entropy),
        clock,
        entropy: settings.entropy,
        ip_data: settings.ip_data,
        documents: Documents::new(),
        region: settings.region,
        calls: FairPermits::new(CALLS_MAX),
        meters: Arc::default(),
        bodies: None,
        network,
        tasks: Box::new(Detached),
        is_from_copy: false,
    }))
}

/// Runs tasks on the current runtime.
#[derive(Debug)]
struct Detached;

impl Spawn for Detached {
    #[allow(
        clippy::disallowed_methods,
        reason = "no part of this process owns these tasks; each ends by its own time limit"
    )]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }
}
