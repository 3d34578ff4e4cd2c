//! A persistent hash map: its clones share all shards that none of them has changed.
//!
//! It is for tables that are read often and cloned for each change, such as those of a configuration snapshot. A clone
//! costs one reference count. A change copies the shard it touches and the list of shards. A look-up hashes its key
//! once, as in a plain hash map.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;

/// Entries in a shard, on average, at most.
const SHARD_LEN: usize = 256;

/// Part of a map, shared with its clones until one of them changes it.
type Shard<K, V> = Arc<HashTable<(K, V)>>;

/// A hash map from `K` to `V` that is cheap to clone.
pub struct PersistentMap<K, V> {
    /// Their number is a power of two.
    shards: Arc<[Shard<K, V>]>,
    hasher: RandomState,
    len: usize,
}

impl<K, V> Default for PersistentMap<K, V> {
    fn default() -> Self {
        Self {
            shards: Arc::new([Arc::default()]),
            hasher: RandomState::new(),
            len: 0,
        }
    }
}

impl<K, V> Clone for PersistentMap<K, V> {
    fn clone(&self) -> Self {
        Self {
            shards: Arc::clone(&self.shards),
            hasher: self.hasher.clone(),
            len: self.len,
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for PersistentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.shards.iter().flat_map(|shard| shard.iter());
        f.debug_map()
            .entries(entries.map(|(key, value)| (key, value)))
            .finish()
    }
}

impl<K, V> PersistentMap<K, V> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<K: Hash + Eq + Clone, V: Clone> PersistentMap<K, V> {
    /// The value of `key`.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let shard = self.shards.get(shard_of(hash, self.shards.len()))?;
        let found = shard.find(hash, |(known, _)| known.borrow() == key);
        found.map(|(_, value)| value)
    }

    /// Inserts `value`, or replaces the previous value of `key`.
    pub fn insert(&mut self, key: K, value: V) {
        if self.len >= self.shards.len() * SHARD_LEN {
            self.grow();
        }
        let hash = self.hasher.hash_one(&key);
        let hasher = self.hasher.clone();
        let Some(shard) = self.shard_mut(hash) else {
            return;
        };
        match shard.find_mut(hash, |(known, _)| *known == key) {
            Some(entry) => entry.1 = value,
            None => {
                shard.insert_unique(hash, (key, value), |(key, _)| hasher.hash_one(key));
                self.len += 1;
            }
        }
    }

    /// Removes `key`. If it is absent, nothing is copied.
    pub fn remove<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.get(key).is_none() {
            return;
        }
        let hash = self.hasher.hash_one(key);
        let Some(shard) = self.shard_mut(hash) else {
            return;
        };
        if let Ok(entry) = shard.find_entry(hash, |(known, _)| known.borrow() == key) {
            entry.remove();
            self.len -= 1;
        }
    }

    /// The keys, in arbitrary order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The entries, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    fn shard_mut(&mut self, hash: u64) -> Option<&mut HashTable<(K, V)>> {
        let shards = Arc::make_mut(&mut self.shards);
        let number = shard_of(hash, shards.len());
        shards.get_mut(number).map(Arc::make_mut)
    }

    /// Doubles the number of shards.
    fn grow(&mut self) {
        let count = self.shards.len() * 2;
        let mut shards: Vec<HashTable<(K, V)>> = (0..count).map(|_| HashTable::new()).collect();
        for (key, value) in self.shards.iter().flat_map(|shard| shard.iter()) {
            let hash = self.hasher.hash_one(key);
            if let Some(shard) = shards.get_mut(shard_of(hash, count)) {
                let entry = (key.clone(), value.clone());
                shard.insert_unique(hash, entry, |(key, _)| self.hasher.hash_one(key));
            }
        }
        self.shards = shards.into_iter().map(Arc::new).collect();
    }
}

/// The shard of a hash. The table within a shard uses the lowest and the highest bits.
fn shard_of(hash: u64, count: usize) -> usize {
    (hash >> 32) as usize & (count - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_copy_is_unchanged_by_later_writes() {
        let mut map = PersistentMap::<Arc<str>, usize>::default();
        let mut copies = Vec::new();
        let mut plain = HashMap::new();
        let key = |n: usize| -> Arc<str> { format!("host-{}.example", n % 3_000).into() };
        for n in 0..9_000 {
            if n % 5 == 4 {
                map.remove(&*key(n / 2));
                plain.remove(&key(n / 2));
            } else {
                map.insert(key(n), n);
                plain.insert(key(n), n);
            }
            if n % 1_000 == 0 {
                copies.push((map.clone(), plain.clone()));
            }
        }
        copies.push((map, plain));
        for (map, plain) in copies {
            assert_eq!(map.keys().count(), plain.len());
            assert_eq!(map.is_empty(), plain.is_empty());
            for n in 0..3_000 {
                assert_eq!(map.get(&*key(n)), plain.get(&key(n)), "{n}");
            }
        }
    }

    /// A value that counts its copies.
    #[derive(Debug)]
    struct Counted(Arc<AtomicUsize>);

    impl Clone for Counted {
        fn clone(&self) -> Self {
            self.0.fetch_add(1, Ordering::Relaxed);
            Self(Arc::clone(&self.0))
        }
    }

    #[test]
    fn a_change_copies_one_shard_of_a_map_of_any_size() {
        let copies = Arc::new(AtomicUsize::new(0));
        let value = || Counted(Arc::clone(&copies));
        let mut map = PersistentMap::<usize, Counted>::default();
        for len in [1_000, 10_000, 100_000] {
            for key in map.len()..len {
                map.insert(key, value());
            }
            for key in (0..len).step_by(len / 100) {
                let before = map.clone();
                copies.store(0, Ordering::Relaxed);
                map.insert(key, value());
                let n_copied = copies.load(Ordering::Relaxed);
                assert!(
                    (1..2 * SHARD_LEN).contains(&n_copied),
                    "{n_copied} of {len}"
                );
                let shards = before.shards.iter().zip(&*map.shards);
                let n_changed = shards.filter(|(old, new)| !Arc::ptr_eq(old, new)).count();
                assert_eq!(n_changed, 1, "of {len}");
                copies.store(0, Ordering::Relaxed);
                map.remove(&usize::MAX);
                assert_eq!(copies.load(Ordering::Relaxed), 0);
            }
        }
    }
}
