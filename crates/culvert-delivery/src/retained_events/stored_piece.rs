//! The stored form of a piece of the traffic log.
//!
//! A piece is a sequence of segments (`culvert_events::unpack`), each after its length (u32, little-endian). It is
//! stored plain, followed by the byte 3. If that is shorter, it is stored as one block of LZ4, followed by the length
//! of the plain form (u32) and the byte 4. The events of all segments together are in the order of their times. Pieces
//! of older versions have the form of a batch, with the endpoint of an event in place of its subscription.
//!
//! Not here: when a piece is complete (`retained_pieces`), and which of its events match.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use culvert_base::Timestamp;
use culvert_events::{EventKind, Record, Retained, Selection, Unpacked, encode, unpack};
use culvert_store::BatchClass;
use culvert_target::batch::{Batch, Delivery, compressed, decompressed};
use serde::Deserialize;

use crate::retained_events::retained_pieces;

/// The last byte of a stored piece.
const PLAIN: u8 = 3;
const PACKED: u8 = 4;
/// Maximum bytes of the values of a piece. `retained_pieces` writes far smaller pieces.
const VALUE_BYTES_MAX: usize = 16 << 20;

/// Adds a segment to a body.
pub(crate) fn push_segment(body: &mut Vec<u8>, segment: &[u8]) {
    let length = u32::try_from(segment.len()).unwrap_or(0);
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(&segment[..length as usize]);
}

/// The segments of a body.
pub(crate) fn segments(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (segment, behind) = behind.split_at_checked(length)?;
        rest = behind;
        Some(segment)
    })
}

/// The stored form of a body.
pub(crate) fn stored(body: Vec<u8>) -> Vec<u8> {
    compressed(&body, PACKED).unwrap_or_else(|| {
        let mut plain = body;
        plain.push(PLAIN);
        plain
    })
}

/// A piece that was read.
#[derive(Debug)]
pub(crate) enum StoredPiece {
    /// The form of older versions.
    Lines(Batch),
    Records(Vec<Unpacked>),
}

/// An event of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredEvent<'a> {
    Line(Delivery<'a>),
    Record(&'a Unpacked),
}

/// The part that is examined first, without the rest of the event.
#[derive(Debug, Deserialize)]
pub(crate) struct Head<'a> {
    #[serde(borrow)]
    pub(crate) event_type: Cow<'a, str>,
    #[serde(borrow)]
    event_timestamp: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) account_id: Cow<'a, str>,
}

impl StoredPiece {
    /// Reads the stored form; `None` if it is malformed.
    pub(crate) fn read(stored: Vec<u8>) -> Option<Self> {
        let body: Cow<'_, [u8]> = match stored.split_last()? {
            (&PLAIN, rest) => Cow::Borrowed(rest),
            (&PACKED, rest) => Cow::Owned(decompressed(rest).ok()?),
            _ => {
                let batch = Batch::read(Arc::from(""), BatchClass::Traffic, stored);
                return Some(Self::Lines(batch.ok()?));
            }
        };
        let (mut rest, mut events) = (&body[..], Vec::new());
        let mut left = VALUE_BYTES_MAX;
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (segment, behind) = behind.split_at_checked(length)?;
            let unpacked = unpack(segment, left)?;
            left = left.saturating_sub(unpacked.iter().map(|one| one.record.value_bytes()).sum());
            events.extend(unpacked);
            rest = behind;
        }
        // Several threads fill segments concurrently. Events of the same time keep their order.
        events.sort_by_key(|event: &Unpacked| event.record.at());
        Some(Self::Records(events))
    }

    /// Its number of events.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Lines(batch) => batch.len(),
            Self::Records(events) => events.len(),
        }
    }

    /// The event at an index.
    pub(crate) fn event(&self, index: usize) -> Option<StoredEvent<'_>> {
        Some(match self {
            Self::Lines(batch) => StoredEvent::Line(batch.delivery(index)?),
            Self::Records(events) => StoredEvent::Record(events.get(index)?),
        })
    }

    /// The events in order.
    pub(crate) fn events(&self) -> impl Iterator<Item = StoredEvent<'_>> {
        (0..self.len()).filter_map(|index| self.event(index))
    }
}

impl<'a> StoredEvent<'a> {
    /// `ev_…`.
    pub(crate) fn id(self) -> &'a str {
        match self {
            Self::Line(line) => line.event_id,
            Self::Record(event) => &event.id,
        }
    }

    /// `ep_…`, or empty if the event has no endpoint.
    pub(crate) fn endpoint(self) -> &'a str {
        match self {
            Self::Line(line) => line.subscription,
            Self::Record(event) => &event.endpoint,
        }
    }

    /// The kind and the account of the event, and its time in whole milliseconds, which its envelope has.
    pub(crate) fn head(self) -> Option<(Head<'a>, Timestamp)> {
        match self {
            Self::Line(line) => {
                let head = Head::of(std::str::from_utf8(line.envelope).ok()?)?;
                let at = Timestamp::parse(&head.event_timestamp)?;
                Some((head, at))
            }
            Self::Record(Unpacked { record, .. }) => {
                let head = Head {
                    event_type: Cow::Borrowed(record.kind().name),
                    event_timestamp: Cow::Borrowed(""),
                    account_id: Cow::Borrowed(record.account()),
                };
                Some((head, Timestamp::from_unix_millis(record.at().unix_millis())))
            }
        }
    }

    /// The event as one line of JSON with every field.
    pub(crate) fn envelope(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Line(line) => Some(std::str::from_utf8(line.envelope).ok()?.into()),
            Self::Record(Unpacked { id, record, .. }) => {
                let mut line = Vec::with_capacity(record.value_bytes().saturating_mul(2));
                // Truncation is not counted here, because the event is truncated only when it is read.
                encode::event(record, whole(record.kind())?, id, &mut line)
                    .reasons()
                    .for_each(drop);
                Some(String::from_utf8(line).ok()?.into())
            }
        }
    }

    /// The event as a record. One that must be parsed is put into `parsed`.
    pub(crate) fn record<'p>(self, parsed: &'p mut Option<Retained>) -> Option<&'p Record>
    where
        'a: 'p,
    {
        match self {
            Self::Line(line) => {
                *parsed = Retained::read(line.envelope);
                parsed.as_ref().map(|parsed| &parsed.record)
            }
            Self::Record(event) => Some(&event.record),
        }
    }
}

/// The selection of all fields of a retained kind.
fn whole(kind: &EventKind) -> Option<&'static Selection> {
    static WHOLE: LazyLock<Vec<Selection>> = LazyLock::new(retained_pieces::selections);
    WHOLE.iter().find(|whole| whole.kind() == kind)
}

impl<'a> Head<'a> {
    /// Parses the head of an envelope. The encoder of this server writes these keys first, in this order and without
    /// escapes, so the rest is not read.
    fn of(envelope: &'a str) -> Option<Self> {
        let of_ours = || {
            let rest = envelope.strip_prefix(r#"{"event_id":""#)?;
            let (_, rest) = rest.split_once(r#"","event_type":""#)?;
            let (event_type, rest) = rest.split_once(r#"","event_timestamp":""#)?;
            let (event_timestamp, rest) = rest.split_once(r#"","account_id":""#)?;
            let (account_id, _) = rest.split_once('"')?;
            let parts = [event_type, event_timestamp, account_id];
            let is_plain = |text: &str| !text.contains(['"', '\\']);
            parts.into_iter().all(is_plain).then(|| Self {
                event_type: event_type.into(),
                event_timestamp: event_timestamp.into(),
                account_id: account_id.into(),
            })
        };
        of_ours().or_else(|| serde_json::from_str(envelope).ok())
    }
}

#[cfg(test)]
mod tests {
    use culvert_events::{Capture, HTTP_REQUEST_COMPLETE as HTTP, Packer, Slot, Text};

    use super::*;
    use culvert_target::batch::OpenBatch;

    const PATH: Slot<Text> = HTTP.slot("http.request.url.path");

    fn record(path: &str) -> Record {
        let mut record = Record::new(&HTTP, Capture::all(&HTTP), "ac_1".into());
        record.set(PATH, path);
        record.set_endpoint("ep_1".into());
        record.complete(Timestamp::from_unix_nanos(1_800_000_000_123_456_789));
        record
    }

    fn lines(piece: &StoredPiece) -> Vec<String> {
        let envelopes = piece.events().filter_map(StoredEvent::envelope);
        envelopes.map(Cow::into_owned).collect()
    }

    #[test]
    fn pieces_of_both_forms_have_the_same_events() {
        let (mut body, mut batch) = (Vec::new(), OpenBatch::default());
        for segment in [&["/a", "/b\""][..], &["/c"]] {
            let mut packer = Packer::default();
            for path in segment {
                let mut line = Vec::new();
                let all = Selection::all(&HTTP);
                let _whole = encode::event(&record(path), &all, "ev_1", &mut line);
                batch.push(&"ep_1".into(), &line);
                packer.push(b"ev_1", record(path), &"".into());
            }
            push_segment(&mut body, &packer.finish().0);
        }
        let of_records = StoredPiece::read(stored(body)).unwrap();
        let of_lines = StoredPiece::read(batch.finish().stored).unwrap();
        assert!(matches!(of_records, StoredPiece::Records(_)));
        assert!(matches!(of_lines, StoredPiece::Lines(_)));
        assert_eq!(lines(&of_records).len(), 3);
        assert_eq!(lines(&of_records), lines(&of_lines));
        for (a, b) in of_records.events().zip(of_lines.events()) {
            assert_eq!((a.id(), a.endpoint()), (b.id(), b.endpoint()));
            let ((a, a_at), (b, b_at)) = (a.head().unwrap(), b.head().unwrap());
            assert_eq!(
                (a.event_type, a.account_id, a_at),
                (b.event_type, b.account_id, b_at)
            );
        }
    }

    #[test]
    fn a_damaged_piece_is_not_read() {
        let mut body = Vec::new();
        let mut packer = Packer::default();
        packer.push(b"ev_1", record("/a"), &"".into());
        push_segment(&mut body, &packer.finish().0);
        body.push(PLAIN);
        assert!(StoredPiece::read(body.clone()).is_some());
        for end in 0..body.len() - 1 {
            let mut short = body[..end].to_vec();
            short.push(PLAIN);
            assert!(end == 0 || StoredPiece::read(short).is_none(), "{end}");
        }
        assert!(StoredPiece::read(Vec::new()).is_none());
        assert!(StoredPiece::read(vec![9]).is_none());
    }
}
