//! Runs of servers: who is there to end a session. A run writes that it is there; a session whose run
//! is not there any more was left behind by a crash, and whoever finds it ends it.

use std::collections::BTreeSet;
use std::time::Duration;

use culvert_base::{Fault, Ksuid, id};
use culvert_store::{Changes, CommitError, Document, Head, Told};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::Agents;
use crate::Control;
use crate::resource::tunnel_session::{self, TunnelSession};
use crate::stored::{self, Format};

const KIND: &str = "agent_run";

const NOTHING: Told = Told::Nothing {
    why: "runs are bookkeeping of the installation",
};

/// How often a run says that it is there, and looks for those that are not.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(20);
/// A run that has not said so for this long is over.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// Why a session ended that nobody saw end.
const LEFT_BEHIND: &str = "transport error: the server ended without a word";

#[derive(Debug, Deserialize, Serialize)]
struct Run {
    format: Format<1>,
    node: String,
}

/// The id of a run.
pub(crate) fn id_of(body: Ksuid) -> String {
    format!("agrun_{body}")
}

impl Control {
    /// Says that this run is there.
    pub(crate) async fn register_run(&self, agents: &Agents) -> Result<(), Fault> {
        let now = self.clock.now();
        let document = Document {
            head: Head {
                id: agents.run.clone(),
                kind: KIND.to_owned(),
                account: String::new(),
                revision: 0,
                created_at: now,
                updated_at: now,
            },
            body: stored::write(&Run {
                format: Format,
                node: agents.settings.node.clone(),
            })?,
            keys: Vec::new(),
            refs: Vec::new(),
            topics: Vec::new(),
        };
        self.write_run(Changes::insert(document, NOTHING)).await
    }

    /// Says it again.
    pub(crate) async fn renew_run(&self, agents: &Agents) -> Result<(), Fault> {
        match self.store.get(KIND, &agents.run).await? {
            Some(mut document) => {
                document.head.updated_at = self.clock.now();
                self.write_run(Changes::replace(document, NOTHING)).await
            }
            // Another run took this one for dead.
            None => self.register_run(agents).await,
        }
    }

    /// Says that this run is over.
    pub(crate) async fn unregister_run(&self, agents: &Agents) -> Result<(), Fault> {
        match self.store.get(KIND, &agents.run).await? {
            Some(document) => {
                self.write_run(Changes::remove(document.head, NOTHING))
                    .await
            }
            None => Ok(()),
        }
    }

    async fn write_run(&self, changes: Changes) -> Result<(), Fault> {
        match self.store.commit(changes).await {
            Err(CommitError::Fault(fault)) => Err(fault),
            // Another run changed it at the same moment; the next look finds out.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Ends the sessions of runs that are over.
    pub(crate) async fn look_at_runs(&self, agents: &Agents) -> Result<(), Fault> {
        let now = self.clock.now();
        let mut over = Vec::new();
        let mut there: BTreeSet<String> = BTreeSet::from([agents.run.clone()]);
        for document in self.store.all(KIND).await? {
            if document.head.id == agents.run {
                continue;
            }
            let run: Run = stored::read(&document)?;
            // A node runs once, and begins again only when it has ended.
            let is_before = run.node == agents.settings.node
                && id::split(&document.head.id) < id::split(&agents.run);
            let is_silent = now.since(document.head.updated_at) > SILENCE_MAX;
            if agents.settings.is_alone || is_before || is_silent {
                over.push(document);
            } else {
                there.insert(document.head.id.clone());
            }
        }
        // A run is forgotten only after its sessions, so while none is over there is nothing to end.
        if over.is_empty() {
            return Ok(());
        }
        let mut n_ended = 0;
        for document in self.store.all(tunnel_session::TYPE.kind).await? {
            let session: TunnelSession = stored::read(&document)?;
            if there.contains(&session.run) {
                continue;
            }
            self.remove_session(&document.head.id, &session.run, LEFT_BEHIND)
                .await?;
            n_ended += 1;
        }
        if n_ended > 0 {
            warn!(
                sessions = n_ended,
                "agent sessions were left behind by a server that ended without a word"
            );
        }
        for document in over {
            info!(run = document.head.id, "a run of the server is over");
            self.write_run(Changes::remove(document.head, NOTHING))
                .await?;
        }
        Ok(())
    }
}
