//! The composition root: creates all parts, contains the adapters between them, and stops them in order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_api::{Api, Health};
use culvert_base::{BoxFuture, Ended, Fault, Secret, Supervisor};
use culvert_control::{
    AgentSettings, Control, EdgePort, LoginKeys, LoginSettings, Logins, Parts, login_key,
};
use culvert_delivery::{Delivery, TargetSettings};
use culvert_edge::{Change, Dial, Edge, Inherited, Snapshot};
use culvert_login::JournalEntry;
use culvert_policy::{IpData, IpDatabases, SharedCounts};
use culvert_ssh::{HostKey, SshIngress};
use culvert_store::{Queue, Store};
use culvert_tunnel::nodes::NodeIngress;
use culvert_tunnel::server::{AgentAuthorizer, Bindings, Ingress};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::among_nodes::{self, Joined};
use crate::config::{self, Invalid, Role, Settings};
use crate::data_dir_lock::DataDirLock;
use crate::ingress::{self, OwnCertificate, ToAgents};
use crate::issuer;
use crate::keys::{self, MasterKey};
use crate::memory;
use crate::metrics::{self, samples};
use crate::rate_exchange;
use crate::reload::Reload;

mod foundation;
mod parts;

pub(crate) use foundation::MASTER_KEY_MARK;
pub use foundation::{Access, Foundation, store_url};
pub(crate) use parts::{edge_settings, ip_data_files};

use foundation::key_rotated;
use parts::{api_settings, event_log, public_ports, target_settings};

/// Time limit for streams of other nodes to end, while new ones may still arrive.
const BROUGHT_DRAIN: Duration = Duration::from_secs(3);
/// Time limit for agents to connect to other nodes before this one stops.
const AGENTS_MOVE: Duration = Duration::from_secs(10);
/// Time limit for agents to reconnect at another node after their connection was closed.
const AGENTS_RETURN: Duration = Duration::from_secs(3);
/// Time limit for the edge's first snapshot before the server reports that it is ready.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(30);

/// A running server, whose listeners accept connections.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    parts: Running,
    first_token: Option<Secret>,
    api_addr: Option<SocketAddr>,
    agents_addr: Option<SocketAddr>,
    ssh_addr: Option<SocketAddr>,
    nodes_addr: Option<SocketAddr>,
    metrics_addr: Option<SocketAddr>,
    /// The operator's certificate for agents.
    certificate: Option<Arc<OwnCertificate>>,
    ip_data: IpDatabases,
    ca_file: PathBuf,
    master: MasterKey,
    /// Keeps other processes from using the data directory.
    _lock: Option<DataDirLock>,
}

/// The parts and their tasks. Each group of tasks has its own token, so that they stop in order.
#[derive(Debug)]
struct Running {
    store: Store,
    queue: Queue,
    edge: Option<Edge>,
    api: Tasks,
    edge_tasks: Tasks,
    agents: Tasks,
    /// Moves agents to other nodes before this one stops, if it accepts agents.
    moving: Option<Moving>,
    agent_keeper: Tasks,
    /// Streams from other nodes. The outgoing connections stop with control, which knows the addresses.
    nodes: Tasks,
    control: Tasks,
    certificates: Tasks,
    delivery_tasks: Tasks,
    metrics: Tasks,
    supervision: Supervision,
}

/// Moves the agents of this node to other nodes.
struct Moving {
    control: Arc<Control>,
    server: Arc<culvert_tunnel::server::Server>,
}

impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moving").finish_non_exhaustive()
    }
}

impl Moving {
    /// If another node accepts agents, stops accepting agents here and asks connected ones to connect elsewhere.
    /// Waits for at most `patience`.
    async fn run(&self, patience: Duration) {
        match tokio::time::timeout(patience, self.control.begin_drain()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return,
            Ok(Err(fault)) => {
                let cause = fault.chain();
                tracing::warn!(%cause, "agents stay connected until this node stops");
                return;
            }
            Err(_) => return,
        }
        self.server.closing().cancel();
        let moved = self.server.bindings().ask_to_move(patience).await;
        // Waits until agents are back at other nodes. The sessions of all others end with this node.
        let away = self.control.wait_for_agents_elsewhere(AGENTS_RETURN).await;
        tracing::info!(
            away,
            asked = moved.asked,
            left = moved.left,
            ended = moved.ended,
            cut = moved.cut,
            "moved agents to other nodes"
        );
    }
}

/// The long-lived tasks of the process, including those of its databases.
#[derive(Clone, Debug)]
struct Supervision {
    parts: [Supervisor; 3],
}

impl Supervision {
    fn new(own: Supervisor, store: &Store, queue: &Queue) -> Self {
        Self {
            parts: [own, store.supervisor().clone(), queue.supervisor().clone()],
        }
    }

    /// The tasks that ended unexpectedly.
    fn failed(&self) -> Vec<Ended> {
        self.parts.iter().flat_map(Supervisor::failed).collect()
    }

    /// Completes when the first task ends unexpectedly.
    async fn failure(&self) -> Ended {
        let [own, store, queue] = &self.parts;
        tokio::select! {
            ended = own.failure() => ended,
            ended = store.failure() => ended,
            ended = queue.failure() => ended,
        }
    }
}

/// A group of long-lived tasks, and the token that stops them.
#[derive(Debug)]
struct Tasks {
    running: JoinSet<()>,
    stop: CancellationToken,
    supervisor: Supervisor,
}

impl Tasks {
    fn new(supervisor: &Supervisor) -> Self {
        Self {
            running: JoinSet::new(),
            stop: CancellationToken::new(),
            supervisor: supervisor.clone(),
        }
    }

    /// Starts a task that runs until the token is cancelled. If it ends earlier, that is a failure of the process.
    fn start<F>(&mut self, name: &'static str, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        let is_stopping = move || stop.is_cancelled();
        let task = task(self.stop.clone());
        self.running
            .spawn(self.supervisor.supervise(name, is_stopping, task));
    }

    /// Stops the tasks and waits for their end.
    async fn finish(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a server task failed");
            }
        }
    }
}

impl Server {
    /// Creates and starts all parts. When it returns, all listeners accept connections and the edge runs with the
    /// stored configuration.
    pub async fn start(settings: Settings) -> Result<Self> {
        // Boxed because the future is large.
        Box::pin(Self::start_on(settings, Inherited::default())).await
    }

    /// Like [`Server::start`], with inherited sockets where they match the settings.
    pub async fn start_on(settings: Settings, inherited: Inherited) -> Result<Self> {
        let given = settings.clone();
        let has = |role| given.roles.contains(&role);
        let foundation = Foundation::open(&settings, Access::Exclusive).await?;
        let first_token = first_start(&foundation, &settings).await?;
        let node = foundation
            .store
            .join_as(&settings.node(), foundation.clock.clone())
            .await
            .map_err(told)?;
        let settings = Settings {
            node_name: node.name,
            ..settings
        };
        let Foundation {
            store,
            queue,
            pepper,
            seal,
            master,
            clock,
            entropy,
            ids,
            domain,
            base_url,
            lock,
        } = foundation;
        if master.older.is_some() {
            tracing::warn!(
                "a master key rotation was interrupted; run `culvert admin rotate-master-key` to finish it"
            );
        }

        let supervisor = Supervisor::default();
        // Binds the API first, because events contain its address if no other is configured.
        let mut api_listener = None;
        let mut base_url = base_url;
        if has(Role::Api) {
            let listener = listen("api.addr", &settings.api.addr, &inherited).await?;
            if settings.api.base_url.is_empty() {
                let bound = listener.local_addr()?;
                let reached = among_nodes::advertised(bound, &settings.database_url);
                base_url = format!("http://{reached}");
            }
            api_listener = Some(listener);
        }
        let targets = TargetSettings {
            public_base: base_url.clone(),
            ..target_settings(&settings, &config::environment())?
        };
        let delivery = Delivery::new(
            culvert_delivery::Settings {
                event_log: event_log(&settings, &pepper)?,
                node: settings.node(),
                counts: Some(settings.data_dir.join("offered")),
                boot: boot(),
                is_shared: !settings.database_url.is_empty(),
                sends: has(Role::Delivery),
                targets: targets.clone(),
                audit_retention: settings.audit.retention.0,
                traffic_retention: settings.events.traffic_retention.0,
                traffic_retention_bytes: settings.events.traffic_retention_bytes,
                supervisor: supervisor.clone(),
                ..culvert_delivery::Settings::default()
            },
            queue.clone(),
            store.clone(),
            // Leases use the clock that all nodes share.
            node.clock.clone(),
            entropy.clone(),
        );
        let is_dialled = !settings.agents.addr.is_empty() || !settings.agents.ssh_addr.is_empty();
        let takes_agents = has(Role::Agents) && is_dialled;
        let bindings = takes_agents.then(Arc::<Bindings>::default);
        let mut among = Joined::default();
        let asks_agents = takes_agents || has(Role::Edge) || has(Role::Api);
        if !settings.database_url.is_empty() && asks_agents {
            let identity = culvert_control::node_identity(&store, &seal, &*clock, &*entropy);
            let (identity, renew_at) = identity.await.map_err(told)?;
            among = Joined::new(&settings, identity, renew_at, takes_agents, &inherited).await?;
        }
        let dial = (bindings.is_some() || among.nodes.is_some()).then(|| {
            let to_agents = ToAgents {
                here: bindings.clone(),
                elsewhere: among.nodes.clone(),
            };
            Arc::new(to_agents) as Arc<dyn Dial>
        });
        let ip_data = ip_data(&settings)?;
        let counts = SharedCounts::new(node.clock.clone(), &*entropy);
        let edge = match has(Role::Edge) {
            true => Some({
                let (store, queue) = (store.clone(), queue.clone());
                let delay = move || store.write_delay().max(queue.write_delay());
                let around = culvert_edge::Settings {
                    inherited: inherited.clone(),
                    write_delay: Some(Arc::new(delay)),
                    agents: dial,
                    supervisor: supervisor.clone(),
                    ip_data: ip_data.clone(),
                    counts: Some(counts.clone()),
                    ..edge_settings(&settings)?
                };
                let edge = Edge::bind(around, delivery.recorder(), clock.clone()).await;
                edge.map_err(told)?
            }),
            false => None,
        };
        let published = edge.clone().map(|edge| Arc::new(Published::new(edge)));
        let (first, last) = settings.tcp_ports()?;
        let agent_settings = AgentSettings {
            node: settings.node(),
            region: settings.region.clone(),
            names: ingress::names(&given, &domain),
            is_alone: settings.database_url.is_empty(),
            address: among.address.clone(),
            names_kept: settings.agents.name_reservation.0,
            limits: settings.limits.of_agents(),
        };
        let own_names = agent_settings.names.clone();
        let certificate = OwnCertificate::read(&settings)?;
        let (logins, entries) = logins(&settings, &master)?;
        let control = Control::open(Parts {
            ids,
            store: store.clone(),
            clock: clock.clone(),
            entropy: entropy.clone(),
            seal,
            pepper,
            settings: culvert_control::Settings {
                edge_domain: domain,
                public_ports: public_ports(&settings, edge.as_ref()),
                tcp_ports: first..=last,
                allow_private_upstreams: settings.edge.allow_private_upstreams,
                allow_public_calls: settings.policy.http_request_public,
                ip_data: ip_data.clone(),
                own_names,
                targets,
                base_url,
                agent_minimum: settings.agents.minimum(),
            },
            delivery: delivery.clone(),
            edge: published
                .clone()
                .map(|published| published as Arc<dyn EdgePort>),
            logins,
            certificates: match &edge {
                Some(edge) => Some(issuer::certificates(&settings, edge)?),
                None => None,
            },
            agents: bindings.clone().map(|bindings| (bindings, agent_settings)),
            nodes: among.nodes.clone(),
        })
        .await
        .map_err(told)?;
        let ca_file = settings.data_dir.join("ca.pem");
        keys::write_public(&ca_file, control.ca_pem())?;

        let mut parts = Running {
            store: store.clone(),
            queue: queue.clone(),
            edge: edge.clone(),
            api: Tasks::new(&supervisor),
            edge_tasks: Tasks::new(&supervisor),
            agents: Tasks::new(&supervisor),
            moving: None,
            agent_keeper: Tasks::new(&supervisor),
            nodes: Tasks::new(&supervisor),
            control: Tasks::new(&supervisor),
            certificates: Tasks::new(&supervisor),
            delivery_tasks: Tasks::new(&supervisor),
            metrics: Tasks::new(&supervisor),
            supervision: Supervision::new(supervisor.clone(), &store, &queue),
        };
        let supervision = parts.supervision.clone();
        let run = |stop| delivery.clone().run(stop);
        parts.delivery_tasks.start("delivery", run);
        if let Some(nodes) = &among.nodes {
            parts.control.start("nodes", |stop| nodes.clone().run(stop));
            let keep = |stop| control.clone().keep_identity(among.renew_at, stop);
            parts.control.start("node_identity", keep);
        }
        let run = |stop| control.clone().run(stop);
        parts.control.start("configuration", run);
        let shares_counts = has(Role::Edge) && !settings.database_url.is_empty();
        if shares_counts {
            let run = |stop| rate_exchange::run(store.clone(), counts.clone(), stop);
            parts.control.start("rate_limits", run);
        }
        if has(Role::Edge) {
            let keep = |stop| control.clone().keep_logins(entries, stop);
            parts.control.start("logins", keep);
        }
        if let Some(published) = &published {
            published.wait_for_first().await?;
        }
        // Until now, connections waited in the backlog of the sockets.
        if let Some(edge) = edge.clone() {
            parts.edge_tasks.start("edge", |stop| edge.run(stop));
        }
        let manage = |stop| control.clone().manage_certificates(stop);
        parts.certificates.start("certificates", manage);

        let (mut agents_addr, mut ssh_addr, mut tunnel) = (None, None, None);
        if let Some(bindings) = bindings {
            control.begin_agents().await.map_err(told)?;
            if let (Some(listener), Some(nodes)) = (among.listener.take(), &among.nodes) {
                let ingress =
                    NodeIngress::new(listener, nodes.clone(), bindings.clone(), control.clone());
                let drain = settings.shutdown.drain.0.min(BROUGHT_DRAIN);
                let run = |stop| ingress.run(stop, drain);
                parts.nodes.start("node_listener", run);
            }
            let authorizer: Arc<dyn AgentAuthorizer> = match edge.clone() {
                Some(edge) => Arc::new(ingress::Waiting {
                    authorizer: control.clone(),
                    edge,
                }),
                None => control.clone(),
            };
            let server =
                culvert_tunnel::server::Server::new(authorizer, bindings, settings.region.clone());
            let addresses = settings.agents.connect_addresses.clone();
            let legs = addresses.len();
            let server = server
                .with_connect_addresses(addresses)
                .with_endpoints_max(settings.limits.endpoints_per_session_max as usize);
            let server = Arc::new(server);
            tunnel = Some(server.clone());
            parts.moving = Some(Moving {
                control: control.clone(),
                server: server.clone(),
            });
            if !settings.agents.addr.is_empty() {
                let listener = listen("agents.addr", &settings.agents.addr, &inherited).await?;
                agents_addr = Some(listener.local_addr()?);
                let own = certificate.as_ref().map(|own| Arc::clone(own) as _);
                let resolver = control
                    .agent_certificate(own)
                    .context("the agent ingress has no certificate")?;
                let room = settings.limits.agent_room(legs);
                let tls = ingress::tls(resolver)?;
                let ingress = Ingress::new(listener, tls, server.clone(), room);
                parts.agents.start("agents", |stop| ingress.run(stop));
            }
            if !settings.agents.ssh_addr.is_empty() {
                let address = &settings.agents.ssh_addr;
                let listener = listen("agents.ssh_addr", address, &inherited).await?;
                ssh_addr = Some(listener.local_addr()?);
                let key = HostKey::from_seed(&*control.ssh_host_seed().await.map_err(told)?);
                tracing::info!(fingerprint = key.fingerprint(), "the SSH host key");
                let room = settings.limits.ssh_room();
                let ingress = SshIngress::new(listener, &key, server, room);
                parts.agents.start("ssh", |stop| ingress.run(stop));
            }
            let keep = |stop| control.clone().keep_agents(stop);
            parts.agent_keeper.start("agent_sessions", keep);
            let keep = |stop| control.clone().keep_heartbeat(stop);
            parts.agent_keeper.start("heartbeat", keep);
        }
        let (mut api_addr, mut metrics_addr) = (None, None);
        let mut api_meters = None;
        if let Some(listener) = api_listener {
            api_addr = Some(listener.local_addr()?);
            let health = Readiness {
                store: store.clone(),
                delivery: delivery.clone(),
                supervision,
                edge: edge.clone(),
                ip_data: ip_data.clone(),
            };
            let api_settings = api_settings(&settings)?;
            let api = Api::new(
                control.clone(),
                Arc::new(health),
                api_settings,
                clock,
                entropy,
            )
            .map_err(told)?;
            api_meters = Some(api.meters().clone());
            parts.api.start("api", |stop| api.serve(listener, stop));
        }
        if !settings.metrics.addr.is_empty() {
            let listener = listen("metrics.addr", &settings.metrics.addr, &inherited).await?;
            metrics_addr = Some(listener.local_addr()?);
            let (delivery, edge) = (delivery.clone(), edge.clone());
            let control = control.clone();
            let nodes = among.nodes.clone();
            let read = move || {
                let mut rows = samples::delivery(&delivery);
                rows.extend(nodes.iter().flat_map(|nodes| among_nodes::samples(nodes)));
                if shares_counts {
                    rows.extend(rate_exchange::samples(&counts));
                }
                rows.extend(edge.iter().flat_map(samples::edge));
                rows.extend(samples::certificate(&control));
                rows.extend(
                    tunnel
                        .iter()
                        .flat_map(|server| samples::agent(server, &control)),
                );
                rows.extend(api_meters.iter().flat_map(|meters| samples::api(meters)));
                rows.push(samples::counter(
                    "panics",
                    "Panics, each ending one task",
                    metrics::panics(),
                ));
                rows
            };
            let serve = |stop| metrics::serve(listener, Box::new(read), stop);
            parts.metrics.start("metrics", serve);
        }
        parts.metrics.start("memory", memory::give_back);
        // A destination must not send to this server: each event would cause another one.
        let own = [
            api_addr,
            metrics_addr,
            agents_addr,
            ssh_addr,
            among.local_addr,
            edge.as_ref().and_then(Edge::http_addr),
            edge.as_ref().and_then(Edge::https_addr),
        ];
        delivery
            .net()
            .set_own_listeners(own.into_iter().flatten().collect());
        Ok(Self {
            settings: given,
            parts,
            first_token,
            api_addr,
            agents_addr,
            ssh_addr,
            nodes_addr: among.local_addr,
            metrics_addr,
            certificate,
            ip_data,
            ca_file,
            master,
            _lock: lock,
        })
    }

    /// The names of the running long-lived tasks.
    pub fn tasks(&self) -> Vec<&'static str> {
        let parts = self.parts.supervision.parts.iter();
        parts.flat_map(Supervisor::running).collect()
    }

    /// Ends the tasks with a name, for tests of failures.
    pub fn task_killer(&self) -> impl Fn(&str) -> bool + Send + 'static {
        let parts = self.parts.supervision.parts.clone();
        move |name| parts.iter().any(|part| part.abort(name))
    }

    /// Applies new settings while the server runs.
    pub fn reload(&self) -> Reload {
        let edge = self.parts.edge.clone();
        Reload::new(
            self.settings.clone(),
            edge,
            self.ip_data.clone(),
            self.certificate.clone(),
        )
    }

    /// The token of the first API key, if this start created it.
    pub fn first_token(&self) -> Option<&Secret> {
        self.first_token.as_ref()
    }

    /// `http://host:port` of the management API; empty if this process does not run it.
    pub fn api_url(&self) -> String {
        self.api_addr
            .map(|address| format!("http://{address}"))
            .unwrap_or_default()
    }

    /// The address for plain HTTP.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.http_addr()
    }

    /// The address for TLS.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.https_addr()
    }

    /// The address for agents.
    pub fn agents_addr(&self) -> Option<SocketAddr> {
        self.agents_addr
    }

    /// The address for SSH clients.
    pub fn ssh_addr(&self) -> Option<SocketAddr> {
        self.ssh_addr
    }

    /// The address for other nodes, if there may be any.
    pub fn nodes_addr(&self) -> Option<SocketAddr> {
        self.nodes_addr
    }

    /// The address for metrics.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// The file with the installation's certificate authority.
    pub fn ca_file(&self) -> PathBuf {
        self.ca_file.clone()
    }

    /// Addresses of inherited sockets that no setting uses.
    pub fn unused(&self, inherited: &Inherited) -> Vec<SocketAddr> {
        let wanted = [
            self.api_addr,
            self.agents_addr,
            self.ssh_addr,
            self.nodes_addr,
            self.metrics_addr,
            self.http_addr(),
            self.https_addr(),
        ];
        let is_wanted = |address: &SocketAddr| {
            let port = address.port();
            let is_of_pool = self
                .settings
                .tcp_ports()
                .is_ok_and(|(first, last)| (first..=last).contains(&port));
            is_of_pool || wanted.iter().flatten().any(|wanted| wanted.port() == port)
        };
        let addresses = inherited.addresses().into_iter();
        addresses.filter(|address| !is_wanted(address)).collect()
    }

    /// The line with the addresses of all listeners.
    pub fn ready_line(&self) -> String {
        let mut line = String::from("culvert ready");
        let api = self.api_addr.map(|address| format!("http://{address}"));
        let parts = [
            ("api", api),
            ("http", self.http_addr().map(|address| address.to_string())),
            (
                "https",
                self.https_addr().map(|address| address.to_string()),
            ),
            (
                "agents",
                self.agents_addr.map(|address| address.to_string()),
            ),
            ("ssh", self.ssh_addr.map(|address| address.to_string())),
            ("nodes", self.nodes_addr.map(|address| address.to_string())),
            (
                "metrics",
                self.metrics_addr.map(|address| address.to_string()),
            ),
        ];
        for (name, address) in parts {
            if let Some(address) = address {
                line.push_str(&format!(" {name}={address}"));
            }
        }
        line
    }

    /// The URL of the console for a browser on this machine.
    pub fn console_url(&self) -> Option<String> {
        let port = self.api_addr?.port();
        Some(match &self.settings.api.base_url {
            base if !base.is_empty() => format!("{}/console/", base.trim_end_matches('/')),
            _ => format!("http://localhost:{port}/console/"),
        })
    }

    /// Runs until `cancel`, until a long-lived task ends, or until a disk write fails. Then it stops in order: no new
    /// requests, requests in flight until a deadline, the API, agents, the recorder, workers, the store.
    ///
    /// # Errors
    /// If a long-lived task ended unexpectedly, the master key was rotated, or the disk failed ([`BrokenDisk`]).
    pub async fn run(mut self, cancel: CancellationToken) -> Result<()> {
        let mut failed = None;
        let broken = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            fault = self.parts.store.broken() => Some(fault),
            fault = self.parts.queue.broken() => Some(fault),
            ended = self.parts.supervision.failure() => {
                let (task, has_panicked) = (ended.name, ended.has_panicked);
                tracing::error!(task, has_panicked, "a server task ended unexpectedly; draining and stopping");
                failed = Some(ended);
                None
            }
            () = key_rotated(&self.parts.store, &self.master) => {
                // Secrets that this process encrypts from now on could not be decrypted by any node.
                bail!("the master key was rotated; copy the new `master.key` to this node and restart");
            }
        };
        if let Some(fault) = broken {
            // The disk's state is uncertain, so nothing more is written. The next start reads the actual data.
            tracing::error!(cause = %fault.chain(), "a disk write failed; stopping immediately");
            return Err(anyhow::Error::new(BrokenDisk));
        }
        let parts = &mut self.parts;
        let began = tokio::time::Instant::now();
        // Everything still runs, so agents can connect elsewhere before they lose this node.
        if failed.is_none()
            && let Some(moving) = &parts.moving
        {
            moving
                .run(self.settings.shutdown.drain.0.min(AGENTS_MOVE))
                .await;
        }
        let moved = began.elapsed();
        // Certificates stop first: otherwise a certificate authority could find no response to its challenge and mark
        // the name as invalid.
        parts.certificates.finish().await;
        if failed.is_some() {
            // `/readyz` reports the failure until the last request ends.
            parts.edge_tasks.finish().await;
            parts.api.finish().await;
        } else {
            tokio::join!(parts.edge_tasks.finish(), parts.api.finish());
        }
        let drained = began.elapsed();
        // Nodes and agents stop after the edge, whose last requests may need agents. They stop late because agents
        // may need minutes to reconnect.
        parts.nodes.finish().await;
        parts.agents.finish().await;
        parts.agent_keeper.finish().await;
        parts.control.finish().await;
        let left = began.elapsed();
        parts.delivery_tasks.finish().await;
        parts.metrics.finish().await;
        parts.queue.close().await;
        parts.store.close().await;
        tracing::info!(
            seconds = began.elapsed().as_secs_f32(),
            moving_agents = moved.as_secs_f32(),
            draining = (drained - moved).as_secs_f32(),
            ending_sessions = (left - drained).as_secs_f32(),
            delivering = (began.elapsed() - left).as_secs_f32(),
            node = self.settings.node(),
            "stopped"
        );
        match failed {
            Some(ended) => bail!("the task `{}` ended unexpectedly; see the log", ended.name),
            None => Ok(()),
        }
    }
}

/// The disk failed a write that must be durable. Exit code 70.
#[derive(Debug)]
pub struct BrokenDisk;

impl std::fmt::Display for BrokenDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the disk failed a durable write; later writes were not acknowledged")
    }
}

impl std::error::Error for BrokenDisk {}

/// Creates the first account, user and API key if the store is empty.
async fn first_start(foundation: &Foundation, settings: &Settings) -> Result<Option<Secret>> {
    let given = Some(&settings.bootstrap.api_key).filter(|token| !token.is_empty());
    let given = given.map(|token| Secret::new(token.clone()));
    settings.bootstrap.check()?;
    let made = foundation
        .founder()
        .first_start(given.as_ref())
        .await
        .map_err(told)?;
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

/// The edge as a port of control, and whether it has its first snapshot.
#[derive(Debug)]
struct Published {
    edge: Edge,
    first: watch::Sender<bool>,
}

impl Published {
    fn new(edge: Edge) -> Self {
        Self {
            edge,
            first: watch::Sender::new(false),
        }
    }

    async fn wait_for_first(&self) -> Result<()> {
        let mut first = self.first.subscribe();
        let waited =
            tokio::time::timeout(FIRST_SNAPSHOT, first.wait_for(|published| *published)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            _ => bail!("the edge did not load the stored configuration; see the log"),
        }
    }
}

impl EdgePort for Published {
    fn publish(&self, snapshot: Snapshot) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.edge.publish(snapshot).await;
            self.first.send_replace(true);
        })
    }

    fn apply(&self, change: Change) -> BoxFuture<'_, ()> {
        Box::pin(self.edge.apply(change))
    }
}

/// Readiness: the store and the event log are usable, all long-lived tasks run, and the address data of traffic
/// policies is loaded.
#[derive(Debug)]
struct Readiness {
    store: Store,
    delivery: Arc<Delivery>,
    supervision: Supervision,
    edge: Option<Edge>,
    ip_data: IpDatabases,
}

impl Readiness {
    /// Whether all address data files are loaded, and no endpoint rejects traffic because one is missing.
    fn ip_data(&self) -> Result<(), String> {
        let data = self.ip_data.now();
        let mut settings = data.failed().to_vec();
        if let Some(edge) = &self.edge {
            settings.extend(edge.missing_data().settings());
        }
        settings.sort_unstable();
        settings.dedup();
        match settings.as_slice() {
            [] => Ok(()),
            settings => Err(format!("not loaded: {}", settings.join(", "))),
        }
    }
}

impl Health for Readiness {
    fn ready(&self) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>> {
        Box::pin(async move {
            let (store, log) = tokio::join!(self.store.usable(), self.delivery.event_log_usable());
            // The path is public, so the response names only the part. The log has the cause.
            let shown = |part: Result<(), Fault>| {
                part.map_err(|fault| {
                    tracing::warn!(cause = %fault.chain(), "readiness check failed");
                    "not usable".to_owned()
                })
            };
            let store = match self.store.is_read_only() {
                true => Err("read-only: the disk was full at startup".to_owned()),
                false => shown(store),
            };
            let mut parts = vec![
                ("store", store),
                ("event_log", shown(log)),
                ("ip_data", self.ip_data()),
            ];
            for ended in self.supervision.failed() {
                parts.push((ended.name, Err("ended".to_owned())));
            }
            parts
        })
    }
}

/// Loads the operator's address data. The server starts even if a file cannot be read. Policies that need the file
/// then reject traffic; all others run.
fn ip_data(settings: &Settings) -> Result<IpDatabases, Invalid> {
    let mut faults = Vec::new();
    let data = IpData::read_some(&ip_data_files(settings)?, &mut faults);
    for fault in faults {
        tracing::error!(cause = %fault.chain(), "address data is not loaded");
    }
    Ok(IpDatabases::new(data))
}

/// The kernel's id of the current boot, where available.
fn boot() -> Option<String> {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.ok().map(|id| id.trim().to_owned())
}

/// The shared state of sign-ins, and the receiver of their journal.
fn logins(
    settings: &Settings,
    master: &MasterKey,
) -> Result<(Arc<Logins>, mpsc::Receiver<JournalEntry>), Invalid> {
    let keys = LoginKeys::new(master.each().map(login_key));
    let settings = LoginSettings {
        allows_loopback: settings.edge.allow_private_upstreams,
        ..settings.oauth.logins()?
    };
    Ok(Logins::new(keys, settings))
}

pub(crate) async fn listen(key: &str, address: &str, inherited: &Inherited) -> Result<TcpListener> {
    let doing = || format!("listening on {address} (setting `{key}`)");
    let found = address.parse().ok().and_then(|at| inherited.take(at));
    match found {
        Some(socket) => {
            let socket = socket.with_context(doing)?;
            socket.set_nonblocking(true).with_context(doing)?;
            TcpListener::from_std(socket).with_context(doing)
        }
        None => TcpListener::bind(address).await.with_context(doing),
    }
}

/// Converts a fault, with its causes, for the command line.
pub fn told(fault: Fault) -> anyhow::Error {
    anyhow::Error::msg(fault.chain())
}
