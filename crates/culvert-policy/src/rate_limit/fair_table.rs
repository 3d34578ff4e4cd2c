//! Counts by key, where clients choose the keys and each client has a share of the table.
//!
//! The table has a fixed number of buckets, and each call costs the same however full it is. A bucket is freed when its
//! count limits nothing any more. If all buckets are in use, the source with the most buckets loses its oldest one. So a
//! client that keeps sending new keys displaces its own, and a new key of another client gets a bucket.
//!
//! A displaced count keeps limiting. Further keys of the source that lost it begin with the highest of the
//! counts that this source lost, so a source cannot reset a limit by using many keys. The count is also kept
//! by its key in a second, smaller table, for other sources with the same key. If two counts hash to the same
//! slot there, it keeps the higher one.
//!
//! If no source has more than one bucket, none is displaced. New keys then share a fixed number of counts, by
//! a keyed hash that clients cannot predict: they may be limited too early, but never too late.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Counts that one call checks for expiry.
const FORGOTTEN_MAX: usize = 2;
/// The minimum number of buckets that a source keeps.
const LEAST: u32 = 1;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// A count of a key.
pub trait Count: Clone + Default {
    /// The time that counts are compared with.
    type Now: Copy;

    /// Whether it no longer limits anything. A count expires no earlier than counts that were used before it.
    fn is_over(&self, now: Self::Now) -> bool;

    /// Raises this count to at least the other one from now on.
    fn cover(&mut self, other: &Self);

    /// The amount that it counts, to choose which of two to keep.
    fn weight(&self) -> u64;
}

#[derive(Clone, Copy, Debug)]
struct Links {
    older: u32,
    newer: u32,
}

/// The list that an entry is linked in.
#[derive(Clone, Copy, Debug)]
enum Of {
    All = 0,
    SourceTotals = 1,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            oldest: NONE,
            newest: NONE,
        }
    }
}

#[derive(Debug)]
struct Bucket<C> {
    key: u128,
    source: u64,
    links: [Links; 2],
    count: C,
}

#[derive(Debug, Default)]
struct SourceTotals<C> {
    ends: Ends,
    len: u32,
    /// The highest of the counts that it lost.
    lost: C,
}

/// Counts by key.
pub struct FairTable<C> {
    places: HashMap<u128, u32>,
    entries: Vec<Bucket<C>>,
    free: Vec<u32>,
    ends: Ends,
    sources: HashMap<u64, SourceTotals<C>>,
    /// Sources by number of buckets.
    by_len: BTreeSet<(u32, u64)>,
    keys_max: usize,
    /// Displaced counts, by the hash of their keys. Allocated on first use.
    displaced: Box<[Option<(u128, C)>]>,
    /// Shared counts of keys without a bucket. Allocated on first use.
    shared: Box<[C]>,
    aside_max: usize,
    hasher: RandomState,
}

impl<C: Count> FairTable<C> {
    /// An empty table for `keys_max` keys, with `aside_max` slots each for displaced counts and for shared
    /// counts.
    pub fn new(keys_max: usize, aside_max: usize) -> Self {
        Self {
            places: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            ends: Ends::default(),
            sources: HashMap::new(),
            by_len: BTreeSet::new(),
            keys_max,
            displaced: Box::default(),
            shared: Box::default(),
            aside_max: aside_max.max(1),
            hasher: RandomState::new(),
        }
    }

    /// The count of a key that a source uses.
    pub fn count(&mut self, key: u128, source: u64, now: C::Now) -> &mut C {
        for _ in 0..FORGOTTEN_MAX {
            match self.entries.get(self.ends.oldest as usize) {
                Some(oldest) if oldest.count.is_over(now) => drop(self.remove(self.ends.oldest)),
                _ => break,
            }
        }
        if let Some(&at) = self.places.get(&key) {
            self.touch(at);
            return &mut self.entries[at as usize].count;
        }
        let aside = (self.hasher.hash_one(key) % self.aside_max as u64) as usize;
        if self.places.len() >= self.keys_max && !self.displace(source, now) {
            if self.shared.is_empty() {
                self.shared = vec![C::default(); self.aside_max].into();
            }
            // In bounds: the index is a remainder of the division by their number.
            return &mut self.shared[aside];
        }
        let mut count = C::default();
        let known = [
            self.sources.get(&source).map(|source| &source.lost),
            self.shared.get(aside),
            self.displaced
                .get(aside)
                .and_then(Option::as_ref)
                .and_then(|(of, count)| (*of == key).then_some(count)),
        ];
        for known in known.into_iter().flatten() {
            if !known.is_over(now) {
                count.cover(known);
            }
        }
        let at = self.insert(key, source, count);
        &mut self.entries[at as usize].count
    }

    /// The count of a key and the source that holds it, if it has a bucket.
    pub(crate) fn get_mut(&mut self, key: u128) -> Option<(&mut C, u64)> {
        let at = *self.places.get(&key)?;
        let entry = self.entries.get_mut(at as usize)?;
        Some((&mut entry.count, entry.source))
    }

    /// Visits the counts with a bucket and their keys, oldest first.
    pub(crate) fn each_mut(&mut self, mut then: impl FnMut(u128, &mut C)) {
        let mut at = self.ends.oldest;
        while let Some(entry) = self.entries.get_mut(at as usize) {
            then(entry.key, &mut entry.count);
            at = entry.links[Of::All as usize].newer;
        }
    }

    /// Whether none of its counts limits anything any more.
    pub(crate) fn is_over(&self, now: C::Now) -> bool {
        let newest = self.entries.get(self.ends.newest as usize);
        let shared = self.shared.iter().all(|count| count.is_over(now));
        shared && newest.is_none_or(|newest| newest.count.is_over(now))
    }

    /// How many keys have a bucket.
    pub fn n_keys(&self) -> usize {
        self.places.len()
    }

    /// Takes a bucket from the source with the most buckets, preferring `source` among equals.
    fn displace(&mut self, source: u64, now: C::Now) -> bool {
        let own = self.sources.get(&source).map_or(0, |own| own.len);
        let Some(&(most, greediest)) = self.by_len.last() else {
            return false;
        };
        let loser = if own >= most { source } else { greediest };
        let place = self.sources.get(&loser);
        let Some(at) = place.map(|loser| loser.ends.oldest) else {
            return false;
        };
        if most <= LEAST {
            return false;
        }
        let (key, count) = self.remove(at);
        if count.is_over(now) {
            return true;
        }
        if let Some(loser) = self.sources.get_mut(&loser) {
            if loser.lost.is_over(now) {
                loser.lost = C::default();
            }
            loser.lost.cover(&count);
        }
        if self.displaced.is_empty() {
            self.displaced = vec![None; self.aside_max].into();
        }
        let aside = (self.hasher.hash_one(key) % self.aside_max as u64) as usize;
        let place = &mut self.displaced[aside];
        let gives_way = |(of, known): &(u128, C)| {
            *of == key || known.is_over(now) || known.weight() <= count.weight()
        };
        if place.as_ref().is_none_or(gives_way) {
            *place = Some((key, count));
        }
        true
    }

    fn insert(&mut self, key: u128, source: u64, count: C) -> u32 {
        let links = Links {
            older: NONE,
            newer: NONE,
        };
        let entry = Bucket {
            key,
            source,
            links: [links; 2],
            count,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.places.insert(key, at);
        let of = self.sources.entry(source).or_default();
        self.by_len.remove(&(of.len, source));
        of.len += 1;
        self.by_len.insert((of.len, source));
        append(&mut self.entries, &mut of.ends, Of::SourceTotals, at);
        append(&mut self.entries, &mut self.ends, Of::All, at);
        at
    }

    /// Makes an entry the newest of both lists.
    fn touch(&mut self, at: u32) {
        unlink(&mut self.entries, &mut self.ends, Of::All, at);
        append(&mut self.entries, &mut self.ends, Of::All, at);
        let source = self.entries[at as usize].source;
        if let Some(of) = self.sources.get_mut(&source) {
            unlink(&mut self.entries, &mut of.ends, Of::SourceTotals, at);
            append(&mut self.entries, &mut of.ends, Of::SourceTotals, at);
        }
    }

    /// Removes an entry. A source is removed with its last entry, because the counts it lost are older.
    fn remove(&mut self, at: u32) -> (u128, C) {
        unlink(&mut self.entries, &mut self.ends, Of::All, at);
        let (key, source) = (
            self.entries[at as usize].key,
            self.entries[at as usize].source,
        );
        if let Some(of) = self.sources.get_mut(&source) {
            unlink(&mut self.entries, &mut of.ends, Of::SourceTotals, at);
            self.by_len.remove(&(of.len, source));
            of.len -= 1;
            match of.len {
                0 => drop(self.sources.remove(&source)),
                len => drop(self.by_len.insert((len, source))),
            }
        }
        self.places.remove(&key);
        self.free.push(at);
        (key, std::mem::take(&mut self.entries[at as usize].count))
    }
}

/// Unlinks an entry from a list.
fn unlink<C>(entries: &mut [Bucket<C>], ends: &mut Ends, of: Of, at: u32) {
    let Links { older, newer } = entries[at as usize].links[of as usize];
    match entries.get_mut(older as usize) {
        Some(older) => older.links[of as usize].newer = newer,
        None => ends.oldest = newer,
    }
    match entries.get_mut(newer as usize) {
        Some(newer) => newer.links[of as usize].older = older,
        None => ends.newest = older,
    }
}

/// Links an entry as the newest of a list.
fn append<C>(entries: &mut [Bucket<C>], ends: &mut Ends, of: Of, at: u32) {
    let older = std::mem::replace(&mut ends.newest, at);
    entries[at as usize].links[of as usize] = Links { older, newer: NONE };
    match entries.get_mut(older as usize) {
        Some(older) => older.links[of as usize].newer = at,
        None => ends.oldest = at,
    }
}

impl<C> fmt::Debug for FairTable<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairTable")
            .field("keys_max", &self.keys_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::{Entropy, SeededEntropy};

    use super::*;

    /// A count, and when it expires.
    #[derive(Clone, Debug, Default)]
    struct Until(u32, u32);

    impl Count for Until {
        type Now = u32;

        fn is_over(&self, now: u32) -> bool {
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            self.1 <= now
        }

        fn cover(&mut self, other: &Self) {
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            *self = Self(self.0.max(other.0), self.1.max(other.1));
        }

        fn weight(&self) -> u64 {
            LOOKED_AT.set(LOOKED_AT.get() + 1);
            self.0.into()
        }
    }

    thread_local! {
        /// Number of counts that were visited.
        static LOOKED_AT: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// A new key visits a few counts, regardless of how full the table is and which sources hold its buckets.
    #[test]
    fn a_new_key_visits_few_buckets_of_a_full_table() {
        const KEYS_MAX: u128 = 1_000;
        const ASKED: u32 = 100;
        const EACH_MAX: u32 = 8;
        for held in [KEYS_MAX / 2, KEYS_MAX, 2 * KEYS_MAX] {
            // One source holds all buckets, or each holds one.
            for sources in [1, KEYS_MAX] {
                for now in [1, 20] {
                    let mut table = FairTable::new(KEYS_MAX as usize, 64);
                    for key in 0..held {
                        ask(&mut table, key, (key % sources) as u64, 0);
                    }
                    LOOKED_AT.set(0);
                    for key in 0..ASKED {
                        ask(&mut table, 2 * KEYS_MAX + u128::from(key), u64::MAX, now);
                    }
                    let looked_at = LOOKED_AT.get();
                    assert!(
                        looked_at <= ASKED * EACH_MAX,
                        "{held}, {sources}: {looked_at}"
                    );
                }
            }
        }
    }

    /// Counts a use of the key, which expires after ten. Returns its count.
    fn ask(table: &mut FairTable<Until>, key: u128, source: u64, now: u32) -> u32 {
        let count = table.count(key, source, now);
        if count.1 <= now {
            count.0 = 0;
        }
        *count = Until(count.0 + 1, now + 10);
        count.0
    }

    #[test]
    fn a_greedy_source_evicts_only_its_own_keys() {
        let mut table = FairTable::new(100, 64);
        for turn in 1..=3 {
            assert_eq!(ask(&mut table, 1, 1, 0), turn, "its own");
            assert_eq!(ask(&mut table, 2, 2, 0), turn, "an honest one's");
        }
        let mut highest = 0;
        for key in 1_000..101_000 {
            highest = highest.max(ask(&mut table, key, 1, 1));
        }
        assert_eq!(table.n_keys(), 100);
        assert_eq!(ask(&mut table, 2, 2, 2), 4, "the honest count is there");
        assert!(ask(&mut table, 1, 1, 2) >= 4, "what it lost limits it");
        assert!(highest >= 4, "and its further keys: {highest}");
        // New keys of other sources, and of a source with one key, get buckets.
        for source in 3..40 {
            for turn in 1..=3 {
                assert_eq!(ask(&mut table, source.into(), source, 2), turn);
            }
        }
        assert_eq!(table.n_keys(), 100);
    }

    #[test]
    fn an_evicted_key_keeps_its_count_for_other_sources() {
        let mut table = FairTable::new(100, 64);
        for _ in 0..3 {
            ask(&mut table, 7, 1, 0);
        }
        // The keys that these displace were used once, so none of them takes the place of the first.
        for key in 1_000..1_199 {
            ask(&mut table, key, 1, 1);
        }
        assert_eq!(ask(&mut table, 7, 2, 2), 4);
    }

    #[test]
    fn sources_beyond_the_table_size_share_counts() {
        let mut table = FairTable::new(100, 4);
        for source in 0..100 {
            assert_eq!(ask(&mut table, source.into(), source, 0), 1);
        }
        for source in 1_000..1_040 {
            ask(&mut table, source.into(), source, 1);
        }
        // Forty sources share few counts, at random. An unshared count is very unlikely.
        assert!(ask(&mut table, 2_000, 2_000, 1) > 1);
        assert_eq!(ask(&mut table, 50, 50, 1), 2, "those with a place keep it");
        assert!(!table.is_over(10));
        assert!(table.is_over(11));
        // When buckets are free again, keys keep what was counted for them.
        assert_eq!(ask(&mut table, 3_000, 3_000, 30), 1);
    }

    /// Compares with an unlimited model: no key of a source is counted less than it was used.
    #[test]
    fn no_schedule_resets_a_count() {
        for seed in 0..40 {
            let entropy = SeededEntropy::new(seed);
            let entropy: &dyn Entropy = &entropy;
            let random = |below: u32| u32::from_le_bytes(entropy.bytes()) % below;
            let mut table = FairTable::new(32, 8);
            let mut true_counts: HashMap<u128, (u32, u32)> = HashMap::new();
            let mut now = 0;
            for _ in 0..4_000 {
                now += u32::from(random(8) == 0);
                let source = u64::from(random(6));
                // The first source uses many keys, the others few. No key belongs to two sources.
                let keys = if source == 0 { 200 } else { 3 };
                let key = u128::from(source) << 32 | u128::from(random(keys));
                let counted = ask(&mut table, key, source, now);
                let (count, until) = true_counts.entry(key).or_default();
                if *until <= now {
                    *count = 0;
                }
                (*count, *until) = (*count + 1, now + 10);
                assert!(counted >= *count, "{seed}: {counted} of {count}");
                if source > 0 {
                    assert_eq!(counted, *count, "{seed}: an honest key is counted exactly");
                }
                assert!(table.n_keys() <= 32);
                let lens: u32 = table.sources.values().map(|source| source.len).sum();
                assert_eq!(lens as usize, table.n_keys());
            }
        }
    }
}
