//! Places of requests and connections in flight, and the queue of those that wait for one.
//!
//! An endpoint has [`Places`], and so has each of its upstreams. They share a [`Gate`], which gives each place that becomes free
//! to the one that has waited longest among those that want it. As long as none waits, places change without a
//! lock: who leaves one looks for waiters after that, and who waits looks for places after it says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{FairPermit, Meter, Share};
use culvert_edge_config::InFlightLimits;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::edge::edge_state::EdgeState;

/// The number of places without a limit.
const UNLIMITED: u32 = u32::MAX;

/// Who waits for places of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// How many wait, or are about to. Read without the lock.
    waiting: AtomicU32,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    arrivals: u64,
    /// In order of their arrival for each thing that is wanted.
    waiting: BTreeMap<(Wanted, u64), oneshot::Sender<Answer>>,
    /// The list of upstreams whose requests may wait for any of them.
    list: u64,
}

/// What someone waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// A place at any upstream that gets traffic.
    Any,
    /// One of the places with this ID.
    At(u64),
}

/// How a wait ends, if not by its time.
#[derive(Debug)]
enum Answer {
    /// With a place there, which is taken.
    Taken(Arc<Places>),
    /// The list of upstreams has changed.
    Changed,
}

/// How many may be in flight somewhere: at an endpoint, or at one of its upstreams.
#[derive(Debug)]
pub(crate) struct Places {
    id: u64,
    gate: Arc<Gate>,
    open: AtomicU32,
    most: AtomicU32,
    /// Whether who waits for any upstream may have a place here.
    is_offered: AtomicBool,
}

/// A request or connection in flight. It has its place until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Places>);

/// The place is not there in time, or too many wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoPlace;

/// On whose behalf and within which limits a request or connection waits.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'x> {
    pub(crate) limits: InFlightLimits,
    pub(crate) share: Share,
    pub(crate) state: &'x EdgeState,
}

/// How long a request or connection has waited, and may still wait at the endpoint that it has reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    until: Option<Instant>,
    pub(crate) waited: Option<Duration>,
}

impl Patience {
    /// It has reached another endpoint, with another time limit.
    pub(crate) fn renew(&mut self) {
        self.until = None;
    }
}

impl Terms<'_> {
    /// Counts one that gets no place.
    fn refused(self) -> NoPlace {
        self.state.meters.upstream_waits_refused.up();
        NoPlace
    }
}

/// Who has come to the queue.
enum Joined<'g> {
    /// With a place there.
    Entered(Arc<Places>),
    Waits(Waiter<'g>),
}

/// One that waits. If it leaves, the next one has its turn, and its place if it had got one.
struct Waiter<'g> {
    gate: &'g Gate,
    key: (Wanted, u64),
    answer: oneshot::Receiver<Answer>,
    state: &'g EdgeState,
    _permit: FairPermit,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        Meter::down(&self.state.meters.upstream_waiting);
        let left = lock(&self.gate.queue).waiting.remove(&self.key);
        if left.is_some() {
            self.gate.waiting.fetch_sub(1, Ordering::SeqCst);
        } else if let Ok(Answer::Taken(places)) = self.answer.try_recv() {
            drop(InFlight(places));
        }
    }
}

impl InFlight {
    /// Whether it has one of these places.
    pub(crate) fn is_at(&self, places: &Arc<Places>) -> bool {
        Arc::ptr_eq(&self.0, places)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.pass_on();
    }
}

impl Places {
    /// Places of an endpoint, or of one of its upstreams; any number of them without a limit.
    pub(crate) fn new(gate: &Arc<Gate>, most: Option<u32>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            gate: Arc::clone(gate),
            open: AtomicU32::new(0),
            most: AtomicU32::new(most.unwrap_or(UNLIMITED)),
            is_offered: AtomicBool::new(false),
        })
    }

    /// The queue that they belong to.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// How many are in flight.
    pub(crate) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether one more may be.
    pub(crate) fn has_room(&self) -> bool {
        self.open() < self.most.load(Ordering::Relaxed)
    }

    /// Changes the limit. Those that wait use new places immediately; those in flight stay.
    pub(crate) fn set_most(self: &Arc<Self>, most: Option<u32>) {
        self.most.store(most.unwrap_or(UNLIMITED), Ordering::SeqCst);
        self.pass_on();
    }

    /// Whether who waits for any upstream may have a place here.
    pub(crate) fn is_offered(&self) -> bool {
        self.is_offered.load(Ordering::SeqCst)
    }

    /// Changes whether who waits for any upstream may have a place here.
    pub(crate) fn set_offered(self: &Arc<Self>, is_offered: bool) {
        if self.is_offered.swap(is_offered, Ordering::SeqCst) != is_offered && is_offered {
            self.pass_on();
        }
    }

    /// Takes a place whether there is one or not.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.open.fetch_add(1, Ordering::SeqCst);
        InFlight(Arc::clone(self))
    }

    /// Takes a place, if there is one that none waits for.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<InFlight> {
        let is_free = self.gate.waiting.load(Ordering::SeqCst) == 0 && self.take();
        if is_free {
            return Some(InFlight(Arc::clone(self)));
        }
        let gate = &self.gate;
        if !self.has_room() {
            return None;
        }
        // Others may wait for other places.
        let queue = lock(&gate.queue);
        let is_taken = !queue.is_wanted(self) && self.take();
        drop(queue);
        is_taken.then(|| InFlight(Arc::clone(self)))
    }

    /// Takes a place, or waits for one in turn.
    ///
    /// # Errors
    ///
    /// If there is none in time, or too many wait.
    pub(crate) async fn enter_in_turn(
        self: &Arc<Self>,
        terms: Terms<'_>,
        patience: &mut Patience,
    ) -> Result<InFlight, NoPlace> {
        if let Some(entered) = self.try_enter() {
            return Ok(entered);
        }
        let own = std::slice::from_ref(self);
        let answer = self.gate.wait(Wanted::At(self.id), own, terms, patience);
        match answer.await? {
            Answer::Taken(places) => Ok(InFlight(places)),
            // Only for those that wait for any upstream.
            Answer::Changed => Err(NoPlace),
        }
    }

    fn take(&self) -> bool {
        let most = self.most.load(Ordering::SeqCst);
        let more = |open: u32| (open < most).then(|| open + 1);
        let taken = self
            .open
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.is_ok()
    }

    /// Gives the places that are free to those that wait.
    fn pass_on(self: &Arc<Self>) {
        if self.gate.waiting.load(Ordering::SeqCst) > 0 {
            lock(&self.gate.queue).serve(self, &self.gate.waiting);
        }
    }
}

impl Gate {
    /// The requests of another list of upstreams may wait for any of these from now on. Those of the list before choose again.
    pub(crate) fn change_list(&self, list: u64) {
        let mut queue = lock(&self.queue);
        queue.list = list;
        while let Some(key) = queue.first(Wanted::Any) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if let Some(sender) = queue.waiting.remove(&key) {
                // Who has left hears nothing.
                let _left = sender.send(Answer::Changed);
            }
        }
    }

    /// Whether this is the list of upstreams in use.
    pub(crate) fn is_list(&self, list: u64) -> bool {
        lock(&self.queue).list == list
    }

    /// Waits for a place at any of these upstreams, which are those of `list`. `None` if it is no longer the list in use, so that
    /// the request has to wait for one of them.
    pub(crate) async fn enter_any(
        &self,
        list: u64,
        among: &[Arc<Places>],
        terms: Terms<'_>,
        patience: &mut Patience,
    ) -> Result<Option<InFlight>, NoPlace> {
        if !self.is_list(list) {
            return Ok(None);
        }
        match self.wait(Wanted::Any, among, terms, patience).await? {
            Answer::Taken(places) => Ok(Some(InFlight(places))),
            Answer::Changed => Ok(None),
        }
    }

    /// Takes one of these places, or waits in turn for one.
    async fn wait(
        &self,
        wanted: Wanted,
        among: &[Arc<Places>],
        terms: Terms<'_>,
        patience: &mut Patience,
    ) -> Result<Answer, NoPlace> {
        let began = Instant::now();
        let until = *patience.until.get_or_insert(began + terms.limits.wait_max);
        let mut waiter = match self.join(wanted, among, terms) {
            Some(Joined::Entered(places)) => return Ok(Answer::Taken(places)),
            Some(Joined::Waits(waiter)) => waiter,
            None => return Err(terms.refused()),
        };
        let answered = tokio::time::timeout_at(until, &mut waiter.answer).await;
        *patience.waited.get_or_insert_default() += began.elapsed();
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(terms.refused()),
        }
    }

    /// `None` if too many wait.
    fn join<'g>(
        &'g self,
        wanted: Wanted,
        among: &[Arc<Places>],
        terms: Terms<'g>,
    ) -> Option<Joined<'g>> {
        let Terms {
            limits,
            share,
            state,
        } = terms;
        let mut queue = lock(&self.queue);
        // Before it looks for places: who leaves one looks for waiters after that.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let free = among.iter().find(|one| !queue.is_wanted(one) && one.take());
        if let Some(places) = free {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Some(Joined::Entered(Arc::clone(places)));
        }
        let most = usize::try_from(limits.queue_max).unwrap_or(usize::MAX);
        let permit = match queue.waiting.len() < most {
            true => state.waiting.try_acquire(share).ok(),
            false => None,
        };
        let Some(permit) = permit else {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        };
        let (sender, answer) = oneshot::channel();
        queue.arrivals += 1;
        let key = (wanted, queue.arrivals);
        queue.waiting.insert(key, sender);
        state.meters.upstream_waits.up();
        state.meters.upstream_waiting.up();
        Some(Joined::Waits(Waiter {
            gate: self,
            key,
            answer,
            state,
            _permit: permit,
        }))
    }
}

impl Queue {
    /// Who has waited longest for one of these places.
    fn next(&self, places: &Places) -> Option<(Wanted, u64)> {
        let here = self.first(Wanted::At(places.id));
        let anywhere = places
            .is_offered()
            .then(|| self.first(Wanted::Any))
            .flatten();
        let waiting = here.into_iter().chain(anywhere);
        waiting.min_by_key(|(_, arrival)| *arrival)
    }

    fn first(&self, wanted: Wanted) -> Option<(Wanted, u64)> {
        let mut waiting = self.waiting.range((wanted, 0)..=(wanted, u64::MAX));
        waiting.next().map(|(key, _)| *key)
    }

    fn is_wanted(&self, places: &Places) -> bool {
        self.next(places).is_some()
    }

    /// Gives these places, as far as they are free, to those that have waited longest. `waiting` counts those that wait.
    fn serve(&mut self, places: &Arc<Places>, waiting: &AtomicU32) {
        while let Some(key) = self.next(places)
            && places.take()
        {
            waiting.fetch_sub(1, Ordering::SeqCst);
            let sender = self.waiting.remove(&key);
            let sent = sender.map(|sender| sender.send(Answer::Taken(Arc::clone(places))));
            if !matches!(sent, Some(Ok(()))) {
                places.open.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use culvert_edge_config::Limits;
    use culvert_statistics::Traffic;

    use super::*;
    use crate::tests::harness::Collector;

    fn state() -> EdgeState {
        let (recorder, traffic) = (Arc::new(Collector::default()), Arc::new(Traffic::new(1, 1)));
        EdgeState::new(recorder, traffic, &Limits::default(), 0)
    }

    fn terms(state: &EdgeState, queue_max: u32) -> Terms<'_> {
        Terms {
            limits: InFlightLimits {
                queue_max,
                ..InFlightLimits::default()
            },
            share: Share::of_owner("usr_1"),
            state,
        }
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn who_has_waited_longest_is_next_whatever_it_waits_for() {
        let (state, gate) = (state(), Arc::<Gate>::default());
        let a = Places::new(&gate, Some(1));
        a.set_offered(true);
        gate.change_list(1);
        let (mut first, mut second, mut third) = Default::default();
        let place = a.try_enter().unwrap();
        let among = [Arc::clone(&a)];
        let mut any = pin!(gate.enter_any(1, &among, terms(&state, 9), &mut first));
        assert!(poll(any.as_mut()).is_pending());
        let mut here = pin!(a.enter_in_turn(terms(&state, 9), &mut second));
        assert!(poll(here.as_mut()).is_pending());
        let mut last = pin!(gate.enter_any(1, &among, terms(&state, 9), &mut third));
        assert!(poll(last.as_mut()).is_pending());
        assert!(a.try_enter().is_none());
        drop(place);
        assert!(poll(here.as_mut()).is_pending());
        assert!(poll(last.as_mut()).is_pending());
        let Poll::Ready(Ok(Some(place))) = poll(any.as_mut()) else {
            panic!("it is the first");
        };
        drop(place);
        assert!(poll(last.as_mut()).is_pending());
        let Poll::Ready(Ok(place)) = poll(here.as_mut()) else {
            panic!("it is the second");
        };
        drop(place);
        assert!(matches!(poll(last.as_mut()), Poll::Ready(Ok(Some(_)))));
        assert_eq!(a.open(), 0);
    }

    #[tokio::test]
    async fn a_place_that_was_given_to_one_that_leaves_goes_to_the_next() {
        let (state, gate) = (state(), Arc::<Gate>::default());
        let places = Places::new(&gate, Some(1));
        let (mut first, mut second) = Default::default();
        let place = places.try_enter().unwrap();
        let mut next = pin!(places.enter_in_turn(terms(&state, 9), &mut second));
        {
            let mut leaving = pin!(places.enter_in_turn(terms(&state, 9), &mut first));
            assert!(poll(leaving.as_mut()).is_pending());
            assert!(poll(next.as_mut()).is_pending());
            // It has the place, and does not know.
            drop(place);
            assert!(poll(next.as_mut()).is_pending());
        }
        assert!(matches!(poll(next.as_mut()), Poll::Ready(Ok(_))));
        assert_eq!(state.meters.upstream_waiting.get(), 0);
        assert_eq!(gate.waiting.load(Ordering::SeqCst), 0);
        assert!(places.try_enter().is_some());
    }

    #[tokio::test]
    async fn a_full_queue_refuses_and_takes_no_place_that_is_free_elsewhere() {
        let (state, gate) = (state(), Arc::<Gate>::default());
        let (a, b) = (Places::new(&gate, Some(1)), Places::new(&gate, Some(1)));
        let (mut first, mut second, mut third) = Default::default();
        let _place = a.try_enter().unwrap();
        let mut waiting = pin!(a.enter_in_turn(terms(&state, 1), &mut first));
        assert!(poll(waiting.as_mut()).is_pending());
        let refused = a.enter_in_turn(terms(&state, 1), &mut second).await;
        assert!(refused.is_err());
        // None waits there.
        let there = b.enter_in_turn(terms(&state, 1), &mut third).await;
        assert!(there.is_ok());
        assert_eq!(state.meters.upstream_waits_refused.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_limit_is_for_all_waits_at_an_endpoint() {
        let (state, gate) = (state(), Arc::<Gate>::default());
        let (a, b) = (Places::new(&gate, Some(1)), Places::new(&gate, Some(1)));
        let (_at_a, _at_b) = (a.try_enter(), b.try_enter());
        let (mut patience, began) = (Patience::default(), Instant::now());
        assert!(
            a.enter_in_turn(terms(&state, 9), &mut patience)
                .await
                .is_err()
        );
        assert!(
            b.enter_in_turn(terms(&state, 9), &mut patience)
                .await
                .is_err()
        );
        assert_eq!(began.elapsed(), InFlightLimits::default().wait_max);
        assert_eq!(patience.waited, Some(began.elapsed()));
        assert_eq!(gate.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn many_threads_leave_no_place_unused() {
        let (state, gate) = (state(), Arc::<Gate>::default());
        let places = Places::new(&gate, Some(2));
        let most = AtomicU32::new(0);
        let task = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            runtime.unwrap().block_on(async {
                for _ in 0..500 {
                    let mut patience = Patience::default();
                    let entered = places.enter_in_turn(terms(&state, 100), &mut patience);
                    let place = entered.await.unwrap();
                    most.fetch_max(places.open(), Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    drop(place);
                }
            });
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(task);
            }
        });
        assert_eq!((places.open(), gate.waiting.load(Ordering::SeqCst)), (0, 0));
        assert!(most.into_inner() <= 2);
    }
}
