//! Starts the control plane of a process: opens the certificate authority, completes documents of older
//! versions, and loads the IP restrictions before the first request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use culvert_access::ip::restrictions::Restrictions;
use culvert_agents::AgentControl;
use culvert_agents::state::Agents;
use culvert_base::Fault;
use culvert_certificates::CertificateManager;
use culvert_certificates::authority::Authority;
use culvert_certificates::management::check::Checking;
use culvert_endpoints::EndpointConfig;
use culvert_event_config::EventConfig;
use culvert_identity::Identity;
use culvert_resources::Kernel;
use culvert_resources::access::key_uses::KeyUses;
use culvert_resources::applied::Applied;
use culvert_resources::audit::counted::Refusals;
use culvert_resources::cx::base::Base;
use culvert_resources::keyed_mutex::KeyedMutex;

use crate::alerting::meters::AlertMeters;
use crate::audit_hold::retention::{Cost, HeldEvents};
use crate::catalogue::catalogue;
use crate::control::{Control, Parts};
use crate::operations::resources::MANAGED;
use crate::operations::{operation_specs, resources};
use crate::upgrade::relink::relink;
use crate::upgrade::upgrade_grants::Maker;
use culvert_server_log::ServerLog;

impl Control {
    /// Opens control over a store, and creates its certificate authority if it has none. The IP restrictions
    /// are in force from here on.
    pub async fn open(parts: Parts) -> Result<Arc<Self>, Fault> {
        Self::open_with(parts, KeyedMutex::default()).await
    }

    pub(crate) async fn open_with(parts: Parts, locks: KeyedMutex) -> Result<Arc<Self>, Fault> {
        let authority = Authority::open(
            &parts.store,
            &parts.seal,
            &*parts.clock,
            &*parts.entropy,
            parts.settings.edge_domain.clone(),
        )
        .await?;
        relink(&parts.store, &parts.seal).await?;
        Self::make_grants(&parts).await?;
        Self::assemble(parts, locks, authority).await
    }

    /// Opens control over a copy of documents, which [`Self::run_copy`] compiles for the edge. The documents are not
    /// completed: the version that wrote the copy did that.
    pub async fn open_copy(parts: Parts) -> Result<Arc<Self>, Fault> {
        let authority = Authority::open(
            &parts.store,
            &parts.seal,
            &*parts.clock,
            &*parts.entropy,
            parts.settings.edge_domain.clone(),
        )
        .await?;
        Self::assemble(parts, KeyedMutex::default(), authority).await
    }

    /// Makes the grants that an upgrade needs.
    async fn make_grants(parts: &Parts) -> Result<(), Fault> {
        let upgrade = Maker {
            store: &parts.store,
            seal: &parts.seal,
            clock: &*parts.clock,
            entropy: &*parts.entropy,
            ids: &parts.ids,
            base: Base {
                uri: &parts.settings.base_url,
                ports: parts.settings.public_ports,
                kubernetes_ingress: &parts.settings.kubernetes_ingress,
                viewer: None,
            },
        };
        upgrade.run().await
    }

    async fn assemble(
        parts: Parts,
        locks: KeyedMutex,
        authority: Authority,
    ) -> Result<Arc<Self>, Fault> {
        let restrictions = Restrictions::load(&parts.store, &Restrictions::default()).await?;
        let secret_echo_until = culvert_endpoints::secret_rights::grace(
            &parts.store,
            &*parts.clock,
            parts.settings.strict_rights,
        )
        .await?;
        let notice = ServerLog::new(
            parts.store.clone(),
            parts.clock.clone(),
            parts.entropy.clone(),
        );
        let holds = HeldEvents::new(parts.store.clone(), Cost::MAX);
        parts.delivery.prune_by(Arc::new(notice), Arc::new(holds));
        let run = parts.ids.next(&*parts.clock, &*parts.entropy);
        let agents = parts
            .agents
            .map(|(bindings, settings)| Agents::new(bindings, settings, run));
        let kernel = Arc::new(Kernel {
            resources: resources::ALL,
            operations: operation_specs,
            store: parts.store,
            clock: parts.clock,
            entropy: parts.entropy,
            ids: parts.ids,
            seal: parts.seal,
            pepper: parts.pepper,
            settings: parts.settings,
            locks,
            policies: parts.policies.service(),
            applied: Applied::new(parts.edge.is_some()),
            refusals: Refusals::default(),
            key_uses: KeyUses::default(),
        });
        let identity = Arc::new(Identity::new(
            Arc::clone(&kernel),
            restrictions.unwrap_or_default(),
            parts.console_sign_in,
            parts.leak_partner,
        ));
        let certificates = Arc::new(CertificateManager::new(
            Arc::clone(&kernel),
            authority,
            parts.certificates,
            Checking::new(parts.statistics.node().to_owned(), parts.checks),
            &MANAGED,
        ));
        Ok(Arc::new(Self {
            endpoints: Arc::new(EndpointConfig::new(
                Arc::clone(&kernel),
                parts.policies,
                secret_echo_until,
            )),
            events: Arc::new(EventConfig::new(
                Arc::clone(&kernel),
                catalogue(),
                parts.delivery,
                parts.target_types,
                parts.edge.clone(),
                parts.statistics,
            )),
            agents: Arc::new(AgentControl::new(
                Arc::clone(&kernel),
                Arc::clone(&identity),
                Arc::clone(&certificates),
                agents,
                parts.nodes,
            )),
            alerts: AlertMeters::default(),
            kernel,
            identity,
            certificates,
            edge: parts.edge,
            searches: Default::default(),
            analyses: Default::default(),
            has_failed: AtomicBool::new(false),
        }))
    }
}
