//! The composition root: builds every part, holds the adapters between them, owns the order in which
//! they stop.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_api::{Api, Health, Window};
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Clock, Entropy, Fault, IdMaker, OsEntropy, Secret, SystemClock};
use culvert_control::{
    AgentSettings, Control, EdgePort, Founder, LoginKeys, LoginSettings, Logins, Parts, Pepper,
    Resealed, Seal, login_key,
};
use culvert_delivery::guard::Rules;
use culvert_delivery::{Delivery, Health as DestinationHealth, State, TargetSettings};
use culvert_edge::login::Entry as LoginEntry;
use culvert_edge::{Dial, Edge, Inherited, Snapshot};
use culvert_events::HeaderRules;
use culvert_ssh::{HostKey, SshIngress};
use culvert_store::{Queue, Store, StoreUrl};
use culvert_tunnel::server::{Bindings, Ingress};
use ipnet::IpNet;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clouds;
use crate::config::{self, Invalid, OnExpressionError, ProxiedListener, Role, Settings};
use crate::ingress::{self, OwnCertificate, ToAgents};
use crate::issuer;
use crate::keys::{self, MasterKey};
use crate::metrics::{self, Sample};
use crate::reload::Reload;

/// How long the first snapshot may take to reach the edge before the server says that it is ready.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(30);

/// What every node of an installation must agree on.
pub(crate) const MASTER_KEY_MARK: &str = "master_key";
/// The pepper, sealed; absent while the master key is the one it was made from.
const PEPPER: &str = "pepper";
/// How often a server looks whether the master key was rotated under it, and how long a rotation
/// waits for servers to have looked.
const KEY_LOOK_EVERY: Duration = Duration::from_secs(1);
const KEY_WAIT: Duration = Duration::from_secs(3);

/// A culvert whose listeners accept.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    parts: Running,
    first_token: Option<Secret>,
    api_addr: Option<SocketAddr>,
    agents_addr: Option<SocketAddr>,
    ssh_addr: Option<SocketAddr>,
    metrics_addr: Option<SocketAddr>,
    /// The operator's own, for agents.
    certificate: Option<Arc<OwnCertificate>>,
    ca_file: PathBuf,
    master: MasterKey,
}

/// The parts and the tasks they run in. Each group of tasks has a token of its own, so that they stop
/// in order.
#[derive(Debug)]
struct Running {
    store: Store,
    queue: Queue,
    edge: Option<Edge>,
    api: Tasks,
    edge_tasks: Tasks,
    agents: Tasks,
    agent_keeper: Tasks,
    control: Tasks,
    certificates: Tasks,
    delivery_tasks: Tasks,
    metrics: Tasks,
}

/// Some tasks and what stops them.
#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    stop: CancellationToken,
}

impl Tasks {
    /// Stops them and waits for their end. A panic in one ends it alone and was counted.
    async fn finish(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a part of the server did not end well");
            }
        }
    }
}

/// What the master key, the database and the two clocks of a process are, before anything runs.
#[derive(Debug)]
pub struct Foundation {
    /// Documents and outbox.
    pub store: Store,
    /// Events on their way.
    pub queue: Queue,
    /// Digests of tokens.
    pub pepper: Pepper,
    seal: Seal,
    master: MasterKey,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    ids: Arc<IdMaker>,
    domain: HostName,
    base_url: String,
}

impl Foundation {
    /// Opens what is in the data folder or the database, making it if it is not there.
    pub async fn open(settings: &Settings) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
        keys::make_data_dir(&settings.data_dir)?;
        let master = keys::load_or_make(&settings.key_file(), &*entropy)?;
        let url = store_url(settings);
        let store = Store::open(&url, clock.clone(), culvert_control::texts())
            .await
            .map_err(told)?;
        let queue = Queue::open(&url, clock.clone()).await.map_err(told)?;
        let agreed = agree_on_key(&store, &master).await?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = match store.meta_get(PEPPER).await.map_err(told)? {
            Some(sealed) => Pepper::unsealed(&seal, &sealed).map_err(told)?,
            None => Pepper::new(&agreed),
        };
        Ok(Self {
            store,
            queue,
            pepper,
            seal,
            master,
            clock,
            entropy,
            ids: Arc::default(),
            domain: HostName::parse(&settings.edge.domain).context("`edge.domain`")?,
            base_url: settings.api.base_url.trim_end_matches('/').to_owned(),
        })
    }

    /// Makes accounts and keys without a running server.
    pub fn founder(&self) -> Founder<'_> {
        Founder {
            ids: &self.ids,
            store: &self.store,
            clock: &*self.clock,
            entropy: &*self.entropy,
            pepper: &self.pepper,
            base: &self.base_url,
            domain: &self.domain,
        }
    }

    /// Another master key: everything sealed is sealed anew under it, and the old one is refused from
    /// then on. Cut off at any moment it leaves everything readable; begun again it goes on. How many
    /// documents had secrets.
    ///
    /// The key file holds both keys from before the first document is touched until after the last.
    pub async fn rotate_master_key(&self, settings: &Settings) -> Result<Resealed> {
        let path = settings.key_file();
        let master = match &self.master.older {
            // A rotation that was cut off.
            Some(_) => self.master.clone(),
            None => self.master.clone().rotated(&*self.entropy),
        };
        master.write(&path)?;
        let seal = Seal::new(&master.current).with_older(&master.older);
        let pepper = self.pepper.sealed(&seal, &*self.entropy).map_err(told)?;
        self.store.meta_set(PEPPER, &pepper).await.map_err(told)?;
        // From here on nobody starts with the old key alone, and whoever runs with it stops.
        let mark = keys::mark_of(&master.current);
        self.store
            .meta_set(MASTER_KEY_MARK, &mark)
            .await
            .map_err(told)?;
        tokio::time::sleep(KEY_WAIT).await;
        let resealed = culvert_control::reseal(&self.store, &seal, &*self.entropy)
            .await
            .map_err(told)?;
        let alone = MasterKey {
            older: None,
            ..master
        };
        alone.write(&path)?;
        Ok(resealed)
    }

    /// Closes both.
    pub async fn close(self) {
        self.queue.close().await;
        self.store.close().await;
    }
}

/// Where the state is.
pub fn store_url(settings: &Settings) -> StoreUrl {
    if settings.database_url.is_empty() {
        StoreUrl::Sqlite(settings.data_dir.join("state.db"))
    } else {
        StoreUrl::Postgres(settings.database_url.clone())
    }
}

/// A second node with another master key could read no secret of the first, and would recognise no
/// key: better that it does not start. The key that was agreed on.
async fn agree_on_key(store: &Store, master: &MasterKey) -> Result<Secret> {
    let Some(known) = store.meta_get(MASTER_KEY_MARK).await.map_err(told)? else {
        let mark = keys::mark_of(&master.current);
        store.meta_set(MASTER_KEY_MARK, &mark).await.map_err(told)?;
        return Ok(master.current.clone());
    };
    match master.each().find(|key| keys::mark_of(key) == known) {
        Some(key) => Ok(key.clone()),
        None => bail!(
            "the master key is not the one of this database; copy `master.key` of a node that has it, \
             or name it with `secrets.key_file`"
        ),
    }
}

/// Completes when the database's secrets are sealed under a key that this process does not have.
async fn key_rotated(store: &Store, master: &MasterKey) {
    let marks: Vec<String> = master.each().map(keys::mark_of).collect();
    loop {
        tokio::time::sleep(KEY_LOOK_EVERY).await;
        // A store that cannot be read is the business of others.
        if let Ok(Some(mark)) = store.meta_get(MASTER_KEY_MARK).await
            && !marks.contains(&mark)
        {
            return;
        }
    }
}

impl Server {
    /// Builds and starts everything. When this returns, all listeners accept and the edge runs on the
    /// stored configuration.
    pub async fn start(settings: Settings) -> Result<Self> {
        // In a box, for it is large.
        Box::pin(Self::start_on(settings, Inherited::default())).await
    }

    /// The same, listening on sockets that are already there where they fit the settings.
    pub async fn start_on(settings: Settings, inherited: Inherited) -> Result<Self> {
        let has = |role| settings.roles.contains(&role);
        let foundation = Foundation::open(&settings).await?;
        let first_token = first_start(&foundation, &settings).await?;
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
        } = foundation;
        if master.older.is_some() {
            tracing::warn!(
                "a rotation of the master key was cut off; `culvert admin rotate-master-key` finishes it"
            );
        }

        let targets = target_settings(&settings, &config::environment())?;
        let delivery = Delivery::new(
            culvert_delivery::Settings {
                node: settings.node(),
                sends: has(Role::Delivery),
                targets: targets.clone(),
                audit_retention: settings.audit.retention.0,
                ..culvert_delivery::Settings::default()
            },
            queue.clone(),
            store.clone(),
            clock.clone(),
            entropy.clone(),
        );
        let is_dialled = !settings.agents.addr.is_empty() || !settings.agents.ssh_addr.is_empty();
        let takes_agents = has(Role::Agents) && is_dialled;
        let bindings = takes_agents.then(Arc::<Bindings>::default);
        let dial = bindings
            .clone()
            .map(|bindings| Arc::new(ToAgents(bindings)) as Arc<dyn Dial>);
        let edge = match has(Role::Edge) {
            true => Some(bind_edge(&settings, &inherited, &delivery, clock.clone(), dial).await?),
            false => None,
        };
        let published = edge.clone().map(|edge| Arc::new(Published::new(edge)));
        let (first, last) = settings.tcp_ports()?;
        let agent_settings = AgentSettings {
            node: settings.node(),
            region: settings.region.clone(),
            names: ingress::names(&settings, &domain),
            is_alone: settings.database_url.is_empty(),
        };
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
                tcp_ports: first..=last,
                allow_private_upstreams: settings.edge.allow_private_upstreams,
                targets,
                base_url,
            },
            delivery: delivery.clone(),
            edge: published
                .clone()
                .map(|published| published as Arc<dyn EdgePort>),
            logins,
            certificates: match has(Role::Edge) {
                true => Some(issuer::certificates(&settings)?),
                false => None,
            },
            agents: bindings.clone().map(|bindings| (bindings, agent_settings)),
        })
        .await
        .map_err(told)?;
        let ca_file = settings.data_dir.join("ca.pem");
        keys::write_public(&ca_file, control.ca_pem())?;

        let mut parts = Running {
            store: store.clone(),
            queue: queue.clone(),
            edge: edge.clone(),
            api: Tasks::default(),
            edge_tasks: Tasks::default(),
            agents: Tasks::default(),
            agent_keeper: Tasks::default(),
            control: Tasks::default(),
            certificates: Tasks::default(),
            delivery_tasks: Tasks::default(),
            metrics: Tasks::default(),
        };
        let stop = parts.delivery_tasks.stop.clone();
        parts
            .delivery_tasks
            .running
            .spawn(delivery.clone().run(stop));
        let stop = parts.control.stop.clone();
        parts.control.running.spawn(control.clone().run(stop));
        if has(Role::Edge) {
            let stop = parts.control.stop.clone();
            parts
                .control
                .running
                .spawn(control.clone().keep_logins(entries, stop));
        }
        if let Some(published) = &published {
            published.wait_for_first().await?;
        }
        // Connections wait in the sockets until there is something to serve them with.
        if let Some(edge) = edge.clone() {
            parts
                .edge_tasks
                .running
                .spawn(edge.run(parts.edge_tasks.stop.clone()));
        }
        let stop = parts.certificates.stop.clone();
        let certificates = control.clone().manage_certificates(stop);
        parts.certificates.running.spawn(certificates);

        let (mut agents_addr, mut ssh_addr, mut tunnel) = (None, None, None);
        if let Some(bindings) = bindings {
            control.begin_agents().await.map_err(told)?;
            let server = culvert_tunnel::server::Server::new(
                control.clone(),
                bindings,
                settings.region.clone(),
            );
            let server = Arc::new(server);
            tunnel = Some(server.clone());
            if !settings.agents.addr.is_empty() {
                let listener = listen("agents.addr", &settings.agents.addr, &inherited).await?;
                agents_addr = Some(listener.local_addr()?);
                let own = certificate.as_ref().map(|own| Arc::clone(own) as _);
                let resolver = control
                    .agent_certificate(own)
                    .context("agents are shown no certificate")?;
                let ingress = Ingress::new(listener, ingress::tls(resolver)?, server.clone());
                let stop = parts.agents.stop.clone();
                parts.agents.running.spawn(ingress.run(stop));
            }
            if !settings.agents.ssh_addr.is_empty() {
                let address = &settings.agents.ssh_addr;
                let listener = listen("agents.ssh_addr", address, &inherited).await?;
                ssh_addr = Some(listener.local_addr()?);
                let key = HostKey::from_seed(&*control.ssh_host_seed().await.map_err(told)?);
                tracing::info!(fingerprint = key.fingerprint(), "the SSH host key");
                let ingress = SshIngress::new(listener, &key, server);
                let stop = parts.agents.stop.clone();
                parts.agents.running.spawn(ingress.run(stop));
            }
            let stop = parts.agent_keeper.stop.clone();
            let keeper = control.clone().keep_agents(stop);
            parts.agent_keeper.running.spawn(keeper);
        }
        let (mut api_addr, mut metrics_addr) = (None, None);
        let mut api_meters = None;
        if has(Role::Api) {
            let listener = listen("api.addr", &settings.api.addr, &inherited).await?;
            api_addr = Some(listener.local_addr()?);
            let health = Readiness {
                store: store.clone(),
                queue: queue.clone(),
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
            parts
                .api
                .running
                .spawn(api.serve(listener, parts.api.stop.clone()));
        }
        if !settings.metrics.addr.is_empty() {
            let listener = listen("metrics.addr", &settings.metrics.addr, &inherited).await?;
            metrics_addr = Some(listener.local_addr()?);
            let (delivery, edge) = (delivery.clone(), edge.clone());
            let control = control.clone();
            let read = move || {
                let mut samples = delivery_samples(&delivery);
                samples.extend(edge.iter().flat_map(edge_samples));
                samples.extend(certificate_samples(&control));
                samples.extend(
                    tunnel
                        .iter()
                        .flat_map(|server| agent_samples(server, &control)),
                );
                samples.extend(api_meters.iter().flat_map(|meters| api_samples(meters)));
                samples.push(counter(
                    "panics",
                    "Panics, each of which ended one task",
                    metrics::panics(),
                ));
                samples
            };
            let stop = parts.metrics.stop.clone();
            parts
                .metrics
                .running
                .spawn(metrics::serve(listener, Box::new(read), stop));
        }
        // No destination may be pointed at ourselves: an event would make the next one.
        let own = [
            api_addr,
            metrics_addr,
            agents_addr,
            ssh_addr,
            edge.as_ref().and_then(Edge::http_addr),
            edge.as_ref().and_then(Edge::https_addr),
        ];
        delivery
            .net()
            .set_own_listeners(own.into_iter().flatten().collect());
        Ok(Self {
            settings,
            parts,
            first_token,
            api_addr,
            agents_addr,
            ssh_addr,
            metrics_addr,
            certificate,
            ca_file,
            master,
        })
    }

    /// Takes other settings into use while the server runs.
    pub fn reload(&self) -> Reload {
        let edge = self.parts.edge.clone();
        Reload::new(self.settings.clone(), edge, self.certificate.clone())
    }

    /// Token of the first key, if this start made it.
    pub fn first_token(&self) -> Option<&Secret> {
        self.first_token.as_ref()
    }

    /// `http://host:port` of the management API; empty when this process does not run it.
    pub fn api_url(&self) -> String {
        self.api_addr
            .map(|address| format!("http://{address}"))
            .unwrap_or_default()
    }

    /// Where plain HTTP is accepted.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.http_addr()
    }

    /// Where TLS is accepted.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.https_addr()
    }

    /// Where agents dial.
    pub fn agents_addr(&self) -> Option<SocketAddr> {
        self.agents_addr
    }

    /// Where clients of SSH dial.
    pub fn ssh_addr(&self) -> Option<SocketAddr> {
        self.ssh_addr
    }

    /// Where metrics are.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// The file with the installation's certificate authority.
    pub fn ca_file(&self) -> PathBuf {
        self.ca_file.clone()
    }

    /// Addresses of sockets that were handed over and that no setting asks for.
    pub fn unused(&self, inherited: &Inherited) -> Vec<SocketAddr> {
        let wanted = [
            self.api_addr,
            self.agents_addr,
            self.ssh_addr,
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

    /// The line that says where everything accepts.
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

    /// Runs until `cancel`, or until the disk can no longer be trusted; then stops in order: no new
    /// exchanges, those in flight to a deadline, the API, the agents, the recorder, the workers, the
    /// store.
    pub async fn run(mut self, cancel: CancellationToken) -> Result<()> {
        let broken = tokio::select! {
            () = cancel.cancelled() => None,
            fault = self.parts.store.broken() => Some(fault),
            fault = self.parts.queue.broken() => Some(fault),
            () = key_rotated(&self.parts.store, &self.master) => {
                // What this process would seal from here on, nobody could open.
                bail!("the master key was rotated; copy the new `master.key` to this node and start again");
            }
        };
        if let Some(fault) = broken {
            // What the disk says from here on cannot be believed; the next start reads what it holds.
            tracing::error!(cause = %fault.chain(), "the disk failed a write, the server stops at once");
            return Err(anyhow::Error::new(BrokenDisk));
        }
        let parts = &mut self.parts;
        let began = tokio::time::Instant::now();
        // First: an authority that finds nobody here would say that a name is not ours.
        parts.certificates.finish().await;
        tokio::join!(parts.edge_tasks.finish(), parts.api.finish());
        // Behind the edge, whose last exchanges may be with agents; and late, for agents come back in
        // seconds or in minutes.
        parts.agents.finish().await;
        parts.agent_keeper.finish().await;
        parts.control.finish().await;
        parts.delivery_tasks.finish().await;
        parts.metrics.finish().await;
        parts.queue.close().await;
        parts.store.close().await;
        tracing::info!(
            seconds = began.elapsed().as_secs_f32(),
            node = self.settings.node(),
            "stopped"
        );
        Ok(())
    }
}

/// The disk failed a write that had to be durable. Exit code 70.
#[derive(Debug)]
pub struct BrokenDisk;

impl std::fmt::Display for BrokenDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the disk failed a write that had to be durable; nothing more was acknowledged")
    }
}

impl std::error::Error for BrokenDisk {}

/// Makes the first account, user and key if the store is empty.
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
        tracing::info!("the first API key's token is in `{}`", path.display());
        return Ok(made);
    }
    // A token that was given is known to whoever gave it.
    Ok(None)
}

/// The edge as control sees it, and whether it has its first snapshot.
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
            _ => bail!("the stored configuration did not reach the edge; the log says why"),
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
}

/// Ready when store and queue are usable.
#[derive(Debug)]
struct Readiness {
    store: Store,
    queue: Queue,
}

impl Health for Readiness {
    fn ready(&self) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>> {
        Box::pin(async move {
            let (store, queue) = tokio::join!(self.store.usable(), self.queue.usable());
            // The path needs no credential: what is wrong is named, why is in the log.
            let shown = |part: Result<(), Fault>| {
                part.map_err(|fault| {
                    tracing::warn!(cause = %fault.chain(), "a part is not usable");
                    "not usable".to_owned()
                })
            };
            vec![("store", shown(store)), ("event_log", shown(queue))]
        })
    }
}

/// What log-ins share, and what they tell.
fn logins(
    settings: &Settings,
    master: &MasterKey,
) -> Result<(Arc<Logins>, mpsc::Receiver<LoginEntry>), Invalid> {
    let keys = LoginKeys::new(master.each().map(login_key));
    let settings = LoginSettings {
        allows_loopback: settings.edge.allow_private_upstreams,
        ..settings.oauth.logins()?
    };
    Ok(Logins::new(keys, settings))
}

async fn bind_edge(
    settings: &Settings,
    inherited: &Inherited,
    delivery: &Delivery,
    clock: Arc<dyn Clock>,
    agents: Option<Arc<dyn Dial>>,
) -> Result<Edge> {
    let settings = culvert_edge::Settings {
        inherited: inherited.clone(),
        agents,
        ..edge_settings(settings)?
    };
    Edge::bind(settings, delivery.recorder(), clock)
        .await
        .map_err(told)
}

/// What the settings say of the edge, with the files they name.
pub(crate) fn edge_settings(settings: &Settings) -> Result<culvert_edge::Settings, Invalid> {
    let limits = culvert_edge::Limits {
        memory_bytes: settings.edge.memory_bytes,
        body_bytes: match settings.edge.body_bytes_max {
            0 => u64::MAX,
            most => most,
        },
        connections: settings.edge.connections_max as usize,
        connections_per_source: settings.edge.connections_per_source_max as usize,
        drain: settings.shutdown.drain.0,
        ..culvert_edge::Limits::default()
    };
    let http_addr = address(&settings.edge.http_addr);
    let https_addr = address(&settings.edge.https_addr);
    let upstream_roots = match settings.edge.extra_ca_file.as_str() {
        "" => Vec::new(),
        path => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|e| Invalid(format!("`edge.extra_ca_file` cannot be read: {e}")))?,
    };
    let mut certificates = Vec::new();
    for path in &settings.edge.certificates {
        let unusable = |why: String| {
            Invalid(format!(
                "`edge.certificates` has `{path}`, which cannot be used: {why}"
            ))
        };
        let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let certificate =
            culvert_edge::read_certificate(&pem).map_err(|fault| unusable(fault.chain()))?;
        certificates.push(certificate);
    }
    let proxied = |listener| settings.edge.proxy_protocol.contains(&listener);
    Ok(culvert_edge::Settings {
        http_addr,
        https_addr,
        tcp_bind_ip: http_addr
            .or(https_addr)
            .map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip()),
        inherited: Inherited::default(),
        trusted_proxies: networks("edge.trusted_proxies", &settings.edge.trusted_proxies)?,
        proxy_protocol: culvert_edge::ProxyProtocol {
            from: networks(
                "edge.proxy_protocol_from",
                &settings.edge.proxy_protocol_from,
            )?,
            http: proxied(ProxiedListener::Http),
            https: proxied(ProxiedListener::Https),
            tcp: proxied(ProxiedListener::Tcp),
        },
        allow_private_upstreams: settings.edge.allow_private_upstreams,
        upstream_roots,
        certificates,
        agents: None,
        entropy: Arc::new(OsEntropy),
        refuses_undecided: settings.policy.on_expression_error == OnExpressionError::Deny,
        header_rules: HeaderRules::redacting(&settings.events.redact_headers),
        limits,
    })
}

fn target_settings(
    settings: &Settings,
    environment: &HashMap<String, String>,
) -> Result<TargetSettings> {
    let file_root = settings.file_root();
    Ok(TargetSettings {
        rules: Rules {
            allow_networks: networks(
                "destinations.allow_networks",
                &settings.destinations.allow_networks,
            )?,
            allow_plain_http: settings.destinations.allow_plain_http,
            ..Rules::default()
        },
        extra_ca_file: Some(&settings.destinations.tls.extra_ca_file)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        file_root: Some(file_root),
        public_base: settings.api.base_url.trim_end_matches('/').to_owned(),
        node: settings.node(),
        aws: clouds::settings(&settings.destinations.aws, environment)?,
        datadog_base: clouds::base(
            "destinations.datadog.base_url",
            &settings.destinations.datadog.base_url,
        )?,
        datadog_sites: settings.destinations.datadog.sites.clone(),
        azure_authority: clouds::base(
            "destinations.azure.authority_url",
            &settings.destinations.azure.authority_url,
        )?,
    })
}

fn api_settings(settings: &Settings) -> Result<culvert_api::Settings> {
    let base_url = settings.api.base_url.trim_end_matches('/').to_owned();
    let per_minute = settings.api.rate_limit_per_minute;
    Ok(culvert_api::Settings {
        base_url: Some(base_url).filter(|base| !base.is_empty()),
        trusted_proxies: networks("api.trusted_proxies", &settings.api.trusted_proxies)?,
        limits: culvert_api::Limits {
            account_window: (per_minute > 0).then(|| Window {
                requests: per_minute as usize,
                length: Duration::from_secs(60),
            }),
            drain: settings.shutdown.drain.0,
            ..culvert_api::Limits::default()
        },
    })
}

/// Addresses were checked when the settings were read; empty means off.
fn address(text: &str) -> Option<SocketAddr> {
    text.parse().ok()
}

fn networks(key: &str, list: &[String]) -> Result<Vec<IpNet>, Invalid> {
    list.iter()
        .map(|text| {
            let text = text.trim();
            text.parse()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| {
                    Invalid(format!(
                        "`{key}` has `{text}`, which is not a network such as `10.0.0.0/8`"
                    ))
                })
        })
        .collect()
}

async fn listen(key: &str, address: &str, inherited: &Inherited) -> Result<TcpListener> {
    let doing = || format!("listening on `{key}` {address}");
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

/// A fault as the command line tells it: with its causes.
pub fn told(fault: Fault) -> anyhow::Error {
    anyhow::Error::msg(fault.chain())
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Sample {
    Sample {
        name,
        help,
        label: None,
        counter: true,
        value,
    }
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> Sample {
    Sample {
        name,
        help,
        label: None,
        counter: false,
        value,
    }
}

fn edge_samples(edge: &Edge) -> Vec<Sample> {
    let m = edge.meters();
    let mut samples = vec![
        gauge(
            "edge_connections",
            "Connections open now",
            m.connections.get(),
        ),
        counter("edge_accepted", "Connections accepted", m.accepted.get()),
        counter(
            "edge_refused_full",
            "Connections closed at accept: as many as are taken",
            m.refused_full.get(),
        ),
        counter(
            "edge_refused_source",
            "Connections closed at accept: too many from one source",
            m.refused_source.get(),
        ),
        counter(
            "edge_refused_announcements",
            "Connections closed because the PROXY header was missing or malformed",
            m.refused_announcements.get(),
        ),
        counter(
            "edge_unknown_names",
            "TLS connections for a name nobody has here",
            m.unknown_names.get(),
        ),
        counter(
            "edge_handshakes_failed",
            "TLS handshakes that failed or took too long",
            m.handshakes_failed.get(),
        ),
        counter(
            "edge_requests",
            "Requests whose head was believed",
            m.requests.get(),
        ),
        counter(
            "edge_requests_refused",
            "Requests refused for what is on the wire",
            m.requests_refused.get(),
        ),
        counter(
            "edge_unknown_hosts",
            "Requests for a host without an endpoint",
            m.unknown_hosts.get(),
        ),
        counter(
            "edge_challenges_answered",
            "Looks of a certificate authority that were answered",
            m.challenges_answered.get(),
        ),
        counter(
            "edge_upstream_connects",
            "Connections made to upstreams",
            m.upstream_connects.get(),
        ),
        counter(
            "edge_upstream_connects_failed",
            "Connections to upstreams that failed",
            m.upstream_connects_failed.get(),
        ),
        counter(
            "edge_upstream_reused",
            "Requests on an upstream connection used before",
            m.upstream_reused.get(),
        ),
        counter(
            "edge_upstream_retries",
            "Requests sent again on a fresh connection",
            m.upstream_retries.get(),
        ),
        counter(
            "edge_upstream_failed",
            "Upstream answers that could not be taken",
            m.upstream_failed.get(),
        ),
        counter(
            "edge_policy_failures",
            "Expressions of traffic policies that failed",
            m.policy_failures.get(),
        ),
        counter("edge_logins", "Users who logged in", m.logins.get()),
        counter(
            "edge_ports_failed",
            "TCP ports that could not be listened on",
            m.ports_failed.get(),
        ),
        counter(
            "edge_bytes_in",
            "Bytes received from clients",
            m.bytes_in.get(),
        ),
        counter("edge_bytes_out", "Bytes sent to clients", m.bytes_out.get()),
        counter(
            "edge_snapshots",
            "Snapshots taken into use",
            m.snapshots.get(),
        ),
        gauge(
            "edge_overload_level",
            "Overload: 0 none, 1 busy, 2 tight, 3 full",
            m.overload_level.get(),
        ),
        counter(
            "edge_http2_errors",
            "HTTP/2 connections ended for an error of the client",
            m.http2_errors.get(),
        ),
    ];
    let shed = [
        ("connections", &m.shed_connections),
        ("requests", &m.shed_requests),
        ("idle", &m.shed_idle),
    ];
    samples.extend(shed.map(|(what, meter)| Sample {
        name: "edge_shed",
        help: "What was turned away or closed early for overload",
        label: Some(("what", what.to_owned())),
        counter: true,
        value: meter.get(),
    }));
    let floods = [
        ("resets", &m.floods_resets),
        ("idle_frames", &m.floods_idle_frames),
        ("continuations", &m.floods_continuations),
    ];
    samples.extend(floods.map(|(reason, meter)| Sample {
        name: "edge_http2_floods",
        help: "HTTP/2 connections cut because their client flooded",
        label: Some(("reason", reason.to_owned())),
        counter: true,
        value: meter.get(),
    }));
    samples
}

fn agent_samples(server: &culvert_tunnel::server::Server, control: &Control) -> Vec<Sample> {
    let m = server.meters();
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    vec![
        gauge(
            "agent_sessions",
            "Sessions of agents, those that may come back in a moment among them",
            number(control.agent_sessions()),
        ),
        gauge(
            "agent_connections",
            "Connections of agents that were let in",
            number(server.bindings().connections()),
        ),
        gauge(
            "agent_endpoints",
            "Endpoints that agents serve",
            number(server.bindings().endpoints()),
        ),
        counter(
            "agent_accepted",
            "Connections accepted from agents",
            m.accepted.get(),
        ),
        counter(
            "agent_turned_away",
            "Of them, closed at once: too many of one source that had not said who they are",
            m.turned_away.get(),
        ),
        counter(
            "agent_handshakes_failed",
            "TLS handshakes of agents that failed or took too long",
            m.handshakes_failed.get(),
        ),
        counter(
            "agent_admitted",
            "Agents that were let in, returning ones among them",
            m.admitted.get(),
        ),
        counter(
            "agent_refused",
            "Agents that were not let in",
            m.refused.get(),
        ),
        counter(
            "agent_bound",
            "Endpoints granted to agents, returning ones among them",
            m.bound.get(),
        ),
        counter(
            "agent_calls_refused",
            "Requests of agents that were refused",
            m.calls_refused.get(),
        ),
    ]
}

fn certificate_samples(control: &Control) -> Vec<Sample> {
    let m = control.certificate_meters();
    vec![
        counter(
            "certificates_issued",
            "Managed certificates issued, first ones and renewals",
            m.issued.get(),
        ),
        counter(
            "certificate_failures",
            "Attempts to get a managed certificate that failed",
            m.failed.get(),
        ),
    ]
}

fn delivery_samples(delivery: &Delivery) -> Vec<Sample> {
    let m = delivery.meters();
    let mut samples = vec![
        counter("events_offered", "Deliveries considered", m.offered.get()),
        counter(
            "events_recovered",
            "Deliveries found in the queue at start",
            m.recovered.get(),
        ),
        counter(
            "events_filtered",
            "Deliveries a filter kept back",
            m.filtered.get(),
        ),
        counter(
            "event_filter_errors",
            "Of them, kept back because the filter failed",
            m.filter_errors.get(),
        ),
        counter(
            "events_queued",
            "Deliveries written to the queue",
            m.queued.get(),
        ),
        counter(
            "events_delivered",
            "Deliveries acknowledged",
            m.delivered.get(),
        ),
        counter(
            "events_dead_lettered",
            "Deliveries given up",
            m.dead_lettered.get(),
        ),
        gauge("events_waiting", "Deliveries waiting now", m.waiting()),
        counter(
            "events_lost",
            "Deliveries a crash took before they were queued",
            m.lost.get(),
        ),
        counter("event_flushes", "Appends to the queue", m.flushes.get()),
        counter(
            "event_flush_errors",
            "Appends that failed and were tried again",
            m.flush_errors.get(),
        ),
        counter(
            "outbox_copied",
            "Audit events copied from the outbox",
            m.outbox_copied.get(),
        ),
        gauge(
            "audit_events",
            "Events in the audit log",
            m.audit_events.get(),
        ),
        gauge(
            "audit_head",
            "Position of the last event of the audit log",
            m.audit_head.get(),
        ),
        counter(
            "audit_pruned",
            "Audit events that were older than the retention",
            m.audit_pruned.get(),
        ),
        counter(
            "events_replayed",
            "Audit events put in line once more by replays",
            m.replayed.get(),
        ),
        counter("event_sends", "Sends, first and repeated", m.sends.get()),
        counter(
            "event_repeated_sends",
            "Sends that receivers may have seen before",
            m.repeated_sends.get(),
        ),
        counter(
            "event_leases_lost",
            "Settlements refused because the lease had passed on",
            m.leases_lost.get(),
        ),
        counter(
            "event_tail_lost",
            "Lines a slow live tail missed",
            m.tail_lost.get(),
        ),
    ];
    let by = |name, help, label, values: Vec<(&'static str, u64)>| {
        values.into_iter().map(move |(value, number)| Sample {
            name,
            help,
            label: Some((label, value.to_owned())),
            counter: true,
            value: number,
        })
    };
    samples.extend(by(
        "events_dropped",
        "Deliveries lost",
        "reason",
        m.dropped.each().collect(),
    ));
    let truncated = vec![
        ("headers", m.truncated_headers.get()),
        ("logs", m.truncated_logs.get()),
        ("url", m.truncated_url.get()),
    ];
    samples.extend(by(
        "events_truncated",
        "Events shortened to their size limit",
        "reason",
        truncated,
    ));
    let refused = delivery.net().refused().collect();
    samples.extend(by(
        "guard_refused",
        "Outgoing connections the address guard refused",
        "rule",
        refused,
    ));
    samples.extend(destination_samples(delivery));
    samples
}

/// How each destination is doing, as far as this node knows.
fn destination_samples(delivery: &Delivery) -> Vec<Sample> {
    type Read = fn(&DestinationHealth) -> u64;
    let seconds = |at: Option<culvert_base::Timestamp>| {
        at.and_then(|at| u64::try_from(at.unix_seconds()).ok())
            .unwrap_or(0)
    };
    let healths = delivery.healths();
    let each = |name, help, counter, read: &dyn Fn(&DestinationHealth) -> u64| -> Vec<Sample> {
        let sample = |(id, health): &(String, DestinationHealth)| Sample {
            name,
            help,
            label: Some(("destination", id.clone())),
            counter,
            value: read(health),
        };
        healths.iter().map(sample).collect()
    };
    let counters: [(_, _, Read); 5] = [
        (
            "destination_sent",
            "Events that a destination took",
            |health| health.sent,
        ),
        (
            "destination_bytes",
            "Bytes of events that a destination took",
            |health| health.bytes,
        ),
        (
            "destination_batches",
            "Sends to a destination, repeated ones too",
            |health| health.batches,
        ),
        (
            "destination_dropped",
            "Events for a destination that were lost",
            |health| health.dropped,
        ),
        (
            "destination_failures",
            "Sends to a destination that failed",
            |health| health.failures.iter().map(|(_, count)| count).sum(),
        ),
    ];
    let gauges: [(_, _, Read); 3] = [
        (
            "destination_queued",
            "Events waiting for a destination",
            |health| health.queued,
        ),
        (
            "destination_dead_letters",
            "Dead letters kept of a destination",
            |health| health.dead_lettered,
        ),
        (
            "destination_state",
            "0 ok, 1 retrying, 2 unhealthy",
            |health| match health.state {
                State::Ok => 0,
                State::Retrying => 1,
                State::Unhealthy => 2,
            },
        ),
    ];
    let mut samples = Vec::new();
    for (name, help, read) in counters {
        samples.extend(each(name, help, true, &read));
    }
    for (name, help, read) in gauges {
        samples.extend(each(name, help, false, &read));
    }
    samples.extend(each(
        "destination_last_success_seconds",
        "When a destination last took a batch, in seconds since 1970",
        false,
        &|health| seconds(health.last_success_at),
    ));
    samples
}

fn api_samples(m: &culvert_api::Meters) -> Vec<Sample> {
    use std::sync::atomic::Ordering::Relaxed;
    vec![
        counter(
            "api_requests",
            "Requests answered",
            m.requests.load(Relaxed),
        ),
        counter(
            "api_refused",
            "Answered with a refusal",
            m.refused.load(Relaxed),
        ),
        counter(
            "api_failed",
            "Answered with a failure of ours",
            m.failed.load(Relaxed),
        ),
        counter(
            "api_unauthenticated",
            "Refused for their credential",
            m.unauthenticated.load(Relaxed),
        ),
        counter(
            "api_shed",
            "Answered 503 for want of room",
            m.shed.load(Relaxed),
        ),
        gauge(
            "api_connections",
            "Open connections",
            m.connections.load(Relaxed),
        ),
        gauge("api_tails", "Open live tails", m.tails.load(Relaxed)),
    ]
}
