//! Which refused requests and connections have an event.
//!
//! Up to 100 a second of a network (/24 or /64) all have one; beyond that the 128th, the 256th and so on. An event says how
//! many it stands for: those of its network and subject since the one before. All networks together get 1,000 events a
//! second; beyond that a network gets its first of the second, up to 2,000 in all. So a flood costs a bounded number of
//! events, also one from many networks, and a quiet network is still seen.
//!
//! The table has a fixed size. A network hashes to a set of eight places; a flood from others can fill them. Then those that
//! find no place share one, and their events stand for themselves only. Refusals without an event are counted in any case
//! ([`Meters::refusals_sampled`](crate::edge::meters::Meters)), as are all refusals by endpoint and reason.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_base::sync::lock;
use culvert_policy::conn::source_number;

/// Sets of the table, and places of a set.
const SETS: usize = 256;
const PLACES: usize = 8;
/// What refusals of a network are about: an account, or a reason without an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalSubject<'x> {
    Account(&'x str),
    Reason(usize),
}

/// Decides which refusals have an event.
#[derive(Debug)]
pub(crate) struct RefusalSampler {
    hasher: RandomState,
    sets: Box<[Mutex<Set>]>,
    /// The current second, and the events in it.
    events: AtomicU64,
    /// Refusals a second of a network that all have an event.
    whole_max: u64,
    /// Events a second of all networks by the rule for one. Up to twice as many, each network gets its first one.
    events_max: u64,
}

#[derive(Debug, Default)]
struct Set {
    places: [Place; PLACES],
    /// For networks without a place.
    shared: Place,
}

/// The refusals of a network and subject.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    network: u64,
    subject: u64,
    /// The second of the last refusal, plus one; 0 for a free place.
    second: u64,
    /// Refusals in that second.
    count: u64,
    /// Refusals without an event since the last one that has one.
    skipped: u64,
}

/// Refusals without an endpoint that no event stands for yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// As [`network_number`].
    pub(crate) network: u64,
    pub(crate) reason: usize,
    pub(crate) count: u64,
}

/// The /24 or /64 of an address, as a number.
pub(crate) fn network_number(client: IpAddr) -> u64 {
    match client {
        IpAddr::V4(_) => source_number(client) & !0xFF,
        IpAddr::V6(_) => source_number(client),
    }
}

impl RefusalSampler {
    /// Up to `whole_max` refusals a second of a network all have an event, and all networks have about `events_max`
    /// events a second.
    pub(crate) fn new(whole_max: u64, events_max: u64) -> Self {
        Self {
            hasher: RandomState::new(),
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            events: AtomicU64::new(0),
            whole_max,
            events_max,
        }
    }

    fn subject_number(&self, subject: RefusalSubject<'_>) -> u64 {
        match subject {
            RefusalSubject::Reason(reason) => reason as u64,
            // Reasons have no high bit.
            RefusalSubject::Account(account) => self.hasher.hash_one(account) | 1 << 63,
        }
    }

    /// Counts a refusal in a second. Returns how many its event stands for; `None` if it has none.
    pub(crate) fn decide(
        &self,
        client: IpAddr,
        subject: RefusalSubject<'_>,
        second: u64,
    ) -> Option<u64> {
        let (network, subject) = (network_number(client), self.subject_number(subject));
        let set = self.hasher.hash_one(network) as usize % SETS;
        let mut set = lock(self.sets.get(set)?);
        let (position, place) = set.count(network, subject, second + 1);
        if !self.is_recorded(position, second) {
            if let Some(place) = place {
                place.skipped += 1;
            }
            return None;
        }
        let skipped = place.map_or(0, |place| std::mem::take(&mut place.skipped));
        Some(skipped.saturating_add(1))
    }

    /// Whether the refusal at this position of its network in the second has an event. Counts it if so.
    fn is_recorded(&self, position: u64, second: u64) -> bool {
        const COUNT: u64 = (1 << 20) - 1;
        let taken = self
            .events
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |events| {
                let so_far = match events >> 20 == second {
                    true => events & COUNT,
                    false => 0,
                };
                let is_recorded = if so_far < self.events_max {
                    position <= self.whole_max || position.is_power_of_two()
                } else {
                    position == 1 && so_far < self.events_max.saturating_mul(2)
                };
                is_recorded.then_some(second << 20 | (so_far + 1).min(COUNT))
            });
        taken.is_ok()
    }

    /// Takes the refusals without an endpoint that have waited for more than a second for one with an event.
    pub(crate) fn take_skipped(&self, second: u64) -> Vec<Skipped> {
        let mut all = Vec::new();
        for set in &self.sets {
            let mut set = lock(set);
            let waiting = set.places.iter_mut().filter(|place| {
                place.skipped > 0 && place.second < second && place.subject >> 63 == 0
            });
            all.extend(waiting.map(|place| Skipped {
                network: place.network,
                reason: place.subject as usize,
                count: std::mem::take(&mut place.skipped),
            }));
        }
        all
    }
}

impl Set {
    /// Counts a refusal. Returns its position among those of its network in the second, and its place; no place if the set
    /// is full.
    fn count(&mut self, network: u64, subject: u64, second: u64) -> (u64, Option<&mut Place>) {
        let of_network = |place: &&Place| place.network == network && place.second == second;
        let others = self.places.iter().filter(of_network);
        let position = others.map(|place| place.count).sum::<u64>() + 1;
        let is_it = |place: &Place| {
            place.network == network && place.subject == subject && place.second > 0
        };
        let known = self.places.iter().position(is_it);
        // One that is in use in this second stays.
        let oldest = || {
            let places = self.places.iter().enumerate();
            let idle = places.filter(|(_, place)| place.second < second);
            let oldest = idle.min_by_key(|(_, place)| (place.skipped > 0, place.second));
            oldest.map(|(at, _)| at)
        };
        let Some(place) = known.or_else(oldest).and_then(|at| self.places.get_mut(at)) else {
            if self.shared.second != second {
                (self.shared.second, self.shared.count) = (second, 0);
            }
            self.shared.count += 1;
            return (self.shared.count, None);
        };
        if known.is_none() {
            *place = Place {
                network,
                subject,
                ..Place::default()
            };
        }
        if place.second != second {
            (place.second, place.count) = (second, 0);
        }
        place.count += 1;
        (position, Some(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RefusalSubject<'_> = RefusalSubject::Account("ac_1");
    const B: RefusalSubject<'_> = RefusalSubject::Account("ac_2");
    const NONE: RefusalSubject<'_> = RefusalSubject::Reason(3);

    fn v4(network: u32, host: u8) -> IpAddr {
        IpAddr::from((network << 8 | u32::from(host)).to_be_bytes())
    }

    /// Decides `count` times. Returns the number of events, and the sum of what they stand for.
    fn decide(sampler: &RefusalSampler, client: IpAddr, count: u64, second: u64) -> (u64, u64) {
        let decided = (0..count).filter_map(|_| sampler.decide(client, A, second));
        decided.fold((0, 0), |(events, sum), sampled| (events + 1, sum + sampled))
    }

    #[test]
    fn a_hundred_a_second_are_whole_and_a_flood_is_sampled() {
        let sampler = RefusalSampler::new(100, 1_000);
        assert_eq!(decide(&sampler, v4(1, 1), 100, 1), (100, 100));
        // Another address of the network, in the same second.
        let more = decide(&sampler, v4(1, 2), 100_000, 1);
        assert!((1..=10).contains(&more.0), "{more:?}");
        // The next event counts the others.
        let next = sampler.decide(v4(1, 3), A, 2).unwrap();
        assert_eq!(100 + more.1 + next, 100_101);
        assert_eq!(sampler.decide(v4(1, 3), A, 2), Some(1));
        // Another network is not sampled, nor is this one in another second.
        assert_eq!(decide(&sampler, v4(2, 1), 100, 2), (100, 100));
        assert_eq!(decide(&sampler, v4(1, 1), 98, 2), (98, 98));
    }

    #[test]
    fn each_account_gets_its_own_number_and_the_network_its_rate() {
        let sampler = RefusalSampler::new(100, 1_000);
        for _ in 0..1_000 {
            sampler.decide(v4(1, 1), A, 1);
        }
        // The rate is that of the network, so this one has no event either.
        assert_eq!(sampler.decide(v4(1, 1), B, 1), None);
        assert_eq!(sampler.decide(v4(1, 1), B, 2), Some(2));
        let of_a = sampler.decide(v4(1, 1), A, 2).unwrap();
        assert!((2..1_000).contains(&of_a), "{of_a}");
    }

    #[test]
    fn all_networks_together_have_a_limit_and_each_is_seen() {
        let sampler = RefusalSampler::new(100, 1_000);
        let (mut events, mut sum, mut unseen) = (0, 0, 0);
        for network in 0..64 {
            let (more, of) = decide(&sampler, v4(network, 1), 1_000, 1);
            (events, sum) = (events + more, sum + of);
            unseen += u64::from(more == 0);
        }
        assert!(events <= 2_000, "{events}");
        assert!(sum <= 64 * 1_000);
        assert_eq!(unseen, 0);
    }

    #[test]
    fn a_full_table_costs_the_same_and_does_not_flood() {
        let sampler = RefusalSampler::new(100, 1_000);
        let mut events = 0;
        for network in 0..200_000_u64 {
            let network = u128::from(0x2001_0db8_0000_0000 + network) << 64;
            let address = std::net::Ipv6Addr::from(network);
            events += u64::from(sampler.decide(address.into(), A, 7).is_some());
        }
        assert!((1_000..=2_000).contains(&events), "{events}");
        // The places are free again in the next second.
        assert_eq!(sampler.decide(v4(1, 1), A, 8), Some(1));
        assert_eq!(decide(&sampler, v4(1, 1), 99, 8), (99, 99));
    }

    #[test]
    fn refusals_without_an_endpoint_that_wait_are_taken_once() {
        let sampler = RefusalSampler::new(100, 1_000);
        let mut told = 0;
        for _ in 0..1_000 {
            told += sampler.decide(v4(5, 1), NONE, 1).unwrap_or(0);
            sampler.decide(v4(5, 1), A, 1);
        }
        assert_eq!(sampler.take_skipped(1), []);
        let taken = sampler.take_skipped(3);
        let [skipped] = taken.as_slice() else {
            panic!("{taken:?}");
        };
        assert_eq!((skipped.network, skipped.reason), (5 << 8, 3));
        assert_eq!(told + skipped.count, 1_000);
        assert_eq!(sampler.take_skipped(9), []);
        // What waits for an event of an account stays.
        assert!(sampler.decide(v4(5, 1), A, 9).unwrap() > 1);
    }
}
