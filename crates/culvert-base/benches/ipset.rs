//! Measures [`IpSet::contains`] with 100,000 rules against a linear scan and the `prefix-trie` crate, in one run.
//!
//! Prints nanoseconds per decision and the ratio to `IpSet` (1.0): the best of several interleaved rounds. Target:
//! below 200 ns. Run with `cargo bench -p culvert-base --bench ipset`.

#![allow(
    clippy::print_stdout,
    reason = "a benchmark's figures go to its caller"
)]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use culvert_base::{Entropy, IpSet, Prefix, SeededEntropy, Verdict};
use prefix_trie::PrefixMap;

const RULES: usize = 100_000;
const QUESTIONS: usize = 1 << 16;
/// Fewer look-ups for the scan: it is a thousand times slower.
const QUESTIONS_OF_SCAN: usize = 1 << 6;
const ROUNDS: usize = 40;

fn main() {
    let entropy = SeededEntropy::new(7);
    println!("{RULES} rules, one in eight denies; nanoseconds per decision");
    compare(
        "IPv4",
        || {
            let length = 12 + (random(&entropy) % 17) as u8;
            let number = random(&entropy) as u32 & u32::MAX << (32 - length);
            Rule::new(&entropy, (number, length), Ipv4Addr::from(number).into())
        },
        || {
            let number = random(&entropy) as u32;
            ((number, 32), Ipv4Addr::from(number).into())
        },
    );
    compare(
        "IPv6",
        || {
            let length = 28 + (random(&entropy) % 37) as u8;
            let number = network(&entropy) & u128::MAX << (128 - length);
            Rule::new(&entropy, (number, length), Ipv6Addr::from(number).into())
        },
        || {
            let number = network(&entropy);
            ((number, 128), Ipv6Addr::from(number).into())
        },
    );
}

/// One rule in the forms that the three candidates need.
#[derive(Clone, Copy)]
struct Rule<K> {
    key: K,
    prefix: Prefix,
    verdict: Verdict,
}

impl<R: Copy> Rule<(R, u8)> {
    fn new(entropy: &dyn Entropy, key: (R, u8), address: IpAddr) -> Self {
        let prefix = Prefix::parse(&format!("{address}/{}", key.1));
        Self {
            key,
            prefix: prefix.expect("the bits beyond the mask are cleared"),
            verdict: match random(entropy) % 8 {
                0 => Verdict::Deny,
                _ => Verdict::Allow,
            },
        }
    }
}

fn compare<R>(
    name: &str,
    rule: impl Fn() -> Rule<(R, u8)>,
    question: impl Fn() -> ((R, u8), IpAddr),
) where
    R: Copy,
    (R, u8): prefix_trie::Prefix + Copy,
{
    let rules: Vec<_> = (0..RULES).map(|_| rule()).collect();
    let questions: Vec<_> = (0..QUESTIONS).map(|_| question()).collect();
    let set = IpSet::of(rules.iter().map(|rule| (rule.verdict, rule.prefix)));
    let mut trie = PrefixMap::new();
    for rule in &rules {
        // A deny rule wins over an allow rule for the same prefix.
        let known = trie.get(&rule.key);
        if known.is_none_or(|known| *known == Verdict::Allow) {
            trie.insert(rule.key, rule.verdict);
        }
    }
    let admits = |verdicts: &mut dyn Iterator<Item = Verdict>| {
        let mut is_allowed = false;
        for verdict in verdicts {
            if verdict == Verdict::Deny {
                return false;
            }
            is_allowed = true;
        }
        is_allowed
    };
    let by_set = |(_, address): &(_, IpAddr)| set.contains(*address);
    let by_trie = |(key, _): &((R, u8), _)| admits(&mut trie.cover_values(key).copied());
    let by_scan = |(key, _): &((R, u8), _)| {
        let covering = rules
            .iter()
            .filter(|rule| prefix_trie::Prefix::contains(&rule.key, key));
        admits(&mut covering.map(|rule| rule.verdict))
    };
    let n_admitted = questions.iter().filter(|one| by_set(one)).count();
    assert_eq!(
        questions.iter().filter(|one| by_trie(one)).count(),
        n_admitted
    );
    for one in questions.iter().take(QUESTIONS_OF_SCAN) {
        assert_eq!(by_scan(one), by_set(one));
    }

    let mut best = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        let some = &questions[..QUESTIONS_OF_SCAN];
        let figures = [
            time(&questions, by_set),
            time(&questions, by_trie),
            time(some, by_scan),
        ];
        for (best, figure) in best.iter_mut().zip(figures) {
            *best = best.min(figure);
        }
    }
    let share = 100 * n_admitted / QUESTIONS;
    println!("{name}, {share} % admitted");
    for (name, figure) in ["set", "prefix-trie", "linear scan"].into_iter().zip(best) {
        println!("  {name:12} {figure:12.1} ns  {:9.1}", figure / best[0]);
    }
}

/// Nanoseconds per look-up.
fn time<Q>(questions: &[Q], decide: impl Fn(&Q) -> bool) -> f64 {
    let began = Instant::now();
    for question in questions {
        black_box(decide(black_box(question)));
    }
    began.elapsed().as_nanos() as f64 / questions.len() as f64
}

fn random(entropy: &dyn Entropy) -> u64 {
    u64::from_le_bytes(entropy.bytes())
}

/// A random address in 2000::/4, which contains most allocated IPv6 addresses.
fn network(entropy: &dyn Entropy) -> u128 {
    let number = u128::from_le_bytes(entropy.bytes());
    number >> 4 | 2 << 124
}
