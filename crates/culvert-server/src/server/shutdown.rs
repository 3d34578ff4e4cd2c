//! How a server runs and stops.

use std::time::Duration;

use anyhow::{Result, bail};
use culvert_command::BrokenDisk;
use culvert_control::StopReason;
use culvert_installation::config::Settings;
use culvert_installation::{key_rotated, sqlite_files};
use tokio_util::sync::CancellationToken;

use super::Server;
use super::part::{Name, Reason};

/// How often to check a disk that failed.
const DISK_LOOK_EVERY: Duration = Duration::from_secs(2);

impl Server {
    /// Runs until `cancel`, until a long-lived task ends, or until a disk write fails. Then its parts stop, in
    /// the order that they give themselves: no new requests, requests in flight until a deadline, the API, agents, the
    /// recorder, workers. Then the store closes.
    ///
    /// # Errors
    /// If a long-lived task ended unexpectedly, the master key was rotated, or the disk failed ([`BrokenDisk`]).
    pub async fn run(mut self, cancel: CancellationToken) -> Result<()> {
        let mut failed = None;
        let broken = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            fault = self.store.broken() => Some(fault),
            fault = self.queue.broken() => Some(fault),
            ended = self.supervision.failure() => {
                let (task, has_panicked) = (ended.name, ended.has_panicked);
                tracing::error!(task, has_panicked, "a server task ended unexpectedly; draining and stopping");
                failed = Some(ended);
                None
            }
            () = key_rotated(&self.store, &self.master) => {
                // Secrets that this process encrypts from now on could not be decrypted by any node.
                self.report_stop(StopReason::MasterKeyRotated, None).await;
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
        let began = tokio::time::Instant::now();
        let reason = match failed {
            None => Reason::Asked,
            Some(_) => Reason::Failed,
        };
        // Everything still runs, so agents can connect elsewhere before they lose this node.
        if reason == Reason::Asked {
            self.parts.leave().await;
        }
        let moved = began.elapsed();
        let stopped = self.parts.stop(reason).await;
        while self.predecessor.join_next().await.is_some() {}
        let (why, task) = match &failed {
            None => (StopReason::Asked, None),
            Some(ended) => (StopReason::TaskFailed, Some(ended.name)),
        };
        self.report_stop(why, task).await;
        self.queue.close().await;
        self.store.close().await;
        let after = |name| stopped.get(&name).copied().unwrap_or_default();
        let drained = after(Name::Edge).max(after(Name::Api));
        let left = after(Name::Control);
        tracing::info!(
            seconds = began.elapsed().as_secs_f32(),
            moving_agents = moved.as_secs_f32(),
            draining = drained.as_secs_f32(),
            ending_sessions = left.saturating_sub(drained).as_secs_f32(),
            delivering = (began.elapsed() - moved - left).as_secs_f32(),
            node = self.settings.node(),
            "stopped"
        );
        match failed {
            Some(ended) => bail!("the task `{}` ended unexpectedly; see the log", ended.name),
            None => Ok(()),
        }
    }
}

impl Server {
    /// Writes the event of the stop, which the next start delivers, and signs a head of the audit log that has it.
    async fn report_stop(&self, reason: StopReason, task: Option<&str>) {
        let log = self.watch.log();
        log.stopped(self.watch.facts(), reason, task).await;
        self.audit_tree.sign_last().await;
    }
}

/// Waits until a start could write to the disk of the data directory.
async fn disk_takes_writes(settings: &Settings) {
    let Some(files) = sqlite_files::files(settings) else {
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
