//! A running server: its parts, which start and stop by what they depend on, and what they share.

mod addresses;
pub mod check;
mod foundation;
mod listeners;
mod listening;
mod opened;
mod part;
mod parts;
mod plane_settings;
mod planes;
mod readiness;
mod shutdown;
mod standby;
mod tasks;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_audit_tree::AuditTreeKeeper;
use culvert_base::{Secret, Supervisor};
use culvert_command::may_pass;
use culvert_control::{Control, Loss, LostEvents, ServerWatch};
use culvert_edge::{Edge, Inherited};
use culvert_installation::audit_key::AuditKey;
use culvert_installation::config::Settings;
use culvert_installation::data_dir_lock::DataDirLock;
use culvert_installation::keys::MasterKey;
use culvert_installation::{Access, Unopened};
use culvert_policy::IpDatabases;
use culvert_store::{Queue, Store};
use tokio::task::JoinSet;

use crate::certificates::certificate_file::CertificateFiles;
use crate::reload::Reload;

pub use standby::Standby;

pub(crate) use listening::listen;
pub(crate) use plane_settings::{edge_settings, ip_data_files};

use foundation::Foundation;
use listeners::{Addresses, Listener};
use opened::Opened;
use part::Parts;
use tasks::Supervision;

/// A running server, whose listeners accept connections.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    parts: Parts,
    supervision: Supervision,
    store: Store,
    queue: Queue,
    edge: Option<Edge>,
    addresses: Addresses,
    first_token: Option<Secret>,
    /// Signs in to the console once, if this start created the first key.
    console_link: Option<Secret>,
    certificates: CertificateFiles,
    /// Reports what this process does.
    watch: Arc<ServerWatch>,
    /// Signs the last head of the audit log.
    audit_tree: Arc<AuditTreeKeeper>,
    ip_data: IpDatabases,
    ca_file: PathBuf,
    master: MasterKey,
    /// Drains the edge that served while the database was away at the start.
    predecessor: JoinSet<()>,
    /// Keeps other processes from using the data directory.
    _lock: Option<Arc<DataDirLock>>,
}

/// Pause after a start that the database ended.
const START_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Server {
    /// Creates and starts all parts. When it returns, all listeners accept connections and the edge runs with the
    /// stored configuration.
    ///
    /// # Errors
    /// If the installation cannot be opened, or a part cannot start.
    pub async fn start(settings: Settings) -> Result<Self> {
        // Boxed because the future is large.
        Box::pin(Self::start_on(settings, Inherited::default())).await
    }

    /// Like [`Server::start`], with inherited sockets where they match the settings.
    ///
    /// # Errors
    /// If the installation cannot be opened, or a part cannot start.
    pub async fn start_on(settings: Settings, inherited: Inherited) -> Result<Self> {
        // Boxed because the future is large.
        Box::pin(Self::start_beside(settings, inherited, &Standby::default())).await
    }

    /// Like [`Server::start_on`]. While the database is away, `standby` serves from a copy of the configuration; the
    /// server starts on its listening sockets, and then its edge drains.
    ///
    /// # Errors
    /// If the installation cannot be opened, or a part cannot start. Then `standby` serves no longer.
    pub async fn start_beside(
        settings: Settings,
        inherited: Inherited,
        standby: &Standby,
    ) -> Result<Self> {
        // First, because whatever is opened next could have the number of its descriptor.
        let key = AuditKey::open(&settings)?;
        let unopened = Unopened::new(&settings, Access::Server, culvert_control::texts())?;
        // Boxed because the future is large.
        let starting = Box::pin(Self::start_when_reachable(
            (&unopened, &key),
            settings,
            inherited,
            standby,
        ));
        let started = tokio::select! {
            biased;
            ended = standby.guard(&unopened) => Err(ended),
            started = starting => started,
        };
        if started.is_err() {
            // The database may be of another installation than the copy, so nothing of it is served any more.
            standby.cut().await;
        }
        started
    }

    async fn start_when_reachable(
        (unopened, key): (&Unopened, &AuditKey),
        settings: Settings,
        inherited: Inherited,
        standby: &Standby,
    ) -> Result<Self> {
        loop {
            let store = standby
                .wait_for_store(unopened, &settings, &inherited)
                .await?;
            let sockets = standby.hand_over(&inherited).await?;
            // Boxed because the future is large.
            let start = Box::pin(Self::start_in_full(
                (unopened, key),
                store,
                settings.clone(),
                sockets.clone(),
            ));
            let error = match start.await {
                Ok((mut server, control)) => {
                    if let Some(drained) = standby.retire().await {
                        server.predecessor.spawn(count_dropped(drained, control));
                    }
                    sockets.end_handover();
                    return Ok(server);
                }
                Err(error) => error,
            };
            let is_away = standby.is_serving().await && standby.is_away(unopened).await;
            if !is_away && !may_pass(&error) {
                return Err(error);
            }
            tracing::error!(
                error = format!("{error:#}"),
                "the database failed during the start; waiting for it again"
            );
            tokio::time::sleep(START_AGAIN_AFTER).await;
        }
    }

    async fn start_in_full(
        (unopened, key): (&Unopened, &AuditKey),
        store: Store,
        settings: Settings,
        inherited: Inherited,
    ) -> Result<(Self, Arc<Control>)> {
        let (opened, secrets) = Opened::open(unopened, store, settings, inherited).await?;
        // Boxed because the future is large.
        let mut foundation = Box::pin(Foundation::new(opened, secrets, key.clone())).await?;
        let list = parts::list(&mut foundation)?;
        let mut parts = Parts::new(list, &foundation.opened.supervisor);
        let addresses = match parts.start().await {
            Ok(addresses) => addresses,
            Err(error) => {
                foundation.opened.queue.close().await;
                foundation.opened.store.close().await;
                return Err(error);
            }
        };
        let control = foundation.control.clone();
        Ok((Self::of(foundation, parts, addresses), control))
    }

    fn of(foundation: Foundation, parts: Parts, addresses: Addresses) -> Self {
        let opened = foundation.opened;
        // A destination must not send to this server: each event would cause another one.
        let own = addresses.each().map(|(_, address)| address).collect();
        foundation.delivery.net().set_own_listeners(own);
        let has_api = addresses.get(Listener::Api).is_some();
        let console_link = opened.first_token.as_ref().filter(|_| has_api);
        let console_link =
            console_link.map(|token| foundation.control.identity.make_console_link(token));
        Self {
            settings: opened.given,
            parts,
            supervision: foundation.supervision,
            store: opened.store,
            queue: opened.queue,
            edge: foundation.edge,
            addresses,
            first_token: opened.first_token,
            console_link,
            certificates: foundation.certificates,
            watch: foundation.watch,
            audit_tree: foundation.audit_tree,
            ip_data: foundation.ip_data,
            ca_file: foundation.ca_file,
            master: opened.master,
            predecessor: JoinSet::new(),
            _lock: opened.lock,
        }
    }

    /// The names of the running long-lived tasks.
    pub fn tasks(&self) -> Vec<&'static str> {
        let parts = self.supervision.parts.iter();
        parts.flat_map(Supervisor::running).collect()
    }

    /// Ends the tasks with a name, for tests of failures.
    pub fn task_killer(&self) -> impl Fn(&str) -> bool + Send + 'static {
        let parts = self.supervision.parts.clone();
        move |name| parts.iter().any(|part| part.abort(name))
    }

    /// Applies new settings while the server runs.
    pub fn reload(&self) -> Reload {
        Reload::new(
            self.settings.clone(),
            self.edge.clone(),
            self.ip_data.clone(),
            self.certificates.clone(),
            Some(Arc::clone(&self.watch)),
        )
    }

    /// The token of the first API key, if this start created it.
    pub fn first_token(&self) -> Option<&Secret> {
        self.first_token.as_ref()
    }

    /// The file with the installation's certificate authority.
    pub fn ca_file(&self) -> PathBuf {
        self.ca_file.clone()
    }
}

/// Waits until the edge that served from a copy has drained, and notes the events of its traffic as lost.
async fn count_dropped(drained: impl Future<Output = u64>, control: Arc<Control>) {
    let n_dropped = drained.await;
    tracing::info!(
        n_dropped,
        "the edge that served from the copy of the configuration has drained"
    );
    if n_dropped == 0 {
        return;
    }
    let lost = LostEvents {
        // Each start loses its own.
        id: format!("database-away-{}", control.now().unix_millis()),
        reason: Loss::DatabaseAway,
        file: String::new(),
        deliveries: Some(n_dropped),
    };
    if let Err(fault) = control.events.note_lost_events(vec![lost]).await {
        tracing::warn!(cause = %fault.chain(), n_dropped, "the loss of events is not noted");
    }
}
