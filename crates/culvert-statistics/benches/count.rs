//! What counting a request costs: one thread, and all threads on one endpoint. And how long a cache line takes from one
//! processor to another, which is what a counter costs that all threads write.
//!
//! `cargo bench -p culvert-statistics`

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use culvert_statistics::{Frame, Slot, Traffic, UpstreamUse};

const REQUESTS: u32 = 5_000_000;

fn count(traffic: &Traffic, slot: &Slot, account: &Arc<str>, endpoint: &Arc<str>) {
    for nth in 0..REQUESTS {
        let counters = Arc::clone(slot.counters(traffic, account, endpoint));
        let latency = Duration::from_micros(u64::from(nth & 0xffff));
        counters.request(Some((200, black_box(latency))), UpstreamUse::Reached);
        counters.bytes(black_box(0), black_box(512));
    }
}

/// How long a cache line takes to another processor and back: the best of many rounds, in which both threads run.
fn there_and_back() -> Duration {
    const ROUNDS: u64 = 3_000;
    const TURNS: u32 = 200;
    let turns_of = |round: u64| round * u64::from(TURNS)..(round + 1) * u64::from(TURNS);
    let line = AtomicU64::new(0);
    let wait_for = |value| {
        while line.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in (0..ROUNDS).flat_map(turns_of) {
                wait_for(2 * turn + 1);
                line.store(2 * turn + 2, Ordering::Release);
            }
        });
        let rounds = (0..ROUNDS).map(|round| {
            let began = Instant::now();
            for turn in turns_of(round) {
                line.store(2 * turn + 1, Ordering::Release);
                wait_for(2 * turn + 2);
            }
            began.elapsed() / TURNS
        });
        rounds.min().unwrap_or_default()
    })
}

fn main() {
    let traffic = Traffic::new(10_000, 100);
    let (account, endpoint): (Arc<str>, Arc<str>) = ("ac_1".into(), "ep_1".into());
    let slot = Slot::default();
    let began = Instant::now();
    count(&traffic, &slot, &account, &endpoint);
    let each = began.elapsed().as_nanos() / u128::from(REQUESTS);
    println!("one thread: {each} ns a request");

    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| count(&traffic, &slot, &account, &endpoint));
        }
    });
    let each = began.elapsed().as_nanos() / u128::from(REQUESTS);
    println!("{threads} threads: {each} ns a request and thread");
    if threads > 1 {
        println!(
            "a cache line to another thread and back: {:?}",
            there_and_back()
        );
    }

    let began = Instant::now();
    for nth in 0..10_000 {
        let slot = Slot::default();
        let endpoint = format!("ep_{nth}").into();
        let counters = slot.counters(&traffic, &account, &endpoint);
        counters.request(
            Some((200, Duration::from_millis(nth))),
            UpstreamUse::Reached,
        );
    }
    println!("first traffic of 10,000 endpoints: {:?}", began.elapsed());
    let began = Instant::now();
    let mut frame = Frame::default();
    traffic.read(&mut frame);
    let read = began.elapsed();
    let bytes = frame.encode();
    println!(
        "reading 10,000 endpoints: {read:?}, encoding: {:?}, {} bytes",
        began.elapsed() - read,
        bytes.len()
    );
}
