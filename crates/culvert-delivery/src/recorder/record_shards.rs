//! Records that planes offer, before the flusher takes them.
//!
//! A record is pushed onto the list of its thread under a short lock, or it is dropped and counted if the lists are
//! full. If traffic is retained, the offering thread packs the event first, under the lock of its piece
//! (`open_pieces`), and only records that a subscription or a tail may need are pushed.
//!
//! If a record is dropped, its event is retained, and its captured messages are lost and counted.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use culvert_base::sync::lock;
use culvert_events::bodies::BodyBudget;
use culvert_events::{Capture, EventKind, Family, Record, Recorder};

use crate::plane::meters::Meters;
use crate::retained_events::open_pieces::OpenPieces;

/// Least and most lists. There is one for each processor between them, and a thread always uses the same one.
const SHARDS_MIN: usize = 8;
const SHARDS_MAX: usize = 64;

/// The share of the places, and of their bytes, that records of refused traffic may take: a quarter. So a flood of
/// refusals does not push out the events of traffic that is served.
const REFUSED_SHARE: usize = 4;

/// A value that shares its cache lines with no other. Threads that write neighbouring values do not wait for each other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

/// Lists of offered records.
#[derive(Debug)]
pub(crate) struct RecordShards {
    captures: ArcSwap<Vec<Captured>>,
    /// Held by [`Self::set_captures`].
    updating: Mutex<()>,
    /// Whether any kind is followed. If not, records skip the search for their kind.
    has_followers: AtomicBool,
    shards: Box<[Apart<Mutex<Vec<Record>>>]>,
    counts: Apart<OfferCounts>,
    limits: OfferLimits,
    pub(crate) wake: Notify,
    /// Whether the flusher sleeps until the next record, with no other reason to wake.
    is_sleeping: AtomicBool,
    meters: Arc<Meters>,
    /// The memory for captured messages; `None` if they are not stored.
    bodies: Option<Arc<BodyBudget>>,
    /// `None` if traffic is not retained.
    pieces: Option<OpenPieces>,
}

/// What each offer of a record writes. All other fields are read by each request.
#[derive(Debug, Default)]
struct OfferCounts {
    /// Waiting records.
    records: AtomicUsize,
    /// Their bytes.
    bytes: AtomicUsize,
    /// Records accepted since the start.
    accepted: AtomicU64,
    /// Waiting records of refused traffic.
    refused: AtomicUsize,
    /// Their bytes.
    refused_bytes: AtomicUsize,
}

/// The kinds that are captured, with their fields.
#[derive(Debug, Default)]
pub(crate) struct CapturedKinds {
    /// For subscriptions and tails.
    pub(crate) followed: Vec<(&'static EventKind, Capture)>,
    /// To be retained.
    pub(crate) retained: Vec<(&'static EventKind, Capture)>,
}

/// The captured fields of a kind.
#[derive(Clone, Copy, Debug)]
struct Captured {
    kind: &'static EventKind,
    capture: Capture,
    /// Whether a subscription or a tail may want its events.
    is_followed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferLimits {
    pub(crate) records_max: usize,
    pub(crate) bytes_max: usize,
    /// The flusher is woken after this many records or bytes.
    pub(crate) wake_records: usize,
    pub(crate) wake_bytes: usize,
}

impl RecordShards {
    pub(crate) fn new(
        limits: OfferLimits,
        meters: Arc<Meters>,
        bodies: Option<Arc<BodyBudget>>,
        pieces: Option<OpenPieces>,
    ) -> Self {
        Self {
            captures: ArcSwap::default(),
            updating: Mutex::default(),
            has_followers: AtomicBool::new(false),
            shards: (0..n_shards()).map(|_| Apart::default()).collect(),
            counts: Apart::default(),
            limits,
            wake: Notify::new(),
            is_sleeping: AtomicBool::new(false),
            meters,
            bodies,
            pieces,
        }
    }

    /// Sets the captured fields of each kind for later records. `read` says which. Updates take turns from their reading
    /// on, so the newest state is set last.
    pub(crate) fn set_captures(&self, read: impl FnOnce() -> CapturedKinds) {
        let _turn = lock(&self.updating);
        let CapturedKinds { followed, retained } = read();
        let mut all: Vec<Captured> = Vec::new();
        let followed = followed
            .into_iter()
            .map(|(kind, capture)| (kind, capture, true));
        let retained = retained
            .into_iter()
            .map(|(kind, capture)| (kind, capture, false));
        for (kind, capture, is_followed) in followed.chain(retained) {
            match all.iter_mut().find(|known| known.kind == kind) {
                Some(known) => known.capture = known.capture.union(capture),
                None => all.push(Captured {
                    kind,
                    capture,
                    is_followed,
                }),
            }
        }
        let has_followers = all.iter().any(|captured| captured.is_followed);
        self.captures.store(Arc::new(all));
        self.has_followers.store(has_followers, Ordering::Release);
    }

    fn captured(&self, kind: &'static EventKind) -> Option<Captured> {
        let captures = self.captures.load();
        captures.iter().find(|known| known.kind == kind).copied()
    }

    /// Whether a subscription or a tail may want events of this kind.
    fn is_followed(&self, kind: &'static EventKind) -> bool {
        self.has_followers.load(Ordering::Acquire)
            && self
                .captured(kind)
                .is_some_and(|captured| captured.is_followed)
    }

    /// Whether the flusher was asleep and must be woken.
    fn has_slept(&self) -> bool {
        self.is_sleeping.load(Ordering::SeqCst) && self.is_sleeping.swap(false, Ordering::SeqCst)
    }

    /// Counts a record of refused traffic that is to wait, unless these have their share of the places.
    fn takes_refused(&self, size: usize) -> bool {
        let (refused, bytes) = (&self.counts.0.refused, &self.counts.0.refused_bytes);
        let count = refused.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = bytes.fetch_add(size, Ordering::Relaxed) + size;
        let limits = &self.limits;
        let fits = count <= limits.records_max / REFUSED_SHARE
            && bytes <= limits.bytes_max / REFUSED_SHARE;
        if !fits {
            self.give_back_refused(1, size);
        }
        fits
    }

    fn give_back_refused(&self, count: usize, bytes: usize) {
        self.counts.0.refused.fetch_sub(count, Ordering::Relaxed);
        self.counts
            .0
            .refused_bytes
            .fetch_sub(bytes, Ordering::Relaxed);
    }

    fn wake_sleeping(&self) {
        if self.has_slept() {
            self.wake.notify_one();
        }
    }

    /// Records accepted since the start.
    pub(crate) fn accepted(&self) -> u64 {
        self.counts.0.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.0.records.load(Ordering::Acquire) == 0 && !self.has_open_piece()
    }

    fn has_open_piece(&self) -> bool {
        self.pieces.as_ref().is_some_and(OpenPieces::has_any)
    }

    /// Closes the pieces that the offering threads fill.
    pub(crate) fn close_pieces(&self) {
        if let Some(pieces) = &self.pieces {
            pieces.close();
        }
    }

    /// Requests a wake-up for the next record. False if a record or a piece with events is already there.
    pub(crate) fn arm_wake(&self) -> bool {
        self.is_sleeping.store(true, Ordering::SeqCst);
        // `offer` checks in the opposite order, so one of the two sees the other.
        self.counts.0.records.load(Ordering::SeqCst) == 0 && !self.has_open_piece()
    }

    pub(crate) fn is_full_enough(&self) -> bool {
        self.counts.0.records.load(Ordering::Relaxed) >= self.limits.wake_records
            || self.counts.0.bytes.load(Ordering::Relaxed) >= self.limits.wake_bytes
    }

    /// Moves all offered records to the end of `into`, ordered by time.
    ///
    /// All lists are locked together, so a later record of a connection is never taken before an earlier one.
    pub(crate) fn take(&self, into: &mut Vec<Record>) {
        let before = into.len();
        let mut shards: Vec<_> = self.shards.iter().map(|shard| lock(&shard.0)).collect();
        // All lists together keep the capacity for as many records as may wait.
        let capacity = self.limits.records_max / shards.len();
        for shard in &mut shards {
            into.append(shard);
            shard.shrink_to(capacity);
        }
        drop(shards);
        let taken = &mut into[before..];
        // The input consists of a few sorted runs, for which this sort is fast.
        taken.sort_by_key(Record::at);
        let bytes: usize = taken.iter().map(Record::bytes).sum();
        self.counts.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let refused = taken.iter().filter(|record| record.is_refused());
        let refused = refused.fold((0, 0), |(count, bytes), record| {
            (count + 1, bytes + record.bytes())
        });
        self.give_back_refused(refused.0, refused.1);
        let taken = into.len() - before;
        self.counts.0.records.fetch_sub(taken, Ordering::Release);
    }
}

impl Recorder for RecordShards {
    fn capture(&self, kind: &'static EventKind) -> Capture {
        let captured = self.captured(kind);
        captured.map_or(Capture::NONE, |captured| captured.capture)
    }

    fn offer(&self, mut record: Record) {
        let mut may_be_delivered = true;
        if let Some(pieces) = &self.pieces
            && record.kind().family == Family::Traffic
        {
            may_be_delivered = self.is_followed(record.kind());
            if !record.has_bodies() && !may_be_delivered {
                pieces.keep(record);
                self.wake_sleeping();
                return;
            }
            record.assign_id(pieces.keep_copy(&record));
        }
        let size = record.bytes();
        let is_refused = record.is_refused();
        if is_refused && !self.takes_refused(size) {
            self.meters.offered.add(1);
            self.meters.drop_offers(record.account(), 1);
            return;
        }
        let records = self.counts.0.records.fetch_add(1, Ordering::SeqCst) + 1;
        let bytes = self.counts.0.bytes.fetch_add(size, Ordering::Relaxed) + size;
        if records > self.limits.records_max || bytes > self.limits.bytes_max {
            self.counts.0.records.fetch_sub(1, Ordering::Relaxed);
            self.counts.0.bytes.fetch_sub(size, Ordering::Relaxed);
            if is_refused {
                self.give_back_refused(1, size);
            }
            if may_be_delivered {
                self.meters.offered.add(1);
                self.meters.drop_offers(record.account(), 1);
            }
            if record.has_bodies() {
                self.meters.bodies_lost.add(1);
            }
            return;
        }
        self.counts.0.accepted.fetch_add(1, Ordering::Relaxed);
        let shard = thread_number() % self.shards.len();
        lock(&self.shards[shard].0).push(record);
        let crossed = bytes / self.limits.wake_bytes != (bytes - size) / self.limits.wake_bytes;
        let is_first = self.has_slept();
        if is_first || records.is_multiple_of(self.limits.wake_records) || crossed {
            self.wake.notify_one();
        }
    }

    fn bodies(&self) -> Option<Arc<BodyBudget>> {
        self.bodies.clone()
    }
}

/// The number of lists, and of pieces that threads fill.
pub(crate) fn n_shards() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    processors.clamp(SHARDS_MIN, SHARDS_MAX)
}

/// The number of this thread. Its remainder by the number of lists says which one it fills.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use culvert_base::{SeededEntropy, Timestamp};
    use culvert_events::bodies::{BodyShare, CapturedExchange, CapturedMessages};
    use culvert_events::{HTTP_REQUEST_COMPLETE, HeaderRules, TCP_CONNECTION_CLOSED};

    use super::*;

    #[test]
    fn captured_messages_that_find_the_recorder_full_are_counted() {
        let (meters, queue) = (Arc::<Meters>::default(), Arc::default());
        let entropy: Arc<dyn culvert_base::Entropy> = Arc::new(SeededEntropy::new(7));
        let limits = OfferLimits {
            records_max: 0,
            bytes_max: usize::MAX,
            wake_records: 1,
            wake_bytes: 1,
        };
        let pieces = OpenPieces::new(&entropy, queue, Arc::clone(&meters));
        let budget = BodyBudget::new(1000);
        let offers = RecordShards::new(limits, Arc::clone(&meters), None, Some(pieces));
        let offer = || {
            let mut share = BodyShare::new(&budget);
            assert!(share.grow(100));
            let captured = CapturedExchange::new(
                CapturedMessages::default(),
                Vec::new(),
                Arc::new(HeaderRules::default()),
                share,
            );
            let mut record = Record::new(&HTTP_REQUEST_COMPLETE, Capture::NONE, Arc::from("ac_1"));
            record.complete(Timestamp::from_unix_seconds(1));
            record.attach_bodies(Box::new(captured));
            offers.offer(record);
            (meters.bodies_lost.get(), meters.dropped.total())
        };
        // Without a subscription, only the messages are lost: the event is retained.
        assert_eq!(offer(), (1, 0));
        offers.set_captures(|| CapturedKinds {
            followed: vec![(&HTTP_REQUEST_COMPLETE, Capture::NONE)],
            ..CapturedKinds::default()
        });
        assert_eq!(offer(), (2, 1));
        assert_eq!(meters.offered.get(), 1);
        assert_eq!(budget.used(), 0);
        assert!(offers.has_open_piece());
    }

    #[test]
    fn refused_traffic_takes_a_quarter_of_the_places() {
        let limits = OfferLimits {
            records_max: 8,
            bytes_max: usize::MAX,
            wake_records: 64,
            wake_bytes: 1 << 20,
        };
        let meters = Arc::<Meters>::default();
        let offers = RecordShards::new(limits, Arc::clone(&meters), None, None);
        let offer = |is_refused: bool| {
            let mut record = Record::new(&HTTP_REQUEST_COMPLETE, Capture::NONE, Arc::from("ac_1"));
            record.complete(Timestamp::from_unix_seconds(1));
            if is_refused {
                record.mark_refused();
            }
            offers.offer(record);
        };
        // Twice, so that what was taken has given its places back.
        for round in 1..3 {
            (0..100).for_each(|_| offer(true));
            (0..6).for_each(|_| offer(false));
            let mut taken = Vec::new();
            offers.take(&mut taken);
            let refused = taken.iter().filter(|record| record.is_refused()).count();
            assert_eq!((taken.len(), refused), (8, 2));
            assert_eq!(meters.dropped.total(), round * 98);
        }
        assert!(offers.is_empty());
    }

    #[test]
    fn no_other_update_of_followed_kinds_comes_between_reading_and_setting() {
        let limits = OfferLimits {
            records_max: 1,
            bytes_max: 1,
            wake_records: 1,
            wake_bytes: 1,
        };
        let offers = RecordShards::new(limits, Arc::default(), None, None);
        let set = |followed: Vec<(&'static EventKind, Capture)>| {
            offers.set_captures(|| {
                assert!(offers.updating.try_lock().is_err());
                CapturedKinds {
                    followed,
                    ..CapturedKinds::default()
                }
            });
            offers.is_followed(&HTTP_REQUEST_COMPLETE)
        };
        assert!(set(vec![(&HTTP_REQUEST_COMPLETE, Capture::NONE)]));
        assert!(!set(Vec::new()));
    }

    #[test]
    fn records_of_one_connection_keep_their_order_across_threads() {
        const THREADS: usize = 4;
        const RECORDS: i64 = 2_000;
        let limits = OfferLimits {
            records_max: usize::MAX,
            bytes_max: usize::MAX,
            wake_records: 64,
            wake_bytes: 1 << 20,
        };
        let offers = RecordShards::new(limits, Arc::default(), None, None);
        let turn = Mutex::new(0);
        let barrier = Barrier::new(THREADS + 1);
        let mut taken = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    loop {
                        // Records of one connection: one after the other, each on some thread.
                        let mut number = turn.lock().unwrap();
                        if *number == RECORDS {
                            return;
                        }
                        *number += 1;
                        let mut record =
                            Record::new(&TCP_CONNECTION_CLOSED, Capture::NONE, Arc::from("ac_1"));
                        record.complete(Timestamp::from_unix_nanos(*number));
                        offers.offer(record);
                    }
                });
            }
            barrier.wait();
            while taken.len() < RECORDS.unsigned_abs() as usize {
                offers.take(&mut taken);
            }
        });
        let numbers: Vec<i64> = taken
            .iter()
            .map(|record| record.at().unix_nanos())
            .collect();
        assert_eq!(numbers, (1..=RECORDS).collect::<Vec<_>>());
    }
}
