//! The places of requests and connections at the upstreams of a list, if these have limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use culvert_edge_config::Balancing;
use culvert_upstream::UploadBody;

use super::{TargetSet, Tried};
use crate::balance::gate::{InFlight, NoPlace, Patience, Places, Terms};
use crate::balance::view::View;
use crate::edge::meters::Meters;

/// Which upstream a request or connection is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    /// The one at this position, if its client belongs there.
    pub(crate) pinned: Option<usize>,
    /// Otherwise the same one for the same key, if the list says so.
    pub(crate) key: Option<u64>,
    /// None of these.
    pub(crate) tried: Tried,
}

impl<B: UploadBody> TargetSet<B> {
    /// The next upstream, and a place there. If none of them has room, the first attempt of a request or connection waits for
    /// any of them, and a further one for the upstream whose turn it is. `None` if all were tried.
    ///
    /// # Errors
    ///
    /// If there is no place in time, or too many wait.
    pub(crate) async fn enter(
        &self,
        wish: Wish,
        terms: Terms<'_>,
        patience: &mut Patience,
    ) -> Result<Option<(usize, InFlight)>, NoPlace> {
        let Wish { pinned, key, tried } = wish;
        let meters = &terms.state.meters;
        if pinned.is_none()
            && let Some(entered) = self.enter_now(key, tried, meters)
        {
            return Ok(Some(entered));
        }
        if pinned.is_none() && self.is_limited && tried.is_empty() {
            let among: Vec<_> = self.offered().cloned().collect();
            let entered = self.gate.enter_any(self.id, &among, terms, patience);
            if let Some(place) = entered.await? {
                let mut targets = self.targets.iter();
                let index = targets.position(|target| place.is_at(&target.state.places));
                return Ok(index.map(|index| (index, place)));
            }
        }
        let index = pinned.or_else(|| self.choose(key, tried, meters));
        let Some((index, target)) = index.and_then(|index| Some((index, self.targets.get(index)?)))
        else {
            return Ok(None);
        };
        let place = target.state.places.enter_in_turn(terms, patience).await?;
        Ok(Some((index, place)))
    }

    /// The next upstream with room, and a place there.
    pub(crate) fn enter_now(
        &self,
        key: Option<u64>,
        tried: Tried,
        meters: &Meters,
    ) -> Option<(usize, InFlight)> {
        if !self.is_limited {
            let index = self.choose(key, tried, meters)?;
            return Some((index, self.open(index)?));
        }
        let view = self.current_view(meters);
        let turn = match tried.is_empty() {
            true => self.turn.fetch_add(1, Ordering::Relaxed),
            false => self.turn.load(Ordering::Relaxed),
        };
        let mut passed = tried;
        loop {
            let index = self.with_room(&view, (turn, key), passed)?;
            if let Some(place) = self.targets.get(index)?.state.places.try_enter() {
                return Some((index, place));
            }
            // Another thread has taken its last place.
            passed.add(index);
        }
    }

    /// As [`Self::choose`], among those with room. Those that serve only what others cannot are the last.
    fn with_room(
        &self,
        view: &View,
        (turn, key): (u64, Option<u64>),
        passed: Tried,
    ) -> Option<usize> {
        let has_room = |index: &usize| {
            let target = self.targets.get(*index);
            !passed.has(*index) && target.is_some_and(|target| target.state.places.has_room())
        };
        let of_view = match (&self.list.balancing, key) {
            (Balancing::Hash(_), Some(key)) => {
                view.of_key(key, self.identity(), |index| has_room(&index))
            }
            (balancing, _) => {
                let first = view.starting_at(turn).find(has_room);
                first.map(|first| match balancing {
                    Balancing::LeastRequests => Some(self.less_busy(view, turn, first))
                        .filter(has_room)
                        .unwrap_or(first),
                    Balancing::RoundRobin | Balancing::Hash(_) => first,
                })
            }
        };
        let spare = || {
            let listed = self.list.upstreams.iter().enumerate();
            let serves = |index: usize| {
                let target = self.targets.get(index);
                target.is_some_and(|target| !target.state.is_unused())
            };
            let spares = listed
                .filter(|(index, listed)| listed.weight > 0 && has_room(index) && serves(*index));
            let first = spares.min_by_key(|(_, listed)| listed.priority);
            first.map(|(index, _)| index)
        };
        of_view.or_else(spare)
    }

    /// Whether one of its upstreams has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether its upstreams that get traffic have no free place.
    pub(crate) fn is_full(&self) -> bool {
        self.is_limited && !self.offered().any(|places| places.has_room())
    }

    /// The places of its upstreams that get traffic, or would if the others were full.
    fn offered(&self) -> impl Iterator<Item = &Arc<Places>> {
        let places = self.targets.iter().map(|target| &target.state.places);
        places.filter(|places| places.is_offered())
    }

    /// Applies its limits, and lets its requests wait. Those of the list `before` it choose again.
    pub(super) fn open_gate(&self, before: Option<&Self>) {
        self.gate.change_list(self.id);
        let is_known = |places: &Arc<Places>| {
            let mut targets = self.targets.iter();
            targets.any(|target| Arc::ptr_eq(&target.state.places, places))
        };
        for target in before.iter().flat_map(|before| &before.targets) {
            let places = &target.state.places;
            if !is_known(places) {
                places.set_offered(false);
            }
        }
        for (target, listed) in self.targets.iter().zip(&self.list.upstreams) {
            target.state.places.set_most(listed.in_flight_max);
        }
        self.offer_places();
    }

    /// Tells those that wait which upstreams get traffic.
    pub(super) fn offer_places(&self) {
        if !self.gate.is_list(self.id) {
            return;
        }
        let is_panic = self.view.load().is_panic;
        for (target, listed) in self.targets.iter().zip(&self.list.upstreams) {
            let is_used = is_panic || !target.state.is_unused();
            target
                .state
                .places
                .set_offered(listed.weight > 0 && is_used);
        }
    }
}
