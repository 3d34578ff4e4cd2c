//! Compiles documents for the other planes: endpoints, certificates and IP restrictions become a snapshot for
//! the edge; subscriptions and destinations become a table for delivery.
//!
//! A pass takes no input and can run at any time. Commits and a timer start it, so a missed notification only
//! causes a delay. Commits in quick succession share a pass, and a pass without changes publishes nothing.
//! The cost of a pass depends on what changed: the edge gets the changes of its snapshot. It gets a whole
//! snapshot only at the start, every hour, and when restrictions or nodes change. An invalid document is
//! logged and skipped; the others still take effect.

pub(crate) mod certificates;
pub(crate) mod copied;
pub(crate) mod delivery;
pub(crate) mod edge;
pub(crate) mod endpoints;
pub(crate) mod state;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use culvert_access::ip::policy_model::IpPolicy;
use culvert_access::ip::policy_rule_model::IpPolicyRule;
use culvert_access::ip::restriction_model::IpRestriction;
use culvert_access::ip::restrictions::Restrictions;
use culvert_base::Fault;
use culvert_certificates::authority::Authority;
use culvert_identity::application::login;
use culvert_resources::resource::model::Model;
use culvert_store::{Document, Revision};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use self::state::CompileState;
use crate::control::Control;

/// Longest time between two passes: certificates become due without a commit.
const PASS_EVERY: Duration = Duration::from_secs(60);
/// Longest time until a failed pass is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How often the edge hears that its configuration is current.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);
/// Minimum and maximum pause between two passes.
const PASS_APART: Duration = Duration::from_millis(1);
const PASS_APART_MAX: Duration = Duration::from_millis(100);

/// The pause after a pass. It is four times the duration of a pass, so that many changes leave most of a processor to the
/// traffic. A single long pass, such as the first one or one that waited for the database, does not delay the next one.
fn pause(before: Duration, last: Duration) -> Duration {
    (4 * before.min(last)).clamp(PASS_APART, PASS_APART_MAX)
}

/// Kinds that decide which addresses are allowed.
const RESTRICTION_KINDS: [&str; 3] = [IpRestriction::KIND, IpPolicy::KIND, IpPolicyRule::KIND];

impl Control {
    /// Keeps the other planes up to date until cancelled.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut authority = self.certificates.authority.lock().await;
        let mut state = CompileState::empty(Arc::clone(&self.endpoints.policies.logins));
        let mut revision = self.kernel.store.watch();
        let mut before = Duration::ZERO;
        let mut reported_loss = 0;
        loop {
            // Before the pass, so that a commit or a change of the clock during it starts another one.
            revision.mark_unchanged();
            let times_set = self.kernel.clock.times_set();
            let began = Instant::now();
            let compiled = self.pass(&mut authority, &mut state).await;
            if let Err(fault) = self.report_lost_commits(&mut reported_loss).await {
                warn!(cause = %fault.chain(), "the event of lost commits failed; retrying");
            }
            if let Err(fault) = self.events.report_lost_events().await {
                warn!(cause = %fault.chain(), "the event of lost events failed; retrying");
            }
            self.has_failed.store(compiled.is_err(), Ordering::Relaxed);
            let next = match compiled {
                Ok(()) => self.next_pass(&state),
                Err(fault) => {
                    error!(cause = %fault.chain(), "configuration failed to compile; keeping the last snapshot");
                    RETRY_AFTER
                }
            };
            let last = began.elapsed();
            let apart = pause(std::mem::replace(&mut before, last), last);
            let woken = async {
                tokio::time::sleep(apart).await;
                tokio::select! {
                    // The sender lives in the store, which outlives this task.
                    _ = revision.changed() => {}
                    () = tokio::time::sleep(next) => {}
                    () = self.confirm_to_edge(times_set) => {}
                }
            };
            tokio::select! {
                () = woken => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    /// Keeps telling the edge when its configuration was last known to be current. Returns when the clock was set: then
    /// grants may have expired.
    async fn confirm_to_edge(&self, times_set: u64) {
        while self.kernel.clock.times_set() == times_set {
            // In this order: the edge has what the database had at that time.
            let at = self.kernel.store.confirmed_at();
            let latest = *self.kernel.store.watch().borrow();
            if let (Some(edge), Some(at)) = (&self.edge, at)
                && self.kernel.applied.revision() == Some(latest)
            {
                edge.confirm(at);
            }
            tokio::time::sleep(CONFIRM_EVERY).await;
        }
    }

    /// The time until the next pass without a commit: a grant ends when it expires.
    fn next_pass(&self, state: &CompileState) -> Duration {
        let now = self.kernel.clock.now();
        let end = state.uses.next_end(now);
        end.map_or(PASS_EVERY, |end| end.since(now).min(PASS_EVERY))
    }

    async fn pass(&self, authority: &mut Authority, state: &mut CompileState) -> Result<(), Fault> {
        let restricted = self.compile_restrictions(state).await;
        if self.edge.is_some() {
            // First, so that an ended session is not accepted while the rest is compiled.
            self.compile_ends(state).await?;
        }
        self.compile_delivery(state).await?;
        self.compile_own_certificates(state).await?;
        if let Some(edge) = &self.edge {
            // Before the documents are read, so that the edge is not taken for more current than they are.
            let confirmed_at = self.kernel.store.confirmed_at();
            // All that is read from here on includes at least this revision.
            let revision = *self.kernel.store.watch().borrow();
            self.compile_edge(&**edge, authority, state).await?;
            self.kernel.applied.advance(revision);
            if let (Some(at), Ok(())) = (confirmed_at, &restricted) {
                edge.confirm(at);
            }
        }
        // Last, so that all the rest is applied.
        restricted
    }

    /// The latest revision, and whether a document of these kinds was, or may have been, written since
    /// `since`.
    async fn is_touched(&self, since: Option<Revision>, kinds: &[&str]) -> (Revision, bool) {
        let (until, touched) = self
            .kernel
            .store
            .touched(since.unwrap_or(Revision::START))
            .await;
        let is_touched = match (since, touched) {
            (Some(_), Some(touched)) => touched.iter().any(|one| kinds.contains(&&*one.kind)),
            _ => true,
        };
        (until, is_touched)
    }

    /// Applies new IP restrictions. If they cannot be read, the previous ones stay in force.
    async fn compile_restrictions(&self, state: &mut CompileState) -> Result<(), Fault> {
        let (until, is_due) = self
            .is_touched(state.restrictions_at, &RESTRICTION_KINDS)
            .await;
        if !is_due {
            state.restrictions_at = Some(until);
            return Ok(());
        }
        let before = self.identity.restrictions.load_full();
        match Restrictions::load(&self.kernel.store, &before).await {
            Ok(loaded) => {
                state.restrictions_at = Some(until);
                if let Some(restrictions) = loaded {
                    self.identity.restrictions.store(Arc::new(restrictions));
                }
                Ok(())
            }
            Err(fault) => {
                error!(cause = %fault.chain(), "IP restrictions failed to compile; keeping the previous ones");
                Err(fault)
            }
        }
    }

    /// Sends ended sessions to the edge, without a new snapshot.
    async fn compile_ends(&self, state: &mut CompileState) -> Result<(), Fault> {
        let made = |document: Document| match login::compile(&document) {
            Ok(made) => Some(made),
            Err(fault) => {
                error!(cause = %fault.chain(), "session revocations of a user are skipped");
                None
            }
        };
        let changes = state.ends.refresh(&self.kernel.store, made).await?;
        if !changes.is_empty() || !std::mem::replace(&mut state.has_ends, true) {
            self.endpoints
                .policies
                .logins
                .revoke(login::table(state.ends.values()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_pass_delays_no_change() {
        let ms = Duration::from_millis;
        for (before, last, expected) in [
            (ms(0), ms(700), PASS_APART),
            (ms(700), ms(2), ms(8)),
            (ms(2), ms(30), ms(8)),
            (ms(30), ms(20), ms(80)),
            (ms(700), ms(700), PASS_APART_MAX),
        ] {
            assert_eq!(pause(before, last), expected, "{before:?} {last:?}");
        }
    }
}
