//! The unit of durable delivery: the content of a batch, and its form in the queue.
//!
//! A batch contains complete envelopes in order, and the subscription of each. In its plain form
//! the envelopes come first, as lines, so a target that writes lines uses one slice without parsing
//! it. An index follows, and its length comes last:
//!
//! ```text
//! lines: { envelope '\n' }*
//! index: u16 subscriptions, { u16 length, bytes }*, u32 events, { u32 line length, u16 subscription }*
//! u32 length of the index                      (all numbers little-endian)
//! ```
//!
//! It is stored plain, followed by the byte 1. If that is shorter, it is stored packed as one block of LZ4, followed by
//! the plain form's length (u32) and the byte 2.
//!
//! A reader trusts no stored number: each is checked against the bytes that follow. Not here: when a batch
//! is flushed (`recorder`, `dispatcher`) and how it is sent (`worker`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::batch::{BatchClass, Body};
use culvert_events::EventFormat;

/// The last byte of a stored batch.
const PLAIN: u8 = 1;
const PACKED: u8 = 2;
/// Maximum size of a batch that is packed, or of a packed batch that is read.
const PLAIN_BYTES_MAX: usize = 16 << 20;
/// Maximum compression ratio of LZ4: a byte expands to at most this many.
const PACKED_AT_BEST: usize = 255;
/// About how many times as long as its envelope an event is in another format: it contains the envelope.
pub(crate) const FORMAT_GROWTH: usize = 3;
/// The length of the plain form and the version.
const PACKED_END: usize = 5;

/// Maximum events and bytes of lines in one batch. One event always fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Events.
    pub events_max: u32,
    /// Bytes of envelopes with their line ends.
    pub bytes_max: usize,
}

impl BatchLimits {
    /// Limits of the recorder for targets that do not set lower ones.
    pub const DEFAULT: Self = Self {
        events_max: 500,
        bytes_max: 512 << 10,
    };
}

/// A batch being filled.
#[derive(Clone, Debug, Default)]
pub struct OpenBatch {
    body: Vec<u8>,
    entries: Vec<(u32, u16)>,
    subscriptions: Vec<Arc<str>>,
}

impl OpenBatch {
    /// An empty batch that is written into `buffer`.
    pub fn within(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self {
            body: buffer,
            ..Self::default()
        }
    }

    /// Whether another envelope of `length` bytes fits into `limits`.
    #[inline]
    fn fits(&self, length: usize, limits: BatchLimits) -> bool {
        self.entries.is_empty()
            || (self.len() < limits.events_max
                && self.body.len().saturating_add(length).saturating_add(1) <= limits.bytes_max
                && self.subscriptions.len() < usize::from(u16::MAX))
    }

    /// Appends an envelope without a line end, as [`Self::push`], if it fits into `limits`. `false` if it does not;
    /// then the batch is not empty.
    #[inline]
    pub fn push_within(
        &mut self,
        limits: BatchLimits,
        subscription: &Arc<str>,
        envelope: &[u8],
    ) -> bool {
        let fits = self.fits(envelope.len(), limits);
        if fits {
            self.push(subscription, envelope);
        }
        fits
    }

    /// Appends an envelope without a line end: the first one, or one of a batch of which this is a part.
    #[inline]
    pub fn push(&mut self, subscription: &Arc<str>, envelope: &[u8]) {
        debug_assert!(!envelope.contains(&b'\n'), "an envelope is one line");
        debug_assert!(
            event_id(envelope).is_some(),
            "an envelope begins with its id"
        );
        let index = self.place_of(subscription);
        self.body.extend_from_slice(envelope);
        self.body.push(b'\n');
        self.entries.push((
            u32::try_from(envelope.len()).expect("an envelope is at most 256 KiB"),
            index,
        ));
    }

    /// Whether all events of `other` fit.
    fn has_room_for(&self, other: &Self, limits: BatchLimits) -> bool {
        self.len().saturating_add(other.len()) <= limits.events_max
            && self.body.len().saturating_add(other.body.len()) <= limits.bytes_max
            && self.subscriptions.len() + other.subscriptions.len() < usize::from(u16::MAX)
    }

    /// Adds all events of `other`, if they fit into `limits`; `false` if they do not.
    pub fn join_within(&mut self, limits: BatchLimits, other: &Self) -> bool {
        if !self.has_room_for(other, limits) {
            return false;
        }
        let places: Vec<u16> = other
            .subscriptions
            .iter()
            .map(|subscription| self.place_of(subscription))
            .collect();
        self.body.extend_from_slice(&other.body);
        let moved = other.entries.iter();
        self.entries
            .extend(moved.map(|(length, at)| (*length, places[usize::from(*at)])));
        true
    }

    /// As [`Self::join_within`], for a batch that is copied only if it fits.
    pub fn join_batch_within(&mut self, limits: BatchLimits, other: &Batch) -> bool {
        let n_other = u32::try_from(other.len()).unwrap_or(u32::MAX);
        let may_fit = self.len().saturating_add(n_other) <= limits.events_max
            && self.body.len().saturating_add(other.lines_end) <= limits.bytes_max;
        may_fit && self.join_within(limits, &other.reopened())
    }

    #[inline]
    fn place_of(&mut self, subscription: &Arc<str>) -> u16 {
        let known = self
            .subscriptions
            .iter()
            .rposition(|known| Arc::ptr_eq(known, subscription) || known == subscription);
        let index = known.unwrap_or_else(|| {
            self.subscriptions.push(subscription.clone());
            self.subscriptions.len() - 1
        });
        u16::try_from(index).expect("fits() keeps the number of subscriptions below 65,535")
    }

    /// The subscriptions of its events, without duplicates.
    #[inline]
    pub fn subscriptions(&self) -> &[Arc<str>] {
        &self.subscriptions
    }

    /// Events so far.
    #[inline]
    pub fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Whether nothing was pushed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of lines so far.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The stored form.
    pub fn finish(self) -> Body {
        let bytes = u64::try_from(self.body.len()).unwrap_or(u64::MAX);
        let plain = self.plain();
        Body {
            stored: packed(&plain).unwrap_or_else(|| {
                let mut stored = plain;
                stored.push(PLAIN);
                stored
            }),
            bytes,
        }
    }

    /// The plain form, with capacity for the version byte.
    fn plain(self) -> Vec<u8> {
        let Self {
            mut body,
            entries,
            subscriptions,
        } = self;
        let index_at = body.len();
        let names: usize = subscriptions.iter().map(|name| name.len() + 2).sum();
        body.reserve_exact(2 + names + 4 + entries.len() * 6 + 5);
        let n_subscriptions = u16::try_from(subscriptions.len()).unwrap_or(u16::MAX);
        body.extend_from_slice(&n_subscriptions.to_le_bytes());
        for name in &subscriptions {
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(&name.as_bytes()[..usize::from(length)]);
        }
        let n_events = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        body.extend_from_slice(&n_events.to_le_bytes());
        for (length, subscription) in entries {
            body.extend_from_slice(&length.to_le_bytes());
            body.extend_from_slice(&subscription.to_le_bytes());
        }
        let index_length = u32::try_from(body.len() - index_at).unwrap_or(u32::MAX);
        body.extend_from_slice(&index_length.to_le_bytes());
        body
    }

    /// Converts it to a batch for a target, without encoding the stored form.
    pub fn batch(self, destination: Arc<str>, class: BatchClass) -> Batch {
        let mut end = 0;
        let entries = self.entries.iter().map(|(length, subscription)| {
            let start = end;
            end = start + *length as usize;
            let line = start..end;
            end += 1;
            BatchEntry {
                line,
                subscription: usize::from(*subscription),
            }
        });
        Batch {
            entries: entries.collect(),
            lines_end: self.body.len(),
            subscriptions: self.subscriptions.into(),
            body: self.body.into(),
            destination,
            class,
            formatted: None,
        }
    }
}

/// A batch in the form for targets. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Batch {
    destination: Arc<str>,
    class: BatchClass,
    body: Bytes,
    lines_end: usize,
    subscriptions: Arc<[Arc<str>]>,
    entries: Arc<[BatchEntry]>,
    formatted: Option<FormattedLines>,
}

/// The events of a batch in another format, as lines.
#[derive(Clone, Debug)]
struct FormattedLines {
    lines: Bytes,
    /// Each event without its line end.
    events: Arc<[Range<usize>]>,
}

#[derive(Clone, Debug)]
struct BatchEntry {
    line: Range<usize>,
    subscription: usize,
}

/// One event of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// `ev_…`, from the envelope.
    pub event_id: &'a str,
    /// The subscription it is for.
    pub subscription: &'a Arc<str>,
    /// The envelope, one line without its end.
    pub envelope: &'a [u8],
    /// The event in the format of its destination, one line, if that is another one.
    pub formatted: Option<&'a [u8]>,
}

impl<'a> Delivery<'a> {
    /// The event in the format of its destination, as targets send it.
    pub fn payload(&self) -> &'a [u8] {
        self.formatted.unwrap_or(self.envelope)
    }

    /// The key by which a receiver recognises a repetition: equal in every attempt and on every node.
    pub fn idempotency_key(&self) -> String {
        format!("{}:{}", self.event_id, self.subscription)
    }
}

/// The stored form of a batch cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored batch is malformed")]
pub struct Unreadable;

impl Batch {
    /// Reads the stored form.
    pub fn read(
        destination: Arc<str>,
        class: BatchClass,
        body: impl Into<Bytes>,
    ) -> Result<Self, Unreadable> {
        let mut body = body.into();
        let body = match body.split_last().ok_or(Unreadable)? {
            (&PLAIN, rest) => body.split_to(rest.len()),
            (&PACKED, rest) => decompressed(rest)?.into(),
            _ => return Err(Unreadable),
        };
        let rest = &body[..];
        let (rest, index_length) = rest.split_last_chunk::<4>().ok_or(Unreadable)?;
        let index_length =
            usize::try_from(u32::from_le_bytes(*index_length)).map_err(|_| Unreadable)?;
        let lines_end = rest.len().checked_sub(index_length).ok_or(Unreadable)?;
        let (lines, index) = rest.split_at(lines_end);
        let mut index = Reader(index);

        let n_subscriptions = usize::from(index.u16()?);
        let mut subscriptions = Vec::new();
        for _ in 0..n_subscriptions {
            let length = usize::from(index.u16()?);
            let name = std::str::from_utf8(index.take(length)?).map_err(|_| Unreadable)?;
            subscriptions.push(Arc::from(name));
        }
        let n_events = usize::try_from(index.u32()?).map_err(|_| Unreadable)?;
        if index.0.len() != n_events.checked_mul(6).ok_or(Unreadable)? {
            return Err(Unreadable);
        }
        let mut entries = Vec::with_capacity(n_events);
        let mut start = 0usize;
        for _ in 0..n_events {
            let length = usize::try_from(index.u32()?).map_err(|_| Unreadable)?;
            let subscription = usize::from(index.u16()?);
            let end = start.checked_add(length).ok_or(Unreadable)?;
            if lines.get(end) != Some(&b'\n') || subscription >= subscriptions.len() {
                return Err(Unreadable);
            }
            event_id(&lines[start..end]).ok_or(Unreadable)?;
            entries.push(BatchEntry {
                line: start..end,
                subscription,
            });
            start = end + 1;
        }
        if start != lines.len() {
            return Err(Unreadable);
        }
        Ok(Self {
            destination,
            class,
            lines_end,
            subscriptions: subscriptions.into(),
            entries: entries.into(),
            body,
            formatted: None,
        })
    }

    /// The same events, in this format too.
    ///
    /// # Errors
    /// If an envelope is not an event.
    pub(crate) fn formatted(&self, format: EventFormat) -> Result<Self, Unreadable> {
        let mut lines = Vec::with_capacity(self.lines_end * FORMAT_GROWTH);
        let mut events = Vec::with_capacity(self.len());
        for delivery in self.deliveries() {
            let start = lines.len();
            let envelope = std::str::from_utf8(delivery.envelope).map_err(|_| Unreadable)?;
            format.encode(envelope, &mut lines).ok_or(Unreadable)?;
            events.push(start..lines.len());
            lines.push(b'\n');
        }
        let formatted = FormattedLines {
            lines: lines.into(),
            events: events.into(),
        };
        Ok(Self {
            formatted: Some(formatted),
            ..self.clone()
        })
    }

    /// A batch that is not in the queue, for test events.
    pub fn of_one(
        destination: Arc<str>,
        class: BatchClass,
        envelope: &[u8],
    ) -> Result<Self, Unreadable> {
        let mut open = OpenBatch::default();
        open.push(&Arc::from("test"), envelope);
        Self::read(destination, class, open.finish().stored)
    }

    /// A batch of some of its events.
    pub fn part(&self, mut is_in: impl FnMut(usize) -> bool) -> Self {
        let mut part = OpenBatch::default();
        for (index, delivery) in self.deliveries().enumerate() {
            if is_in(index) {
                part.push(delivery.subscription, delivery.envelope);
            }
        }
        part.batch(Arc::clone(&self.destination), self.class)
    }

    /// The subscriptions and replays that its events are for.
    pub fn subscriptions(&self) -> &[Arc<str>] {
        &self.subscriptions
    }

    /// The destination it is for.
    pub fn destination(&self) -> &Arc<str> {
        &self.destination
    }

    /// Whether it contains audit or traffic events.
    pub fn class(&self) -> BatchClass {
        self.class
    }

    /// Events in it.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it contains no events.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The payloads, each followed by a line feed.
    pub fn lines(&self) -> Bytes {
        match &self.formatted {
            Some(formatted) => formatted.lines.clone(),
            None => self.body.slice(..self.lines_end),
        }
    }

    /// The events in order.
    pub fn deliveries(&self) -> impl ExactSizeIterator<Item = Delivery<'_>> + DoubleEndedIterator {
        let entries = self.entries.iter().enumerate();
        entries.map(|(index, entry)| self.delivery_of(index, entry))
    }

    /// The event at an index.
    pub fn delivery(&self, index: usize) -> Option<Delivery<'_>> {
        Some(self.delivery_of(index, self.entries.get(index)?))
    }

    fn delivery_of(&self, index: usize, entry: &BatchEntry) -> Delivery<'_> {
        let envelope = &self.body[entry.line.clone()];
        let formatted = self.formatted.as_ref();
        Delivery {
            event_id: event_id(envelope).expect("read() and push() found an id in every envelope"),
            subscription: &self.subscriptions[entry.subscription],
            envelope,
            formatted: formatted.map(|all| &all.lines[all.events[index].clone()]),
        }
    }

    /// The payloads as one JSON array.
    pub fn json_array(&self) -> Vec<u8> {
        let mut array = Vec::with_capacity(self.lines_end + 2);
        array.push(b'[');
        for (index, delivery) in self.deliveries().enumerate() {
            if index > 0 {
                array.push(b',');
            }
            array.extend_from_slice(delivery.payload());
        }
        array.push(b']');
        array
    }

    /// Copies all events into an open batch, to be stored again.
    pub fn reopened(&self) -> OpenBatch {
        self.only(|_| true).unwrap_or_default()
    }

    /// Its buffer, if no slice of it is shared.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        self.body.try_into_mut().ok().map(Vec::from)
    }

    /// The events for which `keep` returns true, as a new batch; `None` if there are none.
    pub fn only(&self, mut keep: impl FnMut(usize) -> bool) -> Option<OpenBatch> {
        let mut open = OpenBatch::default();
        for (index, delivery) in self.deliveries().enumerate() {
            if keep(index) {
                open.push(delivery.subscription, delivery.envelope);
            }
        }
        (!open.is_empty()).then_some(open)
    }

    /// Two halves in order; `None` for fewer than two events.
    pub fn halves(&self) -> Option<[OpenBatch; 2]> {
        let middle = self.len() / 2;
        Some([
            self.only(|index| index < middle)?,
            self.only(|index| index >= middle)?,
        ])
    }

    /// The first event alone and all others, in order; `None` for fewer than two events.
    pub fn first_and_rest(&self) -> Option<[OpenBatch; 2]> {
        Some([
            self.only(|index| index == 0)?,
            self.only(|index| index > 0)?,
        ])
    }
}

/// The id in an envelope: it is the first key, by contract (events 1).
pub fn event_id(envelope: &[u8]) -> Option<&str> {
    let rest = envelope.strip_prefix(br#"{"event_id":""#)?;
    let end = rest.iter().take(80).position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

/// The compressed form of `plain`; `None` if that is not shorter.
pub fn packed(plain: &[u8]) -> Option<Vec<u8>> {
    compressed(plain, PACKED)
}

/// The packed form, a block of LZ4, if it is shorter, followed by its length and a version.
pub fn compressed(plain: &[u8], version: u8) -> Option<Vec<u8>> {
    let length = u32::try_from(plain.len()).ok()?;
    if plain.len() > PLAIN_BYTES_MAX {
        return None;
    }
    let mut stored = lz4_flex::block::compress(plain);
    if stored.len() + PACKED_END > plain.len() {
        return None;
    }
    stored.extend_from_slice(&length.to_le_bytes());
    stored.push(version);
    // It may wait in memory until it is written.
    stored.shrink_to_fit();
    Some(stored)
}

/// Decompresses a stored batch without its version. Allocates at most the maximum size of the plain form, and at most
/// the size to which this many bytes can expand.
pub fn decompressed(rest: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let (block, length) = rest.split_last_chunk::<4>().ok_or(Unreadable)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Unreadable)?;
    let at_most = PLAIN_BYTES_MAX.min(block.len().saturating_mul(PACKED_AT_BEST));
    if length > at_most {
        return Err(Unreadable);
    }
    let mut plain = vec![0; length];
    match lz4_flex::block::decompress_into(block, &mut plain) {
        Ok(n) if n == length => Ok(plain),
        _ => Err(Unreadable),
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Unreadable)?;
        self.0 = rest;
        Ok(u16::from_le_bytes(*number))
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Unreadable)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn envelope(id: usize, filling: usize) -> Vec<u8> {
        format!(
            r#"{{"event_id":"ev_{id}","object":"{}"}}"#,
            "x".repeat(filling)
        )
        .into_bytes()
    }

    fn read(open: OpenBatch) -> Batch {
        Batch::read("ed_1".into(), BatchClass::Traffic, open.finish().stored).unwrap()
    }

    fn ids(batch: &Batch) -> Vec<String> {
        batch.deliveries().map(|d| d.idempotency_key()).collect()
    }

    #[test]
    fn a_batch_is_compressed_if_shorter_and_counts_its_uncompressed_size() {
        let mut open = OpenBatch::default();
        for id in 0..100 {
            open.push(&"esb_1".into(), &envelope(id, 200));
        }
        let (lines, plain) = (open.bytes(), open.clone().plain());
        let body = open.finish();
        assert_eq!(body.bytes, lines as u64);
        assert_eq!(body.stored.last(), Some(&PACKED));
        assert!(5 * body.stored.len() < plain.len(), "{}", body.stored.len());
        // As the previous format stored it.
        let stored = [&plain[..], &[PLAIN]].concat();
        let read = |stored| Batch::read("ed_1".into(), BatchClass::Traffic, stored);
        let (before, now) = (read(stored).unwrap(), read(body.stored).unwrap());
        assert_eq!(before.lines(), now.lines());
        assert_eq!(ids(&before), ids(&now));
        let mut short = OpenBatch::default();
        short.push(&"e".into(), br#"{"event_id":"0123456789"}"#);
        assert_eq!(short.finish().stored.last(), Some(&PLAIN));
    }

    #[test]
    fn the_memory_of_a_compressed_batch_is_limited() {
        let claims = |length: u32| [&[0x1f, b'x', 1, 0, 0][..], &length.to_le_bytes()].concat();
        for length in [5 * 255 + 1, (16 << 20) + 1, u32::MAX] {
            assert_eq!(decompressed(&claims(length)), Err(Unreadable));
        }
        // More or fewer bytes than the stored length.
        assert_eq!(decompressed(&claims(3)), Err(Unreadable));
        assert_eq!(decompressed(&claims(1000)), Err(Unreadable));
    }

    #[test]
    fn a_batch_is_read_back_as_filled() {
        let (a, b): (Arc<str>, Arc<str>) = ("esb_a".into(), "esb_b".into());
        let mut open = OpenBatch::default();
        open.push(&a, &envelope(1, 0));
        open.push(&b, &envelope(1, 3));
        open.push(&a, &envelope(2, 1));
        let batch = read(open);
        assert_eq!(ids(&batch), ["ev_1:esb_a", "ev_1:esb_b", "ev_2:esb_a"]);
        assert_eq!(
            std::str::from_utf8(&batch.json_array()).unwrap(),
            r#"[{"event_id":"ev_1","object":""},{"event_id":"ev_1","object":"xxx"},{"event_id":"ev_2","object":"x"}]"#
        );
        assert_eq!(batch.lines().iter().filter(|b| **b == b'\n').count(), 3);
    }

    /// Fills batches in the same way as the recorder.
    fn pack(sizes: &[usize], limits: BatchLimits) -> Vec<OpenBatch> {
        let subscription: Arc<str> = "esb_1".into();
        let mut done = Vec::new();
        let mut open = OpenBatch::default();
        for (id, size) in sizes.iter().enumerate() {
            let envelope = envelope(id, *size);
            if !open.push_within(limits, &subscription, &envelope) {
                done.push(std::mem::take(&mut open));
                open.push(&subscription, &envelope);
            }
        }
        if !open.is_empty() {
            done.push(open);
        }
        done
    }

    #[test]
    fn joined_batches_read_as_one() {
        let (a, b): (Arc<str>, Arc<str>) = ("esb_a".into(), "esb_b".into());
        let mut first = OpenBatch::default();
        first.push(&a, &envelope(1, 0));
        first.push(&b, &envelope(2, 5));
        let mut second = OpenBatch::default();
        second.push(&b, &envelope(3, 1));
        second.push(&a, &envelope(4, 0));
        let limits = |events_max| BatchLimits {
            events_max,
            bytes_max: 1000,
        };
        assert!(!first.join_within(limits(3), &second));
        assert_eq!(first.len(), 2);
        assert!(first.join_within(limits(4), &second));
        let batch = first.batch("ed_1".into(), BatchClass::Traffic);
        let wanted = ["ev_1:esb_a", "ev_2:esb_b", "ev_3:esb_b", "ev_4:esb_a"];
        assert_eq!(ids(&batch), wanted);
        let stored = read(batch.reopened());
        assert_eq!(ids(&stored), wanted);
        assert_eq!(stored.lines(), batch.lines());
        assert!(batch.into_buffer().is_some());
    }

    proptest! {
        #[test]
        fn compression_and_splitting_keep_events_order_and_limits(
            sizes in proptest::collection::vec(0usize..600, 0..120),
            events_max in 1u32..40,
            bytes_max in 50usize..2000,
        ) {
            let limits = BatchLimits { events_max, bytes_max };
            let mut seen = Vec::new();
            for open in pack(&sizes, limits) {
                prop_assert!(open.len() == 1 || (open.len() <= events_max && open.bytes() <= bytes_max));
                // Splits down to single events, as for a destination that refuses every batch.
                let mut stack = vec![read(open)];
                while let Some(batch) = stack.pop() {
                    match batch.halves() {
                        Some([first, second]) => {
                            prop_assert_eq!((first.len() + second.len()) as usize, batch.len());
                            stack.push(read(second));
                            stack.push(read(first));
                        }
                        None => seen.extend(ids(&batch)),
                    }
                }
            }
            let wanted: Vec<String> = (0..sizes.len()).map(|id| format!("ev_{id}:esb_1")).collect();
            prop_assert_eq!(seen, wanted);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(
            mut body in proptest::collection::vec(any::<u8>(), 0..200),
            version in PLAIN..=PACKED,
        ) {
            body.push(version);
            Batch::read("ed_1".into(), BatchClass::Audit, body).ok();
        }

        #[test]
        fn any_compressed_bytes_are_parsed_or_refused(plain in proptest::collection::vec(0u8..3, 0..2000)) {
            if let Some(mut stored) = packed(&plain) {
                stored.pop();
                prop_assert_eq!(decompressed(&stored), Ok(plain));
                stored.push(PACKED);
                Batch::read("ed_1".into(), BatchClass::Audit, stored).ok();
            }
        }

        #[test]
        fn a_damaged_batch_is_refused_or_complete(at: prop::sample::Index, to: u8, is_packed: bool) {
            let mut open = OpenBatch::default();
            for id in 0..5 {
                open.push(&"esb_1".into(), &envelope(id, 100 * id));
            }
            let mut body = match is_packed {
                true => open.finish().stored,
                false => [open.plain(), vec![PLAIN]].concat(),
            };
            let at = at.index(body.len());
            body[at] = to;
            if let Ok(batch) = Batch::read("ed_1".into(), BatchClass::Audit, body) {
                prop_assert_eq!(batch.deliveries().count(), batch.len());
            }
        }
    }
}
