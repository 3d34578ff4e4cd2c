//! A cache of whole header maps; each thread has one.
//!
//! Clients and services that send many messages send most of them with the same lines. If all lines of a message are
//! those of a kept map, its JSON is copied. If not, writing continues from the first line that differs.
//!
//! A map is found by its first line. The values of credentials are not kept: their JSON does not depend on them.

use super::{Cookies, HeaderRules, Shown, line_hash};

/// Name and value, as received.
pub(super) type Line<'a> = (&'a [u8], &'a [u8]);

/// Number of maps that are kept.
const MAPS: usize = 16;
/// Maps with more bytes of names and values, or of JSON, are not kept.
const RECEIVED_BYTES_MAX: usize = 2 << 10;
const JSON_BYTES_MAX: usize = 4 << 10;
/// One in this many maps that are not cached is added, so maps that occur once cost little.
const KEPT_EVERY: u32 = 4;

/// Kept maps, each at the place of its first line.
#[derive(Debug, Default)]
pub(super) struct MapCache {
    maps: Vec<CachedMap>,
    n_missed: u32,
    /// The memory for the next map.
    draft: CachedMap,
}

/// The lines of a message and their JSON. An entry without lines is unused.
#[derive(Clone, Debug, Default)]
pub(super) struct CachedMap {
    /// Hash of the rules.
    rules: u64,
    are_cookies_joined: bool,
    lines: Vec<CachedLine>,
    /// Names and values in order, without credentials.
    received: Vec<u8>,
    json: Vec<u8>,
    /// Whether it was used since another map last claimed its place.
    is_used: bool,
}

/// Where a line ends in the received bytes.
#[derive(Clone, Copy, Debug)]
struct CachedLine {
    name_end: usize,
    end: usize,
    is_redacted: bool,
}

/// The number of lines at the start of a message that equal those of a cached map.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedLines {
    place: usize,
    n_lines: usize,
}

impl MapCache {
    /// Compares the lines of a message, which begins with `next`, with a cached map. Consumes the lines that match;
    /// `next` is then the first other line.
    pub(super) fn matching<'a>(
        &mut self,
        rules: &HeaderRules,
        cookies: Cookies,
        next: &mut Option<Line<'a>>,
        lines: &mut impl Iterator<Item = Line<'a>>,
    ) -> CachedLines {
        let place = next.map_or(0, place_of);
        let mut known = CachedLines { place, n_lines: 0 };
        let are_joined = cookies == Cookies::Joined;
        let map = self.maps.get(place);
        let Some(map) =
            map.filter(|map| map.rules == rules.hash && map.are_cookies_joined == are_joined)
        else {
            return known;
        };
        let mut start = 0;
        while let Some((name, value)) = *next
            && let Some(line) = map.lines.get(known.n_lines)
            && map.received[start..line.name_end] == *name
            && (line.is_redacted || map.received[line.name_end..line.end] == *value)
        {
            start = line.end;
            known.n_lines += 1;
            *next = lines.next();
        }
        known
    }

    /// The JSON of the known lines, if they are a whole map.
    pub(super) fn whole(&mut self, known: CachedLines) -> Option<&[u8]> {
        let map = self.maps.get_mut(known.place)?;
        let is_whole = known.n_lines > 0 && map.lines.len() == known.n_lines;
        map.is_used |= is_whole;
        is_whole.then_some(&map.json)
    }

    /// The known lines. Those that are redacted have no values.
    pub(super) fn first_lines(&self, known: CachedLines) -> impl Iterator<Item = Line<'_>> {
        let (map, mut start) = (self.maps.get(known.place), 0);
        (0..known.n_lines).map_while(move |n| {
            let line = map?.line(n, start);
            start = map?.lines.get(n)?.end;
            line
        })
    }

    /// An empty map to be filled and [put](Self::put); `None` for most maps, so that only some are cached.
    pub(super) fn draft(&mut self) -> Option<CachedMap> {
        self.n_missed = self.n_missed.wrapping_add(1);
        let is_kept = self.n_missed.is_multiple_of(KEPT_EVERY);
        is_kept.then(|| {
            let mut draft = std::mem::take(&mut self.draft);
            draft.lines.clear();
            draft.received.clear();
            draft.json.clear();
            draft
        })
    }

    /// Caches a map, unless it is too large, or its place has a map that was used since the last attempt.
    pub(super) fn put(
        &mut self,
        mut draft: CachedMap,
        rules: &HeaderRules,
        cookies: Cookies,
        json: &[u8],
    ) {
        if let Some(first) = draft.line(0, 0)
            && json.len() <= JSON_BYTES_MAX
            && !draft.lines[0].is_redacted
        {
            let place = place_of(first);
            if self.maps.is_empty() {
                self.maps.resize(MAPS, CachedMap::default());
            }
            let map = &mut self.maps[place];
            if !std::mem::take(&mut map.is_used) {
                draft.rules = rules.hash;
                draft.are_cookies_joined = cookies == Cookies::Joined;
                draft.json.extend_from_slice(json);
                std::mem::swap(map, &mut draft);
            }
        }
        self.draft = draft;
    }
}

impl CachedMap {
    /// Adds a line. Returns false if the map cannot be kept, because it has too many bytes or a value of which only a
    /// part may be shown.
    pub(super) fn push(&mut self, (name, value): Line<'_>, shown: Shown) -> bool {
        let value = match shown {
            Shown::Whole => value,
            Shown::Redacted => b"",
            Shown::Url | Shown::Exact => return false,
        };
        self.received.extend_from_slice(name);
        let name_end = self.received.len();
        self.received.extend_from_slice(value);
        self.lines.push(CachedLine {
            name_end,
            end: self.received.len(),
            is_redacted: shown == Shown::Redacted,
        });
        self.received.len() <= RECEIVED_BYTES_MAX
    }

    fn line(&self, n: usize, start: usize) -> Option<Line<'_>> {
        let CachedLine { name_end, end, .. } = *self.lines.get(n)?;
        Some((
            self.received.get(start..name_end)?,
            self.received.get(name_end..end)?,
        ))
    }
}

/// The place of a map that begins with this line.
fn place_of(line: Line<'_>) -> usize {
    (line_hash(line) >> (64 - MAPS.ilog2())) as usize
}
