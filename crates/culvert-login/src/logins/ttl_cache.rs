//! A bounded cache whose entries expire a fixed time after they were inserted.
//!
//! A full part of it drops its oldest entry, which is also the first to expire.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use culvert_base::sync::lock;
use hashlink::LinkedHashMap;
use tokio::time::Instant;

/// Maximum number of entries behind one lock, so that threads seldom wait, and never while a large table is resized.
const PART_LEN_MAX: usize = 2048;
/// Maximum number of expired entries that one insertion removes.
const REMOVED_MAX: usize = 2;

/// The entries of a part with their times of insertion, oldest first. All parts have the hasher of the cache.
type Part<K, V> = LinkedHashMap<K, (Instant, V), RandomState>;

/// A cache of at most a number of entries, which expire.
pub(crate) struct TtlCache<K, V> {
    parts: Box<[Mutex<Part<K, V>>]>,
    hasher: RandomState,
    time_to_live: Duration,
    part_len_max: usize,
}

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    pub(crate) fn new(time_to_live: Duration, len_max: usize) -> Self {
        let n_parts = len_max.div_ceil(PART_LEN_MAX).max(1);
        let hasher = RandomState::new();
        let part = || Mutex::new(LinkedHashMap::with_hasher(hasher.clone()));
        Self {
            parts: std::iter::repeat_with(part).take(n_parts).collect(),
            hasher,
            time_to_live,
            part_len_max: len_max.div_ceil(n_parts),
        }
    }

    pub(crate) fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        self.live(&self.part(hash), hash, key).is_some()
    }

    pub(crate) fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        self.live(&self.part(hash), hash, key).cloned()
    }

    /// Inserts a value, or replaces that of the key, and restarts its time to live.
    pub(crate) fn insert(&self, key: K, value: V) {
        let mut part = self.part(self.hasher.hash_one(&key));
        self.put(&mut part, key, value);
    }

    /// The value of the key, and whether it is the given one, because the key had none. Of concurrent callers with the
    /// same key, one gets `true`, and all get its value.
    pub(crate) fn get_or_insert(&self, key: K, value: V) -> (V, bool) {
        let hash = self.hasher.hash_one(&key);
        let mut part = self.part(hash);
        if let Some(known) = self.live(&part, hash, &key) {
            return (known.clone(), false);
        }
        self.put(&mut part, key, value.clone());
        (value, true)
    }

    pub(crate) fn remove<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.part(self.hasher.hash_one(key)).remove(key);
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, Part<K, V>> {
        // The table within a part uses the lowest and the highest bits.
        let number = (hash >> 32) as usize % self.parts.len();
        lock(&self.parts[number])
    }

    fn live<'p, Q>(&self, part: &'p Part<K, V>, hash: u64, key: &Q) -> Option<&'p V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let (_, (inserted_at, value)) = part.raw_entry().from_key_hashed_nocheck(hash, key)?;
        (inserted_at.elapsed() < self.time_to_live).then_some(value)
    }

    fn put(&self, part: &mut Part<K, V>, key: K, value: V) {
        for _ in 0..REMOVED_MAX {
            match part.front() {
                Some((_, (inserted_at, _))) if inserted_at.elapsed() >= self.time_to_live => {
                    drop(part.pop_front());
                }
                _ => break,
            }
        }
        part.insert(key, (Instant::now(), value));
        if part.len() > self.part_len_max {
            drop(part.pop_front());
        }
    }
}

impl<K, V> fmt::Debug for TtlCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TtlCache")
            .field("time_to_live", &self.time_to_live)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use culvert_base::BoxFuture;
    use futures_util::FutureExt;
    use futures_util::future::Shared;
    use tokio::task::JoinSet;
    use tokio::time::advance;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn len<K, V>(cache: &TtlCache<K, V>) -> usize {
        cache.parts.iter().map(|part| lock(part).len()).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn entries_expire_a_fixed_time_after_their_insertion() {
        let cache = TtlCache::new(MINUTE, 10);
        cache.insert("a", 1);
        advance(MINUTE / 2).await;
        assert_eq!(cache.get_or_insert("a", 2), (1, false));
        cache.insert("b", 2);
        advance(MINUTE / 2 - Duration::from_millis(1)).await;
        // Reading keeps no entry alive.
        assert_eq!(cache.get("a"), Some(1));
        advance(Duration::from_millis(1)).await;
        assert_eq!(cache.get("a"), None);
        assert!(!cache.contains_key("a"));
        assert_eq!(cache.get("b"), Some(2));
        assert_eq!(cache.get_or_insert("a", 3), (3, true));
        advance(MINUTE - Duration::from_millis(1)).await;
        assert!(!cache.contains_key("b"));
        assert_eq!(cache.get("a"), Some(3));
        // A new value lives as long as the first one.
        cache.insert("a", 4);
        advance(MINUTE / 2).await;
        assert_eq!(cache.get("a"), Some(4));
        cache.remove("a");
        assert_eq!(cache.get("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_cache_drops_its_oldest_entry() {
        let cache = TtlCache::new(MINUTE, 3);
        for n in 0..3 {
            cache.insert(n, n);
        }
        // Now the second is the oldest.
        cache.insert(0, 0);
        cache.insert(3, 3);
        let kept: Vec<i32> = (0..4).filter(|n| cache.contains_key(n)).collect();
        assert_eq!(kept, [0, 2, 3]);
        for n in 0..1_000 {
            cache.insert(n, n);
            assert!(len(&cache) <= 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_parts_of_a_large_cache_keep_its_limit_together() {
        const LEN_MAX: usize = 100_000;
        let cache = TtlCache::new(MINUTE, LEN_MAX);
        assert!(cache.parts.len() > 1);
        assert!(cache.part_len_max <= PART_LEN_MAX);
        for n in 0..2 * LEN_MAX {
            cache.insert(n, ());
        }
        assert!((LEN_MAX * 99 / 100..=LEN_MAX + cache.parts.len()).contains(&len(&cache)));
        // Entries that expired leave with the insertions that follow.
        advance(MINUTE).await;
        for n in 0..LEN_MAX {
            cache.insert(n, ());
        }
        assert!((0..LEN_MAX).filter(|n| cache.contains_key(n)).count() >= LEN_MAX * 98 / 100);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_callers_share_one_fetch() {
        const KEYS: usize = 50;
        const CALLERS: usize = 40;
        type Fetch = Shared<BoxFuture<'static, usize>>;
        let cache = Arc::new(TtlCache::<usize, Fetch>::new(MINUTE, 1024));
        let n_fetches = Arc::new(AtomicUsize::new(0));
        let mut callers = JoinSet::new();
        for caller in 0..KEYS * CALLERS {
            let (cache, n_fetches) = (Arc::clone(&cache), Arc::clone(&n_fetches));
            callers.spawn(async move {
                let key = caller % KEYS;
                let fetch: BoxFuture<'static, usize> = Box::pin(async move {
                    n_fetches.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    caller
                });
                let (shared, is_new) = cache.get_or_insert(key, fetch.shared());
                (key, is_new, shared.await)
            });
        }
        let results = callers.join_all().await;
        assert_eq!(n_fetches.load(Ordering::Relaxed), KEYS);
        for key in 0..KEYS {
            let of_key = results.iter().filter(|(one, ..)| *one == key);
            let mut values: Vec<usize> = of_key.clone().map(|(.., value)| *value).collect();
            values.dedup();
            assert_eq!(values.len(), 1, "{key}");
            assert_eq!(of_key.filter(|(_, is_new, _)| *is_new).count(), 1, "{key}");
        }
    }
}
