//! The stored sessions of agents, and the heartbeat by which other nodes know that those of this one are alive.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_command::with_causes;
use culvert_control::Control;

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};

pub(super) struct Part {
    control: Arc<Control>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        Self {
            control: foundation.control.clone(),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::AgentSessions
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Control]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let control = &self.control;
            control.agents.begin_agents().await.map_err(with_causes)?;
            let keep = |stop| control.agents.clone().keep_agents(stop);
            start.tasks.start("agent_sessions", keep);
            let keep = |stop| control.agents.clone().keep_heartbeat(stop);
            start.tasks.start("heartbeat", keep);
            Ok(())
        })
    }
}
