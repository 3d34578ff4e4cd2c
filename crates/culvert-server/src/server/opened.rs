//! The opened installation, before anything is made of its settings.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::net::HostName;
use culvert_base::{Clock, Entropy, IdMaker, Secret, SteadyClock, Supervisor, Timestamp};
use culvert_command::with_causes;
use culvert_control::{Bootstrap, LostEvents, Pepper, Seal};
use culvert_edge::Inherited;
use culvert_installation::config::{self, Role, Settings};
use culvert_installation::data_dir_lock::DataDirLock;
use culvert_installation::keys::{self, MasterKey};
use culvert_installation::{ProcessContext, Unopened};
use culvert_store::{Queue, Store};
use culvert_target::TargetSettings;
use tokio::net::TcpListener;

use super::listening::listen;
use super::plane_settings::target_settings;
use crate::nodes::cluster;

/// The opened installation, and what identifies this process in it.
pub(super) struct Opened {
    /// The settings as given.
    pub(super) given: Settings,
    /// The settings with the name that this node got.
    pub(super) settings: Settings,
    /// Sockets that a supervisor has bound.
    pub(super) inherited: Inherited,
    pub(super) store: Store,
    pub(super) queue: Queue,
    pub(super) master: MasterKey,
    /// Keeps other processes from using the data directory.
    pub(super) lock: Option<Arc<DataDirLock>>,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) ids: Arc<IdMaker>,
    /// The base domain of the edge.
    pub(super) domain: HostName,
    /// The time of this process, which follows the system's clock without its leaps.
    pub(super) steady_clock: Arc<SteadyClock>,
    pub(super) clock: Arc<dyn Clock>,
    /// The time that all nodes share.
    pub(super) shared_clock: Arc<dyn Clock>,
    pub(super) started_at: Timestamp,
    pub(super) supervisor: Supervisor,
    /// The token of the first API key, if this start created it.
    pub(super) first_token: Option<Secret>,
    /// The listener of the API. It is bound first, because events contain its address if no other is configured.
    pub(super) api_listener: Option<TcpListener>,
    /// Base of `uri` fields in events.
    pub(super) base_url: String,
    /// The losses with files of events that were damaged or missing.
    pub(super) lost_events: Vec<LostEvents>,
}

/// What encrypts secrets and digests tokens. There is no second copy of either.
pub(super) struct Secrets {
    pub(super) seal: Seal,
    pub(super) pepper: Pepper,
}

impl Opened {
    /// Opens the rest of the installation with its store, and takes a name among its nodes.
    pub(super) async fn open(
        unopened: &Unopened,
        store: Store,
        given: Settings,
        inherited: Inherited,
    ) -> Result<(Self, Secrets)> {
        let context = unopened.finish(store).await?;
        let first_token = first_start(&context, &given).await?;
        let node = context
            .store
            .join_as(&given.node(), context.clock.clone())
            .await
            .map_err(with_causes)?;
        let settings = Settings {
            node_name: node.name,
            ..given.clone()
        };
        let ProcessContext {
            store,
            queue,
            pepper,
            seal,
            master,
            clock: steady_clock,
            entropy,
            ids,
            domain,
            mut base_url,
            lost_events,
            lock,
            token_form: _,
        } = context;
        if master.older.is_some() {
            tracing::warn!(
                "a master key rotation was interrupted; run `culvert admin rotate-master-key` to finish it"
            );
        }
        let clock: Arc<dyn Clock> = steady_clock.clone();
        // The queue, and leases of its batches, use the clock that all nodes share.
        queue.follow_clock(node.clock.clone());
        let mut api_listener = None;
        if settings.roles.contains(&Role::Api) {
            let listener = listen("api.addr", &settings.api.addr, &inherited).await?;
            if settings.api.base_url.is_empty() {
                let bound = listener.local_addr()?;
                let reached = cluster::advertised(bound, &settings.database_url);
                base_url = format!("http://{reached}");
            }
            api_listener = Some(listener);
        }
        let opened = Self {
            given,
            settings,
            inherited,
            store,
            queue,
            master,
            lock,
            entropy,
            ids,
            domain,
            started_at: clock.now(),
            steady_clock,
            clock,
            shared_clock: node.clock,
            supervisor: Supervisor::default(),
            first_token,
            api_listener,
            base_url,
            lost_events,
        };
        Ok((opened, Secrets { seal, pepper }))
    }

    pub(super) fn has(&self, role: Role) -> bool {
        self.settings.roles.contains(&role)
    }

    /// Whether the installation may have other nodes.
    pub(super) fn is_shared(&self) -> bool {
        !self.settings.database_url.is_empty()
    }

    /// Whether agents can connect to this process.
    pub(super) fn takes_agents(&self) -> bool {
        let agents = &self.settings.agents;
        self.has(Role::Agents) && !(agents.addr.is_empty() && agents.ssh_addr.is_empty())
    }

    /// How destinations are reached.
    pub(super) fn targets(&self) -> Result<TargetSettings> {
        Ok(TargetSettings {
            public_base: self.base_url.clone(),
            ..target_settings(&self.settings, &config::environment())?
        })
    }
}

/// Creates accounts and API keys of an installation without a running server.
fn bootstrap(context: &ProcessContext) -> Bootstrap<'_> {
    Bootstrap {
        ids: &context.ids,
        store: &context.store,
        clock: &*context.clock,
        entropy: &*context.entropy,
        pepper: &context.pepper,
        base: &context.base_url,
        domain: &context.domain,
        token_form: context.token_form,
    }
}

/// Creates the first account, user and API key if the store is empty.
async fn first_start(context: &ProcessContext, settings: &Settings) -> Result<Option<Secret>> {
    let given = Some(&settings.bootstrap.api_key).filter(|token| !token.is_empty());
    let given = given.map(|token| Secret::new(token.clone()));
    settings.bootstrap.check()?;
    let made = bootstrap(context)
        .first_start(given.as_ref())
        .await
        .map_err(with_causes)?;
    if let (Some(token), None) = (&made, &given) {
        let path = settings.data_dir.join("bootstrap-key");
        keys::write_private(&path, &format!("{}\n", token.reveal()))?;
        tracing::info!(
            "wrote the token of the first API key to `{}`",
            path.display()
        );
        return Ok(made);
    }
    // A configured token is not returned, because the operator knows it.
    Ok(None)
}
