//! How a server runs and stops.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use culvert_control::Control;
use tokio_util::sync::CancellationToken;

use super::Server;
use super::process_context::key_rotated;
use crate::config::Settings;
use crate::installation;

/// Time limit for agents to connect to other nodes before this one stops.
const AGENTS_MOVE: Duration = Duration::from_secs(10);
/// Time limit for agents to reconnect at another node after their connection was closed.
const AGENTS_RETURN: Duration = Duration::from_secs(3);

/// How often to check a disk that failed.
const DISK_LOOK_EVERY: Duration = Duration::from_secs(2);

/// Moves the agents of this node to other nodes.
pub(super) struct Moving {
    pub(super) control: Arc<Control>,
    pub(super) server: Arc<culvert_tunnel::server::Server>,
}

impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Moving").finish_non_exhaustive()
    }
}

impl Moving {
    /// If another node accepts agents, stops accepting agents here and asks connected ones to connect elsewhere.
    /// Waits for at most `patience`.
    pub(super) async fn run(&self, patience: Duration) {
        let lost = self.control.agents_away();
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
        let away = self
            .control
            .wait_for_agents_elsewhere(&lost, AGENTS_RETURN)
            .await;
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

impl Server {
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
            tracing::error!(cause = %fault.chain(),
                "a disk write failed; the edge goes on until the disk takes writes, and then the server stops for a new start");
            tokio::select! {
                () = disk_takes_writes(&self.settings) => {}
                () = cancel.cancelled() => {}
            }
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
        parts.statistics.finish().await;
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

/// Waits until a start could write to the disk of the data directory.
async fn disk_takes_writes(settings: &Settings) {
    let Some(files) = installation::files(settings) else {
        return;
    };
    loop {
        let probed = files.clone();
        // A disk that hangs must not block a thread that other tasks need.
        let probing = tokio::task::spawn_blocking(move || probed.takes_writes());
        if probing.await.unwrap_or(false) {
            return;
        }
        tokio::time::sleep(DISK_LOOK_EVERY).await;
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
