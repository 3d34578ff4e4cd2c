//! Rate-limit states by key, for keys that clients choose, such as source addresses or user names in failed sign-ins.
//!
//! The table holds a fixed number of keys, and a call costs the same at any fill level. It removes a state only once
//! that state has expired. If it evicted the oldest state instead, a client could reset the limit of any key by
//! sending many other keys. While the table is full of unexpired states, further keys share a fixed number of
//! overflow states, selected by a hash that clients cannot predict. A key that shares a state may be limited too
//! early, but never too late.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};

use hashlink::LinkedHashMap;
use hashlink::linked_hash_map::RawEntryMut;

/// Maximum number of states that one call checks for expiry.
const FORGOTTEN_MAX: usize = 2;

/// Rate-limit states by key.
pub struct LimitTable<K, V> {
    /// Least recently used first.
    states: LinkedHashMap<K, V, RandomState>,
    keys_max: usize,
    /// The overflow states, allocated when the table is first full.
    shared: Box<[V]>,
    shared_max: usize,
    hasher: RandomState,
}

impl<K: Eq + Hash, V: Clone + Default> LimitTable<K, V> {
    /// An empty table for `keys_max` keys, with `shared_max` overflow states.
    pub fn new(keys_max: usize, shared_max: usize) -> Self {
        Self {
            states: LinkedHashMap::with_hasher(RandomState::new()),
            keys_max,
            shared: Box::default(),
            shared_max: shared_max.max(1),
            hasher: RandomState::new(),
        }
    }

    /// The state of a key. `is_over` returns whether a state has expired. One that expires before a less recently
    /// used one keeps its entry until that one has expired too.
    pub fn state(&mut self, key: K, is_over: impl Fn(&V) -> bool) -> &mut V {
        for _ in 0..FORGOTTEN_MAX {
            match self.states.front() {
                Some((_, state)) if is_over(state) => drop(self.states.pop_front()),
                _ => break,
            }
        }
        let hash = self.hasher.hash_one(&key);
        let place = usize::try_from(hash % self.shared_max as u64).unwrap_or(0);
        let is_full = self.states.len() >= self.keys_max;
        match self.states.raw_entry_mut().from_key(&key) {
            RawEntryMut::Occupied(mut entry) => {
                entry.to_back();
                entry.into_mut()
            }
            RawEntryMut::Vacant(entry) if !is_full => {
                // The key may have used an overflow state before.
                let shared = self.shared.get(place).filter(|state| !is_over(state));
                entry.insert(key, shared.cloned().unwrap_or_default()).1
            }
            RawEntryMut::Vacant(_) => {
                if self.shared.is_empty() {
                    self.shared = vec![V::default(); self.shared_max].into();
                }
                // `place` is a remainder modulo the length of `shared`.
                &mut self.shared[place]
            }
        }
    }

    /// Number of keys that have an entry.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether no key has an entry.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }
}

impl<K, V> fmt::Debug for LimitTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitTable")
            .field("keys_max", &self.keys_max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count and the time when it expires.
    type State = (u32, u32);

    fn count(table: &mut LimitTable<u32, State>, key: u32, now: u32) -> u32 {
        let state = table.state(key, |(_, until)| *until <= now);
        if state.1 <= now {
            state.0 = 0;
        }
        *state = (state.0 + 1, now + 10);
        state.0
    }

    #[test]
    fn no_number_of_others_resets_a_key() {
        let mut table = LimitTable::new(100, 16);
        for turn in 1..=3 {
            assert_eq!(count(&mut table, 7, 0), turn);
        }
        for other in 1_000..101_000 {
            count(&mut table, other, 1);
        }
        assert_eq!(table.len(), 100);
        assert_eq!(count(&mut table, 7, 2), 4);
        // Keys beyond the capacity are counted too, in shared states.
        assert!(count(&mut table, 100_999, 2) > 1);
    }

    #[test]
    fn a_key_that_gets_a_place_brings_what_was_counted() {
        let mut table = LimitTable::new(1, 1);
        assert_eq!(count(&mut table, 1, 0), 1);
        for turn in 1..=3 {
            assert_eq!(count(&mut table, 2, 5), turn);
        }
        // The first state expires at 10, the shared state of the second key at 15.
        assert_eq!(count(&mut table, 2, 12), 4);
        assert_eq!(table.len(), 1);
        assert_eq!(count(&mut table, 3, 12), 4, "it shares as before");
        assert_eq!(count(&mut table, 2, 30), 1);
    }

    #[test]
    fn what_is_over_is_forgotten_a_little_at_a_time() {
        let mut table = LimitTable::new(1_000, 1);
        for key in 0..1_000 {
            count(&mut table, key, 0);
        }
        for turn in 0..500 {
            count(&mut table, 5_000, 20);
            assert_eq!(table.len(), 1_000 - 2 * turn - 1, "{turn}");
        }
        count(&mut table, 5_000, 20);
        assert_eq!(table.len(), 1);
        assert!(!table.is_empty());
    }

    thread_local! {
        static STEPS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// A key that counts how often it is hashed and compared.
    #[derive(Debug)]
    struct Counted(u32);

    impl Hash for Counted {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            STEPS.set(STEPS.get() + 1);
            self.0.hash(state);
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            STEPS.set(STEPS.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted {}

    #[test]
    fn a_new_key_takes_as_many_steps_in_a_full_table_as_in_a_half_full_one() {
        const KEYS_MAX: u32 = 1_000;
        const ASKED: u32 = 100;
        let steps = |held: u32, is_over: bool| {
            let mut table = LimitTable::<Counted, ()>::new(KEYS_MAX as usize, 16);
            for key in 0..held {
                table.state(Counted(key), |()| false);
            }
            STEPS.set(0);
            for key in 0..ASKED {
                table.state(Counted(KEYS_MAX + key), |()| is_over);
            }
            STEPS.get()
        };
        let half_full = steps(KEYS_MAX / 2, false);
        for is_over in [false, true] {
            let full = steps(KEYS_MAX, is_over);
            assert!(full <= 3 * half_full, "{full} and {half_full}");
        }
    }
}
