//! Measures a look-up in [`LimitTable`] with few keys, with a full table, and with a full table where each request
//! has a new key.
//!
//! Prints nanoseconds per look-up: the best of several rounds. Target: a look-up in a full table costs as much as one
//! in a half-full table, apart from processor cache misses. Run with `cargo bench -p culvert-base --bench
//! limit_table`.

#![allow(
    clippy::print_stdout,
    reason = "a benchmark's figures go to its caller"
)]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use culvert_base::LimitTable;

const KEYS_MAX: u32 = 65_536;
const ASKS: u32 = 1 << 18;
const ROUNDS: u32 = 7;

fn main() {
    println!("{KEYS_MAX} keys at most; nanoseconds per look-up");
    println!("{:<28}{:>12}{:>12}", "", "text", "address");
    let row = |what: &str, held: u32, asked: fn(u32) -> u32| {
        let text = measure(held, asked, |number| format!("client-{number}"));
        let address = measure(held, asked, |number| IpAddr::from(Ipv4Addr::from(number)));
        println!("{what:<28}{text:>12.1}{address:>12.1}");
    };
    row("below, known keys", KEYS_MAX / 2, |turn| {
        turn.wrapping_mul(0x9E37) % (KEYS_MAX / 2)
    });
    row("at, known keys", KEYS_MAX, |turn| {
        turn.wrapping_mul(0x9E37) % KEYS_MAX
    });
    row("beyond, none over", KEYS_MAX, |turn| KEYS_MAX + turn);
    row("beyond, all others over", 2 * KEYS_MAX, |turn| {
        2 * KEYS_MAX + turn
    });
}

/// The shortest average time of a look-up over all rounds. If `held` exceeds the capacity, every state counts as
/// expired, so that each new key replaces an old one.
fn measure<K: Eq + std::hash::Hash>(
    held: u32,
    asked: fn(u32) -> u32,
    key: impl Fn(u32) -> K,
) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let mut table = LimitTable::<K, u64>::new(KEYS_MAX as usize, 16_384);
        for number in 0..held.min(KEYS_MAX) {
            *table.state(key(number), |_| false) = 1;
        }
        let all_over = held > KEYS_MAX;
        let keys: Vec<K> = (0..ASKS).map(|turn| key(asked(turn))).collect();
        let begun = Instant::now();
        for key in keys {
            *black_box(table.state(key, |_| all_over)) += 1;
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(ASKS));
    }
    best
}
