//! Which upstreams of a list get traffic now, and in which turns.

use tokio::time::Instant;

/// A share of a priority may overflow to the next one when less than this much of it is left: with 100/140 of its upstreams, a
/// priority still serves everything.
const OVERFLOW_PERCENT: u64 = 140;
/// The weights of a priority that serves a part of the traffic are scaled to this sum.
const SCALE: u64 = 1_000_000;

/// An upstream of a list as a view is made of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) weight: u16,
    pub(crate) priority: u8,
    /// Whether it is ejected.
    pub(crate) is_out: bool,
    /// How much of its weight counts so far, in percent; at least 1.
    pub(crate) warmth: u8,
}

/// The upstreams that get traffic, until one of them is ejected or another returns.
#[derive(Debug)]
pub(crate) struct View {
    /// Positions in the list, each with the sum of the weights up to it.
    entries: Box<[(usize, u64)]>,
    total: u64,
    /// Added for each turn, modulo `total`. It has no factor in common with `total`, so that all turns come before one
    /// repeats.
    stride: u64,
    /// Whether too many are out, so that all are used.
    pub(crate) is_panic: bool,
    /// When the next one that is out returns, or the share of one grows.
    pub(crate) until: Option<Instant>,
}

impl Candidate {
    fn warm_weight(&self) -> u64 {
        u64::from(self.weight) * u64::from(self.warmth)
    }
}

impl View {
    /// The view of a list. If less than `panic_below` percent are left and they cannot serve everything, all are used.
    pub(crate) fn of(candidates: &[Candidate], panic_below: u8, until: Option<Instant>) -> Self {
        let served = candidates.iter().filter(|one| one.weight > 0);
        let (total, left) = served.fold((0, 0), |(total, left), one| {
            (total + 1_u64, left + u64::from(!one.is_out))
        });
        let mut priorities: Vec<u8> = candidates.iter().map(|one| one.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let mut shares = Vec::with_capacity(priorities.len());
        let mut missing = 100;
        for priority in priorities {
            let share = availability(candidates, priority).min(missing);
            missing -= share;
            shares.push((priority, share));
        }
        let is_panic = left == 0 || (missing > 0 && left * 100 < u64::from(panic_below) * total);
        let is_whole = shares.iter().filter(|(_, share)| *share > 0).count() == 1;
        let share = |priority| {
            let found = shares.iter().find(|(one, _)| *one == priority);
            found.map_or(0, |(_, share)| *share)
        };
        let weight = |one: &Candidate| match (is_panic, one.is_out) {
            (true, _) => u64::from(one.weight),
            (false, true) => 0,
            (false, false) if is_whole && share(one.priority) > 0 => one.warm_weight(),
            (false, false) => {
                let sum = weights(candidates, one.priority).max(1);
                share(one.priority) * SCALE * one.warm_weight() / (sum * 100)
            }
        };
        Self::with(candidates.iter().map(weight), is_panic, until)
    }

    fn with(weights: impl Iterator<Item = u64>, is_panic: bool, until: Option<Instant>) -> Self {
        let weights: Vec<u64> = weights.collect();
        let divisor = weights.iter().copied().fold(0, common_divisor).max(1);
        let mut total = 0;
        let mut entries = Vec::with_capacity(weights.len());
        for (index, weight) in weights.into_iter().enumerate() {
            if weight > 0 {
                total += weight / divisor;
                entries.push((index, total));
            }
        }
        Self {
            entries: entries.into(),
            total,
            stride: stride(total),
            is_panic,
            until,
        }
    }

    /// The position in the list of the upstream whose turn it is.
    pub(crate) fn at(&self, turn: u64) -> Option<usize> {
        self.entries
            .get(self.entry_at(turn)?)
            .map(|(index, _)| *index)
    }

    fn entry_at(&self, turn: u64) -> Option<usize> {
        let place = turn.checked_rem(self.total)? * self.stride % self.total;
        Some(self.entries.partition_point(|(_, upto)| *upto <= place))
    }

    /// The positions of all of them, from the one whose turn it is.
    pub(crate) fn starting_at(&self, turn: u64) -> impl Iterator<Item = usize> {
        let first = self.entry_at(turn).unwrap_or(0);
        let (before, behind) = self.entries.split_at(first.min(self.entries.len()));
        behind.iter().chain(before).map(|(index, _)| *index)
    }

    /// The position of the upstream for a key, of those that `may` serve: of upstreams that come or go, only the keys move.
    ///
    /// This is weighted rendezvous hashing: each upstream draws a number from the key, and the best one serves. Unlike a
    /// ring it needs no table, and there are few upstreams.
    pub(crate) fn of_key(
        &self,
        key: u64,
        identity: impl Fn(usize) -> u64,
        may: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut before = 0;
        let mut best = None;
        for &(index, upto) in &self.entries {
            let weight = upto - before;
            before = upto;
            if !may(index) {
                continue;
            }
            let score = score(key, identity(index), weight);
            if best.is_none_or(|(_, most)| score > most) {
                best = Some((index, score));
            }
        }
        best.map(|(index, _)| index)
    }

    /// Whether an upstream gets traffic.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.weight(index) > 0
    }

    /// The share of an upstream in proportion to those of the others; 0 if it gets no traffic.
    pub(crate) fn weight(&self, index: usize) -> u64 {
        let Ok(entry) = self.entries.binary_search_by_key(&index, |(one, _)| *one) else {
            return 0;
        };
        let upto = |entry: usize| self.entries.get(entry).map_or(0, |(_, upto)| *upto);
        let before = entry.checked_sub(1).map_or(0, upto);
        upto(entry) - before
    }
}

/// What an upstream draws for a key. The chance to have the best of several is in proportion to the weight.
#[allow(clippy::cast_precision_loss, reason = "53 bits are enough")]
fn score(key: u64, identity: u64, weight: u64) -> f64 {
    // The finalizer of SplitMix64 spreads every bit of both over all bits.
    let mut mixed = key ^ identity.rotate_left(32);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    // Above 0 and below 1, so that its logarithm is negative and finite.
    let drawn = ((mixed >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -(weight as f64) / drawn.ln()
}

/// How much of the traffic the upstreams of a priority can serve, in percent.
fn availability(candidates: &[Candidate], priority: u8) -> u64 {
    let of_it = |one: &&Candidate| one.priority == priority && one.weight > 0;
    let all = candidates.iter().filter(of_it).count() as u64;
    let left = candidates.iter().filter(of_it).filter(|one| !one.is_out);
    let left = left.count() as u64;
    (left * OVERFLOW_PERCENT)
        .checked_div(all)
        .unwrap_or(0)
        .min(100)
}

/// The weights of those of a priority that are not out.
fn weights(candidates: &[Candidate], priority: u8) -> u64 {
    let left = candidates
        .iter()
        .filter(|one| one.priority == priority && !one.is_out);
    left.map(Candidate::warm_weight).sum()
}

/// A number without a factor in common with `total`, near the golden section of it: successive turns are far apart.
fn stride(total: u64) -> u64 {
    let near = total * 618 / 1_000;
    let mut candidates = (near..total).chain(1..near.max(2));
    candidates
        .find(|candidate| common_divisor(*candidate, total) == 1)
        .unwrap_or(1)
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(candidates: &[(u16, u8, bool)], panic_below: u8) -> View {
        let candidates: Vec<Candidate> = candidates
            .iter()
            .map(|&(weight, priority, is_out)| Candidate {
                weight,
                priority,
                is_out,
                warmth: 100,
            })
            .collect();
        View::of(&candidates, panic_below, None)
    }

    #[test]
    fn one_that_is_not_warm_has_a_part_of_its_turns() {
        let one = |weight, warmth| Candidate {
            weight,
            priority: 0,
            is_out: false,
            warmth,
        };
        let view = View::of(&[one(1, 100), one(1, 10), one(2, 50)], 50, None);
        assert_eq!(counts(&view, 0..21, 3), [10, 1, 10]);
        assert_eq!([0, 1, 2, 3].map(|index| view.weight(index)), [10, 1, 10, 0]);
        // A priority that serves a part is divided in the same way.
        let out = Candidate {
            is_out: true,
            ..one(1, 100)
        };
        let spare = Candidate {
            priority: 1,
            ..one(1, 100)
        };
        let view = View::of(&[one(1, 100), one(1, 10), out, out, spare], 0, None);
        let (warm, cold) = (view.weight(0), view.weight(1));
        assert!(warm.abs_diff(10 * cold) < 10, "{warm}, {cold}");
        // If all are cold, none waits.
        let cold = View::of(&[one(1, 10), one(3, 10)], 50, None);
        assert_eq!(counts(&cold, 0..4, 2), [1, 3]);
    }

    /// How often each of `n` upstreams has its turn.
    fn counts(view: &View, turns: std::ops::Range<u64>, n: usize) -> Vec<u64> {
        let mut counts = vec![0; n];
        for turn in turns {
            counts[view.at(turn).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn each_has_as_many_turns_as_its_weight() {
        let view = of(
            &[(5, 0, false), (3, 0, false), (0, 0, false), (2, 0, false)],
            50,
        );
        for from in [0, 3, 1_000, u64::from(u32::MAX)] {
            let from = from / 10 * 10;
            assert_eq!(counts(&view, from..from + 10, 4), [5, 3, 0, 2]);
        }
        let equal = of(&[(7, 0, false); 3], 50);
        assert_eq!(counts(&equal, 0..3, 3), [1, 1, 1]);
    }

    #[test]
    fn turns_of_one_are_spread() {
        let view = of(&[(9, 0, false), (1, 0, false)], 50);
        let mut longest = 0;
        let mut since = 0;
        for turn in 0..100 {
            since = if view.at(turn) == Some(1) {
                0
            } else {
                since + 1
            };
            longest = longest.max(since);
        }
        assert_eq!(longest, 9);
        let halves = of(&[(500, 0, false), (500, 0, false)], 50);
        let turns: Vec<_> = (0..4).map(|turn| halves.at(turn).unwrap()).collect();
        assert_ne!(turns[0], turns[1]);
        assert_ne!(turns[1], turns[2]);
    }

    #[test]
    fn the_next_priority_serves_what_the_first_cannot() {
        let all = |outs: usize| {
            let mut list = vec![(1, 0, false), (1, 0, false), (1, 0, false), (1, 0, false)];
            list.iter_mut().take(outs).for_each(|one| one.2 = true);
            list.push((1, 1, false));
            of(&list, 50)
        };
        assert_eq!(counts(&all(0), 0..400, 5), [100, 100, 100, 100, 0]);
        // 75 percent of the upstreams serve everything, 50 percent serve 70.
        assert_eq!(counts(&all(1), 0..300, 5), [0, 100, 100, 100, 0]);
        assert_eq!(counts(&all(2), 0..200, 5), [0, 0, 70, 70, 60]);
        let last = all(4);
        assert_eq!(counts(&last, 0..10, 5), [0, 0, 0, 0, 10]);
        assert!(!last.is_panic);
    }

    #[test]
    fn all_are_used_if_too_many_are_out() {
        let view = |outs: usize, panic_below| {
            let mut list = [(1, 0, false); 4];
            list.iter_mut().take(outs).for_each(|one| one.2 = true);
            of(&list, panic_below)
        };
        assert!(!view(2, 50).is_panic);
        assert_eq!(counts(&view(2, 50), 0..4, 4), [0, 0, 2, 2]);
        assert!(view(3, 50).is_panic);
        assert_eq!(counts(&view(3, 50), 0..4, 4), [1, 1, 1, 1]);
        assert!(!view(3, 0).is_panic);
        assert_eq!(counts(&view(3, 0), 0..4, 4), [0, 0, 0, 4]);
        // Without any, there is no other choice.
        assert!(view(4, 0).is_panic);
    }

    #[test]
    fn keys_are_divided_by_weight_and_stay_where_they_are() {
        let chosen = |list: &[(u16, u8, bool)], key: u64| {
            let key = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            of(list, 0).of_key(key, |index| index as u64 * 7_919, |_| true)
        };
        let all = [(3, 0, false), (1, 0, false), (0, 0, false), (4, 0, false)];
        let without = [(3, 0, false), (1, 0, true), (0, 0, false), (4, 0, false)];
        let mut counts = [0_u32; 4];
        for key in 0..8_000 {
            let index = chosen(&all, key).unwrap();
            counts[index] += 1;
            let later = chosen(&without, key).unwrap();
            assert!(later == index || index == 1, "only its keys move");
        }
        for (count, weight) in counts.into_iter().zip([3, 1, 0, 4]) {
            assert!(count.abs_diff(weight * 1_000) < 150, "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn someone_always_serves_and_never_one_that_is_out(
            list in proptest::collection::vec((0_u16..=1_000, 0_u8..=7, any::<bool>()), 1..=64),
            panic_below in 0_u8..=100,
            turn in any::<u64>(),
        ) {
            prop_assume!(list.iter().any(|one| one.0 > 0));
            let view = of(&list, panic_below);
            let chosen = view.at(turn).unwrap();
            prop_assert!(list[chosen].0 > 0);
            prop_assert!(view.is_panic || !list[chosen].2);
            let all: Vec<usize> = view.starting_at(turn).collect();
            prop_assert_eq!(all.first(), Some(&chosen));
            let distinct: std::collections::BTreeSet<usize> = all.iter().copied().collect();
            prop_assert_eq!(distinct.len(), all.len());
        }
    }
}
