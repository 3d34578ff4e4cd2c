//! An edge that serves from the copy of the configuration while the database is away, with health checks and metrics.
//!
//! It is compiled from the copy by the code that compiles the database, over a temporary store. It has no API, no agents,
//! no Kubernetes operators, no orders of certificates and no queue; and policies whose decision needs the database refuse
//! the request.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_api::Api;
use culvert_base::net::HostName;
use culvert_base::{Clock, Supervisor, Timestamp};
use culvert_command::with_causes;
use culvert_control::{Control, EdgePort, Parts, Pepper, Seal, Statistics, fill_from_copy};
use culvert_delivery::Delivery;
use culvert_destinations::TYPES;
use culvert_edge::{Edge, Inherited};
use culvert_installation::Unopened;
use culvert_installation::config::{Role, Settings};
use culvert_installation::edge_copy::{CopyFacts, WholeCopy};
use culvert_installation::keys::MasterKey;
use culvert_metrics::{Sample, samples, statistics};
use culvert_policy::IpDatabases;
use culvert_store::TemporaryStore;
use tokio::net::TcpListener;

use super::dropped_events::DroppedEvents;
use super::health::CopyHealth;
use crate::certificates::certificate_file;
use crate::ingress;
use crate::reload::Reload;
use crate::server::listening::listen;
use crate::server::plane_settings::{api_settings, edge_settings};
use crate::server::planes::control::{Public, control_settings, policies};
use crate::server::planes::edge::{Published, ip_data};
use crate::server::tasks::Tasks;
use crate::system_clock;

/// How long open requests for health and metrics may take when monitoring ends.
const MONITORING_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The running edge.
#[derive(Debug)]
pub(super) struct CopyEdge {
    pub(super) facts: CopyFacts,
    /// When it began, and how old the copy was then. Setting the clock back does not make the copy younger.
    began: (Instant, Duration),
    pub(super) supervisor: Supervisor,
    pub(super) reload: Reload,
    edge: Edge,
    settings: Settings,
    dropped: Arc<DroppedEvents>,
    temporary: TemporaryStore,
    /// The tasks of the edge and of its configuration.
    traffic: Tasks,
    /// The tasks of health checks, metrics and the system's clock.
    monitoring: Tasks,
    /// Further handles of their listening sockets.
    monitoring_sockets: Vec<std::net::TcpListener>,
}

impl CopyEdge {
    /// Fails if the copy is too old to serve from, by the settings that are in force now.
    pub(super) fn check_age(&self, now: Timestamp) -> Result<()> {
        let age_max = self.reload.settings().edge.copy_age_max();
        // A reload may have turned copies off. Then every copy is too old.
        let age_max = age_max.unwrap_or_default();
        self.facts.check_age(now, age_max)?;
        let (began, age) = self.began;
        if began.elapsed() + age > age_max {
            bail!("it is older than `edge.copy_age_max`, by a clock that is never set");
        }
        Ok(())
    }

    /// Starts it. When this returns, its listeners accept connections.
    pub(super) async fn start(
        unopened: &Unopened,
        settings: &Settings,
        inherited: &Inherited,
        copy: WholeCopy,
    ) -> Result<Box<Self>> {
        let facts = copy.facts().clone();
        let entries = tokio::task::spawn_blocking(move || copy.entries()).await??;
        let clock: Arc<dyn Clock> = unopened.clock().clone();
        let temporary = TemporaryStore::create(clock.clone()).await;
        let temporary = temporary.map_err(with_causes)?;
        fill_from_copy(entries, &temporary.store)
            .await
            .map_err(with_causes)?;
        let supervisor = Supervisor::default();
        let dropped = Arc::<DroppedEvents>::default();
        let ip_data = ip_data(settings)?;
        let plane_settings = culvert_edge::Settings {
            inherited: inherited.clone(),
            kubernetes_addr: None,
            supervisor: supervisor.clone(),
            ip_data: ip_data.clone(),
            is_from_copy: true,
            ..edge_settings(settings)?
        };
        let edge = Edge::bind(plane_settings, dropped.clone(), clock.clone()).await;
        let edge = edge.map_err(with_causes)?;
        let published = Arc::new(Published::new(edge.clone()));
        let master = unopened.master().context("there is no master key")?;
        let compiler = CopyCompiler {
            settings,
            master,
            ip_data: &ip_data,
            temporary: &temporary,
        };
        let control = compiler.control(unopened, &edge, published.clone()).await?;
        let mut traffic = Tasks::new(&supervisor);
        traffic.start("copied_configuration", |stop| {
            control.clone().run_copy(stop)
        });
        // Until then, connections wait in the backlog of the bound listeners.
        published.wait_for_first(&control).await?;
        traffic.start("edge", |stop| edge.clone().run(stop));
        let mut monitoring = Tasks::new(&supervisor);
        let steady_clock = unopened.clock().clone();
        monitoring.start("clock", |stop| system_clock::follow(steady_clock, stop));
        let mut started = Box::new(Self {
            reload: Reload::new(
                settings.clone(),
                Some(edge.clone()),
                ip_data,
                certificate_file::open(settings)?,
                None,
            ),
            monitoring,
            settings: settings.clone(),
            began: (Instant::now(), facts.age(unopened.clock().now())),
            facts,
            supervisor,
            edge,
            dropped,
            temporary,
            traffic,
            monitoring_sockets: Vec::new(),
        });
        started
            .start_monitoring(control, clock, unopened, inherited)
            .await?;
        Ok(started)
    }

    /// Starts the health checks and the metrics.
    async fn start_monitoring(
        &mut self,
        control: Arc<Control>,
        clock: Arc<dyn Clock>,
        unopened: &Unopened,
        inherited: &Inherited,
    ) -> Result<()> {
        let settings = &self.settings;
        if settings.roles.contains(&Role::Api) {
            let listener = listen("api.addr", &settings.api.addr, inherited).await?;
            self.monitoring_sockets.push(another_handle(&listener)?);
            let health = CopyHealth {
                facts: self.facts.clone(),
                clock: clock.clone(),
                edge: self.edge.clone(),
            };
            let settings = culvert_api::Settings {
                is_health_alone: true,
                ..api_settings(settings)?
            };
            let entropy = unopened.entropy().clone();
            let api = Api::new(control, Arc::new(health), settings, clock.clone(), entropy);
            let api = api.map_err(with_causes)?;
            self.monitoring
                .start("api", |stop| api.serve(listener, stop));
        }
        if !settings.metrics.addr.is_empty() {
            let listener = listen("metrics.addr", &settings.metrics.addr, inherited).await?;
            self.monitoring_sockets.push(another_handle(&listener)?);
            let (edge, dropped) = (self.edge.clone(), self.dropped.clone());
            let facts = self.facts.clone();
            let read = Box::new(move || {
                let age = facts.age(clock.now()).as_secs();
                samples(&edge, age, dropped.count())
            });
            let serve = |stop| culvert_metrics::serve(listener, read, stop);
            self.monitoring.start("metrics", serve);
        }
        Ok(())
    }

    /// Further handles of all its listening sockets, for a server that takes its place.
    pub(super) async fn sockets(&self) -> Result<Vec<std::net::TcpListener>> {
        let mut sockets = self.edge.sockets().await?;
        for socket in &self.monitoring_sockets {
            sockets.push(socket.try_clone()?);
        }
        Ok(sockets)
    }

    /// Its addresses for HTTP and TLS, in words for the log.
    pub(super) fn addresses(&self) -> String {
        let shown = [
            ("http", self.edge.http_addr()),
            ("https", self.edge.https_addr()),
        ];
        let shown = shown
            .into_iter()
            .filter_map(|(name, address)| Some(format!("{name}={}", address?)));
        shown.collect::<Vec<_>>().join(" ")
    }

    /// Ends the health checks and the metrics. Another server may have their listeners.
    pub(super) async fn end_monitoring(&mut self) {
        self.monitoring_sockets.clear();
        // A slow client must not delay the start of the server.
        let ended = tokio::time::timeout(MONITORING_ENDS_WITHIN, self.monitoring.finish()).await;
        if ended.is_err() {
            self.monitoring.running.abort_all();
        }
    }

    /// Drains the edge. Returns how many events of traffic were dropped.
    pub(super) async fn drain(mut self: Box<Self>) -> u64 {
        self.end_monitoring().await;
        self.traffic.finish().await;
        self.temporary.close().await;
        self.dropped.count()
    }

    /// Ends without draining: closes all connections.
    pub(super) async fn cut(self: Box<Self>) {
        match edge_settings(&self.settings) {
            Ok(mut settings) => {
                settings.limits.drain = Duration::ZERO;
                if let Err(fault) = self.edge.reload(&settings) {
                    tracing::error!(cause = %fault.chain(), "the edge drains before it ends");
                }
            }
            Err(error) => tracing::error!(%error, "the edge drains before it ends"),
        }
        self.drain().await;
    }
}

/// What compiles a copy for the edge.
struct CopyCompiler<'a> {
    settings: &'a Settings,
    master: &'a MasterKey,
    ip_data: &'a IpDatabases,
    temporary: &'a TemporaryStore,
}

impl CopyCompiler<'_> {
    async fn control(
        &self,
        unopened: &Unopened,
        edge: &Edge,
        published: Arc<dyn EdgePort>,
    ) -> Result<Arc<Control>> {
        let (settings, master) = (self.settings, self.master);
        let TemporaryStore { store, queue, .. } = self.temporary;
        let clock: Arc<dyn Clock> = unopened.clock().clone();
        let entropy = unopened.entropy();
        let domain = HostName::parse(&settings.edge.domain).context("`edge.domain`")?;
        // It is not run: there are no subscriptions in the copy, and no events.
        let delivery = Delivery::new(
            culvert_delivery::Settings {
                node: settings.node(),
                ..culvert_delivery::Settings::default()
            },
            queue.clone(),
            store.clone(),
            clock.clone(),
            entropy.clone(),
        );
        let public = Public {
            names: ingress::names(settings, &domain),
            targets: culvert_target::TargetSettings::default(),
            base_url: settings.base_url(),
        };
        let (policies, _) = policies(settings, master, self.ip_data)?;
        let control = Control::open_copy(Parts {
            ids: Arc::default(),
            store: store.clone(),
            clock,
            entropy: entropy.clone(),
            seal: Seal::new(&master.current).with_older(&master.older),
            // Not the stored pepper: the copy has no tokens to recognise.
            pepper: Pepper::new(&master.current),
            settings: control_settings(settings, &domain, Some(edge), public)?,
            delivery,
            target_types: TYPES,
            edge: Some(published),
            policies,
            console_sign_in: None,
            leak_partner: None,
            certificates: None,
            checks: None,
            agents: None,
            nodes: None,
            statistics: Statistics::new(
                queue.clone(),
                settings.node(),
                settings.statistics.of_control(),
            ),
        });
        control.await.map_err(with_causes)
    }
}

fn another_handle(listener: &TcpListener) -> std::io::Result<std::net::TcpListener> {
    let handle = listener.as_fd().try_clone_to_owned()?;
    Ok(std::net::TcpListener::from(handle))
}

/// The metrics of an edge that serves from a copy.
fn samples(edge: &Edge, age_seconds: u64, n_dropped: u64) -> Vec<Sample> {
    let mut rows = samples::edge(edge);
    rows.extend(statistics::endpoints(edge));
    rows.push(samples::gauge(
        "edge_copy_age_seconds",
        "Age of the copy that the edge serves from since a start without the database",
        age_seconds,
    ));
    rows.push(samples::counter(
        "edge_copy_events_dropped",
        "Events of traffic that were dropped because the database is away since the start",
        n_dropped,
    ));
    rows.push(samples::counter(
        "panics",
        "Panics, each ending one task",
        culvert_metrics::panics(),
    ));
    rows
}
