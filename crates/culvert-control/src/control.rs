//! The control plane of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_agents::AgentControl;
use culvert_agents::state::AgentSettings;
use culvert_base::{Clock, Entropy, IdMaker, Refusal};
use culvert_certificates::CertificateManager;
use culvert_certificates::ports::{Certificates, Checks};
use culvert_delivery::Delivery;
use culvert_endpoints::EndpointConfig;
use culvert_endpoints::traffic_policy::runtime::PolicyRuntime;
use culvert_event_config::EventConfig;
use culvert_event_config::event_query::EVENTS_EXPORTED;
use culvert_event_config::ports::EdgePort;
use culvert_event_config::statistics::Statistics;
use culvert_identity::Identity;
use culvert_identity::console::provider::ConsoleSignIn;
use culvert_login::LeakPartner;
use culvert_resources::Kernel;
use culvert_resources::access::caller::{Caller, Origin};
use culvert_resources::audit::counted::REQUEST_REFUSED;
use culvert_resources::audit::refusals::SIGN_IN_FAILED;
use culvert_resources::list::search::Searches;
use culvert_resources::operation::shown_id;
use culvert_resources::operation::terms::TagKey;
use culvert_resources::settings::Settings;
use culvert_resources::stored::seal::{Pepper, Seal};
use culvert_store::{Revision, Store};
use culvert_target::TargetTypes;
use culvert_tunnel::nodes::Nodes;
use culvert_tunnel::server::Bindings;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::alerting::meters::AlertMeters;
use culvert_server_log::ServerLog;

/// The parts of the control plane.
#[derive(Debug)]
pub struct Parts {
    /// Stores the resources.
    pub store: Store,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Creates IDs.
    pub ids: Arc<IdMaker>,
    /// Randomness of IDs, tokens and encryption.
    pub entropy: Arc<dyn Entropy>,
    /// Encrypts stored secrets.
    pub seal: Seal,
    /// Digests tokens.
    pub pepper: Pepper,
    /// Configuration.
    pub settings: Settings,
    /// Runs subscriptions and destinations.
    pub delivery: Arc<Delivery>,
    /// What destinations may be.
    pub target_types: TargetTypes,
    /// Runs endpoints, if this process has an edge.
    pub edge: Option<Arc<dyn EdgePort>>,
    /// What traffic policies may use of this process.
    pub policies: PolicyRuntime,
    /// How people sign in to the console at an OpenID provider, if they do.
    pub console_sign_in: Option<ConsoleSignIn>,
    /// The partner whose signed reports of leaked tokens are accepted, if there is one.
    pub leak_partner: Option<LeakPartner>,
    /// Obtains certificates for managed domains, if this process does.
    pub certificates: Option<Certificates>,
    /// Checks what certificates need; `None` in a process without the API.
    pub checks: Option<Arc<dyn Checks>>,
    /// The connections of agents, if this process accepts them.
    pub agents: Option<(Arc<Bindings>, AgentSettings)>,
    /// Connections to agents of other nodes, if there can be any.
    pub nodes: Option<Arc<Nodes>>,
    /// The statistics of the installation.
    pub statistics: Statistics,
}

/// The control plane of one process: its subjects, and the task that compiles the configuration.
#[derive(Debug)]
pub struct Control {
    pub(crate) kernel: Arc<Kernel>,
    /// Who may do what.
    pub identity: Arc<Identity>,
    /// Certificates.
    pub certificates: Arc<CertificateManager>,
    /// Endpoints and what they refer to.
    pub endpoints: Arc<EndpointConfig>,
    /// Where events go.
    pub events: Arc<EventConfig>,
    /// Agents.
    pub agents: Arc<AgentControl>,
    /// Metrics of alerts.
    pub alerts: AlertMeters,
    /// Runs endpoints, if this process has an edge.
    pub(crate) edge: Option<Arc<dyn EdgePort>>,
    /// The turns of searches for objects.
    pub(crate) searches: Searches,
    /// The turns of analyses of policies that are being written.
    pub(crate) analyses: Searches,
    /// Whether the last attempt to compile the configuration failed.
    pub(crate) has_failed: AtomicBool,
}

impl AsRef<Kernel> for Control {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}

impl Control {
    /// The secret of entity tags.
    pub fn tag_key(&self) -> TagKey {
        TagKey::of(&self.kernel.pepper)
    }

    /// The revision of the store, which increases with every commit.
    pub fn revision(&self) -> tokio::sync::watch::Receiver<Revision> {
        self.kernel.store.watch()
    }

    /// Waits until the edge of this process, if it has one, has applied all commits so far; `false` if that
    /// takes longer than `within`.
    pub async fn is_applied(&self, within: Duration) -> bool {
        let revision = *self.kernel.store.watch().borrow();
        self.kernel.applied.reach(revision, within).await
    }

    /// Whether the last attempt to load the stored configuration failed. The log has the cause.
    pub fn has_failed_to_load(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Notes a refused call whose caller is not known. `called` is the ID of the operation in the OpenAPI document, and what
    /// the path names.
    pub fn note_refusal(&self, origin: &Origin, called: (&str, Option<&str>), refusal: &Refusal) {
        let (operation, named) = called;
        let called = (operation, named.and_then(shown_id));
        self.kernel
            .note_refusal(REQUEST_REFUSED, origin, called, refusal);
    }

    /// Notes a call of a known caller that was refused before its operation ran.
    pub fn note_refused(&self, caller: &Caller, called: (&str, Option<&str>), refusal: &Refusal) {
        let (operation, named) = called;
        let named = named.and_then(shown_id);
        self.kernel.note_refused(caller, operation, refusal, named);
    }

    /// Notes a refused sign-in to the console.
    pub fn note_failed_sign_in(&self, origin: &Origin, refusal: &Refusal) {
        self.kernel
            .note_refusal(SIGN_IN_FAILED, origin, ("sign_in", None), refusal);
    }

    /// Records that a caller begins to follow events. Without the record it must not see any.
    ///
    /// # Errors
    /// The store fails.
    pub async fn record_followed(&self, caller: &Caller, operation: &str) -> Result<(), Error> {
        let caller = Arc::new(caller.clone());
        self.kernel
            .record_read(&EVENTS_EXPORTED, &caller, operation, ("", Vec::new()))
            .await
    }

    /// Counts the events that a stream showed. They are reported an hour after it began, and then every hour.
    pub fn note_followed(&self, caller: &Arc<Caller>, operation: &str, ids: Vec<String>) {
        self.kernel
            .note_shown(&EVENTS_EXPORTED, caller, operation, ids);
    }

    /// Reports refused calls and repeated reads until cancelled, and then the others.
    pub async fn report_refusals(self: Arc<Self>, stop: CancellationToken) {
        self.kernel.report_refusals(stop).await;
    }

    /// Writes events of the server itself.
    pub fn server_log(&self) -> ServerLog {
        let kernel = &self.kernel;
        ServerLog::new(
            kernel.store.clone(),
            kernel.clock.clone(),
            kernel.entropy.clone(),
        )
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        self.events.statistics.node()
    }

    /// The current time.
    pub fn now(&self) -> culvert_base::Timestamp {
        self.kernel.clock.now()
    }
}
