//! Which credentials agents were connected with, and since when none is.
//!
//! A session is gone when its agent is. So each credential that an agent was connected with has a mark, which outlives
//! restarts and is the same for all nodes.

use std::collections::{BTreeMap, HashSet};

use culvert_base::{Fault, Timestamp};
use culvert_resources::stored::Format;
use culvert_store::{AuditEvent, Changes};
use serde::{Deserialize, Serialize};

use culvert_server_log::ServerLog;
use culvert_server_log::mark::{Mark, MarkKind};

const WATCHED: MarkKind = MarkKind {
    kind: "watched_agent",
    prefix: "watch",
};
/// Most marks that are written in one pass.
const WRITTEN_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Watched {
    format: Format<1>,
    offline_since: Option<Timestamp>,
}

/// The credentials that agents were connected with.
#[derive(Debug, Default)]
pub(super) struct Agents {
    marks: Option<BTreeMap<String, Mark<Watched>>>,
}

impl Agents {
    /// Since when no agent is connected with this credential; `None` if one is, or never was.
    pub(super) fn offline_since(&self, credential: &str) -> Option<Timestamp> {
        let mark = self.marks.as_ref()?.get(credential)?;
        mark.state.as_ref()?.offline_since
    }

    /// Notes which credentials agents are connected with, of those that exist.
    pub(super) async fn note_connected(
        &mut self,
        log: &ServerLog,
        connected: &HashSet<&str>,
        exists: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let marks = match self.marks.take() {
            Some(marks) => marks,
            None => read(log).await?,
        };
        let silent = AuditEvent::Suppress {
            reason: "the events of the agent's session report it",
        };
        let (mut changes, mut n_written) = (Changes::default(), 0);
        for (credential, mark) in &marks {
            let offline_since = mark.state.as_ref().and_then(|state| state.offline_since);
            let is_connected = connected.contains(&**credential);
            let is_right = mark.state.is_some() && offline_since.is_none() == is_connected;
            if n_written == WRITTEN_MAX || exists(credential) && is_right {
                continue;
            }
            n_written += 1;
            changes = changes.and(match exists(credential) {
                false => mark.clone().removal(silent.clone()),
                true => {
                    let since = (!is_connected).then_some(now);
                    let known = Some(mark.document.clone());
                    log.marking(WATCHED, credential, known, &watched(since), silent.clone())?
                }
            });
        }
        for credential in connected {
            let is_new = !marks.contains_key(*credential) && exists(credential);
            if is_new && n_written < WRITTEN_MAX {
                n_written += 1;
                let new = log.marking(WATCHED, credential, None, &watched(None), silent.clone())?;
                changes = changes.and(new);
            }
        }
        if n_written == 0 {
            self.marks = Some(marks);
            return Ok(());
        }
        // Another node may have been faster; the stored marks count.
        log.commit_once("noting which agents are connected", changes)
            .await?;
        self.marks = Some(read(log).await?);
        Ok(())
    }
}

const fn watched(offline_since: Option<Timestamp>) -> Watched {
    Watched {
        format: Format,
        offline_since,
    }
}

async fn read(log: &ServerLog) -> Result<BTreeMap<String, Mark<Watched>>, Fault> {
    let marks = log.marks(WATCHED).await?.into_iter();
    Ok(marks
        .map(|mark: Mark<Watched>| (mark.of().to_owned(), mark))
        .collect())
}
