//! The control plane of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use culvert_base::{Clock, Entropy, IdMaker, Refusal};
use culvert_delivery::Delivery;
use culvert_login::Logins;
use culvert_store::{Revision, Store};
use culvert_tunnel::nodes::Nodes;
use culvert_tunnel::server::Bindings;

use crate::agents::state::{AgentSettings, Agents};
use crate::authority::Authority;
use crate::base::Base;
use crate::caller::{Caller, Role};
use crate::console_link::ConsoleLink;
use crate::console_provider::ConsoleSignIn;
use crate::cx::Cx;
use crate::key_uses::KeyUses;
use crate::keyed_mutex::KeyedMutex;
use crate::lockout;
use crate::operation::Call;
use crate::own_certificate::OwnCertificates;
use crate::page::Parameter;
use crate::ports::{CertificateMeters, Certificates, EdgePort};
use crate::replay_limits::ReplayLimits;
use crate::restriction::Restrictions;
use crate::seal::{Pepper, Seal};
use crate::settings::Settings;
use crate::standing::Standings;
use crate::statistics::Statistics;

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
    /// Runs endpoints, if this process has an edge.
    pub edge: Option<Arc<dyn EdgePort>>,
    /// State that sign-ins share.
    pub logins: Arc<Logins>,
    /// How people sign in to the console at an OpenID provider, if they do.
    pub console_sign_in: Option<ConsoleSignIn>,
    /// Obtains certificates for managed domains, if this process does.
    pub certificates: Option<Certificates>,
    /// The connections of agents, if this process accepts them.
    pub agents: Option<(Arc<Bindings>, AgentSettings)>,
    /// Connections to agents of other nodes, if there can be any.
    pub nodes: Option<Arc<Nodes>>,
    /// The statistics of the installation.
    pub statistics: Statistics,
}

/// The control plane of one process.
#[derive(Debug)]
pub struct Control {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) ids: Arc<IdMaker>,
    pub(crate) seal: Seal,
    pub(crate) pepper: Pepper,
    pub(crate) settings: Settings,
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) edge: Option<Arc<dyn EdgePort>>,
    /// The edge of this process has applied at least this revision.
    pub(crate) published: tokio::sync::watch::Sender<Revision>,
    /// Whether the last attempt to compile the configuration failed.
    pub(crate) has_failed: AtomicBool,
    pub(crate) logins: Arc<Logins>,
    pub(crate) console_sign_in: Option<ConsoleSignIn>,
    pub(crate) console_link: ConsoleLink,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) certificate_meters: CertificateMeters,
    /// Public certificates of the installation's own names.
    pub(crate) own_certificates: Arc<OwnCertificates>,
    pub(crate) standings: Standings,
    pub(crate) key_uses: KeyUses,
    pub(crate) locks: KeyedMutex,
    pub(crate) restrictions: ArcSwap<Restrictions>,
    pub(crate) agents: Option<Agents>,
    pub(crate) nodes: Option<Arc<Nodes>>,
    pub(crate) statistics: Statistics,
    pub(crate) ca_pem: String,
    /// Until when policies of earlier versions may echo secrets.
    pub(crate) secret_echo_until: culvert_base::Timestamp,
    /// Limits on requests that are sent again.
    pub(crate) replays: ReplayLimits,
    /// Held by the single task that compiles.
    pub(crate) authority: tokio::sync::Mutex<Authority>,
}

impl Control {
    /// The revision of the store, which increases with every commit.
    pub fn revision(&self) -> tokio::sync::watch::Receiver<Revision> {
        self.store.watch()
    }

    /// Waits until the edge of this process, if it has one, has applied all commits so far; `false` if that
    /// takes longer than `within`.
    pub async fn is_applied(&self, within: std::time::Duration) -> bool {
        if self.edge.is_none() {
            return true;
        }
        let revision = *self.store.watch().borrow();
        let mut published = self.published.subscribe();
        let reached = published.wait_for(|published| *published >= revision);
        let reached = tokio::time::timeout(within, reached).await;
        matches!(reached, Ok(Ok(_)))
    }

    /// Whether the last attempt to load the stored configuration failed. The log has the cause.
    pub fn has_failed_to_load(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The current time.
    pub fn now(&self) -> culvert_base::Timestamp {
        self.clock.now()
    }

    /// Certificate of the installation's authority, PEM. Clients must trust it to reach HTTPS endpoints below
    /// the platform domain.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(crate) fn cx<'a>(&'a self, caller: &'a Caller, base: &'a str) -> Cx<'a> {
        Cx {
            store: &self.store,
            clock: &*self.clock,
            entropy: &*self.entropy,
            ids: &self.ids,
            locks: &self.locks,
            seal: &self.seal,
            pepper: &self.pepper,
            settings: &self.settings,
            logins: &self.logins,
            caller,
            base: Base {
                viewer: (caller.role != Role::Admin).then_some(caller.owner_id.as_str()),
                ..self.base(base)
            },
            address: None,
            force: false,
        }
    }

    /// The context of a change that can lock out. `parameters` are those that the operation accepts.
    ///
    /// # Errors
    ///
    /// 215, 231 and 232 if it accepts `force` and the query has something else.
    pub(crate) fn cx_of<'a>(
        &'a self,
        call: &'a Call,
        parameters: &[Parameter],
    ) -> Result<Cx<'a>, Refusal> {
        Ok(Cx {
            address: Some(call.address),
            force: !parameters.is_empty() && lockout::forced(&call.query)?,
            ..self.cx(&call.caller, &call.base)
        })
    }

    /// The base of views, with the public base of `uri` fields.
    pub(crate) fn base<'a>(&'a self, uri: &'a str) -> Base<'a> {
        Base {
            uri,
            ports: self.settings.public_ports,
            kubernetes_ingress: &self.settings.kubernetes_ingress,
            viewer: None,
        }
    }
}
