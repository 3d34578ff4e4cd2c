//! This node's hold on the batches that wait in the stream for one destination.
//!
//! The consumer delivers the first message of a destination, the head, to one node at a time. The
//! node that has the head holds the destination's lease. It keeps the head until the batch is
//! settled: it extends the acknowledgement deadline while it sends the batch and while it waits for
//! the next attempt. If the node dies, the server delivers the head to another node when the
//! deadline passes.
//!
//! A batch that is written to the stream while it is being sent (`direct`) is not a head. Its
//! message says which node sends it and until when other nodes must leave it alone; it is deleted
//! by its sequence number.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use culvert_base::Timestamp;
use culvert_base::text::hex;
use culvert_store::{BatchClass, Gathering, Lease, NewBatch, Run};
use culvert_target::batch::BatchLimits;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::held::Slot;
use super::outstanding::StreamState;
use super::stream::{NewMessage, Pulled, Stream, StreamError};

const FIRST_AT: &str = "Culvert-First";
const ATTEMPTS: &str = "Culvert-Attempts";
const DUE_AT: &str = "Culvert-Due";
const CLAIMED_UNTIL: &str = "Culvert-Claimed";
const CLAIMED_BY: &str = "Culvert-Claimed-By";
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// Acknowledgements of a pulled message.
const ACK: &[u8] = b"+ACK";
pub(super) const NAK: &[u8] = b"-NAK";
const MORE_TIME: &[u8] = b"+WPI";

/// Number of settled heads that are remembered, in case the server lost their acknowledgements and
/// delivers them again.
const SETTLED_MAX: usize = 64;
/// How often to check whether a batch that another node sends is still in the stream.
const CLAIM_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most batches of a run.
const RUN_MAX: usize = 8192;

/// The facts about a batch that its message's headers contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) first_at: Timestamp,
    /// Attempts before it was stored.
    pub(super) attempts: u32,
    pub(super) due_at: Option<Timestamp>,
    pub(super) claimed_until: Option<Timestamp>,
}

impl Facts {
    pub(super) fn new(first_at: Timestamp) -> Self {
        Self {
            first_at,
            attempts: 0,
            due_at: None,
            claimed_until: None,
        }
    }

    /// A message for `batch`. The message ID is a hash, so an append that is repeated is stored
    /// once. A batch that is stored again after attempts, without a claim, gets another ID.
    pub(super) fn message(self, batch: NewBatch) -> NewMessage {
        let mut hash = Sha256::new();
        hash.update(&batch.destination);
        hash.update(&batch.body.stored);
        let is_again = self.attempts > 0 && self.claimed_until.is_none();
        hash.update([u8::from(is_again)]);
        let id = hex(&hash.finalize()[..16]);
        let mut headers = HeaderMap::new();
        headers.insert(MESSAGE_ID, id);
        let numbers = [
            (FIRST_AT, Some(self.first_at.unix_nanos())),
            (
                ATTEMPTS,
                (self.attempts > 0).then_some(self.attempts.into()),
            ),
            (DUE_AT, self.due_at.map(Timestamp::unix_nanos)),
            (CLAIMED_UNTIL, self.claimed_until.map(Timestamp::unix_nanos)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                headers.insert(name, number.to_string());
            }
        }
        NewMessage {
            destination: batch.destination,
            events: batch.count,
            bytes: batch.body.bytes,
            headers,
            body: batch.body.stored.into(),
        }
    }

    /// Like [`Self::message`], for a batch that `owner` is sending.
    pub(super) fn claimed(self, batch: NewBatch, owner: &str) -> NewMessage {
        let mut message = self.message(batch);
        message.headers.insert(CLAIMED_BY, owner);
        message
    }

    fn read(headers: &HeaderMap, now: Timestamp) -> Self {
        let number = |name: &str| headers.get(name)?.as_str().parse::<i64>().ok();
        let at = |name: &str| number(name).map(Timestamp::from_unix_nanos);
        Self {
            first_at: at(FIRST_AT).unwrap_or(now),
            attempts: number(ATTEMPTS)
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(0),
            due_at: at(DUE_AT),
            claimed_until: at(CLAIMED_UNTIL),
        }
    }

    /// From when any node that has the message may send it.
    fn free_at(&self) -> Option<Timestamp> {
        self.due_at.max(self.claimed_until)
    }
}

/// Sequence number and storage time of a message. They identify it even if the stream was deleted
/// and made again.
type Mark = (u64, i128);

/// The destination's first message, when the consumer delivered it to this node.
#[derive(Debug)]
struct Head {
    reply: String,
    mark: Mark,
    count: u32,
    facts: Facts,
    /// The node that was sending it when it was stored.
    claimed_by: Option<String>,
    /// Attempt number of the next lease.
    attempt: u32,
    due_at: Timestamp,
    /// Fence and end of the current lease, if it is leased.
    lease: Option<(i64, Timestamp)>,
    /// When the message was pulled or its deadline last extended.
    kept_at: Instant,
    bytes: u64,
    /// Present until the first lease. Later leases read it from the stream, so a waiting batch uses
    /// no memory.
    body: Option<Bytes>,
    /// It was delivered, but the acknowledgement has not reached the server.
    is_done: bool,
}

/// A message that this node sends although the consumer did not deliver it.
#[derive(Debug)]
struct OwnedMessage {
    fence: i64,
    sequence: u64,
    until: Instant,
    facts: Facts,
}

/// The lease state of one destination.
#[derive(Debug, Default)]
pub(super) struct ConsumerLease {
    has_consumer: bool,
    /// Where the file of held messages records the head.
    slot: Option<Slot>,
    head: Option<Head>,
    claims: Vec<OwnedMessage>,
    settled: VecDeque<Mark>,
    /// Fence and identity of the head that was lost last.
    lost: Option<(i64, Mark)>,
    /// Settled messages whose deletion failed.
    unwanted: Vec<u64>,
    /// The first head that was not in the stream any more although no node had settled it.
    vanished: Option<Mark>,
    /// Messages up to this sequence number are due immediately.
    hastened_to: u64,
    /// The last fence. Fences count down from zero.
    fences: i64,
}

/// Whether the stream gave this lease. Its fences are negative; those of the database are positive.
pub(super) fn is_of_stream(lease: &Lease) -> bool {
    lease.fence < 0
}

fn sequence_of(lease: &Lease) -> u64 {
    lease.batch.unsigned_abs()
}

impl ConsumerLease {
    fn fence(&mut self) -> i64 {
        self.fences -= 1;
        self.fences
    }

    /// Leases the head if it is due. `has_more` says whether a pull may find a message; the call
    /// updates it.
    pub(super) async fn lease(
        &mut self,
        stream: &Stream,
        (destination, owner): (&str, &str),
        lease_for: Duration,
        now: Timestamp,
        has_more: &mut bool,
    ) -> Result<Option<Lease>, StreamError> {
        let request = (destination, owner);
        loop {
            if !self.take_head(stream, request, now, has_more).await? {
                return Ok(None);
            }
            let fence = self.fence();
            let Some(head) = &mut self.head else {
                return Ok(None);
            };
            let body = match head.body.take() {
                Some(body) => Some(body),
                None => stream
                    .get(head.mark.0)
                    .await?
                    .map(|message| message.payload),
            };
            let Some(body) = body else {
                // The node that sent it settled it, or the stream lost it.
                if head.facts.claimed_until.is_none() {
                    self.vanished.get_or_insert(head.mark);
                }
                self.done(stream).await;
                *has_more = true;
                continue;
            };
            head.lease = Some((fence, now.plus(lease_for)));
            let lease = Lease {
                batch: i64::try_from(head.mark.0).unwrap_or(i64::MAX),
                destination: destination.to_owned(),
                class: BatchClass::Traffic,
                count: head.count,
                body: body.into(),
                attempt: head.attempt,
                first_at: head.facts.first_at,
                fence,
                why: None,
            };
            head.attempt = head.attempt.saturating_add(1);
            return Ok(Some(lease));
        }
    }

    /// Leases the head if it is due, with as many batches behind it as fit into one send. All of
    /// these leases are valid as long as that of the head.
    pub(super) async fn lease_several(
        &mut self,
        stream: &Stream,
        (destination, owner): (&str, &str),
        lease_for: Duration,
        now: Timestamp,
        send: BatchLimits,
        has_more: &mut bool,
    ) -> Result<Vec<Lease>, StreamError> {
        let request = (destination, owner);
        let first = self
            .lease(stream, request, lease_for, now, has_more)
            .await?;
        let (Some(first), Some(head)) = (first, &self.head) else {
            return Ok(Vec::new());
        };
        let (mut events, mut bytes) = (first.count, head.bytes);
        let bytes_max = u64::try_from(send.bytes_max).unwrap_or(u64::MAX);
        let (fence, mut after) = (first.fence, head.mark.0);
        let mut leases = vec![first];
        while events < send.events_max && bytes < bytes_max {
            // If the next message cannot be read, it is left for a later lease.
            let Ok(Some(next)) = stream.next(destination, after + 1).await else {
                break;
            };
            after = next.sequence;
            let (count, size) = stream.counts_of(&next.subject);
            events = events.saturating_add(count);
            bytes = bytes.saturating_add(size);
            let facts = Facts::read(&next.headers, now);
            let is_free = self.is_free(after, facts, now);
            if events > send.events_max || bytes > bytes_max || !is_free {
                break;
            }
            leases.push(Lease {
                batch: i64::try_from(after).unwrap_or(i64::MAX),
                destination: destination.to_owned(),
                class: BatchClass::Traffic,
                count,
                body: next.payload.into(),
                attempt: facts.attempts.saturating_add(1),
                first_at: facts.first_at,
                fence,
                why: None,
            });
        }
        Ok(leases)
    }

    /// Whether a message behind the head may be sent with it.
    fn is_free(&self, sequence: u64, facts: Facts, now: Timestamp) -> bool {
        facts.free_at().is_none_or(|at| at <= now) && !self.unwanted.contains(&sequence)
    }

    /// Whether this node has the head, and the head is due and not leased. Pulls a head if there is
    /// none.
    async fn take_head(
        &mut self,
        stream: &Stream,
        (destination, owner): (&str, &str),
        now: Timestamp,
        has_more: &mut bool,
    ) -> Result<bool, StreamError> {
        loop {
            if let Some(head) = &mut self.head {
                if head.kept_at.elapsed() >= stream.lease {
                    // The deadline has passed, so another node may have it.
                    self.lose_head();
                    *has_more = true;
                    continue;
                }
                if head.is_done {
                    self.done(stream).await;
                    if self.head.is_some() {
                        // The server did not receive the acknowledgement.
                        return Ok(false);
                    }
                    continue;
                }
                if head.lease.is_some_and(|(_, until)| now < until) || now < head.due_at {
                    return Ok(false);
                }
                let Some(until) = head.facts.claimed_until.filter(|until| now < *until) else {
                    return Ok(true);
                };
                let sequence = head.mark.0;
                let is_sent_here = self.claims.iter().any(|claim| claim.sequence == sequence);
                if head.claimed_by.as_deref() == Some(owner) && !is_sent_here {
                    // This node was sending it before a restart.
                    return Ok(true);
                }
                if stream.get(head.mark.0).await?.is_some() {
                    head.due_at = until.min(now.plus(CLAIM_LOOK_EVERY));
                    return Ok(false);
                }
                self.done(stream).await;
                *has_more = true;
                continue;
            }
            if !std::mem::take(has_more) {
                return Ok(false);
            }
            if !self.has_consumer {
                stream.make_consumer(destination).await?;
                self.has_consumer = true;
            }
            let asked_at = Instant::now();
            let pulled = match stream.pull(destination).await {
                Ok(pulled) => pulled,
                Err(error) => {
                    self.has_consumer = false;
                    *has_more = true;
                    return Err(error);
                }
            };
            let Some(pulled) = pulled else {
                return Ok(false);
            };
            *has_more = pulled.has_more;
            self.head = Some(self.head_of(pulled, asked_at, now));
            self.note_head(stream, now).await;
        }
    }

    /// Records in the file that this node has the head since `now`, so that the node can return it
    /// after a restart.
    async fn note_head(&mut self, stream: &Stream, now: Timestamp) {
        let (Some(head), Some(held)) = (&self.head, stream.held()) else {
            return;
        };
        let slot = *self.slot.get_or_insert_with(|| held.slot());
        held.note(slot, &head.reply, now.plus(stream.lease)).await;
    }

    fn head_of(&self, pulled: Pulled, kept_at: Instant, now: Timestamp) -> Head {
        let facts = Facts::read(&pulled.headers, now);
        let mark = (pulled.sequence, pulled.stored_at);
        let due_at = match pulled.sequence <= self.hastened_to {
            true => now,
            false => facts.due_at.unwrap_or(now),
        };
        Head {
            reply: pulled.reply,
            mark,
            count: pulled.events,
            facts,
            claimed_by: pulled
                .headers
                .get(CLAIMED_BY)
                .map(|owner| owner.as_str().to_owned()),
            attempt: facts.attempts.saturating_add(pulled.delivered),
            due_at,
            lease: None,
            kept_at,
            bytes: pulled.bytes,
            // If another node is sending it, the body is read once that claim has ended.
            body: facts.claimed_until.is_none().then_some(pulled.body),
            is_done: self.settled.contains(&mark),
        }
    }

    /// Acknowledges the head. If the server is unreachable, the acknowledgement is repeated later.
    /// If the server delivers the message again before that, this node recognises it and does not
    /// send it.
    async fn done(&mut self, stream: &Stream) {
        let Some(head) = &mut self.head else {
            return;
        };
        if !std::mem::replace(&mut head.is_done, true) {
            remember(&mut self.settled, head.mark);
        }
        match stream.acknowledge(&head.reply, ACK).await {
            Ok(()) | Err(StreamError::Gone) => self.head = None,
            Err(error) => {
                tracing::debug!(%error, "an acknowledgement waits");
            }
        }
    }

    /// Leases several batches from the head on, without their bodies.
    pub(super) async fn lease_run(
        &mut self,
        stream: &Stream,
        (destination, owner): (&str, &str),
        lease_for: Duration,
        now: Timestamp,
        gathering: Gathering,
        has_more: &mut bool,
    ) -> Result<Run, StreamError> {
        let request = (destination, owner);
        if !self.take_head(stream, request, now, has_more).await? {
            return Ok(Run {
                leases: Vec::new(),
                next_at: self.next_due(),
            });
        }
        let Some(head) = &mut self.head else {
            return Ok(Run::default());
        };
        head.body = None;
        let (attempt, first_at) = (head.attempt, head.facts.first_at);
        let old_at = match attempt {
            0 | 1 => first_at.plus(gathering.age_max),
            _ => now,
        };
        let mut sizes = vec![(head.mark.0, head.count)];
        let mut bytes = head.bytes;
        if now < old_at {
            let waiting = stream.waiting(Some(destination)).await?;
            let waiting = waiting.get(destination).copied().unwrap_or_default();
            if waiting.bytes < gathering.bytes_max {
                return Ok(Run {
                    leases: Vec::new(),
                    next_at: Some(old_at),
                });
            }
        }
        let mut is_full = bytes >= gathering.bytes_max;
        while !is_full && sizes.len() < RUN_MAX {
            let after = sizes.last().map_or(0, |(sequence, _)| sequence + 1);
            let Some(next) = stream.next(destination, after).await? else {
                break;
            };
            let (events, size) = stream.counts_of(&next.subject);
            let facts = Facts::read(&next.headers, now);
            is_full = size.saturating_add(bytes) > gathering.bytes_max;
            if is_full || !self.is_free(next.sequence, facts, now) {
                break;
            }
            bytes += size;
            sizes.push((next.sequence, events));
        }
        if now < old_at && !is_full && sizes.len() < RUN_MAX {
            return Ok(Run {
                leases: Vec::new(),
                next_at: Some(old_at),
            });
        }
        let fence = self.fence();
        if let Some(head) = &mut self.head {
            head.lease = Some((fence, now.plus(lease_for)));
            head.attempt = head.attempt.saturating_add(1);
        }
        let leases = sizes.into_iter().map(|(sequence, count)| Lease {
            batch: i64::try_from(sequence).unwrap_or(i64::MAX),
            destination: destination.to_owned(),
            class: BatchClass::Traffic,
            count,
            body: Vec::new(),
            attempt,
            first_at,
            fence,
            why: None,
        });
        Ok(Run {
            leases: leases.collect(),
            next_at: None,
        })
    }

    /// Records the lease of a batch that this node is already sending. Returns its fence.
    pub(super) fn claim(&mut self, sequence: u64, facts: Facts, lease_for: Duration) -> i64 {
        let fence = self.fence();
        self.claims.retain(|claim| Instant::now() < claim.until);
        self.claims.push(OwnedMessage {
            fence,
            sequence,
            until: Instant::now() + lease_for,
            facts,
        });
        fence
    }

    /// The facts about a lease's batch; `None` if the lease has ended.
    pub(super) fn held(&self, stream: &Stream, lease: &Lease) -> Option<Facts> {
        let of_head = self.head.as_ref().filter(|head| {
            head.lease.is_some_and(|(fence, _)| fence == lease.fence)
                && !head.is_done
                && head.kept_at.elapsed() < stream.lease
        });
        let of_claim = self
            .claims
            .iter()
            .find(|claim| claim.fence == lease.fence && Instant::now() < claim.until);
        of_head
            .map(|head| head.facts)
            .or(of_claim.map(|claim| claim.facts))
    }

    /// Removes the batch of a lease that is still held. If that fails, the removal is repeated
    /// later.
    pub(super) async fn remove(&mut self, stream: &Stream, lease: &Lease) {
        let sequence = sequence_of(lease);
        self.claims.retain(|claim| claim.fence != lease.fence);
        let is_head = self
            .head
            .as_ref()
            .is_some_and(|head| head.mark.0 == sequence);
        if is_head {
            self.done(stream).await;
            return;
        }
        if let Err(error) = stream.delete(sequence).await {
            tracing::debug!(%error, "acknowledging a settled batch failed");
            if self.unwanted.len() < RUN_MAX {
                self.unwanted.push(sequence);
            }
        }
    }

    /// Notes that a batch was delivered although its lease had ended. If this node receives it
    /// again, it is not sent again.
    pub(super) async fn late(&mut self, stream: &Stream, lease: &Lease) {
        let is_ours = |head: &Head| head.lease.is_some_and(|(fence, _)| fence == lease.fence);
        if self.head.as_ref().is_some_and(is_ours) {
            self.done(stream).await;
        } else if let Some((_, mark)) = self.lost.take_if(|(fence, _)| *fence == lease.fence) {
            remember(&mut self.settled, mark);
        }
    }

    fn lose_head(&mut self) {
        let lost = self.head.take();
        self.lost = lost.and_then(|head| Some((head.lease?.0, head.mark)));
    }

    /// Whether the lease is valid only because the head's is.
    pub(super) fn is_behind_head(&self, lease: &Lease) -> bool {
        let has_fence = |head: &Head| head.lease.is_some_and(|(fence, _)| fence == lease.fence);
        let head = self.head.as_ref().filter(|head| has_fence(head));
        head.is_some_and(|head| head.mark.0 != sequence_of(lease))
    }

    /// Postpones the leased head until `at`. Returns false if the batch is not the head.
    pub(super) fn put_off(&mut self, lease: &Lease, at: Timestamp) -> bool {
        let fence = lease.fence;
        let of_head = self.head.as_mut().filter(|head| {
            head.lease.is_some_and(|(held, _)| held == fence)
                && !self.claims.iter().any(|claim| claim.fence == fence)
        });
        let Some(head) = of_head else {
            return false;
        };
        head.due_at = at;
        head.lease = None;
        true
    }

    /// Whether batches of the destination are being sent, so that their messages may end at any moment.
    pub(super) fn is_sending(&self, now: Timestamp) -> bool {
        let head = self.head.as_ref();
        head.is_some_and(|head| head.lease.is_some_and(|(_, until)| now < until))
    }

    /// The head, if this node alone may settle it and has not.
    fn unsettled_head(&self, stream: &Stream) -> Option<Mark> {
        let is_unsettled = |head: &&Head| {
            !head.is_done
                && head.facts.claimed_until.is_none()
                && head.kept_at.elapsed() < stream.lease
        };
        let head = self.head.as_ref().filter(is_unsettled);
        head.map(|head| head.mark)
    }

    /// Whether [`Self::take_lost`] may find a loss.
    pub(super) fn may_prove_loss(&self, stream: &Stream) -> bool {
        self.vanished.is_some() || self.unsettled_head(stream).is_some()
    }

    /// The messages of the destination that the stream lost while this node alone could settle them.
    pub(super) async fn take_lost(
        &mut self,
        stream: &Stream,
        destination: &str,
        state: &StreamState,
    ) -> Result<Option<Range<u64>>, StreamError> {
        // A message of a stream before this one, of the same name, proves nothing about this one.
        let of_this = |(sequence, stored_at): Mark| {
            (stored_at >= i128::from(state.created)).then_some(sequence)
        };
        let head = self.unsettled_head(stream).and_then(of_this);
        let vanished = self.vanished.and_then(of_this);
        let Some(from) = vanished.into_iter().chain(head).min() else {
            self.vanished = None;
            return Ok(None);
        };
        let next = stream.next(destination, from).await?;
        let next = next.map_or(state.last.saturating_add(1), |next| next.sequence);
        self.vanished = None;
        if head.is_some_and(|head| head < next) {
            // The consumer delivers the next one.
            self.done(stream).await;
        }
        Ok((from < next).then_some(from..next))
    }

    /// When the head may be leased; `None` if this node has no head.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let head = self.head.as_ref()?;
        Some(match head.lease {
            Some((_, until)) => until.max(head.due_at),
            None => head.due_at,
        })
    }

    pub(super) fn hasten(&mut self, now: Timestamp, to: u64) {
        self.hastened_to = to;
        if let Some(head) = &mut self.head
            && head.facts.claimed_until.is_none_or(|until| until <= now)
        {
            head.due_at = head.due_at.min(now);
        }
    }

    /// Extends the head's deadline, and repeats acknowledgements and deletions that failed.
    pub(super) async fn keep(&mut self, stream: &Stream, now: Timestamp) {
        while let Some(sequence) = self.unwanted.last() {
            if stream.delete(*sequence).await.is_err() {
                break;
            }
            self.unwanted.pop();
        }
        let Some(head) = &mut self.head else {
            return;
        };
        let asked_at = Instant::now();
        match stream.acknowledge(&head.reply, MORE_TIME).await {
            Ok(()) => {
                head.kept_at = asked_at;
                self.note_head(stream, now).await;
            }
            Err(StreamError::Gone) => {
                self.has_consumer = false;
                self.lose_head();
            }
            // The head stays with this node until its deadline.
            Err(_) => {}
        }
    }

    /// Returns the head, so that the server delivers it to another node.
    pub(super) async fn give_back(&mut self, stream: &Stream) {
        if let Some(head) = self.head.take() {
            let how = if head.is_done { ACK } else { NAK };
            if let Err(error) = stream.acknowledge(&head.reply, how).await {
                tracing::debug!(%error, "releasing a batch failed; it is released when its lease expires");
            }
        }
    }
}

fn remember(settled: &mut VecDeque<Mark>, mark: Mark) {
    if settled.len() >= SETTLED_MAX {
        settled.pop_front();
    }
    settled.push_back(mark);
}
