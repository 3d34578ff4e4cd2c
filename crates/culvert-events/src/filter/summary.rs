//! Summaries of pieces of the traffic log: which values their events have, so that a search does not read pieces without
//! the wanted ones.
//!
//! ```text
//! u8 form, { u8 subject, u16 count, u16 × count }*, u16 hash of all before
//! ```
//!
//! Numbers are little-endian. Of each subject, a summary has the distinct values: numbers as they are, of texts 16 bits of
//! a hash, sorted. So it may have a value in error, and never lacks one. A subject with too many values is missing, and
//! then nothing is known of it. Values that are null or the default of their field are missing too.
//!
//! A path has the hashes of its beginnings of some lengths. A host has those of the endings that begin with a dot, and an
//! address those of the beginnings that end with a dot or colon.
//!
//! Not here: where summaries are stored, and which values a search wants (`piece`).

use crate::catalogue::kind::FIELDS_MAX;
use crate::record::packed::{PackedValue, each_change};

/// The first byte of a summary. One that begins with another byte says nothing.
const FORM: u8 = 1;
/// Maximum number of values of a subject.
const VALUES_MAX: usize = 256;
/// Lengths of the beginnings of a path.
pub(crate) const PATH_BYTES: [usize; 3] = [4, 8, 16];
/// Parts of an address whose beginnings count.
pub(crate) const ADDRESS_PARTS: usize = 4;

/// The subjects, by their number in a summary.
const KIND: usize = 1;
pub(crate) const ACCOUNT: usize = 2;
pub(crate) const ENDPOINT: usize = 3;
pub(crate) const STATUS: usize = 4;
const METHOD: usize = 5;
pub(crate) const URL_HOST: usize = 6;
pub(crate) const SERVER_NAME: usize = 7;
pub(crate) const PATH: usize = 8;
const REASON: usize = 9;
pub(crate) const CLIENT: usize = 10;
/// Two numbers: the upper and the lower half of the longest duration in milliseconds.
pub(crate) const DURATION: usize = 11;
const SUBJECTS: usize = 12;

/// The fields with a subject.
const FIELDS: [(&str, usize); 8] = [
    ("http.response.status_code", STATUS),
    ("http.request.method", METHOD),
    ("http.request.url.host", URL_HOST),
    ("conn.server_name", SERVER_NAME),
    ("http.request.url.path", PATH),
    ("culvert.reason", REASON),
    ("conn.client_ip", CLIENT),
    ("culvert.duration_ms", DURATION),
];

pub(crate) fn subject_of(path: &str) -> Option<usize> {
    let found = FIELDS.iter().find(|(field, _)| *field == path);
    found.map(|(_, subject)| *subject)
}

/// A summary being made.
#[derive(Debug, Default)]
pub struct PieceSummary {
    /// The values of each subject. `None` once there are too many.
    sets: [Values; SUBJECTS],
    longest: i64,
    /// Whether a segment could not be read.
    is_damaged: bool,
}

#[derive(Debug)]
struct Values(Option<Vec<u16>>);

impl Default for Values {
    fn default() -> Self {
        Self(Some(Vec::new()))
    }
}

impl Values {
    fn add(&mut self, value: u16) {
        let Some(values) = &mut self.0 else { return };
        if values.contains(&value) {
            return;
        }
        match values.len() < VALUES_MAX {
            true => values.push(value),
            false => self.0 = None,
        }
    }
}

impl PieceSummary {
    /// Adds the events of a segment ([`crate::Packer`]).
    pub fn add(&mut self, segment: &[u8]) {
        let mut fields = Vec::new();
        let read = each_change(segment, |value| self.see(&mut fields, value));
        self.is_damaged |= read.is_none();
    }

    /// Adds a value. `fields` has the subject of each field of each kind of the segment.
    fn see(&mut self, fields: &mut Vec<[u8; FIELDS_MAX]>, value: PackedValue<'_>) {
        match value {
            PackedValue::Kind(name, paths) => {
                let mut subjects = [0; FIELDS_MAX];
                for (subject, path) in subjects.iter_mut().zip(paths) {
                    *subject = subject_of(path)
                        .and_then(|one| u8::try_from(one).ok())
                        .unwrap_or(0);
                }
                fields.push(subjects);
                self.sets[KIND].add(hash(name.as_bytes()));
            }
            PackedValue::Account(name) => self.sets[ACCOUNT].add(hash(name.as_bytes())),
            PackedValue::Endpoint(name) => self.sets[ENDPOINT].add(hash(name.as_bytes())),
            PackedValue::Int(kind, field, number) => match subject(fields, kind, field) {
                STATUS => match u16::try_from(number) {
                    Ok(code) => self.sets[STATUS].add(code),
                    Err(_) => self.sets[STATUS].0 = None,
                },
                DURATION => self.longest = self.longest.max(number),
                _ => {}
            },
            PackedValue::Text(kind, field, text) => {
                let subject = subject(fields, kind, field);
                if subject != 0 {
                    each_hash(subject, text, |hash| self.sets[subject].add(hash));
                }
            }
        }
    }

    /// The stored form; empty if a segment could not be read.
    pub fn finish(self) -> Vec<u8> {
        if self.is_damaged {
            return Vec::new();
        }
        let mut out = vec![FORM];
        let mut sets = self.sets.map(|values| values.0);
        let longest = u32::try_from(self.longest.max(0)).unwrap_or(u32::MAX);
        for (subject, values) in sets.iter_mut().enumerate().skip(KIND) {
            let Some(values) = values else { continue };
            values.sort_unstable();
            if subject == DURATION {
                let [a, b, c, d] = longest.to_be_bytes();
                *values = vec![u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
            }
            out.push(u8::try_from(subject).unwrap_or(0));
            let count = u16::try_from(values.len()).unwrap_or(0);
            out.extend_from_slice(&count.to_le_bytes());
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        let sum = hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }
}

fn subject(fields: &[[u8; FIELDS_MAX]], kind: usize, field: usize) -> usize {
    let subjects = fields.get(kind).and_then(|subjects| subjects.get(field));
    subjects.copied().map_or(0, usize::from)
}

/// The hashes of a text of a subject.
fn each_hash(subject: usize, text: &[u8], mut add: impl FnMut(u16)) {
    match subject {
        PATH => {
            for length in PATH_BYTES {
                if let Some(begin) = text.get(..length) {
                    add(hash(begin));
                }
            }
        }
        URL_HOST | SERVER_NAME => {
            add(hash(text));
            let dots = text.iter().enumerate().filter(|(_, byte)| **byte == b'.');
            dots.for_each(|(at, _)| add(hash(&text[at..])));
        }
        CLIENT => {
            add(hash(text));
            let ends = text.iter().enumerate().filter(|(_, byte)| is_end(**byte));
            (ends.take(ADDRESS_PARTS)).for_each(|(at, _)| add(hash(&text[..=at])));
        }
        _ => add(hash(text)),
    }
}

pub(crate) fn is_end(byte: u8) -> bool {
    matches!(byte, b'.' | b':')
}

/// 16 bits of FNV-1a. Stored, so it never changes.
pub(crate) fn hash(bytes: &[u8]) -> u16 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let folded = hash ^ hash >> 32;
    u16::try_from((folded ^ folded >> 16) & 0xffff).unwrap_or(0)
}

/// A stored summary. One that cannot be read, or that has no such subject, has every value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary<'a> {
    sets: [Option<&'a [u8]>; SUBJECTS],
}

impl<'a> Summary<'a> {
    /// Reads the stored form.
    pub fn read(stored: &'a [u8]) -> Self {
        let mut summary = Self::default();
        let Some((stored, sum)) = stored.split_last_chunk::<2>() else {
            return summary;
        };
        let Some((&FORM, mut rest)) = stored.split_first() else {
            return summary;
        };
        if hash(stored) != u16::from_le_bytes(*sum) {
            return summary;
        }
        while let Some(([subject, count @ ..], behind)) = rest.split_first_chunk::<3>() {
            let length = usize::from(u16::from_le_bytes(*count)) * 2;
            let Some((values, behind)) = behind.split_at_checked(length) else {
                return Self::default();
            };
            if let Some(set) = summary.sets.get_mut(usize::from(*subject)) {
                *set = Some(values);
            }
            rest = behind;
        }
        summary
    }

    /// Whether an event may be of this account.
    pub fn may_have_account(&self, account: &str) -> bool {
        self.may_have(ACCOUNT, hash(account.as_bytes()))
    }

    /// Whether an event may be of this endpoint.
    pub fn may_have_endpoint(&self, endpoint: &str) -> bool {
        self.may_have(ENDPOINT, hash(endpoint.as_bytes()))
    }

    /// Whether an event may be of this kind.
    pub fn may_have_kind(&self, kind: &str) -> bool {
        self.may_have(KIND, hash(kind.as_bytes()))
    }

    /// Whether an event may have the value of a subject with this hash.
    pub(crate) fn may_have(&self, subject: usize, value: u16) -> bool {
        self.has_value(subject, |one| one == value)
    }

    /// Whether an event may have a wanted value of a subject.
    pub(crate) fn has_value(&self, subject: usize, is_wanted: impl Fn(u16) -> bool) -> bool {
        let Some(values) = self.sets.get(subject).copied().flatten() else {
            return true;
        };
        let mut values = values.as_chunks::<2>().0.iter();
        values.any(|value| is_wanted(u16::from_le_bytes(*value)))
    }

    /// The longest duration in milliseconds.
    pub(crate) fn longest(&self) -> i64 {
        let halves = self.sets[DURATION].map(<[u8]>::as_chunks::<2>);
        match halves {
            Some(([upper, lower], [])) => {
                let upper = u32::from(u16::from_le_bytes(*upper));
                match upper << 16 | u32::from(u16::from_le_bytes(*lower)) {
                    u32::MAX => i64::MAX,
                    longest => i64::from(longest),
                }
            }
            _ => i64::MAX,
        }
    }
}
