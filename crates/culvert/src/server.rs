//! The composition root: creates all parts, contains the adapters between them, and stops them in order.

mod addresses;
mod description;
mod parts;
mod process_context;
mod readiness;
mod shutdown;
mod tasks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_api::Api;
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Clock, Fault, Secret, Supervisor};
use culvert_control::{
    AgentSettings, ConsoleProvider, ConsoleSignIn, Control, EdgePort, LoginKeys, LoginSettings,
    Logins, Parts, Statistics, login_key,
};
use culvert_delivery::{Delivery, TargetSettings};
use culvert_edge::{Change, Dial, Edge, Inherited, NotReplayed, ReplayRequest, Replayed, Snapshot};
use culvert_login::JournalEntry;
use culvert_policy::{IpData, IpDatabases, SharedCounts};
use culvert_ssh::{HostKey, SshIngress};
use culvert_store::{Queue, Store};
use culvert_tunnel::nodes::NodeIngress;
use culvert_tunnel::server::{AgentAuthorizer, Bindings, Ingress};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::certificate_file::{self, CertificateFiles};
use crate::cluster::{self, Membership};
use crate::config::{self, Invalid, Role, Settings};
use crate::data_dir_lock::DataDirLock;
use crate::ingress;
use crate::keys::{self, MasterKey};
use crate::metrics::{self, samples, statistics};
use crate::reload::Reload;
use crate::statistics::NodeSource;
use crate::to_agents::ToAgents;
use crate::{issuer, memory, rate_exchange, system_clock};

pub(crate) use parts::{edge_settings, ip_data_files};
pub(crate) use process_context::MASTER_KEY_MARK;
pub use process_context::{Access, ProcessContext, store_url};
pub use shutdown::BrokenDisk;

use parts::{api_settings, event_log, public_ports, target_settings};
use readiness::Readiness;
use shutdown::Moving;
use tasks::{Supervision, Tasks};

/// Time limit for streams of other nodes to end, while new ones may still arrive.
const BROUGHT_DRAIN: Duration = Duration::from_secs(3);
/// How long loading the stored configuration may fail before the server ends, and how often it logs that it is loading.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(30);

/// A running server, whose listeners accept connections.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    parts: Running,
    first_token: Option<Secret>,
    /// Signs in to the console once, if this start created the first key.
    console_link: Option<Secret>,
    api_addr: Option<SocketAddr>,
    agents_addr: Option<SocketAddr>,
    ssh_addr: Option<SocketAddr>,
    nodes_addr: Option<SocketAddr>,
    metrics_addr: Option<SocketAddr>,
    certificates: CertificateFiles,
    /// The API over TLS.
    api_tls_addr: Option<SocketAddr>,
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
    statistics: Tasks,
    metrics: Tasks,
    supervision: Supervision,
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
        let context = ProcessContext::open(&settings, Access::Server).await?;
        let first_token = first_start(&context, &settings).await?;
        let node = context
            .store
            .join_as(&settings.node(), context.clock.clone())
            .await
            .map_err(with_causes)?;
        let settings = Settings {
            node_name: node.name,
            ..settings
        };
        let ProcessContext {
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
        } = context;
        if master.older.is_some() {
            tracing::warn!(
                "a master key rotation was interrupted; run `culvert admin rotate-master-key` to finish it"
            );
        }

        let system_clock = clock.clone();
        let clock: Arc<dyn Clock> = clock;
        let started_at = clock.now();
        // The queue, and leases of its batches, use the clock that all nodes share.
        queue.follow_clock(node.clock.clone());
        let supervisor = Supervisor::default();
        // Binds the API first, because events contain its address if no other is configured.
        let mut api_listener = None;
        let mut base_url = base_url;
        if has(Role::Api) {
            let listener = listen("api.addr", &settings.api.addr, &inherited).await?;
            if settings.api.base_url.is_empty() {
                let bound = listener.local_addr()?;
                let reached = cluster::advertised(bound, &settings.database_url);
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
                capture_bytes_max: usize::try_from(settings.events.capture_memory_bytes)
                    .unwrap_or(usize::MAX),
                supervisor: supervisor.clone(),
                ..culvert_delivery::Settings::default()
            },
            queue.clone(),
            store.clone(),
            node.clock.clone(),
            entropy.clone(),
        );
        let is_dialled = !settings.agents.addr.is_empty() || !settings.agents.ssh_addr.is_empty();
        let takes_agents = has(Role::Agents) && is_dialled;
        let bindings = takes_agents.then(Arc::<Bindings>::default);
        let mut membership = Membership::default();
        let asks_agents = takes_agents || has(Role::Edge) || has(Role::Api);
        if !settings.database_url.is_empty() && asks_agents {
            let identity = culvert_control::node_identity(&store, &seal, &*clock, &*entropy);
            let (identity, renew_at) = identity.await.map_err(with_causes)?;
            membership =
                Membership::new(&settings, identity, renew_at, takes_agents, &inherited).await?;
        }
        let dial = (bindings.is_some() || membership.nodes.is_some()).then(|| {
            let to_agents = ToAgents {
                here: bindings.clone(),
                elsewhere: membership.nodes.clone(),
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
                    kubernetes_host: settings.kubernetes.host(&domain),
                    agents: dial,
                    supervisor: supervisor.clone(),
                    ip_data: ip_data.clone(),
                    counts: Some(counts.clone()),
                    ..edge_settings(&settings)?
                };
                let edge = Edge::bind(around, delivery.recorder(), clock.clone()).await;
                edge.map_err(with_causes)?
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
            address: membership.address.clone(),
            names_kept: settings.agents.name_reservation.0,
            limits: settings.limits.of_agents(),
        };
        let mut own_names = agent_settings.names.clone();
        own_names.push(settings.kubernetes.host(&domain));
        own_names.extend(settings.acme.names.iter().cloned());
        let control_domain = domain.clone();
        let kubernetes_addr = edge.as_ref().and_then(Edge::kubernetes_addr);
        let kubernetes_ingress = settings.kubernetes.ingress(&domain, kubernetes_addr);
        let certificates = certificate_file::open(&settings)?;
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
                has_tls_before_edge: !settings.edge.trusted_proxies.is_empty(),
                domains_of_owner: settings.rights.domains == config::DomainUse::Owner,
                allow_public_calls: settings.policy.http_request_public,
                on_expression_error: settings.policy.on_expression_error.into(),
                strict_rights: settings.rights.strict,
                ip_data: ip_data.clone(),
                own_names,
                kubernetes_ingress,
                targets,
                base_url,
                agent_minimum: settings.agents.minimum(),
            },
            delivery: delivery.clone(),
            edge: published
                .clone()
                .map(|published| published as Arc<dyn EdgePort>),
            logins,
            console_sign_in: console_sign_in(&settings, clock.clone())?,
            certificates: match &edge {
                Some(edge) => Some(issuer::certificates(&settings, edge, clock.clone())?),
                None => None,
            },
            agents: bindings.clone().map(|bindings| (bindings, agent_settings)),
            nodes: membership.nodes.clone(),
            statistics: Statistics::new(
                queue.clone(),
                settings.node(),
                settings.statistics.of_control(),
            ),
        })
        .await
        .map_err(with_causes)?;
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
            statistics: Tasks::new(&supervisor),
            metrics: Tasks::new(&supervisor),
            supervision: Supervision::new(supervisor.clone(), &store, &queue),
        };
        let supervision = parts.supervision.clone();
        let run = |stop| delivery.clone().run(stop);
        parts.delivery_tasks.start("delivery", run);
        parts
            .control
            .start("clock", |stop| system_clock::follow(system_clock, stop));
        if let Some(nodes) = &membership.nodes {
            parts.control.start("nodes", |stop| nodes.clone().run(stop));
            let keep = |stop| control.clone().keep_identity(membership.renew_at, stop);
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
        if has(Role::Api) {
            let keep = |stop| control.clone().keep_key_uses(stop);
            parts.control.start("key_uses", keep);
        }
        if let Some(published) = &published {
            published.wait_for_first(&control).await?;
        }
        // Until now, connections waited in the backlog of the sockets.
        if let Some(edge) = edge.clone() {
            parts.edge_tasks.start("edge", |stop| edge.run(stop));
        }
        let manage = |stop| control.clone().manage_certificates(stop);
        parts.certificates.start("certificates", manage);

        let (mut agents_addr, mut ssh_addr, mut tunnel) = (None, None, None);
        if let Some(bindings) = bindings {
            control.begin_agents().await.map_err(with_causes)?;
            if let (Some(listener), Some(nodes)) = (membership.listener.take(), &membership.nodes) {
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
                let own = certificates[0].clone().map(|own| own as _);
                let resolver = control
                    .agent_certificate(own)
                    .context("the agent ingress has no certificate")?;
                let limits = settings.limits.agent_connections(legs);
                let tls = ingress::tls(resolver, &[])?;
                let mut ingress = Ingress::new(listener, tls, server.clone(), limits);
                if let Some(edge) = edge.clone() {
                    ingress = ingress.with_runtimes(move || edge.next_thread());
                }
                parts.agents.start("agents", |stop| ingress.run(stop));
            }
            if !settings.agents.ssh_addr.is_empty() {
                let address = &settings.agents.ssh_addr;
                let listener = listen("agents.ssh_addr", address, &inherited).await?;
                ssh_addr = Some(listener.local_addr()?);
                let key = HostKey::from_seed(&*control.ssh_host_seed().await.map_err(with_causes)?);
                tracing::info!(fingerprint = key.fingerprint(), "the SSH host key");
                let limits = settings.limits.ssh_connections();
                let ingress = SshIngress::new(listener, &key, server, limits);
                parts.agents.start("ssh", |stop| ingress.run(stop));
            }
            let keep = |stop| control.clone().keep_agents(stop);
            parts.agent_keeper.start("agent_sessions", keep);
            let keep = |stop| control.clone().keep_heartbeat(stop);
            parts.agent_keeper.start("heartbeat", keep);
        }
        let source = Arc::new(NodeSource {
            node: settings.node(),
            edge: edge.clone(),
            delivery: delivery.clone(),
            control: control.clone(),
            store: store.clone(),
            queue: queue.clone(),
            cpu: Mutex::default(),
        });
        let keep = |stop| control.clone().keep_statistics(source, stop);
        parts.statistics.start("statistics", keep);
        let (mut api_addr, mut api_tls_addr, mut metrics_addr) = (None, None, None);
        let mut api_meters = None;
        if let Some(listener) = api_listener {
            api_addr = Some(listener.local_addr()?);
            let health = Readiness {
                control: control.clone(),
                has_agents: has(Role::Agents),
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
            .map_err(with_causes)?;
            api_meters = Some(api.meters().clone());
            if !settings.api.tls.addr.is_empty() {
                let listener = listen("api.tls.addr", &settings.api.tls.addr, &inherited).await?;
                api_tls_addr = Some(listener.local_addr()?);
                let own = certificates[1].clone().map(|own| own as _);
                let names = api_names(&given, &control_domain);
                let certificate = control.api_certificate(own, names);
                let renew_at = control.renew_api_certificate(&certificate).await;
                let renew_at = renew_at.map_err(with_causes)?;
                let tls = ingress::tls(certificate.clone(), &["h2", "http/1.1"])?;
                let api = api.clone();
                parts
                    .api
                    .start("api_tls", |stop| api.serve_tls(listener, tls, stop));
                let keep = |stop| {
                    control
                        .clone()
                        .keep_api_certificate(certificate, renew_at, stop)
                };
                parts.api.start("api_certificate", keep);
            }
            parts.api.start("api", |stop| api.serve(listener, stop));
        }
        if !settings.metrics.addr.is_empty() {
            let listener = listen("metrics.addr", &settings.metrics.addr, &inherited).await?;
            metrics_addr = Some(listener.local_addr()?);
            let (delivery, edge) = (delivery.clone(), edge.clone());
            let control = control.clone();
            let nodes = membership.nodes.clone();
            let read = move || {
                let mut rows = samples::delivery(&delivery);
                rows.extend(nodes.iter().flat_map(|nodes| cluster::samples(nodes)));
                if shares_counts {
                    rows.extend(rate_exchange::samples(&counts));
                }
                rows.extend(edge.iter().flat_map(samples::edge));
                rows.extend(edge.iter().flat_map(statistics::endpoints));
                rows.extend(statistics::destinations(&delivery));
                rows.extend(statistics::process(&control));
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
            api_tls_addr,
            metrics_addr,
            agents_addr,
            ssh_addr,
            membership.local_addr,
            edge.as_ref().and_then(Edge::http_addr),
            edge.as_ref().and_then(Edge::https_addr),
        ];
        delivery
            .net()
            .set_own_listeners(own.into_iter().flatten().collect());
        let console_link = first_token.as_ref().filter(|_| api_addr.is_some());
        let console_link = console_link.map(|token| control.make_console_link(token));
        let mut server = Self {
            settings: given,
            parts,
            first_token,
            console_link,
            api_addr,
            agents_addr,
            ssh_addr,
            nodes_addr: membership.local_addr,
            metrics_addr,
            certificates,
            api_tls_addr,
            ip_data,
            ca_file,
            master,
            _lock: lock,
        };
        server.describe(control, delivery, membership.nodes.clone(), started_at);
        Ok(server)
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
            self.certificates.clone(),
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

/// Names of the API's certificate of the installation's own CA: the host of its public URL, and the names that agents
/// may dial.
fn api_names(settings: &Settings, domain: &HostName) -> Vec<String> {
    let base_url = url::Url::parse(&settings.api.base_url).ok();
    let host = base_url.and_then(|url| Some(url.host_str()?.to_owned()));
    let bound = settings.api.tls.addr.parse::<SocketAddr>().ok();
    let bound = bound.map(|at| at.ip()).filter(|ip| !ip.is_unspecified());
    let mut names = ingress::names(settings, domain);
    for name in host.into_iter().chain(bound.map(|ip| ip.to_string())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Creates the first account, user and API key if the store is empty.
async fn first_start(context: &ProcessContext, settings: &Settings) -> Result<Option<Secret>> {
    let given = Some(&settings.bootstrap.api_key).filter(|token| !token.is_empty());
    let given = given.map(|token| Secret::new(token.clone()));
    settings.bootstrap.check()?;
    let made = context
        .bootstrap()
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

    /// Waits as long as it takes to load the stored configuration, if loading does not fail.
    async fn wait_for_first(&self, control: &Control) -> Result<()> {
        let mut first = self.first.subscribe();
        loop {
            let published = first.wait_for(|published| *published);
            match tokio::time::timeout(FIRST_SNAPSHOT, published).await {
                Ok(Ok(_)) => return Ok(()),
                Err(_) if !control.has_failed_to_load() => {
                    tracing::info!("still loading the stored configuration");
                }
                _ => bail!("the edge did not load the stored configuration; see the log"),
            }
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

    fn replay(&self, request: ReplayRequest) -> BoxFuture<'_, Result<Replayed, NotReplayed>> {
        Box::pin(self.edge.replay(request))
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
        issuer: settings.base_url(),
        allows_loopback: settings.edge.allow_private_upstreams,
        ..settings.oauth.logins()?
    };
    Ok(Logins::new(keys, settings))
}

/// How people sign in to the console at an OpenID provider, if the settings name one.
fn console_sign_in(settings: &Settings, clock: Arc<dyn Clock>) -> Result<Option<ConsoleSignIn>> {
    let allows_loopback = settings.edge.allow_private_upstreams;
    let Some((provider, name, roles)) = settings.console.openid.provider(allows_loopback)? else {
        return Ok(None);
    };
    let services =
        culvert_edge::client_services(edge_settings(settings)?, clock).map_err(with_causes)?;
    let provider = ConsoleProvider::new(provider, services).ok_or_else(|| {
        let why = "`console.openid.issuer_url` must be an https URL";
        Invalid(why.to_owned())
    })?;
    Ok(Some(ConsoleSignIn {
        provider,
        name,
        roles,
    }))
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
pub fn with_causes(fault: Fault) -> anyhow::Error {
    anyhow::Error::msg(fault.chain())
}
