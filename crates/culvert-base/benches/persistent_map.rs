//! The cost of a look-up in a persistent map and in a plain hash map, and of a clone with one change.
//!
//! The two are measured in turns, so that their ratio holds on a busy machine. Run it with
//! `cargo bench -p culvert-base --bench persistent_map`.

#![allow(
    clippy::print_stdout,
    reason = "a benchmark's figures go to its caller"
)]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_base::PersistentMap;

const ROUNDS: usize = 1_000;
const QUESTIONS: usize = 1 << 11;

fn key(n: usize) -> Arc<str> {
    format!("endpoint-{n}.culvert.localhost").into()
}

fn main() {
    for count in [1_000, 10_000, 100_000] {
        let mut shared = PersistentMap::<Arc<str>, usize>::default();
        let mut plain = HashMap::new();
        for n in 0..count {
            shared.insert(key(n), n);
            plain.insert(key(n), n);
        }
        let asked: Vec<String> = (0..QUESTIONS)
            .map(|n| key(n.wrapping_mul(7919) % count).to_string())
            .collect();
        let (mut of_shared, mut of_plain) = (Duration::MAX, Duration::MAX);
        let mut of_change = Duration::MAX;
        for round in 0..ROUNDS {
            let began = Instant::now();
            for host in &asked {
                black_box(shared.get(host.as_str()));
            }
            of_shared = of_shared.min(began.elapsed());
            let began = Instant::now();
            for host in &asked {
                black_box(plain.get(host.as_str()));
            }
            of_plain = of_plain.min(began.elapsed());
            let began = Instant::now();
            let before = shared.clone();
            shared.insert(key(round), round);
            of_change = of_change.min(began.elapsed());
            drop(before);
        }
        let each = |all: Duration| all.as_nanos() as f64 / QUESTIONS as f64;
        println!(
            "endpoints={count} shared={:.1} ns plain={:.1} ns ratio={:.2} change={:.1} µs",
            each(of_shared),
            each(of_plain),
            each(of_shared) / each(of_plain),
            of_change.as_nanos() as f64 / 1000.0
        );
    }
}
