//! The exchanges of a connection: futures of one type, which the connection's task polls when they are woken.
//!
//! There are many, and most are short. So the memory of one that has ended serves another, and wakers are made once for
//! each place and not for each future.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use culvert_base::sync::lock;
use futures_util::task::AtomicWaker;

/// Ended exchanges whose memory is kept while others run.
const SPARE_MAX: usize = 16;

/// The exchanges of one connection.
pub(crate) struct Exchanges<F> {
    places: Vec<Place<F>>,
    /// The places that are free.
    free: Vec<usize>,
    /// Memory of ended exchanges.
    spare: Vec<Memory<F>>,
    woken: Arc<Woken>,
    /// The places that the next turn polls.
    turn: Vec<usize>,
}

type Memory<F> = Pin<Box<Option<F>>>;

/// A place for an exchange.
struct Place<F> {
    exchange: Option<Memory<F>>,
    signal: Arc<Signal>,
    waker: Waker,
}

/// The places whose exchanges were woken.
#[derive(Debug, Default)]
struct Woken {
    places: Mutex<Vec<usize>>,
    driver: AtomicWaker,
}

/// Wakes the exchange of a place. If that has ended, the next one there is polled without need.
#[derive(Debug)]
struct Signal {
    place: usize,
    is_woken: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            lock(&self.woken.places).push(self.place);
            self.woken.driver.wake();
        }
    }
}

impl<F: Future<Output = ()>> Exchanges<F> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            woken: Arc::default(),
            turn: Vec::new(),
        }
    }

    /// Adds an exchange. The next turn polls it. It is made in its place, because it is large to move.
    pub(crate) fn push(&mut self, make: impl FnOnce() -> F) {
        let mut memory = self.spare.pop().unwrap_or_else(|| Box::pin(None));
        memory.set(Some(make()));
        let at = self.free.pop().unwrap_or_else(|| self.add_place());
        if let Some(place) = self.places.get_mut(at) {
            place.exchange = Some(memory);
            self.turn.push(at);
        }
    }

    fn add_place(&mut self) -> usize {
        let place = self.places.len();
        let signal = Arc::new(Signal {
            place,
            is_woken: AtomicBool::new(false),
            woken: Arc::clone(&self.woken),
        });
        self.places.push(Place {
            exchange: None,
            waker: Waker::from(Arc::clone(&signal)),
            signal,
        });
        place
    }

    /// Polls each exchange that is new or was woken. One that is woken later wakes `cx`.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) {
        self.woken.driver.register(cx.waker());
        self.turn.append(&mut lock(&self.woken.places));
        if self.turn.is_empty() {
            return;
        }
        for at in self.turn.drain(..) {
            let Some(place) = self.places.get_mut(at) else {
                continue;
            };
            place.signal.is_woken.swap(false, Ordering::AcqRel);
            let Some(memory) = &mut place.exchange else {
                continue;
            };
            let mut cx = Context::from_waker(&place.waker);
            let exchange = memory.as_mut().as_pin_mut();
            if exchange.is_none_or(|exchange| exchange.poll(&mut cx).is_ready()) {
                memory.set(None);
                let memory = place.exchange.take();
                if self.spare.len() < SPARE_MAX {
                    self.spare.extend(memory);
                }
                self.free.push(at);
            }
        }
        if self.free.len() == self.places.len() {
            self.rest();
        }
    }

    /// Frees the memory of a connection without exchanges.
    fn rest(&mut self) {
        if self.places.len() > 1 {
            *self = Self::new();
        }
        self.spare.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Poll;

    use super::*;

    /// An exchange of the test.
    #[derive(Clone, Default)]
    struct Probe(Rc<Inner>);

    #[derive(Default)]
    struct Inner {
        polls: Cell<usize>,
        waker: Cell<Option<Waker>>,
        is_over: Cell<bool>,
        wakes_itself: Cell<bool>,
    }

    impl Future for Probe {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.0.polls.set(self.0.polls.get() + 1);
            self.0.waker.set(Some(cx.waker().clone()));
            if self.0.wakes_itself.get() {
                cx.waker().wake_by_ref();
            }
            match self.0.is_over.get() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }
    }

    impl Probe {
        fn polls(&self) -> usize {
            self.0.polls.get()
        }

        fn waker(&self) -> Waker {
            let waker = self.0.waker.take().unwrap();
            self.0.waker.set(Some(waker.clone()));
            waker
        }

        fn end(&self) {
            self.0.is_over.set(true);
            self.waker().wake();
        }
    }

    /// Counts how often the task of the connection is woken.
    #[derive(Default)]
    struct Driver(AtomicUsize);

    impl Wake for Driver {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Exchanges that were polled once, and what polls them.
    fn begun(count: usize) -> (Exchanges<Probe>, Vec<Probe>, Arc<Driver>) {
        let mut exchanges = Exchanges::new();
        let mut probes = Vec::new();
        probes.resize_with(count, Probe::default);
        for probe in &probes {
            exchanges.push(|| probe.clone());
        }
        let driver = Arc::<Driver>::default();
        turn(&mut exchanges, &driver);
        assert!(probes.iter().all(|probe| probe.polls() == 1));
        (exchanges, probes, driver)
    }

    fn turn(exchanges: &mut Exchanges<Probe>, driver: &Arc<Driver>) {
        let waker = Waker::from(Arc::clone(driver));
        exchanges.poll(&Context::from_waker(&waker));
    }

    #[test]
    fn only_those_that_were_woken_are_polled() {
        let (mut exchanges, probes, driver) = begun(40);
        let waker = probes[7].waker();
        std::thread::spawn(move || {
            waker.wake_by_ref();
            waker.wake();
        })
        .join()
        .unwrap();
        probes[3].waker().wake();
        assert_eq!(driver.0.load(Ordering::Relaxed), 1);
        for _ in 0..2 {
            turn(&mut exchanges, &driver);
            for (at, probe) in probes.iter().enumerate() {
                assert_eq!(probe.polls(), if [3, 7].contains(&at) { 2 } else { 1 });
            }
        }
    }

    #[test]
    fn one_that_wakes_itself_waits_for_the_next_turn() {
        let (mut exchanges, probes, driver) = begun(2);
        probes[0].0.wakes_itself.set(true);
        probes[0].waker().wake();
        for polls in 2..5 {
            let before = driver.0.load(Ordering::Relaxed);
            turn(&mut exchanges, &driver);
            assert_eq!(probes[0].polls(), polls);
            assert_eq!(driver.0.load(Ordering::Relaxed), before + 1);
        }
    }

    #[test]
    fn an_ended_exchange_is_dropped_and_its_place_used_again() {
        let (mut exchanges, probes, driver) = begun(3);
        let stale = probes[1].waker();
        probes[1].end();
        turn(&mut exchanges, &driver);
        assert_eq!(Rc::strong_count(&probes[1].0), 1);
        assert_eq!(exchanges.spare.len(), 1);
        let next = Probe::default();
        exchanges.push(|| next.clone());
        turn(&mut exchanges, &driver);
        assert_eq!((exchanges.places.len(), exchanges.spare.len()), (3, 0));
        // The waker of the ended one may still be used.
        stale.wake();
        turn(&mut exchanges, &driver);
        assert_eq!((probes[1].polls(), next.polls()), (2, 2));
    }

    #[test]
    fn memory_of_ended_exchanges_is_limited_and_freed_once_none_runs() {
        let (mut exchanges, probes, driver) = begun(100);
        for probe in &probes[1..] {
            probe.end();
        }
        turn(&mut exchanges, &driver);
        assert_eq!(exchanges.spare.len(), SPARE_MAX);
        let stale = probes[5].waker();
        probes[0].end();
        turn(&mut exchanges, &driver);
        assert!(exchanges.spare.is_empty() && exchanges.places.len() <= 1);
        assert!(exchanges.places.capacity() <= 4);
        // Also a waker from before then.
        stale.wake();
        turn(&mut exchanges, &driver);
        let next = Probe::default();
        exchanges.push(|| next.clone());
        turn(&mut exchanges, &driver);
        assert_eq!(next.polls(), 1);
    }

    #[test]
    fn those_that_run_are_dropped_with_all() {
        let (exchanges, probes, _) = begun(3);
        drop(exchanges);
        for probe in probes {
            probe.waker().wake();
            assert_eq!(Rc::strong_count(&probe.0), 1);
        }
    }
}
