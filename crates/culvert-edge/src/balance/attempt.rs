//! One attempt at an upstream of a list, whose outcome is reported once.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use tokio::time::Instant;

use crate::balance::target_set::{OpenAt, Outcome};
use crate::edge::meters::Meters;
use crate::pools::TargetSet;

/// An upstream that has not accepted a connection within this time, or half of the time limit, has failed, even if the client
/// does not wait for it. One that works accepts it sooner, so clients that leave early cannot eject it.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

/// An attempt at an upstream. If it is dropped while it connects, because the client has gone, it may count as one failure.
#[derive(Debug)]
pub(crate) struct Attempt<'t> {
    targets: &'t TargetSet,
    index: usize,
    meters: &'t Meters,
    connects_within: Duration,
    connecting_since: Mutex<Option<Instant>>,
}

impl<'t> Attempt<'t> {
    /// An attempt at the upstream at this position, whose connection has this time limit.
    pub(crate) fn new(
        targets: &'t TargetSet,
        index: usize,
        connect_limit: Duration,
        meters: &'t Meters,
    ) -> Self {
        Self {
            targets,
            index,
            meters,
            connects_within: CONNECTS_WITHIN.min(connect_limit / 2),
            connecting_since: Mutex::default(),
        }
    }

    /// A connection is being opened from now on, or no longer.
    pub(crate) fn set_connecting(&self, is_connecting: bool) {
        *lock(&self.connecting_since) = is_connecting.then(Instant::now);
    }

    /// Reports its outcome.
    pub(crate) fn settle(&self, outcome: Outcome) {
        self.set_connecting(false);
        self.targets.report(self.index, outcome, self.meters);
    }

    /// Counts an open connection of the upstream.
    pub(crate) fn open(&self) -> Option<OpenAt> {
        self.targets.open(self.index)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let since = lock(&self.connecting_since).take();
        if since.is_some_and(|since| since.elapsed() >= self.connects_within) {
            let why = Outcome::Bad("no connection until the client left");
            self.targets.report(self.index, why, self.meters);
        }
    }
}
