//! What the edge of this process has applied.

use std::time::Duration;

use culvert_store::Revision;
use tokio::sync::watch;

/// How far the edge of this process has come.
#[derive(Debug)]
pub struct Applied {
    /// `None` in a process without an edge.
    revision: Option<watch::Sender<Revision>>,
}

impl Applied {
    /// Nothing applied so far. Without an edge, every revision counts as applied.
    pub fn new(has_edge: bool) -> Self {
        Self {
            revision: has_edge.then(|| watch::Sender::new(Revision::START)),
        }
    }

    /// The revision that the edge has applied at least; `None` without an edge.
    pub fn revision(&self) -> Option<Revision> {
        let revision = self.revision.as_ref()?;
        Some(*revision.borrow())
    }

    /// Notes that the edge has applied all commits up to this one.
    pub fn advance(&self, to: Revision) {
        if let Some(revision) = &self.revision {
            revision.send_replace(to);
        }
    }

    /// Waits until the edge has applied a commit; `false` if that takes longer than `within`. A process without an edge does
    /// not wait.
    pub async fn reach(&self, wanted: Revision, within: Duration) -> bool {
        let Some(revision) = &self.revision else {
            return true;
        };
        let mut revision = revision.subscribe();
        let reached = revision.wait_for(|applied| *applied >= wanted);
        matches!(tokio::time::timeout(within, reached).await, Ok(Ok(_)))
    }
}
