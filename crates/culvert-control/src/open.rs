//! Starts the control plane of a process: opens the certificate authority, completes documents of older
//! versions, and loads the IP restrictions before the first request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use culvert_base::Fault;
use culvert_store::Revision;

use crate::agents::state::Agents;
use crate::authority::Authority;
use crate::base::Base;
use crate::console_link::ConsoleLink;
use crate::control::{Control, Parts};
use crate::key_uses::KeyUses;
use crate::keyed_mutex::KeyedMutex;
use crate::ports::CertificateMeters;
use crate::relink::relink;
use crate::replay_limits::ReplayLimits;
use crate::restriction::Restrictions;
use crate::standing::Standings;
use crate::upgrade_grants::Maker;

impl Control {
    /// Opens control over a store, and creates its certificate authority if it has none. The IP restrictions
    /// are in force from here on.
    pub async fn open(parts: Parts) -> Result<Arc<Self>, Fault> {
        let authority = Authority::open(
            &parts.store,
            &parts.seal,
            &*parts.clock,
            &*parts.entropy,
            parts.settings.edge_domain.clone(),
        )
        .await?;
        relink(&parts.store, &parts.seal).await?;
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
        upgrade.run().await?;
        let restrictions = Restrictions::load(&parts.store, &Restrictions::default()).await?;
        let secret_echo_until =
            crate::secret_rights::grace(&parts.store, &*parts.clock, parts.settings.strict_rights)
                .await?;
        let run = parts.ids.next(&*parts.clock, &*parts.entropy);
        let agents = parts
            .agents
            .map(|(bindings, settings)| Agents::new(bindings, settings, run));
        Ok(Arc::new(Self {
            secret_echo_until,
            agents,
            nodes: parts.nodes,
            statistics: parts.statistics,
            restrictions: ArcSwap::from_pointee(restrictions.unwrap_or_default()),
            standings: Standings::new(parts.store.watch()),
            key_uses: KeyUses::default(),
            locks: KeyedMutex::new(),
            replays: ReplayLimits::default(),
            store: parts.store,
            clock: parts.clock,
            entropy: parts.entropy,
            ids: parts.ids,
            seal: parts.seal,
            pepper: parts.pepper,
            settings: parts.settings,
            delivery: parts.delivery,
            edge: parts.edge,
            published: tokio::sync::watch::Sender::new(Revision::START),
            has_failed: AtomicBool::new(false),
            logins: parts.logins,
            console_sign_in: parts.console_sign_in,
            console_link: ConsoleLink::default(),
            certificates: parts.certificates,
            certificate_meters: CertificateMeters::default(),
            own_certificates: Arc::default(),
            ca_pem: authority.ca_pem().to_owned(),
            authority: tokio::sync::Mutex::new(authority),
        }))
    }
}
