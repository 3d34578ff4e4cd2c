//! Permits of a limited number, of which each owner and each endpoint has a share.
//!
//! A request takes permits for an endpoint and its owner. Both may hold permits in proportion to those that are free:
//! an endpoint at most the number of free ones, an owner at most twice that. So one endpoint alone gets half of all
//! permits and one owner two thirds, and the more of them compete, the less each gets. An owner or an endpoint that
//! holds nothing always finds permits, until as many owners as there are permits compete for them.
//!
//! Nothing waits. A call costs the same however many permits are held, and the tables hold only owners and endpoints
//! with permits. A request that needs no permit takes no lock.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex};

use crate::sync::lock;

/// How many permits an owner may hold for each free one. An endpoint may hold one.
const PER_FREE_OF_OWNER: usize = 2;

/// Who takes permits: an endpoint and its owner. A keyed hash, so that names cost nothing to keep and no client can
/// make two names collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    owner: u64,
    endpoint: u64,
}

impl Share {
    /// The share of an endpoint of this owner. Both are IDs, or any other names. An empty name is one like others.
    pub fn new(owner: &str, endpoint: &str) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self {
            owner: HASHER.hash_one(owner),
            // Endpoints of different owners differ, even if they have the same name.
            endpoint: HASHER.hash_one((owner, endpoint)),
        }
    }

    /// What the owner alone takes, for no endpoint.
    pub fn of_owner(owner: &str) -> Self {
        Self::new(owner, "")
    }

    /// A number for the owner, which is the same until the process ends.
    pub fn owner(self) -> u64 {
        self.owner
    }
}

/// Permits of which each owner and each endpoint has a share. Clones are handles to the same permits.
#[derive(Clone)]
pub struct FairPermits(Arc<Permits>);

struct Permits {
    total: usize,
    taken: Mutex<Taken>,
}

/// The permits in use.
#[derive(Default)]
struct Taken {
    all: usize,
    owners: HashMap<u64, usize>,
    endpoints: HashMap<u64, usize>,
}

/// Permits, until this is dropped.
#[derive(Debug)]
pub struct FairPermit {
    permits: FairPermits,
    share: Share,
    count: usize,
}

/// No permit is free for this endpoint and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the share of the endpoint or of its owner is used up")]
pub struct NoPermit;

impl FairPermits {
    /// This many permits.
    pub fn new(total: usize) -> Self {
        Self(Arc::new(Permits {
            total,
            taken: Mutex::default(),
        }))
    }

    /// Takes a permit.
    ///
    /// # Errors
    /// If none is free for this share.
    pub fn try_acquire(&self, share: Share) -> Result<FairPermit, NoPermit> {
        self.try_acquire_many(share, 1)
    }

    /// Takes several permits together, or none.
    ///
    /// # Errors
    /// If fewer are free for this share.
    pub fn try_acquire_many(&self, share: Share, count: usize) -> Result<FairPermit, NoPermit> {
        let mut taken = lock(&self.0.taken);
        let free = self.0.total - taken.all;
        let held = |by: &HashMap<u64, usize>, of: u64| by.get(&of).copied().unwrap_or(0);
        let of_owner = held(&taken.owners, share.owner);
        let of_endpoint = held(&taken.endpoints, share.endpoint);
        // Who holds nothing may take any number that is free.
        let is_fair = |held: usize, most: usize| held == 0 || held.saturating_add(count) <= most;
        let fits = count <= free
            && is_fair(of_owner, free.saturating_mul(PER_FREE_OF_OWNER))
            && is_fair(of_endpoint, free);
        if !fits {
            return Err(NoPermit);
        }
        taken.all += count;
        taken.owners.insert(share.owner, of_owner + count);
        taken.endpoints.insert(share.endpoint, of_endpoint + count);
        drop(taken);
        Ok(FairPermit {
            permits: self.clone(),
            share,
            count,
        })
    }

    /// The number of free permits.
    pub fn available(&self) -> usize {
        self.0.total - lock(&self.0.taken).all
    }
}

impl FairPermit {
    /// How many permits it stands for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Takes further permits for the same share.
    ///
    /// # Errors
    /// If fewer are free for it. What it has stays.
    pub fn grow(&mut self, count: usize) -> Result<(), NoPermit> {
        let mut more = self.permits.try_acquire_many(self.share, count)?;
        self.count += std::mem::take(&mut more.count);
        Ok(())
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        if self.count == 0 {
            return;
        }
        let mut taken = lock(&self.permits.0.taken);
        taken.all = taken.all.saturating_sub(self.count);
        let give_back = |by: &mut HashMap<u64, usize>, of: u64| {
            if let Some(held) = by.get_mut(&of) {
                *held = held.saturating_sub(self.count);
                if *held == 0 {
                    by.remove(&of);
                }
            }
        };
        let Taken {
            owners, endpoints, ..
        } = &mut *taken;
        give_back(owners, self.share.owner);
        give_back(endpoints, self.share.endpoint);
    }
}

impl fmt::Debug for FairPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairPermits")
            .field("total", &self.0.total)
            .field("available", &self.available())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes permits one by one until none is left for this share.
    fn take_all(permits: &FairPermits, share: Share) -> Vec<FairPermit> {
        std::iter::from_fn(|| permits.try_acquire(share).ok()).collect()
    }

    #[test]
    fn one_endpoint_gets_half_and_one_owner_two_thirds() {
        let permits = FairPermits::new(600);
        let first = take_all(&permits, Share::new("a", "1"));
        assert_eq!(first.len(), 300);
        let second = take_all(&permits, Share::new("a", "2"));
        assert_eq!(first.len() + second.len(), 400);
        // However many endpoints it has, each gets at least one, and no more.
        assert_eq!(take_all(&permits, Share::new("a", "3")).len(), 0);
        let other = take_all(&permits, Share::new("b", "1"));
        assert_eq!(other.len(), 100);
        drop((first, second, other));
        assert_eq!(permits.available(), 600);
    }

    #[test]
    fn a_new_owner_finds_a_permit_among_many_greedy_ones() {
        let permits = FairPermits::new(512);
        let mut held = Vec::new();
        for owner in 0..4 {
            for endpoint in 0..8 {
                let share = Share::new(&format!("o{owner}"), &format!("e{endpoint}"));
                held.extend(take_all(&permits, share));
            }
        }
        assert!(permits.available() > 0);
        let new = permits.try_acquire(Share::new("new", "e"));
        assert!(new.is_ok());
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nothing_is_kept() {
        let permits = FairPermits::new(8);
        for turn in 0..1_000 {
            let share = Share::new(&format!("o{turn}"), "e");
            let held = take_all(&permits, share);
            assert_eq!(held.len(), 4, "{turn}");
            drop(held);
        }
        let taken = lock(&permits.0.taken);
        assert_eq!(
            (taken.all, taken.owners.len(), taken.endpoints.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn several_permits_are_taken_at_once_or_not_at_all() {
        let permits = FairPermits::new(100);
        let share = Share::new("a", "1");
        assert_eq!(permits.try_acquire_many(share, 101).err(), Some(NoPermit));
        let mut held = permits.try_acquire_many(share, 30).unwrap();
        assert_eq!(held.grow(20), Ok(()));
        assert_eq!(held.grow(1), Err(NoPermit));
        assert_eq!((held.count(), permits.available()), (50, 50));
        let all = permits.try_acquire_many(Share::new("b", "1"), 50).unwrap();
        assert_eq!(permits.available(), 0);
        assert!(permits.try_acquire(Share::new("c", "1")).is_err());
        drop((held, all));
        assert_eq!(permits.available(), 100);
    }

    #[test]
    fn no_permits_are_none_for_everyone() {
        let permits = FairPermits::new(0);
        assert!(permits.try_acquire(Share::of_owner("a")).is_err());
    }
}
