//! One attempt at an upstream of a list, whose outcome is reported once.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_upstream::UploadBody;
use tokio::time::Instant;

use crate::balance::target_set::{Outcome, TargetSet};
use crate::edge::meters::Meters;

/// The shortest time, or the whole time limit, after which a connection that no client waits for has failed. Otherwise nearly
/// all of the limit has to be over: else clients that leave early could eject upstreams that are slow and work.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

/// An attempt at an upstream. If it is dropped while it connects, because the client has gone, it may count as one failure.
#[derive(Debug)]
pub(crate) struct Attempt<'t, B: UploadBody> {
    targets: &'t TargetSet<B>,
    index: usize,
    meters: &'t Meters,
    connects_within: Duration,
    connecting_since: Mutex<Option<Instant>>,
}

impl<'t, B: UploadBody> Attempt<'t, B> {
    /// An attempt at the upstream at this position, whose connection has this time limit.
    pub(crate) fn new(
        targets: &'t TargetSet<B>,
        index: usize,
        connect_limit: Duration,
        meters: &'t Meters,
    ) -> Self {
        Self {
            targets,
            index,
            meters,
            connects_within: CONNECTS_WITHIN
                .max(connect_limit / 10 * 9)
                .min(connect_limit),
            connecting_since: Mutex::default(),
        }
    }

    /// A connection is being opened from now on, or no longer.
    pub(crate) fn set_connecting(&self, is_connecting: bool) {
        *lock(&self.connecting_since) = is_connecting.then(Instant::now);
    }

    /// As [`Self::set_connecting`], if there is an attempt.
    pub(crate) fn note(attempt: Option<&Self>, is_connecting: bool) {
        if let Some(attempt) = attempt {
            attempt.set_connecting(is_connecting);
        }
    }

    /// Reports its outcome.
    pub(crate) fn settle(&self, outcome: Outcome) {
        self.set_connecting(false);
        self.targets.report(self.index, outcome, self.meters);
    }
}

impl<B: UploadBody> Drop for Attempt<'_, B> {
    fn drop(&mut self) {
        let since = lock(&self.connecting_since).take();
        if since.is_some_and(|since| since.elapsed() >= self.connects_within) {
            let why = Outcome::Bad("no connection until the client left");
            self.targets.report(self.index, why, self.meters);
        }
    }
}
