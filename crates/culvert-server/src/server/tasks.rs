//! Groups of long-lived tasks, and what watches over them.

use culvert_base::{Ended, Supervisor};
use culvert_store::{Queue, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The long-lived tasks of the process, including those of its databases.
#[derive(Clone, Debug)]
pub(super) struct Supervision {
    pub(super) parts: [Supervisor; 3],
}

impl Supervision {
    pub(super) fn new(own: Supervisor, store: &Store, queue: &Queue) -> Self {
        Self {
            parts: [own, store.supervisor().clone(), queue.supervisor().clone()],
        }
    }

    /// The tasks that ended unexpectedly.
    pub(super) fn failed(&self) -> Vec<Ended> {
        self.parts.iter().flat_map(Supervisor::failed).collect()
    }

    /// Completes when the first task ends unexpectedly.
    pub(super) async fn failure(&self) -> Ended {
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
pub(super) struct Tasks {
    pub(super) running: JoinSet<()>,
    pub(super) stop: CancellationToken,
    pub(super) supervisor: Supervisor,
}

impl Tasks {
    pub(super) fn new(supervisor: &Supervisor) -> Self {
        Self {
            running: JoinSet::new(),
            stop: CancellationToken::new(),
            supervisor: supervisor.clone(),
        }
    }

    /// Starts a task that runs until the token is cancelled. If it ends earlier, that is a failure of the process.
    pub(super) fn start<F>(&mut self, name: &'static str, task: impl FnOnce(CancellationToken) -> F)
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
    pub(super) async fn finish(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a server task failed");
            }
        }
    }
}
