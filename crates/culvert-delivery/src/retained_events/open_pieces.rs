//! Pieces of the traffic log that the offering threads fill.
//!
//! A thread packs an event while its record is in the processor's cache: only the values that differ from the previous
//! event are copied. A record that no subscription needs is then dropped.
//!
//! Each thread always fills the piece of one shard. Threads wait for each other only if more of them than shards offer
//! events, and while the flusher closes pieces.
//!
//! If a thread panics while it packs an event, the events of its open piece are not retained, and counted.
//!
//! Not here: when pieces are closed (`recorder`), and their form (`retained_pieces`, `culvert_events::Packer`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use culvert_base::Entropy;
use culvert_events::{EventId, EventIds, Record};

use crate::plane::meters::Meters;
use crate::recorder::record_shards::{Apart, n_shards, thread_number};
use crate::retained_events::retained_pieces::{OpenPiece, PieceQueue};

/// The open piece of each shard.
#[derive(Debug)]
pub(crate) struct OpenPieces {
    shards: Box<[Apart<Mutex<Shard>>]>,
    /// Shards with a piece. It changes under the lock of the shard.
    n_open: AtomicUsize,
    queue: Arc<PieceQueue>,
    meters: Arc<Meters>,
}

#[derive(Debug)]
struct Shard {
    ids: EventIds,
    piece: Option<OpenPiece>,
}

impl OpenPieces {
    /// No pieces yet. Closed ones are put into `queue`.
    pub(crate) fn new(
        entropy: &Arc<dyn Entropy>,
        queue: Arc<PieceQueue>,
        meters: Arc<Meters>,
    ) -> Self {
        let shard = |_| {
            Apart(Mutex::new(Shard {
                ids: EventIds::new(Arc::clone(entropy)),
                piece: None,
            }))
        };
        Self {
            shards: (0..n_shards()).map(shard).collect(),
            n_open: AtomicUsize::new(0),
            queue,
            meters,
        }
    }

    /// Retains an event that is not delivered.
    pub(crate) fn keep(&self, record: Record) {
        let mut shard = self.shard_of_this_thread();
        let id = record.id().unwrap_or_else(|| shard.ids.next(record.at()));
        let is_full = self.open(&mut shard, &record).push(&id, record);
        self.close_if(is_full, shard);
    }

    /// Retains an event that is also delivered, and returns its id.
    pub(crate) fn keep_copy(&self, record: &Record) -> EventId {
        let mut shard = self.shard_of_this_thread();
        let id = record.id().unwrap_or_else(|| shard.ids.next(record.at()));
        let is_full = self.open(&mut shard, record).push_copy(&id, record);
        self.close_if(is_full, shard);
        id
    }

    /// Whether a piece has events and is not closed.
    pub(crate) fn has_any(&self) -> bool {
        self.n_open.load(Ordering::SeqCst) > 0
    }

    /// Closes all pieces.
    pub(crate) fn close(&self) {
        if self.has_any() {
            for shard in &self.shards {
                self.close_if(true, self.lock(&shard.0));
            }
        }
    }

    fn shard_of_this_thread(&self) -> MutexGuard<'_, Shard> {
        let shard = thread_number() % self.shards.len();
        self.lock(&self.shards[shard].0)
    }

    fn lock<'s>(&self, shard: &'s Mutex<Shard>) -> MutexGuard<'s, Shard> {
        shard.lock().unwrap_or_else(|poisoned| {
            let mut held = poisoned.into_inner();
            // A part of an event would make the whole piece unreadable.
            if let Some(piece) = held.piece.take() {
                self.n_open.fetch_sub(1, Ordering::SeqCst);
                self.meters.not_retained.add(piece.n_events());
            }
            shard.clear_poison();
            held
        })
    }

    fn open<'s>(&self, shard: &'s mut Shard, record: &Record) -> &'s mut OpenPiece {
        shard.piece.get_or_insert_with(|| {
            self.n_open.fetch_add(1, Ordering::SeqCst);
            OpenPiece::new(record.at())
        })
    }

    fn close_if(&self, is_due: bool, mut shard: MutexGuard<'_, Shard>) {
        if is_due && let Some(piece) = shard.piece.take() {
            // The piece is queued before it counts as closed, because the flusher closes the queue once no piece is
            // open.
            self.queue.put(&self.meters, piece);
            self.n_open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use culvert_base::{SeededEntropy, Timestamp};
    use culvert_events::{Capture, TCP_CONNECTION_CLOSED};

    use super::*;

    #[test]
    fn a_panic_while_an_event_is_packed_damages_no_later_piece() {
        let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(7));
        let (queue, meters) = (Arc::<PieceQueue>::default(), Arc::<Meters>::default());
        let pieces = OpenPieces::new(&entropy, Arc::clone(&queue), Arc::clone(&meters));
        let keep = |second| {
            let mut record = Record::new(&TCP_CONNECTION_CLOSED, Capture::NONE, Arc::from("ac_1"));
            record.complete(Timestamp::from_unix_seconds(second));
            pieces.keep(record);
        };
        keep(1);
        keep(2);
        let packing = AssertUnwindSafe(|| {
            let _held = pieces.shard_of_this_thread();
            panic!("while an event is packed");
        });
        catch_unwind(packing).unwrap_err();
        keep(3);
        assert_eq!(meters.not_retained.get(), 2);
        pieces.close();
        assert!(!pieces.has_any());
        let (closed, n_events, _) = queue.take();
        assert_eq!((closed.len(), n_events), (1, 1));
        assert_eq!(closed[0].first_at, Timestamp::from_unix_seconds(3));
    }

    /// Events show their times in milliseconds, and searches are for such times.
    #[test]
    fn a_piece_begins_with_the_time_that_its_first_event_shows() {
        let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(7));
        let (queue, meters) = (Arc::<PieceQueue>::default(), Arc::<Meters>::default());
        let pieces = OpenPieces::new(&entropy, Arc::clone(&queue), Arc::clone(&meters));
        let mut record = Record::new(&TCP_CONNECTION_CLOSED, Capture::NONE, Arc::from("ac_1"));
        record.complete(Timestamp::from_unix_nanos(3_123_456_789));
        pieces.keep(record);
        pieces.close();
        let (closed, ..) = queue.take();
        assert_eq!(closed[0].first_at, Timestamp::from_unix_millis(3_123));
    }
}
