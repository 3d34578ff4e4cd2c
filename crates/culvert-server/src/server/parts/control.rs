//! Control: reads the stored configuration, compiles it to the planes of this process, and connects to other nodes.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::{BoxFuture, SteadyClock, Timestamp};
use culvert_control::Control;
use culvert_installation::config::Role;
use culvert_login::JournalEntry;
use culvert_policy::SharedCounts;
use culvert_store::Store;
use culvert_tunnel::nodes::Nodes;
use tokio::sync::mpsc;

use crate::nodes::rate_exchange;
use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Start};
use crate::server::planes::edge::Published;
use crate::system_clock;

pub(super) struct Part {
    control: Arc<Control>,
    steady_clock: Arc<SteadyClock>,
    /// The connections to other nodes, and when their certificate is renewed.
    nodes: Option<(Arc<Nodes>, Timestamp)>,
    /// The counts of rate limits, if nodes share them.
    counts: Option<(Store, SharedCounts)>,
    /// The journal of sign-ins, if this process has an edge.
    login_entries: Option<mpsc::Receiver<JournalEntry>>,
    has_api: bool,
    published: Option<Arc<Published>>,
}

impl Part {
    pub(super) fn new(foundation: &mut Foundation) -> Self {
        let entries = foundation.login_entries.take();
        let opened = &foundation.opened;
        let renew_at = foundation.membership.renew_at;
        Self {
            control: foundation.control.clone(),
            steady_clock: opened.steady_clock.clone(),
            nodes: foundation
                .membership
                .nodes
                .clone()
                .map(|nodes| (nodes, renew_at)),
            counts: foundation
                .shares_counts()
                .then(|| (opened.store.clone(), foundation.counts.clone())),
            login_entries: entries.filter(|_| opened.has(Role::Edge)),
            has_api: opened.has(Role::Api),
            published: foundation.published.clone(),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Control
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Delivery]
    }

    /// When it has started, the edge has the stored configuration.
    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (tasks, control) = (start.tasks, &self.control);
            let clock = self.steady_clock.clone();
            tasks.start("clock", |stop| system_clock::follow(clock, stop));
            if let Some((nodes, renew_at)) = &self.nodes {
                tasks.start("nodes", |stop| nodes.clone().run(stop));
                let keep = |stop| control.agents.clone().keep_identity(*renew_at, stop);
                tasks.start("node_identity", keep);
            }
            tasks.start("configuration", |stop| control.clone().run(stop));
            if let Some((store, counts)) = &self.counts {
                let run = |stop| rate_exchange::run(store.clone(), counts.clone(), stop);
                tasks.start("rate_limits", run);
            }
            if let Some(entries) = self.login_entries.take() {
                let keep = |stop| control.identity.clone().keep_logins(entries, stop);
                tasks.start("logins", keep);
            }
            if self.has_api {
                tasks.start("refusals", |stop| control.clone().report_refusals(stop));
                tasks.start("key_uses", |stop| {
                    control.identity.clone().keep_key_uses(stop)
                });
            }
            match &self.published {
                Some(published) => published.wait_for_first(control).await,
                None => Ok(()),
            }
        })
    }
}
