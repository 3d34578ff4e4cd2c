//! A start while the database is away: the server waits for it, and the edge serves meanwhile from the copy of its
//! configuration, if there is one that may be used.
//!
//! When the database is back, the server starts in full on the same listening sockets. Then the first edge drains, so no
//! connection is refused in between.

mod copy_edge;
mod dropped_events;
mod health;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use culvert_base::{Clock, Fault};
use culvert_edge::Inherited;
use culvert_installation::Unopened;
use culvert_installation::config::{Invalid, Role, Settings};
use culvert_installation::edge_copy::{EdgeCopy, WholeCopy};
use culvert_store::Store;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use copy_edge::CopyEdge;

/// Pause before a database that is away is opened again: at first, and at most.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often the log says that the database is still away.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// Interval at which the age of the copy is checked while it is served.
const AGE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// What serves until the server has started. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Standby {
    serving: Arc<Mutex<Option<Box<CopyEdge>>>>,
    /// The addresses that it serves at; `None` while it does not.
    addresses: Arc<watch::Sender<Option<String>>>,
}

impl Default for Standby {
    fn default() -> Self {
        Self {
            serving: Arc::default(),
            addresses: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl Standby {
    /// Waits until the edge serves from a copy, and returns its addresses for display.
    pub async fn serves(&self) -> String {
        let mut addresses = self.addresses.subscribe();
        loop {
            let found = addresses.wait_for(Option::is_some).await;
            // The sender lives as long as `self`.
            if let Ok(Some(found)) = found.as_deref() {
                return found.clone();
            }
        }
    }

    /// Applies new settings to the edge that serves from a copy. `None` if there is none.
    ///
    /// # Errors
    /// If a setting is invalid, or a file that it names cannot be read. Then nothing has changed.
    pub async fn reload(&self, settings: Settings) -> Option<Result<Vec<String>, Invalid>> {
        let mut serving = self.serving.lock().await;
        Some(serving.as_mut()?.reload.apply(settings))
    }

    /// Drains the edge that serves from a copy, if there is one.
    pub async fn stop(&self) {
        if let Some(edge) = self.take().await {
            let n_dropped = edge.drain().await;
            tracing::info!(
                n_dropped,
                "stopped before the database was there; events of traffic were dropped"
            );
        }
    }

    /// Closes all connections of the edge that serves from a copy, if there is one.
    pub(super) async fn cut(&self) {
        if let Some(edge) = self.take().await {
            edge.cut().await;
        }
    }

    /// Whether the edge serves from a copy.
    pub(super) async fn is_serving(&self) -> bool {
        self.serving.lock().await.is_some()
    }

    /// The sockets of `inherited`, and those of the edge that serves from a copy.
    pub(super) async fn hand_over(&self, inherited: &Inherited) -> Result<Inherited> {
        let sockets = match &*self.serving.lock().await {
            Some(edge) => edge.sockets().await.context("handing the listeners over")?,
            None => Vec::new(),
        };
        Ok(inherited.with_handed_over(sockets))
    }

    /// Ends its health checks and metrics, and returns what drains its edge and returns how many events of traffic were
    /// dropped. `None` if there is no edge that serves from a copy.
    pub(super) async fn retire(&self) -> Option<impl Future<Output = u64> + Send + 'static> {
        let mut edge = self.take().await?;
        edge.end_monitoring().await;
        Some(edge.drain())
    }

    async fn take(&self) -> Option<Box<CopyEdge>> {
        self.addresses.send_replace(None);
        self.serving.lock().await.take()
    }

    /// Opens the store. While its database is away, a standby, or has no free connection, tries again, and the edge serves
    /// from its copy.
    pub(super) async fn wait_for_store(
        &self,
        unopened: &Unopened,
        settings: &Settings,
        inherited: &Inherited,
    ) -> Result<Store> {
        let mut pause = PAUSE;
        let mut logged_at: Option<Instant> = None;
        loop {
            let away = match unopened.open_store().await {
                Err(fault) if fault.is_passing() => fault,
                Err(fault) => return Err(unopened.error(fault)),
                Ok(store) => return Ok(store),
            };
            if logged_at.is_none_or(|at| at.elapsed() >= LOGGED_EVERY) {
                tracing::error!(cause = %away.chain(), "waiting for the database");
                if logged_at.is_none() && !self.is_serving().await {
                    // Boxed because the future is large.
                    Box::pin(self.serve(unopened, settings, inherited)).await;
                }
                logged_at = Some(Instant::now());
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Whether the database is away after a start that failed, so that it is worth another one.
    pub(super) async fn is_away(&self, unopened: &Unopened) -> bool {
        match unopened.open_store().await {
            Ok(store) => {
                store.close().await;
                false
            }
            Err(fault) => Fault::is_passing(&fault),
        }
    }

    /// Ends the edge once its copy is too old, whatever the start waits for meanwhile. Returns only if a task of the edge
    /// ended.
    pub(super) async fn guard(&self, unopened: &Unopened) -> anyhow::Error {
        loop {
            tokio::time::sleep(AGE_LOOK_EVERY).await;
            let serving = self.serving.lock().await;
            let Some(edge) = &*serving else {
                continue;
            };
            if let Some(ended) = edge.supervisor.failed().first() {
                return anyhow!("the task `{}` ended unexpectedly; see the log", ended.name);
            }
            let is_usable = edge.check_age(unopened.clock().now());
            drop(serving);
            if let Err(why) = is_usable {
                tracing::error!(%why, "the edge no longer serves from its copy, and waits for the database");
                if let Some(edge) = self.take().await {
                    edge.drain().await;
                }
            }
        }
    }

    /// Serves from the copy, if there is one that may be used. Otherwise the log says why not.
    async fn serve(&self, unopened: &Unopened, settings: &Settings, inherited: &Inherited) {
        let copy = match usable_copy(unopened, settings).await {
            Ok(Some(copy)) => copy,
            Ok(None) => return,
            Err(why) => {
                tracing::error!(
                    why = format!("{why:#}"),
                    "the copy of the configuration is refused; nothing is served"
                );
                return;
            }
        };
        let (age, number) = (
            copy.facts().age(unopened.clock().now()).as_secs(),
            copy.facts().number,
        );
        // Boxed because the future is large.
        match Box::pin(CopyEdge::start(unopened, settings, inherited, copy)).await {
            Ok(edge) => {
                let addresses = edge.addresses();
                tracing::warn!(
                    age_seconds = age,
                    revision = number,
                    addresses,
                    "the edge serves from the copy of its configuration until the database is back"
                );
                *self.serving.lock().await = Some(edge);
                self.addresses.send_replace(Some(addresses));
            }
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "the edge cannot serve from its copy"
                );
            }
        }
    }
}

/// The copy of this installation, if the settings want one and the process has an edge.
async fn usable_copy(unopened: &Unopened, settings: &Settings) -> Result<Option<WholeCopy>> {
    let (Some(age_max), Some(master)) = (settings.edge.copy_age_max(), unopened.master()) else {
        return Ok(None);
    };
    if settings.database_url.is_empty() || !settings.roles.contains(&Role::Edge) {
        return Ok(None);
    }
    let copy = EdgeCopy::of(settings, master);
    let Some(copy) = tokio::task::spawn_blocking(move || copy.open()).await?? else {
        return Ok(None);
    };
    copy.facts().check_age(unopened.clock().now(), age_max)?;
    Ok(Some(copy))
}
