//! Ends sessions: removes them with their endpoints, and emits their events.

use std::time::{Duration, Instant};

use culvert_base::{Fault, Timestamp};
use culvert_endpoints::endpoint;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_resources::cx::Cx;
use culvert_resources::resource::model::Model;
use culvert_resources::service::{self, RUNS_MAX};
use culvert_resources::stored;
use culvert_store::{Changes, CommitError};
use culvert_tunnel::server::EndReason;
use tracing::{error, info};

use crate::session::model::TunnelSession;
use crate::state::Agents;
use crate::tunnel::REPORTED_AS_ENDPOINT;
use crate::tunnel::model::Tunnel;
use crate::{AgentControl, events};

/// Time in which a session whose connection broke can resume. The official agents retry for the second time
/// after 2.5 s.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

impl AgentControl {
    /// Ends a session without a connection, unless it was resumed.
    pub(crate) async fn end_session(&self, id: &str, reason: &EndReason) {
        if let Some(agents) = &self.agents {
            let ending = self.end_session_locked(agents, id, reason);
            self.kernel.locks.with(&[id], ending).await;
        }
    }

    async fn end_session_locked(&self, agents: &Agents, id: &str, reason: &EndReason) {
        let stopped_at = {
            let mut sessions = agents.lock();
            if agents.bindings.is_connected(id) {
                if let Some(live) = sessions.get_mut(id) {
                    live.leaving = None;
                    live.left_at = None;
                }
                return;
            }
            match sessions.get(id).filter(|live| live.leaving.is_some()) {
                Some(live) => live.left_at.unwrap_or_else(|| self.kernel.clock.now()),
                None => return,
            }
        };
        // If the agent left, it took its endpoints with it.
        let by_server = matches!(reason, EndReason::Stopped(_) | EndReason::Expired);
        let why = (&*reason.to_string(), by_server);
        match self.remove_session(id, &agents.run, why, stopped_at).await {
            Ok(()) => {
                agents.lock().remove(id);
                info!(session.id = id, %reason, "agent session ended");
            }
            Err(fault) => {
                error!(session.id = id, cause = %fault.chain(), "removing an agent session failed; retrying");
                agents.leave(id, Instant::now() + GRACE, reason.clone());
            }
        }
    }

    /// Removes a session of a run that ended at that time, with its endpoints, and emits the events: those of the
    /// endpoints follow that of the session, and name the agent only if it ended the session or vanished. Does nothing if the session is
    /// gone or has moved to another run.
    pub(crate) async fn remove_session(
        &self,
        id: &str,
        run: &str,
        (error, by_server): (&str, bool),
        stopped_at: Timestamp,
    ) -> Result<(), Fault> {
        let doing = || format!("ending the agent session {id}");
        for _ in 0..RUNS_MAX {
            let kind = TunnelSession::KIND;
            let Some(document) = self.kernel.store.get(kind, id).await? else {
                return Ok(());
            };
            let session: TunnelSession = stored::read(&document)?;
            if session.run != run {
                return Ok(());
            }
            let caller = session.caller(&document.head.account);
            let cx = Cx {
                by_server,
                ..self.kernel.cx(&caller, &self.kernel.settings.base_url)
            };
            let endpoints = cx.referring(Endpoint::KIND, &document.head).await?;
            let kept = self.names_kept();
            let mut changes = endpoint::agent::removal(&cx, endpoints, kept)
                .await
                .map_err(|error| Fault::new(doing(), error))?;
            for document in cx.referring(Tunnel::KIND, &document.head).await? {
                changes = changes.and(Changes::remove(document.head, REPORTED_AS_ENDPOINT));
            }
            let event = events::stopped(&cx, &document.head, &session, error, stopped_at)?;
            changes = service::following(&event, changes);
            changes = changes.and(Changes::remove(document.head, event));
            match self.kernel.store.commit(changes).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Fault(fault)) => return Err(fault),
                // An endpoint of the session was added or removed meanwhile.
                Err(_) => {}
            }
        }
        Err(Fault::bare(format!("{}: concurrent updates", doing())))
    }
}
